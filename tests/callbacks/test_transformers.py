"""GreenCallback for the Hugging Face Trainer, in real Trainers."""

import shutil
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing import event_accumulator
from torch import Tensor
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainingArguments,
    set_seed,
)

from greentrain.callbacks.transformers import GreenCallback
from greentrain.errors import GreenTrainWarning
from greentrain.ledger.reader import read_run
from tests.callbacks.conftest import CONTEXT, VOCAB, Recorder, Text

pytestmark = [
    pytest.mark.filterwarnings("error::greentrain.errors.GreenTrainWarning"),
    pytest.mark.filterwarnings("ignore"),
]
Make = Callable[..., Recorder]
KEYS = {f"green/{key}" for key in ("energy_j", "power_w", "emissions_g", "tokens_per_j", "g_per_ktoken")}


class Slow(TrainerCallback):
    """Makes steps long enough to be booked, and raises where it is told to."""

    def __init__(self, sleep_s: float = 0.0, fail_at: int = -1) -> None:
        self.sleep_s, self.fail_at = sleep_s, fail_at

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        time.sleep(self.sleep_s)
        if state.global_step == self.fail_at:
            raise RuntimeError("a bug in the user's code")


def _trainer(folder: Path, *callbacks: TrainerCallback, **changed: Any) -> Trainer:
    set_seed(0)
    config = GPT2Config(
        vocab_size=VOCAB, n_positions=CONTEXT, n_embd=8, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0
    )
    options: dict[str, Any] = {"max_steps": 4, "save_strategy": "no", "report_to": "none", "logging_steps": 2}
    args = TrainingArguments(
        output_dir=str(folder / "out"),
        per_device_train_batch_size=2,
        use_cpu=True,
        disable_tqdm=True,
        **(options | changed),
    )
    return Trainer(
        GPT2LMHeadModel(config), args, train_dataset=Text(16), eval_dataset=Text(20), callbacks=list(callbacks)
    )


def _weights(trainer: Trainer) -> Tensor:
    assert trainer.model is not None
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


def test_phases_steps_and_tokens_with_accumulation(tmp_path: Path, recorder: Make) -> None:
    session = recorder()
    options: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    trainer = _trainer(tmp_path, GreenCallback(session), gradient_accumulation_steps=2, max_steps=2, **options)
    trainer.train()
    micro = ["forward", "backward"]
    step = [*micro, *micro, "optimizer", "step"]
    assert session.entered == ["data", *step, "data", *step, "eval", "checkpoint", "data"]
    totals = session.totals()
    assert (totals.steps, totals.tokens, totals.samples) == (2, 8 * CONTEXT, 8)
    assert totals.energy_j > 0
    assert not session.running
    assert session.parameters == len(_weights(trainer))


def test_tokens_as_the_trainer_counts_them(tmp_path: Path, recorder: Make) -> None:
    session = recorder()
    _trainer(tmp_path, GreenCallback(session), include_num_input_tokens_seen="all").train()
    assert session.totals().tokens == 4 * 2 * CONTEXT


def test_training_is_bit_identical(tmp_path: Path, recorder: Make) -> None:
    plain = _trainer(tmp_path)
    plain.train()
    green = _trainer(tmp_path, GreenCallback(recorder()))
    green.train()
    assert torch.equal(_weights(plain), _weights(green))


def test_metrics_reach_the_history_and_the_loggers(
    tmp_path: Path, recorder: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "tb"))
    session = recorder()
    trainer = _trainer(tmp_path, Slow(0.15), GreenCallback(session), report_to="tensorboard")
    trainer.train()
    history = trainer.state.log_history
    assert set(history[0]) >= KEYS
    assert "loss" in history[0]
    assert history[-1]["green/energy_j"] == pytest.approx(session.totals().energy_j)  # final, after the close

    events: Any = event_accumulator.EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    assert {f"train/{key}" for key in KEYS} <= set(events.Tags()["scalars"])
    logged = events.Scalars("train/green/energy_j")
    assert logged[0].step == 2
    assert logged[0].value == pytest.approx(history[0]["green/energy_j"])


