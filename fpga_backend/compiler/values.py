"""What a value of a traced graph stands for while the graph is walked.

Tensors that do not depend on tokens or parameters are computed as they come and stay plain tensors.

Where in a model something is that cannot be compiled.

What an attention mask lets a token see.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import torch
from torch.fx import Node

from greentrain.fpga_backend.compiler.recipe import ParameterSource
from greentrain.fpga_backend.errors import UnsupportedModelError
from greentrain.fpga_backend.program import Columns

_LACKING = (
    (r"Router|Expert|Moe|topk", "a choice of experts by token (mixtures of experts)"),
    (r"conv", "a convolution over neighbouring tokens"),
    (r"cumsum|Mamba|Rwkv|scan", "a recurrence over the tokens"),
    (r"softmax.* \w*Gat", "scores mixed by a gate (compile gate and scores each as a model, docs/fpga.md)"),
    (r"cat.* \w*Attention", "rotary positions of a part of a head"),
    (r"(bmm|einsum|add|index|gather).* \w*Attention", "a term of positions in the scores (ALiBi, T5, DeBERTa)"),
    (r"mul.* \w*ForCausalLM", "a factor behind an activation of the logits (their soft cap)"),
)
"""By ATen operator and class of the module, what models have that fail there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphNode:
    """A node of a traced graph, in words."""

    path: str
    """Dotted path of the innermost module, "" for the model itself."""
    module: str
    """Its class."""
    op: str
    """ATen operator, as ``aten.topk.default``."""

    @classmethod
    def of(cls, node: Node) -> "GraphNode":
        """Return the place of a node."""
        stack: dict[str, Any] = node.meta.get("nn_module_stack") or {}
        path, kind = list(stack.values())[-1] if stack else ("", "")
        name = kind if isinstance(kind, str) else getattr(kind, "__name__", str(kind))
        return cls(path=path.removeprefix("L['self']."), module=name.rpartition(".")[2], op=str(node.target))

    def refuse(self, why: str) -> NoReturn:
        """Raise UnsupportedModelError that names the place.

        Raises:
            UnsupportedModelError: Always.
        """
        where = f"{self.path} ({self.module})" if self.path else self.module or "the model"
        raise UnsupportedModelError(f"{where}: {self.op}: {why}")

    def lacks(self, why: str) -> NoReturn:
        """Raise as :meth:`refuse` does, and say what would have to be added.

        Raises:
            UnsupportedModelError: Always.
        """
        what = next((what for words, what in _LACKING if re.search(words, f"{self.op} {self.module}")), "this operator")
        self.refuse(f"{why}. To be added: {what}, to program.py, CONTRACT.md, the emulator and hls")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowsValue:
    """A view of a register.

    Args:
        register: Number of the register.
        view: A tensor without storage whose shape, strides and offset are those of the view, the register being
            [tokens, width] in row-major order. Torch itself thus keeps the books of every reshape and transposition.
        tokens: Rows of the register: 1 where a sequence has one.
        width: Columns of the register.
    """

    register: int
    view: torch.Tensor
    tokens: int
    width: int

    @classmethod
    def of(cls, register: int, tokens: int, width: int) -> "RowsValue":
        """Return a whole register, as [1, tokens, width], or [1, width] with one row a sequence."""
        base = torch.empty(tokens, width, device="meta")
        return cls(register=register, view=base[None] if tokens > 1 else base, tokens=tokens, width=width)

    def seen_as(self, view: torch.Tensor) -> "RowsValue":
        """Return another view of the same register."""
        return RowsValue(register=self.register, view=view, tokens=self.tokens, width=self.width)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the view."""
        return tuple(self.view.shape)

    def same(self, other: object) -> bool:
        """Return True for the same view of the same register."""
        return isinstance(other, RowsValue) and self._key() == other._key()

    def _key(self) -> tuple[Any, ...]:
        return self.register, self.shape, self.view.stride(), self.view.storage_offset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """A view read as columns of a register: of all its rows, or of one of each sequence."""

    columns: Columns
    row: Literal["all", "first", "last"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadsView:
    """A view read as heads: [..., heads, ..., head width], tokens anywhere before the last."""

    columns: Columns
    heads: int
    axis: int
    """Dimension of the heads, -1 for a single one that has none."""
    token_axis: int


def matrix(rows: RowsValue) -> Matrix | None:
    """Read a view as [tokens, columns], dimensions of size 1 left aside; None where it is something else."""
    dims = _dims(rows)
    features = list(dims)
    row: Literal["all", "first", "last"] = "all"
    at, start = divmod(int(rows.view.storage_offset()), rows.width)
    if rows.tokens > 1:
        if dims and dims[0][1:] == (rows.tokens, rows.width):
            features, row = dims[1:], "all"
            if at:
                return None
        elif at in (0, rows.tokens - 1):
            row = "last" if at else "first"
        else:
            return None
    expected = 1
    for _, size, stride in reversed(features):
        if stride != expected:
            return None
        expected *= size
    if start + expected > rows.width:
        return None
    return Matrix(columns=Columns(register=rows.register, start=start, width=expected), row=row)


def heads(rows: RowsValue) -> HeadsView | None:
    """Read a view as heads of width d, all tokens; None where it is something else."""
    width = rows.shape[-1] if rows.shape else 0
    tokens: list[tuple[int, int, int]] = []
    others: list[tuple[int, int, int]] = []
    for dim in _dims(rows):
        axis, size, stride = dim
        if axis == len(rows.shape) - 1 and stride == 1:
            continue
        (tokens if (size, stride) == (rows.tokens, rows.width) and not tokens else others).append(dim)
    start = int(rows.view.storage_offset())
    if len(tokens) != 1 or len(others) > 1 or start >= rows.width:
        return None
    if others and others[0][2] != width:
        return None
    axis, count = (others[0][0], others[0][1]) if others else (-1, 1)
    columns = Columns(register=rows.register, start=start, width=count * width)
    return HeadsView(columns=columns, heads=count, axis=axis, token_axis=tokens[0][0])


def _dims(rows: RowsValue) -> list[tuple[int, int, int]]:
    """Return (axis, size, stride) of the dimensions that are more than 1 long."""
    shape, strides = rows.shape, rows.view.stride()
    return [(i, n, s) for i, (n, s) in enumerate(zip(shape, strides, strict=True)) if n > 1]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Repeated:
    """Key or value heads, each of which several query heads read: heads ``rows``, every one ``times`` times in turn."""

    rows: RowsValue
    times: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Weight:
    """Something of a parameter alone."""

    source: ParameterSource
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ids:
    """The token ids, or the token types, in any shape that has one of each token in order."""

    kind: Literal["token", "type"]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Term:
    """Arithmetic that is no operator of a program yet: part of one, perhaps."""

    op: str
    args: tuple[Any, ...]
    shape: tuple[int, ...]
    place: GraphNode


def scalar(value: Any) -> float | None:
    """Return a number, or a tensor of equal numbers, as a float."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    if (
        isinstance(value, torch.Tensor)
        and value.numel()
        and not value.is_complex()
        and bool((value == value.flatten()[0]).all())
    ):
        return float(value.flatten()[0])
    return None


