"""The audit document: SHA-256 of every raw file of one run or of many, the totals that follow, and a checksum.

Raw files are run.json and the journals; reports are made from them and are not in it. A journal is only ever
appended to, so a run that went on after the audit still has the audited bytes in front: ``verify`` tells that apart
from a change. The checksum is SHA-256 of the canonical form (RFC 8785) of the document without ``checksum`` and
``signature``; the signature is HMAC-SHA256 (RFC 2104) of the same bytes.

Reads an audit document and checks its shape, before anything in it is believed.
"""

import contextlib
import hashlib
import hmac
import json
import math
import platform
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any, Final

from greentrain.errors import ConfigError, RunFolderError
from greentrain.ledger.journal import RUN_JSON, lines_of, read_object
from greentrain.report.fleet.canonical import EXACT, canonical
from greentrain.report.fleet.find import Candidate, below, copies, find_runs, is_raw
from greentrain.report.fleet.reading import RunReading, read_folder
from greentrain.report.fleet.row import RunRow
from greentrain.utils.version import __version__

AUDIT: Final = "audit.json"
FORMAT: Final = 1
KIND: Final = "greentrain audit"
CHECKSUM: Final = "SHA-256"
SIGNATURE: Final = "HMAC-SHA256"
FIGURES: Final = (
    "energy_j", "measured_j", "modelled_j", "missing_s", "device_s", "facility_j", "unpriced_j", "operational_g",
    "market_g", "embodied_g", "total_g", "wall_s", "steps", "tokens", "samples",
)  # fmt: skip
"""Of a run; the totals of many are their sums."""
_CANONICAL: Final = "RFC 8785 of this document without the keys checksum and signature"
_LEAST_KEY: Final = 16
"""Bytes of a key: 128 bits; below 112 an HMAC is disallowed (NIST SP 800-131A Rev. 2, March 2019, section 10)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawFile:
    """One raw file, as it was read."""

    name: str
    size_bytes: int
    sha256: str


class HashedFiles:
    """Opens files for ``read_folder`` and hashes the bytes that it reads: figures and hashes are of the same bytes.

    Args:
        most_bytes: How much of a file is read, by name; of one that is not named nothing. None: all of all files.
    """

    def __init__(self, most_bytes: Mapping[str, int] | None = None) -> None:
        self._most = most_bytes
        self.files: dict[str, RawFile] = {}
        """By name, what was read to its end."""

    def lines(self, path: Path) -> Iterator[bytes]:
        """Yield the lines of a file.

        Raises:
            RunFolderError: It is no regular file.
            OSError: It cannot be read.
        """
        left = None if self._most is None else self._most.get(path.name, 0)
        digest, size = hashlib.sha256(), 0
        for line in lines_of(path):
            part = line if left is None else line[: left - size]
            if not part:
                break
            digest.update(part)
            size += len(part)
            yield part
        self.files[path.name] = RawFile(name=path.name, size_bytes=size, sha256=digest.hexdigest())

    def read(self, folder: Path) -> RunReading:
        """Read a run folder, and to their ends also the raw files that a fault in it kept from being read.

        Raises:
            OSError: A file cannot be read.
        """
        reading = read_folder(folder, self.lines)
        for path in sorted(folder.iterdir()):
            if is_raw(path.name) and path.name not in self.files:
                with contextlib.suppress(RunFolderError):  # what is no regular file has no bytes to be hashed
                    for _ in self.lines(path):
                        pass
        return reading


def audit(root: Path, progress: Callable[[int], None] | None = None) -> dict[str, Any]:
    """Return the audit document of a run folder, or of all under a root, with its checksum and without a signature.

    Args:
        root: The folder.
        progress: Called with the runs read so far.

    Raises:
        RunFolderError: The root cannot be read.
        ConfigError: There is no run under it.
    """
    runs: list[dict[str, Any]] = []
    candidates = []
    for found in find_runs(root):
        folder = below(root, found.folder)
        reader = HashedFiles()
        try:
            reading = None if found.error is not None else reader.read(found.folder)
        except OSError as error:
            reading, why = None, f"a file cannot be read: {error.strerror or error}"
        else:
            why = found.error or ""
        runs.append(_run(found.folder, folder, reading, reader, why))
        if reading is not None and reading.row.error is None:
            candidates.append(_candidate(folder, reading))
        if progress is not None:
            progress(len(runs))
    if not runs:
        raise ConfigError(f"{root} holds no run folder; give one, or a folder of run folders, for example runs")
    same = copies(candidates)
    for run in runs:
        run["duplicate_of"] = same.get(run["folder"])
    document: dict[str, Any] = {
        "format": FORMAT,
        "kind": KIND,
        "created_utc": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "greentrain_version": __version__,
        "python": platform.python_version(),
        "canonicalisation": _CANONICAL,
        "runs": runs,
        "totals": add_up(runs),
    }
    document["checksum"] = {"algorithm": CHECKSUM, "value": checksum(document)}
    document["signature"] = None
    return document


def sign(document: Mapping[str, Any], key: bytes) -> dict[str, Any]:
    """Return the document with a signature."""
    return {**document, "signature": {"algorithm": SIGNATURE, "value": signature(document, key)}}


def checksum(document: Mapping[str, Any]) -> str:
    """Return SHA-256 of what the document says, in hex."""
    return hashlib.sha256(_signed_bytes(document)).hexdigest()


def signature(document: Mapping[str, Any], key: bytes) -> str:
    """Return HMAC-SHA256 of what the document says, in hex."""
    return hmac.new(key, _signed_bytes(document), hashlib.sha256).hexdigest()


def read_key(path: Path) -> bytes:
    """Return the key in a file, without a line end behind it.

    Raises:
        ConfigError: It cannot be read, or is too short.
    """
    try:
        key = path.read_bytes().rstrip(b"\r\n")
    except OSError as error:
        raise ConfigError(f"--key-file {path} cannot be read: {error.strerror}") from error
    if len(key) < _LEAST_KEY:
        raise ConfigError(
            f"--key-file {path} holds {len(key)} bytes; a key needs {_LEAST_KEY}: openssl rand -hex 32 > {path.name}"
        )
    return key


def figures(row: RunRow) -> dict[str, float | int | None]:
    """Return the audited figures of a run."""
    return {name: _exact(getattr(row, name)) for name in FIGURES}


def add_up(runs: Iterable[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return the sums over the runs of a document that count; None where no run tells."""
    counted = [run["totals"] for run in runs if run["error"] is None and run["duplicate_of"] is None]
    out: dict[str, float | None] = {}
    for name in FIGURES:
        known = [totals[name] for totals in counted if totals[name] is not None]
        whole = all(isinstance(value, int) for value in known)
        out[name] = None if not known else _exact(sum(known)) if whole else math.fsum(known)
    return out


