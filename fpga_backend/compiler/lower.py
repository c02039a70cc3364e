"""From a traced graph to a draft: each node in turn, by what its arguments stand for.

What depends on neither tokens nor parameters (masks, positions, rotary angles) is computed on the spot. Views of
registers are followed by torch itself. What remains is an operator, arithmetic that may become part of one, or refused.

Models write some operators out by hand as arithmetic: norms, activations, rotations, means. A pattern finds them: it is
a name, which any value fits (the same value wherever the name occurs again), a number, or a tuple of an operation and
the patterns of its arguments. Sums and products fit in either order.
"""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from greentrain.fpga_backend.compiler import blocks
from greentrain.fpga_backend.compiler.draft import Draft
from greentrain.fpga_backend.compiler.values import (
    GraphNode,
    Ids,
    Repeated,
    RowsValue,
    Term,
    Weight,
    is_symbolic,
    matrix,
    scalar,
    shape_of,
)
from greentrain.fpga_backend.program import Embed

Pattern = Any
Found = dict[str, Any]

_COMMUTATIVE = ("add", "mul")
_TOLERANCE = 1e-6
"""Relative: constants of activations come written with 6 to 17 digits."""

RMS_NORMS: tuple[Pattern, ...] = (
    ("mul", "gain", ("mul", "x", ("rsqrt", ("add", ("mean", ("square", "x")), "eps")))),
    ("mul", "gain", ("div", "x", ("sqrt", ("add", ("mean", ("square", "x")), "eps")))),
)
GATES: Mapping[blocks.Table, tuple[Pattern, ...]] = {
    "gelu_tanh": (
        (
            "mul",
            ("mul", "x", 0.5),
            (
                "add",
                ("tanh", ("mul", ("add", "x", ("mul", ("cube", "x"), 0.044715)), math.sqrt(2 / math.pi))),
                1.0,
            ),
        ),
    ),
    "gelu": (
        ("mul", ("mul", "x", 0.5), ("add", ("erf", ("mul", "x", math.sqrt(0.5))), 1.0)),
        ("mul", "x", ("mul", ("add", ("erf", ("mul", "x", math.sqrt(0.5))), 1.0), 0.5)),
    ),
    "silu": (("mul", "x", ("sigmoid", "x")),),
}
ROTARY: Pattern = ("add", ("mul", "x", "cos"), ("mul", ("cat", ("neg", "high"), "low"), "sin"))


def match(pattern: Pattern, value: Any, found: Found | None = None) -> Found | None:
    """Return what the names of a pattern stand for in a value, or None where it does not fit."""
    found = {} if found is None else found
    if isinstance(pattern, str):
        if pattern not in found:
            return {**found, pattern: value}
        known = found[pattern]
        return found if known is value or (isinstance(known, RowsValue) and known.same(value)) else None
    if isinstance(pattern, float):
        number = scalar(value)
        return found if number is not None and math.isclose(number, pattern, rel_tol=_TOLERANCE) else None
    if not isinstance(value, Term) or value.op != pattern[0] or len(value.args) != len(pattern) - 1:
        return None
    orders = [value.args, value.args[::-1]] if value.op in _COMMUTATIVE else [value.args]
    for args in orders:
        if (result := _all(pattern[1:], args, found)) is not None:
            return result
    return None


def _all(patterns: tuple[Pattern, ...], values: tuple[Any, ...], found: Found) -> Found | None:
    result: Found | None = found
    for pattern, value in zip(patterns, values, strict=True):
        if result is None:
            return None
        result = match(pattern, value, result)
    return result


_PLAIN = {"mul", "add", "div", "rsqrt", "sqrt", "neg", "erf", "sigmoid", "tanh"}
_PARTS = {"pow", "mean", "sum", "cat", "softmax", "_softmax"}
_POWERS = {2.0: "square", 3.0: "cube"}


def arithmetic(
    draft: Draft, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], shape: tuple[int, ...], place: GraphNode
) -> Any:
    """Return what an arithmetic node stands for: a register where it completes an operator, else a term.

    Raises:
        UnsupportedModelError: It is no part of any operator.
    """
    if isinstance(args[0], Repeated):
        place.refuse("computes with repeated heads")
    if isinstance(args[0], Term) and name not in _PLAIN and name not in _PARTS:
        blocks.refuse_term(args[0])
    if name == "add" and kwargs.get("alpha", 1) != 1:
        place.refuse(f"adds alpha={kwargs['alpha']} times something")
    if name in ("add", "mul", "div") and (kept := _unchanged(name, args[0], args[1], shape)) is not None:
        return kept
    if name == "add":
        args = tuple(blocks.settled(draft, _whole_table(draft, a, shape, place)) for a in args)
    if name == "add" and all(isinstance(a, RowsValue) for a in args[:2]):
        return blocks.add(draft, args[0], args[1], shape, place)
    term = Term(op=_operation(name, args, kwargs, place), args=_operands(name, args), shape=shape, place=place)
    for complete in (_rms_norm, _gate, _rotary, _mean, _gated, _scaled_embed):
        if (rows := complete(draft, term)) is not None:
            return rows
    return term


