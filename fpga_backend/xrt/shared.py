"""Memory that two processes share, passed as a file descriptor. It has no name, so nothing can be left over."""

import mmap
import os
from typing import Any

import numpy as np
import numpy.typing as npt

ALIGNMENT = 64
"""Arrays begin at multiples of this: a beat of the card's memory."""


class Region:
    """Shared memory.

    Args:
        fd: Its file descriptor, which the region owns from now on.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.nbytes = os.fstat(fd).st_size
        self._map: mmap.mmap | None = mmap.mmap(fd, self.nbytes)

    @classmethod
    def of(cls, nbytes: int) -> "Region":
        """Return new memory, zeros."""
        fd = os.memfd_create("greentrain-xrt", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, max(nbytes, 1))
            return cls(fd)
        except BaseException:
            os.close(fd)
            raise

    def array(self, dtype: Any, count: int, offset: int) -> npt.NDArray[Any]:
        """Return a view of ``count`` numbers from byte ``offset`` on.

        Raises:
            ValueError: They lie outside, or the region is closed.
        """
        if self._map is None:
            raise ValueError("the shared memory is closed")
        return np.frombuffer(self._map, dtype, count, offset) if count else np.empty(0, dtype)

    def close(self) -> None:
        """Give it back, once the last view is gone. Idempotent."""
        if self._map is not None:
            self._map = None
            os.close(self.fd)


def aligned(nbytes: int) -> int:
    """Return the next multiple of ``ALIGNMENT``."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
