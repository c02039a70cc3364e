"""The traces that the repository holds are whole, and what their script makes of the record that they derive from."""

import argparse
import gzip
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.held_traces import HELD, folder_of, interpolated, unpacked
from greentrain.carbon.trace import read_trace
from greentrain.simulator.grid_trace import GridTrace
from tools.make_traces import SOURCES, make_moer, make_trace

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


def test_interpolated_five_minutes_keep_the_mean_of_each_hour_and_say_what_they_are() -> None:
    whole = GridTrace.read(unpacked() / "us_caiso_2022_eia.csv")
    fine = interpolated(whole, 300.0)
    assert (fine.step_s, fine.start_unix_s, fine.end_unix_s) == (300.0, whole.start_unix_s, whole.end_unix_s)
    assert fine.g_per_kwh.reshape(-1, 12).mean(axis=1) == pytest.approx(whole.g_per_kwh, rel=1e-9)
    assert fine.g_per_kwh.min() >= 0 and np.abs(np.diff(fine.g_per_kwh)).max() < np.abs(np.diff(whole.g_per_kwh)).max()
    assert "interpolated" in fine.name and fine.source.endswith(", interpolated to 300 s")
    with pytest.raises(ValueError, match="step_s is 7000; it must be a whole fraction of the 3600 s"):
        interpolated(whole, 7000.0)


def test_a_record_of_five_minutes_becomes_a_trace_in_grams(tmp_path: Path) -> None:
    for month in range(1, 13):  # each file begins with the last day of the month before
        rows = [f"2020-{max(month - 1, 1):02d}-28 00:00:00+00:00,0.1,9", f"2020-{month:02d}-28 00:05:00+00:00,0.1284,9"]
        text = "\n".join(("time,moer,f1", *rows))
        (tmp_path / f"SGIP_CAISO_SCE_2020-{month:02d}.csv.gz").write_bytes(gzip.compress(text.encode()))
    lines = make_moer(tmp_path).split()
    assert lines[:3] == ["timestamp_utc,g_per_kwh", "2020-01-28T00:00Z,100.0", "2020-01-28T00:05Z,128.4"]
    assert len(lines) == 1 + 11 + 12
