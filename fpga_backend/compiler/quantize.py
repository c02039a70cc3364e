"""From a recipe and parameters to a program's tensors, in each precision."""

from collections.abc import Mapping

import torch

from greentrain.fpga_backend import contract
from greentrain.fpga_backend.compiler.recipe import ParameterSource, Recipe, TensorRecipe
from greentrain.fpga_backend.emulator.arithmetic import quantise
from greentrain.fpga_backend.errors import ArtifactError
from greentrain.fpga_backend.program import Precision, group_of

Q4 = 7
"""Largest magnitude of a 4-bit weight (symmetric; -8 is never used)."""
_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


def tensors_of(recipe: Recipe, parameters: Mapping[str, torch.Tensor], precision: Precision) -> dict[str, torch.Tensor]:
    """Return the tensors of every stem.

    Args:
        recipe: Recipe by which each tensor is made of parameters.
        parameters: Parameters by name, on any device, of any floating type.
        precision: Precision to round to. In the weight-only ones the products' weights are integers of 8 or 4 bits that
            are written back as binary32; embeddings, norms, biases and the score head are bfloat16.

    Raises:
        ArtifactError: A parameter is missing, of another shape, holds NaN or infinity, or does not fit binary16; the
            message names it.
    """
    made: dict[str, torch.Tensor] = {}
    for stem, entry in recipe.entries.items():
        weight = _joined([_read(part.weight, recipe, parameters) for part in entry.parts])
        if entry.kind == "norm":
            made[f"{stem}.g"] = _rounded(weight, precision, stem)
        elif precision == "w8a8":
            q, s = quantise(weight, contract.Q8 if entry.kind in ("linear", "logprob") else contract.Q16)
            made[f"{stem}.q"] = q.to(torch.int8 if entry.kind in ("linear", "logprob") else torch.int16)
            made[f"{stem}.s"] = s.squeeze(-1)
        else:
            made[f"{stem}.w"] = _approximated(weight, entry, precision, stem)
        if entry.bias:
            made[f"{stem}.b"] = _rounded(_bias(entry, recipe, parameters), precision, stem)
    return made


def _bias(entry: TensorRecipe, recipe: Recipe, parameters: Mapping[str, torch.Tensor]) -> torch.Tensor:
    rows = []
    for part in entry.parts:
        if part.bias is not None:
            rows.append(_read(part.bias, recipe, parameters))
        else:
            rows.append(torch.zeros(len(_read(part.weight, recipe, parameters)), dtype=torch.float32))
    return _joined(rows)


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    """Return parts one below the other; a single one is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _approximated(weight: torch.Tensor, entry: TensorRecipe, precision: Precision, stem: str) -> torch.Tensor:
    if entry.kind in ("linear", "logprob"):
        if precision == "w8a16":
            q, s = quantise(weight, contract.Q8)
            return q * s
        if precision == "w4a16":
            return _grouped(weight)
    return _rounded(weight, precision, stem)


def _grouped(weight: torch.Tensor) -> torch.Tensor:
    pieces = []
    for piece in torch.split(weight, group_of(weight.shape[1]), dim=1):
        q, s = quantise(piece, Q4)
        pieces.append(q * s)
    return torch.cat(pieces, dim=1)


def _rounded(value: torch.Tensor, precision: Precision, stem: str) -> torch.Tensor:
    if precision in ("w8a8", "fp32"):
        return value.clone()  # the model's own tensor, perhaps, and that goes on training
    rounded = value.to(_HALF.get(precision, torch.bfloat16)).to(torch.float32)
    if not bool(torch.isfinite(rounded).all()):
        raise ArtifactError(
            f"{stem} holds {float(value.abs().max()):.4g}, beyond the 65504 of binary16: take precision='bf16'"
        )
    return rounded


def _read(source: ParameterSource, recipe: Recipe, parameters: Mapping[str, torch.Tensor]) -> torch.Tensor:
    found = parameters.get(source.parameter)
    expected = recipe.shapes[source.parameter]
    if found is None:
        raise ArtifactError(f"the model has no parameter {source.parameter}: it is not the one that was compiled")
    if tuple(found.shape) != expected:
        raise ArtifactError(
            f"parameter {source.parameter} has shape {list(found.shape)}, {list(expected)} was compiled: compile again"
        )
    value = found.detach().to(device="cpu", dtype=torch.float32)
    bad = int((~torch.isfinite(value)).sum())
    if bad:
        raise ArtifactError(
            f"parameter {source.parameter} holds NaN or infinity in {bad} of {value.numel()} places: "
            "the model's weights are broken"
        )
    for name, argument in source.steps:
        value = _step(value, name, argument, recipe.vectors)
    return value.contiguous()


def _step(value: torch.Tensor, name: str, argument: float | str, vectors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    if isinstance(argument, str):
        vector = vectors[argument]
        if name == "divide rows":
            return value / vector.reshape(-1, *[1] * (value.dim() - 1))
        if name == "multiply columns":
            return value * vector
    elif name == "transpose":
        return value.t()
    elif name == "add":
        return value + argument
    elif name == "multiply":
        return value * argument
    elif name == "fill":
        return torch.full_like(value, argument)
    raise ArtifactError(f"the recipe holds the unknown step {name!r}: compile the model again")
