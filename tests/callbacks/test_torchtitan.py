"""The adapter of torchtitan on a stand-in of its Trainer's interface.

The real Trainer of torchtitan 0.2.2 runs with it on a CPU, on demand: ``python tools/scripts torchtitan`` (FSDP, tensor
and pipeline parallel, checkpoints), bit for bit as without; a resume was tried by hand: 4 and 2 more steps are 6 in one
run.
"""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from greentrain.callbacks import torchtitan as adapter
from greentrain.errors import ConfigError
from tests.callbacks.conftest import Recorder


class Checkpointer:
    """Of the interface of components/checkpoint.py."""

    def __init__(self, folder: Path, at: int, trainer: "Trainer") -> None:
        self.trainer = trainer
        self.enable, self.folder, self.interval, self.at = True, str(folder), 2, at
        self.saved: list[int] = []
        self.waited = 0

    def load(self, step: int = -1) -> bool:
        self.trainer.step = self.at  # it loads the Trainer as a Stateful
        return self.at > 0

    def _should_save(self, step: int, last_step: bool = False) -> bool:
        return last_step or step % self.interval == 0

    def save(self, step: int, last_step: bool = False) -> None:
        if self._should_save(step, last_step):
            self.saved.append(step)

    def _async_wait(self) -> None:
        self.waited += 1


class Trainer:
    """Of the interface of torchtitan/train.py, with its order of calls."""

    def __init__(self, folder: Path, steps: int = 4, at: int = 0) -> None:
        self.parallel_dims = SimpleNamespace(dp_enabled=False, pp_enabled=False)
        self.model_parts = [nn.Linear(3, 3)]
        self.optimizers = torch.optim.SGD(self.model_parts[0].parameters(), lr=0.1)
        self.checkpointer = Checkpointer(folder, at, self)
        self.logged: list[tuple[int, dict[str, float]]] = []
        logger = SimpleNamespace(log=lambda metrics, step: self.logged.append((step, metrics)))
        self.metrics_processor = SimpleNamespace(logger=logger)
        self.step, self.ntokens_seen, self.steps = 0, 0, steps

    def train(self) -> None:
        self.checkpointer.load(step=-1)
        batches = self.batches()
        while self.should_continue_training():
            self.step += 1
            self.train_step(batches)
            self.checkpointer.save(self.step, last_step=self.step == self.steps)

    def batches(self) -> Iterator[torch.Tensor]:
        while True:
            self.ntokens_seen += 16
            yield torch.ones(2, 3)

    def train_step(self, batches: Iterator[torch.Tensor]) -> None:
        self.model_parts[0](next(batches)).sum().backward()
        self.optimizers.step()
        self.metrics_processor.logger.log({"loss": 1.0}, self.step)

    def should_continue_training(self) -> bool:
        return self.step < self.steps


@pytest.fixture(autouse=True)
def _one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "dist", SimpleNamespace(get_rank=lambda: 0, get_world_size=lambda: 1))
    monkeypatch.setenv("LOCAL_RANK", "0")


def test_phases_steps_tokens_and_what_the_loggers_get(tmp_path: Path) -> None:
    session = Recorder(tmp_path / "runs")
    trainer = adapter.measured(Trainer, session)(tmp_path)
    assert type(trainer).__name__ == "MeasuredTrainer" and trainer.green is session
    trainer.train()
    totals = session.totals()
    assert (totals.steps, totals.tokens) == (4, 64) and not session.running
    assert session.entered[:5] == ["data", "forward", "backward", "optimizer", "step"]
    assert session.entered.count("checkpoint") >= 2
    last, final = trainer.logged[-2:]
    assert last[1]["loss"] == 1.0 and final[0] == 4 and final[1]["green/energy_j"] == pytest.approx(totals.energy_j)
    assert "log" in vars(trainer.metrics_processor.logger) and "save" not in vars(trainer.checkpointer)  # as it was
    assert session.parameters == 12 and not trainer.model_parts[0]._forward_hooks


def test_a_checkpoint_goes_on_with_the_run(tmp_path: Path) -> None:
    first = Recorder(tmp_path / "runs")
    adapter.measured(Trainer, first)(tmp_path, steps=2).train()
    assert (tmp_path / "greentrain_0.json").exists()
    second = Recorder(tmp_path / "runs")
    adapter.measured(Trainer, second)(tmp_path, steps=5, at=2).train()
    assert second.totals().steps == 5 and second.totals().tokens == 80
    assert second.folder == first.folder


def test_a_pause_writes_a_whole_checkpoint_and_a_spent_budget_ends_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Recorder(tmp_path / "runs")
    trainer = adapter.measured(Trainer, session)(tmp_path, steps=9)
    monkeypatch.setattr(Recorder, "checkpoint_due", property(lambda self: trainer.step == 3))
    monkeypatch.setattr(Recorder, "should_stop", property(lambda self: trainer.step >= 5))
    trainer.train()
    assert trainer.checkpointer.saved == [2, 3, 4] and trainer.checkpointer.waited == 1
    assert (trainer.step, trainer.checkpointer.interval) == (5, 2)


def test_an_exception_ends_the_run_and_gears_are_refused(tmp_path: Path) -> None:
    class Broken(Trainer):
        def train_step(self, batches: Any) -> None:
            raise ZeroDivisionError

    session = Recorder(tmp_path / "runs")
    with pytest.raises(ZeroDivisionError):
        adapter.measured(Broken, session)(tmp_path).train()
    assert not session.running
    with pytest.raises(ConfigError, match=r"model\.converters"):
        adapter.measured(Trainer, {"precision": {"gears": ["bf16"]}})
