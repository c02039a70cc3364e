"""A recorded grid, at another time and speed."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pytest

from greentrain.carbon.replayed import GridTime, ReplayedSignal
from greentrain.carbon.trace import TraceSignal
from greentrain.config.schema import CarbonConfig
from greentrain.types import CarbonKind, CarbonPoint

NOW_S = 1_800_000_000.0
DAY = "2022-06-01T00:00+00:00"
DAY_S = 1_654_041_600.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "grid.csv"
    rows = "".join(f"2022-06-01T{hour:02}:00Z,{100 + 10 * hour}\n" for hour in range(24))
    path.write_text("timestamp_utc,g_per_kwh\n" + rows, encoding="utf-8")
    return path


@pytest.fixture
def trace(path: Path) -> TraceSignal:
    return TraceSignal(path)


def test_three_minutes_are_a_day_of_the_grid(trace: TraceSignal) -> None:
    time = GridTime.of(CarbonConfig(replay_start=DAY, speed=480.0), NOW_S)
    signal = ReplayedSignal(trace, time)
    assert [signal.mean(NOW_S + 7.5 * h, NOW_S + 7.5 * (h + 1)).g_per_kwh for h in range(24)] == [
        pytest.approx(100 + 10 * h) for h in range(24)
    ]
    assert signal.mean(NOW_S, NOW_S + 180).g_per_kwh == pytest.approx(215)
    point = signal.mean(NOW_S, NOW_S + 7.5)
    assert (point.t0_unix_s, point.t1_unix_s) == (NOW_S, NOW_S + 7.5)
    assert point.kind is CarbonKind.ESTIMATED
    assert point.source.endswith("replayed: the grid from 2022-06-01T00:00Z on, 480 times as fast")
    assert signal.describe()["replayed"] == "the grid from 2022-06-01T00:00Z on, 480 times as fast"


def test_beyond_the_recording_nothing_is_known(trace: TraceSignal) -> None:
    signal = ReplayedSignal(trace, GridTime(unix_s=NOW_S, grid_s=DAY_S, speed=480.0))
    assert signal.mean(NOW_S + 179, NOW_S + 181).g_per_kwh is None


def test_without_a_start_the_grid_is_now_and_only_faster() -> None:
    time = GridTime.of(CarbonConfig(speed=60.0), NOW_S)
    assert (time.at(NOW_S), time.at(NOW_S + 60)) == (NOW_S, NOW_S + 3600)
    assert time.real(NOW_S + 3600) == NOW_S + 60
    assert not time.is_real
    assert GridTime.of(CarbonConfig(), NOW_S).is_real
    assert GridTime.from_dict(asdict(time)) == time


def test_a_forecast_comes_at_real_times(path: Path, trace: TraceSignal) -> None:
    class Forecasting(TraceSignal):
        closed = False

        def forecast(self, t0_unix_s: float, t1_unix_s: float) -> Sequence[CarbonPoint]:
            return [self.mean(t0_unix_s, t1_unix_s)]

        def close(self) -> None:
            self.closed = True

    inner = Forecasting(path)
    signal = ReplayedSignal(inner, GridTime(unix_s=NOW_S, grid_s=DAY_S, speed=480.0))
    (point,) = signal.forecast(NOW_S + 7.5, NOW_S + 15)
    assert (point.t0_unix_s, point.t1_unix_s, point.g_per_kwh) == (NOW_S + 7.5, NOW_S + 15, 110)
    signal.close()
    assert inner.closed
    plain = ReplayedSignal(trace, GridTime(unix_s=NOW_S, grid_s=DAY_S))
    assert plain.forecast(NOW_S, NOW_S + 1) == []
    plain.close()
