"""The process that holds a command: what it ends, when, and what it says, on its own line and with real processes."""

import errno
import math
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from greentrain.control.launch import reaper
from tests.helpers.child import SH, running


class Clock:
    """Time that passes while somebody sleeps."""

    def __init__(self) -> None:
        self.s = 50.0

    def monotonic(self) -> float:
        return self.s

    def sleep(self, seconds: float) -> None:
        self.s += seconds


class Crowd:
    """Processes that a test has made up: which signals end them, and when they were told."""

    def __init__(self, clock: Clock, heeds: dict[int, set[int]]) -> None:
        self.clock, self.heeds = clock, heeds
        self.told: list[tuple[int, int, float]] = []
        self.looks = 0
        self.leaves_s, self.comes_s = math.inf, math.inf
        """When all go by themselves, and when another one (8) comes."""

    def find(self) -> list[int]:
        if self.clock.s >= self.comes_s:
            self.heeds.setdefault(8, set())
        if self.clock.s >= self.leaves_s:
            self.heeds.clear()
        return list(self.heeds)

    def send(self, pids: Iterator[int], signum: int) -> None:
        for pid in pids:
            self.told.append((pid, signum, round(self.clock.s - 50.0, 1)))
            if signum in self.heeds.get(pid, ()):
                del self.heeds[pid]

    def reap(self) -> None:
        self.looks += 1


@pytest.fixture
def crowd(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[int, set[int]]], Crowd]:
    clock = Clock()
    monkeypatch.setattr(reaper, "time", clock)
    monkeypatch.setattr(reaper, "living", list)

    def made(heeds: dict[int, set[int]]) -> Crowd:
        people = Crowd(clock, heeds)
        monkeypatch.setattr(reaper, "send", people.send)
        return people

    return made


TERM, KILL = signal.SIGTERM, signal.SIGKILL


def test_who_goes_at_sigterm_is_told_once_and_not_killed(crowd: Callable[[dict[int, set[int]]], Crowd]) -> None:
    people = crowd({7: {TERM}, 8: {TERM}})
    assert reaper.end_all(people.find, 5.0, reap=people.reap) is True
    assert people.told == [(7, TERM, 0.0), (8, TERM, 0.0)] and people.looks == 2


def test_who_does_not_go_is_killed_after_the_grace_and_not_before(
    crowd: Callable[[dict[int, set[int]]], Crowd],
) -> None:
    people = crowd({7: {KILL}, 8: {TERM, KILL}})
    assert reaper.end_all(people.find, 5.0) is True
    assert people.told[:2] == [(7, TERM, 0.0), (8, TERM, 0.0)]
    assert [told[:2] for told in people.told[2:]] == [(7, KILL)] and 5.0 <= people.told[2][2] <= 5.1


def test_who_was_left_behind_may_go_by_itself_before_it_is_told(
    crowd: Callable[[dict[int, set[int]]], Crowd],
) -> None:
    people = crowd({7: {KILL}})
    assert reaper.end_all(people.find, 3.0, leave_s=1.0) is True
    (_, first, first_s), (_, last, last_s) = people.told
    assert (first, last) == (TERM, KILL) and 1.0 <= first_s <= 1.1 and 4.0 <= last_s <= 4.1
    people = crowd({7: set()})
    people.leaves_s = 54.5
    assert reaper.end_all(people.find, 3.0, leave_s=9.0, reap=people.reap) is True and people.told == []


def test_who_comes_later_is_told_too_and_nobody_twice(crowd: Callable[[dict[int, set[int]]], Crowd]) -> None:
    people = crowd({7: set()})
    people.comes_s, people.leaves_s = 51.0, 53.0
    assert reaper.end_all(people.find, 5.0) is True
    assert [told[:2] for told in people.told] == [(7, TERM), (8, TERM)] and 1.0 <= people.told[1][2] <= 1.1


