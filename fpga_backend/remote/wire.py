"""Bodies of the HTTP interface: arrays and artifacts as safetensors, everything else as JSON.

All are read without running any of it. Floats pass as their bits. An artifact is one stream, never whole in memory,
with its manifest as the metadata of safetensors.
"""

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import safe_open
from safetensors.numpy import load, save
from safetensors.torch import load_file, save_file

from greentrain.fpga_backend import contract, errors
from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.batch import Batch, Result
from greentrain.fpga_backend.device import DeviceInfo, EnergyReading
from greentrain.fpga_backend.program import Program
from greentrain.types import Provenance

VERSION = 1
"""Of the interface: the first part of every path."""
TOKEN_HEADER = "authorization"
CLIENT_HEADER = "x-greentrain-client"

_ERRORS: tuple[tuple[type[errors.OffloadError], int], ...] = (
    (errors.BatchError, 400),
    (errors.ArtifactError, 422),
    (errors.QueueFullError, 503),
    (errors.DeviceLostError, 410),
    (errors.DeviceError, 500),
)
"""The most special first, with the HTTP status (RFC 9110, section 15)."""


class MalformedError(ValueError):
    """A body is not what it should be."""


def batch_body(batch: Batch) -> bytes:
    """Return a batch as bytes."""
    arrays: dict[str, npt.NDArray[Any]] = {"ids": _joined(batch.ids), "lengths": _lengths(batch.ids)}
    if batch.types is not None:
        arrays["types"] = _joined(batch.types)
    if batch.prompt_tokens is not None:
        arrays["prompts"] = np.array(batch.prompt_tokens, dtype=np.int64)
    return save(arrays)


def read_batch(body: bytes) -> Batch:
    """Return the batch of some bytes; whether it fits a model is for its ``check`` to say.

    Raises:
        MalformedError: They are no batch.
    """
    arrays = _arrays(body)
    lengths = _array(arrays, "lengths", np.int64)
    prompts = _array(arrays, "prompts", np.int64) if "prompts" in arrays else None
    return Batch(
        ids=_cut(_array(arrays, "ids", np.int32), lengths),
        types=_cut(_array(arrays, "types", np.int32), lengths) if "types" in arrays else None,
        prompt_tokens=None if prompts is None else tuple(map(int, prompts)),
    )


def result_body(result: Result) -> bytes:
    """Return a result as bytes."""
    about = {"run_s": result.run_s, "modelled": result.modelled, "rows": result.rows, "notes": list(result.notes)}
    arrays: dict[str, npt.NDArray[Any]] = {"about": np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)}
    if result.scores is not None:
        arrays["scores"] = np.ascontiguousarray(result.scores)
    if result.logprobs is not None:
        arrays["logprobs"] = np.concatenate([np.zeros(0, dtype=np.float32), *result.logprobs])
        arrays["lengths"] = _lengths(result.logprobs)
    return save(arrays)


def read_result(body: bytes) -> Result:
    """Return the result of some bytes.

    Raises:
        MalformedError: They are none.
    """
    arrays = _arrays(body)
    about = json_of(_array(arrays, "about", np.uint8).tobytes())
    scores = arrays.get("scores")
    if scores is not None and (scores.ndim != 2 or scores.dtype != np.float32):
        raise MalformedError(f"scores are {scores.dtype}{list(scores.shape)}")
    logprobs = None
    if "logprobs" in arrays:
        logprobs = _cut(_array(arrays, "logprobs", np.float32), _array(arrays, "lengths", np.int64))
    try:
        return Result(
            scores=scores,
            logprobs=logprobs,
            run_s=float(about["run_s"]),
            modelled=bool(about["modelled"]),
            rows=int(about["rows"]),
            notes=tuple(map(str, about["notes"])),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise MalformedError(f"the result lacks what is said about it: {error!r}") from error


def info_json(info: DeviceInfo) -> dict[str, Any]:
    """Return what a device says of itself, for JSON."""
    return {**asdict(info), "details": dict(info.details)}


def energy_json(reading: EnergyReading) -> dict[str, Any]:
    """Return a reading, for JSON."""
    return {"energy_j": reading.energy_j, "provenance": reading.provenance.value, "note": reading.note}


def read_energy(reply: Mapping[str, Any]) -> EnergyReading:
    """Return the reading of some JSON.

    Raises:
        MalformedError: It is none.
    """
    try:
        energy_j = None if reply["energy_j"] is None else float(reply["energy_j"])
        provenance = Provenance(reply["provenance"])
        if (energy_j is None) != (provenance is Provenance.MISSING) or not (energy_j is None or 0 <= energy_j < 1e18):
            raise ValueError(f"{energy_j} J, {provenance}")
        return EnergyReading(energy_j=energy_j, provenance=provenance, note=str(reply["note"]))
    except (KeyError, TypeError, ValueError) as error:
        raise MalformedError(f"no reading of energy: {error!r}") from error


def error_json(error: BaseException) -> tuple[int, dict[str, str]]:
    """Return the HTTP status of an error, and what says which it is."""
    for kind, status in _ERRORS:
        if isinstance(error, kind):
            return status, {"error": kind.__name__, "message": str(error)}
    return 500, {"error": "DeviceError", "message": repr(error)}


def read_error(reply: Mapping[str, Any], status: int) -> errors.OffloadError:
    """Return the error that a reply stands for."""
    text = str(reply.get("message", "no reason given"))
    for kind, _ in _ERRORS:
        if reply.get("error") == kind.__name__:
            return kind(text)
    return errors.DeviceError(f"HTTP {status}: {text}")


def json_of(body: bytes) -> dict[str, Any]:
    """Return the JSON object of some bytes.

    Raises:
        MalformedError: They are none.
    """
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"{len(body)} bytes that are no JSON") from error
    if not isinstance(found, dict):
        raise MalformedError(f"JSON, but a {type(found).__name__} instead of an object")
    return found


