"""The batches of a server that have been taken and not yet fetched: only so many, and none for ever."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, wait
from dataclasses import dataclass
from uuid import uuid4

from greentrain.fpga_backend.batch import Result
from greentrain.fpga_backend.errors import DeviceError, DeviceLostError, QueueFullError


@dataclass(slots=True)
class _Waiting:
    future: Future[Result]
    client: str
    asked_s: float


class Answers:
    """Futures by name. Any thread may call.

    Args:
        most: How many.
        keep_s: A batch that nobody asks after for longer is cancelled and forgotten (s).
        now_s: Monotonic time (s).
    """

    def __init__(self, *, most: int, keep_s: float, now_s: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._keep_s = keep_s
        self._now_s = now_s
        self._lock = threading.Lock()
        self._waiting: dict[str, _Waiting] = {}
        self._closed = threading.Event()

    def add(self, submit: Callable[[], Future[Result]], client: str) -> str:
        """Submit a batch and return its name.

        Raises:
            QueueFullError: Too many are here.
            OffloadError: What ``submit`` raises.
        """
        with self._lock:
            self._sweep()
            if self._closed.is_set():
                raise DeviceLostError("the server is closed")
            if len(self._waiting) >= self._most:
                raise QueueFullError(f"{self._most} batches of this server are not fetched yet")
        future, name = submit(), uuid4().hex
        with self._lock:
            self._waiting[name] = _Waiting(future, client, self._now_s())
            if self._closed.is_set():
                future.cancel()
        return name

    def wait(self, name: str, client: str, hold_s: float) -> Result | None:
        """Return a batch's result and forget it, or None if it takes longer than ``hold_s``.

        Raises:
            DeviceError: There is no such batch of this client, or it failed, as the device says.
        """
        with self._lock:
            waiting = self._waiting.get(name)
            if waiting is None or waiting.client != client:
                raise DeviceError(
                    f"batch {name} is not here: it was fetched, cancelled or not asked after for too long"
                )
            waiting.asked_s = self._now_s() + hold_s
        if not wait([waiting.future], hold_s).done:
            return None
        self._forget(name)
        try:
            return waiting.future.result()
        except CancelledError:
            raise DeviceLostError("the server is closing, or the batch was cancelled") from None

    def cancel(self, name: str, client: str) -> None:
        """Forget a batch; one that has not begun does not."""
        with self._lock:
            waiting = self._waiting.get(name)
            if waiting is not None and waiting.client == client:
                del self._waiting[name]
                waiting.future.cancel()

    def end(self, client: str) -> None:
        """Cancel all of a client's."""
        with self._lock:
            for name in [name for name, waiting in self._waiting.items() if waiting.client == client]:
                self._waiting.pop(name).future.cancel()

    def close(self) -> None:
        """Cancel what has not begun, and take no more."""
        with self._lock:
            self._closed.set()
            for waiting in self._waiting.values():
                waiting.future.cancel()

    def _forget(self, name: str) -> None:
        with self._lock:
            self._waiting.pop(name, None)

    def _sweep(self) -> None:
        now_s = self._now_s()
        for name in [name for name, one in self._waiting.items() if now_s - one.asked_s > self._keep_s]:
            self._waiting.pop(name).future.cancel()
