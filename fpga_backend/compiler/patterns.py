"""Arithmetic by hand that stands for one operator: shapes of terms, and a matcher.

A pattern is a name, which any value fits (the same value wherever the name occurs again), a number, or a tuple of an
operation and its arguments' patterns. Sums and products fit in either order.
"""

import math
from typing import Any

from greentrain.fpga_backend.compiler.values import Rows, Term, scalar

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
