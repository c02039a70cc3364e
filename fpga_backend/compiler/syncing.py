"""New weights for a compiled model: a reference or a reward model that moves."""

from dataclasses import replace

import torch
from torch import nn

from greentrain.fpga_backend.artifact import Artifact, checksum
from greentrain.fpga_backend.compiler.compiling import named_parameters
from greentrain.fpga_backend.compiler.meta_copy import unwrapped
from greentrain.fpga_backend.compiler.quantize import tensors_of
from greentrain.fpga_backend.compiler.recipe import Recipe
from greentrain.fpga_backend.errors import ArtifactError


def sync(artifact: Artifact, model: nn.Module) -> Artifact:
    """Quantise a model's weights into the program that was compiled of it, or of one like it. Nothing is traced.

    The result is that of a fresh ``compile``, byte for byte. Scales of SmoothQuant stay those of the calibration.

    Args:
        artifact: Of ``compile``, or loaded.
        model: Same class and shapes; as for ``compile``, it is not changed.

    Raises:
        ArtifactError: The artifact has no recipe, the model is another one (names what differs), or its weights hold
            NaN or infinity.
    """
    if not artifact.recipe:
        raise ArtifactError(
            "the artifact has no recipe of its tensors: it was not made by compile(); compile the model"
        )
    recipe = Recipe.from_json(artifact.recipe)
    model = unwrapped(model)
    if type(model).__name__ != recipe.model:
        raise ArtifactError(f"compiled was a {recipe.model}, this is a {type(model).__name__}: compile it")
    buffers = dict(model.named_buffers(remove_duplicate=False))
    for name, expected in recipe.buffers.items():
        if name not in buffers or checksum(buffers[name].detach().cpu()) != expected:
            raise ArtifactError(
                f"buffer {name} ({type(model).__name__}) is not the one that was compiled: the model's positions or "
                "constants have changed; compile it again"
            )
    with torch.device("cpu"):  # whatever the caller's default device is
        tensors = tensors_of(recipe, named_parameters(model), artifact.program.precision)
    kept = {name: tensor for name, tensor in artifact.tensors.items() if name.rpartition(".")[2] in ("cos", "sin")}
    return replace(artifact.with_tensors({**tensors, **kept}), recipe=artifact.recipe)
