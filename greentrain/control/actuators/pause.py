"""Holding a training process still, between two of its steps.

Everything stays in memory, so the pause ends in the step that would have come next. Sensors go on being read and
booked by their own thread, in the phase ``paused``. A SIGCONT, or :meth:`Pause.wake` from another thread, ends it at
once; a SIGTERM ends the process as it would have in a step.
"""

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

log = logging.getLogger(__name__)

PHASE: Final = "paused"
"""Name of the phase to which the time is booked."""
LOOK_S: Final = 0.25
"""Longest sleep at a stretch (s): how late a word of another rank, or of another thread, is heard."""


class Pause:
    """Holds the training thread until somebody says that it goes on.

    Args:
        free_cache: Give the memory that torch holds in reserve on the GPU back to the driver meanwhile.
    """

    def __init__(self, *, free_cache: bool = False) -> None:
        self._free_cache = free_cache
        self._woken = threading.Event()

    def wake(self) -> None:
        """End the pause at the next look, from any thread."""
        self._woken.set()

    def hold(self, done: Callable[[], bool]) -> bool:
        """Block until ``done`` says so, or until somebody wakes the process.

        Args:
            done: Asked every LOOK_S.

        Returns:
            True if it was woken.
        """
        if self._free_cache:
            _empty_cuda_cache()
        self._woken.clear()
        with self._listening():
            while not self._woken.is_set():
                if done():
                    return False
                time.sleep(LOOK_S)  # a signal's handler runs in the middle of it
        return True

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """Listen to SIGCONT; signals only reach the main thread."""
        number = getattr(signal, "SIGCONT", None)  # Windows has none
        if number is None or threading.current_thread() is not threading.main_thread():
            yield
            return
        before: Any = signal.getsignal(number)

        def woken(signum: int, frame: FrameType | None) -> None:
            self._woken.set()
            if callable(before):
                before(signum, frame)

        signal.signal(number, woken)
        try:
            yield
        finally:
            if signal.getsignal(number) is woken:
                signal.signal(number, signal.SIG_DFL if before is None else before)


def _empty_cuda_cache() -> None:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    try:
        torch.cuda.empty_cache()
    except Exception as error:
        log.warning("GreenTrain: the GPU's cache could not be freed: %r", error)
