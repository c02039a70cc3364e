"""GreenAccelerator, in real loops on the CPU."""

import contextlib
import gc
import pickle
import shutil
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator, tracking
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.tracking import GeneralTracker
from accelerate.utils import DistributedType
from accelerate.utils.deepspeed import DeepSpeedEngineWrapper, DeepSpeedOptimizerWrapper
from torch import Tensor

from greentrain.callbacks.accelerate import GreenAccelerator, register
from greentrain.errors import ConfigError, GreenTrainWarning
from greentrain.ledger.reader import read_run
from tests.callbacks.conftest import CONTEXT, Gears, Recorder, TinyLM, Told, followed, text_loader

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.filterwarnings("error::greentrain.errors.GreenTrainWarning"),
]
Make = Callable[..., Recorder]


@pytest.fixture(autouse=True)
def fresh_state() -> Iterator[None]:
    """Accelerate keeps its state in singletons."""
    yield
    _forget()


def _forget() -> None:
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    PartialState._reset_state()


def _train(accelerator: Any, steps_at: int = 1, items: int = 16, sleep_s: float = 0.0) -> Tensor:
    torch.manual_seed(0)
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    model, optimizer, loader = accelerator.prepare(model, optimizer, text_loader(items, 2))
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
        time.sleep(sleep_s)
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_phases_steps_and_tokens_with_accumulation(recorder: Make) -> None:
    session = recorder()
    accelerator = GreenAccelerator(cpu=True, gradient_accumulation_steps=2, green=session)
    assert not session.running
    _train(accelerator, items=8)
    accelerator.end_training()
    half = ["data", "forward", "backward"]
    assert session.entered == [*half, *half, "optimizer", "step", *half, *half, "optimizer", "step", "data"]
    totals = session.totals()
    assert (totals.steps, totals.tokens, totals.samples) == (2, 8 * CONTEXT, 8)
    assert totals.energy_j > 0
    assert not session.running


def test_training_is_bit_identical(recorder: Make) -> None:
    plain = _train(Accelerator(cpu=True, gradient_accumulation_steps=2))
    _forget()
    green = _train(GreenAccelerator(cpu=True, gradient_accumulation_steps=2, green=recorder()))
    assert torch.equal(plain, green)


def test_a_wrong_configuration_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="carbn"):
        GreenAccelerator(cpu=True, green={"carbn": {}})


def test_evaluation_is_a_phase_and_trains_no_tokens(recorder: Make) -> None:
    session = recorder()
    accelerator = GreenAccelerator(cpu=True, green=session)
    model, loader = accelerator.prepare(TinyLM(), text_loader(4, 2))
    model.eval()
    for batch in loader:
        model(**batch)
    accelerator.end_training()
    assert session.entered == ["data", "eval", "data", "eval", "data"]
    assert session.totals().tokens == 0


def test_the_first_of_two_models_counts(recorder: Make) -> None:
    session = recorder()
    accelerator = GreenAccelerator(cpu=True, green=session)
    models = TinyLM(), TinyLM()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    first, second, *others = accelerator.prepare(*models, *optimizers, text_loader(4, 2))
    for batch in others[-1]:
        for model, optimizer in ((first, others[0]), (second, others[1])):
            accelerator.backward(model(**batch))
            optimizer.step()
    accelerator.end_training()
    assert (session.totals().steps, session.totals().tokens) == (2, 4 * CONTEXT)


def test_skipped_batches_are_timed_and_loaders_stay_what_they_are(recorder: Make) -> None:
    session = recorder()
    accelerator = GreenAccelerator(cpu=True, green=session)
    plain = Accelerator(cpu=True).prepare(text_loader(8, 2))
    loader = accelerator.prepare(text_loader(8, 2))
    assert isinstance(loader, torch.utils.data.DataLoader)
    assert type(loader).__name__ == type(plain).__name__
    assert len(loader) == 4
    assert len(pickle.loads(pickle.dumps(loader))) == 4
    assert len(list(accelerator.skip_first_batches(loader, 3))) == 1
    accelerator.end_training()
    assert session.entered == ["data", "data"]