def _joined(rows: tuple[npt.NDArray[np.int32], ...]) -> npt.NDArray[np.int32]:
    return np.concatenate([np.zeros(0, dtype=np.int32), *rows])


def _lengths(rows: Sequence[npt.NDArray[Any]]) -> npt.NDArray[np.int64]:
    return np.array([len(row) for row in rows], dtype=np.int64)


def _arrays(body: bytes) -> dict[str, npt.NDArray[Any]]:
    try:
        return load(body)
    except Exception as error:  # safetensors raises its own type, KeyError or ValueError
        raise MalformedError(f"{len(body)} bytes that are no safetensors: {error}") from error


def _array(arrays: Mapping[str, npt.NDArray[Any]], name: str, dtype: type[np.generic]) -> npt.NDArray[Any]:
    found = arrays.get(name)
    if found is None or found.dtype != dtype or found.ndim != 1:
        what = "missing" if found is None else f"{found.dtype}{list(found.shape)}"
        raise MalformedError(f"{name} is {what}, it must be {np.dtype(dtype)}[n]")
    return found


def _cut(whole: npt.NDArray[Any], lengths: npt.NDArray[np.int64]) -> tuple[npt.NDArray[Any], ...]:
    if (lengths < 0).any() or (lengths > len(whole)).any() or int(lengths.sum()) != len(whole):
        raise MalformedError(f"lengths add up to {int(lengths.sum())}, there are {len(whole)}")
    return tuple(np.split(whole, np.cumsum(lengths)[:-1])) if len(lengths) else ()


PIECE_BYTES = 2**20


class Upload:
    """The bytes of an artifact, as often as they are asked for, out of a file that has no name any more.

    Raises:
        ArtifactError: A tensor is of a type that cannot be sent, or there is no room for the file.
    """

    def __init__(self, artifact: Artifact) -> None:
        manifest = {"contract": contract.VERSION, "source": artifact.source, "program": artifact.program.to_json()}
        try:
            with tempfile.TemporaryDirectory(prefix="greentrain-upload-") as folder:
                path = Path(folder, "artifact")
                save_file(dict(artifact.tensors), path, metadata={"artifact": json.dumps(manifest)})
                self._file = path.open("rb")
        except Exception as error:  # safetensors raises its own type, OSError or ValueError
            raise errors.ArtifactError(f"the artifact cannot be sent to another machine: {error}") from error
        self.nbytes = self._file.seek(0, os.SEEK_END)

    def __iter__(self) -> Iterator[bytes]:
        self._file.seek(0)
        while piece := self._file.read(PIECE_BYTES):
            yield piece

    def __enter__(self) -> "Upload":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def received(path: Path, digest: str) -> Artifact:
    """Return the artifact in a file that was uploaded.

    Args:
        path: Path of the uploaded file, which may be deleted afterwards.
        digest: Digest of the artifact that was announced.

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
        raise errors.ArtifactError(
            f"the artifact is of contract {manifest.get('contract')}, the server's is {contract.VERSION}: install the "
            "same version of greentrain-torch on both machines"
        )
    program = Program.from_json(str(manifest.get("program")))
    artifact = replace(Artifact.of(program, tensors), source=str(manifest.get("source", "")))
    if artifact.digest != digest:
        raise errors.ArtifactError(
            f"what arrived is artifact {artifact.digest[:12]}, announced was {digest[:12]}: send it again"
        )
    return artifact
