"""What is known of a zone over time."""

import math
import random

import pytest

from greentrain.carbon.series import HOLD_S, LEAD_S, Reading, Series, checked
from greentrain.carbon.source import GridRow, intensity, unix_s
from greentrain.types import CarbonKind

H = 3600.0
A, E, F = CarbonKind.ACTUAL, CarbonKind.ESTIMATED, CarbonKind.FORECAST


def reading(
    t0_h: float,
    g: float,
    kind: CarbonKind = A,
    *,
    hours: float = 1.0,
    fetched_h: float = 0.0,
    issued: float | None = 1.0,
) -> Reading:
    return Reading(t0_h * H, (t0_h + hours) * H, g, kind, issued, fetched_h * H)


def test_the_mean_is_weighted_by_time_and_says_the_weakest_kind() -> None:
    series = Series().plus([reading(0, 100), reading(1, 200, E, issued=5.0), reading(2, 400, F)])
    assert series.mean(0, H) == (100, A, 1.0)
    both, all_three = series.mean(0.5 * H, 1.25 * H), series.mean(0, 3 * H)
    assert (both.kind, both.issued_unix_s) == (E, 5.0)
    assert both.g_per_kwh == pytest.approx((0.5 * 100 + 0.25 * 200) / 0.75)
    assert (all_three.kind, all_three.issued_unix_s) == (F, 5.0)
    assert all_three.g_per_kwh == pytest.approx(700 / 3)
    assert series.mean(H, H).g_per_kwh == 200, "at an edge the later value holds"


def test_an_unknown_part_makes_the_whole_unknown() -> None:
    series = Series().plus([reading(10, 100), reading(20, 100)])
    assert series.mean(9.9 * H, 10.5 * H).g_per_kwh is None
    assert series.mean(10 * H, 20.5 * H).g_per_kwh is None
    assert Series().mean(0.0, 1.0).g_per_kwh is None


def test_the_last_value_is_held_for_two_hours_as_an_estimate() -> None:
    series = Series().plus([reading(0, 100), reading(5, 300)])
    assert series.mean(1.5 * H, 2 * H)[:2] == (100, E)
    assert series.mean(H + HOLD_S - 1, H + HOLD_S)[:2] == (100, E)
    assert series.mean(H + HOLD_S - 1, H + HOLD_S + 1).g_per_kwh is None
    assert series.mean(7.9 * H, 8 * H).g_per_kwh == 300
    assert series.mean(8 * H, 8 * H).g_per_kwh is None
    ahead = Series().plus([reading(0, 100, F)])
    assert ahead.mean(1.1 * H, 1.2 * H).g_per_kwh is None, "a forecast is not held"


def test_a_forecast_stands_where_nothing_is_known_and_not_too_far_ahead() -> None:
    lead_h = LEAD_S / H
    series = Series().plus([reading(0, 100), *(reading(h, 7.0, F) for h in range(50))])
    assert series.mean(0, H) == (100, A, 1.0)
    assert series.mean(H, 2 * H)[:2] == (7.0, F)
    assert series.mean(lead_h * H, lead_h * H + 1).g_per_kwh == 7.0
    assert series.mean((lead_h + 1) * H, (lead_h + 1) * H + 1).g_per_kwh is None
    assert len(series.forecast(0, 1e9, oldest_unix_s=0.0)) == 50
    assert series.forecast(0, 1e9, oldest_unix_s=1.0) == []
    assert [r.t0_unix_s / H for r in series.forecast(3.5 * H, 5 * H, 0.0)] == [3, 4]
    half = Series().plus([reading(0, 100, hours=0.5), reading(0, 7.0, F)])
    assert half.mean(0.5 * H, H)[:2] == (7.0, F), "half of it is known"
    assert half.mean(0.0, H)[:2] == (53.5, F)


