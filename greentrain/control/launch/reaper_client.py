"""The supervisor's end of a keeper: starts a command, hears of its end, and knows that nothing is left of it.

Processes of a job that outlived their supervisor: found by what they were started with, and ended.
"""

import contextlib
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from greentrain.control.launch import reaper
from greentrain.control.launcher_protocol import ENV_DIR


def orphans(folder: str) -> list[int]:
    """Return all processes of this user that were started for a launch folder, but this one and its parents.

    Args:
        folder: As in their variable GREENTRAIN_LAUNCH_DIR.
    """
    if not folder:
        return []
    wanted = f"{ENV_DIR}={folder}".encode()
    above = _above(os.getpid())
    out = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in above:
            try:
                environ = Path(f"/proc/{name}/environ").read_bytes()
            except OSError:
                continue  # ended, or somebody else's
            if wanted in environ.split(b"\0"):
                out.append(int(name))
    return reaper.living(out)


def end_orphans(folder: str, grace_s: float) -> int:
    """End them, and all below them; return how many there were.

    A keeper among them ends its command by itself, so it is given the time for that before anything is killed.

    Args:
        folder: As of :func:`leftovers`.
        grace_s: From SIGTERM to SIGKILL (s).
    """
    seen: set[int] = set()

    def find() -> list[int]:
        pids = orphans(folder)
        found = [*pids, *(child for pid in pids for child in reaper.below(pid))]
        seen.update(found)
        return list(dict.fromkeys(found))

    reaper.end_all(find, grace_s)
    return len(seen)


def _above(pid: int) -> set[int]:
    out = set()
    while pid > 0 and pid not in out:
        out.add(pid)
        found = reaper.stat(pid)
        pid = 0 if found is None else found[1]
    return out


LINES: Final = 20
"""Last lines of a command's standard error that are remembered."""


class ReaperClient:
    """A command under a keeper.

    Args:
        command: What to start.
        environ: Its environment, with ENV_DIR.
        fds: File descriptors that it inherits.
        listen: Whether its standard error passes through here, so that its last lines are known.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(
        self, command: Sequence[str], environ: Mapping[str, str], *, fds: Sequence[int] = (), listen: bool = False
    ) -> None:
        self._folder = environ.get(ENV_DIR, "")
        self._line, theirs = socket.socketpair()
        self.stderr: _Tee | None = None
        """Where its standard error arrives; None: it has ours."""
        reads, writes = os.pipe() if listen else (-1, -1)
        words = [sys.executable, "-I", "-S", reaper.__file__, str(theirs.fileno()), ",".join(map(str, fds)), *command]
        try:
            self._keeper = subprocess.Popen(
                words,
                env=dict(environ),
                pass_fds=(theirs.fileno(), *fds),
                stderr=writes if listen else None,
                start_new_session=True,
            )
        except OSError:
            self._line.close()
            if listen:
                os.close(reads)
            raise
        finally:
            theirs.close()
            if listen:
                os.close(writes)
        if listen:
            self.stderr = _Tee(reads)
        self.keeper_pid = self._keeper.pid
        self.pid: int | None = None
        """Process id of the command, once it is known to run."""
        self.failed_errno: int | None = None
        """Why it could not be started."""
        self.code: int | None = None
        """How it ended, below 0 for a signal; None: not yet."""
        self.swept = False
        """Whether the last :meth:`sweep` is done."""
        self.gone = False
        """True when command and keeper, and all below them, have ended."""
        self._text = ""

    def fileno(self) -> int:
        """Return what can be read when there is something to hear."""
        return self._line.fileno()

    @property
    def last_lines(self) -> tuple[str, ...]:
        """The end of its standard error; empty where that was not read."""
        return () if self.stderr is None else self.stderr.last_lines

    def hear(self) -> None:
        """Take in what the keeper says; blocks until it says something."""
        try:
            data = self._line.recv(4096).decode()
        except OSError:
            data = ""
        if not data:
            self._end()
            return
        *words, self._text = (self._text + data).split("\n")
        for word in words:
            what, _, value = word.partition(" ")
            if what == "started":
                self.pid = int(value)
            elif what == "failed":
                self.failed_errno = int(value)
            elif what == "swept":
                self.swept = True
            elif what == "code":
                self.code = int(value)

    def signal(self, signum: int) -> None:
        """Send a signal to the command."""
        self._say(f"signal {int(signum)}")

    def signal_group(self, signum: int) -> None:
        """Send a signal to the process group of the command, as a terminal does."""
        self._say(f"group {int(signum)}")

    def signal_who_heed(self, signum: int) -> None:
        """Send a signal to all below the keeper that have a handler for it; the others would die of it."""
        self._say(f"heed {int(signum)}")

    def sweep(self, grace_s: float) -> None:
        """End what the command has left behind; ``swept`` when that is done."""
        self.swept = False
        self._say(f"sweep {grace_s:g}")

    def end(self, grace_s: float) -> None:
        """End everything: SIGTERM, and SIGKILL after a time (s)."""
        self._say(f"end {grace_s:g}")

    def close(self) -> None:
        """Let go: what still runs is ended by the keeper, which is waited for. Idempotent."""
        if not self.gone:
            self._line.close()
            self._end()

    def _say(self, word: str) -> None:
        with contextlib.suppress(OSError):  # it has ended; hear() will say so
            self._line.sendall(f"{word}\n".encode())

    def _end(self) -> None:
        code = self._keeper.wait()
        self._line.close()
        if self.code is None:
            # The keeper was killed, and the command with it (PR_SET_PDEATHSIG); others may be left.
            self.code = code if code < 0 else -9
            end_orphans(self._folder, reaper.GRACE_S)
        if self.stderr is not None:
            self.stderr.close()
        self.gone = True


class _Tee:
    """Passes standard error on and remembers its end.

    Args:
        fd: Where it arrives.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lines: deque[str] = deque(maxlen=LINES)
        self._rest = b""
        os.set_blocking(fd, False)

    def fileno(self) -> int:
        """Return what can be read when there is something to pass on."""
        return self._fd

    @property
    def open(self) -> bool:
        """False when nobody can write to it any more."""
        return self._fd >= 0

    @property
    def last_lines(self) -> tuple[str, ...]:
        """The last whole lines, and one that was not ended."""
        rest = [self._rest.decode(errors="replace")] if self._rest.strip() else []
        return tuple([*self._lines, *rest][-LINES:])

    def pass_on(self) -> None:
        """Pass on what has arrived."""
        try:
            data = os.read(self._fd, 65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            os.close(self._fd)
            self._fd = -1
            return
        try:
            while data_left := data:
                written = os.write(2, data_left)
                self._remember(data_left[:written])
                data = data_left[written:]
        except OSError:
            self._remember(data)  # nobody reads ours: the training goes on

    def close(self) -> None:
        """Pass the rest on and close."""
        while self._fd >= 0:
            before = self._rest, len(self._lines)
            self.pass_on()
            if self._fd >= 0 and (self._rest, len(self._lines)) == before:
                os.close(self._fd)
                self._fd = -1

    def _remember(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[-4096:]
        self._lines.extend(line.decode(errors="replace") for line in lines)