def test_an_accelerator_is_pickled_with_what_it_has_prepared(tmp_path: Path) -> None:
    """Accelerate's own test_can_pickle_dataloader."""
    accelerator = GreenAccelerator(cpu=True, green={"run": {"dir": str(tmp_path)}})
    model, loader = accelerator.prepare(TinyLM(), text_loader(8, 2))
    for batch in loader:
        accelerator.backward(model(**batch))
    accelerator.end_training()
    other = pickle.loads(pickle.dumps(accelerator))
    assert [len(each) for each in other._dataloaders] == [4]
    assert other.green is other._driver.session and other.green.config == accelerator.green.config
    assert len(other._load_model_state_pre_hook) == len(accelerator._load_model_state_pre_hook) == 1
    folder = accelerator.save_state(tmp_path / "state")
    other.load_state(folder)


def test_an_accelerator_goes_with_its_last_reference_while_its_run_lasts(tmp_path: Path) -> None:
    """Accelerate's own test_ensure_dataloader_gets_cleaned_up: without the collector of cycles."""
    gc.disable()
    try:
        accelerator = GreenAccelerator(cpu=True, green={"run": {"dir": str(tmp_path)}})
        session, loader = accelerator.green, accelerator.prepare(text_loader(8, 2))
        batches = iter(loader)
        next(batches)
        assert session.running
        held = [weakref.ref(accelerator), weakref.ref(loader), weakref.ref(loader.gradient_state)]
        del accelerator, loader, batches
        assert [each() for each in held] == [None, None, None]
    finally:
        gc.enable()
        session.close()


def test_leaving_a_loop_early_is_as_without_us(recorder: Make) -> None:
    accelerator = GreenAccelerator(cpu=True, green=recorder())
    loader = accelerator.prepare(text_loader(8, 2))
    for _ in range(2):
        for batch in loader:
            assert batch["input_ids"].shape == (2, CONTEXT)
            break
    assert len(list(loader)) == 4
    accelerator.end_training()


class Memory(GeneralTracker):  # type: ignore[misc]
    """A tracker that keeps what it is given."""

    name = "memory"
    requires_logging_directory = False

    def __init__(self) -> None:
        super().__init__()
        self.logged: list[dict[str, Any]] = []

    @property
    def tracker(self) -> None:
        return None

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        pass

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        self.logged.append({**values, "step": step, **kwargs})

    def finish(self) -> None:
        self.logged.append({"finished": True})


def test_trackers_get_the_metrics(recorder: Make) -> None:
    tracker = Memory()
    accelerator = GreenAccelerator(cpu=True, log_with=tracker, green=recorder())
    accelerator.init_trackers("test")
    _train(accelerator, sleep_s=0.05)
    mine = {"loss": 1.0}
    accelerator.log(mine, step=8)
    accelerator.end_training()
    logged, last = tracker.logged
    assert last == {"finished": True}, "Accelerate's own end"
    assert (logged["loss"], logged["step"]) == (1.0, 8)
    assert logged["green/energy_j"] > 0
    assert logged["green/tokens_per_j"] > 0
    assert mine == {"loss": 1.0}


@pytest.mark.parametrize("folder_lost", [False, True])
def test_a_loaded_state_continues_the_run(tmp_path: Path, recorder: Make, folder_lost: bool) -> None:
    first = recorder()
    accelerator = GreenAccelerator(cpu=True, green=first)
    _train(accelerator, sleep_s=0.05)
    accelerator.save_state(str(tmp_path / "saved"))
    accelerator.end_training()
    _forget()
    assert first.folder is not None
    assert "checkpoint" in first.entered
    assert "checkpoint" in [event["name"] for event in read_run(first.folder).ranks[0].events]
    if folder_lost:
        shutil.rmtree(first.folder)
    second = recorder()
    accelerator = GreenAccelerator(cpu=True, green=second)
    model, optimizer = accelerator.prepare(*_model())
    accelerator.load_state(str(tmp_path / "saved"))
    accelerator.backward(model(**next(iter(text_loader()))))
    optimizer.step()
    accelerator.end_training()
    assert second.folder == first.folder
    run = read_run(first.folder)
    carried = run.ranks[0].carried.steps
    assert run.totals.steps == (carried if folder_lost else 8) + 1
    assert carried > 0 or not folder_lost


