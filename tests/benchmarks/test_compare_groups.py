"""``benchmarks/compare_groups.py``: its looks are those of the product, and its null of the model is held."""

import numpy as np
import pytest

from benchmarks import compare_groups as bench
from greentrain.report.confidence_sequence import GroupDifference


@pytest.mark.parametrize(("head_start", "paired"), [(0, False), (3, False), (0, True)])
def test_its_intervals_are_those_that_the_command_gives(head_start: int, paired: bool) -> None:
    rng = np.random.default_rng(1)
    a, b = rng.normal(0, 1, (2, 6 + head_start)), rng.normal(1, 2, (2, 6))
    looks = bench.looks_at(a, b, head_start=head_start, paired=paired)
    assert looks.runs[-1] == (6 + head_start, 6) and looks.mean.shape == (2, len(looks.runs))
    for i, (n, m) in enumerate(looks.runs):
        found = GroupDifference.of(a[1, :n].tolist(), b[1, :m].tolist(), paired=paired)
        low, high = found.interval(bench.ALPHA)
        assert looks.mean[1, i] == pytest.approx(found.mean)
        assert (high - low) / 2 == pytest.approx(looks.halves["ours"][1, i]), (n, m)


@pytest.mark.parametrize("null", bench.NULLS[:2], ids=lambda null: null.name)
def test_looking_often_costs_the_t_test_its_word_and_not_ours(null: bench.Null) -> None:
    alarms = bench.false_alarms(null, 1000)
    assert alarms["ours"][-1] <= bench.ALPHA and alarms["Welch"][-1] > 3 * bench.ALPHA
    assert (np.diff(alarms["ours"]) >= 0).all()


def test_a_large_difference_is_decided_soon_and_rightly() -> None:
    found = bench.runs_to_decision(0.01, 0.1, 200)
    assert 2 <= np.median(found["runs"]) <= 5 and found["wrong"].mean() == 0
    assert (bench.planned_runs(0.01, 0.1), bench.planned_runs(0.01, 0.0)) == (2, None)
