"""The elastic recipes leave with one process and return with two, and every token is trained once."""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from greentrain.config.schema import GreenConfig
from greentrain.control.launch.timeline import FILE
from greentrain.control.launcher_protocol import LauncherFiles, Notice, Offer
from greentrain.ledger.reader import read_run

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
ELASTIC = ROOT / "recipes" / "accelerate" / "elastic"
TWO = ["accelerate", "launch", "--config_file", str(ROOT / "recipes" / "accelerate" / "two_processes.yaml")]
STEPS = 50


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of tokens that both recipes share."""
    return tmp_path_factory.mktemp("cache")


def without_plan(folder: Path) -> Path:
    """Return a copy of the recipe with Accelerate that leaves only when it is told to."""
    shutil.copytree(ELASTIC, folder, ignore=shutil.ignore_patterns("__pycache__"))
    config: dict[str, Any] = yaml.safe_load((folder / "green.yaml").read_text())
    config["policy"] = {"name": "static"}
    (folder / "green.yaml").write_text(yaml.safe_dump(config))
    return folder / "train.py"


def has_stepped(folder: Path) -> bool:
    """Return whether an attempt has done its first step."""
    moments = folder / FILE
    return moments.exists() and '"what": "step"' in moments.read_text()


@pytest.mark.long
@pytest.mark.parametrize("recipe", ["raw", "accelerate"])
def test_it_leaves_with_one_process_and_returns_with_two(recipe: str, tmp_path: Path, cache: Path) -> None:
    script = ROOT / "recipes" / "raw" / "elastic.py"
    command, saved = ["python", str(script)], "raw-checkpoints"
    if recipe == "accelerate":
        command = [*TWO, str(without_plan(tmp_path / "recipes" / "accelerate" / "elastic"))]
        saved = "elastic-checkpoints"
    job = LauncherFiles(tmp_path / "job")
    job.folder.mkdir()
    job.write(Offer(attempt=0, ranks=1, min_ranks=1, max_ranks=2, can_wait=True))  # the first attempt gets one process
    launch = [sys.executable, "-c", "from greentrain.cli import main; main()", "launch"]
    options = ["--dir", str(job.folder), "--width", "1:2", "--checkpoints", saved, "--"]
    environ = {k: v for k, v in os.environ.items() if k not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")} | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "XDG_CACHE_HOME": str(cache),
        "GREENTRAIN_CACHE_DIR": str(cache),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    with subprocess.Popen(
        [*launch, *options, *command, "--small", "--steps", str(STEPS)],
        cwd=tmp_path,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            while process.poll() is None and not has_stepped(job.folder):
                time.sleep(0.02)
            job.write(Notice(attempt=1, reason="the test asks for two", ranks=2))
            said, _ = process.communicate(timeout=240)
        except BaseException:
            process.terminate()
            raise
    assert process.returncode == 0, said[-3000:]
    assert "Traceback" not in said and "GreenTrainWarning" not in said
    assert "attempt 1 left: the test asks for two" in said and "attempt 2 on 2 ranks from" in said
    assert f"step {STEPS}: " in said

    run = read_run(tmp_path / Path(re.findall(r"report: (\S+)", said)[0]).parent)
    assert [rank.rank for rank in run.ranks] == [0, 1]
    assert run.totals.steps == STEPS
    assert run.totals.tokens == STEPS * 8 * 128


def test_the_configuration_is_one() -> None:
    config = GreenConfig.load(ELASTIC / "green.yaml")
    assert config.policy.plans and config.policy.tokens == 400 * 8 * 128
    assert config.actuators.width is not None and config.actuators.width.widths == (1, 2)
