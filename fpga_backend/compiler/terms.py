"""Arithmetic on what the tokens became: sums, activations, norms, rotations and means that models write out by hand.

Arithmetic by hand that stands for one operator: shapes of terms, and a matcher.

A pattern is a name, which any value fits (the same value wherever the name occurs again), a number, or a tuple of an
operation and its arguments' patterns. Sums and products fit in either order.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch

from greentrain.fpga_backend.compiler import blocks
from greentrain.fpga_backend.compiler.draft import Draft
from greentrain.fpga_backend.compiler.values import Place, Repeated, Rows, Term, Weight, matrix, scalar, shape_of
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
GATES: dict[str, tuple[Pattern, ...]] = {
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
        return found if _same(found[pattern], value) else None
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


def _same(a: Any, b: Any) -> bool:
    return a is b or (isinstance(a, Rows) and a.same(b))


_PLAIN = {"mul", "add", "div", "rsqrt", "sqrt", "neg", "erf", "sigmoid", "tanh"}
_PARTS = {"pow", "mean", "sum", "cat"}
_POWERS = {2.0: "square", 3.0: "cube"}


def arithmetic(
    draft: Draft, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], shape: tuple[int, ...], place: Place
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
        args = tuple(_whole_table(draft, a, shape, place) for a in args)
    if name == "add" and all(isinstance(a, Rows) for a in args[:2]):
        return blocks.add(draft, args[0], args[1], shape, place)
    term = Term(op=_operation(name, args, kwargs, place), args=_operands(name, args), shape=shape, place=place)
    for complete in (_rms_norm, _gate, _rotary, _mean, _gated, _scaled_embed):
        if (rows := complete(draft, term)) is not None:
            return rows
    return term


def _whole_table(draft: Draft, value: Any, shape: tuple[int, ...], place: Place) -> Any:
    """Return the rows of a table of as many positions as the sequence has, where such a parameter is added to rows."""
    if isinstance(value, Weight) and value.shape == (draft.tokens, *shape[-1:]) == shape[-2:]:
        return blocks.embed(draft, value, torch.arange(draft.tokens), value.shape, place)
    return value


def _operation(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], place: Place) -> str:
    if name == "mul" and isinstance(args[0], Rows) and args[0].same(args[1]):
        return "square"
    if name in _PLAIN:
        return "mul" if _by_number(name, args) else name
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
    place.refuse(
        "is not among the operators that are compiled (embeddings, linear layers, layer and RMS norms, gelu, silu, "
        "tanh, relu, rotary positions, full and causal attention, sums, pooling): keep this model on the GPU"
    )


def _operands(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    if name == "cat":
        return tuple(args[0])
    if _by_number(name, args):
        return args[0], 1.0 / (scalar(args[1]) or 1.0)
    if name == "mul" and isinstance(args[0], Rows) and args[0].same(args[1]):
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


def _rms_norm(draft: Draft, term: Term) -> Rows | None:
    for pattern in RMS_NORMS:
        found = match(pattern, term)
        if found and isinstance(found["gain"], Weight) and isinstance(found["x"], Rows):
            eps = scalar(found["eps"])
            if eps is not None:
                return blocks.norm(draft, found["x"], found["gain"], None, eps, "rms", term.shape, term.place)
    return None


def _gate(draft: Draft, term: Term) -> Rows | None:
    tables: Mapping[blocks.Table, Any] = {"gelu_tanh": GATES["gelu_tanh"], "gelu": GATES["gelu"], "silu": GATES["silu"]}
    for table, patterns in tables.items():
        for pattern in patterns:
            found = match(pattern, term)
            if found and isinstance(found["x"], Rows):
                return blocks.gate(draft, found["x"], table, term.shape, term.place)
    return None


def _rotary(draft: Draft, term: Term) -> Rows | None:
    found = match(ROTARY, term)
    if found and isinstance(found["x"], Rows):
        return blocks.rotary(draft, found["x"], found["high"], found["low"], found["cos"], found["sin"], term.place)
    return None


def _mean(draft: Draft, term: Term) -> Rows | None:
    """A mean over the tokens, or a sum that is divided by their number."""
    summed = term
    if term.op == "div" and isinstance(term.args[0], Term) and scalar(term.args[1]) == draft.tokens:
        summed = term.args[0]
    elif not term.op.startswith("mean over"):
        return None
    x = summed.args[0]
    if not summed.op.startswith(("sum over", "mean over")) or not isinstance(x, Rows):
        return None
    axis = int(summed.op.rpartition(" ")[2])
    found = matrix(x)
    if found is None or found.row != "all" or (x.shape[axis], x.view.stride()[axis]) != (x.tokens, x.width):
        return None
    pooled = draft.pool(found.columns, "mean")
    rows = Rows.of(pooled.register, 1, pooled.width)
    return rows.seen_as(rows.view.view(term.shape))


def _gated(draft: Draft, term: Term) -> Rows | None:
    if term.op == "mul" and all(isinstance(a, Rows) for a in term.args):
        return blocks.gated(draft, term.args[0], term.args[1], term.shape, term.place)
    return None


def _scaled_embed(draft: Draft, term: Term) -> Rows | None:
    """An embedding times a number, at once: sums follow."""
    rows = next((a for a in term.args if isinstance(a, Rows)), None)
    if rows is not None and isinstance(draft.producer(rows.register), Embed):
        found = blocks.settled(draft, term)
        return found if isinstance(found, Rows) else None
    return None
