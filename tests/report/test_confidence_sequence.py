"""Intervals that hold at every look: against the mixture that they are made of, and on simulated nulls."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from greentrain.report.confidence_sequence import SCALE, GroupDifference, group_half_width, t_bound


def _ratio(t: float, freedom: float, n: float) -> float:
    """Return the likelihood ratio of t from its definition: noncentral t, mixed over the effect, against central t."""

    def density(effect: float) -> float:
        mixed = stats.norm.pdf(effect, scale=math.sqrt(SCALE))
        return float(stats.nct.pdf(t, freedom, effect * math.sqrt(n)) * mixed)

    over = integrate.quad(density, -15, 15, points=[0.0, t / math.sqrt(n)], limit=200)[0]
    return float(over / stats.t.pdf(t, freedom))


@pytest.mark.parametrize(("freedom", "n"), [(8.0, 2.5), (11.0, 36 / 13), (21.0, 60 / 23), (5.0, 6.0), (3.4, 2.0)])
def test_at_its_bounds_the_mixture_is_as_likely_as_alpha_allows(freedom: float, n: float) -> None:
    for alpha in (0.05, 0.01):
        if math.isfinite(t := float(t_bound(freedom, n, alpha))):
            assert _ratio(t, freedom, n) == pytest.approx(1 / alpha, rel=1e-4)
        else:
            assert _ratio(1e4, freedom, n) < 1 / alpha
    assert math.isfinite(float(t_bound(freedom, n, 0.05)))


@pytest.mark.parametrize("paired", [False, True])
def test_few_runs_bound_nothing_and_more_bound_ever_closer(paired: bool) -> None:
    def width(n: int) -> float:
        one = GroupDifference(mean=0.0, variances=(1.0,) if paired else (1.0, 1.0), runs=(n,) if paired else (n, n))
        return one.interval(0.05)[1]

    widths = [width(n) for n in range(2, 200)]
    assert widths[0] == math.inf
    bounded = [each for each in widths if math.isfinite(each)]
    assert len(bounded) >= 196 and bounded == sorted(bounded, reverse=True) and bounded[-1] < 0.5


def test_of_unlike_variances_the_wider_error_counts() -> None:
    alike, unlike = group_half_width((1.0, 1.0), (10, 4), 0.05), group_half_width((0.1, 3.1), (10, 4), 0.05)
    pooled = math.sqrt(1 / 10 + 1 / 4) * float(t_bound(12, 40 / 14, 0.05))
    assert float(alike) >= pooled
    assert (9 * 0.1 + 3 * 3.1) / 12 < 1, "pooled, the second would be narrower"
    assert float(unlike) > 1.3 * float(alike)


def test_difference_follows_what_values_are_measured_in() -> None:
    rng = np.random.default_rng(3)
    a, b = list(rng.normal(0, 1, 6)), list(rng.normal(1, 1, 8))
    found = GroupDifference.of(a, b)
    assert found.mean == pytest.approx(np.mean(b) - np.mean(a))
    assert found.variances == pytest.approx((np.var(a, ddof=1), np.var(b, ddof=1))) and found.runs == (6, 8)
    other = GroupDifference.of([7 + 3 * x for x in a], [7 + 3 * x for x in b])
    assert other.interval(0.05) == pytest.approx([3 * side for side in found.interval(0.05)])
    pairs = GroupDifference.of(a, b[:6], paired=True)
    assert pairs.variances == pytest.approx([np.var(np.subtract(b[:6], a), ddof=1)]) and pairs.runs == (6,)
    with pytest.raises(ValueError, match="could not be broadcast"):
        GroupDifference.of(a, b, paired=True)


def test_what_does_not_vary_or_was_run_once_has_no_bounds() -> None:
    for found in (GroupDifference.of([1.0], [2.0]), GroupDifference.of([1.0, 1.0], [1.0, 1.0])):
        assert found.interval(0.05) == (-math.inf, math.inf)
        assert found.runs_needed(0.05, 0.01) is None


@pytest.mark.parametrize(("mean", "margin"), [(0.03, 0.01), (0.0, 0.01), (0.004, 0.01)])
def test_so_many_more_runs_decide_and_one_less_does_not(mean: float, margin: float) -> None:
    def after(more: int) -> tuple[float, float]:
        runs = (4 + more, 5 + more)
        return GroupDifference(mean=mean, variances=(0.0004, 0.0002), runs=runs).interval(0.05)

    def decided(bounds: tuple[float, float]) -> bool:
        low, high = bounds
        return low > 0 or high < 0 or (-margin < low and high < margin)

    found = GroupDifference(mean=mean, variances=(0.0004, 0.0002), runs=(4, 5))
    more = found.runs_needed(0.05, margin)
    assert more is not None and more > 0
    assert decided(after(more)) and not decided(after(more - 1))
    assert GroupDifference(mean=0.5, variances=(0.01,), runs=(9,)).runs_needed(0.05, 0.01) == 0
    assert GroupDifference(mean=0.005, variances=(9.0, 9.0), runs=(9, 9)).runs_needed(0.05, 0.01) is None


@pytest.mark.parametrize("paired", [False, True])
def test_a_look_after_every_run_is_no_more_often_wrong_than_alpha(paired: bool) -> None:
    rng = np.random.default_rng(11)
    alpha, trials, most = 0.1, 400, 12
    wrong = {"ours": 0, "t-test": 0}
    for _ in range(trials):
        a, b = rng.normal(5, 2, most).tolist(), rng.normal(5, 2, most).tolist()
        hit = {"ours": False, "t-test": False}
        for n in range(2, most + 1):
            found = GroupDifference.of(a[:n], b[:n], paired=paired)
            low, high = found.interval(alpha)
            hit["ours"] |= low > 0 or high < 0
            t = abs(found.mean) / math.sqrt(sum(found.variances) / n)
            hit["t-test"] |= t > stats.t.ppf(1 - alpha / 2, n - 1 if paired else 2 * n - 2)
        wrong = {name: wrong[name] + hit[name] for name in wrong}
    # 400 trials: a rate of 0.1 stays under 0.145 in all but 2 of 1,000 cases
    assert 0 < wrong["ours"] <= 0.145 * trials
    assert wrong["t-test"] > 0.2 * trials
