"""Hooks around a step: nobody but the kernel sees other numbers, whatever happens in between."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, LambdaLR, LRScheduler

from greentrain.errors import ConfigError, GreenTrainWarning
from greentrain.optim import GearAdamW, adapt
from tests.optim.reference import KERNELS, Problem, error, reference, train

OWN = (1e-2, 1e-8, 0.1)


def _numbers(optimizer: Optimizer, group: int = 0) -> tuple[Any, Any, Any]:
    numbers = optimizer.param_groups[group]
    return numbers["lr"], numbers["eps"], numbers["weight_decay"]


def _adamw(params: Any, **kwargs: Any) -> torch.optim.AdamW:
    return torch.optim.AdamW(params, lr=OWN[0], eps=OWN[1], weight_decay=OWN[2], **kwargs)


def _one() -> tuple[torch.nn.Parameter, torch.optim.AdamW]:
    param = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    param.grad = torch.ones_like(param)
    return param, _adamw([param])


class Broken(torch.optim.AdamW):
    """Fails in the kernel while ``fails`` is set."""

    fails = False

    def step(self, closure: Any = None) -> Any:
        if self.fails:
            raise RuntimeError("out of memory")
        return super().step(closure)


def test_numbers_are_other_ones_only_in_the_kernel() -> None:
    _, optimizer = _one()
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append(_numbers(optimizer)))
    adapted = adapt(optimizer, 4.0)
    optimizer.register_step_pre_hook(lambda *_: seen.append(_numbers(optimizer)))
    optimizer.register_step_post_hook(lambda *_: seen.append(_numbers(optimizer)))
    optimizer.step()
    assert seen == [OWN, (OWN[0] / 4, OWN[1] / 4, OWN[2] * 4), OWN]
    adapted.remove()
    optimizer.step()
    assert seen[3:] == [OWN] * 3


@pytest.mark.parametrize("kernel", KERNELS)
def test_gamma_one_is_adamw_bit_for_bit(kernel: str) -> None:
    problem = Problem(dtype=torch.float32, steps=30)
    plain, params = problem.params(), problem.params()
    optimizer = _adamw(params, **KERNELS[kernel])
    seen = []
    adapt(optimizer, lambda: 1.0)
    optimizer.register_step_pre_hook(lambda *_: seen.append(_numbers(optimizer)))
    train(_adamw(plain, **KERNELS[kernel]), plain, problem)
    train(optimizer, params, problem)
    assert all(torch.equal(a, b) for a, b in zip(plain, params, strict=True))
    assert seen == [OWN] * 30


SCHEDULERS: list[Callable[[Optimizer], LRScheduler]] = [
    lambda optimizer: CosineAnnealingLR(optimizer, 12),  # from the lr in the group
    lambda optimizer: ExponentialLR(optimizer, 0.8),
    lambda optimizer: LambdaLR(optimizer, lambda step: min(1.0, step / 4)),  # starts at lr 0
]


@pytest.mark.parametrize("make", SCHEDULERS)
@pytest.mark.parametrize("first", ["scheduler", "adapt"])
def test_schedulers_see_and_set_their_own_lr(make: Callable[[Optimizer], LRScheduler], first: str) -> None:
    problem = Problem()
    plain_params, params = problem.params(), problem.params()
    plain, optimizer = _adamw(plain_params), _adamw(params)
    plain_scheduler = make(plain)
    if first == "adapt":
        adapted = adapt(optimizer, 4.0)
        scheduler = make(optimizer)
    else:
        scheduler = make(optimizer)
        adapted = adapt(optimizer, 4.0)
    rates = []
    for grads in problem.grads:
        rates.append(_numbers(plain)[0])
        for param, other, grad in zip(params, plain_params, grads, strict=True):
            param.grad, other.grad = grad, grad
        for one, its in ((plain, plain_scheduler), (optimizer, scheduler)):
            one.step()
            its.step()  # warns if it thinks that the optimizer has not stepped
        assert scheduler.get_last_lr() == plain_scheduler.get_last_lr()
        assert _numbers(optimizer) == _numbers(plain)
    assert error(problem, params, reference(problem, [4.0] * 10, lr=rates, weight_decay=OWN[2])) <= 1e-12
    adapted.remove()
    optimizer.step()


def test_clipping_happens_before_and_is_not_rescaled() -> None:
    problem = Problem(grad_scale=10.0)
    params = problem.params()
    optimizer = _adamw(params)
    adapt(optimizer, 4.0)
    norms = []
    clipped = Problem(grad_scale=10.0)
    for step, grads in enumerate(problem.grads):
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad.clone()
        norm = torch.nn.utils.clip_grad_norm_(params, 0.5)
        norms.append(norm)
        clipped.grads[step] = [grad * (0.5 / (norm + 1e-6)) for grad in grads]
        optimizer.step()
    assert all(norm > 10 for norm in norms)
    assert error(problem, params, reference(clipped, [4.0] * 10, lr=OWN[0], weight_decay=OWN[2])) <= 1e-12


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_resumed_run_goes_on_bit_for_bit(kernel: str) -> None:
    problem, gammas = Problem(steps=12, dtype=torch.float32), [1.0, 4.0, 2.0] * 4

    def run(cut: int | None) -> list[torch.nn.Parameter]:
        params = problem.params()
        optimizer = _adamw(params, **KERNELS[kernel])
        now = [1.0]
        adapted = adapt(optimizer, lambda: now[0])
        for step, grads in enumerate(problem.grads):
            if step == cut:
                saved = pickle.loads(pickle.dumps((optimizer.state_dict(), [param.detach() for param in params])))
                params = [torch.nn.Parameter(param) for param in saved[1]]
                adapted.remove()
                optimizer = _adamw(params, **KERNELS[kernel])
                adapted = adapt(optimizer, lambda: now[0])
                optimizer.load_state_dict(saved[0])
                assert _numbers(optimizer) == OWN
            now[0] = gammas[step]
            for param, grad in zip(params, grads, strict=True):
                param.grad = grad.clone()
            optimizer.step()
        return params

    assert all(torch.equal(a, b) for a, b in zip(run(None), run(5), strict=True))


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_grad_scaler_skips_an_overflow_and_changes_nothing_else(kernel: str) -> None:
    problem, overflow = Problem(steps=8, dtype=torch.float32), 3
    plain, params = problem.params(), problem.params()
    gammas = [4.0, 1.0] * 4
    now = [1.0]
    one, other = _adamw(plain, **KERNELS[kernel]), _adamw(params, **KERNELS[kernel])
    for optimizer in (one, other):
        adapt(optimizer, lambda: now[0])
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    for step, grads in enumerate(problem.grads):
        now[0] = gammas[step]
        for param, reached, grad in zip(params, plain, grads, strict=True):
            param.grad = grad * scaler.get_scale() * (float("inf") if step == overflow else 1)
            reached.grad = grad.clone()
        if step != overflow:
            one.step()
        scaler.scale(torch.zeros(()))  # makes the scaler's tensor
        scaler.step(other)
        scaler.update()
        assert _numbers(other) == OWN
    assert scaler.get_scale() == 2.0**15
    assert all(torch.equal(a, b) for a, b in zip(plain, params, strict=True))


@pytest.mark.parametrize("keyword", [False, True])
def test_a_closure_runs_with_the_users_numbers_and_before_gamma_is_asked(keyword: bool) -> None:
    param, optimizer = _one()
    order: list[Any] = []

    def gamma() -> float:
        order.append("gamma")
        return 4.0

    def closure() -> float:
        order.append(_numbers(optimizer))
        assert torch.is_grad_enabled()
        return 0.25

    adapt(optimizer, gamma)
    step: Any = optimizer.step
    with torch.no_grad():
        assert (step(closure=closure) if keyword else step(closure)) == 0.25
    assert order == [OWN, "gamma"]
    expected = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    expected.grad = torch.ones_like(expected)
    torch.optim.AdamW([expected], lr=OWN[0] / 4, eps=OWN[1] / 4, weight_decay=OWN[2] * 4).step()
    assert torch.equal(param, expected)


def test_a_closure_that_raises_leaves_the_numbers() -> None:
    param, optimizer = _one()
    adapt(optimizer, 4.0)

    def closure() -> float:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        optimizer.step(closure)
    assert _numbers(optimizer) == OWN
    assert torch.equal(param, torch.ones(3, dtype=torch.float64))


def test_a_kernel_that_raises_leaves_the_numbers_for_scheduler_and_checkpoint() -> None:
    param, plain = _one()
    optimizer = Broken([param], lr=OWN[0], eps=OWN[1], weight_decay=OWN[2])
    adapt(optimizer, 4.0)
    scheduler, wanted = ExponentialLR(optimizer, 0.5), ExponentialLR(plain, 0.5)
    optimizer.fails = True
    with pytest.raises(RuntimeError, match="out of memory"):
        optimizer.step()
    assert _numbers(optimizer) == OWN
    plain.step()
    scheduler.step()
    wanted.step()
    assert optimizer.state_dict()["param_groups"][0]["lr"] == plain.param_groups[0]["lr"] == OWN[0] / 2
    optimizer.fails = False
    optimizer.step()
    assert _numbers(optimizer) == (OWN[0] / 2, *OWN[1:])


def test_a_subclass_that_calls_super_takes_one_step_not_two() -> None:
    torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))])  # from here on torch wraps AdamW.step, too
    for closure in (None, lambda: 0.25):
        problem = Problem()
        params = problem.params()
        optimizer = Broken(params)
        adapt(optimizer, 4.0)
        for grads in problem.grads:
            for param, grad in zip(params, grads, strict=True):
                param.grad = grad
            assert optimizer.step(closure) == (closure and 0.25)
        assert error(problem, params, reference(problem, [4.0] * 10)) <= 1e-12


class TwoLooks(torch.optim.AdamW):
    """Calls its closure again once the numbers are lent."""

    def step(self, closure: Any = None) -> Any:
        closure()
        return closure()


def test_a_closure_that_is_called_twice_sees_the_users_numbers_twice() -> None:
    param, _ = _one()
    optimizer = TwoLooks([param], lr=OWN[0], eps=OWN[1], weight_decay=OWN[2])
    adapt(optimizer, 4.0)
    seen: list[Any] = []
    optimizer.step(lambda: seen.append(_numbers(optimizer)))
    assert seen == [OWN, OWN]
    assert _numbers(optimizer) == OWN


def test_another_hook_that_raises_leaves_the_numbers() -> None:
    for register in ("register_step_pre_hook", "register_step_post_hook"):
        _, optimizer = _one()

        def fail(*_: Any) -> None:
            raise RuntimeError("hook")

        if register == "register_step_post_hook":
            optimizer.register_step_post_hook(fail)  # before ours: ours is not reached
        adapt(optimizer, 4.0)
        if register == "register_step_pre_hook":
            optimizer.register_step_pre_hook(fail)
        with pytest.raises(RuntimeError, match="hook"):
            optimizer.step()
        assert _numbers(optimizer) == OWN


def test_without_the_finally_the_next_use_puts_things_right() -> None:
    param, _ = _one()
    optimizer = Broken([param], lr=OWN[0], eps=OWN[1], weight_decay=OWN[2])
    now = [1.0]
    adapted = adapt(optimizer, lambda: now[0])
    lent: list[Any] = []
    optimizer.register_step_pre_hook(lambda *_: lent.append(_numbers(optimizer)[0]))
    del vars(optimizer)["step"]  # what Accelerate's loss scaling does: it sets back the step it found
    optimizer.fails = True
    for now[0] in (4.0, 2.0, 1.0, 2.0):
        with pytest.raises(RuntimeError, match="out of memory"):
            optimizer.step()
        assert optimizer.state_dict()["param_groups"][0]["lr"] == OWN[0]
    assert lent == [OWN[0] / 4, OWN[0] / 2, OWN[0], OWN[0] / 2]
    optimizer.param_groups[0]["lr"] = 5e-3  # set meanwhile: stays
    optimizer.fails = False
    optimizer.step()
    assert _numbers(optimizer) == (5e-3, *OWN[1:])
    optimizer.fails = True
    with pytest.raises(RuntimeError, match="out of memory"):
        optimizer.step()
    adapted.remove()
    assert _numbers(optimizer) == (5e-3, *OWN[1:])


def test_a_checkpoint_from_inside_a_step_holds_the_users_numbers() -> None:
    _, optimizer = _one()
    saved: list[Any] = []
    adapt(optimizer, 4.0)
    optimizer.register_step_pre_hook(lambda *_: saved.append(optimizer.state_dict()))
    lent: list[Any] = []
    optimizer.register_step_pre_hook(lambda *_: lent.append(_numbers(optimizer)))
    optimizer.step()
    (group,) = saved[0]["param_groups"]
    assert (group["lr"], group["eps"], group["weight_decay"]) == OWN
    assert lent[0][0] == OWN[0] / 4  # and the step goes on as lent


def test_copies_and_pickles_are_plain() -> None:
    param, optimizer = _one()
    adapt(optimizer, 4.0)
    optimizer.step()
    for copied in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert type(copied) is torch.optim.AdamW
        (other,) = copied.param_groups[0]["params"]
        expected = torch.nn.Parameter(param.detach().clone())
        plain = _adamw([expected])
        plain.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        other.grad, expected.grad = torch.ones(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
        copied.step()
        plain.step()
        assert torch.equal(other, expected)


def test_removing_gives_the_step_back() -> None:
    _, optimizer = _one()
    adapted = adapt(optimizer, 4.0)
    adapted.remove()
    adapted.remove()
    assert "step" not in vars(optimizer)
    assert not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks
    assert not optimizer._optimizer_state_dict_post_hooks
    CosineAnnealingLR(optimizer, 3)
    wrapped = optimizer.step
    adapt(optimizer, 4.0).remove()
    assert optimizer.step is wrapped


def test_two_gammas_on_one_optimizer_are_refused() -> None:
    param, optimizer = _one()
    adapted = adapt(optimizer, 4.0)
    with pytest.raises(ConfigError, match=r"AdamW is adapted already.*remove\(\)"):
        adapt(optimizer, 2.0)
    adapted.remove()
    adapt(optimizer, 2.0).remove()
    with pytest.raises(ConfigError, match="GearAdamW with a gamma of its own"):
        adapt(GearAdamW([param], gamma=4.0), 4.0)


def test_a_gear_adamw_that_was_left_alone_can_be_adapted() -> None:
    problem = Problem()
    params = problem.params()
    optimizer = GearAdamW(params)
    adapt(optimizer, 4.0)
    train(optimizer, params, problem)
    assert error(problem, params, reference(problem, [4.0] * 10)) <= 1e-12


def test_a_senseless_gamma_is_a_plain_step_and_one_warning() -> None:
    problem = Problem(steps=5)
    plain, params = problem.params(), problem.params()
    optimizer = _adamw(params)
    adapt(optimizer, lambda: 0.0)
    train(_adamw(plain), plain, problem)
    with pytest.warns(GreenTrainWarning, match=r"gamma\(\) returned 0.0") as caught:
        train(optimizer, params, problem)
    assert len(caught) == 1
    assert all(torch.equal(a, b) for a, b in zip(plain, params, strict=True))
    with pytest.raises(ConfigError, match="gamma is -1"):
        adapt(_adamw(plain), -1.0)
