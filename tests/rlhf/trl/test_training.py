"""Whole trainings: the weights are the same bits however the passes overlap."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from datasets import Dataset
from peft import LoraConfig
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.rloo_config import RLOOConfig
from trl.trainer.rloo_trainer import RLOOTrainer

from benchmarks.paced_device import Wrapped
from greentrain import GreenSession
from greentrain.callbacks.transformers import GreenCallback
from greentrain.fpga_backend.batch import Batch, Result
from greentrain.fpga_backend.devices.null_device import NullDevice
from greentrain.fpga_backend.emulator.device import Emulator
from greentrain.rlhf.engine import OffloadEngine
from greentrain.rlhf.frozen_pass import place
from greentrain.rlhf.kinds import PassKind
from greentrain.rlhf.trl.ahead import read_log
from tests.helpers.flat_meter import FlatMeter
from tests.helpers.ports import free_port
from tests.rlhf.trl import tiny
from tests.rlhf.trl.runs import MODES, trainer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.filterwarnings("error::greentrain.errors.GreenTrainWarning"),
]
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def parts() -> Iterator[tuple[Any, Any]]:
    """Compiled models and a device."""
    device = Emulator()
    yield tiny.artifacts(), device
    device.close()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[subprocess.Popen[bytes]]]]:
    """Two ranks that train in each mode while the other tests run."""
    folder = tmp_path_factory.mktemp("ranks")
    port = free_port()
    shared = {
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "HF_HUB_OFFLINE": "1",
    }
    made = []
    for rank in "01":
        variables = os.environ | shared | {"RANK": rank, "LOCAL_RANK": rank, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "tests.rlhf.trl.runs", str(folder)]
        with (folder / f"log{rank}").open("wb") as log:
            made.append(subprocess.Popen(command, cwd=ROOT, env=variables, stdout=log, stderr=log))
    yield folder, made
    for process in made:
        process.kill()
        process.wait()


def trained(*args: Any, **options: Any) -> Any:
    made = trainer(*args, **options)
    made.train()
    return made


def test_grpo_trains_to_the_same_bits_in_every_mode(ranks: Any, parts: Any, tmp_path: Path) -> None:
    more: dict[str, Any] = {"num_iterations": 2, "steps_per_generation": 4, "per_device_train_batch_size": 2}
    more |= {"max_steps": 5, "eval_strategy": "steps", "eval_steps": 3}
    runs = {
        mode: trained("grpo", mode, tmp_path, *parts, arguments={"eval_dataset": tiny.prompts(4)}, **more)
        for mode in MODES
    }
    assert len({tiny.digest(run) for run in runs.values()}) == 1
    for key in ("kl", "eval_kl", "reward", "eval_reward"):
        logged = {mode: [log[key] for log in run.state.log_history if key in log] for mode, run in runs.items()}
        assert logged["sequential"] and len({tuple(values) for values in logged.values()}) == 1, key
    calls = {mode: run.ref_model.engine.stats()[PassKind.REFERENCE].calls for mode, run in runs.items()}
    assert calls["late"] == calls["eager"] == calls["sequential"] < calls["stream"]
    logs = [log for log in runs["late"].state.log_history if "offload/reference/busy_s" in log]
    assert {"offload/reference/wait_s", "offload/reference/redone", "offload/reward/busy_s"} <= set(logs[0])
    assert all(0 <= log["offload/reference/hidden"] <= 1 for log in logs)


@pytest.mark.long
def test_rloo_trains_to_the_same_bits_in_every_mode(parts: Any, tmp_path: Path) -> None:
    assert len({tiny.digest(trained("rloo", mode, tmp_path, *parts)) for mode in MODES}) == 1


@pytest.mark.long
def test_conversations_adapters_and_other_rewards_are_streamed(parts: Any, tmp_path: Path) -> None:
    talks = Dataset.from_dict({"prompt": [[{"role": "user", "content": text}] for text in tiny.prompts()["prompt"]]})
    digests, phases = set(), {}
    for mode in ("sequential", "stream"):
        session = GreenSession({"run": {"dir": str(tmp_path / "runs")}}, meter=FlatMeter())
        arguments = {
            "train_dataset": talks,
            "peft_config": LoraConfig(r=4, target_modules=["q_proj", "v_proj"]),
            "callbacks": [GreenCallback(session)],
        }
        made = trainer("grpo", mode, tmp_path, *parts, arguments=arguments, mask_truncated_completions=True)
        made.reward_funcs.append(every_third)
        made.reward_func_names.append("every_third")
        made.reward_processing_classes.append(None)
        made.reward_weights = torch.ones(2)
        made.train()
        assert "ref" not in made.model.peft_config
        digests.add(tiny.digest(made))
        phases[mode] = set(session.totals().by_phase)
        assert (made.ref_model.engine.stats()[PassKind.REWARD].calls > 3) == (mode == "stream")
    assert len(digests) == 1
    assert {"generate", "reward", "reference"} <= phases["stream"]


@pytest.mark.parametrize("algorithm", ["grpo", "rloo"])
def test_a_trainer_of_trls_own_shows_what_it_generates_and_scores(tmp_path: Path, algorithm: str) -> None:
    kinds = {"grpo": (GRPOTrainer, GRPOConfig), "rloo": (RLOOTrainer, RLOOConfig)}
    kind, config = kinds[algorithm]
    weights: dict[bool, Any] = {}
    for measured in (False, True):
        session = GreenSession({"run": {"dir": str(tmp_path), "report": False}}, meter=FlatMeter())
        made: Any = kind(
            tiny.policy(),
            lambda completions, **_: [float(len(one)) for one in completions],
            config(**tiny.options(tmp_path, beta=0.0, max_steps=2)),
            tiny.prompts(),
            processing_class=tiny.tokenizer(),
            callbacks=[GreenCallback(session)] if measured else [],
        )
        made.train()
        weights[measured] = tiny.digest(made)
    totals = session.totals()
    assert weights[False] == weights[True]
    assert {"generate", "reward", "forward", "backward"} <= set(totals.by_phase) and totals.steps == 2
    assert totals.tokens > 0 and not {"_generate", "_calculate_rewards"} & set(vars(made))


def every_third(completions: Any, **columns: Any) -> list[float | None]:
    return [float(len(one[0]["content"])) if i % 3 else None for i, one in enumerate(completions)]


class Gate(Wrapped):
    """A device whose log-probabilities come only when the gate is open."""

    def __init__(self, device: Any) -> None:
        super().__init__(device, name="gate", depth=64)
        self.open = threading.Event()
        self.was_open: list[bool] = []

    def deliver(self, number: int, batch: Batch, inner: "Future[Result]") -> Result:
        if batch.prompt_tokens is not None:
            self.was_open.append(self.open.wait(20.0))
        return super().deliver(number, batch, inner)


@pytest.mark.parametrize("algorithm", ["grpo", "rloo"])
def test_the_policys_forward_does_not_wait_for_the_reference(algorithm: str, parts: Any, tmp_path: Path) -> None:
    gate = Gate(Emulator())
    made = trainer(algorithm, "late", tmp_path, parts[0], gate, max_steps=1)
    forward = made.model.forward

    def through(*args: Any, fused_lm_head: bool = False, **kwargs: Any) -> Any:
        found = forward(*args, fused_lm_head=fused_lm_head, **kwargs)
        if fused_lm_head:  # generation comes without it
            gate.open.set()
        return found

    made.model.forward = through
    made.train()
    gate.close()
    assert gate.was_open and all(gate.was_open)


def test_a_resumed_run_ends_with_the_same_bits(parts: Any, tmp_path: Path) -> None:
    saving = {"save_strategy": "steps", "save_steps": 2, "max_steps": 3}
    trained("grpo", "late", tmp_path, *parts, **saving)
    resumed = set()
    for mode in ("sequential", "late"):
        made = trainer("grpo", mode, tmp_path, *parts, max_steps=4)
        made.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
        resumed.add(tiny.digest(made))
    assert len(resumed) == 1


def test_a_broken_device_costs_a_warning_and_no_bit(parts: Any, tmp_path: Path) -> None:
    compiled, home = parts
    broken = NullDevice()
    passes = [
        place(kind, one, broken, home=home, temperature=tiny.TEMPERATURE if kind is PassKind.REFERENCE else 1.0)
        for kind, one in compiled.items()
    ]
    failing = OffloadEngine(passes)
    arguments = {"reward_funcs": tiny.reward(failing)}
    made = trainer("grpo", "late", tmp_path, *parts, arguments=arguments)
    made.ref_model.engine = made.engine = failing
    with pytest.warns(UserWarning, match="redone"):
        made.train()
    broken.close()
    assert failing.stats()[PassKind.REFERENCE].redone
    assert tiny.digest(made) == tiny.digest(trained("grpo", "sequential", tmp_path, *parts))


@pytest.mark.long
def test_two_ranks_train_to_the_same_bits_in_every_mode(ranks: Any) -> None:
    folder, processes = ranks
    for rank, process in enumerate(processes):
        assert process.wait(240) == 0, (folder / f"log{rank}").read_text()[-2000:]
    first, second = (json.loads((folder / f"rank{rank}.json").read_text()) for rank in "01")
    assert first == second
    logs = [read_log(folder / "out" / "rollouts" / f"rank-0000{rank}.jsonl") for rank in "01"]
    order = [[(one["kind"], one.get("generation"), one.get("step")) for one in log] for log in logs]
    assert order[0] == order[1] and logs[0][1]["prompts"] != logs[1][1]["prompts"]
    for algorithm in ("grpo", "rloo", "async"):
        assert len({value for name, value in first.items() if name.startswith(algorithm)}) == 1


@pytest.mark.long
def test_trls_own_command_runs_a_recipe_with_an_offloaded_reward(tmp_path: Path) -> None:
    tokens = tiny.tokenizer()
    for name, model in (("policy", tiny.policy()), ("reward", tiny.reward_model())):
        model.save_pretrained(tmp_path / name)
        tokens.save_pretrained(tmp_path / name)
    tiny.prompts().to_json(tmp_path / "prompts.jsonl")
    (tmp_path / "offload.yaml").write_text("reward: {model: reward, max_tokens: 64}", encoding="utf-8")
    options = tiny.options(tmp_path, beta=0.0, max_steps=2)
    recipe = options | {
        "env": {"GREENTRAIN_OFFLOAD": "offload.yaml", "HF_HUB_OFFLINE": "1"},
        "model_name_or_path": "policy",
        "datasets": [{"path": "json", "data_files": "prompts.jsonl"}],
        "reward_funcs": ["greentrain.rlhf.trl.yaml_reward.offloaded_reward"],
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    command = [str(Path(sys.executable).with_name("trl")), "grpo", "--config", "recipe.yaml"]

    good = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert good.returncode == 0, good.stderr[-2000:]
    assert "rewards/offloaded_reward/mean" in good.stdout + good.stderr
