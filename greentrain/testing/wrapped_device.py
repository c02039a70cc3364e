"""A device around another one: the same models and numbers, and a queue of its own in between."""

import os
import threading
import time
from concurrent.futures import Future

from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.batch import Batch, Result
from greentrain.fpga_backend.device import DeviceInfo, EnergyReading, Handle, OffloadDevice
from greentrain.fpga_backend.devices.base import WorkQueue
from greentrain.fpga_backend.errors import DeviceLostError
from greentrain.types import PowerMeter


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
