"""The recipes that shift gears, as a stranger would run them, at a reduced size."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from greentrain.ledger.reader import read_run
from recipes.common.gears import gear_lines
from recipes.common.settings import parse

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
LAUNCH = ["-m", "accelerate.commands.launch", "--main_process_port", "0", "--config_file"]
TWO = [*LAUNCH, "recipes/accelerate/two_processes.yaml", "recipes/accelerate/gears.py"]
ZERO = [*LAUNCH, "recipes/accelerate/gears_deepspeed.yaml", "recipes/accelerate/gears.py"]
STEPS = 20


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def _run(command: list[str], out: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    environ = {k: v for k, v in os.environ.items() if k not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    return subprocess.run(
        [sys.executable, *command, "--small", "--steps", str(STEPS), "--out", str(out)],
        cwd=ROOT,
        env=environ | {"XDG_CACHE_HOME": str(cache), "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "first", "ranks"),
    [
        pytest.param(["recipes/lightning/gears.py"], "step", 1, id="lightning"),
        pytest.param(TWO, "without DeepSpeed", 2, id="accelerate"),
        pytest.param(
            ZERO,
            "DeepSpeed ZeRO stage 2",
            1,
            id="deepspeed",
            marks=pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed"),
        ),
    ],
)
def test_shifts_and_learns(command: list[str], first: str, ranks: int, tmp_path: Path, cache: Path) -> None:
    done = _run(command, tmp_path, cache)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    assert "GreenTrainWarning" not in done.stderr
    assert any(line.startswith(first) for line in done.stdout.splitlines()), done.stdout
    losses = [float(loss) for loss in re.findall(r"val loss ([\d.]+) nats", done.stdout)]
    assert len(losses) == 4
    assert losses[-1] < losses[0]
    report = Path(re.findall(r"^report: (.+)$", done.stdout, re.MULTILINE)[0])
    run = read_run(report.parent)
    assert len(run.ranks) == ranks
    uses = run.totals.by_gear
    assert {gear: use.steps for gear, use in uses.items()} == {"bf16": 13, "fp8": 7}
    assert sum(use.tokens for use in uses.values()) == STEPS * 8 * 128
    for rank in run.ranks:
        log = [(event["step"], event["gear"]) for event in rank.events if event["name"] == "gear"]
        assert log == [(8, "fp8"), (15, "bf16")]
    lines = gear_lines(report.parent)
    assert all(line in done.stdout.splitlines() for line in lines)
    assert sum(" mJ/token (modelled)" in line for line in lines) == 2


@pytest.mark.long
@pytest.mark.skipif(find_spec("deepspeed") is not None, reason="DeepSpeed is installed")
def test_without_deepspeed_the_launcher_names_it(tmp_path: Path, cache: Path) -> None:
    done = _run(ZERO, tmp_path, cache)
    assert done.returncode != 0
    assert "DeepSpeed is not installed" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--schedule", "bf16"], "must look like"),
        (["--gear", "fp4"], "2"),
        (["--gear", "fp8", "--schedule", "0:bf16"], "2"),
    ],
)
def test_bad_words_are_refused(words: list[str], message: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    with pytest.raises(SystemExit, match=message):
        parse("gpt", ["--small", *words], gears=("bf16", "fp8"))


def test_a_schedule_and_a_gear_reach_the_configuration(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    settings = parse("gpt", ["--small", "--schedule", "0:bf16,7:fp8"], gears=("bf16", "fp8"))
    assert settings.green["policy"] == {"name": "scripted", "schedule": ((0, "bf16"), (7, "fp8"))}
    assert settings.green["precision"] == {"gears": ("bf16", "fp8"), "min_features": 96}
    settings = parse("gpt", ["--small", "--gear", "fp8"], gears=("bf16", "fp8"))
    assert settings.schedule == ((0, "fp8"),)
    assert "precision" not in parse("gpt", ["--small"]).green
