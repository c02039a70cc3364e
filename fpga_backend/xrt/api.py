"""XRT as the card needs it: one small seam, behind which is AMD's Python module or its C library.

Nothing here waits inside the library: pyxrt's ``wait`` holds Python's lock for as long as a kernel runs
(``src/python/pybind11/src/pyxrt.cpp`` of Xilinx/XRT, tags 2.13 to 2.23 and 963c58e, 2026-11-21).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy.typing as npt

COMPLETED = 4
PENDING = frozenset({1, 2, 3, 7})
"""New, queued, running, submitted."""
STATES = {
    1: "new",
    2: "queued",
    3: "running",
    4: "completed",
    5: "error",
    6: "abort",
    7: "submitted",
    8: "timeout",
    9: "no response",
    10: "error of a soft kernel",
    11: "crash of a soft kernel",
}
"""``enum ert_cmd_state``: ert.h of XRT 2.13.466."""


class Memory(Protocol):
    """A buffer object."""

    def write(self, data: npt.NDArray[Any], offset: int) -> None:
        """Copy an array to the card."""
        ...

    def read(self, out: npt.NDArray[Any], offset: int) -> None:
        """Copy from the card into an array."""
        ...

    def address(self) -> int:
        """Return where the buffer's host side is mapped in this process."""
        ...

    def free(self) -> None:
        """Give it back."""
        ...


class Run(Protocol):
    """One execution of a kernel."""

    def state(self) -> int:
        """Return a key of ``STATES``, at once."""
        ...

    def close(self) -> None:
        """Give it back."""
        ...


class Kernel(Protocol):
    """A kernel of the loaded design."""

    def group(self, argument: int) -> int:
        """Return the memory that a pointer argument is connected to."""
        ...

    def start(self, arguments: "Sequence[Memory | int]") -> Run:
        """Start the kernel and return at once."""
        ...


class Api(Protocol):
    """One opened card. Methods raise DeviceError where XRT fails."""

    def load(self, xclbin: Path) -> str:
        """Program the card; return the UUID that it reports."""
        ...

    def kernel(self, name: str) -> Kernel:
        """Open a kernel of the loaded design."""
        ...

    def allocate(self, nbytes: int, group: int) -> Memory:
        """Reserve memory, in the memory that :meth:`Kernel.group` has named."""
        ...

    def close(self) -> None:
        """Give the card back. Idempotent."""
        ...
