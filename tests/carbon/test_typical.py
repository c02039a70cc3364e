import math
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greentrain.carbon.trace import TraceSignal
from greentrain.carbon.typical import TypicalSignal, load_profiles
from greentrain.errors import UnknownZoneError
from greentrain.testing.signal_contract import SignalContract
from greentrain.types import CarbonSignal
from tools.make_typical import OUTPUT, make_typical

FILES: Mapping[str, str] = {
    "US-CAL-CISO": "us_caiso_2022_eia.csv",
    "US-MIDA-PJM": "us_pjm_2022_eia.csv",
    "US-MIDW-MISO": "us_miso_2022_eia.csv",
    "US-TEX-ERCO": "us_ercot_2022_eia.csv",
    "US-NY-NYIS": "us_nyiso_2022_eia.csv",
    "US-SE-SOCO": "us_soco_2022_eia.csv",
    "US-NW-BPAT": "us_bpat_2022_eia.csv",
}


def at(*parts: int) -> float:
    return datetime(*parts, tzinfo=UTC).timestamp()  # type: ignore[misc, arg-type]


class TestTypicalSignal(SignalContract):
    def make_signal(self) -> CarbonSignal:
        return TypicalSignal("US-CAL-CISO")

    def known(self) -> tuple[float, float]:
        return at(2026, 2, 26, 7, 13), at(2026, 3, 3, 2, 1)


def test_committed_file_is_what_the_script_makes(traces: Path) -> None:
    assert make_typical(traces) == OUTPUT.read_text(encoding="utf-8")


@pytest.mark.parametrize("zone", FILES)
def test_year_and_months_agree_with_the_trace(zone: str, traces: Path) -> None:
    signal, trace = TypicalSignal(zone), TraceSignal(traces / FILES[zone])
    year = trace.start_unix_s, trace.end_unix_s
    actual = trace.mean(*year).g_per_kwh
    assert actual is not None
    assert signal.mean(*year).g_per_kwh == pytest.approx(actual, rel=0.01)
    assert signal.profile.mean_g_per_kwh == pytest.approx(actual, abs=0.06)
    for month in range(1, 12):
        span = at(2022, month, 1), at(2022, month + 1, 1)
        assert signal.mean(*span).g_per_kwh == pytest.approx(trace.mean(*span).g_per_kwh, rel=0.03)


def test_profiles_are_complete_and_small() -> None:
    profiles = load_profiles()
    assert [p.zone for p in profiles] == list(FILES)
    for profile in profiles:
        assert len(profile.weekday) == 7 and 0 < profile.spread < 0.5
        assert len(profile.month_hour) == 12 and all(len(row) == 24 for row in profile.month_hour)
        assert all(5 < value < 1000 for row in profile.month_hour for value in row)
    assert OUTPUT.stat().st_size < 20_000
    assert "Energy Information Administration" in OUTPUT.read_text(encoding="utf-8")


def test_value_is_month_hour_times_weekday() -> None:
    signal = TypicalSignal("US-CAL-CISO")
    profile = signal.profile
    t0 = at(2026, 11, 21, 20)  # a Saturday
    assert signal.mean(t0, t0 + 10).g_per_kwh == profile.month_hour[10][20] * profile.weekday[5]


def test_hour_boundary_is_averaged() -> None:
    signal = TypicalSignal("CISO")
    noon = at(2026, 6, 10, 15)
    before, after = signal.mean(noon - 60, noon).g_per_kwh, signal.mean(noon, noon + 60).g_per_kwh
    assert before is not None and after is not None and before != after
    assert signal.mean(noon - 30, noon + 10).g_per_kwh == pytest.approx(0.75 * before + 0.25 * after)


@given(start=st.floats(0, 4e9), length=st.floats(1, 60 * 86400))
def test_mean_is_the_hourly_integral(start: float, length: float) -> None:
    signal = TypicalSignal("ERCO")
    end = start + length
    profile, area, t = signal.profile, 0.0, start
    while t < end:
        until = min(end, (t // 3600 + 1) * 3600)
        moment = datetime.fromtimestamp(t // 3600 * 3600, UTC)
        area += profile.month_hour[moment.month - 1][moment.hour] * profile.weekday[moment.weekday()] * (until - t)
        t = until
    mean = signal.mean(start, end).g_per_kwh
    assert mean is not None and math.isclose(mean, area / length, rel_tol=1e-6)


@pytest.mark.parametrize("zone", ["CISO", "us-cal-ciso", " CISO "])
def test_aliases(zone: str) -> None:
    assert TypicalSignal(zone).zone == "US-CAL-CISO"


def test_unknown_zone_lists_nearest_and_all() -> None:
    with pytest.raises(UnknownZoneError) as caught:
        TypicalSignal("US-CAL-CAISO")
    assert "nearest are US-CAL-CISO" in str(caught.value)
    assert all(zone in str(caught.value) for zone in FILES)


def test_outside_the_calendar_nothing_is_known() -> None:
    signal = TypicalSignal("PJM")
    assert signal.mean(-10.0, 10.0).g_per_kwh is None
    assert signal.mean(5e9, 5e9 + 1).g_per_kwh is None
