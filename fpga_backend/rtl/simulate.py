"""8-bit matrix products by the Verilog: ``gt_tile`` in its Verilator model."""

import ctypes
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from greentrain.fpga_backend import contract
from greentrain.fpga_backend.errors import DeviceError
from greentrain.fpga_backend.rtl.build import build, tile


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Product:
    """What the array computed."""

    values: npt.NDArray[np.int32]
    """[m, n]."""
    cycles: int
    """Clocks it took, of the array in the simulation."""


def tile_cycles(k: int, *, row_pairs: int, columns: int) -> int:
    """Return the clocks from one tile's first beat to the next one's, streams never stalling (``gt_tile.v``).

    Args:
        k: Inner dimension, one beat each.
        row_pairs: R2.
        columns: C.
    """
    return k + (row_pairs + columns + 2) + columns


class Simulator:
    """One simulated array. For one thread at a time.

    The first use of a size compiles it (seconds; minutes for thousands of multipliers) and keeps the result.

    Args:
        row_pairs: Pairs of rows of the array: a tile has twice as many rows.
        columns: Columns of the array and of a tile.
        folder: Where compiled models are kept; None: ``rtl`` in GreenTrain's cache folder.

    Raises:
        ValueError: A size is outside 1 to 64.
        DeviceError: Verilator or a compiler is missing, or failed.
    """

    def __init__(self, *, row_pairs: int = 8, columns: int = 8, folder: Path | None = None) -> None:
        self.row_pairs = row_pairs
        self.columns = columns
        self._bench: int | None = None
        self._library = _library(build(tile(row_pairs, columns), folder))
        self._bench = self._library.gt_open()

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the array at one clock; half as many DSPs."""
        return 2 * self.row_pairs * self.columns

    def gemm(self, a: npt.NDArray[np.int8], w: npt.NDArray[np.int8]) -> Product:
        """Multiply, cutting into tiles and padding with zeros.

        Args:
            a: Activations [m, k].
            w: Weights [n, k].

        Returns:
            ``a @ w.T``, exact where it fits 32 bits: always, for magnitudes up to 127.

        Raises:
            ValueError: Shapes or types differ from these, or k is outside 1 to 131072.
            DeviceError: The array did not answer: its control is broken.
        """
        m, n, k = _shape(a, w)
        bench = self._open()
        before = self._library.gt_clocks(bench)
        values = np.empty((m, n), dtype=np.int32)
        a, w = np.ascontiguousarray(a), np.ascontiguousarray(w)
        if self._library.gt_gemm(bench, a.ctypes.data, w.ctypes.data, m, n, k, values.ctypes.data):
            raise DeviceError(
                f"the array stopped answering in a product of {m} x {n} x {k}: gt_tile's handshake is broken"
            )
        return Product(values=values, cycles=self._library.gt_clocks(bench) - before)

    def close(self) -> None:
        """Give the model's memory back. Idempotent."""
        bench, self._bench = self._bench, None
        if bench is not None:
            self._library.gt_close(bench)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def _open(self) -> int:
        if self._bench is None:
            raise DeviceError("the simulated array is closed: make another Simulator")
        return self._bench


def _shape(a: npt.NDArray[np.int8], w: npt.NDArray[np.int8]) -> tuple[int, int, int]:
    for name, array in (("a", a), ("w", w)):
        if array.dtype != np.int8 or array.ndim != 2:
            raise ValueError(f"{name} is {array.dtype}{list(array.shape)}; the array takes int8 matrices")
    (m, k), (n, inner) = a.shape, w.shape
    if k != inner:
        raise ValueError(f"a [m, k] is {[m, k]} and w [n, k] is {[n, inner]}: their k must be the same")
    if not 1 <= k <= contract.MAX_INNER:
        raise ValueError(f"the inner dimension is {k}; sums of 32 bits allow 1 to {contract.MAX_INNER}")
    return m, n, k


def _library(path: Path) -> Any:
    library = ctypes.CDLL(str(path))
    bench, size = ctypes.c_void_p, ctypes.c_int64
    library.gt_open.restype = bench
    library.gt_close.argtypes, library.gt_close.restype = [bench], None
    library.gt_clocks.argtypes, library.gt_clocks.restype = [bench], ctypes.c_uint64
    library.gt_gemm.argtypes = [bench, bench, bench, size, size, size, bench]
    return library
