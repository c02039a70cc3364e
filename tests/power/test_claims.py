"""A device is booked by one process a node."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from greentrain.power.claims import Claims, claims_dir, other_pids, preferred


def test_a_second_owner_is_refused_until_the_first_lets_go(tmp_path: Path) -> None:
    first = Claims(tmp_path, {"run_id": "a", "rank": 0})
    second = Claims(tmp_path, {"run_id": "b", "rank": 0})
    assert first.take("GPU-1/x") and first.take("GPU-1/x")
    assert not second.take("GPU-1/x")
    assert second.take("GPU-2")
    assert second.holder("GPU-1/x")["run_id"] == "a"
    first.release()
    first.release()
    assert second.take("GPU-1/x")
    second.release()


def test_a_killed_owner_leaves_nothing_behind(tmp_path: Path) -> None:
    code = (
        "import sys,time\nfrom pathlib import Path\nfrom greentrain.power.claims import Claims\n"
        "c = Claims(Path(sys.argv[1]), {}); print(c.take('GPU-1'), flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stdout.readline() == "True\n"
        mine = Claims(tmp_path, {})
        assert not mine.take("GPU-1")
        child.kill()
    assert mine.take("GPU-1")
    mine.release()


def test_an_unwritable_folder_grants_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    claims = Claims(tmp_path / "file" / "sub", {})
    assert claims.take("GPU-1")
    assert "cannot write" in claims.degraded


def test_the_folder_can_be_named() -> None:
    assert claims_dir({"GREENTRAIN_CLAIMS_DIR": "/x"}) == Path("/x")
    assert "greentrain-claims" in str(claims_dir({}))


@pytest.mark.parametrize(
    ("visible", "world", "expected"),
    [
        (4, 4, [[0], [1], [2], [3]]),
        (4, 2, [[0, 2], [1, 3]]),
        (1, 4, [[0], [0], [0], [0]]),  # every rank sees only its own card
        (4, 1, [[0, 1, 2, 3]]),
    ],
)
def test_ranks_share_out_what_all_of_them_see(visible: int, world: int, expected: list[list[int]]) -> None:
    got = [[i for i in range(visible) if preferred(i, visible, rank, world)] for rank in range(world)]
    assert got == expected


def test_processes_that_book_for_themselves_are_known_while_they_live(tmp_path: Path) -> None:
    claims = Claims(tmp_path, {})
    assert other_pids(tmp_path) == frozenset()
    assert other_pids(tmp_path, own_pid=1) == {os.getpid()}
    (tmp_path / "process-4194303.pid").touch()  # dead: above the default pid_max of small machines
    assert other_pids(tmp_path, own_pid=1) == {os.getpid()}
    claims.release()
    assert other_pids(tmp_path, own_pid=1) == frozenset()
