"""Forecasts from three weeks of history: how wrong they are, and what they do when history is short or has holes."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from greentrain.carbon.constant import ConstantSignal
from greentrain.carbon.forecast import ProfileForecast, forecast_trust, profile_forecast, trusted
from greentrain.types import CarbonKind, CarbonPoint

Array = NDArray[np.float64]
PAST = 21 * 24

BARS = {
    "us_caiso_2022_eia": (7.8, 10.5),
    "us_pjm_2022_eia": (2.9, 4.1),
    "us_miso_2022_eia": (5.1, 7.5),
    "us_ercot_2022_eia": (10.3, 14.3),
    "de_2023_em": (13.7, 22.0),
    "gb_2023_em": (18.1, 28.1),
}
"""Mean absolute error at 6 and 24 h, in % of the year's mean, that the issue sets."""


def year(traces: Path, name: str) -> Array:
    return np.loadtxt(traces / f"{name}.csv", delimiter=",", skiprows=1, usecols=1)


def windows(values: Array, first: Sequence[int], length: int) -> Array:
    return np.stack([values[i : i + length] for i in first])


def wavy(hours: int) -> Array:
    return 300.0 + 100.0 * np.sin(np.arange(hours) * 2 * np.pi / 24)


@pytest.mark.parametrize("name", BARS)
def test_errors_are_below_the_bars_of_the_issue(traces: Path, name: str) -> None:
    values = year(traces, name)
    first = range(0, len(values) - PAST - 24, 7)
    found = profile_forecast(windows(values, first, PAST), 24)
    truth = windows(values, [i + PAST for i in first], 24)
    errors = 100.0 * np.abs(found - truth).mean(axis=0) / values.mean()
    assert errors[5] <= BARS[name][0] and errors[23] <= BARS[name][1]


@pytest.mark.parametrize("name", ["us_nyiso_2022_eia", "us_soco_2022_eia", "us_bpat_2022_eia", "us_caiso_2023_em"])
def test_it_beats_yesterday_again_and_the_last_value(traces: Path, name: str) -> None:
    values = year(traces, name)
    first = range(0, len(values) - PAST - 24, 7)
    past = windows(values, first, PAST)
    truth = windows(values, [i + PAST for i in first], 24)
    error = np.abs(profile_forecast(past, 24) - truth).mean()
    assert error < 0.9 * np.abs(past[:, -24:] - truth).mean()
    assert error < 0.9 * np.abs(past[:, -1:] - truth).mean()


def test_what_repeats_is_forecast_exactly() -> None:
    values = wavy(PAST + 100)
    assert profile_forecast(values[None, :PAST], 100)[0] == pytest.approx(values[PAST:])
    assert profile_forecast(values[None, : 20 * 24 + 5], 5)[0] == pytest.approx(values[20 * 24 + 5 : 20 * 24 + 10])
    assert profile_forecast(np.full((2, PAST), 400.0), 300) == pytest.approx(np.full((2, 300), 400.0))


def test_many_at_once_are_as_one_by_one() -> None:
    rng = np.random.default_rng(0)
    past = 300.0 + rng.standard_normal((5, PAST)).cumsum(axis=1)
    past[1, 100:130] = np.nan
    past[2, -5:] = np.nan
    together = profile_forecast(past, 50)
    for one, expected in zip(past, together, strict=True):
        assert profile_forecast(one[None], 50)[0] == pytest.approx(expected, rel=1e-12)
    assert profile_forecast(past, 0).shape == (5, 0)


def test_an_anomaly_fades_towards_the_profile_and_faster_where_anomalies_pass() -> None:
    rng = np.random.default_rng(1)
    noise = rng.standard_normal(PAST)
    slow = np.convolve(noise, 0.95 ** np.arange(200))[:PAST]
    past = np.stack([300.0 + 3.0 * slow, 300.0 + 10.0 * noise])
    past[:, -3:] = 400.0
    found = profile_forecast(past, 200)
    assert np.all((found[:, 0] > 330.0) & (found[:, 0] < 420.0))
    assert found[:, -1] == pytest.approx([300.0, 300.0], abs=15.0)
    assert found[0, 8] > found[1, 8] + 10.0