def _whole_table(draft: Draft, value: Any, shape: tuple[int, ...], place: GraphNode) -> Any:
    """Return the rows of a table of as many positions as the sequence has, where such a parameter is added to rows."""
    if isinstance(value, Weight) and value.shape == (draft.tokens, *shape[-1:]) == shape[-2:]:
        return blocks.embed(draft, value, torch.arange(draft.tokens), value.shape, place)
    return value


def _operation(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], place: GraphNode) -> str:
    if name == "mul" and isinstance(args[0], RowsValue) and args[0].same(args[1]):
        return "square"
    if name in _PLAIN:
        return "mul" if _by_number(name, args) else name
    if name in ("softmax", "_softmax") and args[1] % len(shape_of(args[0])) == len(shape_of(args[0])) - 1:
        return "softmax"
    if name == "pow" and (power := _POWERS.get(scalar(args[1]) or 0.0)):
        return power
    if name in ("mean", "sum") and len(args) > 1 and args[1] is not None:
        (axis,) = args[1] if isinstance(args[1], list | tuple) and len(args[1]) == 1 else (None,)
        rank = len(shape_of(args[0]))
        if axis is not None and rank:
            last = axis % rank == rank - 1
            kept = bool(args[2]) if len(args) > 2 else bool(kwargs.get("keepdim", False))
            if last and kept and name == "mean":
                return "mean"
            return f"{name} over {axis % rank}"
    if name == "cat" and args and len(args[0]) == 2:
        axis = args[1] if len(args) > 1 else kwargs.get("dim", 0)
        if axis % len(shape_of(args[0][0])) == len(shape_of(args[0][0])) - 1:
            return "cat"
    place.lacks(
        "is not among the operators that are compiled (embeddings, linear layers, layer and RMS norms, gelu, silu, "
        "tanh, relu, rotary positions, attention, sums, pooling): keep this model on the GPU"
    )


