"""A device is booked by one process a node."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from greentrain.power import claims
from greentrain.power.claims import ENV_DIR, Claims, claims_dir, other_pids, preferred


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
    mine = Claims(tmp_path / "file" / "sub", {})
    assert mine.take("GPU-1")
    assert "cannot write" in mine.degraded


def test_the_folder_can_be_named(tmp_path: Path) -> None:
    assert claims_dir({ENV_DIR: "/x"}) == Path("/x")
    assert claims_dir({ENV_DIR: "x"}) == Path.cwd() / "x", "the guardian runs in another folder"
    tmp_path.chmod(0o777)  # a volume of several users: each has its own in it
    assert claims_dir({ENV_DIR: str(tmp_path)}) == tmp_path / f"greentrain-claims-{os.geteuid()}"


def test_the_folder_is_where_only_this_user_can_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, session, temporary = tmp_path / "run", tmp_path / "session", tmp_path / "tmp"
    monkeypatch.setattr(claims, "RUN", run)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(temporary))
    last = temporary / f"greentrain-claims-{os.geteuid()}"
    own = run if os.geteuid() == 0 else run / "user" / str(os.geteuid())
    env = {"XDG_RUNTIME_DIR": str(session)}
    assert claims_dir(env) == last
    session.mkdir()
    assert claims_dir(env) == session / "greentrain" and claims_dir({}) == last
    own.mkdir(parents=True)
    assert claims_dir(env) == claims_dir({}) == own / "greentrain"
    own.chmod(0o777)
    session.chmod(0o777)
    assert claims_dir(env) == last, "what others can write to holds no claims"


@pytest.mark.skipif(os.geteuid() == 0, reason="root's folder in /run is always there")
def test_a_login_that_comes_later_splits_no_claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "RUN", tmp_path / "run")
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    first = claims_dir({})
    Claims(first, {}).release()
    (tmp_path / "run" / "user" / str(os.geteuid())).mkdir(parents=True)
    assert claims_dir({}) == first


def test_no_claim_follows_a_link_or_believes_what_it_leads_to(tmp_path: Path) -> None:
    victim, made = tmp_path / "victim", tmp_path / "made"
    victim.write_text('{"run_id": "forged"}')
    folder = tmp_path / "claims"
    mine = Claims(folder, {"run_id": "mine"})
    (folder / "GPU-1.lock").symlink_to(made)
    (folder / "GPU-2.json").symlink_to(victim)
    assert mine.holder("GPU-2") == {} and mine.take("GPU-2")
    assert mine.holder("GPU-2")["run_id"] == "mine" and "forged" in victim.read_text()
    assert mine.take("GPU-1") and "GPU-1.lock" in mine.degraded and not made.exists()
    mine.release()


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
    mine = Claims(tmp_path, {})
    assert other_pids(tmp_path) == frozenset()
    assert other_pids(tmp_path, own_pid=1) == {os.getpid()}
    (tmp_path / "process-4194303.pid").touch()  # dead: above the default pid_max of small machines
    assert other_pids(tmp_path, own_pid=1) == {os.getpid()}
    mine.release()
    assert other_pids(tmp_path, own_pid=1) == frozenset()
