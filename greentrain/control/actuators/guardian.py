"""The training process's side of the guardian: start it, tell it before each one.

Nothing is set before the guardian has answered that it holds the GPU's lock and has written what was found, so at every
moment of a run somebody knows how to undo what it did. See :mod:`greentrain.control.actuators.guardian_main`.
"""

import contextlib
import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Final

from greentrain.control.actuators import guardian_main
from greentrain.errors import GreenTrainError
from greentrain.power.claims import ENV_DIR, claims_dir

START_S: Final = 15.0
"""Longest wait for the first answer (s): it loads the driver's library, which takes long where no other program has."""
ANSWER_S: Final = 5.0
"""Longest wait for a later answer (s)."""
LIBRARY: Final = "libnvidia-ml.so.1"


class Refused(GreenTrainError):
    """The guardian does not take a GPU, or there is none; the message says why and what helps."""

    stale = False
    """True: a dead job's record is in the way, which :func:`guardian_main.repair` removes."""
    busy = False
    """True: another job holds the GPU."""


class Guardian:
    """One tiny process that restores what this one changes. Started by :meth:`begin` or the first word, once.

    Pass one to :func:`~greentrain.control.actuators.power_cap.open_power_cap` and
    :func:`~greentrain.control.actuators.clocks.open_clocks`; each takes part in it until it is closed.

    Args:
        folder: Folder of this node's records; None: that of the device claims.
        library: The driver's library.
        ask_daemon: ``greentrain daemon`` may do what this process may not.
    """

    def __init__(self, folder: Path | None = None, *, library: str = LIBRARY, ask_daemon: bool = True) -> None:
        self.folder = claims_dir() if folder is None else folder
        self.pid: int | None = None
        """The guardian's process; None: none runs."""
        self.held: set[str] = set()
        """UUIDs of the GPUs that it holds."""
        self._library = library
        self.ask_daemon = ask_daemon
        self.daemon: object | None = None
        """``greentrain daemon``, where it sets and puts back, so that no process of this user has to."""
        self._owner_pid = os.getpid()
        self.lock = threading.RLock()
        """Of everything that is changed under it: with locks of their own, a signal's handler that closes one in the
        middle of another's change would wait for a thread that waits for the guardian."""
        self._users = 0
        self._number = 0
        self._heard = b""
        self._replies: dict[str, str] = {}
        self._command_fd = self._reply_fd = -1

    def begin(self) -> None:
        """Start the process before it is needed, which takes a second on a busy machine.

        Raises:
            Refused: It cannot be started; the first change says so.
        """
        with self.lock:
            self._begin()

    def join(self) -> None:
        """Take part: the guardian stays until everybody has left."""
        self._users += 1

    def leave(self) -> None:
        """End the guardian when nobody takes part any more; it restores what is still changed. Never raises."""
        self._users -= 1
        if self._users <= 0 and os.getpid() == self._owner_pid:
            with self.lock, contextlib.suppress(Exception):
                self._end()

    def tell_limit(self, uuid: str, found_mw: int, new_mw: int) -> None:
        """Announce a power limit; it may be set when this returns.

        Raises:
            Refused: It may not.
        """
        self._ask(f"limit {uuid} {found_mw} {new_mw}", uuid)

    def tell(self, uuid: str, part: str, found: str = "locked") -> None:
        """Announce a change of one of :data:`guardian_main.PARTS`; it may be made when this returns.

        Args:
            uuid: The GPU.
            part: What will be changed.
            found: What was found, in the words of a record.

        Raises:
            Refused: It may not.
        """
        self._ask(f"keep {uuid} {part} {found}", uuid)

    def done(self, uuid: str, part: str) -> None:
        """Say that ``limit``, or one of PARTS, of a GPU is as it was found, or is not ours any more.

        Where somebody has killed the guardian, its record is put right from here.

        Raises:
            Refused: The guardian refuses.
        """
        if self.pid is not None:
            try:
                self._ask(f"done {uuid} {part}", uuid)
                return
            except Refused:
                if self.pid is not None:
                    raise
        with contextlib.suppress(OSError):  # then the next start does it
            guardian_main.forget(str(self.folder), uuid, part)

    def _ask(self, words: str, uuid: str) -> None:
        if os.getpid() != self._owner_pid:
            raise Refused("a forked process may not change its parent's GPUs")
        if self.daemon is not None:
            return
        with self.lock:
            self._begin()
            self._number += 1
            try:
                os.write(self._command_fd, f"{self._number} {words}\n".encode())
                answer = self._answer(self._number, START_S if self._number == 1 else ANSWER_S)
            except OSError as error:
                self._drop()
                raise Refused(f"the guardian process is gone ({error.strerror})") from error
        word, _, rest = answer.partition(" ")
        if word == "ok":
            self.held.add(uuid)
            return
        refused = Refused(self._why(uuid, word, rest))
        refused.stale, refused.busy = word == "stale", word == "busy"
        raise refused

    def _why(self, uuid: str, word: str, rest: str) -> str:
        if word == "busy":
            who = "another guardian of this process" if rest == str(self._owner_pid) else f"process {rest or 'unknown'}"
            return f"{uuid} is held by {who}, which has changed its settings"
        if word == "stale":
            return f"{uuid} has the record of a dead job"
        return f"the guardian cannot hold {uuid}: {rest} (records are in {self.folder}; {ENV_DIR} names another folder)"

    def _begin(self) -> None:
        if self.pid is not None or self.daemon is not None:
            return
        if not sys.executable:
            raise Refused("no guardian can be started: this interpreter does not know its own program")
        namespace, pid, start = guardian_main.this_process()
        command_fd, self._command_fd = os.pipe()
        self._reply_fd, reply_fd = os.pipe()
        death_fd = _pidfd()
        passed = [fd for fd in (command_fd, reply_fd, death_fd) if fd >= 0]
        numbers = [str(n) for n in (command_fd, reply_fd, death_fd, namespace, pid, start)]
        command = [sys.executable, "-I", "-S", guardian_main.__file__, *numbers, str(self.folder), self._library]
        try:
            # It forks once more and this child ends at once: a guardian is no child that anybody has to wait for.
            subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=passed,
                start_new_session=True,
                timeout=START_S,
                check=True,
            )
        except (OSError, subprocess.SubprocessError) as error:
            self._drop()
            raise Refused(f"no guardian can be started: {error}") from error
        finally:
            for fd in passed:
                os.close(fd)
        self._number, self._heard, self._replies = 0, b"", {}
        try:
            self.pid = int(self._answer(0, START_S).split()[1])
        except (OSError, IndexError, ValueError) as error:
            self._drop()
            raise Refused(f"the guardian did not come up: {error}") from error

    def _answer(self, number: int, wait_s: float) -> str:
        """Return the reply of a number without it.

        Raises:
            OSError: None came in time, or the guardian ended.
        """
        poller, end_s = select.poll(), time.monotonic() + wait_s
        poller.register(self._reply_fd, select.POLLIN)
        while True:
            while b"\n" in self._heard:
                line, _, self._heard = self._heard.partition(b"\n")
                head, _, rest = line.decode("ascii", "replace").partition(" ")
                self._replies[head] = rest  # of an earlier word too, where a signal's handler asks in the middle of it
            if str(number) in self._replies:
                return self._replies.pop(str(number))
            left_s = end_s - time.monotonic()
            if left_s <= 0 or not poller.poll(1000 * left_s):
                raise TimeoutError(110, f"no answer within {wait_s:g} s")
            word = os.read(self._reply_fd, 4096)
            if not word:
                raise BrokenPipeError(32, "it has ended")
            self._heard += word

    def _end(self) -> None:
        pid = self.pid
        if pid is None:
            return
        try:
            self._number += 1
            os.write(self._command_fd, f"{self._number} bye\n".encode())
            self._answer(self._number, ANSWER_S)  # ``late``: the driver refuses, and it goes on trying alone
        finally:
            self._drop()
            with contextlib.suppress(OSError):  # it is this process's child only where this is PID 1 or a reaper
                end_s = time.monotonic() + 0.2
                while os.waitpid(pid, os.WNOHANG) == (0, 0) and time.monotonic() < end_s:
                    time.sleep(0.002)

    def _drop(self) -> None:
        for fd in (self._command_fd, self._reply_fd):
            if fd >= 0:
                with contextlib.suppress(OSError):
                    os.close(fd)
        self._command_fd = self._reply_fd = -1
        self.pid = None
        self.held.clear()


def _pidfd() -> int:
    """Return a descriptor that tells of this process's end; -1 where the kernel has none."""
    try:
        return os.pidfd_open(os.getpid())
    except (AttributeError, OSError):
        return -1
