"""The same schedule gives the same gears and the same losses in a loop of one's own and in all three frameworks."""

import copy
import functools
import itertools
import json
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from accelerate import Accelerator
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, SequentialSampler
from transformers import Trainer, TrainingArguments

from greentrain import GreenSession
from greentrain.callbacks.accelerate import GreenAccelerator
from greentrain.callbacks.lightning import GreenCallback as LightningCallback
from greentrain.callbacks.transformers import GreenCallback as TransformersCallback
from greentrain.control.precision.gearbox import GearBox
from greentrain.control.precision.layers import GearLinear
from greentrain.control.precision.noise import NoiseProbe
from greentrain.errors import ConfigError
from greentrain.ledger.journal import read_journal

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.filterwarnings("error::greentrain.errors.GreenTrainWarning"),
]
WIDTH, VOCAB, CONTEXT, BATCH, ACCUMULATE, STEPS, LONG = 32, 17, 8, 4, 2, 8, 16
SCHEDULE = [[0, "bf16"], [2, "fp8"], [4, "fp32"], [6, "bf16"]]
GEARS_BY_MICRO_BATCH = ["bf16"] * 4 + ["fp8"] * 4 + ["fp32"] * 4 + ["bf16"] * 4
Batch = Mapping[str, Tensor]


class Tokens(Dataset[dict[str, Tensor]]):
    """Sequences that a seed decides."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.ids = torch.randint(VOCAB, (BATCH * ACCUMULATE * LONG, CONTEXT + 1), generator=generator)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {"input_ids": self.ids[i, :-1], "labels": self.ids[i, 1:]}


class Model(nn.Module):
    """Keeps the gear and the loss of every training forward."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB)
        self.seen: list[tuple[str, float]] = []

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        x = self.embed(input_ids)
        logits = self.head(x + self.down(torch.relu(self.up(x))))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
        if self.training and len(input_ids) == BATCH:  # the noise probe takes two samples
            self.seen.append((_gear(self.up), loss.item()))
        return {"loss": loss}


class Module(L.LightningModule):
    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss: Tensor = self.model(**batch)["loss"]
        return loss

    def configure_optimizers(self) -> OptimizerLRScheduler:
        return _optimizer(self)


class InOrder(Trainer):
    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
        return SequentialSampler(self.train_dataset)  # type: ignore[arg-type]


def _gear(layer: nn.Module) -> str:
    box = layer._green.box if isinstance(layer, GearLinear) else None
    return str(box.gear) if isinstance(box, GearBox) else "none"


def _optimizer(model: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def _config(folder: Path, **precision: Any) -> dict[str, Any]:
    return {
        "run": {"dir": str(folder), "report": False, "live": False},
        "power": {"meters": ["null"]},
        "precision": {"gears": ["bf16", "fp8", "fp32"], "min_features": 16, "probe_every": 0, **precision},
        "policy": {"name": "scripted", "schedule": SCHEDULE},
    }


def _raw(config: dict[str, Any], folder: Path, steps: int = STEPS) -> tuple[Model, GreenSession]:
    model = Model()
    optimizer = _optimizer(model)
    loader = DataLoader(Tokens(), batch_size=BATCH)
    with GreenSession(config) as green:
        green.watch(model, optimizer)
        for i, batch in zip(range(steps * ACCUMULATE), loader, strict=False):
            (model(**batch)["loss"] / ACCUMULATE).backward()
            if (i + 1) % ACCUMULATE == 0:
                optimizer.step()
                optimizer.zero_grad()
                green.step(tokens=batch["input_ids"].numel() * ACCUMULATE)
    return model, green


def _lightning(config: dict[str, Any], folder: Path, ckpt: str | None = None, steps: int = STEPS) -> tuple[Model, Any]:
    model = Model()
    callback = LightningCallback(config)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=steps,
        accumulate_grad_batches=ACCUMULATE,
        callbacks=[callback],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=folder,
    )
    trainer.fit(Module(model), DataLoader(Tokens(), batch_size=BATCH), ckpt_path=ckpt)
    trainer.save_checkpoint(folder / "last.ckpt")
    return model, callback.session


