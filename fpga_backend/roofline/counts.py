"""What a program asks of a card: products, bytes of memory, bytes over PCIe, kernel launches, by operator.

Products are those that the result needs: keys behind a causal query are not counted, shared prompts once. Memory
traffic is that of kernels which run one after the other, as ``csim/schedule.py`` launches them: each reads its operands
once and writes its result once. A kernel whose operands do not fit on the chip reads some of them again, so the bytes,
and the times that follow from them, are lower bounds.
"""

import math
from collections import Counter
from dataclasses import dataclass
from typing import Literal

from greentrain.fpga_backend import program as ir
from greentrain.fpga_backend.batch import Packed
from greentrain.fpga_backend.csim.launches import FLOATS, beats, by_sequence
from greentrain.fpga_backend.csim.layout import logit_rows
from greentrain.fpga_backend.errors import ArtifactError, BatchError
from greentrain.fpga_backend.program import digits, group_of, read_by, width_of, widths


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLayout:
    """What a batch comes to, in rows."""

    tokens: int
    """Of all sequences, shared prompts counted each time."""
    rows: int
    """Rows that are computed."""
    sequences: int
    segments: int
    targets: int
    """Wanted log-probabilities."""
    causal_pairs: int
    """Pairs of query and key in a causal attention, over all segments."""
    all_pairs: int
    """The same where every row sees its whole sequence."""
    keys: int
    """Rows that a segment may attend to, added up over the segments: keys and values read."""
    spans: tuple[tuple[int, int, int], ...] = ()
    """How many segments have so many rows behind a prompt of so many."""

    @classmethod
    def of(cls, packed: Packed) -> "BatchLayout":
        """Return the size of a packed batch."""
        before = [packed.segments[s.parent].rows if s.parent >= 0 else 0 for s in packed.segments]
        own = [segment.rows for segment in packed.segments]
        keys = [b + n for b, n in zip(before, own, strict=True)]
        ends = [keys[segment] for segment in packed.sequences]
        return cls(
            tokens=sum(ends),
            rows=packed.rows,
            sequences=len(packed.sequences),
            segments=len(packed.segments),
            targets=len(packed.target_rows),
            causal_pairs=sum(b * n + _triangle(n) for b, n in zip(before, own, strict=True)),
            all_pairs=sum(n * k for n, k in zip(own, keys, strict=True)),
            keys=sum(keys),
            spans=tuple((number, *span) for span, number in Counter(zip(own, before, strict=True)).items()),
        )

    @classmethod
    def equal(cls, sequences: int, tokens: int) -> "BatchLayout":
        """Return the size of ``sequences`` sequences of ``tokens`` tokens each, no prompt shared.

        Raises:
            BatchError: One of them is below 1.
        """
        if sequences < 1 or tokens < 1:
            raise BatchError(f"{sequences} sequences of {tokens} tokens: both are at least 1")
        return cls(
            tokens=sequences * tokens,
            rows=sequences * tokens,
            sequences=sequences,
            segments=sequences,
            targets=sequences * (tokens - 1),
            causal_pairs=sequences * _triangle(tokens),
            all_pairs=sequences * tokens * tokens,
            keys=sequences * tokens,
            spans=((sequences, tokens, 0),),
        )


def _triangle(rows: int) -> int:
    return rows * (rows + 1) // 2


WORD = 4
"""Bytes of an index, a scale, a bias, a score or a log-probability."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberWidths:
    """Sizes of the numbers of one precision on a card."""

    weight_bits: int
    scales: Literal["none", "output", "group"] = "none"
    """Whether weights carry a scale an output, or one a group of an output's inputs."""
    activation_bytes: int = 2
    """Of a register's element. The integer contract keeps registers in binary32."""
    embedding_bytes: int = 2
    product_bits: int = 16
    """8: two or three products a DSP slice; 16: one."""
    quantised: bool = False
    """True if rows are quantised before a product: a pass of its own over them."""

    def weights(self, outputs: int, inner: int) -> int:
        """Return the bytes of a product's weights and their scales."""
        scales = {"none": 0, "output": 1, "group": math.ceil(inner / group_of(inner))}[self.scales]
        return math.ceil(outputs * inner * self.weight_bits / 8) + WORD * scales * outputs

    def entry(self, width: int) -> int:
        """Return the bytes of an embedding's row and its scale."""
        return width * self.embedding_bytes + (WORD if self.quantised else 0)


_WIDTHS: dict[str, NumberWidths] = {
    "w8a8": NumberWidths(weight_bits=8, scales="output", activation_bytes=4, product_bits=8, quantised=True),
    "fp16": NumberWidths(weight_bits=16),
    "bf16": NumberWidths(weight_bits=16),
    "w8a16": NumberWidths(weight_bits=8, scales="output"),
    "w4a16": NumberWidths(weight_bits=4, scales="group"),
}


