"""Asynchronous GRPO: bounded staleness, published weights, and the same weights from the same log."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import IterableDataset
from transformers import TrainerCallback

from greentrain.errors import ConfigError
from greentrain.fpga_backend.emulator.device import Emulator
from greentrain.fpga_backend.remote.client import RemoteDevice
from greentrain.rlhf.engine import OffloadEngine
from greentrain.rlhf.frozen_pass import place
from greentrain.rlhf.kinds import PassKind
from greentrain.rlhf.trl import ahead
from greentrain.rlhf.trl.ahead import BOUNDS, Ahead, read_log, weights_digest
from tests.helpers.flaky_device import Fault, Flaky
from tests.rlhf.engine.test_kills import QUICK, TOKEN, lending
from tests.rlhf.trl import tiny
from tests.rlhf.trl.runs import trainer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.filterwarnings("error::greentrain.errors.GreenTrainWarning"),
]
SMALL: dict[str, Any] = {"per_device_train_batch_size": 2, "num_generations": 2, "max_steps": 5}
BOUND = 2


@pytest.fixture(autouse=True)
def _some_are_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores that are there or not by the place in the run, not by the clock."""
    monkeypatch.setattr(Ahead, "_ready", lambda self: bool(self._pending) and self._pending[0].generation % 3 == 2)


@pytest.fixture(scope="module")
def parts() -> Iterator[tuple[Any, Any]]:
    """Compiled models and a device."""
    device = Emulator()
    yield tiny.artifacts(), device
    device.close()