def test_what_not_even_sigkill_ends_is_given_up_after_ten_seconds(
    crowd: Callable[[dict[int, set[int]]], Crowd],
) -> None:
    people = crowd({7: set()})
    assert reaper.end_all(people.find, 2.0, leave_s=1.0) is False
    kills = [at_s for _, signum, at_s in people.told if signum == KILL]
    assert 3.0 <= kills[0] <= 3.1 and 13.0 <= kills[-1] <= 13.1 and len(kills) > 100, "each time it looks"
    assert people.clock.s - 50.0 == pytest.approx(13.0, abs=0.1)


def test_the_first_looks_are_close_as_most_go_at_once(crowd: Callable[[dict[int, set[int]]], Crowd]) -> None:
    people = crowd({7: set()})
    people.leaves_s = 51.2
    reaper.end_all(people.find, 5.0, reap=people.reap)
    assert 50 <= people.looks <= 70, "every 5 ms for 0.2 s, then every 50 ms"


# -- what a process is -------------------------------------------------------------------------------------------


def test_state_parent_and_start_of_a_process() -> None:
    with running("echo; sleep 100") as process:
        found, own = reaper.stat(process.pid), reaper.stat(os.getpid())
        assert found is not None and own is not None
        assert found[0] in "SRD" and found[1] == os.getpid() and found[2] >= own[2] > 0
        boot_s = float(Path("/proc/uptime").read_text().split()[0])
        assert found[2] / os.sysconf("SC_CLK_TCK") <= boot_s, "ticks since boot"
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        zombie = reaper.stat(process.pid)
        assert zombie is not None and zombie[0] == "Z"
        assert reaper.living([os.getpid(), process.pid]) == [os.getpid()]
    assert reaper.stat(process.pid) is None and reaper.living([process.pid]) == []