def test_states_load_with_and_without_us(tmp_path: Path, recorder: Make) -> None:
    for number, (saver, loader) in enumerate([(GreenAccelerator, Accelerator), (Accelerator, GreenAccelerator)]):
        options = [{"green": recorder()} if kind is GreenAccelerator else {} for kind in (saver, loader)]
        accelerator = saver(cpu=True, **options[0])
        accelerator.prepare(*_model())
        accelerator.save_state(str(tmp_path / str(number)))
        accelerator.end_training()
        _forget()
        accelerator = loader(cpu=True, **options[1])
        accelerator.prepare(*_model())
        accelerator.load_state(str(tmp_path / str(number)))
        accelerator.end_training()
        _forget()


def test_a_fault_of_ours_does_not_stop_training(recorder: Make) -> None:
    plain = _train(Accelerator(cpu=True))
    _forget()
    session = recorder()
    session.broken = True
    accelerator = GreenAccelerator(cpu=True, green=session)
    with pytest.warns(GreenTrainWarning, match="a bug of ours"):
        green = _train(accelerator)
    accelerator.end_training()
    assert torch.equal(plain, green)


class Engine(torch.nn.Module):
    """What accelerate calls on a DeepSpeedEngine (deepspeed 0.18, runtime/engine.py)."""

    def __init__(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().__init__()
        self.module, self.optimizer = module, optimizer
        self.micro_steps = self.global_steps = 0
        self.boundary = True

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        return self.module(*inputs, **kwargs)

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        self.boundary = is_boundary

    def backward(self, loss: Tensor, retain_graph: bool = False, scale_wrt_gas: bool = True) -> Tensor:
        loss.backward(retain_graph=retain_graph)  # type: ignore[no-untyped-call]
        return loss

    def step(self, lr_kwargs: Any = None) -> None:
        self.micro_steps += 1
        if self.boundary:
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.global_steps += 1


def _use_deepspeed(accelerator: GreenAccelerator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``prepare`` make an engine of plain FP32, which steps the optimizer of the user itself."""

    def prepare(*args: Any) -> tuple[Any, ...]:
        engine, optimizer = Engine(*args[:2]), DeepSpeedOptimizerWrapper(args[1])
        accelerator.deepspeed_engine_wrapped = DeepSpeedEngineWrapper(engine)
        accelerator._models.append(engine)
        accelerator._optimizers.append(optimizer)
        return engine, optimizer, *args[2:]

    monkeypatch.setattr(accelerator, "_prepare_deepspeed", prepare)
    accelerator.state.distributed_type = PartialState().distributed_type = DistributedType.DEEPSPEED


def test_a_deepspeed_engine_is_followed(recorder: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    session = recorder()
    accelerator = GreenAccelerator(cpu=True, gradient_accumulation_steps=2, green=session)
    _use_deepspeed(accelerator, monkeypatch)
    engine, _, loader = accelerator.prepare(*_model(), text_loader(8, 2))
    monkeypatch.setattr(accelerator, "no_sync", lambda model: contextlib.nullcontext())
    for batch in loader:
        with accelerator.accumulate(engine):
            accelerator.backward(engine(**batch))
    accelerator.end_training()
    half = ["data", "forward", "backward"]
    assert session.entered == [*half, *half, "optimizer", "step", *half, *half, "optimizer", "step", "data"]
    assert session.told[-7:-1] == ["+backward", "+optimizer", "-optimizer", "step", "-backward", "+data"]
    assert (session.totals().steps, session.totals().tokens) == (2, 8 * CONTEXT)
    assert "step" not in vars(engine)


def _model() -> tuple[TinyLM, torch.optim.Optimizer]:
    model = TinyLM()
    return model, torch.optim.AdamW(model.parameters(), lr=0.05)


# -- without a training --------------------------------------------------------------------------------------------


@pytest.fixture
def accelerator(session: Told) -> GreenAccelerator:
    accelerator = GreenAccelerator(cpu=True)
    accelerator.green = accelerator._driver.session = session  # type: ignore[assignment]
    return accelerator


IDS = torch.zeros(2, 5, dtype=torch.int64)


def _runs(told: list[Any]) -> list[Any]:
    return [mark for mark in told if isinstance(mark, tuple) and len(mark) == 5]


def test_of_a_teacher_and_a_student_the_run_is_the_students(accelerator: GreenAccelerator, told: list[Any]) -> None:
    teacher, (student, optimizer) = TinyLM(), _model()
    gears = accelerator.green.gears = Gears()  # type: ignore[misc, assignment]
    teacher, student, optimizer = accelerator.prepare(teacher, student, optimizer)
    assert accelerator._lead() is student and gears.box.model is student
    assert ("bind", optimizer, True) in gears.told and ("check", student) in gears.told
    assert ("check", teacher) not in gears.told
    teacher(IDS, IDS)
    accelerator.backward(student(IDS, IDS))
    optimizer.step()
    assert [mark for mark in told if mark == (10, 2)] == [(10, 2)], "once, and of the student's tokens"
    assert _runs(told) == [(0, 1, 0, 1, None)]
    assert accelerator.green.parameters == sum(p.numel() for p in student.parameters())


def test_a_frozen_model_is_no_runs_and_without_an_optimizer_the_first_that_trains_is(
    accelerator: GreenAccelerator,
) -> None:
    frozen, model, other = TinyLM().requires_grad_(False), TinyLM(), TinyLM()
    accelerator.prepare(frozen)
    assert accelerator._lead() is None
    accelerator.prepare(model)
    accelerator.prepare(other)
    assert accelerator._lead() is model


def test_what_is_prepared_twice_is_followed_once_and_the_second_optimizer_counts_no_step(
    accelerator: GreenAccelerator, told: list[Any]
) -> None:
    model, optimizer = _model()
    model, optimizer = accelerator.prepare(model, optimizer)
    model, second = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert followed(model) == 1
    for one in (optimizer, second):
        accelerator.backward(model(IDS, IDS))
        one.step()
    assert [mark for mark in told if mark in ((10, 2), (20, 4), (0, 0))] == [(10, 2)]


def test_a_run_that_was_closed_by_hand_starts_no_other_and_what_is_freed_may(
    accelerator: GreenAccelerator, told: list[Any]
) -> None:
    model = accelerator.prepare(TinyLM())
    model(IDS, IDS)
    accelerator.green.close("by hand")
    model(IDS, IDS)
    assert len(_runs(told)) == 1
    accelerator.free_memory()
    assert accelerator._lead() is None and not accelerator._followed
    assert not followed(model)
    assert accelerator.prepare(model) is model and accelerator._lead() is model


def test_a_checkpoint_of_fewer_ranks_gives_the_others_the_run_without_its_totals(
    accelerator: GreenAccelerator, told: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accelerator._load([], str(tmp_path))
    assert told == [], "a checkpoint without us"
    accelerator._save(tmp_path)
    assert told == ["checkpoint"] and [path.name for path in tmp_path.iterdir()] == ["greentrain_0.json"]
    accelerator._load([], str(tmp_path))
    monkeypatch.setattr(GreenAccelerator, "process_index", 1)
    accelerator._load([], str(tmp_path))
    accelerator._save(tmp_path)
    accelerator._load([], str(tmp_path))
    assert told[1:] == [{"run": "one"}, {"run": "one", "totals": {}}, "checkpoint", {"run": "one"}]


def test_adapters_on_a_frozen_model_are_trained(accelerator: GreenAccelerator) -> None:
    model = TinyLM()
    model.table.requires_grad_(False)
    accelerator.prepare(TinyLM(), model, torch.optim.SGD(model.out.parameters(), lr=0.1))
    assert accelerator._lead() is model


def test_a_model_that_is_prepared_by_itself_is_the_runs(accelerator: GreenAccelerator) -> None:
    model = TinyLM()
    accelerator.prepare_model(model)
    assert accelerator._lead() is model


def test_the_first_batch_starts_the_run_and_no_phase_outlasts_what_it_names(
    accelerator: GreenAccelerator, told: list[Any]
) -> None:
    model, optimizer, loader = accelerator.prepare(*_model(), text_loader(4, 2))
    assert told == []

    def marks() -> list[Any]:
        found = [mark[0] if isinstance(mark, tuple) and isinstance(mark[0], str) else mark for mark in told]
        told.clear()
        return found

    batches = iter(loader)
    batch = next(batches)
    started, *found = marks()
    assert started == (0, 1, 0, 1, None) and found == ["+data", "-data"]
    loss = model(**batch)
    assert marks() == ["+forward", "-forward"]
    accelerator.backward(loss)
    assert marks() == ["+backward", "-backward"]
    optimizer.step()
    assert marks() == ["+optimizer", "-optimizer", (2 * CONTEXT, 2)]
    assert len(list(batches)) == 1 and marks() == ["+data", "-data"] * 2, "a batch, and that there is no other"


@pytest.mark.parametrize("ended", [False, True])
def test_a_prepared_model_is_saved_and_all_is_freed_with_its_last_reference(recorder: Make, ended: bool) -> None:
    accelerator = GreenAccelerator(cpu=True, green=recorder())
    model: Any = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    model, optimizer, loader = accelerator.prepare(model, optimizer, text_loader(4, 2))
    for batch in loader:
        accelerator.backward(model(**batch))
        optimizer.step()
    inner = accelerator.unwrap_model(model)
    saved = pickle.loads(pickle.dumps(inner))
    assert torch.equal(saved.out.weight, inner.out.weight) and saved._compiled_call_impl is None
    session = accelerator.green
    if ended:
        accelerator.end_training()
    gone = [weakref.ref(item) for item in (accelerator, model, loader)]
    gc.collect()
    gc.disable()
    try:
        del accelerator, model, optimizer, loader, batch, inner
        assert [ref() for ref in gone] == [None] * 3
    finally:
        gc.enable()
        session.close()


def test_what_is_used_after_the_end_of_training_starts_no_run(accelerator: GreenAccelerator, told: list[Any]) -> None:
    model, loader = accelerator.prepare(TinyLM(), text_loader(4, 2))
    accelerator.end_training()
    model(IDS, IDS)
    assert len(list(loader)) == 2 and _runs(told) == []


def test_gears_shift_at_the_steps_of_an_engine_and_not_of_the_optimizer_in_it(
    accelerator: GreenAccelerator, told: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    gears = accelerator.green.gears = Gears()  # type: ignore[misc, assignment]
    _use_deepspeed(accelerator, monkeypatch)
    engine, optimizer = accelerator.prepare(*_model())
    assert ("bind", optimizer, False) in gears.told and ("check", engine) in gears.told
    for boundary in (False, True):
        engine.boundary = boundary
        engine(IDS, IDS)
        engine.step()
    assert gears.told.count("boundary") == 1 and [mark for mark in told if mark == (20, 4)] == [(20, 4)]


def test_a_module_with_a_step_of_its_own_is_no_engine(accelerator: GreenAccelerator) -> None:
    class Stepper(TinyLM):
        def step(self) -> None:
            pass

    assert "step" not in vars(accelerator.prepare(Stepper()))


def test_a_log_is_written_whatever_happens_to_ours(accelerator: GreenAccelerator) -> None:
    tracker = Memory()
    accelerator.trackers = [tracker]
    accelerator.green.metrics = lambda: 1 / 0  # type: ignore[method-assign, assignment, return-value]
    with pytest.warns(GreenTrainWarning, match="ZeroDivisionError"):
        accelerator.log({"loss": 1.0}, step=3, log_kwargs={"memory": {"commit": True}})
    assert tracker.logged == [{"loss": 1.0, "step": 3, "commit": True}]


def test_log_with_greentrain_measures_a_script_that_only_names_its_trackers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    monkeypatch.setitem(tracking.LOGGER_TYPE_TO_CLASS, "greentrain", None)  # so that it is gone again
    config = tmp_path / "green.yaml"
    config.write_text(f"run: {{dir: {tmp_path / 'runs'}, name: mine, report: false}}\n")
    monkeypatch.setenv("GREENTRAIN_CONFIG", str(config))
    register()
    accelerator = Accelerator(log_with="greentrain", cpu=True)
    accelerator.init_trackers("demo", config={"lr": 0.1})
    session = accelerator.get_tracker("greentrain", unwrap=True)
    assert session.running
    accelerator.log({"loss": 1.0}, step=1)
    accelerator.end_training()
    assert not session.running and session.folder.parent == tmp_path / "runs"
    close = read_run(session.folder).ranks[0].close
    assert close is not None and close["reason"] == "finished"
