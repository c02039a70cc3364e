"""The offload recipe runs as a stranger would run it, at a reduced size."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from greentrain.ledger.reader import read_run

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.long
def test_the_reference_runs_beside_the_training_and_falls_behind(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "recipes/raw/offload.py", "--small", "--steps", "30", "--out", str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"XDG_CACHE_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    assert float(re.findall(r"reference: ([\d.-]+) nats", done.stdout)[0]) > 0.5
    waited_s, whole_s = map(float, re.findall(r"waited ([\d.]+) s of ([\d.]+) s", done.stdout)[0])
    assert waited_s < whole_s
    run = read_run(Path(re.findall(r"report: (.+)$", done.stdout, re.MULTILINE)[0]).parent)
    assert run.totals.steps == 30
    assert "reference" in run.totals.by_phase
