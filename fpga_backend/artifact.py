"""A compiled model on disk: ``model.safetensors`` and ``artifact.json`` in a folder, each tensor with its checksum.

The JSON is written last and renamed into place, so a folder that has one is complete. It carries the checksum of every
tensor and of the program, so files of different compilations, or files cut short, are found out at load.

:func:`floats` returns the tensors as floating-point devices read them: integers times their scales, or what is stored
already rounded.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from greentrain.fpga_backend import contract
from greentrain.fpga_backend.errors import ArtifactError
from greentrain.fpga_backend.program import Embed, Linear, LogProb, Norm, Op, Program, Rotary, Score

WEIGHTS = "model.safetensors"
MANIFEST = "artifact.json"
FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Artifact:
    """A program and its tensors, on the CPU."""

    program: Program
    tensors: Mapping[str, torch.Tensor]
    source: str = ""
    """What was compiled: the model's class and name. For people."""
    checksums: Mapping[str, str]
    """SHA-256 of each tensor's type, shape and bytes."""
    recipe: str = ""
    """How the tensors are made of the model's parameters, as JSON; "" where they were not compiled of a model."""

    @classmethod
    def of(
        cls, program: Program, tensors: Mapping[str, torch.Tensor], *, source: str = "", recipe: str = ""
    ) -> "Artifact":
        """Return the artifact of a program and its tensors.

        Raises:
            ArtifactError: A tensor holds NaN or infinity; the message names it.
        """
        held = {name: tensor.detach().cpu().contiguous() for name, tensor in sorted(tensors.items())}
        for name, tensor in held.items():
            if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                raise ArtifactError(f"tensor {name} holds NaN or infinity: the model's weights are broken")
        checksums = {name: checksum(t) for name, t in held.items()}
        return cls(program=program, tensors=held, source=source, checksums=checksums, recipe=recipe)

    def __repr__(self) -> str:
        what, size_mb = self.source or "no source", self.nbytes / 1e6
        return f"Artifact({what}, {self.program.precision}, {self.program.layers} layers, {size_mb:.1f} MB)"

    @property
    def digest(self) -> str:
        """SHA-256 over contract, program and tensors: the same for the same numbers."""
        return digest(self.program, self.checksums)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def with_tensors(self, tensors: Mapping[str, torch.Tensor]) -> "Artifact":
        """Return the same program with other numbers: a reference whose weights have moved.

        Raises:
            ArtifactError: A name, type or shape differs.
        """
        if differ := _differences(self.tensors, tensors):
            raise ArtifactError(f"these tensors do not fit the program: {differ}")
        return Artifact.of(self.program, tensors, source=self.source, recipe=self.recipe)

    def save(self, folder: Path | str) -> None:
        """Write the folder. An artifact that is there already is replaced.

        Raises:
            OSError: The folder cannot be written.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        manifest = folder / MANIFEST
        manifest.unlink(missing_ok=True)
        weights = folder / f".{WEIGHTS}.{os.getpid()}"
        save_file(dict(self.tensors), weights)
        weights.replace(folder / WEIGHTS)
        written = folder / f".{MANIFEST}.{os.getpid()}"
        with written.open("w", encoding="utf-8") as file:
            json.dump(self._manifest(), file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        written.replace(manifest)

    def _manifest(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "contract": contract.VERSION,
            "source": self.source,
            "recipe": self.recipe,
            "digest": self.digest,
            "program": json.loads(self.program.to_json()),
            "tensors": dict(self.checksums),
        }


def load(folder: Path | str) -> Artifact:
    """Read an artifact and check all of it.

    Raises:
        ArtifactError: A file is missing or cut short, the contract is another one, or a checksum differs; the message
            says which and what to do.
    """
    folder = Path(folder)
    manifest = _manifest(folder)
    program = Program.from_json(json.dumps(manifest["program"]))
    try:
        tensors = load_file(folder / WEIGHTS)
    except Exception as error:  # safetensors raises its own type, OSError or ValueError
        raise ArtifactError(f"{folder / WEIGHTS} cannot be read ({error}): compile the model again") from error
    artifact = Artifact.of(
        program, tensors, source=str(manifest.get("source", "")), recipe=str(manifest.get("recipe", ""))
    )
    expected = manifest["tensors"]
    if not isinstance(expected, dict):
        raise ArtifactError(f"{folder / MANIFEST} has no checksums of tensors: compile the model again")
    for name in sorted({*expected, *artifact.checksums}):
        if expected.get(name) != artifact.checksums.get(name):
            raise ArtifactError(
                f"{folder}: tensor {name} has checksum {_short(artifact.checksums.get(name))}, the manifest says "
                f"{_short(expected.get(name))}: the files are of different compilations or damaged; compile again"
            )
    if artifact.digest != manifest["digest"]:
        raise ArtifactError(
            f"{folder}: the digest is {_short(artifact.digest)}, the manifest says {_short(str(manifest['digest']))}: "
            "the program was changed by hand; compile the model again"
        )
    return artifact


def as_artifact(artifact: Any) -> Artifact:
    """Return what a caller gave as an artifact.

    Raises:
        ArtifactError: It is something else, such as a model that was not compiled.
    """
    if not isinstance(artifact, Artifact):
        raise ArtifactError(
            f"a {type(artifact).__name__} is no artifact: compile the model (fpga_backend.compiler), or read one "
            "from disk (fpga_backend.artifact.load)"
        )
    return artifact


def checksum(tensor: torch.Tensor) -> str:
    """Return the SHA-256 of a CPU tensor's type, shape and bytes."""
    found = hashlib.sha256(f"{tensor.dtype}{list(tensor.shape)}".encode())
    found.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def digest(program: Program, checksums: Mapping[str, str]) -> str:
    """Return the SHA-256 over contract, program and checksums."""
    text = json.dumps([contract.VERSION, program.to_json(), sorted(checksums.items())])
    return hashlib.sha256(text.encode()).hexdigest()


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ArtifactError(f"{path} is missing: {folder} holds no artifact, or one that was never finished") from error
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{path} cannot be read ({error}): compile the model again") from error
    if not isinstance(manifest, dict) or not {"format", "contract", "digest", "program", "tensors"} <= manifest.keys():
        raise ArtifactError(f"{path} is no manifest of an artifact: compile the model again")
    for key, here in (("format", FORMAT), ("contract", contract.VERSION)):
        if manifest[key] != here:
            raise ArtifactError(
                f"{path} is of {key} {manifest[key]}, this version reads {here}: compile the model again"
            )
    return manifest


