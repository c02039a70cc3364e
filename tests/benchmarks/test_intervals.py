"""benchmarks/intervals.py: random runs whose truth is known are within their intervals about as often as these say."""

import numpy as np
import pytest

from benchmarks import intervals


def test_intervals_hold_about_as_often_as_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals, "LENGTHS_S", (12.0, 20.0))
    outcomes = [intervals.one(seed) for seed in range(6)]
    held = [yes for outcome in outcomes for name in outcome.held for yes in outcome.held[name]]
    assert len(held) > 60 and 0.7 <= np.mean(held) <= 1.0, "figures of one run share its errors"
    table = intervals.tables(outcomes)[0]
    figures = [row[0] for row in table.rows if row[1] == "all"]
    assert figures[:2] == ["energy of the run", "operational grams of the run"]


def test_an_interval_that_is_too_narrow_is_found_out() -> None:
    narrow = intervals.Outcome(case=intervals.WELL, held={"energy of the run": [True] * 80 + [False] * 20}, wide={})
    narrow.wide["energy of the run"] = [0.1] * 100
    table = intervals.tables([narrow])[0]
    assert table.missed == 2 and table.passed == 0 and "MISS" in table.rows[0]


@pytest.mark.long
def test_a_hundred_runs_hold_in_87_to_93_of_them_within_what_chance_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals, "LENGTHS_S", (30.0, 60.0))
    outcomes = [intervals.one(seed) for seed in range(100)]
    for figure in ("energy of the run", "emissions of the run"):
        held = [yes for outcome in outcomes for yes in outcome.held[figure]]
        assert 0.82 <= np.mean(held) <= 0.97, figure  # 0.9 less or more than two and a half deviations
