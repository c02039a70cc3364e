"""Work off the training thread: passes of a daemon thread over what there is to do, or one call that may hang alone."""

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
log = logging.getLogger(__name__)


class BackgroundWork:
    """Runs one function in a daemon thread of its own: whenever somebody asks for a pass, and now and then unasked.

    What is to be done is noted before asking, by an append or a flag, and the next pass finds it. Asking takes no lock
    that another thread could hold: a signal handler may ask in the middle of anything, and nothing is done on the main
    thread that an exception of a handler could cut in half. A forked child has no such thread: it asks in vain, and
    never waits.

    Args:
        name: Name of the thread.
        work: The function; what it raises is logged.
        every_s: Longest time between two passes (s).
    """

    def __init__(self, name: str, work: Callable[[], None], every_s: float) -> None:
        self.every_s = every_s
        self.busy_s = 0.0
        """CPU seconds that the thread has used."""
        self._work = work
        self._wake = threading.Lock()  # a Condition or Event holds a lock while it is set: a handler could meet it
        self._wake.acquire()
        self._waiting: deque[threading.Lock] = deque()
        self._last = self._over = False
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread, which begins with a pass."""
        self._thread.start()

    def ask(self, wait_s: float = 0.0) -> bool:
        """Ask for a pass.

        Args:
            wait_s: Longest time to wait for its end (s).

        Returns:
            True if a pass that began after this call has ended, or the last one has.
        """
        if os.getpid() != self._pid:
            return False
        ended = threading.Lock()
        wait = wait_s > 0 and threading.current_thread() is not self._thread
        if wait:
            ended.acquire()
            self._waiting.append(ended)
        with contextlib.suppress(RuntimeError):  # somebody has asked already
            self._wake.release()
        if self._over or not self._thread.is_alive():
            return self._over
        return wait and ended.acquire(timeout=wait_s)

    def stop(self, wait_s: float) -> bool:
        """Make one more pass, the last one; return True if it has ended within ``wait_s``. Idempotent."""
        self._last = True
        return self.ask(wait_s)

    def _run(self) -> None:
        last = False
        while not last:
            last, waiting = self._last, len(self._waiting)
            try:
                self._work()
            except BaseException as error:  # a meter may raise SystemExit
                log.warning("GreenTrain: %s failed: %r", self._thread.name, error)
            self.busy_s = time.thread_time()
            self._over = last
            for _ in range(len(self._waiting) if last else waiting):
                self._waiting.popleft().release()
            if not last:
                self._wake.acquire(timeout=self.every_s)


class BackgroundCall(Generic[T]):
    """One call in a daemon thread of its own: of a driver or a disk that may never answer. It begins at once.

    Args:
        name: Name of the thread.
        call: The call; where the interpreter ends, and starts no thread any more, it is made here.
    """

    def __init__(self, name: str, call: Callable[[], T]) -> None:
        self._call = call
        self._answer: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self._run()

    @property
    def has_ended(self) -> bool:
        """True once it has returned or raised."""
        return not self._thread.is_alive()

    def result(self, wait_s: float) -> T:
        """Return what the call returned, or raise what it raised; a TimeoutError after ``wait_s``, when it goes on."""
        if self._thread.is_alive():
            self._thread.join(max(0.0, wait_s))
        if self._error is not None:
            try:
                raise self._error
            finally:
                del self  # as in _run
        if not self._answer:
            raise TimeoutError(f"no answer within {wait_s:g} s")
        return self._answer[0]

    def _run(self) -> None:
        try:
            self._answer.append(self._call())
        except BaseException as error:  # whoever waits gets it
            self._error = error
            del self  # the error's frames would keep it, and it the error, and they what all callers hold