def test_the_day_of_the_week_counts_from_eight_weeks_on() -> None:
    hours = np.arange(12 * 168 + 168)
    values: Array = np.where(hours // 24 % 7 >= 5, 240.0, 300.0)
    short = profile_forecast(values[None, : 12 * 168][:, -PAST:], 168)[0]
    long = profile_forecast(values[None, : 12 * 168], 168)[0]
    truth = values[12 * 168 :]
    assert np.abs(long - truth).mean() < 0.75 * np.abs(short - truth).mean()


def test_holes_are_left_out() -> None:
    values = wavy(PAST + 48)
    past = values[None, :PAST].copy()
    past[0, 50:150] = np.nan
    past[0, 12::24] = np.nan  # an hour that no day knows
    past[0, -3:] = np.nan
    found = profile_forecast(past, 48)[0]
    same = np.arange(48) % 24 != 12
    assert found[same] == pytest.approx(values[PAST:][same], rel=1e-6)
    assert found[~same] == pytest.approx(np.full(2, 300.0), abs=10.0)


def test_an_old_anomaly_has_faded_by_its_age() -> None:
    past = np.full((2, PAST), 300.0) + np.random.default_rng(2).standard_normal((2, PAST))
    past[:, -12:-6] += 50.0
    past[1, -6:] = np.nan
    known, unknown = profile_forecast(past, 3)
    assert np.all(unknown > known + 5.0) and np.all(unknown < 350.0)


def test_short_history_gives_what_it_can() -> None:
    hour = profile_forecast(np.array([[250.0]]), 3)
    assert hour.tolist() == [[250.0] * 3]
    some = profile_forecast(np.array([[200.0, 200.0, np.nan, 260.0]]), 200)[0]
    assert 220.0 < some[0] < 260.0 and some[-1] == pytest.approx(220.0, abs=0.01) and np.all(np.diff(some) < 0)
    day = wavy(24)
    assert profile_forecast(day[None], 48)[0] == pytest.approx(np.tile(day, 2))
    assert np.isnan(profile_forecast(np.full((1, 30), np.nan), 4)).all()
    assert np.isnan(profile_forecast(np.empty((2, 0)), 4)).all()


def test_no_forecast_is_far_below_what_was_seen() -> None:
    past = np.full((1, PAST), 300.0)
    past[0, :-12] += 30.0 * np.random.default_rng(3).standard_normal(PAST - 12)
    past[0, -2:] = [200.0, 5.0]
    assert np.all(profile_forecast(past, 100) >= 2.5)


class Told:
    """A signal with a forecast of its own."""

    zone = "told"

    def __init__(self, points: Sequence[tuple[float, float, float | None]], now: float | None = 333.0) -> None:
        self._points = [self._point(*point) for point in points]
        self._now = now

    def mean(self, t0_unix_s: float, t1_unix_s: float) -> CarbonPoint:
        return self._point(t0_unix_s, t1_unix_s, self._now)

    def describe(self) -> Mapping[str, str]:
        return {}

    def forecast(self, t0_unix_s: float, t1_unix_s: float) -> Sequence[CarbonPoint]:
        return [p for p in self._points if p.t1_unix_s > t0_unix_s and p.t0_unix_s < t1_unix_s]

    def _point(self, t0: float, t1: float, g: float | None) -> CarbonPoint:
        return CarbonPoint(
            t0_unix_s=t0, t1_unix_s=t1, g_per_kwh=g, zone="told", source="a test", kind=CarbonKind.FORECAST
        )


def test_the_signals_own_forecast_comes_first() -> None:
    t0 = 1_700_000_000.0
    half_hours = [(t0 + 1800.0 * i, t0 + 1800.0 * (i + 1), 100.0 + 10.0 * i) for i in range(-2, 12)]
    forecast = ProfileForecast(Told(half_hours))
    found = forecast.ahead(t0, 48, wavy(PAST))
    assert found[:6] == pytest.approx([105.0 + 20.0 * i for i in range(6)])
    assert forecast.basis == "the source's own forecast for 6 h, then the profile of 21 days"
    # what the own forecast is off the profile at its end fades behind it
    profile = profile_forecast(wavy(PAST)[None], 48)[0]
    assert abs(found[6] - profile[6]) > 50.0
    assert abs(found[47] - profile[47]) < abs(found[6] - profile[6])


def test_holes_and_late_beginnings_of_the_own_forecast_are_filled() -> None:
    t0 = 1_700_000_000.0
    points: list[tuple[float, float, float | None]] = [
        (t0 + 1000.0, t0 + 3600.0, None),
        (t0 + 2 * 3600.0, t0 + 3 * 3600.0, 150.0),
        (t0 + 3 * 3600.0, t0 + 3 * 3600.0 + 900.0, 150.0),
    ]
    found = ProfileForecast(Told(points)).ahead(t0, 6, wavy(PAST))
    assert found[0] == 333.0 and found[2] == 150.0
    assert np.isfinite(found).all() and found[1] > 250.0


def test_what_it_rests_on_is_said() -> None:
    forecast = ProfileForecast(ConstantSignal(320.0))
    assert forecast.ahead(0.0, 4, np.empty(0)).tolist() == [320.0] * 4
    assert forecast.basis == "the mean of 1 h, for want of a day of history"
    assert forecast.ahead(0.0, 4, np.full(50, 320.0)).tolist() == [320.0] * 4
    assert forecast.basis == "the profile of 2 days"
    unknown = ProfileForecast(Told([], now=None))
    assert np.isnan(unknown.ahead(0.0, 4, np.full(30, np.nan))).all()
    assert unknown.basis == "nothing: no history is known"
    known = ProfileForecast(Told([], now=None)).ahead(0.0, 4, wavy(PAST))
    assert known == pytest.approx(wavy(PAST + 4)[PAST:])


HOURS_OF_21_DAYS = np.arange(21 * 24)
DAY = 300.0 - 100.0 * np.sin(HOURS_OF_21_DAYS * 2 * np.pi / 24)


def test_swings_that_come_again_are_believed_and_others_are_not() -> None:
    noise = np.random.default_rng(0).normal(0.0, 50.0, 21 * 24)
    assert forecast_trust(DAY) == pytest.approx(1.0, abs=1e-6)
    assert forecast_trust(DAY + noise) > 0.9
    assert forecast_trust(300.0 + noise) < 0.3
    assert forecast_trust(DAY, lambda past, hours: 2 * profile_forecast(past, hours)) == pytest.approx(0.5, abs=1e-6)
    assert forecast_trust(DAY, lambda past, hours: -profile_forecast(past, hours)) == 0.0
    holes = np.where(HOURS_OF_21_DAYS % 7 == 0, np.nan, DAY)
    assert forecast_trust(holes) == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("past", [DAY[: 16 * 24 - 1], np.full(21 * 24, 100.0), np.full(21 * 24, np.nan)])
def test_where_nothing_can_be_compared_a_forecast_is_believed(past: NDArray[np.float64]) -> None:
    assert forecast_trust(past) == 1.0


def test_a_forecast_swings_as_wide_as_it_is_believed() -> None:
    found = trusted(np.array([[100.0, 300.0], [100.0, 300.0]]), np.array([0.25, 1.0]))
    assert found.tolist() == [[175.0, 225.0], [100.0, 300.0]]
