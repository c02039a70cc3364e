"""Which grids a study is made on, and what they say of themselves."""

from pathlib import Path

import numpy as np
import pytest

from greentrain.carbon.typical import TypicalSignal
from greentrain.config.schema import CarbonConfig
from greentrain.errors import ConfigError, TraceError, UnknownZoneError
from greentrain.simulator.grids import check_bases, grids_of, recorded_grid, typical_year
from greentrain.types import CarbonBasis
from tests.simulator.grids import HOUR
from tests.simulator.planning import write_csv

VALUES = np.array([300.0, 200.0, 100.0])


def test_a_recording_says_that_it_is_replayed(tmp_path: Path) -> None:
    found = recorded_grid(str(write_csv(tmp_path / "here.csv", VALUES)))
    assert found.recorded and found.trace.g_per_kwh.tolist() == VALUES.tolist()
    assert "recorded, 2022-01-01T00:00Z to 2022-01-01T03:00Z, replayed (average, accounting unspec" in found.label


@pytest.mark.parametrize(
    ("suffix", "basis", "accounting"),
    [
        ("", CarbonBasis.AVERAGE, "unspecified"),
        ("@marginal", CarbonBasis.MARGINAL, "unspecified"),
        ("@average:consumption", CarbonBasis.AVERAGE, "consumption"),
    ],
)
def test_what_a_recording_is_may_be_said(tmp_path: Path, suffix: str, basis: CarbonBasis, accounting: str) -> None:
    found = recorded_grid(str(write_csv(tmp_path / "a@b.csv", VALUES)) + suffix)
    assert (found.trace.name, found.trace.basis, found.trace.accounting) == ("a@b", basis, accounting)


def test_a_basis_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is 'margnal'; known: average, marginal\. Did you mean 'marginal'"):
        recorded_grid(f"{write_csv(tmp_path / 'x.csv', VALUES)}@margnal")


def test_a_typical_year_is_that_of_its_signal_and_says_so() -> None:
    found = typical_year("ciso")
    trace, signal = found.trace, TypicalSignal("US-CAL-CISO")
    assert len(trace.g_per_kwh) == 8760 and trace.name == "US-CAL-CISO" and not found.recorded
    for hour in (0, 4000, 8759):
        t_s = trace.start_unix_s + hour * HOUR
        assert trace.g_per_kwh[hour] == signal.mean(t_s, t_s + HOUR).g_per_kwh
    assert "a profile, not a recording" in found.label and "2022" in found.label


def test_files_come_before_the_configured_trace_and_that_before_the_zone(tmp_path: Path) -> None:
    first, second = (str(write_csv(tmp_path / f"{name}.csv", VALUES)) for name in "ab")
    carbon = CarbonConfig(signal="trace", zone="US-CAL-CISO", trace_csv=first)
    assert [g.trace.name for g in grids_of(carbon, (second,))] == ["b"]
    assert [g.trace.name for g in grids_of(carbon)] == ["a"]
    assert [g.trace.name for g in grids_of(CarbonConfig(zone="PJM"))] == ["US-MIDA-PJM"]


def test_a_hole_is_bridged_as_configured(tmp_path: Path) -> None:
    path = tmp_path / "holes.csv"
    path.write_text("timestamp_utc,g_per_kwh\n2022-01-01T00:00Z,1\n2022-01-01T01:00Z,1\n2022-01-01T03:00Z,3\n")
    with pytest.raises(TraceError, match="a gap of 1 h"):
        grids_of(CarbonConfig(), (str(path),))
    (found,) = grids_of(CarbonConfig(trace_max_gap_h=1.0), (str(path),))
    assert found.trace.g_per_kwh.tolist() == [1.0, 1.0, 2.0, 3.0]


def test_no_zone_an_unknown_one_and_two_files_of_one_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no grid is named: set carbon\.zone .* --trace"):
        grids_of(CarbonConfig())
    with pytest.raises(UnknownZoneError, match="nearest are US-CAL-CISO"):
        grids_of(CarbonConfig(zone="US-CAL-CIS"))
    (tmp_path / "other").mkdir()
    files = [str(write_csv(folder / "x.csv", VALUES)) for folder in (tmp_path, tmp_path / "other")]
    with pytest.raises(ConfigError, match="two traces are called 'x'"):
        grids_of(CarbonConfig(), files)


def test_bases_are_not_mixed_and_unstated_accounting_is_no_contradiction() -> None:
    check_bases([("a", "average", "unspecified"), ("b", "average", "production")])
    with pytest.raises(ConfigError, match=r"more than one basis \(a is average; b is marginal\)"):
        check_bases([("a", "average", "production"), ("b", "marginal", "production")])
    with pytest.raises(ConfigError, match=r"more than one accounting \(a is production; c is uns.*; b is consumption"):
        check_bases([("a", "average", "production"), ("c", "average", "unspecified"), ("b", "average", "consumption")])