def _accelerate(config: dict[str, Any], folder: Path, steps: int = STEPS) -> tuple[Model, Any]:
    model = Model()
    accelerator = GreenAccelerator(gradient_accumulation_steps=ACCUMULATE, cpu=True, green=config)
    prepared, optimizer, loader = accelerator.prepare(model, _optimizer(model), DataLoader(Tokens(), batch_size=BATCH))
    for batch in itertools.islice(loader, steps * ACCUMULATE):
        with accelerator.accumulate(prepared):
            accelerator.backward(prepared(**batch)["loss"])
            optimizer.step()
            optimizer.zero_grad()
    accelerator.end_training()
    return model, accelerator.green


def _transformers(config: dict[str, Any], folder: Path, steps: int = STEPS) -> tuple[Model, Any]:
    model = Model()
    callback = TransformersCallback(config)
    optimizer = _optimizer(model)
    args = TrainingArguments(
        output_dir=str(folder / "out"),
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=ACCUMULATE,
        max_steps=steps,
        max_grad_norm=0.0,
        use_cpu=True,
        disable_tqdm=True,
        report_to="none",
        save_strategy="no",
        remove_unused_columns=False,
    )
    constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    InOrder(model, args, train_dataset=Tokens(), optimizers=(optimizer, constant), callbacks=[callback]).train()
    return model, callback.session


@pytest.fixture(autouse=True)
def one_state() -> Iterator[None]:
    from accelerate.state import AcceleratorState, GradientState, PartialState

    yield
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


def _shifts(session: GreenSession) -> list[tuple[int, str]]:
    assert session.folder is not None
    events = read_journal(session.folder / "rank-00000.jsonl")
    return [(e["step"], e["gear"]) for e in events if e["kind"] == "event" and e["name"] == "gear"]


@pytest.mark.parametrize("run", [_raw, _lightning, _accelerate, _transformers])
def test_one_schedule_gives_one_gear_log_and_one_loss_curve(
    tmp_path: Path, run: Callable[..., tuple[Model, GreenSession]]
) -> None:
    reference, _ = _raw(_config(tmp_path / "reference"), tmp_path)
    model, session = run(_config(tmp_path / "runs"), tmp_path)
    assert [gear for gear, _ in model.seen] == GEARS_BY_MICRO_BATCH
    assert [loss for _, loss in model.seen] == [loss for _, loss in reference.seen]
    assert _shifts(session) == [(2, "fp8"), (4, "fp32"), (6, "bf16")]
    assert session.metrics()["green/fp8_share"] == 0.25
    assert session.totals().steps == STEPS


def test_fp8_is_not_bf16(tmp_path: Path) -> None:
    reference, _ = _raw(_config(tmp_path / "reference"), tmp_path)
    still = _config(tmp_path / "runs") | {"policy": {"name": "static", "gear": "bf16"}}
    model, _ = _raw(still, tmp_path)
    assert [loss for _, loss in model.seen][:4] == [loss for _, loss in reference.seen][:4]
    assert [loss for _, loss in model.seen][4] != [loss for _, loss in reference.seen][4]


@pytest.mark.parametrize("run", [_raw, _lightning, _accelerate, _transformers])
def test_static_fp8(tmp_path: Path, run: Callable[..., tuple[Model, GreenSession]]) -> None:
    config = _config(tmp_path / "runs") | {"policy": {"name": "static", "gear": "fp8"}}
    model, session = run(config, tmp_path)
    assert {gear for gear, _ in model.seen} == {"fp8"}
    assert session.metrics()["green/fp8_share"] == 1.0


