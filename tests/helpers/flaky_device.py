"""A device that goes wrong at batches of one's choice.

device = Flaky(Emulator(), {3: Fault.FAILS, 7: Fault.LOST})
"""

import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from enum import Enum, auto
from typing import Final

import numpy as np

from benchmarks.paced_device import Wrapped
from greentrain.fpga_backend.batch import Batch, Result
from greentrain.fpga_backend.device import Handle, OffloadDevice
from greentrain.fpga_backend.errors import DeviceError, DeviceLostError

DEPTH: Final = 64


class Fault(Enum):
    """What goes wrong."""

    FAILS = auto()
    """The batch's future has a DeviceError."""
    REFUSED = auto()
    """``submit`` raises a DeviceError."""
    LOST = auto()
    """The batch and all that comes fail with DeviceLostError."""
    DIES = auto()
    """The batch fails with DeviceLostError and the device goes on, as with a worker that is replaced."""
    HANGS = auto()
    """Nothing comes before :meth:`Flaky.go_on`; what was submitted later waits behind it."""
    NAN = auto()
    """The numbers are NaN and nobody says so."""
    SHORT = auto()
    """The last sequence is missing in the result."""
    CANCELLED = auto()
    """The device cancels the future by itself."""


class Flaky(Wrapped):
    """An OffloadDevice around another one, with faults.

    Args:
        device: Computes; closed with this one.
        faults: Faults by the number of the batch, counted from 0.
        depth: Batches that may wait.
    """

    def __init__(self, device: OffloadDevice, faults: Mapping[int, Fault], *, depth: int = DEPTH) -> None:
        self.faults = dict(faults)
        self._go_on = threading.Event()
        self._closing = False
        super().__init__(device, name="flaky", depth=depth)

    @property
    def submitted(self) -> int:
        """Batches so far, refused ones too."""
        return self._submitted

    def go_on(self) -> None:
        """Let batches that hang, now and later, run to their end."""
        self._go_on.set()

    def submit(self, handle: Handle, batch: Batch, *, wait_s: float | None = None) -> Future[Result]:
        """Queue a batch."""
        fault = self.faults.get(self._submitted)
        if fault is Fault.REFUSED:
            self.check()
            self._submitted += 1
            raise DeviceError("an injected refusal")
        future = super().submit(handle, batch, wait_s=wait_s)
        if fault is Fault.CANCELLED:
            future.cancel()
        return future

    def deliver(self, number: int, batch: Batch, inner: "Future[Result]") -> Result:
        """Return the result, or do what the fault does."""
        result = inner.result()
        match self.faults.get(number):
            case Fault.FAILS:
                raise DeviceError(f"an injected fault of batch {number}")
            case Fault.DIES:
                raise DeviceLostError(f"an injected death at batch {number}")
            case Fault.LOST:
                self.lose(f"an injected loss at batch {number}")
                raise DeviceLostError(self._reason)
            case Fault.HANGS:
                self._go_on.wait()
                if self._closing:
                    raise DeviceLostError("the device was closed in the middle of a batch")
            case Fault.NAN:
                return _mapped(result, np.nan)
            case Fault.SHORT:
                return replace(
                    result,
                    scores=None if result.scores is None else result.scores[:-1],
                    logprobs=None if result.logprobs is None else result.logprobs[:-1],
                )
            case _:
                pass
        return result

    def close(self) -> None:
        """End what hangs, fail what waits, close the inner device. Idempotent."""
        self._closing = True
        self._go_on.set()
        super().close()


def _mapped(result: Result, factor: float) -> Result:
    times = np.float32(factor)
    return replace(
        result,
        scores=None if result.scores is None else result.scores * times,
        logprobs=None if result.logprobs is None else tuple(row * times for row in result.logprobs),
    )
