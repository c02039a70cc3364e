"""An artifact's tensors and the contract's tables in a card's memory, their rows padded to whole beats."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from greentrain.fpga_backend import tables
from greentrain.fpga_backend.card import Buffer, Card
from greentrain.fpga_backend.csim.kernels import TABLES, WEIGHTS, Region
from greentrain.fpga_backend.csim.launches import BYTES
from greentrain.fpga_backend.program import Gate, Program

Array = npt.NDArray[Any]


def write_weights(card: Card, program: Program, tensors: Mapping[str, Array]) -> dict[str, Buffer]:
    """Write tensors and tables to a card.

    Returns:
        Buffers by name, as ``launches.py`` names them.

    Raises:
        DeviceError: The card has no room; what was written is freed.
    """
    wanted: dict[str, tuple[Array, Region]] = {
        f"weights:{name}": (padded(tensor), WEIGHTS) for name, tensor in tensors.items()
    }
    wanted["table:exp2"] = (tables.exp2(), TABLES)
    wanted["table:ln"] = (tables.log(), TABLES)
    for kind in sorted({op.table for op in program.ops if isinstance(op, Gate)} - {"relu"}):
        wanted[f"table:{kind}"] = (tables.gate(kind), TABLES)
    held: dict[str, Buffer] = {}
    try:
        for name, (array, region) in wanted.items():
            held[name] = card.allocate(max(array.nbytes, BYTES), region.bank)
            card.write(held[name], array)
    except BaseException:
        for buffer in held.values():
            card.free(buffer)
        raise
    return held


def padded(array: Array) -> Array:
    """Return an array whose rows are filled up with zeros to whole beats of 64 bytes."""
    lanes = BYTES // array.itemsize
    short = -array.shape[-1] % lanes
    if not short:
        return np.ascontiguousarray(array)
    return np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, short)])
