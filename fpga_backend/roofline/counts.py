"""What a program asks of a card: products, bytes of memory, bytes over PCIe, kernel launches, by operator.

Products are those that the result needs: keys behind a causal query are not counted, shared prompts once. Memory
traffic is that of kernels which run one after the other, as ``csim/schedule.py`` launches them: each reads its operands
once and writes its result once. A kernel whose operands do not fit on the chip reads some of them again, so the bytes,
and the times that follow from them, are lower bounds.
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from greentrain.fpga_backend.batch import Packed
from greentrain.fpga_backend.csim.launches import FLOATS, beats
from greentrain.fpga_backend.csim.layout import LOGITS_BYTES, MOST_CHUNK
from greentrain.fpga_backend.errors import ArtifactError, BatchError
from greentrain.fpga_backend.program import (
    Add,
    Attention,
    Embed,
    Gate,
    Linear,
    LogProb,
    Norm,
    Op,
    Pool,
    Precision,
    Program,
    Rotary,
    Score,
    digits,
    read_by,
    widths,
)


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
        )


def _triangle(rows: int) -> int:
    return rows * (rows + 1) // 2


SCALE_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberWidths:
    """Sizes of the numbers of one precision on a card."""

    weight_bits: int
    activation_bytes: int
    """Of a register's element. The integer contract keeps registers in binary32."""
    embedding_bytes: int
    product_bits: int
    """8: two or three products a DSP slice; 16: one."""
    quantised: bool
    """True if rows are quantised before a product: a pass of its own over them."""
    scales: Literal["none", "output", "group"]
    """Whether weights carry a scale an output, or one a group of an output's inputs."""

    def weights(self, outputs: int, inner: int) -> int:
        """Return the bytes of a product's weights and their scales."""
        scales = {"none": 0, "output": 1, "group": math.ceil(inner / group_of(inner))}[self.scales]
        return math.ceil(outputs * inner * self.weight_bits / 8) + SCALE_BYTES * scales * outputs


_FLOAT = NumberWidths(
    weight_bits=16, activation_bytes=2, embedding_bytes=2, product_bits=16, quantised=False, scales="none"
)
_WIDTHS: dict[str, NumberWidths] = {
    "w8a8": NumberWidths(
        weight_bits=8, activation_bytes=4, embedding_bytes=2, product_bits=8, quantised=True, scales="output"
    ),
    "fp16": _FLOAT,
    "bf16": _FLOAT,
    "w8a16": NumberWidths(
        weight_bits=8, activation_bytes=2, embedding_bytes=2, product_bits=16, quantised=False, scales="output"
    ),
    "w4a16": NumberWidths(
        weight_bits=4, activation_bytes=2, embedding_bytes=2, product_bits=16, quantised=False, scales="group"
    ),
}


def widths_of(precision: Precision) -> NumberWidths:
    """Return the sizes of a precision.

    Raises:
        ArtifactError: No figures are known of it: fp32.
    """
    if precision not in _WIDTHS:
        raise ArtifactError(f"precision {precision} has no model of a card; it has one of {', '.join(_WIDTHS)}")
    return _WIDTHS[precision]


def group_of(inner: int) -> int:
    """Return how many inputs share a scale of 4-bit weights, as ``compiler/quantize.py`` groups them."""
    return 128 if inner >= 1024 and inner % 128 == 0 else 32


WORD = 4
"""Bytes of an index, a scale, a bias, a score or a log-probability."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCount:
    """One operator's part."""

    place: int
    """Index of the operator in the program."""
    kind: str
    launches: int
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


