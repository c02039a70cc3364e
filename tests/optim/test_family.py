"""Which optimizers are taken, which are refused and why, and what is found under a wrapper."""

from collections.abc import Callable, Iterator
from typing import Any

import lightning
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import nn
from torch.utils.data import DataLoader

from greentrain.errors import ConfigError
from greentrain.optim import adapt
from greentrain.optim.adapt import decoupled, unwrap
from tests.optim.reference import Problem, error, reference, train


def _params() -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(3, dtype=torch.float64))]


class Mine(torch.optim.Optimizer):
    """Somebody's own Adam."""

    def __init__(self, params: Any, **extra: Any) -> None:
        super().__init__(params, {"lr": 1e-3, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1, **extra})

    def step(self, closure: Any = None) -> Any:
        """Do nothing: its numbers are looked at, not its result."""


class MyAdam(Mine):
    """One that does not tell how it decays."""


class MyAdamW(Mine):
    """One whose name tells."""


class AdamWScheduleFree(Mine):
    """Its averaging reads lr, too."""


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (torch.optim.SGD, "SGD, whose groups lack betas, eps: gamma is defined for Adam"),
        (torch.optim.Adafactor, "Adafactor, whose groups lack betas"),
        (torch.optim.RMSprop, "RMSprop, whose groups lack betas"),
        (torch.optim.Adagrad, "Adagrad, whose groups lack betas"),
        (torch.optim.SparseAdam, "SparseAdam, whose groups lack weight_decay"),
        (torch.optim.Adamax, "Adamax, whose step is not Adam's"),
        (torch.optim.NAdam, "NAdam, whose step is not Adam's"),
        (torch.optim.RAdam, "RAdam, whose step is not Adam's"),
        (Mine, "Mine, whose step is not Adam's"),
        (AdamWScheduleFree, "AdamWScheduleFree, whose step is not Adam's"),
        (MyAdam, "MyAdam, which does not tell whether its weight decay .* adam_w_mode"),
    ],
)
def test_other_steps_are_refused_with_a_remedy(make: Callable[[Any], torch.optim.Optimizer], why: str) -> None:
    optimizer = make(_params())
    with pytest.raises(ConfigError, match=f"optimizer is {why}"):
        adapt(optimizer, 4.0)
    assert "step" not in vars(optimizer)


@pytest.mark.parametrize("thing", [None, object(), nn.Linear(2, 2), [torch.optim.AdamW(_params())]])
def test_what_holds_no_optimizer_is_refused(thing: Any) -> None:
    with pytest.raises(ConfigError, match=r"optimizer is a .*no torch.optim.Optimizer"):
        adapt(thing, 4.0)


def test_decay_is_told_by_name_flag_or_group() -> None:
    assert decoupled(torch.optim.AdamW(_params())) is True
    assert decoupled(torch.optim.Adam(_params())) is False
    assert decoupled(MyAdamW(_params())) is True
    mine = MyAdam(_params())
    assert decoupled(mine) is None
    decays: list[float] = []
    for flag in (True, False):
        mine.adam_w_mode = flag  # type: ignore[attr-defined]
        assert decoupled(mine) is flag
        adapted = adapt(mine, 4.0)
        seen = mine.register_step_pre_hook(lambda *_: decays.append(mine.param_groups[0]["weight_decay"]))
        mine.step()
        seen.remove()
        adapted.remove()
    assert decays == [0.1 * 4, 0.1]
    adapt(MyAdam(_params(), weight_decay=0.0), 4.0).remove()  # no decay: nothing to tell
    adapt(MyAdam(_params()), 4.0, "scale").remove()


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.optim.Adam(_params(), weight_decay=0.1),
        lambda: torch.optim.AdamW(_params(), capturable=True),
        lambda: MyAdamW(_params()),
    ],
)
def test_the_printed_formula_needs_a_kernel_that_grows_weights(make: Callable[[], torch.optim.Optimizer]) -> None:
    with pytest.raises(ConfigError, match=r"decay is 'paper' on .*torch\.optim\.AdamW"):
        adapt(make(), 4.0, "paper")
    adapt(torch.optim.Adam(_params()), 4.0, "paper").remove()


def _two_groups(**first: Any) -> Any:
    """Return two groups of which the second decays nothing, as biases and norms are trained."""
    return [{"params": _params(), **first}, {"params": _params(), "weight_decay": 0.0}]


def test_one_group_that_decays_is_enough_to_refuse() -> None:
    with pytest.raises(ConfigError, match="MyAdam, which does not tell whether its weight decay"):
        adapt(MyAdam(_two_groups()), 4.0)
    with pytest.raises(ConfigError, match="decay is 'paper' on AdamW"):
        adapt(torch.optim.AdamW(_two_groups(capturable=True)), 4.0, "paper")
    adapt(torch.optim.AdamW(_two_groups()), 4.0, "paper").remove()


