"""GreenCallback for Lightning, in real Trainers."""

import contextlib
import copy
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from importlib.metadata import EntryPoint
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch
import yaml
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.tuner.tuning import Tuner
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import Tensor

from greentrain.callbacks.lightning import CARDS, PAUSE_CHECKPOINT, GreenCallback, _check_world, _loss
from greentrain.control.launch.checkpoints import newest
from greentrain.errors import ConfigError, GreenTrainWarning
from greentrain.ledger.reader import read_run
from greentrain.report.fleet.find import find_runs
from tests.callbacks.conftest import CONTEXT, POWER_W, Gears, Recorder, TinyLM, Told, text_loader
from tests.helpers.child import in_a_child

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # Lightning's advice about workers and loggers
    pytest.mark.filterwarnings("error::greentrain.errors.GreenTrainWarning"),
]
Make = Callable[..., Recorder]


class Module(L.LightningModule):
    """TinyLM in Lightning."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = TinyLM()
        self.fail_at = -1
        self.sleep_s = 0.0
        self.lr = 0.05

    def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
        if index == self.fail_at:
            raise RuntimeError("a bug in the user's code")
        time.sleep(self.sleep_s)
        loss: Tensor = self.model(**batch)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: dict[str, Tensor], index: int) -> None:
        self.log("val_loss", self.model(**batch))

    test_step = validation_step

    def predict_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
        loss: Tensor = self.model(**batch)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


def _trainer(folder: Path, *callbacks: L.Callback, **options: Any) -> L.Trainer:
    options = {"max_epochs": 1, "logger": False, "enable_checkpointing": False, "log_every_n_steps": 2} | options
    return L.Trainer(
        accelerator="cpu",
        devices=1,
        default_root_dir=folder,
        callbacks=list(callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


def _weights(module: Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def test_phases_steps_and_tokens_with_accumulation(tmp_path: Path, recorder: Make) -> None:
    session = recorder()
    trainer = _trainer(tmp_path, GreenCallback(session), accumulate_grad_batches=2, num_sanity_val_steps=1)
    trainer.fit(Module(), text_loader(12, 2), text_loader(4, 2))
    half = ["forward", "backward", "data"]
    full = ["forward", "backward", "optimizer", "step", "data"]
    assert session.entered == ["eval", "data", *half, *full, *half, *full, *half, *full, "eval", "data"]
    totals = session.totals()
    assert (totals.steps, totals.tokens, totals.samples) == (3, 12 * CONTEXT, 12)
    assert totals.energy_j > 0
    assert not session.running


def test_training_is_bit_identical(tmp_path: Path, recorder: Make) -> None:
    plain, green = Module(), Module()
    _trainer(tmp_path, gradient_clip_val=0.5).fit(plain, text_loader())
    _trainer(tmp_path, GreenCallback(recorder()), gradient_clip_val=0.5).fit(green, text_loader())
    assert torch.equal(_weights(plain), _weights(green))


def test_a_trainer_that_has_fitted_is_copied_with_its_callback(tmp_path: Path, recorder: Make) -> None:
    trainer, module = _trainer(tmp_path, GreenCallback(recorder())), Module()
    trainer.fit(module, text_loader())
    (callback,) = (c for c in copy.deepcopy(trainer).callbacks if isinstance(c, GreenCallback))  # type: ignore[attr-defined]
    for other in (callback, pickle.loads(pickle.dumps(trainer.callbacks))[0]):  # type: ignore[attr-defined]
        assert other.session.totals().tokens == 16 * CONTEXT and not other.session.running


def test_a_tuner_finds_the_same_with_us_and_leaves_the_training_as_it_was(tmp_path: Path, recorder: Make) -> None:
    found, weights = [], []
    callback = GreenCallback(recorder())
    for callbacks in ([], [callback]):
        trainer, module = _trainer(tmp_path, *callbacks), Module()
        finder = Tuner(trainer).lr_find(module, text_loader(), num_training=6, update_attr=False)
        assert finder is not None
        found.append(finder.results)
        trainer.fit(module, text_loader())
        weights.append(_weights(module))
    assert found[0] == found[1]
    assert torch.equal(*weights)
    assert callback.session.totals().steps == 8, "those of the fit: Lightning tunes without callbacks"


def test_metrics_reach_the_logger(tmp_path: Path, recorder: Make) -> None:
    logger = CSVLogger(tmp_path)
    session = recorder()
    trainer = _trainer(tmp_path, GreenCallback(session), logger=logger, log_every_n_steps=4)
    trainer.fit(Module(), text_loader(16, 2))
    lines = (Path(logger.log_dir) / "metrics.csv").read_text().splitlines()
    header = lines[0].split(",")
    rows = [dict(zip(header, line.split(","), strict=True)) for line in lines[1:]]
    keys = {f"green/{key}" for key in ("energy_j", "power_w", "emissions_g", "tokens_per_j", "g_per_ktoken")}
    assert keys <= set(header)
    assert {row["step"] for row in rows if row["loss"]} == {"3", "7"}
    ours = [row for row in rows if row["green/energy_j"]]
    assert {row["step"] for row in ours} <= {"3", "7"}  # the steps of Lightning's own metrics
    last = ours[-1]  # logged after the run was closed: the final figures
    assert all(float(last[key]) > 0 for key in keys)
    assert float(last["green/power_w"]) == pytest.approx(POWER_W, rel=0.1)
    totals = session.totals()
    assert float(last["green/energy_j"]) == pytest.approx(totals.energy_j)
    assert float(last["green/g_per_ktoken"]) == pytest.approx(1000 * totals.emissions_g / totals.tokens)


def test_no_logger_and_no_logging_are_fine(tmp_path: Path, recorder: Make) -> None:
    _trainer(tmp_path, GreenCallback(recorder()), log_every_n_steps=0).fit(Module(), text_loader())


def test_the_footprint_of_a_checkpoint_is_in_it_and_in_the_run_folder(tmp_path: Path, recorder: Make) -> None:
    session, module, kept = recorder(), Module(), tmp_path / "kept"
    module.sleep_s = 0.05
    saver = ModelCheckpoint(kept, every_n_train_steps=2, save_top_k=1)
    _trainer(tmp_path, GreenCallback(session), saver, enable_checkpointing=True).fit(module, text_loader())
    assert [path.name for path in kept.iterdir()] == ["epoch=0-step=8.ckpt"], "programs load whatever lies there"
    held = torch.load(kept / "epoch=0-step=8.ckpt", weights_only=True)["callbacks"]["GreenCallback"]["totals"]
    assert 0 < held["energy_j"] <= session.totals().energy_j and held["operational_g"] > 0
    assert session.folder is not None
    card = yaml.safe_load((session.folder / CARDS / "epoch=0-step=8.ckpt.yaml").read_text(encoding="utf-8"))
    assert 0 < card["co2_eq_emissions"]["emissions"] <= session.totals().operational_g * 1.01 + 1e-4
    assert "of electricity" in card["co2_eq_emissions"]["source"]
    assert [found.folder for found in find_runs(session.folder.parent)] == [session.folder]
    assert newest(session.folder).newest is None


@pytest.mark.parametrize("folder_lost", [False, True])
def test_a_resumed_fit_continues_the_run(tmp_path: Path, recorder: Make, folder_lost: bool) -> None:
    first, module = recorder(), Module()
    module.sleep_s = 0.05
    saver = ModelCheckpoint(tmp_path, save_last=True)
    _trainer(tmp_path, GreenCallback(first), saver, enable_checkpointing=True).fit(module, text_loader())
    assert "checkpoint" in first.entered
    assert first.folder is not None
    events = read_run(first.folder).ranks[0].events
    assert [event["name"] for event in events].count("checkpoint") >= 1
    if folder_lost:
        shutil.rmtree(first.folder)
    second = recorder()
    trainer = _trainer(tmp_path, GreenCallback(second), max_epochs=2)
    trainer.fit(Module(), text_loader(), ckpt_path=str(tmp_path / "last.ckpt"))
    assert second.folder == first.folder
    run = read_run(second.folder)
    if folder_lost:  # the totals of the last booking before the checkpoint travel in it
        carried = run.ranks[0].carried
        assert carried.energy_j > 0
        assert 0 < carried.steps <= 8
        assert second.totals().steps == carried.steps + 8
    else:
        assert run.totals.steps == second.totals().steps == 16
        assert run.totals.energy_j > first.totals().energy_j


def test_a_checkpoint_without_us_loads_with_us_and_back(tmp_path: Path, recorder: Make) -> None:
    trainer = _trainer(tmp_path)
    trainer.fit(Module(), text_loader())
    trainer.save_checkpoint(tmp_path / "plain.ckpt")
    ours = _trainer(tmp_path, GreenCallback(recorder()), max_epochs=2)
    ours.fit(Module(), text_loader(), ckpt_path=str(tmp_path / "plain.ckpt"))
    ours.save_checkpoint(tmp_path / "green.ckpt")
    _trainer(tmp_path, max_epochs=3).fit(Module(), text_loader(), ckpt_path=str(tmp_path / "green.ckpt"))


def test_an_exception_closes_the_run(tmp_path: Path, recorder: Make) -> None:
    session, module = recorder(), Module()
    module.fail_at = 3
    trainer = _trainer(tmp_path, GreenCallback(session))
    with pytest.raises(RuntimeError, match="user's code"):
        trainer.fit(module, text_loader())
    assert not session.running
    assert session.folder is not None
    rank = read_run(session.folder).ranks[0]
    assert rank.close is not None
    assert rank.close["reason"] == "exception"
    assert rank.totals.steps == 3
    assert "save_checkpoint" not in vars(trainer)


@pytest.mark.long
@in_a_child
def test_sigterm_is_handled_as_without_us(tmp_path: Path, recorder: Make) -> None:
    class Terminated(L.Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == 3:
                signal.raise_signal(signal.SIGTERM)

    before, session, reached = signal.getsignal(signal.SIGTERM), recorder(), []
    for callbacks in ([], [GreenCallback(session)]):
        trainer = _trainer(tmp_path, *callbacks, Terminated())
        with pytest.raises(SIGTERMException):
            trainer.fit(Module(), text_loader())
        reached.append(trainer.global_step)
    assert reached[0] == reached[1]
    assert signal.getsignal(signal.SIGTERM) == before
    assert session.folder is not None
    close = read_run(session.folder).ranks[0].close
    assert close is not None
    assert close["reason"] == "sigterm"


def test_two_fits_are_two_runs(tmp_path: Path, recorder: Make) -> None:
    session = recorder()
    trainer = _trainer(tmp_path, GreenCallback(session))
    trainer.fit(Module(), text_loader())
    first = session.folder
    trainer.fit_loop.max_epochs = 2
    trainer.fit(Module(), text_loader())
    assert session.folder != first
    assert session.totals().steps == 8


def test_evaluations_around_a_fit_are_phases_of_its_run(tmp_path: Path, recorder: Make) -> None:
    session, module = recorder(), Module()
    callback = GreenCallback(session)
    trainer = _trainer(tmp_path, callback)
    trainer.validate(module, text_loader())
    first, before = session.folder, session.totals()
    trainer.fit(module, text_loader())
    trainer.test(module, text_loader())
    _trainer(tmp_path, callback).predict(module, text_loader())
    assert (
        session.folder == first and first is not None and [path.name for path in first.parent.iterdir()] == [first.name]
    )
    record = read_run(first)
    (rank,) = record.ranks
    assert rank.totals.steps == 8 and rank.close is not None and rank.close["reason"] == "finished"
    assert rank.totals.by_phase["eval"] > before.by_phase["eval"] > 0
    assert rank.totals.duration_s == pytest.approx(sum(e.t1_unix_s - e.t0_unix_s for e in rank.entries))
    trainer.fit_loop.max_epochs = 2
    trainer.fit(module, text_loader())
    second = session.folder
    trainer.test(module, text_loader())
    assert second == session.folder != first, (
        "a second fit, as of a sweep, has a run of its own, and its tests are there"
    )
    assert session.totals().steps == 8


def test_an_evaluation_behind_a_fit_that_failed_is_no_part_of_it(tmp_path: Path, recorder: Make) -> None:
    session, module = recorder(), Module()
    module.fail_at = 1
    trainer = _trainer(tmp_path, GreenCallback(session))
    with pytest.raises(RuntimeError, match="user's code"):
        trainer.fit(module, text_loader())
    failed = session.folder
    trainer.test(module, text_loader())
    assert failed is not None and session.folder != failed
    close = read_run(failed).ranks[0].close
    assert close is not None and close["reason"] == "exception"


@pytest.mark.parametrize("task", ["validate", "test", "predict"])
def test_evaluation_alone_is_measured(tmp_path: Path, recorder: Make, task: str) -> None:
    session = recorder()
    getattr(_trainer(tmp_path, GreenCallback(session)), task)(Module(), text_loader())
    assert session.entered == ["eval"]
    assert session.totals().by_phase["eval"] > 0
    assert not session.running


def test_manual_optimization_with_two_optimizers(tmp_path: Path, recorder: Make) -> None:
    class Gan(Module):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.other = TinyLM()

        def training_step(self, batch: dict[str, Tensor], index: int) -> None:  # type: ignore[override]
            optimizers: Any = self.optimizers()
            for optimizer, model in zip(optimizers, (self.model, self.other), strict=True):
                optimizer.zero_grad()
                self.manual_backward(model(**batch))
                optimizer.step()

        def configure_optimizers(self) -> Any:
            return [torch.optim.SGD(model.parameters(), lr=0.1) for model in (self.model, self.other)]

    session = recorder()
    _trainer(tmp_path, GreenCallback(session)).fit(Gan(), text_loader(4, 2))
    batch = [*["forward", "backward", "forward", "optimizer"] * 2, "forward", "step", "data"]
    assert session.entered == ["data", *batch, *batch]
    assert session.totals().steps == 2


def test_a_fault_of_ours_does_not_stop_training(tmp_path: Path, recorder: Make) -> None:
    session, plain, green = recorder(), Module(), Module()
    _trainer(tmp_path).fit(plain, text_loader())
    session.broken = True
    with pytest.warns(GreenTrainWarning, match="a bug of ours"):
        _trainer(tmp_path, GreenCallback(session)).fit(green, text_loader(), text_loader())
    assert torch.equal(_weights(plain), _weights(green))


def test_a_session_of_the_user_stays_open(tmp_path: Path, recorder: Make) -> None:
    with recorder() as session:
        trainer = _trainer(tmp_path, GreenCallback(session))
        trainer.fit(Module(), text_loader(), text_loader())
        trainer.validate(Module(), text_loader())
        assert session.running
    assert session.totals().steps == 8


def test_the_callback_can_be_sent_to_spawned_processes(tmp_path: Path) -> None:
    callback = GreenCallback({"run": {"dir": str(tmp_path)}, "power": {"meters": "null"}})
    assert pickle.loads(pickle.dumps(callback)).session.config == callback.session.config


_DDP = """
import sys, torch, lightning as L
from greentrain.callbacks.lightning import GreenCallback
from tests.callbacks.test_lightning import Module
from tests.callbacks.conftest import text_loader
torch.set_num_threads(1)
green = GreenCallback({"run": {"dir": sys.argv[1], "report": False}, "power": {"meters": "cpu_model"}})
L.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, logger=False, enable_checkpointing=False,
          enable_progress_bar=False, enable_model_summary=False, callbacks=[green]).fit(Module(), text_loader(16, 2))
