import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from greentrain.fpga_backend.quality.flips import (
    Pairs,
    by_margin,
    every,
    exact_interval,
    flip_rate,
    flips,
    rank_correlation,
    scored,
)

SCORES = st.lists(st.integers(-1000, 1000), min_size=2, max_size=40)
"""Integers, so that a monotone transform of them is exact and keeps their order."""


def _pairs(*pairs: tuple[int, int]) -> Pairs:
    better, worse = np.array(pairs, dtype=np.intp).reshape(-1, 2).T
    return Pairs(better=better, worse=worse, margin=np.ones(len(pairs)))


def test_flips_by_hand() -> None:
    reference, candidate = [3.0, 2.0, 1.0, 1.0], [3.0, 3.0, 4.0, 0.0]
    #      (0, 1) ties; (0, 2) turns round; (1, 3) stays; (2, 3) had no order
    counts = flips(reference, candidate, _pairs((0, 1), (0, 2), (1, 3), (2, 3)))
    np.testing.assert_array_equal(counts, [0.5, 1.0, 0.0, np.nan])
    assert flip_rate(reference, candidate, _pairs((0, 1), (0, 2), (1, 3), (2, 3))) == 0.5


def test_flip_rate_of_all_pairs_by_hand() -> None:
    # of (0, 1), (0, 2), (1, 2) only the last turns round
    assert flip_rate([1.0, 2.0, 3.0], [1.0, 3.0, 2.0]) == pytest.approx(1 / 3)


def test_flip_rate_without_any_order_is_unknown() -> None:
    assert math.isnan(flip_rate([1.0, 1.0], [1.0, 2.0]))


@given(SCORES)
def test_same_scores_flip_nothing(values: list[int]) -> None:
    reference = np.array(values)
    assert not np.nansum(flips(reference, reference.copy(), every(len(values))))


@given(SCORES)
def test_a_monotone_transform_flips_nothing(values: list[int]) -> None:
    reference = np.array(values, dtype=np.float64)
    assert not np.nansum(flips(reference, reference**3 + 2 * reference - 7, every(len(values))))


@given(SCORES)
def test_the_reverse_flips_everything(values: list[int]) -> None:
    reference = np.array(values, dtype=np.float64)
    counts = flips(reference, -reference, every(len(values)))
    assert (counts[~np.isnan(counts)] == 1).all()


@given(SCORES)
def test_a_candidate_that_scores_all_the_same_flips_a_half(values: list[int]) -> None:
    rate = flip_rate(values, [7] * len(values))
    assert rate == 0.5 or (math.isnan(rate) and len(set(values)) == 1)


@given(SCORES, st.data())
def test_the_direction_of_a_pair_does_not_matter(values: list[int], data: st.DataObject) -> None:
    candidate = data.draw(st.permutations(values))
    pairs = every(len(values))
    turned = Pairs(better=pairs.worse, worse=pairs.better, margin=pairs.margin)
    np.testing.assert_array_equal(flips(values, candidate, pairs), flips(values, candidate, turned))


@given(SCORES, st.data(), st.integers(1, 12))
def test_deciles_hold_every_pair_once_and_average_to_the_rate(
    values: list[int], data: st.DataObject, parts: int
) -> None:
    candidate = data.draw(st.lists(st.integers(-1000, 1000), min_size=len(values), max_size=len(values)))
    found = by_margin(values, candidate, parts=parts)
    counts = flips(values, candidate, every(len(values)))
    ordered = int(np.count_nonzero(~np.isnan(counts)))
    assert sum(part.pairs for part in found) == ordered
    assert all(part.low <= part.high for part in found)
    assert all(before.high <= after.low for before, after in itertools.pairwise(found))
    assert sum(part.pairs * part.rate for part in found) == pytest.approx(np.nansum(counts))


def test_margins_are_in_standard_deviations() -> None:
    (part,) = by_margin([0.0, 20.0], [0.0, 1.0])  # the standard deviation is 10
    assert (part.low, part.high, part.pairs, part.rate) == (2.0, 2.0, 1, 0.0)


def test_close_pairs_flip_first() -> None:
    draw = np.random.default_rng(0)
    reference = draw.normal(size=200)
    found = by_margin(reference, reference + 0.05 * draw.normal(size=200))
    assert found[0].rate > 0.1 and found[-1].rate == 0
    assert found[0].low < 0.01 and found[-1].high > 3  # in standard deviations


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_score_that_is_no_number_is_named(broken: float) -> None:
    with pytest.raises(ValueError, match=r"candidate\[1\]"):
        flip_rate([1.0, 2.0], [1.0, broken])


def test_scores_of_other_items_are_refused() -> None:
    with pytest.raises(ValueError, match="3 scores, the reference has 2"):
        flip_rate([1.0, 2.0], [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match=r"shape \[1, 2\]"):
        flip_rate([[1.0, 2.0]], [1.0, 2.0])
    with pytest.raises(ValueError, match="names item 2"):
        flip_rate([1.0, 2.0], [1.0, 2.0], _pairs((0, 2)))
    with pytest.raises(ValueError, match="no pairs"):
        flip_rate([1.0], [1.0])


def test_a_column_of_scores_is_scores() -> None:
    np.testing.assert_array_equal(scored(np.array([[1.0], [2.0]], dtype=np.float32), "it"), [1.0, 2.0])


@pytest.mark.parametrize(("hits", "trials"), [(0, 10), (3, 40), (10, 10), (611, 160_800)])
def test_the_exact_interval_is_scipys(hits: int, trials: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    found = stats.binomtest(hits, trials).proportion_ci(method="exact")
    assert exact_interval(hits, trials) == pytest.approx((found.low, found.high), rel=1e-6, abs=1e-12)


def test_an_interval_of_half_a_flip_or_of_nothing_is_the_wider() -> None:
    assert exact_interval(2.5, 9) == (exact_interval(2, 9)[0], exact_interval(3, 9)[1])
    assert exact_interval(0, 0) == (0.0, 1.0)


@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), min_size=2, max_size=30))
def test_rank_correlation_is_scipys(values: list[tuple[int, int]]) -> None:
    stats = pytest.importorskip("scipy.stats")
    first, second = map(list, zip(*values, strict=True))
    found = rank_correlation(first, second)
    if len(set(first)) == 1 or len(set(second)) == 1:
        assert found is None
    else:
        assert found == pytest.approx(stats.spearmanr(first, second).statistic, abs=1e-12)
