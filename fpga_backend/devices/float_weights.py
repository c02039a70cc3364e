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
    found: dict[str, torch.Tensor] = {}
    for op in artifact.program.ops:
        for name, shape in _needs(op):
            if name not in found:
                found[name] = _rows(artifact, name, shape) if name.endswith(".w") else _tensor(artifact, name, shape)
    return found


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


def _rows(artifact: Artifact, name: str, shape: Shape) -> torch.Tensor:
    if artifact.program.precision != "w8a8":
        return _tensor(artifact, name, shape)
    stem = name.removesuffix(".w")
    integers = _tensor(artifact, f"{stem}.q", shape)
    return integers.to(torch.float32) * _tensor(artifact, f"{stem}.s", (len(integers),))[:, None]


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