def _operands(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    if name == "cat":
        return tuple(args[0])
    if _by_number(name, args):
        return args[0], 1.0 / (scalar(args[1]) or 1.0)
    if name == "mul" and isinstance(args[0], RowsValue) and args[0].same(args[1]):
        return (args[0],)
    return tuple(args[:2]) if name in ("mul", "add", "div") else (args[0],)


def _by_number(name: str, args: tuple[Any, ...]) -> bool:
    """True for a division by a number, but for that of a sum over tokens by their count."""
    summed = isinstance(args[0], Term) and args[0].op.startswith("sum over")
    return name == "div" and not summed and bool(scalar(args[1]))


def _unchanged(name: str, x: Any, y: Any, shape: tuple[int, ...]) -> Any:
    """Return the other operand of a sum with 0 or a product with 1, as padding masks of full sequences are."""
    neutral = 0.0 if name == "add" else 1.0
    for one, other in ((x, y),) if name == "div" else ((x, y), (y, x)):
        if scalar(other) == neutral and shape_of(one) == shape:
            return one
    return None


def _rms_norm(draft: Draft, term: Term) -> RowsValue | None:
    for pattern in RMS_NORMS:
        found = match(pattern, term)
        if found and isinstance(found["gain"], Weight) and isinstance(found["x"], RowsValue):
            eps = scalar(found["eps"])
            if eps is not None:
                return blocks.norm(draft, found["x"], found["gain"], None, eps, "rms", term.shape, term.place)
    return None


def _gate(draft: Draft, term: Term) -> RowsValue | None:
    for table, patterns in GATES.items():
        for pattern in patterns:
            found = match(pattern, term)
            if found and isinstance(found["x"], RowsValue):
                return blocks.gate(draft, found["x"], table, term.shape, term.place)
    return None


def _rotary(draft: Draft, term: Term) -> RowsValue | None:
    found = match(ROTARY, term)
    if found and isinstance(found["x"], RowsValue):
        return blocks.rotary(draft, found["x"], found["high"], found["low"], found["cos"], found["sin"], term.place)
    return None


def _mean(draft: Draft, term: Term) -> RowsValue | None:
    """A mean over the tokens, or a sum that is divided by their number."""
    summed = term
    if term.op == "div" and isinstance(term.args[0], Term) and scalar(term.args[1]) == draft.tokens:
        summed = term.args[0]
    elif not term.op.startswith("mean over"):
        return None
    x = summed.args[0]
    if not summed.op.startswith(("sum over", "mean over")) or not isinstance(x, RowsValue):
        return None
    axis = int(summed.op.rpartition(" ")[2])
    found = matrix(x)
    if found is None or found.row != "all" or (x.shape[axis], x.view.stride()[axis]) != (x.tokens, x.width):
        return None
    pooled = draft.pool(found.columns, "mean")
    rows = RowsValue.of(pooled.register, 1, pooled.width)
    return rows.seen_as(rows.view.view(term.shape))


def _gated(draft: Draft, term: Term) -> RowsValue | None:
    if term.op == "mul" and all(isinstance(a, RowsValue) for a in term.args):
        return blocks.gated(draft, term.args[0], term.args[1], term.shape, term.place)
    return None


def _scaled_embed(draft: Draft, term: Term) -> RowsValue | None:
    """An embedding times a number, at once: sums follow."""
    rows = next((a for a in term.args if isinstance(a, RowsValue)), None)
    if rows is not None and isinstance(draft.producer(rows.register), Embed):
        found = blocks.settled(draft, term)
        return found if isinstance(found, RowsValue) else None
    return None


_SAME = {
    "_to_copy", "alias", "clone", "contiguous", "detach", "dropout", "float", "lift_fresh", "native_dropout", "to",
    "type_as",
}  # fmt: skip
"""Operators that leave numbers as they are (evaluation mode; types are settled by the program)."""
_VIEWS = {
    "chunk", "expand", "expand_as", "flatten", "movedim", "narrow", "numpy_T", "permute", "reshape", "select", "slice",
    "split", "split_with_sizes", "squeeze", "t", "transpose", "unbind", "unflatten", "unsqueeze", "view",
    "_unsafe_view",
}  # fmt: skip
_ACTIVATIONS: Mapping[str, blocks.Table] = {"silu": "silu", "relu": "relu", "tanh": "tanh"}
_SCALINGS: Mapping[str, str] = {"add": "add", "mul": "multiply"}
"""Arithmetic of a parameter and a number, and the recipe's step for it."""
_ASSERTS = {"_assert_tensor_metadata", "_assert_async", "_assert_scalar"}


class Lowering:
    """Walks a graph.

    Args:
        draft: Draft to which operators are added.
    """

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._handlers: dict[str, Callable[..., Any]] = {
            "linear": self._linear,
            "addmm": self._addmm,
            "mm": self._matmul,
            "matmul": self._matmul,
            "embedding": self._embedding,
            "layer_norm": self._layer_norm,
            "rms_norm": self._rms_norm,
            "gelu": self._gelu,
            "scaled_dot_product_attention": self._attention,
            "index": self._index,
            "gather": self._gather,
            "repeat_interleave": self._repeat,
            "masked_fill": self._masked_fill,
            "ne": self._is_padding,
            "eq": self._is_padding,
        }

    def run(self, module: GraphModule, inputs: Sequence[Any]) -> list[Any]:
        """Return what the outputs of a graph stand for, given what its placeholders do.

        Raises:
            UnsupportedModelError: Something in it cannot be compiled; names module, path and operator.
        """
        values: dict[Node, Any] = {}
        waiting = iter(inputs)
        for node in module.graph.nodes:
            if node.op == "placeholder":
                values[node] = next(waiting)
            elif node.op == "get_attr":
                values[node] = _attribute(module, str(node.target))
            elif node.op == "output":
                found = torch.fx.node.map_arg(node.args[0], lambda n: values[n])
                return list(found) if isinstance(found, Sequence) else [found]
            else:
                args = torch.fx.node.map_arg(node.args, lambda n: values[n])
                kwargs = torch.fx.node.map_arg(node.kwargs, lambda n: values[n])
                values[node] = self._call(node, tuple(args), dict(kwargs))
        return []

    def _call(self, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        target: Any = node.target
        if target is operator.getitem:
            return args[0][args[1]]
        inner = next((i for i, a in enumerate(args) if isinstance(a, GraphModule)), None)
        if inner is not None:
            return self.run(args[inner], args[inner + 1 :])
        name = str(getattr(getattr(target, "overloadpacket", target), "__name__", target))
        if name in _ASSERTS:
            return None
        if not is_symbolic(args) and not is_symbolic(tuple(kwargs.values())):
            with torch.no_grad():
                return target(*args, **kwargs)
        place = GraphNode.of(node)
        shape = tuple(getattr(node.meta.get("val"), "shape", ()))
        if name in _SAME:
            return args[0]
        if isinstance(args[0], Ids) and name in _VIEWS:
            return Ids(kind=args[0].kind, shape=shape)
        if (
            isinstance(args[0], Weight)
            and name == "slice"
            and (rows := self._positions(args, shape, place)) is not None
        ):
            return rows
        if isinstance(args[0], Weight) and (name in _VIEWS or (name in _SCALINGS and not is_symbolic(args[1:]))):
            return _of_weight(args[0], name, args[1:], shape, place)
        if isinstance(args[0], Repeated) and name == "transpose" and {args[1] % 4, args[2] % 4} == {2, 3}:
            return Term(op="transpose", args=args[:1], shape=shape, place=place)
        if name == "cat" and len(parts := [a for a in args[0] if 0 not in shape_of(a)]) == 1:
            return parts[0]
        if name in _VIEWS or name in self._handlers:
            args = tuple(blocks.settled(self._draft, value) for value in args)
        if isinstance(args[0], RowsValue) and name in _VIEWS:
            return _view(args[0], target, args[1:], kwargs, shape, place)
        if name in _ACTIVATIONS and isinstance(args[0], RowsValue):
            return blocks.gate(self._draft, args[0], _ACTIVATIONS[name], shape, place)
        if handler := self._handlers.get(name):
            return handler(place, shape, *args, **kwargs)
        return arithmetic(self._draft, name, args, kwargs, shape, place)

    def _positions(self, args: tuple[Any, ...], shape: tuple[int, ...], place: GraphNode) -> RowsValue | None:
        """Return the rows of a table of positions that is cut to the sequence's length instead of looked up."""
        weight, dim, start = args[0], *(*args[1:3], 0, 0)[:2]
        if dim != 0 or shape != (self._draft.tokens, *weight.shape[1:]) or len(shape) != 2:
            return None
        return blocks.embed(self._draft, weight, torch.arange(start or 0, (start or 0) + shape[0]), shape, place)

    def _linear(self, place: GraphNode, shape: tuple[int, ...], x: Any, weight: Any, bias: Any = None) -> RowsValue:
        return blocks.linear(self._draft, x, weight, bias, shape, place)

    def _matmul(self, place: GraphNode, shape: tuple[int, ...], x: Any, weight: Any) -> Any:
        if not isinstance(weight, Weight):
            if (rows := blocks.written_out(self._draft, x, weight, shape, place)) is not None:
                return rows
            return Term(op="matmul", args=(x, weight), shape=shape, place=place)
        return blocks.linear(self._draft, x, _transposed(weight), None, shape, place)

    def _addmm(
        self, place: GraphNode, shape: tuple[int, ...], bias: Any, x: Any, weight: Any, **factors: Any
    ) -> RowsValue:
        if not isinstance(weight, Weight) or factors:
            place.refuse("a product with something else than a parameter")
        return blocks.linear(self._draft, x, _transposed(weight), bias, shape, place)

    def _embedding(
        self, place: GraphNode, shape: tuple[int, ...], weight: Any, index: Any, *_: Any, **__: Any
    ) -> RowsValue:
        return blocks.embed(self._draft, weight, index, shape, place)

    def _layer_norm(
        self,
        place: GraphNode,
        shape: tuple[int, ...],
        x: Any,
        over: Sequence[int],
        gain: Any = None,
        bias: Any = None,
        eps: float = 1e-5,
        *_: Any,
    ) -> RowsValue:
        return blocks.norm(self._draft, x, gain, bias, eps, "layer", shape, place)

    def _rms_norm(
        self, place: GraphNode, shape: tuple[int, ...], x: Any, over: Sequence[int], gain: Any = None, eps: Any = None
    ) -> RowsValue:
        smallest = torch.finfo(torch.float32).eps  # what torch takes where none is given
        return blocks.norm(self._draft, x, gain, None, smallest if eps is None else eps, "rms", shape, place)

    def _gelu(self, place: GraphNode, shape: tuple[int, ...], x: Any, *, approximate: str = "none") -> RowsValue:
        return blocks.gate(self._draft, x, "gelu_tanh" if approximate == "tanh" else "gelu", shape, place)

    def _attention(
        self,
        place: GraphNode,
        shape: tuple[int, ...],
        q: Any,
        k: Any,
        v: Any,
        mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
        attn_mask: Any = None,
    ) -> RowsValue:
        mask = attn_mask if mask is None else mask
        return blocks.attention(self._draft, q, k, v, mask, causal=is_causal, scale=scale, shape=shape, place=place)

    def _index(self, place: GraphNode, shape: tuple[int, ...], x: Any, indices: Sequence[Any]) -> RowsValue:
        chosen = [scalar(index) for index in indices]
        if not isinstance(x, RowsValue) or any(number is None for number in chosen):
            place.refuse("takes rows that depend on the tokens: compiled are the first row, the last, and the mean")
        view = x.view
        for number in chosen:
            view = view.select(0, int(number or 0))
        return x.seen_as(view.view(shape))

    def _gather(self, place: GraphNode, shape: tuple[int, ...], x: Any, dim: int, index: Any, **_: Any) -> RowsValue:
        row = scalar(index)
        if not isinstance(x, RowsValue) or row is None or shape != (*x.shape[:dim], 1, *x.shape[dim + 1 :]):
            place.refuse("takes rows that depend on the tokens: compiled are the first row, the last, and the mean")
        return x.seen_as(x.view.narrow(dim, int(row), 1))

    def _repeat(
        self, place: GraphNode, shape: tuple[int, ...], x: Any, times: Any, dim: int | None = None, **_: Any
    ) -> Repeated:
        if (
            not isinstance(x, RowsValue)
            or not isinstance(times, int)
            or dim is None
            or dim % len(x.shape) != len(x.shape) - 3
        ):
            place.refuse("repeats something else than key and value heads")
        return Repeated(rows=x, times=times)

    def _masked_fill(self, place: GraphNode, shape: tuple[int, ...], x: Any, mask: Any, value: Any) -> Any:
        if isinstance(mask, torch.Tensor) and not bool(mask.any()):
            return x
        if isinstance(x, Term) and isinstance(mask, torch.Tensor) and (filled := scalar(value)) is not None:
            added = torch.zeros(mask.shape).masked_fill_(mask, filled)
            return Term(op="add", args=(x, added), shape=shape, place=place)
        place.refuse("fills in places that are no padding")

    def _is_padding(self, place: GraphNode, shape: tuple[int, ...], ids: Any, padding: Any) -> Any:
        if not isinstance(ids, Ids) or ids.kind != "token" or scalar(padding) is None:
            place.refuse("compares what the tokens became")
        return torch.full(shape, place.op.startswith("aten.ne"))  # a packed batch has no padding


def _attribute(module: GraphModule, path: str) -> Any:
    found: Any = module
    for part in path.split("."):
        found = getattr(found, part)
    return found


def _transposed(weight: Weight) -> Weight:
    steps = weight.source.steps
    if steps and steps[-1] == ("transpose", 0.0):
        source = type(weight.source)(parameter=weight.source.parameter, steps=steps[:-1])
    else:
        source = weight.source.then("transpose")
    return Weight(source=source, shape=weight.shape[::-1])


def _of_weight(weight: Weight, name: str, args: tuple[Any, ...], shape: tuple[int, ...], place: GraphNode) -> Weight:
    number = scalar(args[0]) if args else None
    if name in _SCALINGS and number is not None and shape == weight.shape:
        return Weight(source=weight.source.then(_SCALINGS[name], number), shape=shape)
    if name in ("t", "numpy_T", "transpose", "permute") and shape == weight.shape[::-1]:
        return _transposed(weight)
    if name not in _SCALINGS and shape == weight.shape:
        return weight
    place.refuse(f"changes the parameter {weight.source.parameter} in a way that is not compiled")


def _view(
    rows: RowsValue,
    target: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    shape: tuple[int, ...],
    place: GraphNode,
) -> Any:
    asked = torch.ops.aten.view.default if "view" in str(target) or "reshape" in str(target) else target
    try:
        seen = asked(rows.view, *args, **kwargs)
    except RuntimeError:
        if (repeated := _merged(rows, shape)) is not None:
            return repeated
        place.refuse(f"reshapes {list(rows.shape)} to {list(shape)}, across tokens and features")
    if isinstance(seen, torch.Tensor):
        return rows.seen_as(seen)
    return tuple(rows.seen_as(piece) for piece in seen)


def _merged(rows: RowsValue, shape: tuple[int, ...]) -> Repeated | None:
    """Key heads, each expanded for several query heads, merged into one dimension of heads."""
    old, strides = rows.shape, rows.view.stride()
    for axis in range(1, len(old)):
        merged = (*old[: axis - 1], old[axis - 1] * old[axis], *old[axis + 1 :])
        if strides[axis] == 0 and old[axis] > 1 and merged == shape:
            return Repeated(rows=rows.seen_as(rows.view.select(axis, 0)), times=old[axis])
    return None
