"""benchmarks/metering.py stays alive; its figures are not judged here, a loaded machine would decide them."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_an_unknown_case_is_refused_with_the_known_ones() -> None:
    command = [sys.executable, str(SCRIPT), "--only", "nonsense"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "background" in done.stderr
