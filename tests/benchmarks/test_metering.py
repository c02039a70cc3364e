"""benchmarks/metering.py stays alive; its figures are not judged here, a loaded machine would decide them."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import metering_phases
from benchmarks.metering_common import Bench

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


def test_an_unknown_case_is_refused_with_the_known_ones() -> None:
    command = [sys.executable, str(SCRIPT), "--only", "nonsense"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "background" in done.stderr
