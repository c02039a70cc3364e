"""A program as launches of kernels. Buffers are named, and counts that depend on the batch are left open.

======================= ===========================================================================================
``register:n``          a register; registers that are not alive at the same time share a buffer (``layout.py``)
``q:i``, ``s:i``        8-bit rows on their way from quantise to gemm or attention, and their scales; two digits of a
                        row lie one behind the other
``logits``              a chunk of rows of the log-probability head
``logprobs``            its results
``weights:name``        a tensor of the artifact
``table:name``          exp2, ln, or an activation's table
``index:name``          of the batch: ids, positions, types, segments, sequences, target_rows, target_ids
======================= ===========================================================================================
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import numpy as np

from greentrain.fpga_backend import contract
from greentrain.fpga_backend.csim.fitting import by_sequence
from greentrain.fpga_backend.program import (
    Add,
    Attention,
    Columns,
    Embed,
    Gate,
    Linear,
    LogProb,
    Norm,
    Op,
    Pool,
    Program,
    Rotary,
    Score,
    digits,
    widths,
)

FLOATS = 16
"""binary32 numbers in a beat."""
BYTES = 64
_INDEX = {"token": "index:ids", "position": "index:positions", "type": "index:types"}
_POOLS = {"first": 0, "last": 1, "mean": 2}
_KINDS = {"tanh": 1, "relu": 2}


class Count(Enum):
    """A number that the batch decides."""

    ROWS = "rows"
    SEQUENCES = "sequences"
    SEGMENTS = "segments"
    FIRST = "first target of a chunk"
    CHUNK = "targets in a chunk"


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel and its arguments: names of buffers, numbers, and counts."""

    kernel: str
    arguments: tuple[str | int | Count, ...]
    by_chunk: bool = False
    """True for launches that are repeated, together, for each chunk of targets."""


