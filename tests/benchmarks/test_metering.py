"""benchmarks/metering.py stays alive; its figures are not judged here, a loaded machine would decide them."""

import functools
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks import metering_phases
from benchmarks.metering_common import Bench, Row
from benchmarks.metering_limit import limits
from tests.power.phased_device import PhasedDevice

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "metering.py"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("gcc") is None, reason="the fake NVIDIA driver needs gcc"),
]


@pytest.mark.long
def test_quick_cases_give_a_figure_in_every_row(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    command = [sys.executable, str(SCRIPT), "--quick", "--only", "import", "--only", "total", "--json", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text())["rows"]
    assert {row["case"] for row in rows} == {"import", "total"}
    ours = {row["what"]: row["values"]["greentrain"] for row in rows}
    assert all(isinstance(value, float) for value in ours.values()), ours
    totals = [row["values"]["greentrain"] for row in rows if row["case"] == "total"]
    assert all(abs(error) < 10 for error in totals), totals
    assert all(f"| {what} |" in done.stdout for what in ours)


def test_phases_are_measured_in_counted_time_and_those_of_the_books_are_nearest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(metering_phases, "PEERS", {})  # their imports take seconds
    monkeypatch.setattr(time, "sleep", pytest.fail)
    bench = Bench(quick=True, library=tmp_path, scratch=tmp_path, say=pytest.fail)
    found = {row.what: row.values["greentrain"] for row in metering_phases.phase(bench)}
    before = {what: value for what, value in found.items() if what.endswith(metering_phases.STRAIGHT)}
    assert len(before) == 14 and len(bench.notes) == 1
    for what, straight in before.items():
        ours = found[what.removesuffix(f", {metering_phases.STRAIGHT}")]
        assert isinstance(ours, float) and isinstance(straight, float) and ours < straight, what


@pytest.mark.parametrize("sees", [0.25, 1.0])
def test_an_oracle_is_off_by_its_own_error_and_by_less_where_it_knows_the_window(sees: float) -> None:
    apart = []
    for seed in range(24):
        recording = PhasedDevice(seed=seed, sees=sees, length_s=20.0, late_s=0.0034).made()
        true_j = np.array(list(recording.by_phase(0.5, 19.0).values()))
        known, found = limits(recording, 0.5, 19.0)
        assert (known.error_j <= found.error_j).all() and known.error_j.sum() < 0.99 * found.error_j.sum()
        apart.append([(each.energy_j - true_j) / each.error_j for each in (known, found)])
    assert np.sqrt(np.mean(np.square(apart), axis=(0, 2))) == pytest.approx([1.0, 1.0], abs=0.2)


def test_a_bar_that_nobody_can_reach_is_called_so() -> None:
    row = functools.partial(Row, case="phase", what="error", unit="%", bar=6.0)
    assert row(values={"greentrain": 5.0}, least=4.0).verdict == "PASS"
    assert row(values={"greentrain": 7.0}, least=4.0).verdict == row(values={"greentrain": 7.0}).verdict == "MISS"
    assert row(values={"greentrain": 7.0}, least=6.5).verdict == "MISS, and out of reach"


def test_an_unknown_case_is_refused_with_the_known_ones() -> None:
    command = [sys.executable, str(SCRIPT), "--only", "nonsense"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "background" in done.stderr
