"""An artifact as one stream: a safetensors file that is never whole in memory, with its manifest as metadata.

The format is that of safetensors (github.com/huggingface/safetensors, README, "Format", read 2026-11-21): the length of
a JSON header in 8 bytes, the header, then the tensors' bytes one after the other.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file

from greentrain.fpga_backend import contract
from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.errors import ArtifactError
from greentrain.fpga_backend.program import Program
from greentrain.fpga_backend.remote.wire import MalformedError, json_of

PIECE_BYTES = 2**20
_TYPES = {
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
}


class Upload:
    """The bytes of an artifact, as often as they are asked for.

    Raises:
        ArtifactError: A tensor is of a type that cannot be sent.
    """

    def __init__(self, artifact: Artifact) -> None:
        self._tensors = [artifact.tensors[name].contiguous() for name in sorted(artifact.tensors)]
        manifest = {"contract": contract.VERSION, "source": artifact.source, "program": artifact.program.to_json()}
        header: dict[str, Any] = {"__metadata__": {"artifact": json.dumps(manifest)}}
        start = 0
        for name, tensor in zip(sorted(artifact.tensors), self._tensors, strict=True):
            if tensor.dtype not in _TYPES:
                raise ArtifactError(f"tensor {name} is of {tensor.dtype}, which cannot be sent to another machine")
            header[name] = {
                "dtype": _TYPES[tensor.dtype],
                "shape": list(tensor.shape),
                "data_offsets": [start, start + tensor.nbytes],
            }
            start += tensor.nbytes
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        self._head = len(text).to_bytes(8, "little") + text
        self.nbytes = len(self._head) + start

    def __iter__(self) -> Iterator[bytes]:
        yield self._head
        for tensor in self._tensors:
            whole = tensor.view(-1).view(torch.uint8).numpy().data
            for start in range(0, len(whole), PIECE_BYTES):
                yield bytes(whole[start : start + PIECE_BYTES])


def received(path: Path, digest: str) -> Artifact:
    """Return the artifact in a file that was uploaded.

    Args:
        path: The file. It may be deleted afterwards.
        digest: Which artifact it must be.

    Raises:
        MalformedError: The file is no upload.
        ArtifactError: It is another artifact, or of another contract.
    """
    try:
        with safe_open(path, "pt") as file:
            manifest = json_of((file.metadata() or {}).get("artifact", "").encode())
        tensors = load_file(path)
    except MalformedError:
        raise
    except Exception as error:  # safetensors raises its own type, OSError or ValueError
        raise MalformedError(f"the upload cannot be read: {error}") from error
    if manifest.get("contract") != contract.VERSION:
        raise ArtifactError(
            f"the artifact is of contract {manifest.get('contract')}, the server's is {contract.VERSION}: install the "
            "same version of greentrain-torch on both machines"
        )
    program = Program.from_json(str(manifest.get("program")))
    artifact = replace(Artifact.of(program, tensors), source=str(manifest.get("source", "")))
    if artifact.digest != digest:
        raise ArtifactError(
            f"what arrived is artifact {artifact.digest[:12]}, announced was {digest[:12]}: send it again"
        )
    return artifact
