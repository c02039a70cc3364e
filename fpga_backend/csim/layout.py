"""Where a program's numbers lie in a card's memory.

Between two kernels: how many buffers there are, and how large. Before the first one: the artifact's tensors and the
contract's tables, their rows padded to whole beats.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from greentrain.fpga_backend import tables
from greentrain.fpga_backend.card import Buffer, Card
from greentrain.fpga_backend.csim.kernels import GEMM, STREAMS, WORK, MemoryRegion
from greentrain.fpga_backend.csim.launches import BYTES, FLOATS, beats, by_sequence
from greentrain.fpga_backend.program import Attention, Gate, Linear, LogProb, Program, digits, read_by, widths

LOGITS_BYTES = 2**26
"""Logits at a time: few enough to fit any bank, and rows enough to read the vocabulary's weights seldom."""
MOST_CHUNK = 1024
INDEX_INTS = 7
"""Integers of a row in the index buffers: id, position, type, and a segment of four."""


def logit_rows(vocabulary: int) -> int:
    """Return how many rows of logits are held at a time, in whole beats; the weights are read again for the next."""
    held = min(MOST_CHUNK, LOGITS_BYTES // max(BYTES * beats(vocabulary), 1))
    return max(FLOATS, held // FLOATS * FLOATS)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSize:
    """What a batch, or a buffer for batches, has room for."""

    rows: int
    sequences: int
    targets: int

    def holds(self, other: "BatchSize") -> bool:
        """Return whether a batch of another size fits."""
        return self.rows >= other.rows and self.sequences >= other.sequences and self.targets >= other.targets


@dataclass(slots=True)
class _BufferSlot:
    by_sequence: bool
    beats: int
    register: int | None


class CardLayout:
    """The buffers of a program.

    Args:
        program: The operators.
    """

    def __init__(self, program: Program) -> None:
        self._slots, self.slot_of = _slots(program)
        self._vocabulary = max((op.vocabulary for op in program.ops if isinstance(op, LogProb)), default=0)
        self._rows_beats, self._groups = _quantised(program)
        self.chunk = logit_rows(self._vocabulary)

    @property
    def row_bytes(self) -> int:
        """Bytes that a row of tokens takes in all buffers, at most."""
        slots = sum(slot.beats for slot in self._slots if not slot.by_sequence)
        return BYTES * (slots + sum(self._rows_beats)) + 4 * sum(self._groups) + 4 * INDEX_INTS

    def buffers(self, size: BatchSize) -> Mapping[str, tuple[int, MemoryRegion]]:
        """Return bytes and region of each buffer that depends on the batch, by name; slots as ``slot:i``."""
        chunk = min(self.chunk, size.targets) if self._vocabulary else 0
        tall = max(size.rows, size.sequences, chunk)
        found: dict[str, int] = {}
        for i, slot in enumerate(self._slots):
            rows = size.sequences if slot.by_sequence else size.rows
            found[f"slot:{i}"] = BYTES * slot.beats * rows
        for i, (wide, groups) in enumerate(zip(self._rows_beats, self._groups, strict=True)):
            if wide:
                found[f"q:{i}"] = BYTES * wide * tall
                found[f"s:{i}"] = 4 * groups * tall
        for name in ("ids", "positions", "types"):
            found[f"index:{name}"] = 4 * size.rows
        found["index:segments"] = 16 * size.rows
        found["index:sequences"] = 16 * size.sequences
        if self._vocabulary and size.targets:
            found["index:target_rows"] = 4 * size.targets
            found["index:target_ids"] = 4 * size.targets
            found["logits"] = BYTES * beats(self._vocabulary) * chunk
            found["logprobs"] = 4 * size.targets
        return {name: (BYTES * beats(nbytes, BYTES), WORK) for name, nbytes in found.items()}


def _slots(program: Program) -> tuple[list[_BufferSlot], dict[int, int]]:
    """Give registers that are not alive at the same time the same buffer."""
    wide, pooled = widths(program), by_sequence(program)
    last = {columns.register: i for i, op in enumerate(program.ops) for columns in read_by(op)}
    slots: list[_BufferSlot] = []
    slot_of: dict[int, int] = {}
    for i, op in enumerate(program.ops):
        if isinstance(op, LogProb):
            continue
        need, kind = beats(wide[op.out]), op.out in pooled
        free = [s for s, slot in enumerate(slots) if slot.register is None and slot.by_sequence == kind]
        if free:  # the tightest that is wide enough, else the widest
            chosen = min(free, key=lambda s: (slots[s].beats < need, abs(slots[s].beats - need)))
        else:
            slots.append(_BufferSlot(kind, need, None))
            chosen = len(slots) - 1
        slots[chosen].beats = max(slots[chosen].beats, need)
        slots[chosen].register = op.out
        slot_of[op.out] = chosen
        for slot in slots:
            if slot.register is not None and last.get(slot.register, len(program.ops)) <= i:
                slot.register = None
    return slots, slot_of


def _quantised(program: Program) -> tuple[list[int], list[int]]:
    """Return the beats and the scales of a row in each of the three places for 8-bit rows."""
    wide, groups = [0, 0, 0], [0, 0, 0]
    for op in program.ops:
        parts: list[tuple[int, int]] = []
        if isinstance(op, Linear | LogProb):
            parts = [(digits(op) * beats(op.x.width, BYTES), 1)]
        elif isinstance(op, Attention):
            heads = ((op.q, op.heads), (op.k, op.kv_heads), (op.v, op.kv_heads))
            parts = [(n * beats(columns.width // n, BYTES), n) for columns, n in heads]
        for i, (beats_of_row, scales) in enumerate(parts):
            wide[i], groups[i] = max(wide[i], beats_of_row), max(groups[i], scales)
    return wide, groups


Array = npt.NDArray[Any]


def write_weights(card: Card, program: Program, tensors: Mapping[str, Array]) -> dict[str, Buffer]:
    """Write tensors and tables to a card.

    Returns:
        Buffers by name, as ``launches.py`` names them.

    Raises:
        DeviceError: The card has no room; what was written is freed.
    """
    products = {f"{op.weight}.q" for op in program.ops if isinstance(op, Linear | LogProb)}
    wanted: dict[str, tuple[Array, MemoryRegion]] = {
        f"weights:{name}": (padded(tensor), WORK) for name, tensor in tensors.items() if name not in products
    }
    for name in sorted(products):
        for i, (part, region) in enumerate(zip(tiled(tensors[name]), STREAMS, strict=True)):
            wanted[f"weights:{name}{i}"] = part, region
    wanted["table:exp2"] = (tables.exp2(), WORK)
    wanted["table:ln"] = (tables.log(), WORK)
    for kind in sorted({op.table for op in program.ops if isinstance(op, Gate)} - {"relu"}):
        wanted[f"table:{kind}"] = (tables.gate(kind), WORK)
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


def tiled(weights: Array) -> tuple[Array, ...]:
    """Return 8-bit weights [outputs, inner] tile-major, a part for each port of the product.

    Part ``2 * array + parity`` holds, pass after pass, the beats of an array's outputs for every second input. Outputs
    are filled up to whole passes and inputs to whole beats of rows with zeros.
    """
    outputs, inner = weights.shape
    passes, deep = beats(outputs, GEMM.outputs), beats(inner, BYTES) * BYTES
    whole = np.zeros((passes * GEMM.outputs, deep), dtype=weights.dtype)
    whole[:outputs, :inner] = weights
    parts = whole.reshape(passes, GEMM.arrays, GEMM.columns, deep // 2, 2).transpose(1, 4, 0, 3, 2)
    return tuple(np.ascontiguousarray(part) for array in parts for part in array)