def fields_of(folder: Path) -> dict[str, str] | None:
    """Return SHA-256 of each field of run.json, in hex; None if it is no JSON object.

    A resumed run may add fields, so they are told apart.
    """
    try:
        found = read_object(folder / RUN_JSON)
        return {key: hashlib.sha256(canonical(value)).hexdigest() for key, value in found.items()}
    except (OSError, RunFolderError, ValueError, RecursionError):
        return None


def _run(folder: Path, name: str, reading: RunReading | None, reader: HashedFiles, why: str) -> dict[str, Any]:
    row = RunRow(run_id=folder.name, folder=folder, error=why) if reading is None else reading.row
    files: Sequence[RawFile] = sorted(reader.files.values(), key=lambda file: file.name)
    return {
        "folder": name,
        "run_id": row.run_id,
        "files": [{"name": f.name, "size_bytes": f.size_bytes, "sha256": f.sha256} for f in files],
        "run_json_fields": fields_of(folder),
        "totals": figures(row),
        "error": row.error,
    }


def _exact(value: float | int | None) -> float | int | None:
    return float(value) if isinstance(value, int) and value > EXACT else value


def _candidate(folder: str, reading: RunReading) -> Candidate:
    row = reading.row
    return Candidate(
        folder=folder,
        run_id=row.run_id,
        ranks=reading.ranks,
        starts=reading.starts,
        carried=reading.carried,
        end_unix_s=row.end_unix_s,
        energy_j=row.energy_j,
    )


def _signed_bytes(document: Mapping[str, Any]) -> bytes:
    return canonical({key: value for key, value in document.items() if key not in ("checksum", "signature")})


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