def test_bitsandbytes_adam_decays_like_its_adamw() -> None:
    mine = MyAdam(_params())
    mine.optimizer_name = "adam"  # type: ignore[attr-defined]  # bitsandbytes/optim/adam.py
    assert decoupled(mine) is True
    mine.optimizer_name = "lamb"  # type: ignore[attr-defined]
    assert decoupled(mine) is None


class Zero:
    """DeepSpeed 0.19.8, stage3.py, _optimizer_step: one step of the base optimizer for every sub-group."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.groups = [param for group in optimizer.param_groups for param in group["params"]]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.optimizer.param_groups

    def step(self) -> None:
        for param in self.groups:
            self.optimizer.param_groups[0]["params"] = [param]
            self.optimizer.step()
            self.optimizer.param_groups[0]["params"] = []


class Engine:
    """What deepspeed.initialize returns."""

    def __init__(self, optimizer: Zero) -> None:
        self.optimizer = optimizer


def test_an_engine_that_steps_every_sub_group() -> None:
    problem = Problem()
    params = problem.params()
    zero = Zero(torch.optim.AdamW(params, lr=1e-2))
    adapt(Engine(zero), 4.0)
    for grads in problem.grads:
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad
        zero.step()
    assert error(problem, params, reference(problem, [4.0] * 10, lr=1e-2)) <= 1e-12


def test_a_wrapper_of_itself_does_not_hang() -> None:
    optimizer = torch.optim.AdamW(_params())
    optimizer.optimizer = optimizer  # type: ignore[attr-defined]
    assert unwrap(optimizer) is optimizer


@pytest.fixture
def accelerator() -> Iterator[Accelerator]:
    yield Accelerator(cpu=True)
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


@pytest.mark.parametrize("prepared_first", [True, False])
def test_accelerate(accelerator: Accelerator, prepared_first: bool) -> None:
    problem = Problem()
    params = problem.params()
    base = torch.optim.AdamW(params, lr=1e-2)
    if not prepared_first:
        adapt(base, 4.0)
    prepared = accelerator.prepare_optimizer(base)
    if prepared_first:
        adapt(prepared, 4.0)
    train(prepared, params, problem)
    assert error(problem, params, reference(problem, [4.0] * 10, lr=1e-2)) <= 1e-12


class Regression(lightning.LightningModule):
    """A linear model that remembers its learning rates."""

    def __init__(self, gamma: float | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 1)
        self.gamma = gamma
        self.rates: list[float] = []

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        self.rates.append(self.optimizers().param_groups[0]["lr"])  # type: ignore[union-attr]
        loss: torch.Tensor = (self.layer(batch) - batch.sum(1, keepdim=True)).square().mean()
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        if self.gamma is not None:
            self.adapted = adapt(LightningOptimizer(optimizer), self.gamma)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


@pytest.mark.filterwarnings("ignore")  # Lightning's advice about workers and loggers
def test_lightning_whose_forward_runs_inside_the_step() -> None:
    batches = torch.randn(6, 5, 4, generator=torch.Generator().manual_seed(1))

    def fit(gamma: float | None) -> Regression:
        model = Regression(gamma)
        trainer = lightning.Trainer(
            max_epochs=1,
            accelerator="cpu",
            gradient_clip_val=0.5,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        loader: Any = DataLoader(list(batches), batch_size=None)  # type: ignore[arg-type]
        trainer.fit(model, loader)
        return model

    plain, same, slow = fit(None), fit(1.0), fit(4.0)
    assert torch.equal(plain.layer.weight, same.layer.weight)
    assert plain.rates == slow.rates == pytest.approx([1e-2 * 0.9**i for i in range(6)])

    expected = Regression(None)
    optimizer = torch.optim.AdamW(expected.parameters())
    for step, batch in enumerate(batches):
        optimizer.zero_grad()
        (expected.layer(batch) - batch.sum(1, keepdim=True)).square().mean().backward()
        nn.utils.clip_grad_norm_(expected.parameters(), 0.5)
        lr = 1e-2 * 0.9**step
        optimizer.param_groups[0].update(lr=lr / 4, eps=1e-8 / 4, weight_decay=1e-2 * 4)
        optimizer.step()
    torch.testing.assert_close(slow.layer.weight, expected.layer.weight, rtol=1e-6, atol=1e-7)
    assert not torch.allclose(slow.layer.weight, plain.layer.weight, rtol=1e-4)
