"""A program as launches of kernels. Buffers are named, and counts that depend on the batch are left open.

======================= ===========================================================================================
``register:n``          a register; registers that are not alive at the same time share a buffer (``layout.py``)
``q:i``, ``s:i``        8-bit rows on their way from quantise to gemm or attention, and their scales; two digits of a
                        row lie one behind the other
``logits``              a chunk of rows of the log-probability head
``logprobs``            its results
``weights:name``        a tensor of the artifact; a product's as ``name0`` to ``name3`` (``layout.tiled``)
``table:name``          exp2, ln, or an activation's table
``index:name``          of the batch: ids, positions, types, segments, sequences, target_rows, target_ids
======================= ===========================================================================================

Whether a program and its tensors fit the kernels is checked once, by :func:`fit`, so that no kernel is led outside its
buffers.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from greentrain.fpga_backend import contract
from greentrain.fpga_backend import program as ir
from greentrain.fpga_backend.csim.kernels import STREAMS
from greentrain.fpga_backend.errors import ArtifactError
from greentrain.fpga_backend.program import digits, read_by, widths

MAX_ROW = 16384
"""Columns of a row that rotary, pooling and attention hold on the chip: ``MAX_ROW`` of ``hls/numbers.h``."""
MAX_HEAD = 512
"""Width of an attention head: ``MAX_HEAD`` of ``hls/attention.cpp``."""

Tensors = Mapping[str, npt.NDArray[Any]]


class FittedModel(Protocol):
    """What a schedule needs of an artifact."""

    @property
    def program(self) -> ir.Program:
        """The operators."""

    @property
    def tensors(self) -> Mapping[str, Any]:
        """CPU tensors or arrays by name."""


def by_sequence(program: ir.Program) -> frozenset[int]:
    """Return the registers that have a row a sequence instead of a row a token: those behind pooling."""
    found: set[int] = set()
    for op in program.ops:
        if isinstance(op, ir.Pool) or (
            not isinstance(op, ir.LogProb) and any(c.register in found for c in read_by(op))
        ):
            found.add(op.out)
    return frozenset(found)


def fit(program: ir.Program, tensors: Tensors) -> None:
    """Raise if the kernels cannot run a program.

    Args:
        program: The operators.
        tensors: Arrays by name.

    Raises:
        ArtifactError: Names the operator, what is wrong with it and the bound.
    """
    if program.precision != "w8a8" or program.activations != "token":
        raise ArtifactError(
            f"precision {program.precision!r} with one scale a {program.activations}: the kernels run 'w8a8' with one "
            "a token; use the torch device or the emulator"
        )
    if program.max_tokens > contract.MAX_WIDTH:
        raise ArtifactError(
            f"max_tokens={program.max_tokens}: the integer contract allows {contract.MAX_WIDTH} tokens a sequence"
        )
    if not isinstance(program.ops[-1], ir.Score | ir.LogProb):
        raise ArtifactError("the program ends in neither a score nor a log-probability head: compile it with one")
    _FitCheck(program, tensors).all()


class _FitCheck:
    def __init__(self, program: ir.Program, tensors: Tensors) -> None:
        self.program = program
        self.tensors = tensors
        self.widths: dict[int, int] = {}
        self.pooled = by_sequence(program)
        self.place = ""

    def all(self) -> None:
        for i, op in enumerate(self.program.ops):
            self.place = f"operator {i} ({type(op).__name__.lower()})"
            if isinstance(op, ir.Attention):  # the widths below are divided by them
                self._true(op.kv_heads > 0 and op.heads > 0, f"has {op.heads} query heads, {op.kv_heads} key heads")
        made = widths(self.program)
        for i, op in enumerate(self.program.ops):
            self.place = f"operator {i} ({type(op).__name__.lower()})"
            for columns in read_by(op):
                self._columns(columns)
            self._op(op)
            if not isinstance(op, ir.LogProb):
                self._true(op.out not in self.widths, f"writes register {op.out} a second time")
                self._true(made[op.out] > 0, "has no columns")
                self.widths[op.out] = made[op.out]
            elif i + 1 < len(self.program.ops):
                self._true(False, "is not the last one")

    def _op(self, op: ir.Op) -> None:
        by_row = all(columns.register not in self.pooled for columns in read_by(op))
        if isinstance(op, ir.Rotary | ir.Attention | ir.Pool | ir.LogProb):
            self._true(by_row, "reads a register behind pooling")
        match op:
            case ir.Embed():
                self._embed(op)
            case ir.Add():
                self._pair(op.x, op.y)
            case ir.Norm():
                self._most(op.x.width, contract.MAX_WIDTH, "columns")
                self._true(op.groups > 0 and op.x.width % op.groups == 0, f"cannot cut {op.x.width} columns")
                for part in ("g", "b") if op.bias else ("g",):
                    self._vector(f"{op.weight}.{part}", op.x.width // op.groups)
            case ir.Linear():
                self._product(op, np.int8)
            case ir.Gate():
                self._true(op.table in ("gelu", "gelu_tanh", "silu", "tanh", "relu"), f"has no table {op.table}")
                if op.up is not None:
                    self._pair(op.x, op.up)
            case ir.Rotary():
                self._most(op.x.width, MAX_ROW, "columns")
                self._true(op.heads > 0 and op.x.width % (2 * op.heads) == 0, f"cannot cut {op.x.width} columns")
                for part in ("cos", "sin"):
                    self._tensor(
                        f"{op.weight}.{part}", np.float32, (self.program.max_tokens, op.x.width // op.heads // 2)
                    )
            case ir.Attention():
                self._attention(op)
            case ir.Pool():
                self._true(op.how in ("first", "last", "mean"), f"has no {op.how!r}")
                self._most(op.x.width, MAX_ROW, "columns")
            case ir.Score():
                self._true(not by_row, "reads rows of tokens: pool them first")
                self._product(op, np.int16)
            case ir.LogProb():
                self._most(op.vocabulary, contract.MAX_VOCABULARY, "tokens")
                self._true(op.vocabulary >= self.program.vocabulary, "has fewer outputs than there are token ids")
                self._product(op, np.int8)

    def _embed(self, op: ir.Embed) -> None:
        program = self.program
        self._true(op.index in ("token", "position", "type"), f"has no index {op.index!r}")
        last = {"token": program.vocabulary, "position": program.max_tokens, "type": max(program.types, 1)}[op.index]
        table = self.tensors.get(f"{op.weight}.q")
        entries = 0 if table is None or table.ndim != 2 else table.shape[0]
        self._true(
            op.offset >= 0 and last + op.offset <= entries,
            f"looks up entries {op.offset} to {last + op.offset - 1} of a table of {entries}",
        )
        self._tensor(f"{op.weight}.q", np.int16, (entries, op.width))
        self._vector(f"{op.weight}.s", entries)

    def _attention(self, op: ir.Attention) -> None:
        self._true(op.heads % op.kv_heads == 0, f"has {op.heads} query heads, {op.kv_heads} key heads")
        wide = op.q.width // op.heads
        self._true(op.q.width == wide * op.heads and op.k.width == wide * op.kv_heads, "has heads of unequal width")
        self._true(op.v.width % op.kv_heads == 0, f"cannot cut {op.v.width} columns into {op.kv_heads} heads")
        self._most(max(wide, op.v.width // op.kv_heads), MAX_HEAD, "columns a head")
        self._most(op.v.width // op.kv_heads * op.heads, MAX_ROW, "columns")

    def _product(self, op: ir.Linear | ir.Score | ir.LogProb, dtype: Any) -> None:
        if not isinstance(op, ir.Score):
            given = op.activation_bits
            self._true(given in (8, 16), f"has activations of {given} bits, the kernels 8 or 16")
        self._most(op.x.width, contract.MAX_INNER, "inputs")
        self._tensor(f"{op.weight}.q", dtype, (op.outputs, op.x.width))
        self._vector(f"{op.weight}.s", op.outputs)
        if op.bias:
            self._vector(f"{op.weight}.b", op.outputs)

    def _pair(self, x: ir.Columns, y: ir.Columns) -> None:
        self._true(x.width == y.width, f"pairs {x.width} columns with {y.width}")
        self._true(
            (x.register in self.pooled) == (y.register in self.pooled), "pairs rows of tokens with rows of sequences"
        )

    def _columns(self, columns: ir.Columns) -> None:
        width = self.widths.get(columns.register)
        self._true(width is not None, f"reads register {columns.register}, which nothing has written")
        self._true(
            columns.start >= 0 and columns.width > 0 and columns.start + columns.width <= (width or 0),
            f"reads columns {columns.start} to {columns.start + columns.width} of {width}",
        )

    def _vector(self, name: str, length: int) -> None:
        self._tensor(name, np.float32, (length,))

    def _tensor(self, name: str, dtype: Any, shape: tuple[int, ...]) -> None:
        found = self.tensors.get(name)
        self._true(found is not None, f"lacks tensor {name}")
        if found is not None:
            self._true(
                found.dtype == dtype and found.shape == shape,
                f"needs {name} as {np.dtype(dtype).name}{list(shape)}, it is {found.dtype}{list(found.shape)}",
            )

    def _most(self, value: int, bound: int, what: str) -> None:
        self._true(value <= bound, f"has {value} {what}, the kernels hold {bound}")

    def _true(self, holds: bool, problem: str) -> None:
        if not holds:
            raise ArtifactError(f"{self.place} {problem}: compile the model again, or use the torch device")


FLOATS = 16
"""binary32 numbers in a beat."""
BYTES = 64
_INDEX = {"token": "index:ids", "position": "index:positions", "type": "index:types"}
_POOLS = {"first": 0, "last": 1, "mean": 2}
_KINDS = {"tanh": 1, "relu": 2}
_SUM = 3


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


def launches(program: ir.Program) -> tuple[Launch, ...]:
    """Return the launches of a program, in order."""
    maker = _LaunchMaker(program)
    return tuple(launch for op in program.ops for launch in maker.of(op))


class _LaunchMaker:
    def __init__(self, program: ir.Program) -> None:
        self.widths = widths(program)
        self.pooled = by_sequence(program)

    def of(self, op: ir.Op) -> Iterator[Launch]:
        if isinstance(op, ir.LogProb):
            yield from self.logprob(op)
            return
        out = _register(op.out)
        match op:
            case ir.Embed():
                weights = (f"weights:{op.weight}.q", f"weights:{op.weight}.s")
                yield Launch("gt_embed", (*weights, _INDEX[op.index], out, Count.ROWS, op.width, op.offset))
            case ir.Add():
                x, z = self.where(op.x), self.where(op.y)
                summed = (*x[1:], *z[1:], op.x.width, _SUM, 0)
                yield Launch("gt_gate", (x[0], z[0], "table:exp2", out, self.rows(op.x), *summed))
            case ir.Norm():
                x, gain = self.where(op.x), f"weights:{op.weight}.g"
                bias = f"weights:{op.weight}.b" if op.bias else gain
                how = (int(op.kind == "layer"), int(op.bias), bits(op.eps), op.groups)
                width = op.x.width // op.groups
                yield Launch("gt_norm", (x[0], gain, bias, out, self.rows(op.x), *x[1:], width, *how))
            case ir.Linear():
                yield self.quantise(op.x, digits=digits(op))
                yield self.gemm(op, out, self.rows(op.x))
            case ir.Gate():
                x = self.where(op.x)
                up = self.where(op.up) if op.up is not None else x
                table = "table:exp2" if op.table == "relu" else f"table:{op.table}"
                flags = (_KINDS.get(op.table, 0), int(op.up is not None))
                slices = (*x[1:], *up[1:], op.x.width)
                yield Launch("gt_gate", (x[0], up[0], table, out, self.rows(op.x), *slices, *flags))
            case ir.Rotary():
                x, half = self.where(op.x), op.x.width // op.heads // 2
                angles = (f"weights:{op.weight}.cos", f"weights:{op.weight}.sin", "index:positions")
                yield Launch("gt_rotary", (x[0], *angles, out, Count.ROWS, *x[1:], op.heads, half))
            case ir.Attention():
                yield from self.attention(op, out)
            case ir.Pool():
                x, row = self.where(op.x), _POOLS[op.how]
                yield Launch("gt_pool", (x[0], "index:sequences", out, Count.SEQUENCES, *x[1:], op.x.width, row))
            case ir.Score():
                x, scales = self.where(op.x), _scales(op.weight, op.bias)
                sizes = (op.x.width, op.labels, int(op.bias))
                yield Launch(
                    "gt_score", (x[0], f"weights:{op.weight}.q", *scales, out, Count.SEQUENCES, *x[1:], *sizes)
                )

    def attention(self, op: ir.Attention, out: str) -> Iterator[Launch]:
        for i, (columns, heads) in enumerate(((op.q, op.heads), (op.k, op.kv_heads), (op.v, op.kv_heads))):
            yield self.quantise(columns, i, heads)
        rows = ("q:0", "s:0", "q:1", "s:1", "q:2", "s:2")
        width, value_width = op.q.width // op.heads, op.v.width // op.kv_heads
        sizes = (op.heads, op.kv_heads, beats(width, BYTES), beats(value_width, BYTES), value_width)
        scale = bits((op.scale * contract.LOG2E) * contract.ATTENTION_STEP)
        tables = ("table:exp2", "index:segments")
        seen = (int(op.causal), op.window, bits((op.softcap * contract.LOG2E) * contract.ATTENTION_STEP))
        yield Launch("gt_attention", (*rows, *tables, out, Count.SEGMENTS, *sizes, scale, *seen))

    def logprob(self, op: ir.LogProb) -> Iterator[Launch]:
        yield self.quantise(op.x, digits=digits(op), targets=True)
        yield self.gemm(op, "logits", Count.CHUNK)
        buffers = ("logits", "index:target_ids", "table:exp2", "table:ln", "logprobs")
        yield Launch("gt_logprob", (*buffers, Count.CHUNK, op.vocabulary, Count.FIRST), by_chunk=True)

    def gemm(self, op: ir.Linear | ir.LogProb, out: str, rows: Count) -> Launch:
        weights = (*(f"weights:{op.weight}.q{i}" for i in range(len(STREAMS))), *_scales(op.weight, op.bias))
        sizes = (beats(op.x.width, BYTES), op.outputs, int(op.bias), digits(op))
        return Launch("gt_gemm", ("q:0", "s:0", *weights, out, rows, *sizes), by_chunk=isinstance(op, ir.LogProb))

    def quantise(
        self, columns: ir.Columns, place: int = 0, groups: int = 1, digits: int = 1, *, targets: bool = False
    ) -> Launch:
        """Return the launch that quantises all rows, or a chunk of those that targets name."""
        x = self.where(columns)
        index, rows = ("index:target_rows", Count.CHUNK) if targets else ("index:ids", self.rows(columns))
        chosen = (1, Count.FIRST) if targets else (0, 0)
        sizes = (*x[1:], columns.width, groups, *chosen, digits)
        return Launch("gt_quantise", (x[0], index, f"q:{place}", f"s:{place}", rows, *sizes), by_chunk=targets)

    def where(self, columns: ir.Columns) -> tuple[str, int, int]:
        """Return a slice's buffer, the beats of a row, and its first column."""
        return _register(columns.register), beats(self.widths[columns.register]), columns.start

    def rows(self, columns: ir.Columns) -> Count:
        return Count.SEQUENCES if columns.register in self.pooled else Count.ROWS


def _register(number: int) -> str:
    return f"register:{number}"


def _scales(stem: str, bias: bool) -> tuple[str, str]:
    scale = f"weights:{stem}.s"
    return scale, f"weights:{stem}.b" if bias else scale
