"""A device is booked by one process a node."""

import fcntl
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest
from filelock import FileLock, Timeout

from greentrain.power import claims
from greentrain.power.claims import (
    ENV_DIR,
    Claims,
    _start,
    claims_dir,
    gpus_in_use,
    has_ended,
    other_pids,
    preferred,
)
from greentrain.power.cpu_model import LinuxProc
from greentrain.utils import private_files


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
    tmp_path.chmod(0o755)
    assert claims_dir({ENV_DIR: str(tmp_path)}) == tmp_path, "others may look"
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


def test_root_and_users_have_their_own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, private, uid = tmp_path / "run", set[Path](), 1000
    temporary, own = tmp_path / "greentrain-claims-1000", run / "user" / "1000"
    monkeypatch.setattr(claims, "RUN", run)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(private_files, "is_private", lambda path: Path(path) in private)
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    private |= {run}
    assert claims_dir({}) == temporary, "what is root's is no user's"
    private |= {own}
    assert claims_dir({}) == own / "greentrain"
    private |= {temporary}
    assert claims_dir({}) == temporary, "a login that comes later splits no claims"
    private |= {tmp_path / "greentrain-claims-0"}
    uid = 0
    assert claims_dir({}) == run / "greentrain"
    monkeypatch.setattr(private_files, "HAS_OWNERS", False)
    assert claims_dir({}) == tmp_path / "greentrain-claims-user"


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
    (tmp_path / "process-4194303.pid").touch()  # of a writer that was killed before it said a word
    (own,) = (path for path in tmp_path.glob("process-*.pid") if path.stat().st_size)
    later = {**json.loads(own.read_text()), "pid": os.getppid(), "start": 1.0}  # the number has its next owner by now
    private_files.replace(str(tmp_path / f"process-{os.getppid()}.0.pid"), json.dumps(later))
    assert other_pids(tmp_path, own_pid=1) == {os.getpid()}
    mine.release()
    assert other_pids(tmp_path, own_pid=1) == frozenset()


DIES = """
import os, sys, time
from pathlib import Path
from greentrain.power.claims import Claims
claims = Claims(Path(sys.argv[1]), {"run_id": "killed"})
taken = claims.take("GPU-1")
if os.fork() == 0:  # a worker of a DataLoader, which has the lock's descriptor, too
    time.sleep(60)
else:
    print(taken, flush=True)
    time.sleep(60)
"""