def count(program: Program, batch: Packed | BatchLayout) -> WorkCounts:
    """Return what a batch asks of one card.

    Args:
        program: Compiled, or built from a configuration; its precision decides the sizes.
        batch: Packed, or equal sequences.

    Raises:
        ArtifactError: The precision has no model of a card.
    """
    layout = batch if isinstance(batch, BatchLayout) else BatchLayout.of(batch)
    widths = widths_of(program.precision)
    counter = _OpCounter(layout, widths)
    ops = tuple(counter.count(place, op) for place, op in enumerate(program.ops))
    asked = isinstance(program.ops[-1], LogProb)
    table = 3 * layout.rows + 4 * (layout.segments + layout.sequences) + (2 * layout.targets if asked else 0)
    results = layout.targets if asked else layout.sequences * FLOATS * beats(max(program.labels, 1))
    return WorkCounts(ops=ops, tokens=layout.tokens, pcie_in_bytes=WORD * table, pcie_out_bytes=WORD * results)


class _OpCounter:
    """Counts operators in order, and remembers how many rows each register has."""

    def __init__(self, layout: BatchLayout, widths: NumberWidths) -> None:
        self._layout = layout
        self._widths = widths
        self._rows: dict[int, int] = {}
        self._kinds: dict[type, Callable[..., OpCount]] = {
            Embed: self._embed,
            Add: self._add,
            Norm: self._norm,
            Linear: self._linear,
            Gate: self._gate,
            Rotary: self._rotary,
            Attention: self._attention,
            Pool: self._pool,
            Score: self._score,
            LogProb: self._logprob,
        }

    def count(self, place: int, op: Op) -> OpCount:
        """Return an operator's part, without its place."""
        if isinstance(op, Pool):
            self._rows[op.out] = self._layout.sequences
        elif isinstance(op, Embed):
            self._rows[op.out] = self._layout.rows
        elif not isinstance(op, LogProb):
            source = op.q if isinstance(op, Attention) else op.x
            self._rows[op.out] = self._rows[source.register]
        return dataclasses.replace(self._kinds[type(op)](op), place=place, kind=type(op).__name__.lower())

    def _embed(self, op: Embed) -> OpCount:
        rows = self._layout.rows
        scale = WORD if self._widths.quantised else 0
        read = rows * (op.width * self._widths.embedding_bytes + scale)
        return _part(weight_bytes=read, activation_bytes=self._register(rows, op.width) + WORD * rows)

    def _add(self, op: Add) -> OpCount:
        return _part(activation_bytes=3 * self._register(self._rows[op.out], op.x.width))

    def _norm(self, op: Norm) -> OpCount:
        vectors = 2 if op.bias else 1
        return _part(
            weight_bytes=vectors * op.x.width * WORD,
            activation_bytes=2 * self._register(self._rows[op.out], op.x.width),
        )

    def _linear(self, op: Linear) -> OpCount:
        return self._product(op, self._rows[op.out], op.outputs)

    def _gate(self, op: Gate) -> OpCount:
        matrices = 2 if op.up is None else 3
        return _part(activation_bytes=matrices * self._register(self._rows[op.out], op.x.width))

    def _rotary(self, op: Rotary) -> OpCount:
        rows = self._rows[op.out]
        angles = WORD * op.x.width // op.heads * rows
        return _part(weight_bytes=angles, activation_bytes=2 * self._register(rows, op.x.width) + WORD * rows)

    def _attention(self, op: Attention) -> OpCount:
        layout = self._layout
        rows, heads = self._rows[op.out], op.heads
        pairs = layout.causal_pairs if op.causal else layout.all_pairs
        outputs = op.v.width // op.kv_heads * heads
        products = pairs * (op.q.width + outputs)
        passes = [
            self._quantised(rows, c.width, n) for c, n in ((op.q, heads), (op.k, op.kv_heads), (op.v, op.kv_heads))
        ]
        size = 1 if self._widths.quantised else self._widths.activation_bytes
        scales = WORD if self._widths.quantised else 0
        read = rows * (op.q.width * size + scales * heads)
        read += layout.keys * ((op.k.width + op.v.width) * size + 2 * scales * op.kv_heads)
        return _part(
            launches=1 + (len(passes) if self._widths.quantised else 0),
            activation_bytes=sum(passes) + read + self._register(rows, outputs),
            **self._macs(products),
        )

    def _pool(self, op: Pool) -> OpCount:
        read = self._layout.rows if op.how == "mean" else self._layout.sequences
        return _part(activation_bytes=self._register(read, op.x.width) + self._register(self._rows[op.out], op.x.width))

    def _score(self, op: Score) -> OpCount:
        rows = self._rows[op.out]
        weights = op.labels * (op.x.width * 2 + WORD * (2 if op.bias else 1))
        return _part(
            macs16=rows * op.labels * op.x.width,
            weight_bytes=weights,
            activation_bytes=self._register(rows, op.x.width) + WORD * rows * op.labels,
        )

    def _logprob(self, op: LogProb) -> OpCount:
        targets = self._layout.targets
        chunks = math.ceil(targets / logit_rows(op.vocabulary))
        product = self._product(op, targets, op.vocabulary)
        logits = self._register(targets, op.vocabulary)
        return dataclasses.replace(
            product,
            launches=chunks * (product.launches + 1),
            weight_bytes=chunks * product.weight_bytes,
            activation_bytes=product.activation_bytes + logits + 2 * WORD * targets,
        )

    def _product(self, op: Linear | LogProb, rows: int, outputs: int) -> OpCount:
        inner = op.x.width
        times = digits(op) if self._widths.quantised else 1
        passed = self._quantised(rows, inner, 1, times)
        read = rows * (times * inner + WORD) if self._widths.quantised else self._register(rows, inner)
        return _part(
            launches=2 if self._widths.quantised else 1,
            weight_bytes=self._widths.weights(outputs, inner) + (WORD * outputs if op.bias else 0),
            activation_bytes=passed + read + self._register(rows, outputs),
            **self._macs(times * rows * inner * outputs),
        )

    def _quantised(self, rows: int, width: int, groups: int, times: int = 1) -> int:
        """Bytes of reading a register, and writing it as 8-bit rows, ``times`` digits an element, and scales."""
        if not self._widths.quantised:
            return 0
        return self._register(rows, width) + rows * (times * width + WORD * groups)

    def _register(self, rows: int, width: int) -> int:
        return rows * width * self._widths.activation_bytes

    def _macs(self, products: int) -> dict[str, int]:
        return {"macs8" if self._widths.product_bits == 8 else "macs16": products}