@pytest.mark.sweep
@pytest.mark.parametrize("run", [_raw, _lightning, _accelerate, _transformers])
def test_the_noise_probe_finds_a_ratio_and_changes_no_number(
    tmp_path: Path, run: Callable[..., tuple[Model, GreenSession]], monkeypatch: pytest.MonkeyPatch
) -> None:
    eager = functools.partialmethod(NoiseProbe.__init__, max_share=1.0)  # probes as soon as its warm-up is over
    monkeypatch.setattr(NoiseProbe, "__init__", eager)
    still, _ = run(_config(tmp_path / "still", gamma=1.0), tmp_path, steps=LONG)
    seen = []
    for gamma in (1.0, "measured"):
        model, session = run(_config(tmp_path / str(gamma), gamma=gamma, probe_every=1), tmp_path, steps=LONG)
        metrics = session.metrics()
        assert 3 < metrics["green/sigma_ratio"] < 40
        assert 1.0 <= metrics["green/gamma"] < 1.5
        seen.append(model.seen)
    assert seen[0] == still.seen and len(still.seen) == LONG * ACCUMULATE
    assert seen[1][:10] == still.seen[:10]


def test_the_session_leaves_a_plain_model_behind(tmp_path: Path) -> None:
    model, session = _raw(_config(tmp_path / "runs"), tmp_path)
    assert type(model) is Model and type(model.up) is nn.Linear
    assert not hasattr(model, "_green_box") and not hasattr(model.up, "_green")
    run = json.loads((session.folder / "run.json").read_text())  # type: ignore[operator]
    chosen = {layer["name"]: layer["chosen"] for layer in run["layers"]}
    assert chosen == {"up": True, "down": True, "head": False, "embed": False}
    assert "scaled_mm" in run["gear_backend"]


def test_a_lightning_checkpoint_continues_steps_and_gear(tmp_path: Path) -> None:
    first, _ = _lightning(_config(tmp_path / "b"), tmp_path, steps=3)
    second, session = _lightning(_config(tmp_path / "b"), tmp_path, ckpt=str(tmp_path / "last.ckpt"))
    assert [gear for gear, _ in first.seen + second.seen] == GEARS_BY_MICRO_BATCH
    assert session.metrics()["green/fp8_share"] == 0.25
    assert session.totals().steps == STEPS


def test_an_accelerate_checkpoint_continues_steps_and_gear(tmp_path: Path) -> None:
    config = _config(tmp_path / "runs")
    model = Model()
    accelerator = GreenAccelerator(cpu=True, green=config)
    prepared, optimizer = accelerator.prepare(model, _optimizer(model))
    batch = next(iter(DataLoader(Tokens(), batch_size=BATCH)))
    for _ in range(3):
        accelerator.backward(prepared(**batch)["loss"])
        optimizer.step()
        optimizer.zero_grad()
    accelerator.save_state(str(tmp_path / "checkpoint"))
    assert _gear(model.up) == "fp8"
    accelerator.end_training()
    assert type(model.up) is nn.Linear
    accelerator = GreenAccelerator(cpu=True, green=_config(tmp_path / "runs"))
    other = Model()
    prepared, optimizer = accelerator.prepare(other, _optimizer(other))
    accelerator.load_state(str(tmp_path / "checkpoint"))
    for _ in range(2):
        accelerator.backward(prepared(**batch)["loss"])
        optimizer.step()
        optimizer.zero_grad()
    accelerator.end_training()
    assert [gear for gear, _ in other.seen] == ["fp8", "fp32"]


