"""A compiled model: a straight line of operators over packed rows.

A batch's tokens lie one below the other, without padding, as rows of a matrix. Every operator reads columns of earlier
registers and writes a register of its own; a register is a matrix of binary32 [rows, width]. What each operator
computes, bit for bit, is said in ``CONTRACT.md``; here is what it is made of.

Tensors are named; an operator's ``weight`` is the stem of several, by precision ``w8a8``:

======== =====================================================================================================
linear   ``stem.q`` int8 [n, k], ``stem.s`` f32 [n], optional ``stem.b`` f32 [n]
embed    ``stem.q`` int16 [entries, width], ``stem.s`` f32 [entries]
norm     ``stem.g`` f32 [width / groups], optional ``stem.b`` f32 [width / groups]
rotary   ``stem.cos``, ``stem.sin`` f32 [max_tokens, head width / 2]
score    ``stem.q`` int16 [labels, width], ``stem.s`` f32 [labels], optional ``stem.b`` f32 [labels]
logprob  as linear, with n the size of the vocabulary
======== =====================================================================================================

Precisions that no exact device runs (fp32, bf16, fp16, w8a16, w4a16) store ``stem.w`` f32 (already rounded) instead of
``stem.q`` and ``stem.s``.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from greentrain.fpga_backend.errors import ArtifactError

Precision = Literal["w8a8", "fp32", "bf16", "fp16", "w8a16", "w4a16"]
Activations = Literal["token", "tensor"]
ActivationBits = Literal[8, 16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Columns of a register."""

    register: int
    start: int
    width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Embed:
    """Rows of one table: of the token, its position, or its type (segment A or B)."""

    out: int
    weight: str
    index: Literal["token", "position", "type"]
    width: int
    offset: int = 0
    """Added to the index, as by tables whose first positions are reserved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Add:
    """Sum of two: x + y."""

    out: int
    x: Columns
    y: Columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """Layer norm (mean taken off) or RMS norm."""

    out: int
    x: Columns
    weight: str
    kind: Literal["layer", "rms"]
    eps: float
    bias: bool
    groups: int = 1
    """Heads side by side that are normalised each by itself, with one gain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """Quantised rows times quantised weights, scaled, plus a bias. Layers reading the same rows are fused into one."""

    out: int
    x: Columns
    weight: str
    outputs: int
    bias: bool
    activation_bits: ActivationBits = 8
    """16: rows are quantised to two digits of 8 bits, and multiplied twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """An activation by table: x times its gate, times ``up`` where that is given; for ``tanh``, ``relu`` the value."""

    out: int
    x: Columns
    table: Literal["gelu", "gelu_tanh", "silu", "tanh", "relu"]
    up: Columns | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotary:
    """Rotation of ``heads`` heads by the position's angle; elements j and j + half a head pair up (Llama's layout)."""

    out: int
    x: Columns
    weight: str
    heads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Scaled dot-product attention within a sequence. Query head i reads key head i // (heads / kv_heads)."""

    out: int
    q: Columns
    k: Columns
    v: Columns
    heads: int
    kv_heads: int
    scale: float
    causal: bool
    window: int = 0
    """A query sees keys that are less than so many tokens away; 0: all."""
    softcap: float = 0.0
    """Scores x become softcap * tanh(x / softcap); 0: they stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """One row a sequence: its first, its last, or the mean of all. The register has a row a sequence of the batch."""

    out: int
    x: Columns
    how: Literal["first", "last", "mean"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The score head, in 16 bits: small, and where rounding would flip ranks."""

    out: int
    x: Columns
    weight: str
    labels: int
    bias: bool

    @property
    def outputs(self) -> int:
        """As in :class:`Linear`."""
        return self.labels


@dataclass(frozen=True, slots=True, kw_only=True)
class LogProb:
    """Log-probability of each wanted next token under a vocabulary head. The last operator; it writes no register."""

    x: Columns
    weight: str
    vocabulary: int
    bias: bool
    activation_bits: ActivationBits = 8
    """As in :class:`Linear`."""

    @property
    def outputs(self) -> int:
        """As in :class:`Linear`."""
        return self.vocabulary