"""


@pytest.mark.long
@pytest.mark.slow
def test_two_ranks_write_one_run(tmp_path: Path) -> None:
    script, root = tmp_path / "ddp.py", Path(__file__).resolve().parents[2]
    script.write_text(_DDP)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "runs")],
        env={**_environ(), "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (folder,) = (tmp_path / "runs").iterdir()
    run = read_run(folder)
    assert [rank.rank for rank in run.ranks] == [0, 1]
    assert run.totals.steps == 4
    assert run.totals.tokens == 16 * CONTEXT
    assert all(a.rank < b.rank for a, b in pairwise(run.ranks))


def _environ() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}


def test_processes_that_do_not_know_each_other_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "one")
    monkeypatch.setenv("WORLD_SIZE", "2")
    callback = GreenCallback({"run": {"dir": str(tmp_path)}})
    trainer = SimpleNamespace(global_rank=0, world_size=1)
    with pytest.raises(ConfigError, match=r"started 2 processes.*devices=int\(os\.environ"):
        callback.setup(trainer, None, "fit")  # type: ignore[arg-type]
    monkeypatch.setenv("WORLD_SIZE", "1")
    callback.setup(trainer, None, "fit")  # type: ignore[arg-type]


def _cli_session(folder: Path, *args: str) -> Any:
    from lightning.pytorch.cli import LightningCLI

    cli = LightningCLI(
        Module,
        args=["--trainer.logger=false", f"--trainer.default_root_dir={folder}", "--trainer.accelerator=cpu", *args],
        run=False,
        save_config_callback=None,
        seed_everything_default=False,
    )
    (callback,) = (c for c in cli.trainer.callbacks if isinstance(c, GreenCallback))  # type: ignore[attr-defined]
    return callback.session


def test_lightning_cli_sets_keys_of_the_session(tmp_path: Path) -> None:
    pytest.importorskip("jsonargparse", reason="LightningCLI takes jsonargparse")
    (tmp_path / "green.yaml").write_text(f"run: {{dir: {tmp_path}, name: from-file}}\n", encoding="utf-8")
    green, key = "--trainer.callbacks+=GreenCallback", "--trainer.callbacks.session"
    config = _cli_session(
        tmp_path, green, f"{key}.run.name=mine", f"{key}.run.book_s=7", f"{key}.carbon.zone=FR"
    ).config
    assert (config.run.name, config.run.book_s, config.carbon.zone) == ("mine", 7.0, "FR")
    assert _cli_session(tmp_path, green, f"{key}={tmp_path / 'green.yaml'}").config.run.name == "from-file"
    assert _cli_session(tmp_path, green).config.run.name == "train"


def test_keys_with_dots_are_sections() -> None:
    told = {"run.name": "mine", "carbon": {"zone": "FR"}, "carbon.pue": "1.2", "run.report": False}
    config = GreenCallback(told).session.config
    assert (config.run.name, config.run.report, config.carbon.zone, config.carbon.pue) == ("mine", False, "FR", 1.2)
    with pytest.raises(ConfigError, match=r"unknown key run\.nme"):
        GreenCallback({"run.nme": "mine"})


def test_ranks_that_share_a_batch_count_it_once(recorder: Make) -> None:
    """ModelParallelStrategy keeps its mesh in _device_mesh and raises where it has none (lightning 2.6)."""
    tokens = []
    for rank in range(2):
        session = recorder(id="job")
        callback = GreenCallback(session)
        mesh = SimpleNamespace(
            mesh_dim_names=("data_parallel", "tensor_parallel"),
            get_coordinate=lambda rank=rank: (0, rank),
            size=lambda dim: (1, 2)[dim],
        )
        strategy = SimpleNamespace(_device_mesh=mesh)
        trainer: Any = SimpleNamespace(
            global_rank=rank, world_size=2, local_rank=rank, num_devices=2, strategy=strategy
        )
        callback._start(trainer, Module())
        session.step(tokens=33)
        callback._driver.stop("finished")
        tokens.append(session.totals().tokens)
    assert sorted(tokens) == [16, 17]


# -- without a training --------------------------------------------------------------------------------------------


IDS = torch.zeros(2, 5, dtype=torch.int64)


class Logger:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.logged: list[Any] = []

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.logged.append((metrics["green/energy_j"], step))


def _stub(folder: Path, **changed: Any) -> Any:
    """A Trainer as far as its hooks tell of it."""
    logger, strategy = Logger(), SimpleNamespace()
    known = {
        "global_rank": 0, "world_size": 1, "local_rank": 0, "num_devices": 1, "strategy": strategy,
        "model": None, "optimizers": [], "global_step": 0, "should_stop": False, "log_every_n_steps": 4,
        "is_global_zero": True, "loggers": [logger], "logger": logger, "default_root_dir": str(folder),
        "sanity_checking": False, "saved": [],
    }  # fmt: skip
    trainer = SimpleNamespace(**(known | changed))
    trainer.save_checkpoint = trainer.saved.append
    return trainer


@pytest.fixture
def callback(session: Told) -> GreenCallback:
    callback = GreenCallback()
    callback.session = callback._driver.session = session  # type: ignore[assignment]
    return callback


def test_a_step_is_one_where_the_trainers_count_rose(callback: GreenCallback, told: list[Any], tmp_path: Path) -> None:
    trainer, module = _stub(tmp_path, global_step=10), Module()
    callback.setup(trainer, module, "fit")
    callback.on_train_start(trainer, module)
    for trainer.global_step in (10, 11, 11, 13):  # the second and the fourth batch end a step; a manual loop's two
        callback.on_train_batch_start(trainer, module, IDS, 0)
        callback.on_train_batch_end(trainer, module, None, None, 0)
    assert [mark for mark in told if isinstance(mark, tuple) and isinstance(mark[0], int)][1:] == [(20, 4), (20, 4)]
    assert trainer.logger.logged == [(1.0, 11), (1.0, 12)][1:], "12 is a multiple of 4 on the way to 13"


def test_a_plan_gets_its_checkpoint_and_its_end_from_the_trainer(callback: GreenCallback, tmp_path: Path) -> None:
    trainer, module = _stub(tmp_path), Module()
    callback.setup(trainer, module, "fit")
    callback.on_train_start(trainer, module)
    for step, due, stop in ((1, False, False), (2, True, False), (3, False, True)):
        callback.session.checkpoint_due, callback.session.should_stop = due, stop  # type: ignore[misc]
        trainer.global_step = step
        callback.on_train_batch_end(trainer, module, None, None, 0)
        assert (len(trainer.saved), trainer.should_stop) == (int(step >= 2), stop)
    assert trainer.saved == [tmp_path / PAUSE_CHECKPOINT]


@pytest.mark.parametrize("told_path", ["kept/a.ckpt", Path("kept/a.ckpt"), "s3://bucket/kept/a.ckpt"])
def test_the_footprint_of_a_checkpoint_anywhere_is_in_the_run_folder(
    callback: GreenCallback, told: list[Any], tmp_path: Path, told_path: str | Path
) -> None:
    trainer = _stub(tmp_path)
    callback.session.folder = tmp_path / "run"  # type: ignore[misc]
    callback.on_train_start(trainer, Module())
    trainer.save_checkpoint(told_path)
    assert trainer.saved == [told_path]
    assert f"card {tmp_path / 'run' / CARDS / 'a.ckpt.yaml'}" in told


def test_rank_0_alone_logs_and_only_a_fit_logs_its_end(callback: GreenCallback, tmp_path: Path) -> None:
    for zero, stage, logged in ((True, "fit", [(2.0, 4)]), (False, "fit", []), (True, "validate", [])):
        trainer, module = _stub(tmp_path, is_global_zero=zero), Module()
        callback.setup(trainer, module, stage)
        callback.on_validation_start(trainer, module)
        trainer.global_step = 5
        callback.teardown(trainer, module, stage)
        callback.teardown(trainer, module, stage)
        assert trainer.logger.logged == logged, "once, of the closed run, at the number of the last step"
    trainer = _stub(tmp_path)
    callback.setup(trainer, Module(), "fit")
    callback.on_sanity_check_start(trainer, Module())
    callback.teardown(trainer, Module(), "fit")
    assert trainer.logger.logged == [(2.0, 0)], "before the first step, too"


def test_behind_a_validation_comes_data_where_training_goes_on(
    callback: GreenCallback, told: list[Any], tmp_path: Path
) -> None:
    module = Module()
    for stage, sanity, entered in (
        ("fit", False, ["+eval", "+data"]),
        ("fit", True, ["+eval"]),
        ("validate", False, ["+eval"]),
    ):
        trainer = _stub(tmp_path, sanity_checking=sanity)
        callback.setup(trainer, module, stage)
        told.clear()
        callback.on_validation_start(trainer, module)
        callback.on_validation_end(trainer, module)
        assert [mark for mark in told if isinstance(mark, str)] == entered


def test_only_a_fit_continues_the_run_of_a_checkpoint(callback: GreenCallback, told: list[Any], tmp_path: Path) -> None:
    for stage, rank in (("validate", 0), ("fit", 0), ("fit", 1)):
        callback.setup(_stub(tmp_path, global_rank=rank), Module(), stage)
        callback.load_state_dict({"run": "one"})
    assert told == [{"run": "one"}, {"run": "one", "totals": {}}]


def test_a_manual_step_ends_in_the_forward_that_goes_on_and_an_automatic_one_in_nothing(
    callback: GreenCallback, told: list[Any], tmp_path: Path
) -> None:
    for automatic, last in ((True, "-optimizer"), (False, "+forward")):
        module, weight = Module(), torch.nn.Parameter(torch.ones(1))
        module.automatic_optimization = automatic
        optimizer = torch.optim.SGD([weight], lr=0.1)
        trainer = _stub(tmp_path, optimizers=[optimizer, object()])
        callback.setup(trainer, module, "fit")
        callback.on_train_start(trainer, module)
        told.clear()
        callback.on_before_backward(trainer, module, None)
        callback.on_after_backward(trainer, module)
        callback.on_before_optimizer_step(trainer, module, optimizer)
        optimizer.step()
        marks = [mark if isinstance(mark, str) else mark[0] for mark in told]
        middle = [] if automatic else ["+forward", "-forward"]
        ends = ["-optimizer"] if automatic else ["-optimizer", "+forward"]
        assert marks == ["+backward", "-backward", *middle, "+optimizer", *ends] and marks[-1] == last
        callback.teardown(trainer, module, "fit")
        assert not optimizer._optimizer_step_post_hooks and "save_checkpoint" not in vars(type(trainer))


def test_gears_are_bound_to_every_optimizer_but_an_engines_steps_are_its_own(
    callback: GreenCallback, tmp_path: Path
) -> None:
    gears = callback.session.gears = Gears()  # type: ignore[misc, assignment]
    gears.box.context = lambda device, training: (device, training)
    for engine in (False, True):
        model = SimpleNamespace(global_steps=3) if engine else SimpleNamespace()
        plugin = SimpleNamespace(scaler="a scaler")
        strategy = SimpleNamespace(root_device=torch.device("cpu"))
        trainer = _stub(tmp_path, model=model, optimizers=["one", "two"], precision_plugin=plugin, strategy=strategy)
        gears.told.clear()
        callback.setup(trainer, Module(), "fit")
        assert plugin.forward_context() == ("cpu", True)
        attached = [word for word in gears.told if word[0] == "attach"]
        assert attached == [("attach", {"device": torch.device("cpu"), "scaler": "a scaler", "wrap_forward": False})]
        callback._start(trainer, Module())
        callback._bind(trainer)
        assert gears.told[-3:] == [("check", model), ("bind", "one", not engine), ("bind", "two", not engine)]
        trainer.global_step = 1
        callback._steps = 0
        callback.on_train_batch_end(trainer, Module(), None, None, 0)
        assert ("boundary" in gears.told) is engine
        callback.teardown(trainer, Module(), "fit")
        assert "forward_context" not in vars(plugin)


def test_a_fit_that_ended_without_a_word_is_over_before_the_next(
    callback: GreenCallback, told: list[Any], tmp_path: Path
) -> None:
    for _ in range(2):
        callback.setup(_stub(tmp_path), Module(), "fit")
        callback.on_train_start(_stub(tmp_path), Module())
    assert [mark for mark in told if isinstance(mark, str)] == ["exception"]


@pytest.mark.parametrize(
    ("error", "reason"), [(SIGTERMException(), "sigterm"), (KeyboardInterrupt(), "exception"), (OSError(), "exception")]
)
def test_books_say_what_has_ended_a_fit(
    callback: GreenCallback, told: list[Any], tmp_path: Path, error: BaseException, reason: str
) -> None:
    callback.on_train_start(_stub(tmp_path), Module())
    callback.on_exception(_stub(tmp_path), Module(), error)
    assert told[-1] == reason


def test_a_session_that_cannot_tell_its_state_does_not_spoil_the_trainers_checkpoint(callback: GreenCallback) -> None:
    assert callback.state_dict() == {"run": "one"}
    callback.session.state_dict = lambda: 1 / 0  # type: ignore[method-assign, assignment, return-value]
    with pytest.warns(GreenTrainWarning, match="ZeroDivisionError"):
        assert callback.state_dict() == {}


def test_batches_are_kept_for_a_comparison_of_gears_where_lightning_itself_computes_the_loss(
    callback: GreenCallback, tmp_path: Path
) -> None:
    offered: list[Any] = []
    gears = callback.session.gears = Gears()  # type: ignore[misc, assignment]
    trainer, module = _stub(tmp_path), Module()
    for recorder, automatic, kept in ((None, True, 0), (SimpleNamespace(offer=None), False, 0), (True, True, 1)):
        if recorder is True:
            recorder = SimpleNamespace(offer=lambda loss, batch: offered.append((loss.args, batch)))
        gears.recorder, module.automatic_optimization = recorder, automatic  # type: ignore[assignment]
        callback.on_train_batch_start(trainer, module, IDS, 3)
        assert len(offered) == kept
    assert offered == [((trainer, module, 3), IDS)]


def test_a_loss_that_is_asked_for_once_more_logs_nothing_and_leaves_the_users_log(tmp_path: Path) -> None:
    module, logged = Module(), list[Any]()
    own: dict[str, Any] = vars(module)
    users = own["log"] = lambda *args, **kwargs: logged.append(args)
    trainer = _stub(tmp_path, precision_plugin=SimpleNamespace(train_step_context=contextlib.nullcontext))

    def says(batch: Any, index: int) -> dict[str, float]:
        module.log("loss", 1.0)
        return {"loss": 3.0}

    own["training_step"] = says
    assert _loss(trainer, module, 0, None) == 3.0 and not logged
    assert own["log"] is users and "log_dict" not in own
    own["training_step"] = lambda batch, index: 4.0
    assert _loss(trainer, module, 0, None) == 4.0
    own["training_step"] = lambda batch, index: 1 / 0
    with pytest.raises(ZeroDivisionError):
        _loss(trainer, module, 0, None)
    assert own["log"] is users


@pytest.mark.parametrize(
    ("environ", "found", "refused"),
    [
        ({"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2"}, 1, True),
        ({"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2"}, 2, False),
        ({"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "1"}, 1, False),
        ({"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "two"}, 1, False),
        ({"TORCHELASTIC_RUN_ID": "x"}, 1, False),
        ({"WORLD_SIZE": "2"}, 1, False),
    ],
)
def test_processes_that_train_side_by_side_without_knowing_each_other_are_refused(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], found: int, refused: bool
) -> None:
    for name in ("TORCHELASTIC_RUN_ID", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    if not refused:
        _check_world(found)
        return
    with pytest.raises(ConfigError, match="started 2 processes, but each has a Trainer of its own"):
        _check_world(found)


def test_the_entry_point_adds_one_callback_where_the_environment_names_a_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = "lightning.pytorch.callbacks_factory"
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    points = [EntryPoint(name, value, group) for name, value in project["entry-points"][group].items()]
    monkeypatch.setattr(
        "lightning.fabric.utilities.registry.entry_points", lambda group: [p for p in points if p.group == group]
    )

    def green(*callbacks: L.Callback) -> list[Any]:
        trainer: Any = _trainer(tmp_path, *callbacks)
        return [callback for callback in trainer.callbacks if isinstance(callback, GreenCallback)]

    monkeypatch.delenv("GREENTRAIN_CONFIG", raising=False)
    assert green() == []
    config = tmp_path / "green.yaml"
    config.write_text(f"run: {{dir: {tmp_path / 'runs'}, report: false}}\n")
    monkeypatch.setenv("GREENTRAIN_CONFIG", str(config))
    own = GreenCallback({"run": {"dir": str(tmp_path)}})
    assert green(own) == [own]
    trainer = _trainer(tmp_path)
    trainer.fit(Module(), text_loader(8, 2))
    (run,) = (tmp_path / "runs").iterdir()
    assert read_run(run).totals.steps == 4
    config.write_text("run: {nonsense: 1}\n")
    with pytest.raises(ConfigError, match="nonsense"):
        _trainer(tmp_path)
