"""Products by the simulated array are numpy's, whatever their shape."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from greentrain.fpga_backend import contract
from greentrain.fpga_backend.errors import DeviceError
from tools.rtl_simulator import Simulator, build, missing, tile, tile_cycles
from tools.rtl_speed import INNER, measure

SIDE = st.integers(1, 40)
KINDS = {
    "any": lambda random, shape: random.integers(-128, 128, shape, dtype=np.int8),
    "extremes": lambda random, shape: random.choice(np.array([-128, -127, 127], dtype=np.int8), shape),
    "signs": lambda random, shape: random.choice(np.array([-1, 0, 1], dtype=np.int8), shape),
}


def product(a: Any, w: Any) -> Any:
    return a.astype(np.int64) @ w.astype(np.int64).T


@pytest.mark.sweep
@given(
    m=SIDE, n=SIDE, k=st.integers(1, 200), a_kind=st.sampled_from(sorted(KINDS)), w_kind=st.sampled_from(sorted(KINDS))
)
@settings(max_examples=60)
@pytest.mark.parametrize("array", ["square", "odd"])
def test_any_shape_is_exact(
    request: pytest.FixtureRequest, array: str, m: int, n: int, k: int, a_kind: str, w_kind: str
) -> None:
    simulator: Simulator = request.getfixturevalue(array)
    random = np.random.default_rng([m, n, k])
    a, w = KINDS[a_kind](random, (m, k)), KINDS[w_kind](random, (n, k))
    found = simulator.gemm(a, w)
    assert found.values.dtype == np.int32
    np.testing.assert_array_equal(found.values, product(a, w))


@pytest.mark.parametrize("sign", [-1, 1])
def test_the_largest_sums_of_the_contract_are_exact(odd: Simulator, sign: int) -> None:
    a = np.full((4, contract.MAX_INNER), contract.Q8, dtype=np.int8)
    a[1] *= -1
    w = np.full((3, contract.MAX_INNER), sign * contract.Q8, dtype=np.int8)
    found = odd.gemm(a, w)
    np.testing.assert_array_equal(found.values, product(a, w))
    assert abs(int(found.values[0, 0])) == contract.MAX_INNER * contract.Q8**2


def test_views_are_read_as_they_look(odd: Simulator) -> None:
    random = np.random.default_rng(0)
    a = random.integers(-127, 128, (20, 12), dtype=np.int8).T[::2]
    w = random.integers(-127, 128, (7, 40), dtype=np.int8)[:, ::2]
    np.testing.assert_array_equal(odd.gemm(a, w).values, product(a, w))


@pytest.mark.parametrize("array", ["square", "odd"])
@pytest.mark.parametrize("k", [1, 2, 50])
def test_a_tile_takes_the_clocks_that_are_documented(request: pytest.FixtureRequest, array: str, k: int) -> None:
    simulator: Simulator = request.getfixturevalue(array)
    a = np.ones((4 * simulator.row_pairs, k), dtype=np.int8)
    w = np.ones((3 * simulator.columns - 1, k), dtype=np.int8)
    simulator.gemm(a, w)  # the first product waits for the clearing after reset
    once = tile_cycles(k, row_pairs=simulator.row_pairs, columns=simulator.columns)
    assert simulator.gemm(a, w).cycles == 6 * once


def test_products_without_rows_are_empty(odd: Simulator) -> None:
    found = odd.gemm(np.empty((0, 5), dtype=np.int8), np.ones((2, 5), dtype=np.int8))
    assert found.values.shape == (0, 2)
    assert found.cycles == 0


@pytest.mark.parametrize(
    ("a", "w", "said"),
    [
        (np.ones((2, 3), dtype=np.int16), np.ones((2, 3), dtype=np.int8), "a is int16"),
        (np.ones(3, dtype=np.int8), np.ones((2, 3), dtype=np.int8), "a is int8"),
        (np.ones((2, 3), dtype=np.int8), np.ones((2, 4), dtype=np.int8), "same"),
        (np.ones((2, 0), dtype=np.int8), np.ones((2, 0), dtype=np.int8), "1 to 131072"),
        (np.ones((1, 131073), dtype=np.int8), np.ones((1, 131073), dtype=np.int8), "1 to 131072"),
    ],
)
def test_what_the_array_cannot_take_is_refused(odd: Simulator, a: Any, w: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        odd.gemm(a, w)


def test_a_closed_array_says_so(models: Path) -> None:
    simulator = Simulator(row_pairs=2, columns=3, folder=models)
    simulator.close()
    simulator.close()
    with pytest.raises(DeviceError, match="closed"):
        simulator.gemm(np.ones((1, 1), dtype=np.int8), np.ones((1, 1), dtype=np.int8))


@pytest.mark.parametrize("size", [{"row_pairs": 0}, {"columns": 65}])
def test_sizes_out_of_bounds_are_refused(size: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="1 to 64"):
        Simulator(**size)  # type: ignore[arg-type]


def test_a_model_is_built_once_and_anew_when_its_source_changes(models: Path, odd: Simulator, tmp_path: Path) -> None:
    design = tile(odd.row_pairs, odd.columns)
    before = build(design, models)
    stamp = before.stat().st_mtime_ns
    assert build(design, models) == before
    assert before.stat().st_mtime_ns == stamp
    changed = tmp_path / "gt_tile.v"
    changed.write_text("no Verilog", encoding="ascii")
    with pytest.raises(DeviceError, match=r"verilator_bin failed \(1\)(.|\n)*gt_tile.v"):
        build(dataclasses.replace(design, sources=(*design.sources[:-1], changed)), tmp_path)
    assert not list(tmp_path.glob(".build-*"))


def test_missing_programs_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    said = missing()
    assert "g++" in said or "verilator" in said
    with pytest.raises(DeviceError, match="missing"):
        Simulator(folder=tmp_path)


def test_speed_counts_what_was_simulated(odd: Simulator) -> None:
    speed = measure(odd, least_s=0.05)
    tiles = 4 * 4  # 16 rows by 4, 12 columns by 3
    assert speed.macs == 12
    assert speed.cycles % (tiles * tile_cycles(INNER, row_pairs=2, columns=3)) == 0
    useful = speed.mac_per_s / speed.cycles_per_s / speed.macs
    assert useful == pytest.approx(INNER / tile_cycles(INNER, row_pairs=2, columns=3))
