"""GearAdamW is torch's AdamW to everything that looks at it. Its numbers are held to the reference in test_kernels."""

import copy
import inspect
import pickle
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import ExponentialLR

from greentrain.errors import ConfigError
from greentrain.optim import Form, GearAdamW
from tests.optim.reference import KERNELS, Problem, error, reference, train


def _one(**kwargs: Any) -> tuple[torch.nn.Parameter, GearAdamW]:
    param = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    param.grad = torch.ones_like(param)
    return param, GearAdamW([param], **kwargs)


def _numbers(optimizer: GearAdamW) -> tuple[Any, ...]:
    group = optimizer.param_groups[0]
    return group["lr"], group["eps"], group["weight_decay"]


OWN = (1e-3, 1e-8, 1e-2)


def test_it_takes_the_arguments_of_adamw_in_their_order_with_their_defaults() -> None:
    ours, theirs = (inspect.signature(cls.__init__).parameters for cls in (GearAdamW, torch.optim.AdamW))
    assert [name for name in ours if name not in ("gamma", "decay")] == list(theirs)
    for name, parameter in theirs.items():
        assert (ours[name].default, ours[name].kind) == (parameter.default, parameter.kind)


@pytest.mark.parametrize("kernel", KERNELS)
def test_gamma_one_is_adamw_bit_for_bit(kernel: str) -> None:
    problem = Problem(dtype=torch.float32, steps=30)
    plain, params = problem.params(), problem.params()
    train(torch.optim.AdamW(plain, **KERNELS[kernel]), plain, problem)
    train(GearAdamW(params, **KERNELS[kernel]), params, problem)
    assert all(torch.equal(a, b) for a, b in zip(plain, params, strict=True))


def test_it_may_stand_in_the_place_of_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    param, optimizer = _one()
    monkeypatch.setattr(torch.optim, "AdamW", GearAdamW)  # as programs do that cannot change who makes the optimizer
    optimizer.step()
    assert (param < 1).all()


def test_its_step_hooks_fire_once() -> None:
    torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))])  # torch wraps AdamW.step when the first one is made
    _, optimizer = _one(gamma=4.0)
    fired: list[Any] = []
    optimizer.register_step_pre_hook(lambda *_: fired.append(_numbers(optimizer)))
    optimizer.register_step_post_hook(lambda *_: fired.append(_numbers(optimizer)))
    optimizer.step()
    assert fired == [OWN, OWN]


def test_a_closure_runs_with_the_users_numbers_and_before_gamma_is_asked() -> None:
    order: list[Any] = []

    def gamma() -> float:
        order.append("gamma")
        return 4.0

    def closure() -> float:
        order.append((_numbers(optimizer), torch.is_grad_enabled()))
        return 0.25

    _, optimizer = _one(gamma=gamma)
    with torch.no_grad():  # a closure computes gradients all the same, as AdamW's does
        assert optimizer.step(closure) == 0.25
    assert order == [(OWN, True), "gamma"]


def test_a_kernel_that_raises_leaves_the_numbers() -> None:
    param, optimizer = _one(gamma=4.0)
    scheduler = ExponentialLR(optimizer, 0.5)
    param.grad = torch.ones(3, dtype=torch.float64).to_sparse()
    with pytest.raises(RuntimeError, match="sparse"):
        optimizer.step()
    assert _numbers(optimizer) == OWN
    scheduler.step()
    assert _numbers(optimizer) == (OWN[0] / 2, *OWN[1:])


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda optimizer: pickle.loads(pickle.dumps(optimizer))])
def test_a_copy_goes_on_like_the_original(copied: Any) -> None:
    problem = Problem(shapes=((3,),))
    (param,) = problem.params()
    optimizer = GearAdamW([param], gamma=4.0, decay="scale")
    train(optimizer, [param], problem)
    twin = copied(optimizer)
    (other,) = twin.param_groups[0]["params"]
    assert type(twin) is GearAdamW and twin.gamma == 4.0 and twin.form is Form.SCALE
    train(optimizer, [param], problem)
    train(twin, [other], problem)
    assert other is not param and torch.equal(other, param)


def test_a_copy_does_not_take_a_callable_along() -> None:
    _, optimizer = _one(gamma=lambda: 4.0)  # no pickle could hold it
    assert pickle.loads(pickle.dumps(optimizer)).gamma == 1.0
    assert copy.deepcopy(optimizer).gamma == 1.0


def test_states_load_both_ways_and_leave_gamma_alone() -> None:
    problem = Problem(steps=6)
    ours, theirs = problem.params(), problem.params()
    gear, stock = GearAdamW(ours, lr=1e-2, gamma=4.0), torch.optim.AdamW(theirs, lr=1e-2)
    train(gear, ours, problem)
    state = copy.deepcopy(gear.state_dict())
    assert state["param_groups"][0].keys() == stock.state_dict()["param_groups"][0].keys()
    stock.load_state_dict(state)
    assert stock.param_groups[0]["lr"] == 1e-2
    other = GearAdamW(problem.params(), gamma=2.0)
    other.load_state_dict(stock.state_dict())
    assert other.gamma == 2.0 and other.param_groups[0]["lr"] == 1e-2
    moments = [optimizer.state[optimizer.param_groups[0]["params"][0]]["exp_avg"] for optimizer in (gear, other)]
    assert torch.equal(*moments)


def test_gamma_may_be_set_and_is_checked() -> None:
    problem = Problem(steps=4)
    params = problem.params()
    optimizer = GearAdamW(params)
    optimizer.gamma = lambda: 4.0
    train(optimizer, params, problem)
    assert error(problem, params, reference(problem, [4.0] * 4)) <= 1e-12
    with pytest.raises(ConfigError, match=r"gamma is 0\.0"):
        optimizer.gamma = 0.0
    with pytest.raises(ConfigError, match=r"gamma is -4\.0"):
        GearAdamW(params, gamma=-4.0)
    with pytest.raises(ConfigError, match="decay is 'none'"):
        GearAdamW(params, decay="none")


def test_gamma_belongs_to_one_optimizer() -> None:
    _, one = _one(gamma=4.0)
    _, other = _one()
    assert (one.gamma, other.gamma) == (4.0, 1.0)
