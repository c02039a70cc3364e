"""Calls that hang until they are let go, in a program that waits for them at most so long: no test waits as long."""

import contextlib
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from greentrain.utils.background import BackgroundCall


class Hanging:
    """Keeps the threads that call :meth:`here`."""

    def __init__(self) -> None:
        self._let_go = threading.Event()
        self._threads: set[threading.Thread] = set()
        self.waits_s: list[float] = []
        """How long those who gave up would have waited (s)."""

    def here(self) -> None:
        """Hang."""
        self._threads.add(threading.current_thread())
        self._let_go.wait()

    def let_go(self) -> None:
        """Let all go on that hang, and wait for their ends."""
        self._let_go.set()
        for thread in self._threads:
            thread.join()

    @contextlib.contextmanager
    def seen_at_once(self, *modules: ModuleType) -> Iterator["Hanging"]:
        """Let whoever waits in these modules give up as soon as the call hangs, and not before."""
        hanging = self

        class Call(BackgroundCall[Any]):
            def result(self, wait_s: float) -> Any:
                while self._thread.is_alive() and self._thread not in hanging._threads:
                    self._thread.join(0.005)
                if self._thread.is_alive():
                    hanging.waits_s.append(wait_s)
                    raise TimeoutError(f"no answer within {wait_s:g} s")
                return super().result(0.0)

        with pytest.MonkeyPatch.context() as patch:
            for module in modules:
                patch.setattr(module, "BackgroundCall", Call)
            try:
                yield self
            finally:
                self.let_go()
