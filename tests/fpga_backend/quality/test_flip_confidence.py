import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from greentrain.fpga_backend.quality.flips import every, flips
from recipes.common.rank_gate import gate

REFERENCE = np.arange(101.0)


def _with_swaps(count: int) -> np.ndarray:
    """Return the reference with so many pairs of neighbours swapped: so many flips of 5050."""
    scores = REFERENCE.copy()
    for i in range(0, 2 * count, 2):
        scores[[i, i + 1]] = scores[[i + 1, i]]
    return scores


@pytest.mark.parametrize("swaps, k, offload", [(6, 3.0, True), (7, 3.0, False), (2, 1.0, True), (3, 1.0, False)])
def test_the_gate_allows_k_times_the_flips_of_bf16(swaps: int, k: float, offload: bool) -> None:
    verdict = gate(REFERENCE, _with_swaps(2), _with_swaps(swaps), k=k)
    assert verdict.offload is offload
    assert (verdict.rate, verdict.floor, verdict.limit) == pytest.approx((swaps / 5050, 2 / 5050, k * 2 / 5050))
    assert verdict.pairs == 5050
    assert f"{swaps / 5050:.3%} of 5,050 pairs flip" in verdict.reason


def test_a_set_that_cannot_see_the_floor_allows_k_pairs() -> None:
    assert gate(REFERENCE, REFERENCE, _with_swaps(2), k=2).offload
    verdict = gate(REFERENCE, REFERENCE, _with_swaps(3), k=2)
    assert not verdict.offload
    assert "the one pair that the set can resolve" in verdict.reason


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_what_cannot_be_ranked_is_not_offloaded(broken: float) -> None:
    candidate = REFERENCE.copy()
    candidate[7] = broken
    verdict = gate(REFERENCE, REFERENCE, candidate, k=100)
    assert not verdict.offload
    assert verdict.rate is None
    assert "candidate[7]" in verdict.reason


def test_a_gate_that_cannot_decide_says_so_at_once() -> None:
    with pytest.raises(ValueError, match=r"k is 0\.5"):
        gate(REFERENCE, REFERENCE, REFERENCE, k=0.5)
    with pytest.raises(ValueError, match="has no order"):
        gate([1.0, 1.0], [1.0, 1.0], [1.0, 2.0], k=2)
    with pytest.raises(ValueError, match=r"candidate\[0\] is nan"):  # flips() names the floor so
        gate([1.0, 2.0], [math.nan, 1.0], [1.0, 2.0], k=2)


@given(st.lists(st.integers(-50, 50), min_size=3, max_size=15), st.data())
def test_the_gates_rate_is_the_flip_rate(values: list[int], data: st.DataObject) -> None:
    candidate = data.draw(st.permutations(values))
    counts = flips(values, candidate, every(len(values)))
    if len(set(values)) > 1:
        assert gate(values, values, candidate, k=1e9).rate == pytest.approx(np.nanmean(counts))
