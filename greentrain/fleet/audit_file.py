"""Reads an audit document and checks its shape, before anything in it is believed."""

import json
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

from greentrain.errors import ConfigError
from greentrain.fleet.audit import CHECKSUM, FIGURES, FORMAT, KIND, SIGNATURE
from greentrain.fleet.canonical import canonical

_NAME: Final = re.compile(r"run\.json|rank-[^/\\\0]*\.jsonl")


def read_document(path: Path) -> dict[str, Any]:
    """Return an audit document whose shape is right; whether it is true is for ``verify``.

    Raises:
        ConfigError: It cannot be read, or is no audit document of this format.
    """
    try:
        found = json.loads(path.read_bytes(), object_pairs_hook=_unique)
        _check_shape(found)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"{path} is no audit document that this version reads: {error or type(error).__name__}; write one with:"
            " greentrain audit RUNS --write"
        ) from error
    return dict(found)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) < len(pairs):
        raise ValueError("a key stands twice in one object")
    return out


def _check_shape(found: Mapping[str, Any]) -> None:
    """Raise ValueError, KeyError or TypeError where something is missing or of the wrong type."""
    if found["kind"] != KIND:
        raise ValueError(f"its kind is {found['kind']!r}")
    if found["format"] != FORMAT:
        raise ValueError(f"it has format {found['format']!r}, this GreenTrain reads {FORMAT}")
    _check_digest(found["checksum"], CHECKSUM)
    if found["signature"] is not None:
        _check_digest(found["signature"], SIGNATURE)
    _check_totals(found["totals"])
    for run in found["runs"]:
        _check_run(run)
    canonical(found)


def _check_run(run: Mapping[str, Any]) -> None:
    folder = PurePosixPath(run["folder"])
    if folder.is_absolute() or ".." in folder.parts:
        raise ValueError(f"the folder {run['folder']!r} is not below the root")
    if not all(isinstance(run[key], str | None) for key in ("error", "duplicate_of")):
        raise TypeError(f"run {run['folder']!r}: error or duplicate_of is no text")
    _check_totals(run["totals"])
    for file in run["files"]:
        if not _NAME.fullmatch(file["name"]) or not isinstance(file["sha256"], str):
            raise ValueError(f"{file['name']!r} is no raw file of a run")
        if not isinstance(file["size_bytes"], int):
            raise TypeError(f"the size of {file['name']} is no number of bytes")
    fields = run["run_json_fields"]
    if fields is not None and not all(isinstance(value, str) for value in fields.values()):
        raise TypeError("run_json_fields holds something else than hashes")


def _check_digest(found: Mapping[str, Any], algorithm: str) -> None:
    if found["algorithm"] != algorithm or not re.fullmatch("[0-9a-f]{64}", found["value"]):
        raise ValueError(f"its {algorithm} is none")


def _check_totals(totals: Mapping[str, Any]) -> None:
    for name in FIGURES:
        value = totals[name]
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise TypeError(f"{name} is {value!r}, no number")
