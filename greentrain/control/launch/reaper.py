"""Keeps a process tree from outliving its supervisor: one tiny process, with the standard library alone.

Run as a script, ``python -I -S reaper.py FD COMMAND...``. It starts the command in a session of its own and talks over
the socket FD, one line a word:

* from the supervisor: ``signal N`` (to the command), ``group N`` (to its process group), ``heed N`` (to all below that
  have a handler for it), ``sweep S`` (end what the command left behind), ``end S`` (end everything, SIGKILL after S
  seconds); the end of the stream, which is the end of the supervisor in any way, is ``end``.
* to the supervisor: ``started PID``, ``failed ERRNO``, ``swept``, and at the very end ``code N``, below 0 for a signal.

Orphans of the command become children of the reaper (PR_SET_CHILD_SUBREAPER, Linux 3.4), so none is lost.
"""

import contextlib
import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
"""Both of linux/prctl.h, as prctl(2) says (man7.org, 2026-11-21)."""
GRACE_S = 20.0
"""From SIGTERM to SIGKILL where nobody names another time (s): within the 30 s that Kubernetes and Slurm give by
default (terminationGracePeriodSeconds; KillWait of slurm.conf(5), 2026-11-21)."""
LEAVE_S = 1.0
"""How long what a command leaves behind may take to notice that it is gone, before it gets a SIGTERM (s): a guardian
needs it to put power limits back."""
LEFT_S = 9.0
"""From that SIGTERM to SIGKILL (s): a guardian whose driver refuses asks it again for 8.75 s, and heeds no SIGTERM
(greentrain/control/actuators/guardian_main.py, RETRY_S). What was not ended by then is put right at the next start."""


def prctl(option: int, value: int) -> bool:
    """Set a property of this process; return whether the kernel took it."""
    try:
        return int(ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)) == 0
    except (OSError, AttributeError):
        return False


def stat(pid: int) -> tuple[str, int, int] | None:
    """Return state, parent and start (ticks since boot) of a process; None where there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()  # the name before may hold anything
        return fields[0], int(fields[1]), int(fields[19])
    except (OSError, IndexError, ValueError):
        return None


def living(pids: Iterable[int]) -> list[int]:
    """Return those that are there and no zombies."""
    return [pid for pid in pids if (found := stat(pid)) is not None and found[0] not in "ZX"]


def below(root: int, without: Collection[int] = ()) -> list[int]:
    """Return all descendants of a process, parents first.

    Args:
        root: The process.
        without: Processes that are left out with all below them.
    """
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (found := stat(int(name))) is not None:
            parents.setdefault(found[1], []).append(int(name))
    out: list[int] = []
    todo = [root]
    while todo:
        for child in parents.get(todo.pop(), ()):
            if child not in without:
                out.append(child)
                todo.append(child)
    return out


def send(pids: Iterable[int], signum: int) -> None:
    """Send a signal to each of them that is still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)


def heeds(pid: int, signum: int) -> bool:
    """Return whether a process has a handler for a signal."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            caught = next(line for line in file if line.startswith("SigCgt:"))
        return bool(int(caught.split()[1], 16) >> (signum - 1) & 1)
    except (OSError, StopIteration, ValueError, IndexError):
        return False


def end_all(
    find: Callable[[], list[int]], grace_s: float, *, leave_s: float = 0.0, reap: Callable[[], None] = lambda: None
) -> bool:
    """End processes: those that do not go by themselves get a SIGTERM, and after the grace a SIGKILL.

    Args:
        find: Returns who is to be ended; asked again and again, as they may start others.
        grace_s: Time from SIGTERM to SIGKILL (s).
        leave_s: Time before the SIGTERM (s).
        reap: Called at each look.

    Returns:
        False if one is left that not even SIGKILL ends (uninterruptible sleep).
    """
    start_s = time.monotonic()
    told: set[int] = set()
    while True:
        reap()
        pids = living(find())
        if not pids:
            return True
        waited_s = time.monotonic() - start_s
        if waited_s >= leave_s + grace_s:
            send(pids, signal.SIGKILL)
            if waited_s >= leave_s + grace_s + 10.0:
                return False
        elif waited_s >= leave_s:
            send((pid for pid in pids if pid not in told), signal.SIGTERM)
            told.update(pids)
        time.sleep(0.005 if waited_s < 0.2 else 0.05)


class Reaper:
    """Holds one command.

    Args:
        line: Socket to the supervisor.
        command: Command to start.
        fds: File descriptors that the command inherits.
    """

    def __init__(self, line: socket.socket, command: list[str], fds: Collection[int]) -> None:
        self._line = line
        self._command, self._fds = command, fds
        self._pid = 0
        self._code: int | None = None
        self._grace_s = GRACE_S
        self._told = False

    def run(self) -> None:
        """Hold it to its end."""
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        woken, wake = socket.socketpair()
        for end in (woken, wake):
            end.setblocking(False)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, self._told_to_end)
        for signum in (signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(signum, lambda *_: None)  # a handler, as the command would inherit SIG_IGN
        try:
            process = subprocess.Popen(
                self._command,
                start_new_session=True,
                pass_fds=tuple(self._fds),
                preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
            )
        except OSError as error:
            self._say(f"failed {error.errno}")
            return
        self._pid = process.pid
        self._say(f"started {self._pid}")
        text = ""
        while self._code is None:
            if self._told:
                self._end(self._grace_s)
                break
            ready, _, _ = select.select([self._line, woken], [], [])
            with contextlib.suppress(BlockingIOError):
                woken.recv(64)
            if self._line in ready:
                try:
                    data = self._line.recv(4096).decode()
                except OSError:
                    data = ""
                if not data:
                    self._end(self._grace_s)
                    break
                *words, text = (text + data).split("\n")
                for word in words:
                    self._obey(word)
            self._reap()
        end_all(self._others, min(LEFT_S, self._grace_s), leave_s=LEAVE_S, reap=self._reap)
        self._say(f"code {self._code if self._code is not None else -int(signal.SIGKILL)}")

    def _told_to_end(self, signum: int, frame: object) -> None:
        self._told = True

    def _others(self) -> list[int]:
        return below(os.getpid(), without=() if self._code is not None else (self._pid,))

    def _obey(self, word: str) -> None:
        what, _, value = word.partition(" ")
        if what == "signal" and self._code is None:
            send([self._pid], int(value))
        elif what == "group" and self._code is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, int(value))
        elif what == "heed":
            send([pid for pid in below(os.getpid()) if heeds(pid, int(value))], int(value))
        elif what == "sweep":
            end_all(self._others, float(value), leave_s=LEAVE_S, reap=self._reap)
            self._say("swept")
        elif what == "end":
            self._end(float(value))

    def _end(self, grace_s: float) -> None:
        """End the command first, which may have its own way to end what it has started."""
        self._grace_s = grace_s
        end_all(lambda: [] if self._code is not None else [self._pid], grace_s, reap=self._reap)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self._pid:
                    self._code = os.waitstatus_to_exitcode(status)

    def _say(self, word: str) -> None:
        with contextlib.suppress(OSError):
            self._line.sendall(f"{word}\n".encode())


if __name__ == "__main__":
    _, _fd, _fds, *_argv = sys.argv
    Reaper(socket.socket(fileno=int(_fd)), _argv, [int(fd) for fd in _fds.split(",") if fd]).run()