def _short(text: str | None) -> str:
    return "none" if text is None else text[:12]


def _differences(old: Mapping[str, torch.Tensor], new: Mapping[str, torch.Tensor]) -> str:
    found = []
    for name in sorted({*old, *new}):
        a, b = old.get(name), new.get(name)
        if a is None or b is None:
            found.append(f"{name} is {'new' if a is None else 'missing'}")
        elif a.shape != b.shape or a.dtype != b.dtype:
            found.append(f"{name} is {b.dtype}{list(b.shape)} instead of {a.dtype}{list(a.shape)}")
    return ", ".join(found[:5]) + (" ..." if len(found) > 5 else "")


Shape = tuple[int | None, ...]


def floats(artifact: Artifact) -> dict[str, torch.Tensor]:
    """Return all that the program's operators read, as binary32: rows as ``stem.w``, the rest under its own name.

    Raises:
        ArtifactError: A tensor is missing or of another shape.
    """
    checked(artifact)
    held = artifact.tensors
    names = {name for op in artifact.program.ops for name, _ in _needs(op)}
    return {name: weight_of(held, name[:-2]) if name.endswith(".w") else held[name] for name in sorted(names)}


def weight_of(tensors: Mapping[str, torch.Tensor], stem: str) -> torch.Tensor:
    """Return a stem's weight in binary32, whatever the precision."""
    if (weight := tensors.get(f"{stem}.w")) is not None:
        return weight
    return tensors[f"{stem}.q"].to(torch.float32) * tensors[f"{stem}.s"][:, None]


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
        case Linear() | Score() | LogProb():
            shapes: list[tuple[str, Shape]] = [(f"{op.weight}.w", (op.outputs, op.x.width))]
            return [*shapes, (f"{op.weight}.b", (op.outputs,))] if op.bias else shapes
        case Norm():
            return [(f"{op.weight}.{part}", (op.x.width // op.groups,)) for part in ("g", "b")[: 1 + op.bias]]
        case Rotary():
            return [(f"{op.weight}.{part}", (None, op.x.width // op.heads // 2)) for part in ("cos", "sin")]
    return []


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