def test_a_killed_owner_whose_children_live_on_is_taken_over_at_once(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", DIES, str(tmp_path)], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as child:
        assert child.stdout is not None and child.stdout.readline() == "True\n"
        mine = Claims(tmp_path, {})
        assert not mine.take("GPU-1")
        child.kill()
        child.wait()
        assert mine.take("GPU-1")
        assert mine.holder("GPU-1")["pid"] == os.getpid()
        assert not Claims(tmp_path, {}).take("GPU-1")
        os.killpg(child.pid, signal.SIGKILL)
    mine.release()


def test_a_device_that_is_booked_is_refused_without_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Claims(tmp_path, {}), Claims(tmp_path, {})
    assert first.take("GPU-1")
    monkeypatch.setattr(time, "sleep", lambda wait_s: pytest.fail("the training waits"))
    assert not second.take("GPU-1")
    first.release()


def test_what_one_thread_took_another_gives_back(tmp_path: Path) -> None:
    first, second = Claims(tmp_path, {}), Claims(tmp_path, {})
    taker = threading.Thread(target=first.take, args=("GPU-1",))
    taker.start()
    taker.join()
    assert not second.take("GPU-1")
    first.release()
    assert second.take("GPU-1")
    second.release()


def told(folder: Path, **other: object) -> dict[str, object]:
    """Leave the words of a process like this one, but for what differs, on a device."""
    claims = Claims(folder, {"run_id": "earlier"})
    claims.take("GPU-1")
    words = {**claims.holder("GPU-1"), **other}
    claims.release()
    private_files.replace(str(folder / "GPU-1.json"), json.dumps(words))
    return words


@pytest.mark.parametrize(
    ("other", "ended"),
    [
        ({}, False),
        ({"start": 1.0}, True),  # its number belongs to another process by now
        ({"pid": 2**22 + 1}, True),
        ({"boot": "an earlier one"}, True),
        ({"pid": 2**22 + 1, "pid_namespace": "pid:[1]"}, False),  # of a container: nothing is known
        ({"pid": 2**22 + 1, "until_s": 1.0}, False),
        ({"pid": None}, False),
    ],
)
def test_a_process_has_ended_by_pid_start_and_boot(tmp_path: Path, other: dict[str, object], ended: bool) -> None:
    words = told(tmp_path, **other)
    assert has_ended(words) is ended  # type: ignore[arg-type]
    assert not has_ended({})
    own = LinuxProc().stat(os.getpid())
    assert own is not None and _start(os.getpid()) == own.start, "by no clock that can be set"


@pytest.fixture
def orphaned(tmp_path: Path) -> Iterator[Path]:
    """Give a folder in which the lock of a device is held, though the process that took it has ended."""
    told(tmp_path, start=1.0)
    fd = os.open(tmp_path / "GPU-1.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    yield tmp_path
    os.close(fd)


def test_a_lock_that_an_ended_holders_children_keep_is_taken_by_one(orphaned: Path) -> None:
    first, second = Claims(orphaned, {}), Claims(orphaned, {})
    assert first.take("GPU-1")
    assert not second.take("GPU-1")
    assert first.holder("GPU-1")["pid"] == os.getpid()
    first.release()


def test_who_takes_over_a_moment_earlier_keeps_the_device(orphaned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    late = Claims(orphaned, {})
    place, ended = str(orphaned / "GPU-1.json"), late.holder("GPU-1")
    living = {**ended, "start": _start(os.getpid())}
    with monkeypatch.context() as patch:
        patch.setattr(time, "sleep", lambda wait_s: private_files.replace(place, json.dumps(living)))
        assert not late.take("GPU-1"), "it has said so meanwhile"
    private_files.replace(place, json.dumps(ended))
    with monkeypatch.context() as patch:

        def held(lock: FileLock, timeout: float) -> NoReturn:
            raise Timeout(lock.lock_file)

        patch.setattr(FileLock, "acquire", held)
        assert not late.take("GPU-1"), "the new lock is another's already"


def test_what_a_run_that_was_killed_before_left_is_free_from_the_start(tmp_path: Path) -> None:
    told(tmp_path, start=1.0)
    seen, late = Claims(tmp_path, {}), Claims(tmp_path, {})
    seen.look("GPU-1")
    assert seen.take("GPU-1") and seen.free_since_s("GPU-1") == -math.inf
    seen.release()
    words = told(tmp_path, start=1.0)
    before_s = time.monotonic()
    assert late.take("GPU-1") and late.free_since_s("GPU-1") >= before_s, words  # killed at some time since the start
    late.release()
    told(tmp_path, until_s=time.monotonic() + 1e6)
    assert late.take("GPU-1") and late.free_since_s("GPU-1") == -math.inf, "a time to come is of an earlier boot"
    late.release()
    assert late.free_since_s("GPU-2") == -math.inf, "nobody had it"
    told(tmp_path, boot="an earlier one")
    assert late.take("GPU-1") and late.free_since_s("GPU-1") == -math.inf
    late.release()


def test_a_device_is_let_go_with_word_up_to_when_it_is_booked(tmp_path: Path) -> None:
    first, second = Claims(tmp_path, {"run_id": "a"}), Claims(tmp_path, {"run_id": "b"})
    assert first.take("GPU-1") and first.take("GPU-2")
    until_s = time.monotonic() - 1.0
    first.let_go("GPU-1", until_s)
    assert second.take("GPU-1") and second.free_since_s("GPU-1") == until_s
    assert not second.take("GPU-2")
    first.release()
    second.release()


def test_who_needs_a_device_asks_for_it_and_only_the_living_are_heard(tmp_path: Path) -> None:
    claims = Claims(tmp_path, {})
    assert not claims.is_asked_for("GPU-1")
    claims.ask("GPU-1")
    assert not claims.is_asked_for("GPU-1"), "its own wish"
    words = json.loads((tmp_path / "GPU-1.wanted").read_text())
    parent = {**words, "pid": os.getppid(), "start": _start(os.getppid())}
    private_files.replace(str(tmp_path / "GPU-1.wanted"), json.dumps(parent))
    assert claims.is_asked_for("GPU-1")
    private_files.replace(str(tmp_path / "GPU-1.wanted"), json.dumps({**parent, "start": 1.0}))
    assert not claims.is_asked_for("GPU-1")
    claims.release()


class FakeCuda:
    """torch.cuda of a process that sees two devices and holds memory on some."""

    def __init__(self, reserved: dict[int, int], up: bool = True) -> None:
        self._reserved, self._up = reserved, up

    def is_available(self) -> bool:
        raise AssertionError("this begins with the driver, after which a fork cannot use CUDA")

    def is_initialized(self) -> bool:
        return self._up

    def device_count(self) -> int:
        return 2

    def memory_reserved(self, position: int) -> int:
        return self._reserved.get(position, 0)


@pytest.mark.parametrize(
    ("cuda", "pids", "used"),
    [
        (FakeCuda({1: 5}), {}, {"b"}),
        (FakeCuda({1: 5}), {"a": [os.getpid()]}, {"b"}),  # a context of NCCL on the first GPU
        (FakeCuda({}), {"a": [os.getpid()]}, set()),
        (FakeCuda({}, up=False), {"a": [os.getpid()], "b": [1]}, {"a"}),
        (None, {"a": [2**22 + 1, os.getppid()], "b": [os.getpid()]}, {"b"}),
        (None, {}, set()),
    ],
)
def test_what_a_process_uses_torch_knows_best(
    cuda: FakeCuda | None, pids: dict[str, list[int]], used: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None if cuda is None else SimpleNamespace(cuda=cuda))
    assert gpus_in_use(["a", "b"], pids) == used


def test_torch_is_not_believed_where_it_counts_other_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=FakeCuda({0: 5})))
    assert gpus_in_use(["a", "b", "c"], {"b": [os.getpid()]}) == {"b"}


def test_a_child_that_computes_is_use_of_its_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert gpus_in_use(["a"], {"a": [child.pid]}) == {"a"}
        child.communicate(b"\n")
