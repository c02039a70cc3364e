"""The traces that the repository holds are whole, and what their script makes of the record that they derive from."""

import argparse
import re
from pathlib import Path

import pytest

from benchmarks.held_traces import HELD, folder_of, unpacked
from greentrain.carbon.trace import read_trace
from tools.make_traces import SOURCES, make_trace

MEANS = dict(
    re.findall(r"^\| (us_\w+) \|.*\| ([\d.]+) \|$", (HELD.parent / "SOURCES.md").read_text("utf-8"), re.MULTILINE)
)


@pytest.mark.parametrize("name", SOURCES)
def test_a_year_of_hours_with_the_mean_that_its_sources_state(name: str) -> None:
    rows = read_trace(folder_of(argparse.ArgumentParser(), None) / f"{name}.csv")
    assert (len(rows.values), rows.step_s) == (8760, 3600.0)
    assert sum(rows.values) / 8760 == pytest.approx(float(MEANS[name]), abs=0.05)


def test_all_that_is_held_has_a_source() -> None:
    assert {path.stem for path in unpacked().iterdir()} == set(MEANS) == set(SOURCES)


def test_hours_that_were_not_recorded_are_interpolated(tmp_path: Path) -> None:
    record = tmp_path / "x.csv"
    hours = [f"2022-01-01 {hour:02d}:00:00+00:00,{value}" for hour, value in enumerate(("100.04", "", "", "130.06"))]
    record.write_text("\n".join(("timestamp,avg_CI", *hours)), encoding="utf-8")
    assert make_trace(record, "x").split() == [
        "timestamp_utc,g_per_kwh",
        "2022-01-01T00:00Z,100.0",
        "2022-01-01T01:00Z,110.0",
        "2022-01-01T02:00Z,120.1",
        "2022-01-01T03:00Z,130.1",
    ]