@pytest.fixture(scope="module")
def run(parts: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run with a checkpoint at its second step: its folder, and the SHA-256 of its weights."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ahead, "_ready", lambda self: bool(self._pending) and self._pending[0].generation % 3 == 2)
        folder = tmp_path_factory.mktemp("run")
        options: dict[str, Any] = SMALL | {"save_strategy": "steps", "save_steps": 2}
        made = trainer("grpo", "late", folder, *parts, arguments={"staleness": BOUND}, **options)
        made.train()
        logged = [log["offload/staleness"] for log in made.state.log_history if "offload/staleness" in log]
    assert max(logged) == BOUND
    return folder / "out", weights_digest(made.model)


def test_the_log_says_which_weights_made_what_and_keeps_the_bound(run: Any) -> None:
    folder, digest = run
    first, *records = read_log(folder / "rollouts" / "rank-00000.jsonl")
    made = {one["generation"]: one for one in records if one["kind"] == "made"}
    trained = [one for one in records if one["kind"] == "trained"]
    assert first["staleness"] == BOUND and list(made) == [one["generation"] for one in trained] == [0, 1, 2, 3, 4]
    lag = [one["step"] - made[one["generation"]]["step"] for one in trained]
    assert lag[0] == 0 and max(lag) == BOUND and len(set(lag)) > 1
    assert records[-1]["kind"] == "ended" and records[-1]["weights"] == digest
    whole = json.loads((folder / "rollouts" / "rank-00000.jsonl").read_text().splitlines()[1])
    assert len(whole["completions"]) == 4 and all(isinstance(i, int) for row in whole["completions"] for i in row)


@pytest.mark.parametrize("trouble", ["another device", "a device that dies"])
def test_the_same_log_gives_the_same_weights(trouble: str, run: Any, parts: Any, tmp_path: Path) -> None:
    folder, digest = run
    compiled, home = parts
    dying = trouble == "a device that dies"
    faults = {1: Fault.DIES, 2: Fault.NAN, 4: Fault.FAILS, 6: Fault.LOST} if dying else {}
    device = Flaky(Emulator(), faults)
    passes = [
        place(kind, one, device, home=home, sequences=3, temperature=tiny.TEMPERATURE if kind == "reference" else 1.0)
        for kind, one in compiled.items()
    ]
    engine = OffloadEngine(passes)
    arguments = {"replay": folder / "rollouts", "reward_funcs": tiny.reward(engine)}
    made = trainer("grpo", "stream", tmp_path, *parts, arguments=arguments, **SMALL)
    made.ref_model.engine = made.engine = engine
    made.model.generate = None  # nothing is generated
    if dying:
        with pytest.warns(UserWarning, match="redone"):
            made.train()
    else:
        made.train()
    device.close()
    assert weights_digest(made.model) == digest
    assert (engine.stats()[PassKind.REWARD].redone > 0) is dying
    assert not (tmp_path / "out" / "rollouts").exists()


def test_a_resumed_run_ends_with_the_same_bits(run: Any, parts: Any, tmp_path: Path) -> None:
    shutil.copytree(run[0], tmp_path / "out")
    log = tmp_path / "out" / "rollouts" / "rank-00000.jsonl"
    with log.open("ab") as file:
        file.write(b'{"kind":"made","n":99,"gen')  # what a kill leaves
    made = trainer("grpo", "late", tmp_path, *parts, arguments={"staleness": BOUND}, **SMALL)
    made.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    assert weights_digest(made.model) == run[1]
    kept = ("kind", "generation", "step", "prompts", "weights")
    before, after = (
        [{key: one.get(key) for key in kept} for one in read_log(path)]
        for path in (run[0] / "rollouts" / "rank-00000.jsonl", log)
    )
    assert before == after


def test_without_staleness_the_bits_are_the_synchronous_ones(parts: Any, tmp_path: Path) -> None:
    digests = set()
    for arguments in ({}, {"staleness": 0}):
        made = trainer("grpo", "late", tmp_path, *parts, arguments=arguments, **{**SMALL, "max_steps": 2})
        made.train()
        digests.add(weights_digest(made.model))
    assert len(digests) == 1 and not (tmp_path / "out" / "rollouts").exists()


def test_weights_are_bounded_as_published(parts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = trainer("grpo", "late", tmp_path, *parts, arguments={"staleness": 1}, **{**SMALL, "max_steps": 1})
    scored = made._generate_and_score_completions
    kept: list[Any] = []
    made._generate_and_score_completions = lambda rows: (kept.append(rows), scored(rows))[1]  # type: ignore[func-returns-value]
    made.train()
    current, streams = made._ahead.current, made._ahead.current.streams
    made.model.train()
    output = list(current.output)
    for row, logps in enumerate(output[4]):  # as if the weights that made them were others
        output[4][row] = [logp + (row - 1.5) * 1.2 * (-1) ** i for i, logp in enumerate(logps)]
    made._ahead.current = current._replace(output=tuple(output))
    for name, (mode, most) in BOUNDS.items():
        made.vllm_importance_sampling_mode, made.vllm_importance_sampling_clip_max = mode, most
        made.take_streams(streams)
        found = scored(kept[0])
        mask = found["completion_mask"].numpy()
        apart = (found["old_per_token_logps"].numpy() - found["sampling_per_token_logps"].numpy()) * mask
        ratio = np.exp(apart.sum(1, keepdims=True, dtype=np.float32) if name == "mis" else apart)
        assert (ratio > most).any() and (ratio < most).any(), name
        wanted = np.minimum(ratio, most) if mode == "token_truncate" else np.where(ratio > most, 0.0, ratio)
        assert np.allclose(found["importance_sampling_ratio"].numpy(), wanted, rtol=1e-6, atol=0), name
        assert found["importance_sampling_ratio"].max() <= most
    made.beta, made.current_gradient_accumulation_steps = 0.0, 1
    whole = made._compute_loss(made.model, found)
    found["importance_sampling_ratio"] = torch.zeros_like(found["importance_sampling_ratio"])
    assert whole != 0.0 and made._compute_loss(made.model, found) == 0.0
    assert made.use_vllm is False


def test_rollouts_of_the_same_weights_weigh_exactly_one(parts: Any, tmp_path: Path) -> None:
    made = trainer("grpo", "late", tmp_path, *parts, arguments={"staleness": 1, "correction": "tis"}, **SMALL)
    assert (made.args.vllm_importance_sampling_mode, made.args.vllm_importance_sampling_clip_max) == BOUNDS["tis"]
    made.args.max_steps = 1
    made.train()
    logged = made.state.log_history[0]
    for figure in ("min", "mean", "max"):
        assert logged[f"sampling/importance_sampling_ratio/{figure}"] == 1.0
    assert logged["sampling/sampling_logp_difference/max"] == 0.0


def test_prompts_come_in_the_order_of_trls_own_loader(parts: Any, tmp_path: Path) -> None:
    arguments = {"staleness": 1, "train_dataset": tiny.prompts(8)}
    made = trainer("grpo", "late", tmp_path, *parts, arguments=arguments, **{**SMALL, "steps_per_generation": 4})
    loader = made.get_train_dataloader()
    seen = [batch for _ in range(2) for i, batch in enumerate(loader) if i % 4 == 0]
    assert [made._ahead._rows(i) for i in range(len(seen))] == seen and len(seen) == 4


@pytest.mark.parametrize(
    ("arguments", "options", "match"),
    [
        ({"staleness": -1}, {}, "staleness=-1: give a number of generations"),
        ({"staleness": 1, "correction": "tiss"}, {}, "choose one of tis, areal, vtrace, mis.*tis"),
        ({"correction": "tis"}, {}, "nothing is stale"),
        ({"staleness": 1, "tools": [len]}, {}, "tools with staleness=1"),
        ({"staleness": 1}, {"vllm_importance_sampling_correction": False}, "taken for new ones"),
        ({"staleness": 1, "train_dataset": "STREAM"}, {}, "stream"),
        ({"replay": "no folder"}, {}, r"no folder.*is no log of rollouts"),
        ({"replay": "RUN"}, {"seed": 8}, "logged with seed=7, and this run has 8"),
        ({"replay": "RUN"}, {"max_steps": 9}, "logged with max_steps=5, and this run has 9"),
        ({"replay": "RUN", "model": "other"}, {}, r"logged with model \(SHA-256\)="),
        ({"replay": "TORN"}, {}, "does not begin as a log"),
        ({"replay": "GAP"}, {}, "gap in its generations"),
    ],
)
def test_what_does_not_go_together_is_refused_before_training(
    arguments: dict[str, Any], options: dict[str, Any], match: str, run: Any, parts: Any, tmp_path: Path
) -> None:
    lines = (run[0] / "rollouts" / "rank-00000.jsonl").read_bytes().splitlines(keepends=True)
    kept = {"RUN": lines, "TORN": lines[1:], "GAP": lines[:1] + lines[2:]}
    if arguments.get("replay") in kept:
        (tmp_path / "rank-00000.jsonl").write_bytes(b"".join(kept[arguments["replay"]]))
        arguments = {**arguments, "replay": tmp_path}
    if arguments.get("train_dataset") == "STREAM":
        arguments = {**arguments, "train_dataset": IterableDataset.from_generator(lambda: iter([{"prompt": "a"}]))}
    if arguments.get("model") == "other":
        arguments = {**arguments, "model": tiny.policy(layers=1)}
    with pytest.raises(ConfigError, match=match):
        trainer("grpo", "late", tmp_path, *parts, arguments=arguments, **{**SMALL, **options})


def test_eager_mode_and_logs_that_are_short_or_of_other_prompts_are_refused(
    run: Any, parts: Any, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="no pass would begin early"):
        trainer("grpo", "eager", tmp_path, *parts, arguments={"staleness": 1}, **SMALL)
    lines = (run[0] / "rollouts" / "rank-00000.jsonl").read_bytes().splitlines(keepends=True)
    last = max(i for i, line in enumerate(lines) if b'"trained"' in line)
    (tmp_path / "rank-00000.jsonl").write_bytes(b"".join(lines[:last]))
    made = trainer("grpo", "late", tmp_path, *parts, arguments={"replay": tmp_path}, **SMALL)
    with pytest.raises(ConfigError, match="has 4 generations to train on from step 0, and max_steps=5 needs 5"):
        made.train()
    arguments = {"replay": run[0] / "rollouts", "train_dataset": tiny.prompts(16)}
    made = trainer("grpo", "late", tmp_path, *parts, arguments=arguments, **SMALL)
    with pytest.raises(ConfigError, match=r"generation 0 of .* is of other prompts"):
        made.train()


def test_a_run_that_goes_on_with_other_settings_says_where_its_replay_ends(
    run: Any, parts: Any, tmp_path: Path
) -> None:
    shutil.copytree(run[0], tmp_path / "out")
    options = {**SMALL, "max_steps": 3}
    made = trainer("grpo", "late", tmp_path, *parts, arguments={"staleness": BOUND}, **options)
    with pytest.warns(UserWarning, match="can be replayed up to step 2"):
        made.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    assert made.state.global_step == 3
    assert [one["kind"] for one in read_log(tmp_path / "out" / "rollouts" / "rank-00000.jsonl")][-1] == "ended"
    assert ahead.FORMAT == 1


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_the_same_log_gives_the_same_weights_where_a_server_is_killed(run: Any, parts: Any, tmp_path: Path) -> None:
    child, url = lending()
    try:
        compiled, home = parts
        device = RemoteDevice(url, token=TOKEN, patience=QUICK)
        passes = [
            place(kind, one, device, home=home, temperature=tiny.TEMPERATURE if kind == "reference" else 1.0)
            for kind, one in compiled.items()
        ]
        engine = OffloadEngine(passes)
        arguments = {"replay": run[0] / "rollouts", "reward_funcs": tiny.reward(engine), "callbacks": [Killer(child)]}
        made = trainer("grpo", "late", tmp_path, *parts, arguments=arguments, **SMALL)
        made.ref_model.engine = made.engine = engine
        with pytest.warns(UserWarning, match="is lost .* with the same bits"):
            made.train()
        device.close()
        assert weights_digest(made.model) == run[1]
        assert engine.stats()[PassKind.REWARD].redone or engine.stats()[PassKind.REFERENCE].redone
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


class Killer(TrainerCallback):
    """Kills a server after the second step."""

    def __init__(self, child: int) -> None:
        self.child = child

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 2:
            os.kill(self.child, signal.SIGKILL)
