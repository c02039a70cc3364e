"""What is known of a device: that it is lost, that it hangs, that it fails again and again."""

import threading
from concurrent.futures import Future
from typing import Final

from greentrain.fpga_backend.batch import Result
from greentrain.fpga_backend.device import OffloadDevice
from greentrain.fpga_backend.errors import DeviceLostError

PATIENCE: Final = 3
"""Failures in a row after which a device rests. A worker that was killed and replaced has one."""
FIRST_REST: Final = 8
LONGEST_REST: Final = 4096
"""A rest is counted in parts that run elsewhere, and doubles with each further failure."""


class Health:
    """Decides whether a device is asked. Any thread may call.

    Lost is for ever; that a worker which died may be replaced is the device's affair, and while it says that it is
    available, it is asked. A device hangs as long as a part that was given up is still running on it.
    """

    def __init__(self, device: OffloadDevice) -> None:
        self._device = device
        self.info = device.probe()
        self._lock = threading.Lock()
        self._lost = False
        self._hanging = 0
        self._failures = 0
        self._rest = 0

    @property
    def lost(self) -> bool:
        """True if nothing more comes from it."""
        return self._lost

    @property
    def hanging(self) -> bool:
        """True while a part that was given up runs on it."""
        return self._hanging > 0

    def asked(self) -> bool:
        """Return True if the next part may go to the device; of a rest, that is one part."""
        with self._lock:
            if self._lost or self._hanging:
                return False
            if self._rest:
                self._rest -= 1
                return False
            return True

    def worked(self) -> None:
        """Note a result."""
        with self._lock:
            self._failures = self._rest = 0

    def failed(self, error: BaseException) -> None:
        """Note a failure."""
        gone = isinstance(error, DeviceLostError) and not self._available()
        with self._lock:
            self._lost = self._lost or gone
            self._another()

    def hangs(self, late: "Future[Result]") -> None:
        """Note a part that runs too long, until it ends."""
        with self._lock:
            self._hanging += 1
            if self._hanging == 1:
                self._another()
        late.add_done_callback(self._ended)

    def _available(self) -> bool:
        try:
            return self._device.probe().available
        except Exception:  # of a device that cannot even say so
            return False

    def _another(self) -> None:
        self._failures += 1
        if self._failures >= PATIENCE:
            self._rest = min(FIRST_REST << min(self._failures - PATIENCE, 16), LONGEST_REST)

    def _ended(self, _: "Future[Result]") -> None:
        with self._lock:
            self._hanging -= 1