def logit_rows(vocabulary: int) -> int:
    """Return how many rows of logits are held at a time; the vocabulary's weights are read again for the next."""
    return max(1, min(MOST_CHUNK, LOGITS_BYTES // (WORD * FLOATS * beats(vocabulary))))


def _part(
    *, launches: int = 1, macs8: int = 0, macs16: int = 0, weight_bytes: int = 0, activation_bytes: int = 0
) -> OpCount:
    return OpCount(
        place=-1,
        kind="",
        launches=launches,
        macs8=macs8,
        macs16=macs16,
        weight_bytes=weight_bytes,
        activation_bytes=activation_bytes,
    )


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


def footprint(program: Program, layout: BatchLayout) -> MemoryFootprint:
    """Return what a batch takes on a card. Tensors that several operators name are counted once.

    Raises:
        ArtifactError: The precision has no model of a card.
    """
    sizes = widths_of(program.precision)
    named = {getattr(op, "weight", None): op for op in program.ops}
    weights = sum(_stored(op, program, sizes) for op in named.values())
    return MemoryFootprint(weights_bytes=weights, activations_bytes=_peak(program, layout))


def _stored(op: Op, program: Program, sizes: NumberWidths) -> int:
    match op:
        case Embed():
            entries = {"token": program.vocabulary, "type": program.types}.get(op.index, program.max_tokens + op.offset)
            return entries * (op.width * sizes.embedding_bytes + (WORD if sizes.quantised else 0))
        case Linear() | LogProb():
            outputs = op.outputs if isinstance(op, Linear) else op.vocabulary
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