def test_a_trainer_checkpoint_continues_steps_and_gear(tmp_path: Path) -> None:
    whole, _ = _transformers(_config(tmp_path / "a"), tmp_path)
    model, optimizer = Model(), None
    callback = TransformersCallback(_config(tmp_path / "b"))
    optimizer = _optimizer(model)
    args = TrainingArguments(
        output_dir=str(tmp_path / "saved"),
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=ACCUMULATE,
        max_steps=3,
        max_grad_norm=0.0,
        use_cpu=True,
        disable_tqdm=True,
        report_to="none",
        save_strategy="steps",
        save_steps=3,
        remove_unused_columns=False,
    )
    constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    InOrder(model, args, train_dataset=Tokens(), optimizers=(optimizer, constant), callbacks=[callback]).train()
    other = Model()
    optimizer = _optimizer(other)
    again = copy.copy(args)
    again.max_steps = STEPS
    constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    callback = TransformersCallback(_config(tmp_path / "b"))
    trainer = InOrder(other, again, train_dataset=Tokens(), optimizers=(optimizer, constant), callbacks=[callback])
    trainer.train(resume_from_checkpoint=True)
    assert [gear for gear, _ in model.seen + other.seen] == GEARS_BY_MICRO_BATCH
    assert [loss for _, loss in model.seen + other.seen] == [loss for _, loss in whole.seen]


def test_a_trainer_callback_that_comes_too_late_is_told_so(tmp_path: Path) -> None:
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none", max_steps=1)
    trainer = Trainer(Model(), args, train_dataset=Tokens())
    trainer.add_callback(TransformersCallback(_config(tmp_path / "runs")))
    with pytest.raises(ConfigError, match=r"Trainer\(callbacks"):
        trainer.train()


def test_a_prepared_model_is_refused(tmp_path: Path) -> None:
    model = Model()
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    accelerator.prepare_model(model)
    with GreenSession(_config(tmp_path)) as green, pytest.raises(ConfigError, match="before it is prepared"):
        green.watch(model)


def test_two_sessions_on_one_model_are_refused(tmp_path: Path) -> None:
    model = Model()
    with GreenSession(_config(tmp_path)) as one, GreenSession(_config(tmp_path)) as two:
        one.watch(model)
        with pytest.raises(ConfigError, match="another GreenSession"):
            two.watch(model)


def test_fp16_without_loss_scaling_is_refused(tmp_path: Path) -> None:
    config = _config(tmp_path, gears=["fp16", "bf16"]) | {"policy": {}}
    with GreenSession(config) as green, pytest.raises(ConfigError, match="GradScaler"):
        green.watch(Model())
    with GreenSession(config) as green:
        green.watch(Model(), scaler=torch.amp.GradScaler("cpu"))


def _fp8(folder: Path, **precision: Any) -> dict[str, Any]:
    return _config(folder, **precision) | {"policy": {"name": "static", "gear": "fp8"}}


def _trainer(
    folder: Path, callbacks: list[Any], model: Model | None = None, kind: type[Trainer] = Trainer, **args: Any
) -> Trainer:
    settings = TrainingArguments(
        output_dir=str(folder / "out"),
        per_device_train_batch_size=BATCH,
        max_steps=2,
        use_cpu=True,
        disable_tqdm=True,
        report_to="none",
        save_strategy="no",
        remove_unused_columns=False,
        **args,
    )
    made: list[Model] = []

    def make() -> Model:
        made.append(Model())
        return made[-1]

    given: dict[str, Any] = {"model_init": make} if model is None else {}
    trainer = kind(model, settings, train_dataset=Tokens(), callbacks=callbacks, **given)
    trainer.made = made  # type: ignore[attr-defined]
    return trainer


def _is_plain(model: nn.Module) -> bool:
    return type(model) is Model and type(model.up) is nn.Linear and not hasattr(model, "_green_box")


@pytest.mark.parametrize("mixed", [{}, {"bf16": True}])
def test_the_gears_are_on_the_model_that_model_init_makes(tmp_path: Path, mixed: dict[str, Any]) -> None:
    callback = TransformersCallback(_fp8(tmp_path / "runs"))
    trainer: Any = _trainer(tmp_path, [callback], **mixed)
    for _ in range(2):  # as a search of hyper-parameters does
        trainer.train()
        assert [gear for gear, _ in trainer.made[-1].seen] == ["fp8"] * 2
        assert callback.session.totals().by_gear.keys() == {"fp8"}
        assert all(_is_plain(model) for model in trainer.made)
    assert [model.seen for model in trainer.made[:-2]] == [[]]


