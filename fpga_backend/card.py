"""A card as the host sees it: buffers in banks of its memory, and kernels that are launched on them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory of a card."""

    number: int
    nbytes: int


class Card(Protocol):
    """One card, used from one thread. Every method raises DeviceError where the card fails."""

    def allocate(self, nbytes: int, bank: int = 0) -> Buffer:
        """Reserve memory, aligned to 4096 bytes, with undefined content."""

    def free(self, buffer: Buffer) -> None:
        """Give memory back."""

    def write(self, buffer: Buffer, data: npt.NDArray[Any], offset: int = 0) -> None:
        """Copy a C-contiguous array to the card."""

    def read(self, buffer: Buffer, out: npt.NDArray[Any], offset: int = 0) -> None:
        """Copy from the card into a C-contiguous array."""

    def launch(self, kernel: str, arguments: Sequence[Buffer | int]) -> None:
        """Run a kernel to its end. Integers are of 32 bits, as XRT's ``set_arg`` takes; a float goes as its bits."""

    def close(self) -> None:
        """Give the card back. Idempotent."""