RegisterOp = Embed | Add | Norm | Linear | Gate | Rotary | Attention | Pool | Score
Op = RegisterOp | LogProb
_KINDS: Mapping[str, type[Any]] = {
    kind.__name__.lower(): kind for kind in (Embed, Add, Norm, Linear, Gate, Rotary, Attention, Pool, Score, LogProb)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A model as operators, and what a batch must keep to."""

    ops: tuple[Op, ...]
    vocabulary: int
    """Token ids lie below this."""
    types: int
    """Token types lie below this; 0: the model takes none."""
    max_tokens: int
    """Longest sequence."""
    hidden: int
    layers: int
    causal: bool
    """True if a token sees only earlier ones: then a shared prompt is computed once."""
    precision: Precision = "w8a8"
    activations: Activations = "token"
    """``tensor`` is the published rule, one scale a batch: a score then depends on the others. Emulator only."""

    @property
    def labels(self) -> int:
        """Scores a sequence, 0 where the program ends in log-probabilities."""
        last = self.ops[-1]
        return last.labels if isinstance(last, Score) else 0

    def to_json(self) -> str:
        """Return the program as JSON, keys in a fixed order."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "ops"}
        ops = [{"op": type(op).__name__.lower(), **_fields(op)} for op in self.ops]
        return json.dumps({**fields, "ops": ops}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> "Program":
        """Read what :meth:`to_json` wrote.

        Raises:
            ArtifactError: It is no program, or one of another version.
        """
        try:
            fields = json.loads(text)
            ops = tuple(_op(item) for item in fields.pop("ops"))
            program = cls(ops=ops, **fields)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ArtifactError(f"the program cannot be read: {error!r}") from error
        if not ops:
            raise ArtifactError("the program has no operators")
        return program


def read_by(op: Op) -> Iterator[Columns]:
    """Yield what an operator reads."""
    for field in dataclasses.fields(op):
        value = getattr(op, field.name)
        if isinstance(value, Columns):
            yield value


def widths(program: Program) -> dict[int, int]:
    """Return the width of every register."""
    return {op.out: width_of(op) for op in program.ops if not isinstance(op, LogProb)}


def digits(op: Linear | LogProb) -> int:
    """Return the 8-bit digits of an activation: the products with each weight.

    Raises:
        ArtifactError: The operator has neither 8 nor 16 bits.
    """
    if op.activation_bits not in get_args(ActivationBits):
        raise ArtifactError(
            f"{op.weight or type(op).__name__} has activations of {op.activation_bits} bits: the integer contract has "
            "8 and 16; compile the model again"
        )
    return op.activation_bits // 8


GROUP = 128
"""Inputs of one scale of 4-bit weights, the usual group (GPTQ, AWQ: arxiv.org/abs/2210.17323, 2306.00978)."""
SMALL_GROUP = 32
"""The group of layers with fewer inputs than SMALL_WIDTH, or not a multiple of GROUP."""
SMALL_WIDTH = 1024


def group_of(inputs: int) -> int:
    """Return how many inputs of a layer share a scale of 4-bit weights."""
    return GROUP if inputs >= SMALL_WIDTH and inputs % GROUP == 0 else SMALL_GROUP


def with_activation_bits(program: Program, bits: ActivationBits) -> Program:
    """Return a program whose linear layers and vocabulary head quantise rows to so many bits."""
    ops = (replace(op, activation_bits=bits) if isinstance(op, Linear | LogProb) else op for op in program.ops)
    return replace(program, ops=tuple(ops))


def _fields(op: Op) -> dict[str, Any]:
    """Return an operator's fields; what came later goes without saying, so older programs keep their digest."""
    return {name: value for name, value in dataclasses.asdict(op).items() if _LATER.get(name) != value}


_LATER = {"activation_bits": 8, "groups": 1, "window": 0, "softcap": 0.0}
"""Fields that version 1 did not begin with, and what they are where nothing is said."""


def width_of(op: RegisterOp) -> int:
    """Return the width of the register that an operator writes."""
    match op:
        case Embed():
            return op.width
        case Linear() | Score():
            return op.outputs
        case Attention():
            return op.v.width // op.kv_heads * op.heads
        case Add() | Norm() | Gate() | Rotary() | Pool():
            return op.x.width


def _op(item: dict[str, Any]) -> Op:
    kind = _KINDS[item.pop("op")]
    made: Op = kind(**{name: Columns(**value) if isinstance(value, dict) else value for name, value in item.items()})
    return made
