"""benchmarks/fpga_emulator.py stays alive; figures are not judged, a loaded machine would decide them."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import fpga_emulator

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "fpga_emulator.py"


def _run(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, str(SCRIPT), *words], capture_output=True, text=True, check=False, timeout=200
    )


@pytest.mark.long
def test_quick_ways_give_figures() -> None:
    done = _run("--quick", "--only", "greentrain", "--only", "bf16")
    assert done.returncode == 0, done.stderr
    rows = {line.split(" | ")[0].strip("| "): line.split(" | ") for line in done.stdout.splitlines() if "|" in line}
    for way in ("fp32", "bf16", "greentrain"):
        assert float(rows[way][1].replace(",", "")) > 0
    assert 0 < float(rows["greentrain"][-1].strip(" |")) < 0.5, "the emulator's scores are not the model's"
    assert "ONNX Runtime int8" not in rows
    assert "Traceback" not in done.stderr


def test_a_part_does_not_replace_the_whole_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "table.md"
    text.write_text("before", encoding="utf-8")
    with pytest.raises(SystemExit, match="2"):
        fpga_emulator.main(["--only", "fp32", "--into", str(text)])
    assert "--into replaces the whole table" in capsys.readouterr().err
    assert text.read_text() == "before"


def test_the_speed_of_the_cpp_product_can_be_measured() -> None:
    if shutil.which("g++") is None:
        pytest.skip("no g++ on PATH")
    assert fpga_emulator.gmac_per_s(rows=64, outputs=64, inner=100, repeats=2) > 0
