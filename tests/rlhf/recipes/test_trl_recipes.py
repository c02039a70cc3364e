"""The recipes for TRL with random models; real ones take minutes: see docs/rlhf.md for what those printed."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from greentrain.fpga_backend.artifact import load
from greentrain.rlhf.settings import OffloadSettings
from recipes.trl import dpo_offload, grpo_offload, models

ROOT = Path(__file__).resolve().parents[3]
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
]


@pytest.mark.sweep
@pytest.mark.parametrize(
    "words", ["--algorithm grpo --mode late", "--algorithm dapo --mode stream", "--algorithm rloo", "--staleness 1"]
)
def test_each_algorithm_trains_and_says_what_was_hidden(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grpo_offload.main(["--small", "--steps", "2", "--out", str(tmp_path), *words.split()])
    said = capsys.readouterr().out
    assert re.search(r"^step 2: reward -?[\d.]+", said, re.MULTILINE)
    assert re.search(r"^reward: 16 sequences, \d+ tokens, [\d.]+ s on the device", said, re.MULTILINE)
    assert ("reference: 16 sequences" in said) is ("dapo" not in words)
    assert "generate " in said and Path(re.findall(r"report: (.+)$", said, re.MULTILINE)[-1]).is_file()


def test_dpo_asks_the_reference_once_for_each_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dpo_offload.main(["--small", "--steps", "2", "--out", str(tmp_path)])
    said = capsys.readouterr().out
    assert "reference: 40 sequences" in said
    loss = re.findall(r"^step 1: loss ([\d.]+)", said, re.MULTILINE)
    assert float(loss[0]) == pytest.approx(0.6931, abs=2e-3)  # ln 2: policy and reference still agree


def test_the_yaml_recipe_holds_keys_of_trl_and_of_the_offload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trl.scripts.grpo import GRPOScriptArguments
    from trl.scripts.utils import DatasetMixtureConfig, TrlParser
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.model_config import ModelConfig

    models.main([str(tmp_path / "models"), "--small"])
    assert load(tmp_path / "models" / "reward").program.labels == 1
    recipe = yaml.safe_load((ROOT / "recipes/trl/grpo.yaml").read_text(encoding="utf-8"))
    monkeypatch.setenv("GREENTRAIN_OFFLOAD", "")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    parser: Any = TrlParser((GRPOScriptArguments, GRPOConfig, ModelConfig, DatasetMixtureConfig))  # type: ignore[arg-type]
    script, config, _, data = parser.parse_args_and_config(
        ["--config", str(ROOT / "recipes/trl/grpo.yaml"), "--use_cpu", "--output_dir", str(tmp_path)]
    )
    assert script.reward_funcs == ["greentrain.rlhf.trl.yaml_reward.offloaded_reward"]
    assert (config.beta, data.datasets[0].data_files) == (0.0, "models/prompts.jsonl")
    monkeypatch.chdir(tmp_path)
    settings = OffloadSettings.load(ROOT / recipe["env"]["GREENTRAIN_OFFLOAD"])
    assert settings.reward is not None and (tmp_path / settings.reward.model / "tokenizer.json").exists()


@pytest.mark.slow
@pytest.mark.long
def test_two_processes_share_a_training(tmp_path: Path) -> None:
    command = "-m accelerate.commands.launch --config_file recipes/trl/multi_gpu.yaml --num_processes 2"
    script = "--main_process_port 0 recipes/trl/grpo_offload.py --small --steps 2"
    environ = {k: v for k, v in os.environ.items() if k not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    done = subprocess.run(
        [sys.executable, *command.split(), *script.split(), "--out", str(tmp_path)],
        cwd=ROOT,
        env=environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(re.findall(r"^step 2: reward", done.stdout, re.MULTILINE)) == 1
    assert "reference: 16 sequences" in done.stdout
