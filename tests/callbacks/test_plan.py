"""A plan pauses a training of each framework, which writes a checkpoint before, and a spent budget ends it."""

import warnings
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from transformers import Trainer, TrainingArguments

from greentrain import GreenSession
from greentrain.callbacks.accelerate import GreenAccelerator
from greentrain.callbacks.lightning import PAUSE_CHECKPOINT
from greentrain.callbacks.lightning import GreenCallback as LightningCallback
from greentrain.callbacks.transformers import GreenCallback as TransformersCallback
from greentrain.carbon.constant import ConstantSignal
from greentrain.carbon.trace import TraceSignal
from greentrain.control import carbon_budget
from greentrain.control.launcher_protocol import EXIT_REQUEUE
from greentrain.ledger.journal import read_journal
from tests.helpers.fake_launcher import FakeLauncher
from tests.helpers.flat_meter import FlatMeter
from tests.helpers.paced_clock import PacedClock

pytestmark = pytest.mark.filterwarnings("ignore")
WIDTH, STEPS = 32, 12


class Rows(Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 4 * STEPS

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {"x": torch.full((WIDTH,), float(i % 7)), "labels": torch.zeros(WIDTH)}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": nn.functional.mse_loss(self.layers(x).float(), labels)}


class Module(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = Model()

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        loss: Tensor = self.model(**batch)["loss"]
        return loss

    def configure_optimizers(self) -> OptimizerLRScheduler:
        return torch.optim.AdamW(self.parameters())


def session(tmp_path: Path, launcher: FakeLauncher | None = None) -> GreenSession:
    """A job of little work, on a day that gets clean after two hours: it pauses for them, half a second each."""
    days = [f"2022-05-{day:02}T{h:02}:00Z,{500 if h < 14 else 100}" for day in range(20, 31) for h in range(24)]
    trace = tmp_path / "grid.csv"
    trace.write_text("timestamp_utc,g_per_kwh\n" + "\n".join(days) + "\n", encoding="utf-8")
    table = tmp_path / "actions.yaml"
    table.write_text("- {gear: bf16, tokens_per_s: 1000, power_w: 500}\n", encoding="utf-8")
    config = {
        "run": {"dir": str(tmp_path / "runs"), "report": False, "book_s": 0.2},
        "power": {"sample_s": 0.02},
        "carbon": {"replay_start": "2022-05-28T12:00Z", "speed": 7200.0},
        "precision": {"gears": ["bf16"]},
        "policy": {"name": "mpc", "tokens": 1e3, "deadline_h": 12, "idle_w": 0.0, "actions": str(table)},
    }
    return GreenSession(config, meter=FlatMeter(), signal=TraceSignal(trace), launcher=launcher)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> PacedClock:
    clock = PacedClock()
    clock.rules(monkeypatch)
    return clock


@pytest.fixture
def planned(tmp_path: Path) -> GreenSession:
    return session(tmp_path)


@pytest.fixture
def poor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GreenSession:
    monkeypatch.setattr(carbon_budget, "LOOK_S", 0.05)
    config = {
        "run": {"dir": str(tmp_path / "runs"), "report": False, "book_s": 0.1},
        "power": {"sample_s": 0.02},
        "policy": {"budget_g": 1e-3, "budget_action": "stop"},
    }
    return GreenSession(config, meter=FlatMeter(), signal=ConstantSignal(360.0, zone="test", source="test"))


def train_transformers(green: GreenSession, folder: Path, steps: int, resume: bool = False) -> int:
    args = TrainingArguments(
        output_dir=str(folder / "hf"),
        max_steps=steps,
        per_device_train_batch_size=4,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = Trainer(model=Model(), args=args, train_dataset=Rows(), callbacks=[TransformersCallback(green)])
    trainer.train(resume_from_checkpoint=resume or None)
    return int(trainer.state.global_step)


def train_lightning(green: GreenSession, folder: Path, steps: int, resume: bool = False) -> int:
    trainer = L.Trainer(
        max_steps=steps,
        default_root_dir=folder / "pl",
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[LightningCallback(green)],
    )
    path = folder / "pl" / PAUSE_CHECKPOINT if resume else None
    trainer.fit(Module(), DataLoader(Rows(), batch_size=4), ckpt_path=path, weights_only=False)
    return int(trainer.global_step)


def train_accelerate(green: GreenSession, folder: Path, steps: int, resume: bool = False) -> int:
    accelerator = GreenAccelerator(cpu=True, green=green)
    raw = Model()
    model, optimizer, loader = accelerator.prepare(
        raw, torch.optim.AdamW(raw.parameters()), DataLoader(Rows(), batch_size=4)
    )
    step = 0
    if resume:
        accelerator.load_state(str(folder / "state"))
        step = 1
        loader = accelerator.skip_first_batches(loader, step)
    for batch in loader:
        accelerator.backward(model(**batch)["loss"])
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if green.checkpoint_due:
            accelerator.save_state(str(folder / "state"))
        if step == steps:
            break
    accelerator.end_training()
    return step


def decisions(green: GreenSession) -> list[Any]:
    assert green.folder is not None
    return [r for r in read_journal(green.folder / "rank-00000.jsonl") if r.get("name") == "decision"]


def check_paused(green: GreenSession) -> None:
    first, then = decisions(green)[:2]
    assert first["action"] is None and green.totals().phase_s["paused"] > 0.0
    # The pause ends at an hour of the grid, so how long it was depends on when the first step came.
    assert then["grid_s"] >= first["next_s"] - 60.0, "training went on before the pause was over"
    assert green.totals().steps == STEPS


def test_transformers_saves_and_pauses(planned: GreenSession, tmp_path: Path) -> None:
    assert train_transformers(planned, tmp_path, STEPS) == STEPS
    check_paused(planned)
    assert sorted(path.name for path in (tmp_path / "hf").iterdir()) == ["checkpoint-1"]


def test_lightning_saves_and_pauses(planned: GreenSession, tmp_path: Path) -> None:
    assert train_lightning(planned, tmp_path, STEPS) == STEPS
    check_paused(planned)
    saved = torch.load(tmp_path / "pl" / PAUSE_CHECKPOINT, weights_only=False)
    assert saved["global_step"] == 1
    assert saved["callbacks"]["GreenCallback"]["progress"]["tokens"] == 4.0, "four samples, as the loop tells no tokens"


def test_accelerate_pauses(planned: GreenSession, tmp_path: Path) -> None:
    accelerator = GreenAccelerator(cpu=True, green=planned)
    raw = Model()
    model, optimizer, loader = accelerator.prepare(
        raw, torch.optim.AdamW(raw.parameters()), DataLoader(Rows(), batch_size=4)
    )
    due = []
    for batch in loader:
        accelerator.backward(model(**batch)["loss"])
        optimizer.step()
        optimizer.zero_grad()
        due.append(planned.checkpoint_due)
    accelerator.end_training()
    check_paused(planned)
    assert due == [True] + [False] * (STEPS - 1)


@pytest.mark.sweep
@pytest.mark.parametrize("train", [train_transformers, train_lightning, train_accelerate])
def test_a_long_pause_ends_the_process_and_the_next_one_goes_on(tmp_path: Path, train: Any, clock: PacedClock) -> None:
    launcher = FakeLauncher()
    green = session(tmp_path, launcher)
    with pytest.raises(SystemExit) as left:
        train(green, tmp_path, STEPS)
    assert left.value.code == EXIT_REQUEUE and not green.running
    (request,) = launcher.requests
    assert request.not_before_unix_s is not None
    assert launcher.marks == ["ready", "step", "request", "left"] and green.totals().steps == 1
    clock.now_s = max(clock.now_s, request.not_before_unix_s)
    again = session(tmp_path, FakeLauncher())
    assert train(again, tmp_path, STEPS, resume=True) == STEPS
    assert again.folder == green.folder and again.totals().steps == STEPS
    assert "paused" not in again.totals().phase_s and decisions(again)[-1]["action"] is not None


@pytest.mark.parametrize("train", [train_transformers, train_lightning])
def test_a_spent_budget_ends_the_training(poor: GreenSession, tmp_path: Path, train: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert 0 < train(poor, tmp_path, 5000) < 5000
    saved = [path.name for path in tmp_path.rglob("*") if path.name in (PAUSE_CHECKPOINT, "optimizer.pt")]
    assert saved, "a checkpoint was written before the end"
