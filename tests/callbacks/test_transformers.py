"""GreenCallback for the Hugging Face Trainer, in real Trainers."""

import copy
import dataclasses
import gc
import pickle
import shutil
import time
import types
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard
from tensorboard.backend.event_processing import event_accumulator
from torch import Tensor
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_callback import DefaultFlowCallback
from transformers.trainer_utils import default_compute_objective

from greentrain import GreenSession
from greentrain.callbacks.driver import calling
from greentrain.callbacks.transformers import GreenCallback, register
from greentrain.carbon.constant import ConstantSignal
from greentrain.errors import ConfigError, GreenTrainWarning
from greentrain.ledger.reader import read_run
from tests.callbacks.conftest import CONTEXT, VOCAB, FlatMeter, Gears, Recorder, Text, TinyLM, Told, followed

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.filterwarnings("error::greentrain.errors.GreenTrainWarning"),
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


class Books(TrainerCallback):
    """Brings the books up to each step, on a machine of any speed."""

    def __init__(self, session: Recorder) -> None:
        self.session = session

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.session.state_dict()


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


def test_the_callback_and_the_model_are_saved_while_they_train(tmp_path: Path, recorder: Make) -> None:
    copies: list[Any] = []

    class Saves(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            copies.append(pickle.loads(pickle.dumps((green, kwargs["model"]))))

    green = GreenCallback(recorder())
    trainer = _trainer(tmp_path, green, Saves(), max_steps=2)
    trainer.train()
    callback, model = copies[-1]
    assert not callback.session.running and callback.session.folder == green.session.folder
    assert torch.equal(torch.cat([p.detach().flatten() for p in model.parameters()]), _weights(trainer))
    tokens = green.session.totals().tokens
    model(torch.zeros(1, CONTEXT, dtype=torch.int64))
    assert tokens == green.session.totals().tokens == 2 * 2 * CONTEXT


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


def test_metrics_reach_the_loggers_and_what_train_returns(
    tmp_path: Path, recorder: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "tb"))
    session = recorder()
    green = GreenCallback(session)
    trainer = _trainer(tmp_path, Slow(0.15), Books(session), green, report_to="tensorboard")
    metrics = trainer.train().metrics
    history = green.log_history
    assert set(history[0]) >= KEYS and [log["step"] for log in history] == [2, 4, 4]
    assert history[-1]["green/energy_j"] == pytest.approx(session.totals().energy_j)  # final, after the close
    assert metrics["green/energy_j"] == history[-1]["green/energy_j"]
    assert not KEYS & set().union(*trainer.state.log_history), "of which tables of model cards are made"

    events: Any = event_accumulator.EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    assert {f"train/{key}" for key in KEYS} <= set(events.Tags()["scalars"])
    logged = events.Scalars("train/green/energy_j")
    assert logged[0].step == 2
    assert logged[0].value == pytest.approx(history[0]["green/energy_j"])


def test_a_resumed_training_leaves_the_trainers_state_of_one_that_was_not_interrupted(
    tmp_path: Path, recorder: Make
) -> None:
    options: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2, "logging_steps": 1}
    first = recorder()
    whole = _trainer(tmp_path, GreenCallback(first), Slow(0.05), **options)
    whole.train()
    checkpoint = tmp_path / "out" / "checkpoint-2"
    saved = TrainerState.load_from_json(str(checkpoint / "trainer_state.json")).stateful_callbacks["GreenCallback"]
    assert saved["attributes"]["saved"]["totals"]["steps"] == 2, "the file goes on with the totals"
    again = _trainer(tmp_path, GreenCallback(recorder()), **options)
    again.train(resume_from_checkpoint=str(checkpoint))
    states = [dataclasses.asdict(trainer.state) for trainer in (whole, again)]
    for state in states:
        for log in state["log_history"]:
            for key in [key for key in log if key.startswith("train_")]:  # seconds of the Trainer's own
                del log[key]
    assert states[0] == states[1]


def test_an_evaluation_returns_what_it_would_without_us(tmp_path: Path, recorder: Make) -> None:
    trainer = _trainer(tmp_path, Slow(0.1), GreenCallback(recorder()), eval_strategy="steps", eval_steps=2)
    trainer.train()
    metrics = trainer.evaluate()
    assert default_compute_objective(metrics) == metrics["eval_loss"], "a search sums what it is given"


