from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from greentrain.fpga_backend.artifact import load, weight_of
from greentrain.fpga_backend.batch import Batch
from greentrain.fpga_backend.compiler import SmoothQuant, compile
from greentrain.fpga_backend.compiler.compiling import named_parameters
from greentrain.fpga_backend.compiler.quantize import tensors_of
from greentrain.fpga_backend.compiler.recipe import ParameterSource, Part, Recipe, TensorRecipe
from greentrain.fpga_backend.emulator.engine import Engine
from greentrain.fpga_backend.program import Linear, LogProb, Precision
from tests.fpga_backend.compiler.tiny_models import build, compiled, flat, own, sequences
from tests.helpers.float_engine import FloatEngine


def recipe_of(weight: torch.Tensor, kind: str = "linear") -> Recipe:
    entry = TensorRecipe(kind=kind, parts=(Part(weight=ParameterSource(parameter="w")),))  # type: ignore[arg-type]
    return Recipe(model="", entries={"x": entry}, shapes={"w": tuple(weight.shape)})


@settings(max_examples=30)
@given(rows=st.integers(1, 5), columns=st.integers(1, 70), seed=st.integers(0, 99), power=st.integers(-45, 20))
def test_rows_are_quantised_as_the_contract_says(rows: int, columns: int, seed: int, power: int) -> None:
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * 2.0**power
    for kind, largest in (("linear", 127), ("embed", 32767), ("score", 32767)):
        made = tensors_of(recipe_of(weight, kind), {"w": weight}, "w8a8")
        for row, q, s in zip(weight.numpy(), made["x.q"].numpy(), made["x.s"].numpy(), strict=True):
            peak = max(np.abs(row).max(), np.float32(2.0**-40))
            assert s == np.float32(peak * np.float32(1 / largest))
            np.testing.assert_array_equal(q, np.rint(row * (np.float32(largest) / np.float32(peak))))


@pytest.mark.parametrize(("precision", "levels"), [("w8a16", 255), ("w4a16", 15)])
def test_weight_only_precisions_have_few_levels(precision: Precision, levels: int) -> None:
    weight = torch.randn(3, 1024)
    made = tensors_of(recipe_of(weight), {"w": weight}, precision)["x.w"]
    group = made if precision == "w8a16" else made[:, :128]
    assert 2 < max(len(row.unique()) for row in group) <= levels
    step = weight.abs().amax(1, keepdim=True) / (127 if precision == "w8a16" else 7)
    assert bool(((made - weight).abs() <= 0.5001 * step).all())


def test_a_group_of_wide_layers_has_128_inputs() -> None:
    weight = torch.ones(1, 1024)
    weight[0, 300] = 70.0  # spoils inputs 256 to 383
    made = tensors_of(recipe_of(weight), {"w": weight}, "w4a16")["x.w"][0]
    assert made.ne(1).nonzero().flatten().tolist() == list(range(256, 384))


def test_a_group_is_smaller_in_narrow_layers() -> None:
    weight = torch.ones(1, 96)
    weight[0, 40] = 70.0  # spoils its own group only
    made = tensors_of(recipe_of(weight), {"w": weight}, "w4a16")["x.w"][0]
    assert made[:32].eq(1).all() and made[64:].eq(1).all() and made[33] == 0


def test_finer_precisions_are_nearer_the_model() -> None:
    model, artifact = compiled("qwen2 score")
    batch = Batch.of(sequences(count=24))
    wanted = own(model, batch)
    recipe, tables = Recipe.from_json(artifact.recipe), {k: v for k, v in artifact.tensors.items() if "rotary" in k}
    error: dict[str, float] = {}
    precisions: tuple[Precision, ...] = ("fp32", "fp16", "bf16", "w8a16", "w4a16")
    for precision in precisions:
        tensors = {**tensors_of(recipe, named_parameters(model), precision), **tables}
        error[precision] = float(np.abs(flat(FloatEngine(artifact.program, tensors).run(batch)) - wanted).mean())
    assert sorted(error, key=error.__getitem__) == list(precisions)


