import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from greentrain.fpga_backend.batch import Batch
from greentrain.fpga_backend.compiler.compiling import named_parameters
from greentrain.fpga_backend.compiler.floating import FloatEngine
from greentrain.fpga_backend.compiler.quantize import tensors_of, weight_of
from greentrain.fpga_backend.compiler.recipe import Entry, Part, Recipe, Source
from greentrain.fpga_backend.program import Precision
from tests.fpga_backend.compiler.tiny_models import compiled, flat, own, sequences


def recipe_of(weight: torch.Tensor, kind: str = "linear") -> Recipe:
    entry = Entry(kind=kind, parts=(Part(weight=Source(parameter="w")),))  # type: ignore[arg-type]
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


def test_a_recipe_survives_json() -> None:
    recipe = Recipe.from_json(compiled("gemma")[1].recipe)
    assert Recipe.from_json(recipe.to_json()).to_json() == recipe.to_json()
    steps = recipe.entries["model.norm"].parts[0].weight.steps
    assert steps == (("add", 1.0),)
