"""Every torch kernel against a float64 reference, while gamma changes from step to step."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from greentrain.optim import GearAdamW, adapt
from tests.optim.reference import KERNELS, TOLERANCE, Problem, error, reference, train

Run = Callable[..., list[torch.nn.Parameter]]
GAMMAS = [1.0, 1.0, 4.0, 2.5, 1.0, 0.5, 4.0, 4.0]


def _adapted(problem: Problem, gammas: Sequence[float], form: str = "keep", **kwargs: Any) -> list[torch.nn.Parameter]:
    params = problem.params()
    optimizer = torch.optim.AdamW(params, **kwargs)
    now = [1.0]
    adapt(optimizer, lambda: now[0], form)
    train(optimizer, params, problem, lambda step: now.__setitem__(0, gammas[step]))
    return params


def _subclass(problem: Problem, gammas: Sequence[float], form: str = "keep", **kwargs: Any) -> list[torch.nn.Parameter]:
    params = problem.params()
    optimizer = GearAdamW(params, decay=form, **kwargs)
    train(optimizer, params, problem, lambda step: setattr(optimizer, "gamma", gammas[step]))
    return params


both = pytest.mark.parametrize("run", [_adapted, _subclass])


@pytest.mark.sweep
@both
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("form", ["keep", "scale", "paper"])
@pytest.mark.parametrize(("eps", "grad_scale"), [(1e-8, 1.0), (1e-8, 1e-6), (1e-3, 1.0), (1e-3, 1e-6)])
def test_two_hundred_steps(run: Run, dtype: torch.dtype, kernel: str, form: str, eps: float, grad_scale: float) -> None:
    problem = Problem(steps=200, dtype=dtype, grad_scale=grad_scale)
    gammas = GAMMAS * 25
    decay = 1e-4 if form == "paper" else 0.1
    params = run(problem, gammas, form, eps=eps, weight_decay=decay, **KERNELS[kernel])
    expected = reference(problem, gammas, form=form, eps=eps, weight_decay=decay)
    assert error(problem, params, expected) <= TOLERANCE[dtype]


def test_the_reference_tells_the_forms_apart() -> None:
    problem = Problem(steps=200)
    forms = [reference(problem, GAMMAS * 25, form=form) for form in ("keep", "scale", "paper")]
    forms.append(reference(problem, [1.0] * 200))
    for i, one in enumerate(forms):
        for other in forms[:i]:
            assert error(problem, one, other) > 1e-4


shapes = st.lists(st.lists(st.integers(1, 6), max_size=3).map(tuple), min_size=1, max_size=3)
powers = st.floats(-6, 3).map(lambda exponent: 10.0**exponent)


@settings(deadline=None, max_examples=200)
@given(
    run=st.sampled_from([_adapted, _subclass]),
    dtype=st.sampled_from(list(TOLERANCE)),
    kernel=st.sampled_from(list(KERNELS)),
    form=st.sampled_from(["keep", "scale"]),
    shapes=shapes,
    gammas=st.lists(st.sampled_from([1.0]) | st.floats(0.2, 16.0), min_size=1, max_size=12),
    grad_scale=powers,
    lr=st.floats(-5, -1).map(lambda exponent: 10.0**exponent),
    eps=st.floats(-12, -2).map(lambda exponent: 10.0**exponent),
    betas=st.tuples(st.floats(0.0, 0.99), st.floats(0.5, 0.9999)),
    weight_decay=st.just(0.0) | st.floats(1e-3, 0.5),
    amsgrad=st.booleans(),
    maximize=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_any_shape_and_number(
    run: Run,
    dtype: torch.dtype,
    kernel: str,
    form: str,
    shapes: list[tuple[int, ...]],
    gammas: list[float],
    grad_scale: float,
    seed: int,
    **numbers: Any,
) -> None:
    problem = Problem(shapes=shapes, steps=len(gammas), dtype=dtype, grad_scale=grad_scale, seed=seed)
    params = run(problem, gammas, form, **numbers, **KERNELS[kernel])
    assert error(problem, params, reference(problem, gammas, form=form, **numbers)) <= TOLERANCE[dtype]


@pytest.mark.parametrize("kernel", ["for-loop", "fused"])
def test_a_tensor_learning_rate_is_neither_written_to_nor_replaced(kernel: str) -> None:
    problem = Problem(shapes=((4,), (5, 2)))
    params = problem.params()
    lr = torch.tensor(1e-2, dtype=torch.float64)
    groups = [{"params": [param]} for param in params]  # all groups share the tensor
    optimizer = torch.optim.AdamW(groups, lr=lr, **KERNELS[kernel])
    gammas = [4.0, 2.0] * 5
    asked = iter(gammas)
    adapt(optimizer, lambda: next(asked))  # once a step
    train(optimizer, params, problem)
    assert error(problem, params, reference(problem, gammas, lr=1e-2)) <= (1e-12 if kernel == "for-loop" else 1e-8)
    assert all(group["lr"] is lr for group in optimizer.param_groups)
    assert lr._version == 0


@pytest.mark.parametrize("l2", [True, False])
def test_adam_with_l2_decay_slows_down_as_a_whole(l2: bool) -> None:
    problem = Problem(steps=20)
    params = problem.params()
    optimizer = torch.optim.Adam(params, weight_decay=0.3, decoupled_weight_decay=not l2)
    adapt(optimizer, 3.0)
    train(optimizer, params, problem)
    assert error(problem, params, reference(problem, [3.0] * 20, weight_decay=0.3, l2=l2)) <= 1e-12
    assert error(problem, params, reference(problem, [3.0] * 20, weight_decay=0.3, l2=not l2)) > 1e-6


def test_groups_keep_their_own_numbers_also_one_added_later() -> None:
    problem = Problem(shapes=((4,), (5, 2)))
    params = problem.params()
    optimizer = torch.optim.AdamW([{"params": params[:1], "lr": 1e-2, "eps": 1e-3}], weight_decay=0.2)
    adapt(optimizer, 4.0)
    optimizer.add_param_group({"params": params[1:], "lr": 1e-4, "weight_decay": 0.0})
    train(optimizer, params, problem)
    first = reference(problem, [4.0] * 10, lr=1e-2, eps=1e-3, weight_decay=0.2)
    second = reference(problem, [4.0] * 10, lr=1e-4, weight_decay=0.0)
    assert error(problem, params, [first[0], second[1]]) <= 1e-12


@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")  # torch, importing itself
def test_a_compiled_step_follows_gamma_without_compiling_for_each() -> None:
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    problem = Problem(shapes=((4, 4),))
    params = problem.params()
    optimizer = torch.optim.AdamW(params, lr=torch.tensor(1e-2, dtype=torch.float64), foreach=False)
    gammas = [1.0, 1.0, 4.0, 1.0, 2.0, 3.0, 5.0, 6.0, 7.0, 8.0]
    now = [1.0]
    adapt(optimizer, lambda: now[0])
    torch._dynamo.reset()
    compiled = torch.compile(optimizer.step, backend=backend)
    try:
        for grads, gamma in zip(problem.grads, gammas, strict=True):
            params[0].grad = grads[0]
            now[0] = gamma
            compiled()
    finally:
        torch._dynamo.reset()
    assert 1 <= len(graphs) <= 3
    assert (
        error(problem, params, reference(problem, gammas, lr=1e-2)) <= 5e-6
    )  # compiled, torch counts steps in float32
    assert optimizer.param_groups[0]["eps"] == 1e-8
