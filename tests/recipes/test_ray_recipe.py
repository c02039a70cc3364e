"""The recipe for Ray Train on a real cluster of this machine, with one worker; tests/callbacks has changes of width."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from greentrain.ledger.reader import read_run
from tests.callbacks.ray_here import hide_from_processes

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed (extra 'ray')"),
    pytest.mark.long,
]
ROOT = Path(__file__).resolve().parents[2]
STEPS = 4


@pytest.fixture
def cluster() -> Iterator[str]:
    """Return an empty folder for Ray's files; end what is left of a cluster that keeps its files there."""
    temp = tempfile.mkdtemp(prefix="gt", dir="/tmp")  # short: a socket's path has at most 107 characters
    yield temp
    for process in psutil.process_iter():
        try:
            if any(temp in word for word in process.cmdline()[1:]):
                process.send_signal(signal.SIGKILL)
        except psutil.Error:
            continue
    shutil.rmtree(temp, ignore_errors=True)


def test_it_trains_on_a_worker_and_the_run_is_one(tmp_path: Path, cluster: str) -> None:
    keep = {k: v for k, v in os.environ.items() if k not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    environ = keep | {
        "PYTHONPATH": hide_from_processes(tmp_path / "hidden"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "OMP_NUM_THREADS": "1",
        "RAY_TMPDIR": cluster,
        "RAY_AUTH_MODE": "disabled",  # else a token is left in the home folder
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    words = ["--small", "--steps", str(STEPS), "--workers", "1:1", "--out", str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, "recipes/ray/train.py", *words],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said = done.stdout + done.stderr  # Ray brings the workers' lines to either
    assert f"step {STEPS}, 1 ranks: train loss" in said
    assert f"'step': {STEPS}" in done.stdout
    (report,) = re.findall(r"^report: (.+)$", done.stdout, re.MULTILINE)
    run = read_run(Path(report).parent)
    assert Path(report).is_file() and run.folder.parent == tmp_path / "out"
    assert (run.totals.steps, run.totals.tokens) == (STEPS, STEPS * 8 * 128)
    assert run.totals.energy_j > 0
