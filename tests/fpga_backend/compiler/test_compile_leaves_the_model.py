"""A model that trains is compiled as it is and stays as it is."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from greentrain.fpga_backend.artifact import checksum
from greentrain.fpga_backend.batch import Batch
from greentrain.fpga_backend.compiler import compile, sync
from greentrain.fpga_backend.emulator.engine import Engine
from greentrain.fpga_backend.program import Precision
from tests.fpga_backend.compiler.tiny_models import build, compiled, flat, own, randomise, sequences
from tests.helpers.float_engine import run_float


def test_mode_gradients_and_randomness_are_untouched() -> None:
    model = build("bert 3 labels").train()
    model.set_attn_implementation("eager")
    assert model.config.hidden_dropout_prob > 0
    seen: list[int] = []
    model.register_forward_hook(lambda *_: seen.append(1))
    parameter = next(model.parameters())
    parameter.grad = torch.ones_like(parameter)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    artifact = compile(model, max_tokens=24)
    assert all(module.training for module in model.modules())
    assert all(p.requires_grad for p in model.parameters())
    assert torch.equal(parameter.grad, torch.ones_like(parameter))
    assert model.config._attn_implementation == "eager"
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert artifact.digest == compiled("bert 3 labels")[1].digest


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_are_widened(dtype: torch.dtype) -> None:
    model = build("smollm").to(dtype)
    batch = Batch.of(sequences())
    artifact = compile(model, max_tokens=24, precision="fp32")
    assert artifact.tensors["model.norm.g"].dtype == torch.float32
    wanted = own(copy.deepcopy(model).float(), batch)
    np.testing.assert_allclose(flat(run_float(artifact.program, artifact.tensors, batch)), wanted, atol=2e-4)
    assert next(model.parameters()).dtype == dtype


@pytest.mark.parametrize("precision", ["fp32", "w8a8"])
def test_an_artifact_does_not_follow_the_model(precision: Precision) -> None:
    model = build("gpt2")
    artifact = compile(model, max_tokens=8, precision=precision)
    randomise(model, 9)
    for name, tensor in artifact.tensors.items():
        assert checksum(tensor) == artifact.checksums[name], name


def test_wrappers_are_looked_through() -> None:
    model, artifact = compiled("gpt2")
    assert compile(nn.DataParallel(model), max_tokens=24).digest == artifact.digest


def test_one_scale_a_batch_is_for_comparison() -> None:
    """The published rule: a score depends on the other sequences of the batch."""
    model = build("bert 3 labels")
    artifact = compile(model, max_tokens=24, activations="tensor")
    ids = sequences()
    together = flat(Engine(artifact).run(Batch.of(ids)))[:3]
    alone = flat(Engine(artifact).run(Batch.of(ids[:1])))
    assert not np.array_equal(together, alone)


@pytest.mark.parametrize("name", ["bert 3 labels", "gpt2"])
def test_the_trainings_default_type_and_device_change_nothing(name: str) -> None:
    model, artifact = compiled(name)
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            assert compile(model, max_tokens=24).digest == artifact.digest
            assert sync(artifact, model).digest == artifact.digest
    finally:
        torch.set_default_dtype(torch.float32)