def shape_of(value: Any) -> tuple[int, ...]:
    """Return a value's shape, () for a number."""
    return tuple(getattr(value, "shape", ()))


def is_symbolic(value: Any) -> bool:
    """Return True for what depends on tokens or parameters, or holds such a thing."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return any(is_symbolic(item) for item in value)
    return isinstance(value, RowsValue | Repeated | Weight | Ids | Term)


_FORBIDDEN = -1e4
"""An added number at or below this forbids: the weight e^-10000 is 0 in any precision; models write -1e4 to -inf."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What an attention mask lets a query see, or what is wrong with it."""

    causal: bool = False
    window: int = 0
    """Keys less than so many tokens away; 0: all."""
    wrong: str = ""


def describe(mask: torch.Tensor, tokens: int) -> Seen:
    """Say whether a mask is causal, and whether it has a window.

    Args:
        mask: [..., tokens, tokens] or what broadcasts to it; of bool (True: may see) or of numbers that are added.
        tokens: Length of the sequence, without padding.

    """
    square = mask.expand(*mask.shape[:-2], tokens, tokens).reshape(-1, tokens, tokens)
    if len(square) > 1 and not bool((square == square[:1]).all()):
        return Seen(wrong="differs from head to head (ALiBi?)")
    seen = square[0]
    if seen.dtype != torch.bool:
        forbidden = seen <= _FORBIDDEN
        if not bool((forbidden | (seen == 0)).all()):
            return Seen(wrong="adds numbers to the scores (ALiBi, or a bias by position)")
        seen = ~forbidden
    place = torch.arange(tokens, dtype=torch.int16)
    away = place[:, None] - place
    causal = not bool((seen & (away < 0)).any())
    window = 1 + int(away.abs()[seen].amax()) if bool(seen.any()) else tokens
    wrong = seen != ((away.abs() < window) & (away >= (0 if causal else -tokens)))
    if not bool(wrong.any()):
        return Seen(causal=causal, window=window if window < tokens else 0)
    query, key = (int(i) for i in wrong.nonzero()[0])
    does = "sees" if bool(seen[query, key]) else "does not see"
    return Seen(wrong=f"is neither full nor causal, nor a window of either: token {query} {does} token {key}")