def test_integer_weights_can_be_run_in_floating_point() -> None:
    model, artifact = compiled("qwen2 score")
    batch = Batch.of(sequences())
    got = flat(FloatEngine(artifact.program, artifact.tensors).run(batch))
    assert np.abs(got - own(model, batch)).mean() < 0.02 * np.ptp(got)
    low = flat(FloatEngine(artifact.program, artifact.tensors, dtype=torch.bfloat16).run(batch))
    assert 0 < np.abs(got - low).mean() < 0.05 * np.ptp(got)
    stem = artifact.program.ops[-1].weight  # type: ignore[union-attr]
    np.testing.assert_allclose(
        weight_of(artifact.tensors, stem), model.get_parameter("score.weight").detach(), atol=1e-4
    )


def test_activations_of_16_bits_are_nearer_the_model() -> None:
    """Beside the same weights in floating point, about half is left of what rounding costs: that of attention."""
    batch = Batch.of(sequences(count=24))
    for name in ("qwen2 score", "qwen2", "bert mean"):
        model = compiled(name)[0]
        artifact = compile(model, max_tokens=24, activation_bits=8)
        wanted = own(model, batch)
        fine = compile(model, max_tokens=24, activation_bits=16)
        kinds = [op for op in fine.program.ops if isinstance(op, Linear | LogProb)]
        assert kinds and all(op.activation_bits == 16 for op in kinds)
        assert fine.tensors.keys() == artifact.tensors.keys() and fine.checksums == artifact.checksums
        assert fine.digest != artifact.digest
        eight, sixteen, floating = (
            flat(result)
            for result in (
                Engine(artifact).run(batch),
                Engine(fine).run(batch),
                FloatEngine(fine.program, fine.tensors).run(batch),
            )
        )
        assert np.abs(sixteen - floating).mean() < 0.65 * np.abs(eight - floating).mean(), name
        assert np.abs(sixteen - wanted).mean() < np.abs(eight - wanted).mean(), name


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"activation_bits": 12}, "activation_bits=12.*8 and 16"),
        ({"activation_bits": "16"}, "activation_bits='16'.*8 and 16"),
        ({"activation_bits": 16, "activations": "tensor"}, "activations='tensor'.*'w8a8' and 'token'"),
        ({"activation_bits": 16, "precision": "w8a16"}, "precision='w8a16'.*'w8a8' and 'token'"),
    ],
)
def test_widths_that_the_contract_has_not(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        compile(build("gpt2"), max_tokens=8, **options)


def test_16_bits_go_through_smoothquant_and_files(tmp_path: Path) -> None:
    batch = Batch.of(sequences())
    smooth = SmoothQuant(batches=[batch])
    artifact = compile(build("qwen2"), max_tokens=24, activation_bits=16, smooth=smooth)
    assert all(op.activation_bits == 16 for op in artifact.program.ops if isinstance(op, Linear | LogProb))
    artifact.save(tmp_path)
    again = load(tmp_path)
    assert again.program == artifact.program
    np.testing.assert_array_equal(flat(Engine(again).run(batch)), flat(Engine(artifact).run(batch)))


def test_a_recipe_survives_json() -> None:
    recipe = Recipe.from_json(compiled("gemma")[1].recipe)
    assert Recipe.from_json(recipe.to_json()).to_json() == recipe.to_json()
    steps = recipe.entries["model.norm"].parts[0].weight.steps
    assert steps == (("add", 1.0),)


@pytest.mark.parametrize(("name", "bits"), [("gpt2", 16), ("gpt2 score", 8)])
def test_a_reference_has_sixteen_bits_and_scores_eight_where_nothing_is_said(name: str, bits: int) -> None:
    products = [op for op in compiled(name)[1].program.ops if isinstance(op, Linear | LogProb)]
    assert {op.activation_bits for op in products} == {bits}
    assert {
        op.activation_bits
        for op in compile(build(name), max_tokens=8, precision="fp32").program.ops
        if isinstance(op, Linear | LogProb)
    } == {8}