def widths_of(precision: ir.Precision) -> NumberWidths:
    """Return the sizes of a precision.

    Raises:
        ArtifactError: No figures are known of it: fp32.
    """
    if precision not in _WIDTHS:
        raise ArtifactError(f"precision {precision} has no model of a card; it has one of {', '.join(_WIDTHS)}")
    return _WIDTHS[precision]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCount:
    """One operator's part."""

    place: int
    """Index of the operator in the program."""
    kind: str
    launches: int = 1
    macs8: int = 0
    macs16: int = 0
    weight_bytes: int = 0
    """Read of weights, scales and biases."""
    activation_bytes: int = 0
    """Read and written of registers and of rows quantised on the way."""

    @property
    def memory_bytes(self) -> int:
        """All traffic of the card's memory."""
        return self.weight_bytes + self.activation_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkCounts:
    """A batch's needs."""

    ops: tuple[OpCount, ...]
    tokens: int
    pcie_in_bytes: int
    pcie_out_bytes: int

    @property
    def macs8(self) -> int:
        """8-bit products."""
        return sum(op.macs8 for op in self.ops)

    @property
    def macs16(self) -> int:
        """16-bit products."""
        return sum(op.macs16 for op in self.ops)

    def macs_of(self, bits: int) -> int:
        """Products of one width."""
        return self.macs8 if bits == 8 else self.macs16

    @property
    def macs(self) -> int:
        """Products of either width."""
        return self.macs8 + self.macs16

    @property
    def memory_bytes(self) -> int:
        """Traffic of the card's memory."""
        return sum(op.memory_bytes for op in self.ops)

    @property
    def launches(self) -> int:
        """Kernel launches."""
        return sum(op.launches for op in self.ops)


def count(program: ir.Program, batch: Packed | BatchLayout) -> WorkCounts:
    """Return what a batch asks of one card.

    Args:
        program: Compiled, or built from a configuration; its precision decides the sizes.
        batch: Packed, or equal sequences.

    Raises:
        ArtifactError: The precision has no model of a card.
    """
    layout = batch if isinstance(batch, BatchLayout) else BatchLayout.of(batch)
    counter = _OpCounter(program, layout)
    ops = tuple(counter.count(place, op) for place, op in enumerate(program.ops))
    asked = isinstance(program.ops[-1], ir.LogProb)
    table = 3 * layout.rows + 4 * (layout.segments + layout.sequences) + (2 * layout.targets if asked else 0)
    results = layout.targets if asked else layout.sequences * FLOATS * beats(max(program.labels, 1))
    return WorkCounts(ops=ops, tokens=layout.tokens, pcie_in_bytes=WORD * table, pcie_out_bytes=WORD * results)


def _register_rows(program: ir.Program, layout: BatchLayout) -> dict[int, int]:
    """Return how many rows each register has."""
    pooled = by_sequence(program)
    written = [op.out for op in program.ops if not isinstance(op, ir.LogProb)]
    return {register: layout.sequences if register in pooled else layout.rows for register in written}


