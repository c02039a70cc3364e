"""Three everyday paths pass few files."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "path", ["joule", *(pytest.param(name, marks=pytest.mark.long) for name in ("decision", "rlhf"))]
)
def test_a_reader_follows_it_through_few_files(path: str) -> None:
    words = [sys.executable, "benchmarks/path_files.py", "-v", path]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(f"| path | files | at most |\n|---|---:|---:|\n| {path} | ")