def test_a_callback_that_the_trainer_restores_takes_the_place_of_the_one_it_hooked(tmp_path: Path) -> None:
    config = {"run": {"dir": str(tmp_path / "runs"), "report": False}, "precision": {"gears": ["fp32"]}}
    first, session = (GreenSession(config, meter=FlatMeter(), signal=ConstantSignal(360.0)) for _ in range(2))
    options: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2, "max_steps": 2}
    _trainer(tmp_path, GreenCallback(first), **options).train()
    options |= {"max_steps": 4, "restore_callback_states_from_checkpoint": True}
    trainer = _trainer(tmp_path, given := GreenCallback(session), **options)
    trainer.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    (restored,) = [each for each in trainer.callback_handler.callbacks if isinstance(each, GreenCallback)]
    assert restored is not given and restored.session is session and session.totals().steps == 4


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


def test_evaluations_around_a_training_are_phases_of_its_run(tmp_path: Path, recorder: Make) -> None:
    session = recorder()
    trainer = _trainer(tmp_path, GreenCallback(session), per_device_eval_batch_size=2)
    trainer.evaluate()
    first, before = session.folder, session.totals()
    trainer.train()
    trainer.evaluate()
    trainer.predict(Text(4))
    assert first is not None and session.folder == first
    totals = read_run(first).ranks[0].totals
    assert totals.steps == 4 and totals.by_phase["eval"] > before.by_phase["eval"] > 0
    trainer.train()
    second = session.folder
    trainer.evaluate()
    assert second == session.folder != first
    other = recorder()
    _trainer(tmp_path, GreenCallback(other), per_device_eval_batch_size=2).evaluate()
    assert other.folder not in (first, second), "another Trainer with a callback of its own"


def test_what_is_saved_has_the_footprint_in_its_model_card(tmp_path: Path, recorder: Make) -> None:
    session, slow = recorder(), Slow()
    trainer = _trainer(tmp_path, GreenCallback(session), slow, save_strategy="steps", save_steps=4)
    out = tmp_path / "out"
    trainer.save_model()
    assert not (out / "README.md").exists(), "no run yet"
    (out / "README.md").write_text("---\nlicense: mit\n---\n# Mine\n", encoding="utf-8")
    trainer.train()
    emitted = ModelCard.load(out / "checkpoint-4" / "README.md").data.to_dict()["co2_eq_emissions"]["emissions"]
    trainer.save_model()
    card = ModelCard.load(out / "README.md")
    data = card.data.to_dict()
    assert data["license"] == "mit" and card.text == "# Mine\n"
    grams = session.totals().operational_g
    assert 0 < emitted <= grams + 1e-4 and data["co2_eq_emissions"]["emissions"] == pytest.approx(grams, abs=1e-4)
    trainer.create_model_card(license="apache-2.0")  # as push_to_hub does
    data = ModelCard.load(out / "README.md").data.to_dict()
    assert (data["license"], data["co2_eq_emissions"]["emissions"]) == ("apache-2.0", pytest.approx(grams, abs=1e-4))


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


# -- without a training --------------------------------------------------------------------------------------------


class Caller(Trainer):
    """A Trainer only in name, whose events a test tells."""

    def __init__(self, callback: GreenCallback, *others: TrainerCallback) -> None:
        self.callback, self.model_wrapped = callback, TinyLM()
        self.callback_handler = types.SimpleNamespace(callbacks=[DefaultFlowCallback(), *others, callback])  # type: ignore[assignment]
        self.accelerator = types.SimpleNamespace(scaler=None)
        self.args: Any = types.SimpleNamespace(
            process_index=0, world_size=1, local_process_index=0, include_num_input_tokens_seen="no", device="cpu"
        )
        self.state: Any = types.SimpleNamespace(
            num_input_tokens_seen=0, global_step=0, stateful_callbacks={}, log_history=[{}]
        )
        self.control = TrainerControl()

    def tell(self, event: str, **more: Any) -> None:
        getattr(self.callback, event)(self.args, self.state, self.control, **more)


@pytest.fixture
def callback(session: Told) -> GreenCallback:
    callback = GreenCallback()
    callback.session = callback._driver.session = session  # type: ignore[assignment]
    return callback


def test_the_nearest_trainer_among_the_callers_is_found() -> None:
    class Asks(str):
        def ask(self) -> str | None:
            return calling(Asks)

        def pass_on(self, other: "Asks") -> str | None:
            return other.ask()

    assert Asks("a").ask() == "a" and Asks("a").pass_on(Asks("b")) == "b"
    assert calling(Asks) is None


def _begin(caller: Caller) -> None:
    caller.tell("on_train_begin", model=TinyLM(), optimizer="an optimizer")


def test_a_plan_gets_its_checkpoint_and_its_end_from_the_trainer(callback: GreenCallback, told: list[Any]) -> None:
    caller = Caller(callback)
    for due, stop in ((False, False), (True, False), (False, True)):
        caller.control = TrainerControl()
        callback.session.checkpoint_due, callback.session.should_stop = due, stop  # type: ignore[misc]
        caller.tell("on_step_end")
        assert (caller.control.should_save, caller.control.should_training_stop) == (due, stop)
    caller.control.should_evaluate = caller.control.should_save = True
    caller.tell("on_epoch_end")
    assert [mark for mark in told if isinstance(mark, str)] == ["+data", "+checkpoint", "+data", "+eval"]
    caller.control = TrainerControl()
    caller.tell("on_save")
    assert told[-2:] == ["+data", "checkpoint"], "what is written next is in the run's own checkpoint, too"


