import copy
from pathlib import Path

import numpy as np
import pytest
import torch

from greentrain.fpga_backend.artifact import load
from greentrain.fpga_backend.batch import Batch
from greentrain.fpga_backend.compiler import SmoothQuant, compile, sync
from greentrain.fpga_backend.errors import ArtifactError
from tests.fpga_backend.compiler.tiny_models import GPT2, LLAMA, build, compiled, flat, hf, own, randomise, sequences
from tests.helpers.float_engine import run_float


@pytest.mark.parametrize("name", ["bert mean", "qwen2", "gpt2 score"])
def test_new_weights_give_a_fresh_compiles_bytes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, artifact = compiled(name)
    artifact.save(tmp_path)
    moved = build(name, seed=1)
    fresh = compile(moved, max_tokens=24)
    monkeypatch.setattr(torch.export, "export", None)  # whoever traces now fails
    synced = sync(load(tmp_path), moved)
    assert synced.digest == fresh.digest != artifact.digest
    assert synced.recipe == fresh.recipe == artifact.recipe


def test_a_width_of_activations_stays() -> None:
    artifact = compile(build("gpt2"), max_tokens=24, activation_bits=16)
    moved = build("gpt2", seed=1)
    synced = sync(artifact, moved)
    assert synced.digest == compile(moved, max_tokens=24, activation_bits=16).digest
    assert synced.digest != compile(moved, max_tokens=24, activation_bits=8).digest


def test_a_model_in_training_can_be_synchronised_to() -> None:
    model, artifact = compiled("gpt2")
    moved = copy.deepcopy(model).train().bfloat16()
    assert sync(artifact, moved).digest != artifact.digest
    assert sync(artifact, model).digest == artifact.digest


@pytest.mark.parametrize("precision", ["bf16", "w4a16"])
def test_every_precision_is_synchronised(precision: str) -> None:
    model = build("gpt2")
    artifact = compile(model, max_tokens=8, precision=precision)  # type: ignore[arg-type]
    assert sync(artifact, model).digest == artifact.digest


def test_scales_of_smoothquant_stay_and_the_numbers_too() -> None:
    batch = Batch.of(sequences())
    artifact = compile(build("qwen2"), max_tokens=24, precision="fp32", smooth=SmoothQuant(batches=[batch]))
    moved = build("qwen2", seed=1)
    synced = sync(artifact, moved)
    got = flat(run_float(synced.program, synced.tensors, batch))
    np.testing.assert_allclose(got, own(moved, batch), atol=1e-3)


def test_other_shapes_are_an_error() -> None:
    _, artifact = compiled("gpt2")
    wide = hf.GPT2LMHeadModel(hf.GPT2Config(**{**GPT2, "n_embd": 60}))
    with pytest.raises(ArtifactError, match=r"has shape \[97, 60\], \[97, 48\] was compiled"):
        sync(artifact, wide)
    short = hf.GPT2LMHeadModel(hf.GPT2Config(**{**GPT2, "n_layer": 1}))
    with pytest.raises(ArtifactError, match=r"no parameter transformer.h.1"):
        sync(artifact, short)


def test_another_class_or_other_positions_are_an_error() -> None:
    _, artifact = compiled("smollm")
    with pytest.raises(ArtifactError, match="compiled was a LlamaForCausalLM, this is a GPT2LMHeadModel"):
        sync(artifact, build("gpt2"))
    turned = hf.LlamaForCausalLM(hf.LlamaConfig(**LLAMA, tie_word_embeddings=True, rope_theta=500.0))
    randomise(turned, 0)
    with pytest.raises(ArtifactError, match=r"buffer model.rotary_emb.inv_freq"):
        sync(artifact, turned)


def test_broken_weights_are_an_error_and_the_old_artifact_stays() -> None:
    _, artifact = compiled("gpt2")
    before = artifact.digest
    broken = build("gpt2", seed=2)
    with torch.no_grad():
        broken.get_parameter("transformer.ln_f.weight")[0] = float("inf")
    with pytest.raises(ArtifactError, match=r"transformer.ln_f.weight holds NaN or infinity"):
        sync(artifact, broken)
    assert artifact.digest == before


def test_an_artifact_without_a_recipe() -> None:
    model, artifact = compiled("gpt2")
    bare = type(artifact).of(artifact.program, artifact.tensors)
    with pytest.raises(ArtifactError, match="no recipe"):
        sync(bare, model)
    torn = type(artifact).of(artifact.program, artifact.tensors, recipe=artifact.recipe[:-9])
    with pytest.raises(ArtifactError, match="recipe cannot be read"):
        sync(torn, model)
