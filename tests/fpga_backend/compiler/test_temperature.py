import numpy as np
import pytest
import torch

from greentrain.fpga_backend.batch import Batch
from greentrain.fpga_backend.compiler import compile, sync
from greentrain.fpga_backend.emulator.engine import Engine
from tests.fpga_backend.compiler.tiny_models import build, sequences
from tests.helpers.float_engine import FloatEngine


@pytest.mark.parametrize("name", ["gpt2", "qwen2"])
def test_logits_are_divided_by_the_temperature(name: str) -> None:
    model = build(name)
    batch = Batch.of(sequences())
    rounded_less = compile(model, max_tokens=24, precision="fp32", temperature=0.7)
    floating = FloatEngine(rounded_less.program, rounded_less.tensors).run(batch)
    exact = Engine(compile(model, max_tokens=24, activation_bits=16, temperature=0.7)).run(batch)
    plain = Engine(compile(model, max_tokens=24, activation_bits=16)).run(batch)
    assert floating.logprobs and exact.logprobs and plain.logprobs
    for row, found, near, far in zip(batch.ids, floating.logprobs, exact.logprobs, plain.logprobs, strict=True):
        ids = torch.from_numpy(row.astype(np.int64))[None]
        with torch.no_grad():
            wanted = (model(input_ids=ids).logits[0, :-1] / 0.7).log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
        assert np.allclose(found, wanted.numpy(), atol=2e-4)
        assert np.abs(near - wanted.numpy()).max() < np.abs(far - wanted.numpy()).max()


def test_new_weights_keep_the_temperature() -> None:
    artifact, moved = compile(build("gpt2"), max_tokens=24, temperature=2.0), build("gpt2", seed=1)
    assert sync(artifact, moved).digest == compile(moved, max_tokens=24, temperature=2.0).digest
    assert sync(artifact, moved).digest != compile(moved, max_tokens=24).digest


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan"), float("inf")])
def test_a_temperature_is_a_number_above_zero(temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature"):
        compile(build("gpt2"), max_tokens=24, temperature=temperature)


def test_scores_have_no_temperature() -> None:
    with pytest.raises(ValueError, match="scores"):
        compile(build("gpt2 score"), max_tokens=24, temperature=0.5)
