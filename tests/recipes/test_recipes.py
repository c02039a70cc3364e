"""Every recipe runs as a stranger would run it, at a reduced size."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from greentrain.ledger.reader import read_run

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
LAUNCH = [
    *["-m", "accelerate.commands.launch"],
    *["--config_file", "recipes/accelerate/two_processes.yaml", "--main_process_port", "0"],
]


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of tokens that all recipes share, and nobody else."""
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize(
    ("command", "ranks"),
    [
        pytest.param(["recipes/lightning/train_gpt.py"], 1, id="lightning", marks=pytest.mark.long),
        pytest.param([*LAUNCH, "recipes/accelerate/train_gpt.py"], 2, id="accelerate", marks=pytest.mark.long),
        pytest.param(["recipes/transformers/train_gpt.py"], 1, id="transformers", marks=pytest.mark.long),
        pytest.param(["recipes/raw/train.py"], 1, id="raw"),
    ],
)
def test_recipe(command: list[str], ranks: int, tmp_path: Path, cache: Path) -> None:
    environ = {k: v for k, v in os.environ.items() if k not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    done = subprocess.run(
        [sys.executable, *command, "--small", "--steps", "120", "--out", str(tmp_path)],
        cwd=ROOT,
        env=environ | {"XDG_CACHE_HOME": str(cache), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    assert "GreenTrainWarning" not in done.stderr
    losses = [float(loss) for loss in re.findall(r"(?:val|train) loss ([\d.]+) nats", done.stdout)]
    entropy = float(re.findall(r"unigram entropy ([\d.]+)", done.stdout)[0])
    assert len(losses) >= 4
    assert losses[-1] < losses[0]
    assert losses[-1] < entropy

    report = Path(re.findall(r"^report: (.+)$", done.stdout, re.MULTILINE)[0])
    assert report.is_file()
    run = read_run(report.parent)
    assert [rank.rank for rank in run.ranks] == list(range(ranks))
    assert run.totals.steps == 120
    assert run.totals.tokens == 120 * 8 * 128
    for rank in run.ranks:
        assert rank.close is not None
        assert rank.close["reason"] == "finished"
        assert rank.totals.energy_j > 0
        assert set(rank.totals.by_provenance) <= {"measured", "modelled"}
        assert sum(rank.totals.by_provenance.values()) == pytest.approx(rank.totals.energy_j)
        assert {"forward", "backward", "optimizer"} <= set(rank.totals.by_phase)
    assert run.totals.operational_g > 0
    assert "EIA" in run.ranks[0].entries[0].carbon.source