def test_a_forecast_fills_a_hole_between_known_values_with_that_hours_own() -> None:
    series = Series().plus([reading(0, 100), reading(3, 300), *(reading(h, 10.0 * h, F) for h in range(6))])
    hours = [series.mean(h * H, (h + 1) * H)[:2] for h in range(6)]
    assert hours == [(100, A), (10, F), (20, F), (300, A), (40, F), (50, F)]
    assert series.mean(1.5 * H, 2.5 * H).g_per_kwh == pytest.approx(15)


def test_a_forecast_counts_up_to_a_day_after_it_came() -> None:
    series = Series().plus([reading(h, 7.0, F, fetched_h=100) for h in (101, 124, 125)])
    assert [series.mean(h * H, (h + 0.5) * H).g_per_kwh for h in (101, 124, 125)] == [7.0, 7.0, None]


def test_what_ends_as_an_interval_begins_or_begins_as_it_ends_does_not_reach_into_it() -> None:
    series = Series().plus([reading(h, 100.0 + h, kind) for h, kind in enumerate((A, A, A, F, F, F))])
    assert [r.g_per_kwh for r in series.points(H, 2 * H)] == [101]
    assert [r.g_per_kwh for r in series.points(2.5 * H, 3.5 * H)] == [102, 103], "known and forecast"
    assert [r.g_per_kwh for r in series.forecast(4 * H, 5 * H, 0.0)] == [104]
    assert len(series) == 6 and len(series.since(2 * H)) == 4
    assert [r.g_per_kwh for r in series.since(4 * H).ahead] == [104, 105] and not series.since(4 * H).known


def test_newer_readings_take_the_place_of_older_ones() -> None:
    series = Series().plus([reading(h, 100) for h in range(4)])
    finer = [reading(1 + 0.25 * i, 10.0 * i, hours=0.25) for i in range(4)]
    series = series.plus(finer)
    assert series.mean(H, 2 * H).g_per_kwh == 15
    assert series.mean(0, H).g_per_kwh == series.mean(2 * H, 3 * H).g_per_kwh == 100
    coarse = series.plus([reading(0, 5.0, hours=4)])
    assert len(coarse) == 1 and coarse.mean(0, 4 * H).g_per_kwh == 5.0
    assert len(series.since(2 * H)) == 2


def test_readings_that_overlap_in_one_answer_end_where_the_next_begins() -> None:
    series = Series().plus([reading(0, 1.0, hours=2), reading(1, 3.0, hours=2)])
    assert series.mean(0, 3 * H).g_per_kwh == pytest.approx(7 / 3)


def test_it_is_a_time_average_over_any_cut() -> None:
    rng = random.Random(4)
    kinds = [A, E, F]
    readings = [reading(h * 0.5, rng.uniform(0, 900), rng.choice(kinds), hours=0.5, fetched_h=24) for h in range(96)]
    series = Series().plus(readings)
    for _ in range(300):
        a, b, c = sorted(rng.uniform(0, 48 * H) for _ in range(3))
        whole, left, right = series.mean(a, c).g_per_kwh, series.mean(a, b).g_per_kwh, series.mean(b, c).g_per_kwh
        assert whole is not None and left is not None and right is not None
        assert math.isclose(whole * (c - a), left * (b - a) + right * (c - b), rel_tol=1e-9)


def test_values_are_checked_and_null_is_nothing() -> None:
    odd: list[object] = [-1, 5001, math.nan, math.inf, "12", True, [1], {}]
    rows = [GridRow(h * H, (h + 1) * H, value, A) for h, value in enumerate([0, None, 12.5, *odd])]
    rows.append(GridRow(30 * H, 30 * H, 5.0, A))
    readings, wrong = checked(rows, 9.0)
    assert [(r.t0_unix_s / H, r.g_per_kwh, r.fetched_unix_s) for r in readings] == [(0, 0.0, 9.0), (2, 12.5, 9.0)]
    assert len(wrong) == len(odd) + 1
    assert intensity(None) is None


def test_a_time_without_a_zone_is_no_time() -> None:
    assert unix_s("1970-01-02T01:00+01:00") == 86400
    for text in ("2024-01-01T00:00", "yesterday"):
        with pytest.raises(ValueError, match=r"zone|Invalid"):
            unix_s(text)
