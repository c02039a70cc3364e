"""Tables of the contract, computed with decimal arithmetic: the same integers on every machine, whatever its libm.

``decimal``'s exp and ln are correctly rounded (docs.python.org/3.11/library/decimal.html), and 40 digits leave no entry
near a tie that binary rounding could move; erf is its Maclaurin series.
"""

import functools
from collections.abc import Callable
from decimal import ROUND_HALF_EVEN, Decimal, localcontext
from typing import Any

import numpy as np
import numpy.typing as npt

from greentrain.fpga_backend import contract

PI = Decimal("3.14159265358979323846264338327950288419716939937510")
DIGITS = 40
ERF_ONE = Decimal(6)
"""From here on erf is taken for 1: 1 - erf(6) < 2.2e-17, far below half a step of a table (1.5e-5)."""


def _integer(value: Decimal) -> int:
    return int(value.to_integral_value(ROUND_HALF_EVEN))


def _erf(x: Decimal) -> Decimal:
    return _erf_of_magnitude(abs(x)).copy_sign(x)


@functools.cache
def _erf_of_magnitude(x: Decimal) -> Decimal:
    if x >= ERF_ONE:
        return Decimal(1)
    with localcontext() as context:
        context.prec = DIGITS + 20  # terms reach e^36 before they fall
        term, total, n, square = x, x, 0, x * x
        while abs(term) > Decimal(10) ** -(DIGITS + 2):
            n += 1
            term = -term * square / n
            total += term / (2 * n + 1)
        return total * 2 / PI.sqrt()


def _tanh(x: Decimal) -> Decimal:
    grown = (2 * x).exp()
    return (grown - 1) / (grown + 1)


FUNCTIONS: dict[str, Callable[[Decimal], Decimal]] = {
    "gelu": lambda x: (1 + _erf(x / Decimal(2).sqrt())) / 2,
    "gelu_tanh": lambda x: (1 + _tanh((2 / PI).sqrt() * (x + Decimal("0.044715") * x**3))) / 2,
    "silu": lambda x: 1 / (1 + (-x).exp()),
    "tanh": _tanh,
}


@functools.cache
def gate(kind: str) -> npt.NDArray[np.int32]:
    """Return an activation's table.

    ``gelu``, ``gelu_tanh`` and ``silu`` are x times a gate, and the table holds the gate; ``tanh`` holds the value.

    Args:
        kind: A key of ``FUNCTIONS``.

    Returns:
        Integers [8192]; entry i stands for the argument (i - 4096) / 256, and 32768 for 1. Read-only.

    Raises:
        KeyError: No such activation.
    """
    function = FUNCTIONS[kind]
    with localcontext() as context:
        context.prec = DIGITS
        values = [
            _integer(contract.GATE_ONE * function(Decimal(i) / contract.GATE_STEP))
            for i in range(-contract.GATE_HALF, contract.GATE_HALF)
        ]
    return _frozen(np.array(values, dtype=np.int32))


@functools.cache
def exp2() -> npt.NDArray[np.int32]:
    """Return 2^-f over one octave: integers [4096], entry i is 2^(30 - i / 4096). Read-only."""
    steps = 2**contract.EXP_BITS
    with localcontext() as context:
        context.prec = DIGITS + 10  # 4096 products lose 4 digits
        step, value, values = Decimal(2) ** (Decimal(-1) / steps), Decimal(contract.EXP_ONE), []
        for _ in range(steps):
            values.append(_integer(value))
            value *= step
    return _frozen(np.array(values, dtype=np.int32))


@functools.cache
def log() -> npt.NDArray[np.float64]:
    """Return ln(1 + i / 4096) as the nearest binary64 numbers [4096]. Read-only."""
    steps = 2**contract.EXP_BITS
    with localcontext() as context:
        context.prec = DIGITS
        values = [float((1 + Decimal(i) / steps).ln()) for i in range(steps)]
    return _frozen(np.array(values, dtype=np.float64))


def _frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array.flags.writeable = False
    return array
