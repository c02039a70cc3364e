"""The signals that reach the supervisor, taken one after the other by its own loop and never in the middle of it."""

import contextlib
import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any, Final, Protocol

STOP: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""They end the supervisor, after the training."""
NOTICE: Final = signal.SIGUSR1
"""Somebody ends us soon: Slurm's ``--signal=B:USR1@120`` (sbatch(1), slurm.schedmd.com, 2026-11-21)."""
PASSED_ON: Final = (signal.SIGUSR2, signal.SIGCONT)
"""The training may know what they mean: SIGCONT ends a pause."""


class HasFileno(Protocol):
    """What can be waited for."""

    def fileno(self) -> int:
        """Return its file descriptor."""
        ...


class SignalQueue:
    """Collects signals while it is open; in the main thread."""

    def __init__(self) -> None:
        self._signals: deque[int] = deque()
        self._before: dict[int, Any] = {}
        self._woken, self._wake = socket.socketpair()
        for end in (self._woken, self._wake):
            end.setblocking(False)

    def __enter__(self) -> "SignalQueue":
        self._fd_before = signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        for signum in (*STOP, NOTICE, *PASSED_ON):
            if signal.getsignal(signum) is not signal.SIG_IGN:  # nohup
                self._before[signum] = signal.signal(signum, self._take)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(self._fd_before)
        self._woken.close()
        self._wake.close()

    def take(self) -> int | None:
        """Return the oldest signal that nobody has taken."""
        return self._signals.popleft() if self._signals else None

    def wait(self, timeout_s: float | None, files: Sequence[HasFileno] = ()) -> list[HasFileno]:
        """Wait for a signal, or until one of the files can be read.

        Args:
            timeout_s: Longest wait (s); None: no bound.
            files: What else to wait for.

        Returns:
            The files that can be read.
        """
        if self._signals:
            timeout_s = 0.0
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            for file in files:
                selector.register(file, selectors.EVENT_READ, file)
            ready = selector.select(timeout_s)
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(4096)
        return [key.data for key, _ in ready if key.data is not None]

    def sleep_until(self, unix_s: float) -> bool:
        """Sleep; return True if a signal came before that time (s since the epoch)."""
        while not self._signals:
            left_s = unix_s - time.time()
            if left_s <= 0:
                return False
            self.wait(min(left_s, 60.0))  # the clock may be set meanwhile
        return True

    def _take(self, signum: int, frame: FrameType | None) -> None:
        self._signals.append(signum)