def test_the_steps_of_a_deepspeed_engine_and_of_a_sequence_in_parts_are_told(callback: GreenCallback) -> None:
    caller, gears = Caller(callback), Gears()
    gears.box.model = caller.model_wrapped
    callback.session.gears = gears  # type: ignore[misc, assignment]
    caller.model_wrapped.global_steps = 0  # type: ignore[assignment]
    caller.state.num_input_tokens_seen = 40  # of the run that this one continues
    caller.args.include_num_input_tokens_seen = True
    callback._driver.ulysses = 2
    _begin(caller)
    assert ("bind", "an optimizer", False) in gears.told, "its optimizer steps once a sub-group"
    gears.told.clear()
    caller.state.num_input_tokens_seen = 100
    caller.tell("on_step_end")
    assert gears.told == ["boundary"]
    assert [mark for mark in callback.session.told if isinstance(mark, tuple)][-1] == (120, 0)  # type: ignore[attr-defined]


def test_tokens_are_those_that_trl_counts_and_prints_unasked(callback: GreenCallback) -> None:
    caller = Caller(callback)
    caller._total_train_tokens = 0  # type: ignore[attr-defined]
    _begin(caller)
    callback._driver.add({"input_ids": torch.zeros(2, 8, dtype=torch.int64)})
    caller.tell("on_step_end")  # of a trainer that has the counter and does not use it (GOLD)
    counts: list[tuple[int, int]] = [(30, 0), (30, 0), (70, 0)]  # SFT and DPO, without padding
    counts += [(0, 90), (0, 90), (0, 150)]  # GRPO, which counts what it generates for several steps
    for total, seen in counts:
        caller._total_train_tokens, caller.state.num_input_tokens_seen = total, seen  # type: ignore[attr-defined]
        caller.tell("on_step_end")
    told = [mark[0] for mark in callback.session.told if isinstance(mark, tuple)]  # type: ignore[attr-defined]
    assert told[-7:] == [16, 30, 0, 40, 20, 0, 60]


def test_gears_need_the_model_before_it_is_prepared_and_bind_the_optimizer_that_steps(callback: GreenCallback) -> None:
    caller, gears = Caller(callback), Gears()
    callback.session.gears = gears  # type: ignore[misc, assignment]
    with pytest.raises(ConfigError, match=r"needs the model before the Trainer prepares it.*not to add_callback"):
        _begin(caller)
    assert not callback.session.running, "nothing is left open by what is refused"
    gears.box.model = caller.model_wrapped
    _begin(caller)
    assert gears.told == [("check", caller.model_wrapped), ("bind", "an optimizer", True)]
    caller.tell("on_step_end")
    assert "boundary" not in gears.told


def test_it_comes_behind_the_flow_and_before_the_loggers(callback: GreenCallback) -> None:
    logger = Slow()
    caller = Caller(callback, logger)
    flow = caller.callback_handler.callbacks[0]
    _begin(caller)
    assert caller.callback_handler.callbacks == [flow, callback, logger]
    assert followed(caller.model_wrapped) == 1, "what training calls is what is followed"


def test_a_training_that_was_left_is_over_before_the_next_begins(callback: GreenCallback, told: list[Any]) -> None:
    caller = Caller(callback)
    _begin(caller)
    _begin(caller)
    runs = [mark for mark in told if mark == "exception" or isinstance(mark, tuple)]
    assert runs == [(0, 1, 0, 1, None), "exception", (0, 1, 0, 1, None)]
    assert followed(caller.model_wrapped) == 1
    with pytest.raises(KeyboardInterrupt):
        callback._ended(lambda: (_ for _ in ()).throw(KeyboardInterrupt))()
    assert told[-1] == "exception" and not callback._training
    assert callback._ended(lambda: 3)() == 3


def test_gears_come_back_for_a_training_that_goes_on_with_smaller_batches(callback: GreenCallback) -> None:
    caller, gears = Caller(callback), Gears()
    callback.session.gears = gears  # type: ignore[misc, assignment]
    gears.box.model = caller.model_wrapped
    _begin(caller)
    gears.told.clear()
    gears.box.model = caller.model_wrapped
    _begin(caller)
    assert [word[0] if isinstance(word, tuple) else word for word in gears.told[:3]] == ["detach", "detach", "attach"]


