"""The optimizer inputs of torch's own AdamW and Adam tests, at gamma 1: the same bits as without us."""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from greentrain.optim import GearAdamW, adapt
from tests.optim.reference import KERNELS, Problem, error, reference, train

# In a process of its own: importing torch's test helpers locks torch.backends for the whole process.
CASES = """
import json
from torch.testing._internal.common_optimizers import optim_db
wanted = {info.optim_cls.__name__: info for info in optim_db if info.optim_cls.__name__ in ("Adam", "AdamW")}
print(json.dumps({name: [i.kwargs for i in info.optim_inputs_func(device="cpu")] for name, info in wanted.items()}))
"""


@pytest.fixture(scope="module")
def cases() -> dict[str, list[dict[str, Any]]]:
    done = subprocess.run([sys.executable, "-c", CASES], capture_output=True, text=True)
    if "No module named 'expecttest'" in done.stderr:
        pytest.skip("torch's test helpers need expecttest (extra 'dev')")
    assert done.returncode == 0, done.stderr
    read: dict[str, list[dict[str, Any]]] = json.loads(done.stdout.splitlines()[-1])
    return read


def _adapted(cls: type[torch.optim.Optimizer]) -> Callable[..., torch.optim.Optimizer]:
    def make(params: Any, **kwargs: Any) -> torch.optim.Optimizer:
        optimizer = cls(params, **kwargs)
        adapt(optimizer, lambda: 1.0)
        return optimizer

    return make


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kernel", [*KERNELS, "differentiable"])
@pytest.mark.parametrize(
    ("name", "make"),
    [("AdamW", _adapted(torch.optim.AdamW)), ("AdamW", GearAdamW), ("Adam", _adapted(torch.optim.Adam))],
    ids=["adapt-AdamW", "GearAdamW", "adapt-Adam"],
)
def test_the_same_bits(
    cases: dict[str, list[dict[str, Any]]], name: str, make: Callable[..., Any], kernel: str, dtype: torch.dtype
) -> None:
    assert len(cases[name]) >= 5
    flags = KERNELS.get(kernel, {"differentiable": True})
    for kwargs in cases[name]:
        problem = Problem(dtype=dtype, steps=6)
        stock, ours = problem.params(), problem.params()
        theirs = getattr(torch.optim, name)(stock, **kwargs, **flags)
        mine = make(ours, **kwargs, **flags)
        for param in (*stock, *ours):
            param.requires_grad_(kernel != "differentiable")  # which changes parameters in place with grad enabled
        train(theirs, stock, problem)
        train(mine, ours, problem)
        assert all(torch.equal(a, b) for a, b in zip(stock, ours, strict=True)), kwargs
        for a, b in zip(stock, ours, strict=True):
            assert all(torch.equal(theirs.state[a][key], mine.state[b][key]) for key in theirs.state[a])


def test_the_same_cases_at_gamma_four(cases: dict[str, list[dict[str, Any]]]) -> None:
    for kwargs in cases["AdamW"]:
        problem = Problem()
        params = problem.params()
        train(GearAdamW(params, gamma=4.0, **kwargs), params, problem)
        assert error(problem, params, reference(problem, [4.0] * 10, **kwargs)) <= 1e-12