class _OpCounter:
    """Counts the operators of a program."""

    def __init__(self, program: ir.Program, layout: BatchLayout) -> None:
        self._program = program
        self._layout = layout
        self._sizes = widths_of(program.precision)
        self._rows = _register_rows(program, layout)

    def count(self, place: int, op: ir.Op) -> OpCount:
        """Return an operator's part."""
        return OpCount(place=place, kind=type(op).__name__.lower(), **self._needs(op))

    def _needs(self, op: ir.Op) -> dict[str, int]:
        """Return the fields of an OpCount that differ from its defaults."""
        if isinstance(op, ir.LogProb):
            return self._logprob(op)
        rows = self._rows[op.out]
        match op:
            case ir.Embed():
                read = rows * self._sizes.entry(op.width)
                return {"weight_bytes": read, "activation_bytes": self._register(rows, op.width) + WORD * rows}
            case ir.Add():
                return {"activation_bytes": 3 * self._register(rows, op.x.width)}
            case ir.Norm():
                return {
                    "weight_bytes": _stored(op, self._program),
                    "activation_bytes": 2 * self._register(rows, op.x.width),
                }
            case ir.Linear():
                return self._product(op, rows)
            case ir.Gate():
                matrices = 2 if op.up is None else 3
                return {"activation_bytes": matrices * self._register(rows, op.x.width)}
            case ir.Rotary():
                angles = WORD * op.x.width // op.heads * rows
                moved = 2 * self._register(rows, op.x.width) + WORD * rows
                return {"weight_bytes": angles, "activation_bytes": moved}
            case ir.Attention():
                return self._attention(op, rows)
            case ir.Pool():
                read = self._layout.rows if op.how == "mean" else self._layout.sequences
                return {"activation_bytes": self._register(read, op.x.width) + self._register(rows, op.x.width)}
            case ir.Score():
                return {
                    "macs16": rows * op.labels * op.x.width,
                    "weight_bytes": _stored(op, self._program),
                    "activation_bytes": self._register(rows, op.x.width) + WORD * rows * op.labels,
                }

    def _attention(self, op: ir.Attention, rows: int) -> dict[str, int]:
        layout, sizes = self._layout, self._sizes
        outputs = width_of(op)
        pairs = layout.causal_pairs if op.causal else layout.all_pairs
        if op.window:
            pairs = min(pairs, rows * op.window * (1 if op.causal else 2))  # at most
        passes = [
            self._quantised(rows, c.width, n) for c, n in ((op.q, op.heads), (op.k, op.kv_heads), (op.v, op.kv_heads))
        ]
        size = 1 if sizes.quantised else sizes.activation_bytes
        scales = WORD if sizes.quantised else 0
        read = rows * (op.q.width * size + scales * op.heads)
        read += layout.keys * ((op.k.width + op.v.width) * size + 2 * scales * op.kv_heads)
        return {
            "launches": 1 + (len(passes) if sizes.quantised else 0),
            "activation_bytes": sum(passes) + read + self._register(rows, outputs),
            **self._macs(pairs * (op.q.width + outputs)),
        }

    def _logprob(self, op: ir.LogProb) -> dict[str, int]:
        targets = self._layout.targets
        chunks = math.ceil(targets / logit_rows(op.vocabulary))
        product = self._product(op, targets)
        logits = self._register(targets, op.vocabulary)
        return {
            **product,
            "launches": chunks * (product["launches"] + 1),
            "weight_bytes": chunks * product["weight_bytes"],
            "activation_bytes": product["activation_bytes"] + logits + 2 * WORD * targets,
        }

    def _product(self, op: ir.Linear | ir.LogProb, rows: int) -> dict[str, int]:
        inner, quantised = op.x.width, self._sizes.quantised
        times = digits(op) if quantised else 1
        read = rows * (times * inner + WORD) if quantised else self._register(rows, inner)
        return {
            "launches": 2 if quantised else 1,
            "weight_bytes": _stored(op, self._program),
            "activation_bytes": self._quantised(rows, inner, 1, times) + read + self._register(rows, op.outputs),
            **self._macs(times * rows * inner * op.outputs),
        }

    def _quantised(self, rows: int, width: int, groups: int, times: int = 1) -> int:
        """Bytes of reading a register, and writing it as 8-bit rows, ``times`` digits an element, and scales."""
        if not self._sizes.quantised:
            return 0
        return self._register(rows, width) + rows * (times * width + WORD * groups)

    def _register(self, rows: int, width: int) -> int:
        return rows * width * self._sizes.activation_bytes

    def _macs(self, products: int) -> dict[str, int]:
        return {f"macs{self._sizes.product_bits}": products}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFootprint:
    """Bytes on a card."""

    weights_bytes: int
    activations_bytes: int
    """The most that registers take at one time, keys and values among them; each is free after its last reader."""

    @property
    def total_bytes(self) -> int:
        """Both."""
        return self.weights_bytes + self.activations_bytes


def footprint(program: ir.Program, layout: BatchLayout) -> MemoryFootprint:
    """Return what a batch takes on a card. Tensors that several operators name are counted once.

    Raises:
        ArtifactError: The precision has no model of a card.
    """
    named = {getattr(op, "weight", None): op for op in program.ops}
    weights = sum(_stored(op, program) for op in named.values())
    return MemoryFootprint(weights_bytes=weights, activations_bytes=_peak(program, layout))


def _stored(op: ir.Op, program: ir.Program) -> int:
    """Return the bytes of an operator's tensors on a card."""
    sizes = widths_of(program.precision)
    match op:
        case ir.Embed():
            entries = {"token": program.vocabulary, "type": program.types}.get(op.index, program.max_tokens + op.offset)
            return entries * sizes.entry(op.width)
        case ir.Linear() | ir.LogProb():
            return sizes.weights(op.outputs, op.x.width) + (WORD * op.outputs if op.bias else 0)
        case ir.Norm():
            return (2 if op.bias else 1) * op.x.width // op.groups * WORD
        case ir.Rotary():
            return program.max_tokens * op.x.width // op.heads * WORD
        case ir.Score():
            return op.labels * (op.x.width * 2 + WORD * (2 if op.bias else 1))
        case _:
            return 0


def _peak(program: ir.Program, layout: BatchLayout) -> int:
    sizes = widths_of(program.precision)
    rows, width = _register_rows(program, layout), widths(program)
    last = {source.register: place for place, op in enumerate(program.ops) for source in read_by(op)}
    live: dict[int, int] = {}
    most = 0
    for place, op in enumerate(program.ops):
        extra = 0
        if isinstance(op, ir.LogProb):
            extra = min(logit_rows(op.vocabulary), layout.targets) * op.vocabulary * sizes.activation_bytes
        else:
            live[op.out] = rows[op.out] * width[op.out] * sizes.activation_bytes
        if sizes.quantised:
            times = digits(op) if isinstance(op, ir.Linear | ir.LogProb) else 1
            extra += times * sum(rows[source.register] * source.width for source in read_by(op))
        most = max(most, sum(live.values()) + extra)
        live = {register: size for register, size in live.items() if last.get(register, -1) > place}
    return most
