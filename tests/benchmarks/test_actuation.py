"""benchmarks/actuation.py stays alive; figures are not judged, a loaded machine would decide them."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import actuation

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "actuation.py"


def _run(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, str(SCRIPT), *words], capture_output=True, text=True, check=False, timeout=200
    )


@pytest.mark.long
def test_quick_cases_give_a_figure_in_every_row() -> None:
    done = _run("--quick", "--only", "overhead", "--only", "pause", "--only", "limits")
    assert done.returncode == 0, done.stderr
    rows = [
        line.split(" | ") for line in done.stdout.splitlines() if line.startswith(("| overhead", "| pause", "| limits"))
    ]
    assert len(rows) == 8
    assert all(float(row[3]) > 0 for row in rows if "a step with" not in row[1]), done.stdout
    assert "unset" not in done.stderr and "Traceback" not in done.stderr


def test_a_part_does_not_replace_the_whole_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "table.md"
    text.write_text("before", encoding="utf-8")
    with pytest.raises(SystemExit, match="2"):
        actuation.main(["--only", "pause", "--into", str(text)])
    assert "--into replaces the whole table" in capsys.readouterr().err
    assert text.read_text() == "before"
