"""The CUDA kernels against the float64 reference, and a captured step."""

import importlib.util
from typing import Any

import pytest
import torch

from greentrain.optim import GearAdamW, adapt
from tests.optim.reference import KERNELS, TOLERANCE, Problem, error, reference, train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU that torch can use"),
]
GAMMAS = [1.0, 4.0, 2.5, 1.0, 0.5] * 20


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("capturable", [False, True])
def test_cuda_kernels(kernel: str, dtype: torch.dtype, capturable: bool) -> None:
    problem = Problem(dtype=dtype, steps=100, device="cuda")
    ours, theirs = problem.params(), problem.params()
    flags: dict[str, Any] = {**KERNELS[kernel], "capturable": capturable, "weight_decay": 0.1}
    optimizer = torch.optim.AdamW(ours, **flags)
    asked = iter(GAMMAS)
    adapt(optimizer, lambda: next(asked))
    train(optimizer, ours, problem)
    gear = GearAdamW(theirs, **flags)
    train(gear, theirs, problem, lambda step: setattr(gear, "gamma", GAMMAS[step]))
    expected = reference(problem, GAMMAS, weight_decay=0.1)
    # Capturable and fused kernels compute the bias corrections in float32.
    tolerance = 5e-6 if capturable or kernel == "fused" else TOLERANCE[dtype]
    assert error(problem, ours, expected) <= tolerance
    assert error(problem, theirs, expected) <= tolerance


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("gamma", [1.0, 4.0])
def test_a_captured_step_keeps_its_gamma_and_follows_a_tensor_lr(kernel: str, gamma: float) -> None:
    problem = Problem(dtype=torch.float32, device="cuda")
    params = problem.params()
    lr = torch.tensor(1e-3, device="cuda")
    optimizer = torch.optim.AdamW(params, lr=lr, capturable=True, **KERNELS[kernel])
    adapt(optimizer, lambda: gamma)
    buffers = [grad.clone() for grad in problem.grads[0]]
    for param, buffer in zip(params, buffers, strict=True):
        param.grad = buffer
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        optimizer.step()  # makes the state: this is step 1
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    assert optimizer.param_groups[0]["lr"] is lr
    rates = [1e-3]
    for step, grads in enumerate(problem.grads[1:]):
        for buffer, grad in zip(buffers, grads, strict=True):
            buffer.copy_(grad)
        rates.append(1e-3 * 0.8**step)
        lr.fill_(rates[-1])
        graph.replay()
    torch.cuda.synchronize()
    assert error(problem, params, reference(problem, [gamma] * 10, lr=rates)) <= 5e-6
    assert error(problem, params, reference(problem, [2.0] * 10, lr=rates)) > 1e-5


def test_deepspeed_fused_adam() -> None:
    if importlib.util.find_spec("deepspeed") is None:
        pytest.skip("deepspeed is not installed (extra 'deepspeed')")
    from deepspeed.ops.adam import FusedAdam

    problem = Problem(dtype=torch.float32, steps=100, device="cuda")
    params = problem.params()
    try:
        optimizer = FusedAdam(params, lr=1e-3, weight_decay=0.1)
    except Exception as failure:  # its kernel is compiled on first use, with the CUDA toolkit
        pytest.skip(f"FusedAdam cannot be compiled here: {failure}")
    asked = iter(GAMMAS)
    adapt(optimizer, lambda: next(asked))
    train(optimizer, params, problem)
    assert error(problem, params, reference(problem, GAMMAS, weight_decay=0.1)) <= 5e-6
