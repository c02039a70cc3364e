"""Gives work to a queue that is full, from a thread that may wait."""

import threading
from collections import deque
from collections.abc import Callable


class Handover:
    """Runs jobs in order in a thread of its own, which is there only while there are any.

    A part that fails on a device is redone elsewhere. It fails in the device's own thread, where nobody may wait for
    another queue.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: deque[Callable[[], None]] = deque()
        self._running = False

    def add(self, job: Callable[[], None]) -> None:
        """Run a job soon. It must not raise.

        Raises:
            RuntimeError: No thread can be started: the interpreter is ending.
        """
        with self._lock:
            self._jobs.append(job)
            if self._running:
                return
            self._running = True
        try:
            threading.Thread(target=self._work, name="greentrain-rlhf-handover", daemon=True).start()
        except RuntimeError:
            with self._lock:
                self._running = False
                self._jobs.clear()
            raise

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._running = False
                    return
                job = self._jobs.popleft()
            job()
            del job  # and the batch that it holds
