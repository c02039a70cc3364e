"""The adapter of Megatron-LM on a stand-in of its training.py.

Megatron core 0.16.1's own ``pretrain``, with its loop, evaluation, checkpoints and TensorBoard writer, was run with
it on a CPU and a model of two layers, CUDA stood in for: docs/status.md. It is not installed here: it imports Triton.
"""

import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from greentrain.callbacks import megatron as adapter
from greentrain.errors import ConfigError
from tests.callbacks.conftest import Recorder

TRAINING = """
def pretrain(iterations, at=0, fail=None):
    args.iteration = at
    model, optimizer = [make_model()], None
    return train(None, model, make_optimizer(model), None, iter([]), iter([]), None, None, None, None,
                 iterations=iterations, fail=fail)

def train(forward_step, model, optimizer, scheduler, train_data, valid_data, process, config, context, non_loss, *,
          iterations, fail):
    iteration = args.iteration
    while iteration < iterations:
        train_step(forward_step, train_data, model, optimizer, scheduler, config, None, iteration=iteration)
        iteration += 1
        if fail is not None and iteration == 2:
            raise fail
        training_log({}, {}, 0.1, iteration, 1.0, False, 0, None, None, None, None, pg_collection=None)
        if iteration % 2 == 0:
            evaluate(forward_step, valid_data, model, None, config)
        if checkpoint_and_decide_exit(model, optimizer, scheduler, iteration, 0, context, train_data):
            return iteration
    return iteration

def train_step(forward_step, data, model, optimizer, scheduler, config, forward_backward, iteration=None):
    model[0](ones()).sum().backward()
    return {}, not optimizer.step()[0], False, False, 0, None, None, 0

def evaluate(forward_step, data, model, process, config, verbose=False):
    model[0].eval()(ones())
    model[0].train()

def training_log(losses, totals, rate, iteration, *rest, pg_collection=None, is_first_iteration=False):
    return False

def save_checkpoint_and_time(iteration, model, optimizer, scheduler, flops, context, train_data_iterator=None):
    saved.append(iteration)

def checkpoint_and_decide_exit(model, optimizer, scheduler, iteration, flops, context, data):
    if args.save and args.save_interval and iteration % args.save_interval == 0:
        save_checkpoint_and_time(iteration, model, optimizer, scheduler, flops, context, train_data_iterator=data)
    return False
"""


class Board:
    def __init__(self) -> None:
        self.rows: list[tuple[str, int]] = []

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.rows.append((name, step))

    def log(self, metrics: dict[str, float], step: int) -> None:
        self.rows += [(name, step) for name in metrics]


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module with the functions of megatron/training/training.py, in its order of calls."""
    monkeypatch.setattr(adapter, "dist", SimpleNamespace(get_rank=lambda: 0, get_world_size=lambda: 1))
    module: Any = types.ModuleType("training")
    exec(TRAINING, vars(module))
    module.args = SimpleNamespace(
        seq_length=8, micro_batch_size=2, save=str(tmp_path), load=str(tmp_path), save_interval=3, iteration=0,
        async_save=True, tensorboard_log_interval=2, tensor_model_parallel_size=1,
    )  # fmt: skip
    module.saved, module.finalized, module.board, module.wandb = [], [], Board(), Board()
    module.get_args, module.get_num_microbatches = lambda: module.args, lambda: 3
    module.get_tensorboard_writer, module.get_wandb_writer = lambda: module.board, lambda: module.wandb
    module.maybe_finalize_async_save = lambda blocking: module.finalized.append(blocking)
    module.ones, module.make_model = lambda: torch.ones(2, 3), lambda: nn.Linear(3, 3)

    def make_optimizer(model: list[nn.Module]) -> Any:  # no torch.optim.Optimizer there either
        inner = torch.optim.SGD(model[0].parameters(), lr=0.1)
        return SimpleNamespace(step=lambda: (inner.step() is None, None, None))

    module.make_optimizer = make_optimizer
    return module


def test_phases_steps_tokens_and_writers(training: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recorder, "metrics", lambda self: {"green/energy_j": 1.0})
    session = Recorder(tmp_path / "runs")
    plain = {name: value for name, value in vars(training).items() if callable(value)}
    assert adapter.measured(training.pretrain, session)(6) == 6
    assert all(vars(training)[name] is value for name, value in plain.items())  # Megatron is as it was
    totals = session.totals()
    assert (totals.steps, totals.tokens, session.parameters) == (6, 6 * 8 * 2 * 3, 12)
    assert session.entered[:5] == ["data", "forward", "backward", "optimizer", "step"]
    assert session.entered.count("eval") == 3 and session.entered.count("checkpoint") == 2
    for board in (training.board, training.wandb):
        assert board.rows == [("green/energy_j", step) for step in (2, 4, 6)]


def test_a_checkpoint_goes_on_with_the_run(training: Any, tmp_path: Path) -> None:
    first, second = Recorder(tmp_path / "runs"), Recorder(tmp_path / "runs")
    adapter.measured(training.pretrain, first)(3)
    adapter.measured(training.pretrain, second)(5, at=3)
    assert second.folder == first.folder and second.totals().steps == 5


def test_a_pause_saves_first_and_a_spent_budget_ends_the_training(
    training: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Recorder(tmp_path / "runs")
    monkeypatch.setattr(Recorder, "checkpoint_due", property(lambda self: self.told.count("step") == 4))
    monkeypatch.setattr(Recorder, "should_stop", property(lambda self: self.told.count("step") == 5))
    assert adapter.measured(training.pretrain, session)(9) == 5
    assert (training.saved, training.finalized, training.args.save_interval) == ([3, 4], [True], 3)


@pytest.mark.parametrize(("fail", "word"), [(SystemExit(0), "finished"), (ZeroDivisionError(), "exception")])
def test_how_it_ends(training: Any, tmp_path: Path, fail: BaseException, word: str) -> None:
    session = Recorder(tmp_path / "runs")
    before = training.train
    with pytest.raises(type(fail)):
        adapter.measured(training.pretrain, session)(5, fail=fail)
    assert not session.running and training.train is before
    assert session.folder is not None
    assert f'"reason":"{word}"' in (session.folder / "rank-00000.jsonl").read_text()


def test_gears_are_refused(training: Any) -> None:
    with pytest.raises(ConfigError, match="--fp8-format"):
        adapter.measured(training.pretrain, {"precision": {"gears": ["bf16"]}})
