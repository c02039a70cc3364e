"""What a program and a batch take of a card's memory."""

import math
from dataclasses import dataclass

from greentrain.fpga_backend.program import (
    Embed,
    Linear,
    LogProb,
    Norm,
    Op,
    Pool,
    Program,
    Rotary,
    Score,
    digits,
    read_by,
    widths,
)
from greentrain.fpga_backend.roofline.counts import WORD, logit_rows
from greentrain.fpga_backend.roofline.layout import BatchLayout
from greentrain.fpga_backend.roofline.widths import NumberWidths, widths_of


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFootprint:
    """Bytes on one card."""

    weights_bytes: int
    activations_bytes: int
    """The most that registers take at one time, keys and values among them; each is free after its last reader."""

    @property
    def total_bytes(self) -> int:
        """Both."""
        return self.weights_bytes + self.activations_bytes


def footprint(program: Program, layout: BatchLayout, *, ways: int = 1) -> MemoryFootprint:
    """Return what a batch takes on one of ``ways`` cards that share the products by their outputs.

    Registers are taken whole on each card: an upper bound. Tensors that several operators name are counted once.

    Raises:
        ArtifactError: The precision has no model of a card.
    """
    sizes = widths_of(program.precision)
    named = {getattr(op, "weight", None): op for op in program.ops}
    weights = sum(_stored(op, program, sizes, ways) for op in named.values())
    return MemoryFootprint(weights_bytes=weights, activations_bytes=_peak(program, layout))


def _stored(op: Op, program: Program, sizes: NumberWidths, ways: int) -> int:
    match op:
        case Embed():
            entries = {"token": program.vocabulary, "type": program.types}.get(op.index, program.max_tokens + op.offset)
            return entries * (op.width * sizes.embedding_bytes + (WORD if sizes.quantised else 0))
        case Linear() | LogProb():
            outputs = math.ceil((op.outputs if isinstance(op, Linear) else op.vocabulary) / ways)
            return sizes.weights(outputs, op.x.width) + (WORD * outputs if op.bias else 0)
        case Norm():
            return (2 if op.bias else 1) * op.x.width * WORD
        case Rotary():
            return program.max_tokens * op.x.width // op.heads * WORD
        case Score():
            return op.labels * (op.x.width * 2 + WORD * (2 if op.bias else 1))
        case _:
            return 0


def _peak(program: Program, layout: BatchLayout) -> int:
    sizes = widths_of(program.precision)
    rows: dict[int, int] = {}
    last: dict[int, int] = {}
    for place, op in enumerate(program.ops):
        sources = list(read_by(op))
        for source in sources:
            last[source.register] = place
        if isinstance(op, LogProb):
            continue
        rows[op.out] = (
            layout.sequences if isinstance(op, Pool) else rows[sources[0].register] if sources else layout.rows
        )
    width = widths(program)
    live: dict[int, int] = {}
    most = 0
    for place, op in enumerate(program.ops):
        extra = 0
        if isinstance(op, LogProb):
            extra = min(logit_rows(op.vocabulary), layout.targets) * op.vocabulary * sizes.activation_bytes
        else:
            live[op.out] = rows[op.out] * width[op.out] * sizes.activation_bytes
        if sizes.quantised:
            times = digits(op) if isinstance(op, Linear | LogProb) else 1
            extra += times * sum(rows[source.register] * source.width for source in read_by(op))
        most = max(most, sum(live.values()) + extra)
        live = {register: size for register, size in live.items() if last.get(register, -1) > place}
    return most
