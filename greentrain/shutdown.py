"""Closing a session when the process is told to end.

SIGTERM handlers are chained, never replaced: ours runs first, then the one that was there. A handler that the
user installs later stays. Forked children (data loader workers) inherit the handler but not the session.
"""

import atexit
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


class ShutdownHook:
    """Calls ``close(reason)`` once on SIGTERM or at interpreter exit.

    Args:
        close: Called with ``sigterm`` or ``exit``; must not raise.
    """

    def __init__(self, close: Callable[[str], None]) -> None:
        self._close = close
        self._pid = os.getpid()
        self._previous: Any = None
        self._installed = False

    def install(self) -> None:
        """Start listening. Signals only from the main thread, where Python allows it."""
        atexit.register(self._at_exit)
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.getsignal(signal.SIGTERM)
            if self._previous is not None:
                signal.signal(signal.SIGTERM, self._on_sigterm)
                self._installed = True

    def remove(self) -> None:
        """Stop listening and put the previous handler back, unless somebody replaced ours meanwhile."""
        atexit.unregister(self._at_exit)
        if self._installed and threading.current_thread() is threading.main_thread():
            if signal.getsignal(signal.SIGTERM) == self._on_sigterm:
                signal.signal(signal.SIGTERM, self._previous)
            self._installed = False

    def _at_exit(self) -> None:
        if os.getpid() == self._pid:
            self._close("exit")

    def _on_sigterm(self, signum: int, frame: FrameType | None) -> None:
        previous = self._previous
        if os.getpid() == self._pid:
            self._close("sigterm")
        if callable(previous):
            previous(signum, frame)
        elif previous == signal.SIG_DFL:
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)
