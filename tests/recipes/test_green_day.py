"""The recipe that replays a day of the grid measures, plans, pauses and says how good that was."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from greentrain.ledger.reader import read_run

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.alone
@pytest.mark.long
def test_a_day_in_a_minute(tmp_path: Path) -> None:
    command = [sys.executable, "recipes/lightning/green_day.py", "--small", "--minutes", "1", "--out", str(tmp_path)]
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "GREENTRAIN_CACHE_DIR": str(tmp_path / "cache")}
    environ = {k: v for k, v in os.environ.items() if k not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")} | cache
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Traceback" not in done.stderr and "GreenTrainWarning" not in done.stderr
    report = Path(re.findall(r"^report: (.+)$", done.stdout, re.MULTILINE)[0])
    assert report.is_file()
    summary = json.loads((report.parent / "summary.json").read_text())
    plan = summary["plan"]
    assert plan["policy"] == "mpc" and plan["replayed"]
    assert plan["decisions"] >= 3
    assert plan["provenance"] in ("measured", "modelled", "mixed")
    assert summary["action_table"] is not None, "the gears were measured"
    assert read_run(report.parent).totals.phase_s["paused"] > 3, "it rested, to learn what rest costs"
    assert re.search(r"^\d\d:\d\d UTC, step \d+: \w+\. ", done.stderr, re.MULTILINE)
    assert re.search(r"^mpc: .*deadline", done.stderr, re.MULTILINE)