def test_only_a_training_that_goes_on_continues_a_run(callback: GreenCallback, told: list[Any]) -> None:
    caller = Caller(callback)
    _begin(caller)
    plain = {"args": callback.state()["args"], "attributes": {}}
    assert {"run": "one"} not in told and caller.state.stateful_callbacks["GreenCallback"] == plain
    caller.state.stateful_callbacks["GreenCallback"] = callback.state()
    callback._driver.stop("finished")
    caller.state.global_step = 4
    _begin(caller)
    assert told.count({"run": "one"}) == 1 and caller.state.stateful_callbacks["GreenCallback"] == plain
    callback._driver.stop("finished")
    another = {"args": {}, "attributes": {"saved": {"run": "another's"}}}  # two callbacks of one class
    caller.state.stateful_callbacks["GreenCallback"] = [plain, plain, callback.state(), another]
    caller.args.process_index, caller.args.world_size = 1, 2
    _begin(caller)
    assert told.count({"run": "one", "totals": {}}) == 1, "the totals are rank 0's"
    assert caller.state.stateful_callbacks["GreenCallback"] == [plain, plain]


def test_the_last_log_has_what_the_run_has_booked_in_the_end(callback: GreenCallback, told: list[Any]) -> None:
    caller = Caller(callback)
    logs: dict[str, float] = {"loss": 1.0}
    caller.tell("on_log", logs=logs)
    assert logs == {"loss": 1.0}, "no run"
    _begin(caller)
    caller.tell("on_log", logs=logs)
    assert logs == {"loss": 1.0, "green/energy_j": 1.0} and caller.state.log_history[-1] == {}
    assert callback.log_history == [{"green/energy_j": 1.0, "step": 0}]
    last: dict[str, float] = {"train_loss": 1.0}
    caller.tell("on_log", logs=last)
    assert last == {"train_loss": 1.0, "green/energy_j": 2.0} and told[-1] == "finished"
    caller.tell("on_train_end")
    assert callback.log_history[-1]["green/energy_j"] == 2.0 and not callback._training
    assert told.count("finished") == 1
    alone: dict[str, float] = {"train_loss": 1.0}
    caller.tell("on_log", logs=alone)
    assert alone == {"train_loss": 1.0}
    _begin(caller)
    caller.tell("on_train_end")
    assert told[-1] == "finished", "a Trainer that logs nothing at its end"


def test_an_evaluation_in_a_training_is_a_part_of_it_and_alone_a_run(callback: GreenCallback, told: list[Any]) -> None:
    caller = Caller(callback)
    caller.tell("on_prediction_step", model=TinyLM())
    caller.tell("on_prediction_step", model=TinyLM())
    caller.tell("on_predict", metrics={})
    assert told == [(0, 1, 0, 1, None), "+eval", ("-eval", 2), "finished"]
    _begin(caller)
    told.clear()
    caller.tell("on_prediction_step", model=TinyLM())
    caller.tell("on_evaluate")
    assert told == ["+data"], "the forward's hook says what is evaluated"


def test_report_to_greentrain_is_a_callback_with_the_configuration_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.integrations import integration_utils

    monkeypatch.setattr(integration_utils, "INTEGRATION_TO_CALLBACK", dict(integration_utils.INTEGRATION_TO_CALLBACK))
    config = tmp_path / "green.yaml"
    config.write_text(f"run: {{dir: {tmp_path / 'runs'}, name: mine, report: false}}\n")
    monkeypatch.setenv("GREENTRAIN_CONFIG", str(config))
    with pytest.raises(ValueError, match="greentrain is not supported"):
        _trainer(tmp_path, report_to="greentrain")
    register()
    trainer = _trainer(tmp_path, report_to="greentrain")
    trainer.train()
    (run,) = (tmp_path / "runs").iterdir()
    assert read_run(run).totals.steps == 4 and run.name.startswith("mine")


def test_a_plain_save_pretrained_has_the_footprint_and_the_model_is_copied_and_pickled_as_ever(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path, callback := GreenCallback(Recorder(tmp_path / "runs")))
    trainer.train()
    time.sleep(0.02)
    model: Any = trainer.model
    model.save_pretrained(tmp_path / "plain")
    emissions = ModelCard.load(tmp_path / "plain" / "README.md", ignore_metadata_errors=True).data["co2_eq_emissions"]
    assert emissions["emissions"] >= 0 and "GreenTrain" in emissions["source"]
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other.save_pretrained.__self__ is other  # the plain method, of the copy
        other.save_pretrained(tmp_path / "other")
        assert not (tmp_path / "other" / "README.md").exists()
    assert b"greentrain" not in pickle.dumps(model)
    gone = weakref.ref(model)
    del trainer, callback, model, other
    gc.collect()
    assert gone() is None
