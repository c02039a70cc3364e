"""A device as slow as one likes, for tests and benchmarks of what runs beside it.

    device = Paced(Emulator(), s_per_sequence=0.02)

Two busy processes on two shared cores slow each other, so a pass that is computed on the CPU hides nothing. This one
sleeps instead, as a training process does while a card computes.
"""

import threading
import time
from concurrent.futures import Future
from dataclasses import replace
from typing import Final

from greentrain.fpga_backend.batch import Batch, Result
from greentrain.fpga_backend.device import OffloadDevice
from greentrain.fpga_backend.errors import DeviceLostError
from greentrain.testing.wrapped_device import Wrapped
from greentrain.utils.validation import bound

DEPTH: Final = 64


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
