"""A device's queue: batches run one after the other in a thread, and there is room for only so many."""

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from greentrain.fpga_backend.batch import Result
from greentrain.fpga_backend.errors import DeviceLostError, QueueFullError


@dataclass(frozen=True, slots=True)
class _Job:
    run: Callable[[], Result]
    future: Future[Result]


class Lane:
    """Runs jobs in order in one daemon thread.

    Args:
        name: Of the thread.
        depth: How many jobs may wait; those that wait hold their batch's memory.
    """

    def __init__(self, name: str, depth: int) -> None:
        if depth < 1:
            raise ValueError(f"depth={depth}: a queue has room for at least 1")
        self._depth = depth
        self._waiting: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._reason: str | None = None
        self._owner_pid = os.getpid()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(self, run: Callable[[], Result], wait_s: float | None) -> Future[Result]:
        """Queue a job.

        Raises:
            QueueFullError: No room within ``wait_s`` seconds (None: for ever). In the lane's own thread, where the
                callbacks of futures run, at once: nothing would make room while it waits.
            DeviceLostError: The lane is closed, or in the process that forked.
        """
        if os.getpid() != self._owner_pid:
            raise DeviceLostError("a forked process has no thread for the device: open a device in it")
        future: Future[Result] = Future()
        if self._thread is threading.current_thread():
            wait_s = 0.0
        with self._changed:
            if not self._changed.wait_for(lambda: self._reason is not None or len(self._waiting) < self._depth, wait_s):
                raise QueueFullError(
                    f"{len(self._waiting)} batches wait and none was finished within {wait_s} s: submit fewer at a time"
                )
            if self._reason is not None:
                raise DeviceLostError(self._reason)
            self._waiting.append(_Job(run, future))
            self._changed.notify_all()
        return future

    def close(self, reason: str = "the device is closed", *, join: bool = True) -> None:
        """Fail what waits and every later job; wait for the one that runs. Idempotent; in a forked process, nothing."""
        if os.getpid() != self._owner_pid:
            return
        with self._changed:
            self._reason = self._reason or reason
            left = list(self._waiting)
            self._waiting.clear()
            self._changed.notify_all()
        for job in left:
            if job.future.set_running_or_notify_cancel():
                job.future.set_exception(DeviceLostError(self._reason))
        if join and self._thread is not threading.current_thread():
            self._thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._reason is not None or bool(self._waiting))
                if self._reason is not None:
                    return
                job = self._waiting.popleft()
                self._changed.notify_all()
            if job.future.set_running_or_notify_cancel():
                try:
                    job.future.set_result(job.run())
                except BaseException as error:  # whatever it is, it belongs to the one who waits
                    job.future.set_exception(error)
            del job  # and the batch that it holds
