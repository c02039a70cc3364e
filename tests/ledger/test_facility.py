"""PUE as a constant and as the facility's records."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from greentrain.carbon.constant import ConstantSignal
from greentrain.carbon.replayed import GridTime, ReplayedSignal
from greentrain.config.schema import CarbonConfig
from greentrain.errors import TraceError
from greentrain.ledger.pue import ConstantPue, Facility, TracePue, in_run_time, open_facility
from greentrain.types import PueSource

T0 = datetime(2026, 3, 1, tzinfo=UTC)
T0_S = T0.timestamp()
TRACE, FALLBACK = PueSource.TRACE, PueSource.FALLBACK


def write_pue(path: Path, values: Sequence[float | str | None], step_s: float = 3600.0) -> Path:
    """Write a trace of PUE from T0 on; None leaves its row out."""
    rows = ["timestamp_utc,pue"]
    rows += [f"{(T0 + timedelta(seconds=i * step_s)).isoformat()},{v}" for i, v in enumerate(values) if v is not None]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def _asked(facility: Facility, t0_s: float, t1_s: float) -> tuple[object, PueSource]:
    point = facility.pue(T0_S + t0_s, T0_S + t1_s)
    return pytest.approx(point.value, abs=1e-12), point.source


def test_a_constant_is_one_number_that_nobody_recorded() -> None:
    facility = open_facility(CarbonConfig(pue=1.3), pytest.fail)
    assert isinstance(facility, ConstantPue) and isinstance(facility, Facility)
    assert _asked(facility, -1e9, 1e9) == (1.3, PueSource.CONSTANT)
    assert facility.pue(0, 1).provenance == "assumed"
    assert not facility.covers(T0_S, T0_S + 1)


@pytest.mark.parametrize("step_s", [60.0, 3600.0, 86400.0])
def test_a_trace_is_averaged_over_the_interval(tmp_path: Path, step_s: float) -> None:
    facility = TracePue(write_pue(tmp_path / "x.csv", [1.2, 1.6, 1.4], step_s), 1.1)
    assert _asked(facility, 0, step_s) == (1.2, TRACE)
    assert _asked(facility, 0.75 * step_s, 1.25 * step_s) == (1.4, TRACE)
    assert _asked(facility, 0.5 * step_s, 2.5 * step_s) == ((0.5 * 1.2 + 1.6 + 0.5 * 1.4) / 2, TRACE)
    assert _asked(facility, step_s, step_s) == (1.6, TRACE)
    assert facility.pue(T0_S, T0_S + 1).provenance == "recorded"


def test_outside_its_range_the_constant_stands_in_and_says_so(tmp_path: Path) -> None:
    facility = TracePue(write_pue(tmp_path / "x.csv", [1.2, 1.6]), 1.1)
    assert _asked(facility, 7190, 7200) == (1.6, TRACE)
    for t0_s, t1_s in ((-20, -10), (-10, 0), (7200, 7200), (7200, 7210), (1e9, 1e9 + 10)):
        assert _asked(facility, t0_s, t1_s) == (1.1, FALLBACK)
    assert _asked(facility, -5, 5) == ((1.1 + 1.2) / 2, FALLBACK)
    assert _asked(facility, 7195, 7205) == ((1.6 + 1.1) / 2, FALLBACK)
    assert _asked(facility, -3600, 10_800) == ((1.1 + 1.2 + 1.6 + 1.1) / 4, FALLBACK)
    assert facility.pue(T0_S - 10, T0_S).provenance == "assumed"
    assert facility.covers(T0_S, T0_S + 7200)
    assert not facility.covers(T0_S, T0_S + 7201) and not facility.covers(T0_S - 1, T0_S + 10)


def test_a_hole_is_no_record(tmp_path: Path) -> None:
    facility = TracePue(write_pue(tmp_path / "x.csv", [1.2, 1.2, None, None, 1.6, 1.6]), 2.0)
    assert _asked(facility, 3600, 7200) == (1.2, TRACE)
    assert _asked(facility, 7200, 14_400) == (2.0, FALLBACK)
    assert _asked(facility, 3600, 10_800) == (1.6, FALLBACK)
    assert _asked(facility, 14_400, 21_600) == (1.6, TRACE)
    assert not facility.covers(T0_S, T0_S + 21_600)


def test_months_are_no_holes(tmp_path: Path) -> None:
    rows = "".join(f"2026-{month:02d}-01T00:00Z,{1 + month / 10}\n" for month in range(1, 13))
    path = tmp_path / "x.csv"
    path.write_text(f"timestamp_utc,pue\n{rows}", encoding="utf-8")
    start_s, end_s = (datetime(2026, month, 1, tzinfo=UTC).timestamp() for month in (1, 12))
    assert TracePue(path, 1.0).covers(start_s, end_s)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("0.99", r"x\.csv:3: pue is '0\.99'; it must be between 1 and 5\. Remove .* not its inverse"),
        ("5.01", r"x\.csv:3: pue is '5\.01'; it must be between 1 and 5\."),
        ("83", r"x\.csv:3: pue is '83'.* percentage"),
        ("nan", r"x\.csv:3: pue is 'nan'"),
        ("", r"x\.csv:3: pue is '', not a number"),
    ],
)
def test_a_value_that_is_no_pue_names_file_line_value_and_remedy(tmp_path: Path, value: str, message: str) -> None:
    path = write_pue(tmp_path / "x.csv", [1.2, value, 1.3])
    with pytest.raises(TraceError, match=message):
        open_facility(CarbonConfig(pue_csv=str(path)), pytest.fail)


def test_the_bounds_themselves_are_pues(tmp_path: Path) -> None:
    facility = TracePue(write_pue(tmp_path / "x.csv", [1, 5]), 1.0)
    assert _asked(facility, 0, 7200) == (3.0, TRACE)


def test_a_wrong_file_names_the_key(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"check carbon\.pue_csv"):
        open_facility(CarbonConfig(pue_csv=str(tmp_path / "none.csv")), pytest.fail)
    path = tmp_path / "grid.csv"
    path.write_text("timestamp_utc,g_per_kwh\n2026-01-01T00:00Z,300\n", encoding="utf-8")
    with pytest.raises(TraceError, match="needs 'timestamp_utc' and 'pue'"):
        open_facility(CarbonConfig(pue_csv=str(path)), pytest.fail)


def test_records_follow_a_grid_that_is_replayed(tmp_path: Path) -> None:
    facility = TracePue(write_pue(tmp_path / "x.csv", [1.2, 1.6]), 1.1)
    signal = ConstantSignal(300.0, zone="test", source="test")
    now_s = 2e9
    replayed = in_run_time(facility, ReplayedSignal(signal, GridTime(unix_s=now_s, grid_s=T0_S, speed=360.0)))
    assert replayed.pue(now_s, now_s + 10).value == pytest.approx(1.2)
    assert replayed.pue(now_s + 5, now_s + 15).value == pytest.approx(1.4)
    assert replayed.pue(now_s + 20, now_s + 30).source is FALLBACK
    assert replayed.covers(now_s, now_s + 20) and not replayed.covers(now_s, now_s + 21)
    assert in_run_time(facility, signal) is facility
