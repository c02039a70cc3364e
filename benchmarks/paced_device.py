"""A device around another one, and one that is as slow as one likes, for benchmarks and tests of what runs beside it.

    device = Paced(Emulator(), s_per_sequence=0.02)

Two busy processes on two shared cores slow each other, so a pass that is computed on the CPU hides nothing. This one
sleeps instead, as a training process does while a card computes.
"""

import os
import threading
import time
from concurrent.futures import Future
from dataclasses import replace
from typing import Final

from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.batch import Batch, Result
from greentrain.fpga_backend.device import DeviceInfo, EnergyReading, Handle, OffloadDevice
from greentrain.fpga_backend.devices.base import WorkQueue
from greentrain.fpga_backend.errors import DeviceLostError
from greentrain.types import PowerMeter
from greentrain.utils.validation import bound

DEPTH: Final = 64


class Wrapped:
    """An OffloadDevice. Its batches go to the inner device at once and come back through :meth:`deliver`, in order.

    Args:
        device: The inner device, which is closed with this one.
        name: Name of the device.
        depth: Batches that may wait here.
    """

    def __init__(self, device: OffloadDevice, *, name: str, depth: int) -> None:
        self.inner = device
        self.info = device.probe()
        self.name = f"{name} {self.info.name}"
        self._lane = WorkQueue(f"greentrain-{name}-{self.info.uid}", depth)
        self._owner_pid = os.getpid()
        self._reason = ""
        self._lock = threading.Lock()
        self._submitted = 0

    def deliver(self, number: int, batch: Batch, inner: "Future[Result]") -> Result:
        """Return a batch's result, in the queue's thread.

        Args:
            number: Number of the batch, from 0.
            batch: Batch that was submitted.
            inner: The inner device's result, now or later.
        """
        return inner.result()

    def probe(self) -> DeviceInfo:
        """Say what the inner device says, under another name."""
        found = self.inner.probe()
        return DeviceInfo(
            uid=found.uid,
            name=self.name,
            available=found.available and not self._reason,
            reason=self._reason or found.reason,
            exact=found.exact,
            simulated=True,
            memory_bytes=found.memory_bytes,
            details=found.details,
        )

    def load(self, artifact: Artifact, *, replacing: Handle | None = None) -> Handle:
        """Load on the inner device. Raises as it does, and DeviceLostError where this device is gone."""
        self.check()
        return self.inner.load(artifact, replacing=replacing)

    def submit(self, handle: Handle, batch: Batch, *, wait_s: float | None = None) -> Future[Result]:
        """Queue a batch here and there. Raises as the inner device does, and where there is no room here."""
        self.check()
        begun_s = time.monotonic()
        inner = self.inner.submit(handle, batch, wait_s=wait_s)
        left_s = None if wait_s is None else max(0.0, wait_s - (time.monotonic() - begun_s))
        with self._lock:
            number, self._submitted = self._submitted, self._submitted + 1
        try:
            return self._lane.submit(lambda: self.deliver(number, batch, inner), left_s)
        except BaseException:
            inner.cancel()
            raise

    def energy(self) -> EnergyReading:
        """Return the inner device's."""
        return self.inner.energy()

    @property
    def meter(self) -> PowerMeter:
        """The inner device's."""
        return self.inner.meter

    def lose(self, reason: str) -> None:
        """Refuse everything from now on; what waits fails."""
        self._reason = self._reason or reason
        self._lane.close(self._reason, join=False)

    def close(self) -> None:
        """Fail what waits, and close the inner device. Idempotent."""
        if os.getpid() != self._owner_pid:
            return
        self.lose("the device is closed")
        self.inner.close()
        self._lane.close()

    def check(self) -> None:
        """Raise if the device is gone.

        Raises:
            DeviceLostError: It is.
        """
        if self._reason:
            raise DeviceLostError(self._reason)


class Paced(Wrapped):
    """An OffloadDevice with the numbers of another one, one batch after the other, each in its emulated time.

    ``Result.run_s`` is that time, or, where the inner device took longer over it, what the batch really took; it is
    marked as modelled.

    Args:
        device: Computes; closed with this one.
        s_per_sequence: Emulated time of a sequence (s).
        s_per_batch: Emulated time of a batch on top of it (s).
        depth: Batches that may wait.

    Raises:
        ConfigError: A time is negative or not finite.
    """

    def __init__(
        self, device: OffloadDevice, *, s_per_sequence: float, s_per_batch: float = 0.0, depth: int = DEPTH
    ) -> None:
        bound("s_per_sequence", s_per_sequence, 0.0, 1e6)
        bound("s_per_batch", s_per_batch, 0.0, 1e6)
        self._s_per_sequence, self._s_per_batch = s_per_sequence, s_per_batch
        self._closing = threading.Event()
        super().__init__(device, name="paced", depth=depth)

    def deliver(self, number: int, batch: Batch, inner: "Future[Result]") -> Result:
        """Sleep until the time of the batch is over."""
        begun_s = time.perf_counter()
        paced_s = self._s_per_batch + len(batch.ids) * self._s_per_sequence
        result = inner.result()
        left_s = paced_s - (time.perf_counter() - begun_s)
        if left_s > 0 and self._closing.wait(left_s):
            raise DeviceLostError("the device was closed in the middle of a batch")
        return replace(result, run_s=paced_s - min(left_s, 0.0), modelled=True)

    def close(self) -> None:
        """End the batch that sleeps, fail what waits, close the inner device. Idempotent."""
        self._closing.set()
        super().close()
