"""8-bit and FP8 optimizers of others: identical to their own kernel called with lr/gamma, eps/gamma, lambda gamma."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from greentrain.errors import ConfigError
from greentrain.optim import adapt
from tests.optim.reference import Problem, train

GAMMAS = [1.0, 4.0, 3.0, 1.0, 4.0, 2.5]
SHAPES = ((64, 64), (17,))  # states of fewer than 4096 elements stay in 32 bits


def _optimizer(package: str, name: str) -> Callable[..., torch.optim.Optimizer]:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed (pip install --no-deps {package})")
    module = importlib.import_module(f"{package}.optim")
    make: Callable[..., torch.optim.Optimizer] = getattr(module, name)
    return make


def _same_as_its_own_kernel(make: Callable[..., torch.optim.Optimizer], form: str, **kwargs: Any) -> None:
    problem = Problem(shapes=SHAPES, dtype=torch.float32, steps=len(GAMMAS))
    ours, theirs, plain = problem.params(), problem.params(), problem.params()
    adapted, own = make(ours, **kwargs), make(theirs, **kwargs)
    asked = iter(GAMMAS)
    adapt(adapted, lambda: next(asked), form)
    (group,) = own.param_groups
    lr, eps, decay = group["lr"], group["eps"], group["weight_decay"]

    def rescale(step: int) -> None:
        gamma = GAMMAS[step]
        group["lr"] = lr / gamma
        if form == "keep":
            group["eps"], group["weight_decay"] = eps / gamma, decay * gamma

    with torch.compiler.set_stance("force_eager"):  # torchao compiles a kernel for each number: minutes
        train(adapted, ours, problem)
        train(own, theirs, problem, rescale)
        train(make(plain, **kwargs), plain, problem)
    for param, other, untouched in zip(ours, theirs, plain, strict=True):
        assert torch.equal(param, other)
        assert not torch.equal(param, untouched)
    group = adapted.param_groups[0]
    assert (group["lr"], group["eps"], group["weight_decay"]) == (lr, eps, decay)


forms = pytest.mark.parametrize("form", ["keep", "scale"])


@forms
@pytest.mark.parametrize("name", ["AdamW8bit", "AdamWFp8", "AdamW4bit"])
@pytest.mark.filterwarnings("ignore")  # torchao's own, at import
def test_torchao(name: str, form: str) -> None:
    _same_as_its_own_kernel(_optimizer("torchao", name), form, lr=1e-2, eps=1e-4, weight_decay=0.1)


@forms
@pytest.mark.parametrize("name", ["AdamW", "AdamW8bit", "Adam"])  # its Adam decays like its AdamW
@pytest.mark.filterwarnings("ignore")
def test_bitsandbytes(name: str, form: str) -> None:
    _same_as_its_own_kernel(_optimizer("bitsandbytes", name), form, lr=1e-2, eps=1e-4, weight_decay=0.1)


@pytest.mark.filterwarnings("ignore")
def test_bitsandbytes_others_are_refused() -> None:
    for name in ("Lion", "AdEMAMix", "LAMB"):
        optimizer = _optimizer("bitsandbytes", name)(Problem(shapes=SHAPES).params())
        with pytest.raises(ConfigError, match="gamma is defined for Adam"):
            adapt(optimizer, 4.0)


DEEPSPEED = """
import json, torch
from deepspeed.ops.adam import DeepSpeedCPUAdam
from greentrain.optim import adapt
from tests.optim.reference import Problem, error, reference, train

errors = {}
gammas = [1.0, 4.0, 2.5, 1.0, 3.0] * 20
for adamw in (True, False):
    problem = Problem(shapes=((64, 64), (17,)), dtype=torch.float32, steps=100)
    params = problem.params()
    optimizer = DeepSpeedCPUAdam(params, lr=1e-3, weight_decay=0.1, adamw_mode=adamw)
    asked = iter(gammas)
    adapt(optimizer, lambda: next(asked))
    train(optimizer, params, problem)
    errors[str(adamw)] = error(problem, params, reference(problem, gammas, weight_decay=0.1, l2=not adamw))
print(json.dumps(errors))
"""


@pytest.mark.slow
def test_deepspeed_cpu_adam() -> None:
    if importlib.util.find_spec("deepspeed") is None:
        pytest.skip("deepspeed is not installed (extra 'deepspeed')")
    if importlib.util.find_spec("ninja") is None:
        pytest.skip("DeepSpeedCPUAdam is compiled on first use, which needs ninja")
    env = os.environ | {"DS_ACCELERATOR": "cpu"}
    done = subprocess.run([sys.executable, "-c", DEEPSPEED], env=env, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-2000:]
    errors = json.loads(done.stdout.strip().splitlines()[-1])
    assert max(errors.values()) <= 5e-6