def test_a_name_with_spaces_and_brackets_moves_no_field(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fields = ["R", "17", *map(str, range(5, 22)), "99", "23"]
    for name in ("python", "a ) b (c"):
        (tmp_path / "stat").write_text(f"4 ({name}) {' '.join(fields)}")
        monkeypatch.setattr(reaper, "open", lambda path, **how: (tmp_path / "stat").open(), raising=False)
        assert reaper.stat(4) == ("R", 17, 99)
    for torn in ("", "4 (x) R", "4 (x) R one " + " ".join("2" for _ in range(30))):
        (tmp_path / "stat").write_text(torn)
        assert reaper.stat(4) is None


def test_all_below_a_process_parents_first(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = {2: 1, 3: 2, 4: 3, 5: 2, 6: 1, 7: 99}
    monkeypatch.setattr(os, "listdir", lambda path: [*map(str, tree), "self", "8"])
    monkeypatch.setattr(reaper, "stat", lambda pid: ("S", tree[pid], 0) if pid in tree else None)
    found = reaper.below(1)
    assert sorted(found) == [2, 3, 4, 5, 6] and found.index(2) < found.index(3) < found.index(4)
    assert sorted(reaper.below(1, without=(3,))) == [2, 5, 6] and reaper.below(4) == []


def test_who_has_a_handler_for_a_signal() -> None:
    own = signal.signal(signal.SIGUSR2, lambda *_: None)
    try:
        assert reaper.heeds(os.getpid(), signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, own)
    before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    try:
        assert not reaper.heeds(os.getpid(), signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, before)
    with running("trap : HUP; echo; sleep 100") as process:
        assert [s for s in range(1, 16) if reaper.heeds(process.pid, s) and s not in (2, 3)] == [signal.SIGHUP]
    assert not reaper.heeds(process.pid, signal.SIGHUP), "it is gone"


def test_a_signal_to_who_is_gone_reaches_the_others() -> None:
    with running("exit") as gone, running("echo; sleep 100") as process:
        gone.wait()
        reaper.send([gone.pid, process.pid], signal.SIGTERM)
        assert process.wait() == -signal.SIGTERM


def test_the_kernel_says_whether_it_took_a_property() -> None:
    assert reaper.prctl(36, 0) is True, "PR_SET_CHILD_SUBREAPER"
    assert reaper.prctl(987_654, 0) is False


# -- a command under it ------------------------------------------------------------------------------------------

QUICK = f"""
import os, socket, sys
sys.path.insert(0, {str(Path(reaper.__file__).parent)!r})
import reaper
reaper.LEAVE_S, reaper.LEFT_S, reaper.GRACE_S = 0.05, 0.1, 0.2
_, fd, fds, *argv = sys.argv
reaper.Reaper(socket.socket(fileno=int(fd)), argv, [int(f) for f in fds.split(",") if f]).run()
"""
"""The reaper with little patience, but for its script's own line."""


class Held:
    """A command under a reaper, and the line to it.

    Args:
        script: Of a shell.
        words: The command; empty: the shell with the script.
        as_script: Whether the reaper is started as the launcher starts it, with its own patience.
    """

    def __init__(self, script: str = "", *words: str, as_script: bool = False) -> None:
        self.line, theirs = socket.socketpair()
        self.line.settimeout(60.0)
        self.said, says = os.pipe()
        how = ["-I", "-S", reaper.__file__] if as_script else ["-S", "-c", QUICK]
        self.process = subprocess.Popen(
            [sys.executable, *how, str(theirs.fileno()), str(says), *(words or (SH, "-c", script, "x", str(says)))],
            pass_fds=(theirs.fileno(), says),
            start_new_session=True,
        )
        theirs.close()
        os.close(says)
        self._text = ""

    def hear(self) -> str:
        """Return the next word of the reaper; empty: it has ended."""
        while "\n" not in self._text:
            data = self.line.recv(4096).decode()
            if not data:
                return ""
            self._text += data
        word, _, self._text = self._text.partition("\n")
        return word

    def says(self) -> str:
        """Return the next line of the command."""
        out = b""
        while not out.endswith(b"\n"):
            if not select.select([self.said], [], [], 60.0)[0]:
                raise TimeoutError(f"after {out!r} it says nothing more")
            data = os.read(self.said, 1)
            if not data:
                break
            out += data
        return out.decode().strip()

    def tell(self, *words: str) -> None:
        self.line.sendall("".join(f"{word}\n" for word in words).encode())

    def started(self) -> int:
        what, pid = self.hear().split()
        assert what == "started"
        return int(pid)

    def __enter__(self) -> "Held":
        return self

    def __exit__(self, *_: object) -> None:
        self.line.close()
        try:
            self.process.wait(30.0)
        finally:
            self.process.kill()
            os.close(self.said)


def gone(pid: int) -> bool:
    return not reaper.living([pid])


@pytest.mark.parametrize(("script", "code"), [("exit 7", "code 7"), ("kill -SEGV $$", "code -11"), ("true", "code 0")])
def test_a_command_ends_and_its_code_is_told(script: str, code: str) -> None:
    with Held(script, as_script=True) as held:
        held.started()
        assert held.hear() == code and held.hear() == "" and held.process.wait() == 0


def test_a_command_that_is_not_there_has_an_errno() -> None:
    with Held("", "/no/such/program") as held:
        assert held.hear() == f"failed {errno.ENOENT}" and held.hear() == ""


def test_a_command_has_its_own_session_its_files_and_all_signals() -> None:
    with Held("echo $$ $(cut -d' ' -f6 /proc/$$/stat) >/dev/fd/$1; kill -USR1 $$; exit 3") as held:
        pid = held.started()
        assert held.says() == f"{pid} {pid}" and held.hear() == "code -10", "SIGUSR1 does what it does without us"


def test_a_signal_goes_to_the_command_alone_or_to_its_group_or_to_who_heeds_it() -> None:
    child = "trap 'echo child $0 >/dev/fd/$1' TERM USR1 USR2; echo ready >/dev/fd/$1; while :; do sleep 0.01; done"
    script = (
        f"trap 'echo own >/dev/fd/$1' TERM USR1; trap 'exit 0' HUP; "
        f'sh -c "{child.replace("$", chr(92) + "$")}" c $1 & while :; do sleep 0.01; done'
    )
    with Held(script) as held:
        held.started()
        assert held.says() == "ready"
        held.tell(f"signal {int(signal.SIGTERM)}")
        assert held.says() == "own"
        held.tell(f"group {int(signal.SIGUSR1)}")
        assert sorted((held.says(), held.says())) == ["child c", "own"]
        held.tell(f"heed {int(signal.SIGUSR2)}")  # the command itself would die of it
        assert held.says() == "child c"
        held.tell(f"signal {int(signal.SIGHUP)}")
        assert held.hear() == "code 0"


def test_what_the_command_has_left_is_swept_and_the_command_stays() -> None:
    with Held(
        "setsid sh -c 'echo $$ >/dev/fd/'$1'; exec sleep 100' & trap 'exit 5' HUP; while :; do sleep 0.01; done"
    ) as held:
        held.started()
        left = int(held.says())
        held.tell("sweep 5")
        assert held.hear() == "swept", "it is below the reaper, not below the command"
        held.tell(f"signal {int(signal.SIGHUP)}")
        assert held.hear() == "code 5"
    assert gone(left)


def test_orphans_of_a_command_are_swept_while_it_runs() -> None:
    script = (
        "( setsid sh -c 'echo $$ >/dev/fd/'$1'; exec sleep 100' & ) ; trap 'exit 5' HUP; while :; do sleep 0.01; done"
    )
    with Held(script) as held:
        pid, left = held.started(), int(held.says())
        held.tell("sweep 5", "sweep 5")
        assert (held.hear(), held.hear()) == ("swept", "swept") and gone(left) and not gone(pid)
        held.tell(f"signal {int(signal.SIGHUP)}")
        assert held.hear() == "code 5"


@pytest.mark.parametrize("trap", ["echo deaf >/dev/null", "-"], ids=["deaf", "not deaf"])
def test_what_a_command_leaves_at_its_end_is_gone_before_its_code_is_told(trap: str) -> None:
    left = f"trap \"{trap}\" TERM; echo $$ >/dev/fd/'$1'; while :; do sleep 0.05; done"
    with Held(f"setsid sh -c '{left}' & trap 'exit 4' HUP; while :; do sleep 0.01; done") as held:
        held.started()
        pid = int(held.says())
        held.tell(f"signal {int(signal.SIGHUP)}")
        assert held.hear() == "code 4" and gone(pid)


@pytest.mark.parametrize("deaf", [False, True])
def test_everything_is_ended_when_the_launcher_says_so(deaf: bool) -> None:
    with Held(
        f"trap {chr(39) * 2 if deaf else '-'} TERM; echo ready >/dev/fd/$1; while :; do sleep 0.01; done"
    ) as held:
        held.started()
        held.says()
        held.tell("end 0.05")
        assert held.hear() == f"code -{9 if deaf else 15}"


@pytest.mark.parametrize("how", ["the line", "sigterm", "sigint", "sighup"])
def test_the_end_of_the_launcher_in_any_way_is_the_end_of_the_command(how: str) -> None:
    with Held("echo ready >/dev/fd/$1; while :; do sleep 0.01; done") as held:
        pid = held.started()
        held.says()
        if how == "the line":
            held.line.close()
        else:
            held.process.send_signal(getattr(signal, how.upper()))
            assert held.hear() == "code -15"
        assert held.process.wait(30.0) == 0 and gone(pid)


def test_a_reaper_that_is_killed_takes_its_command_along() -> None:
    with Held("echo ready >/dev/fd/$1; exec sleep 100") as held:
        pid = held.started()
        held.says()
        held.process.kill()
        held.process.wait()
        assert os.read(held.said, 1) == b"", "it has ended: nobody holds its file"
        end_s = time.monotonic() + 60.0
        while not gone(pid) and time.monotonic() < end_s:  # it closes its files a little before it is gone
            time.sleep(0.005)
        assert gone(pid)


def test_signals_that_a_training_may_use_do_not_end_its_reaper() -> None:
    with Held("trap 'exit 6' HUP; echo ready >/dev/fd/$1; while :; do sleep 0.01; done") as held:
        held.started()
        held.says()
        for signum in (signal.SIGUSR1, signal.SIGUSR2):
            held.process.send_signal(signum)
        held.tell(f"signal {int(signal.SIGHUP)}")
        assert held.hear() == "code 6"