def beats(elements: int, lanes: int = FLOATS) -> int:
    """Return the beats that hold so many elements."""
    return -(-elements // lanes)


def bits(value: float) -> int:
    """Return the nearest binary32's bits as a signed integer."""
    return int(np.float32(value).view(np.int32))


def launches(program: Program) -> tuple[Launch, ...]:
    """Return the launches of a program, in order."""
    return tuple(launch for made in by_operator(program) for launch in made)


def by_operator(program: Program) -> tuple[tuple[Launch, ...], ...]:
    """Return the launches of each operator."""
    made = _Maker(program)
    return tuple(tuple(made.of(op)) for op in program.ops)


class _Maker:
    def __init__(self, program: Program) -> None:
        self.widths = widths(program)
        self.pooled = by_sequence(program)

    def of(self, op: Op) -> Iterator[Launch]:
        match op:
            case Embed():
                weights = (f"weights:{op.weight}.q", f"weights:{op.weight}.s")
                yield Launch(
                    "gt_embed", (*weights, _INDEX[op.index], _register(op.out), Count.ROWS, op.width, op.offset)
                )
            case Add():
                x, z = self.where(op.x), self.where(op.y)
                yield Launch("gt_add", (x[0], z[0], _register(op.out), self.rows(op.x), *x[1:], *z[1:], op.x.width))
            case Norm():
                yield self.norm(op)
            case Linear():
                yield from self.linear(op)
            case Gate():
                yield self.gate(op)
            case Rotary():
                yield self.rotary(op)
            case Attention():
                yield from self.attention(op)
            case Pool():
                x = self.where(op.x)
                how = _POOLS[op.how]
                yield Launch(
                    "gt_pool",
                    (x[0], "index:sequences", _register(op.out), Count.SEQUENCES, *x[1:], op.x.width, how),
                )
            case Score():
                yield self.score(op)
            case LogProb():
                yield from self.logprob(op)

    def norm(self, op: Norm) -> Launch:
        x = self.where(op.x)
        gain = f"weights:{op.weight}.g"
        bias = f"weights:{op.weight}.b" if op.bias else gain
        flags = (int(op.kind == "layer"), int(op.bias), bits(op.eps))
        return Launch("gt_norm", (x[0], gain, bias, _register(op.out), self.rows(op.x), *x[1:], op.x.width, *flags))

    def linear(self, op: Linear) -> Iterator[Launch]:
        yield self.quantise(op.x, 0, 1, digits(op))
        yield Launch(
            "gt_gemm",
            (
                *("q:0", "s:0"),
                *_product(op.weight, op.bias),
                _register(op.out),
                self.rows(op.x),
                beats(op.x.width, BYTES),
                op.outputs,
                int(op.bias),
                digits(op),
            ),
        )

    def gate(self, op: Gate) -> Launch:
        x = self.where(op.x)
        up = self.where(op.up) if op.up is not None else x
        table = "table:exp2" if op.table == "relu" else f"table:{op.table}"
        flags = (_KINDS.get(op.table, 0), int(op.up is not None))
        return Launch(
            "gt_gate",
            (x[0], up[0], table, _register(op.out), self.rows(op.x), *x[1:], *up[1:], op.x.width, *flags),
        )

    def rotary(self, op: Rotary) -> Launch:
        x = self.where(op.x)
        angles = (f"weights:{op.weight}.cos", f"weights:{op.weight}.sin", "index:positions")
        half = op.x.width // op.heads // 2
        return Launch("gt_rotary", (x[0], *angles, _register(op.out), Count.ROWS, *x[1:], op.heads, half))

    def attention(self, op: Attention) -> Iterator[Launch]:
        for i, (columns, heads) in enumerate(((op.q, op.heads), (op.k, op.kv_heads), (op.v, op.kv_heads))):
            yield self.quantise(columns, i, heads)
        value_width = op.v.width // op.kv_heads
        scale = (op.scale * contract.LOG2E) * contract.ATTENTION_STEP
        yield Launch(
            "gt_attention",
            (
                *("q:0", "s:0", "q:1", "s:1", "q:2", "s:2", "table:exp2", "index:segments"),
                _register(op.out),
                Count.SEGMENTS,
                op.heads,
                op.kv_heads,
                beats(op.q.width // op.heads, BYTES),
                beats(value_width, BYTES),
                value_width,
                bits(scale),
                int(op.causal),
            ),
        )

    def score(self, op: Score) -> Launch:
        x = self.where(op.x)
        return Launch(
            "gt_score",
            (
                x[0],
                *_product(op.weight, op.bias),
                _register(op.out),
                Count.SEQUENCES,
                *x[1:],
                op.x.width,
                op.labels,
                int(op.bias),
            ),
        )

    def logprob(self, op: LogProb) -> Iterator[Launch]:
        x = self.where(op.x)
        yield Launch(
            "gt_quantise",
            (
                *(x[0], "index:target_rows", "q:0", "s:0"),
                Count.CHUNK,
                *x[1:],
                op.x.width,
                *(1, 1, Count.FIRST),
                digits(op),
            ),
            by_chunk=True,
        )
        yield Launch(
            "gt_gemm",
            (
                *("q:0", "s:0"),
                *_product(op.weight, op.bias),
                "logits",
                Count.CHUNK,
                beats(op.x.width, BYTES),
                op.vocabulary,
                int(op.bias),
                digits(op),
            ),
            by_chunk=True,
        )
        yield Launch(
            "gt_logprob",
            (
                *("logits", "index:target_ids", "table:exp2", "table:ln", "logprobs"),
                Count.CHUNK,
                op.vocabulary,
                Count.FIRST,
            ),
            by_chunk=True,
        )

    def quantise(self, columns: Columns, place: int, groups: int, digits: int = 1) -> Launch:
        x = self.where(columns)
        return Launch(
            "gt_quantise",
            (
                x[0],
                "index:ids",
                f"q:{place}",
                f"s:{place}",
                self.rows(columns),
                *x[1:],
                columns.width,
                groups,
                0,
                0,
                digits,
            ),
        )

    def where(self, columns: Columns) -> tuple[str, int, int]:
        """Return a slice's buffer, the beats of a row, and its first column."""
        return _register(columns.register), beats(self.widths[columns.register]), columns.start

    def rows(self, columns: Columns) -> Count:
        return Count.SEQUENCES if columns.register in self.pooled else Count.ROWS


def _register(number: int) -> str:
    return f"register:{number}"


def _product(stem: str, bias: bool) -> tuple[str, str, str]:
    scale = f"weights:{stem}.s"
    return f"weights:{stem}.q", scale, f"weights:{stem}.b" if bias else scale