@pytest.mark.parametrize("mixed", [{}, {"bf16": True}])
def test_a_trainer_trains_the_same_model_twice_and_evaluates_between(tmp_path: Path, mixed: dict[str, Any]) -> None:
    callback, model = TransformersCallback(_fp8(tmp_path / "runs")), Model()
    trainer = _trainer(tmp_path, [callback], model, **mixed)
    for _ in range(2):
        trainer.train()
        assert type(model) is Model and type(model.up) is nn.Linear
        trainer.evaluate(Tokens())
    assert [gear for gear, _ in model.seen] == ["fp8"] * 4


@pytest.mark.parametrize("fused", [False, True])
def test_a_model_that_an_evaluation_has_prepared_gets_its_gears(tmp_path: Path, fused: bool) -> None:
    callback, model = TransformersCallback(_fp8(tmp_path / "runs")), Model()
    if fused:  # as TRL's trainers replace the forward of what they train
        vars(model)["forward"] = types.MethodType(Model.forward, model)
    trainer = _trainer(tmp_path, [callback], model, bf16=True)
    before = trainer.evaluate(Tokens())["eval_loss"]
    trainer.train()
    assert [gear for gear, _ in model.seen] == ["fp8"] * 2
    assert type(model) is Model and trainer.evaluate(Tokens())["eval_loss"] < before


class Failing(Trainer):
    """Fails at its second batch; has less memory than the first batches need."""

    fails: list[Exception]

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step and self.fails:
            raise self.fails.pop()
        return super().training_step(*args, **kwargs)


def test_one_callback_serves_a_second_trainer_after_an_exception_in_the_first(tmp_path: Path) -> None:
    callback, models = TransformersCallback(_fp8(tmp_path / "runs")), [Model(), Model()]
    first = _trainer(tmp_path, [callback], models[0], Failing)
    first.fails = [RuntimeError("a bug in the user's code")]  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="a bug"):
        first.train()
    assert _is_plain(models[0]) and not callback.session.running
    folder = callback.session.folder
    assert folder is not None
    assert next(r for r in read_journal(folder / "rank-00000.jsonl") if r["kind"] == "close")["reason"] == "exception"
    second = _trainer(tmp_path, [callback], models[1])
    second.train()
    assert [gear for gear, _ in models[1].seen] == ["fp8"] * 2 and _is_plain(models[1])
    first.train()
    assert [gear for gear, _ in models[0].seen] == ["fp8"] * 3


def test_smaller_batches_after_an_oom_keep_their_gears(tmp_path: Path) -> None:
    callback, model = TransformersCallback(_fp8(tmp_path / "runs")), Model()
    trainer = _trainer(tmp_path, [callback], model, Failing, auto_find_batch_size=True, bf16=True)
    trainer.fails = [torch.cuda.OutOfMemoryError("CUDA out of memory.")]  # type: ignore[attr-defined]
    seen: list[str] = []
    model.up.register_forward_pre_hook(lambda layer, args: seen.append(_gear(layer)))
    trainer.train()
    assert set(seen) == {"fp8"} and len(seen) == 3
    assert callback.session.totals().steps == 2
    assert _is_plain(model)


class Raising(Module):
    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        raise RuntimeError("CUDA out of memory (pretend)")


def test_lightning_leaves_a_plain_model_behind_an_exception(tmp_path: Path) -> None:
    callback, model = LightningCallback(_fp8(tmp_path / "runs")), Model()
    for module in (Raising(model), Module(model), Module(Model())):
        trainer = L.Trainer(
            accelerator="cpu",
            devices=1,
            max_steps=2,
            callbacks=[callback],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
            default_root_dir=tmp_path,
        )
        if isinstance(module, Raising):
            with pytest.raises(RuntimeError, match="pretend"):
                trainer.fit(module, DataLoader(Tokens(), batch_size=BATCH))
        else:
            trainer.fit(module, DataLoader(Tokens(), batch_size=BATCH))
            assert [gear for gear, _ in module.model.seen] == ["fp8"] * 2
        assert _is_plain(module.model)
        assert "forward_context" not in vars(trainer.precision_plugin)


