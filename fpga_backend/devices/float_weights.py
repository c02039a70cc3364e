"""An artifact's tensors as floating point: integers times their scales, or what is stored already rounded."""

import torch

from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.errors import ArtifactError
from greentrain.fpga_backend.program import Embed, Linear, LogProb, Norm, Op, Rotary, Score

Shape = tuple[int | None, ...]


def floats(artifact: Artifact) -> dict[str, torch.Tensor]:
    """Return all that the program's operators read, as binary32: rows as ``stem.w``, the rest under its own name.

    Raises:
        ArtifactError: A tensor is missing or of another shape.
    """
    checked(artifact)
    names = {name for op in artifact.program.ops for name, _ in _needs(op)}
    return {name: _rows(artifact, name) if name.endswith(".w") else artifact.tensors[name] for name in sorted(names)}


def checked(artifact: Artifact) -> None:
    """Raise if the artifact lacks what its program reads.

    Raises:
        ArtifactError: A tensor is missing or of another shape.
    """
    for op in artifact.program.ops:
        for name, shape in _needs(op):
            if name.endswith(".w") and artifact.program.precision == "w8a8":
                stem = name.removesuffix(".w")
                integers = _tensor(artifact, f"{stem}.q", shape)
                _tensor(artifact, f"{stem}.s", (len(integers),))
            else:
                _tensor(artifact, name, shape)


def _needs(op: Op) -> list[tuple[str, Shape]]:
    """Return names and shapes of what an operator reads; None: any length."""
    match op:
        case Embed():
            return [(f"{op.weight}.w", (None, op.width))]
        case Linear():
            return _affine(op.weight, op.outputs, op.x.width, op.bias)
        case Score():
            return _affine(op.weight, op.labels, op.x.width, op.bias)
        case LogProb():
            return _affine(op.weight, op.vocabulary, op.x.width, op.bias)
        case Norm():
            return [(f"{op.weight}.{part}", (op.x.width,)) for part in ("g", "b")[: 1 + op.bias]]
        case Rotary():
            return [(f"{op.weight}.{part}", (None, op.x.width // op.heads // 2)) for part in ("cos", "sin")]
    return []


def _affine(stem: str, outputs: int, inputs: int, bias: bool) -> list[tuple[str, Shape]]:
    rows: list[tuple[str, Shape]] = [(f"{stem}.w", (outputs, inputs))]
    return [*rows, (f"{stem}.b", (outputs,))] if bias else rows


def _rows(artifact: Artifact, name: str) -> torch.Tensor:
    if artifact.program.precision != "w8a8":
        return artifact.tensors[name]
    stem = name.removesuffix(".w")
    return artifact.tensors[f"{stem}.q"].to(torch.float32) * artifact.tensors[f"{stem}.s"][:, None]


def _tensor(artifact: Artifact, name: str, shape: Shape) -> torch.Tensor:
    tensor = artifact.tensors.get(name)
    if tensor is None:
        raise ArtifactError(f"tensor {name} is missing, which the program reads: compile the model again")
    if len(shape) != tensor.ndim or any(n not in (None, got) for n, got in zip(shape, tensor.shape, strict=True)):
        wanted = ["any" if n is None else n for n in shape]
        raise ArtifactError(
            f"tensor {name} is {list(tensor.shape)}, the program reads {wanted}: compile the model again"
        )
    return tensor
