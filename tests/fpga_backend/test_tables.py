"""The contract's tables are the functions they are named after, and never change."""

import hashlib
import math

import mpmath
import numpy as np
import pytest

from greentrain.fpga_backend import contract, tables

REAL = {
    "gelu": lambda x: mpmath.ncdf(x),
    "gelu_tanh": lambda x: (1 + mpmath.tanh(mpmath.sqrt(2 / mpmath.pi) * (x + mpmath.mpf("0.044715") * x**3))) / 2,
    "silu": lambda x: 1 / (1 + mpmath.exp(-x)),
    "tanh": mpmath.tanh,
}
DIGESTS = {
    "gelu": "f3d3683ec9b7a582",
    "gelu_tanh": "6e0b5cafda241022",
    "silu": "db41c92dd34b067e",
    "tanh": "59f126ddab19d155",
    "exp2": "23ddf6ea32e796d4",
    "log": "cde25d8032de0324",
}
"""Of the tables of contract version 1: a change of one entry is another contract."""


@pytest.mark.parametrize("name", sorted(REAL))
def test_an_activations_table_is_its_function(name: str) -> None:
    table = tables.gate(name)
    with mpmath.workdps(40):
        for i in (*range(0, 8192, 37), 4095, 4096, 4097, 8191):
            exact = contract.GATE_ONE * REAL[name](mpmath.mpf(i - 4096) / 256)
            assert abs(int(table[i]) - exact) <= 0.5, i


def test_powers_and_logarithms_are_the_nearest() -> None:
    with mpmath.workdps(40):
        for i in range(0, 4096, 31):
            assert abs(int(tables.exp2()[i]) - mpmath.mpf(2) ** (30 - mpmath.mpf(i) / 4096)) <= 0.5
            assert tables.log()[i] == float(mpmath.log(1 + mpmath.mpf(i) / 4096))
    assert math.isclose(contract.LOG2E, 1 / math.log(2), rel_tol=1e-15)
    assert math.log(2) == contract.LN2


@pytest.mark.parametrize("name", sorted(DIGESTS))
def test_the_tables_are_those_of_this_version(name: str) -> None:
    table = tables.gate(name) if name in tables.FUNCTIONS else {"exp2": tables.exp2, "log": tables.log}[name]()
    assert contract.VERSION == 1
    assert hashlib.sha256(np.ascontiguousarray(table).tobytes()).hexdigest()[:16] == DIGESTS[name]


def test_a_table_cannot_be_written_to() -> None:
    with pytest.raises(ValueError, match="read-only"):
        tables.exp2()[0] = 0