def _some_steps(accelerator: GreenAccelerator, *prepared: Any) -> None:
    model, optimizer = prepared
    batch = next(iter(DataLoader(Tokens(), batch_size=BATCH)))
    for _ in range(2):
        accelerator.backward(model(**batch)["loss"])
        optimizer.step()
        optimizer.zero_grad()


def test_of_a_teacher_and_a_student_the_student_has_gears_and_counts(tmp_path: Path) -> None:
    teacher, student = Model(), Model()
    accelerator = GreenAccelerator(cpu=True, green=_fp8(tmp_path / "runs"))
    _, *prepared = accelerator.prepare(teacher, student, _optimizer(student))
    _some_steps(accelerator, *prepared)
    accelerator.end_training()
    assert [gear for gear, _ in student.seen] == ["fp8"] * 2
    assert _is_plain(student) and _is_plain(teacher)
    assert accelerator.green.totals().tokens == 2 * BATCH * CONTEXT


def test_freed_memory_is_free_and_the_next_model_has_the_gears(tmp_path: Path) -> None:
    accelerator = GreenAccelerator(cpu=True, green=_fp8(tmp_path / "runs"))
    gone = []
    for _ in range(2):
        model = Model()
        prepared = accelerator.prepare(model, _optimizer(model))
        _some_steps(accelerator, *prepared)
        assert [gear for gear, _ in model.seen] == ["fp8"] * 2
        gone.append(weakref.ref(model.up.weight))
        del model
        prepared = accelerator.free_memory(*prepared)
    assert [weight() for weight in gone] == [None, None]
    assert accelerator.green.running and accelerator.green.totals() is not None
    accelerator.end_training()
    assert accelerator.green.totals().steps == 4


def test_a_session_serves_a_second_accelerator_after_an_exception(tmp_path: Path) -> None:
    session = GreenSession(_fp8(tmp_path / "runs"))
    for ended in (False, True):
        model = Model()
        accelerator = GreenAccelerator(cpu=True, green=session)
        _some_steps(accelerator, *accelerator.prepare(model, _optimizer(model)))
        assert [gear for gear, _ in model.seen] == ["fp8"] * 2
        if ended:
            accelerator.end_training()
    session.close()
    assert _is_plain(model)


class Late(Module):
    """Makes its layers when Lightning asks for them, as for FSDP and tensor parallelism."""

    def __init__(self) -> None:
        super().__init__(nn.Identity())  # type: ignore[arg-type]

    def configure_model(self) -> None:
        if not hasattr(self.model, "seen"):
            self.model = Model()


def test_layers_that_configure_model_makes_have_gears(tmp_path: Path) -> None:
    callback, module = LightningCallback(_fp8(tmp_path / "runs")), Late()
    for done in (2, 4):
        trainer = L.Trainer(
            accelerator="cpu",
            devices=1,
            max_steps=2,
            callbacks=[callback],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
            default_root_dir=tmp_path,
        )
        trainer.fit(module, DataLoader(Tokens(), batch_size=BATCH))
        assert [gear for gear, _ in module.model.seen] == ["fp8"] * done
        assert _is_plain(module.model) and "configure_model" not in vars(module)


def test_a_closed_session_leaves_its_model_to_the_next(tmp_path: Path) -> None:
    model = Model()
    for nth in range(2):  # a notebook's cell that was left by an exception, and run again
        accelerator = GreenAccelerator(cpu=True, green=_fp8(tmp_path / str(nth)))
        _some_steps(accelerator, *accelerator.prepare(model, _optimizer(model)))
        accelerator.green.close()
        assert _is_plain(model)
    assert [gear for gear, _ in model.seen] == ["fp8"] * 4