@pytest.mark.sweep
@pytest.mark.parametrize("restore", [False, True])
@pytest.mark.parametrize("folder_lost", [False, True])
def test_a_resumed_training_continues_the_run(tmp_path: Path, recorder: Make, folder_lost: bool, restore: bool) -> None:
    first = recorder()
    options: dict[str, Any] = {
        "save_strategy": "steps",
        "save_steps": 4,
        "restore_callback_states_from_checkpoint": restore,
    }
    _trainer(tmp_path, GreenCallback(first), Slow(0.1), **options).train()
    assert first.folder is not None
    if folder_lost:
        shutil.rmtree(first.folder)
    trainer = _trainer(tmp_path, GreenCallback(recorder()), **(options | {"max_steps": 8}))
    trainer.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-4"))
    (green,) = [c for c in trainer.callback_handler.callbacks if isinstance(c, GreenCallback)]
    assert green.session.folder == first.folder
    run = read_run(first.folder)
    if folder_lost:
        carried = run.ranks[0].carried
        assert 0 < carried.steps <= 4
        assert run.totals.steps == carried.steps + 4
    else:
        assert run.totals.steps == 8


def test_a_second_training_is_a_run_of_its_own(tmp_path: Path, recorder: Make) -> None:
    session = recorder()
    trainer = _trainer(tmp_path, GreenCallback(session))
    trainer.train()
    first = session.folder
    trainer.train()
    assert session.folder != first
    assert session.totals().steps == 4


@pytest.mark.long
def test_a_checkpoint_without_us_loads_with_us_and_back(tmp_path: Path, recorder: Make) -> None:
    options: dict[str, Any] = {"save_strategy": "steps", "save_steps": 4}
    _trainer(tmp_path, **options).train()
    ours = _trainer(tmp_path, GreenCallback(recorder()), **(options | {"max_steps": 8}))
    ours.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-4"))
    plain = _trainer(tmp_path, **(options | {"max_steps": 12}))
    plain.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-8"))
    assert plain.state.global_step == 12


def test_an_exception_ends_the_run_at_the_next_training(tmp_path: Path, recorder: Make) -> None:
    session, slow = recorder(), Slow(fail_at=2)
    trainer = _trainer(tmp_path, GreenCallback(session), slow)
    with pytest.raises(RuntimeError, match="user's code"):
        trainer.train()
    first = session.folder
    assert first is not None
    slow.fail_at = -1
    trainer.train()
    assert session.folder != first
    rank = read_run(first).ranks[0]
    assert rank.close is not None
    assert rank.close["reason"] == "exception"
    assert rank.totals.steps == 2


def test_a_block_of_the_user_closes_at_an_exception(tmp_path: Path, recorder: Make) -> None:
    with pytest.raises(RuntimeError, match="user's code"), recorder() as session:
        _trainer(tmp_path, GreenCallback(session), Slow(fail_at=2)).train()
    assert session.folder is not None
    close = read_run(session.folder).ranks[0].close
    assert close is not None
    assert close["reason"] == "exception"


def test_evaluation_alone_is_measured(tmp_path: Path, recorder: Make) -> None:
    session = recorder()
    _trainer(tmp_path, GreenCallback(session), per_device_eval_batch_size=2).evaluate()
    assert session.entered == ["eval"]
    assert session.totals().by_phase["eval"] > 0
    assert not session.running


def test_a_fault_of_ours_does_not_stop_training(tmp_path: Path, recorder: Make) -> None:
    session, plain = recorder(), _trainer(tmp_path)
    plain.train()
    session.broken = True
    green = _trainer(tmp_path, GreenCallback(session))
    with pytest.warns(GreenTrainWarning, match="a bug of ours"):
        green.train()
    assert torch.equal(_weights(plain), _weights(green))


def test_the_trainers_count_of_all_ranks_is_shared_to_the_last_token(recorder: Make) -> None:
    told: list[int] = []
    for rank in range(3):
        session = recorder()
        session.step = lambda tokens=0, samples=0: told.append(tokens)  # type: ignore[method-assign]
        callback = GreenCallback(session)
        args: Any = types.SimpleNamespace(include_num_input_tokens_seen="all", world_size=3, process_index=rank)
        for seen in (100, 101, 205):
            callback.on_step_end(args, types.SimpleNamespace(num_input_tokens_seen=seen), TrainerControl())
    assert sum(told) == 205
    assert max(told[::3]) - min(told[::3]) <= 1
