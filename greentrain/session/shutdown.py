"""Closing a session when the process is told to end.

SIGTERM handlers are chained, never replaced: ours runs first, then the one that was there. Where that one is the
default, which kills, the session is closed before; a program with a handler of its own may go on for minutes to
save a checkpoint, so there the books are only brought up to date. A handler that the user installs later stays.
Forked children (data loader workers) inherit the handler but not the session.
"""

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


class ShutdownHook:
    """Calls ``close(reason)`` once on a deadly SIGTERM or at interpreter exit, ``book()`` on a SIGTERM that is handled.

    Args:
        close: Called with ``sigterm``, ``exit`` or ``exception``; must not raise.
        book: Called when the program itself handles SIGTERM; must not raise.
    """

    def __init__(self, close: Callable[[str], None], book: Callable[[], None] = lambda: None) -> None:
        self._close = close
        self._book = book
        self._pid = os.getpid()
        self._previous: Any = None
        self._installed = False
        self._held = False
        self._waiting = False

    def install(self) -> None:
        """Start listening. Signals only from the main thread, where Python allows it."""
        atexit.register(self._at_exit)
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.getsignal(signal.SIGTERM)
            if self._previous is not None:
                signal.signal(signal.SIGTERM, self._on_sigterm)
                self._installed = True

    def hold(self) -> None:
        """Let a SIGTERM wait until :meth:`remove`: the session is being closed already."""
        self._held = True

    def remove(self) -> None:
        """Stop listening and put the previous handler back, unless somebody replaced ours meanwhile."""
        atexit.unregister(self._at_exit)
        if self._installed and threading.current_thread() is threading.main_thread():
            self._installed = False
            if signal.getsignal(signal.SIGTERM) == self._on_sigterm:
                signal.signal(signal.SIGTERM, self._living())
        self._held = False
        if self._waiting:
            self._waiting = False
            signal.raise_signal(signal.SIGTERM)

    def _living(self) -> Any:
        """Return the handler before ours, skipping those of sessions that were closed after a later one started."""
        previous = self._previous
        while isinstance(hook := getattr(previous, "__self__", None), ShutdownHook) and not hook._installed:
            previous = hook._previous
        return previous

    def _root(self) -> Any:
        """Return the handler that was there before any session's."""
        previous = self._previous
        while isinstance(hook := getattr(previous, "__self__", None), ShutdownHook):
            previous = hook._previous
        return previous

    def _at_exit(self) -> None:
        if os.getpid() == self._pid:
            # Set where the interpreter ends with an uncaught exception.
            self._close("exception" if getattr(sys, "last_type", None) is not None else "exit")

    def _on_sigterm(self, signum: int, frame: FrameType | None) -> None:
        previous = self._living()
        if os.getpid() == self._pid:
            if self._held:
                self._waiting = True
                return
            if self._root() == signal.SIG_DFL:
                self._close("sigterm")
            else:
                self._book()
        if callable(previous):
            previous(signum, frame)
        elif previous == signal.SIG_DFL:
            signal.signal(signum, signal.SIG_DFL)
            signal.raise_signal(signum)
