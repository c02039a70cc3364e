"""The truth as an array, and what is seen of it."""

from pathlib import Path

import numpy as np
import pytest

from greentrain.carbon.forecast import profile_forecast
from greentrain.errors import TraceError
from greentrain.simulator.grid_trace import GridTrace, Sight
from greentrain.types import CarbonBasis
from tests.simulator.grids import HOUR, START, daily, trace, wandering


def test_the_integral_is_that_of_the_staircase() -> None:
    grid = trace(np.array([100.0, 300.0, 200.0]))
    t = START + np.array([0.0, 1800.0, HOUR, 1.5 * HOUR, 3 * HOUR])
    assert grid.integral(t) == pytest.approx(HOUR * np.array([0.0, 50.0, 100.0, 250.0, 600.0]))
    assert grid.at(t[:4]).tolist() == [100.0, 100.0, 300.0, 300.0]
    assert grid.end_unix_s == START + 3 * HOUR


def test_a_window_may_begin_and_end_within_a_step() -> None:
    values, seconds = trace(np.array([100.0, 300.0, 200.0])).window(START + 1800.0, 2 * HOUR)
    assert values.tolist() == [100.0, 300.0, 200.0]
    assert seconds.tolist() == [1800.0, HOUR, 1800.0]


def test_a_file_is_read_as_the_signal_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "us_xx.csv"
    path.write_text(
        "timestamp_utc,g_per_kwh\n2022-01-01T00:00Z,100\n2022-01-01T01:00Z,200\n2022-01-01T03:00Z,400\n",
        encoding="utf-8",
    )
    with pytest.raises(TraceError, match="a gap of 1 h"):
        GridTrace.read(path)
    grid = GridTrace.read(path, max_gap_h=1.0, basis=CarbonBasis.MARGINAL, accounting="production")
    assert grid.g_per_kwh.tolist() == [100.0, 200.0, 300.0, 400.0]
    assert (grid.name, grid.start_unix_s, grid.step_s) == ("us_xx", START, HOUR)
    assert (grid.basis, grid.accounting) == (CarbonBasis.MARGINAL, "production")
    path.write_text("timestamp_utc,g_per_kwh\n2022-01-01T00:00,100\n2022-01-01T01:00,200\n", encoding="utf-8")
    with pytest.raises(TraceError, match="has no time zone"):
        GridTrace.read(path)


@pytest.mark.parametrize(
    ("values", "said"), [([], "0 of 0"), ([1.0, np.nan], "number 1, nan"), ([-1.0], "number 0, -1")]
)
def test_values_must_be_known(values: list[float], said: str) -> None:
    with pytest.raises(TraceError, match=said):
        trace(np.array(values))


def test_a_policy_sees_the_past_and_the_running_hour_but_no_more() -> None:
    values = wandering(100)
    asked: list[np.ndarray[tuple[int, int], np.dtype[np.float64]]] = []

    def forecaster(past, hours):  # type: ignore[no-untyped-def]
        asked.append(past)
        return np.full((len(past), hours), 7.0)

    sight = Sight(trace(values), forecaster, horizon_h=10, past_h=48)
    t = START + np.array([60.0, 70.0]) * HOUR
    assert sight.past(t, 5).tolist() == [values[55:60].tolist(), values[65:70].tolist()]
    assert sight.ahead(t, 3).tolist() == [[values[60], 7.0, 7.0], [values[70], 7.0, 7.0]]
    assert asked[0].tolist() == [values[13:61].tolist(), values[23:71].tolist()]
    sight.ahead(t, 10)
    assert len(asked) == 1


def test_before_the_trace_nothing_is_known() -> None:
    sight = Sight(trace(wandering(10)), daily, horizon_h=3, past_h=24)
    assert np.isnan(sight.past(np.array([START + HOUR]), 3)).tolist() == [[True, True, False]]
    assert np.isnan(sight.ahead(np.array([START + HOUR]), 3)).tolist() == [[False, True, True]]
    assert np.isfinite(Sight(trace(wandering(10)), profile_forecast, horizon_h=3).ahead(np.array([START]), 3)).all()


def test_perfect_foresight_ends_with_the_trace() -> None:
    values = wandering(5)
    sight = Sight(trace(values), None, horizon_h=4)
    assert sight.ahead(np.array([START + 3 * HOUR]), 4).tolist() == [[values[3], values[4], values[4], values[4]]]


def test_within_an_hour_the_forecast_moves_on() -> None:
    values = np.array([100.0, 200.0, 400.0, 800.0])
    sight = Sight(trace(values), None, horizon_h=3)
    assert sight.ahead(np.array([START + 0.25 * HOUR]), 3).tolist() == [[100.0, 250.0, 500.0]]


def test_finer_traces_are_seen_by_the_hour_but_for_the_running_step() -> None:
    sight = Sight(trace(np.array([1.0, 3.0, 5.0, 7.0]), step_s=1800.0), None, horizon_h=1)
    assert sight.ahead(np.array([START + 1800.0]), 1).tolist() == [[3.0]]
    assert sight.past(np.array([START + HOUR]), 1).tolist() == [[2.0]]
