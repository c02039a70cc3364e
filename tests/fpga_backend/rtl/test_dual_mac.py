"""Two products a multiplier: every weight, every lower activation, and the upper ones that stress the borrow."""

import ctypes
from pathlib import Path

import pytest

from tools.rtl_simulator import SOURCES, Design, build

HERE = Path(__file__).resolve().parent
UPPER = (-128, -127, -64, -2, -1, 0, 1, 2, 63, 64, 126, 127)


@pytest.fixture(scope="module")
def check(models: Path) -> ctypes.CDLL:
    design = Design(
        top="gt_dual_mac_test",
        bench=HERE / "dual_mac_bench.cpp",
        sources=(*SOURCES, HERE / "gt_dual_mac_test.v"),
    )
    library = ctypes.CDLL(str(build(design, models)))
    library.gt_dual_mac_check.restype = ctypes.c_int64
    return library


@pytest.mark.long
@pytest.mark.parametrize("a1", UPPER)
def test_every_pair_of_weight_and_lower_activation_is_exact(check: ctypes.CDLL, a1: int) -> None:
    wrong = ctypes.c_int64(-1)
    assert check.gt_dual_mac_check(a1, ctypes.byref(wrong)) == 65536
    assert wrong.value == 0
