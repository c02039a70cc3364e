"""The audit document: SHA-256 of every raw file of one run or of many, the totals that follow, and a checksum.

Raw files are run.json and the journals; reports are made from them and are not in it. A journal is only ever
appended to, so a run that went on after the audit still has the audited bytes in front: ``verify`` tells that apart
from a change. The checksum is SHA-256 of the canonical form (RFC 8785) of the document without ``checksum`` and
``signature``; the signature is HMAC-SHA256 (RFC 2104) of the same bytes.

``read_document`` checks the shape of a document before anything in it is believed. ``verify`` checks whether it is as
it was written, whether the files are as they were, and whether the totals, and the files of the standards, follow from
them. One changed byte is named with what it was: beside its hash a file has the sum of its bytes and the sum of each
times its place (modulo a prime), whose differences are the change and the change times the place; the hash proves it.

``canonical`` writes JSON in one way only, so that equal documents have equal bytes: RFC 8785, JSON Canonicalization
Scheme (June 2020). Keys are sorted by their UTF-16 code units, there is no space, and numbers are as in ECMAScript
(ECMA-262, Number::toString). https://www.rfc-editor.org/rfc/rfc8785, read 2026-11-22.
"""

import contextlib
import dataclasses
import hashlib
import hmac
import json
import math
import platform
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Any, Final

from greentrain.errors import ConfigError, RunFolderError
from greentrain.ledger.journal import RUN_JSON, lines_of, open_regular, read_object
from greentrain.ledger.run_folder import PLAN
from greentrain.policy.check_plan import check
from greentrain.report.fleet.find import CopyCandidate, below, copies, find_runs, is_raw
from greentrain.report.fleet.reading import RunReading, read_folder
from greentrain.report.fleet.row import RunRow, clean
from greentrain.report.standards import CONTRACTS, FILES, first_difference
from greentrain.utils.version import __version__

_DERIVED: Final = (*FILES.values(), CONTRACTS, PLAN)
"""Files that are made of others, and kept by an audit beside them."""
EXACT: Final = 2**53
"""Integers up to here are the same in every reader of JSON (RFC 8785, 3.2.2.3)."""


def canonical(value: Any) -> bytes:
    """Return the canonical form of a JSON value, in UTF-8.

    Raises:
        ValueError: It has no such form: a number that is not finite or that no double holds, half a character, or
            another type than JSON has.
    """
    return "".join(_parts(value)).encode("utf-8")


def _parts(value: Any) -> "list[str]":
    if value is None or isinstance(value, bool | str):
        return [json.dumps(value, ensure_ascii=False)]
    if isinstance(value, int):
        if abs(value) > EXACT and (abs(value) > sys.float_info.max or str(value) != _number(float(value))):
            raise ValueError(f"{value} is above 2**53: not every reader of JSON keeps it")
        return [str(value)]
    if isinstance(value, float):
        return [_number(value)]
    if isinstance(value, Mapping):
        out = ["{"]
        for i, key in enumerate(sorted(value, key=_utf16)):
            out += ["," if i else "", json.dumps(key, ensure_ascii=False), ":", *_parts(value[key])]
        return [*out, "}"]
    if isinstance(value, list | tuple):
        out = ["["]
        for i, item in enumerate(value):
            out += ["," if i else "", *_parts(item)]
        return [*out, "]"]
    raise ValueError(f"JSON has no {type(value).__name__}")


def _utf16(key: object) -> bytes:
    if not isinstance(key, str):
        raise ValueError(f"a key is {key!r}, and JSON has text as keys")
    return key.encode("utf-16-be")


def _number(value: float) -> str:
    if not math.isfinite(value):
        raise ValueError(f"{value} is no number of JSON")
    if value == 0.0:
        return "0"
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    text = "".join(map(str, digits)).rstrip("0")
    point = len(digits) + int(exponent)  # of the decimal point, behind so many digits
    return "-" * sign + _placed(text, point)


def _placed(digits: str, point: int) -> str:
    if len(digits) <= point <= 21:
        return digits + "0" * (point - len(digits))
    if 0 < point <= 21:
        return f"{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"0.{'0' * -point}{digits}"
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{digits[0]}{fraction}e{point - 1:+d}"


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
    byte_sums: str
    """As ``ByteSums`` prints them."""


_PRIME: Final = 2**61 - 1
"""A Mersenne prime above the size of any file."""


class ByteSums:
    """The sum of the bytes of a file, and the sum of each times its place, by which a change of one byte is found."""

    def __init__(self) -> None:
        self._size, self._sum, self._placed = 0, 0, 0

    def update(self, part: bytes) -> None:
        """Take in the next bytes."""
        import numpy as np

        values = np.frombuffer(part, np.uint8).astype(np.int64)
        total = int(values.sum())
        self._placed += total * (self._size + 1) + int(values @ np.arange(len(part)))
        self._sum, self._size = self._sum + total, self._size + len(part)

    def __str__(self) -> str:
        return f"{self._sum:x}:{self._placed % _PRIME:x}"

    def changed(self, before: str) -> tuple[int, int] | None:
        """Return where one byte has changed, and by how much, since these sums were ``before``; None if not one alone.

        Raises:
            ValueError: ``before`` holds no sums.
        """
        was, placed = (int(text, 16) for text in before.split(":"))
        by = self._sum - was
        if by == 0 or abs(by) > 255:
            return None
        at = (self._placed - placed) * pow(by, -1, _PRIME) % _PRIME - 1
        return (at, by) if at < self._size else None


class HashedFiles:
    """Opens files for ``read_folder`` and hashes the bytes that it reads: figures and hashes are of the same bytes.

    Args:
        most_bytes: The number of bytes of a file that are read, by name; none of a file that is not named. None: all
            bytes of all files.
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
        digest, sums, size = hashlib.sha256(), ByteSums(), 0
        for line in lines_of(path):
            part = line if left is None else line[: left - size]
            if not part:
                break
            digest.update(part)
            sums.update(part)
            size += len(part)
            yield part
        self.files[path.name] = RawFile(name=path.name, size_bytes=size, sha256=digest.hexdigest(), byte_sums=str(sums))

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
        root: The folder of one run or of many.
        progress: A function that is called with the number of runs read so far.

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
        runs[-1]["derived"] = _derived(found.folder)
        runs[-1]["plan_error"] = _wrong_plan(found.folder / PLAN)
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
        "files": [dataclasses.asdict(file) for file in files],
        "run_json_fields": fields_of(folder),
        "totals": figures(row),
        "error": row.error,
    }


def _derived(folder: Path) -> list[dict[str, Any]]:
    """Return size, hash and sums of the files of the standards, and of the certificates that they are made of."""
    reader = HashedFiles()
    for name in sorted(_DERIVED):
        with contextlib.suppress(OSError, RunFolderError):
            for _ in reader.lines(folder / name):
                pass
    return [dataclasses.asdict(file) for file in reader.files.values()]


def _wrong_plan(path: Path) -> str | None:
    """Return what is wrong with a plan and its bound; None where it holds, or there is none."""
    try:
        check(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        return f"the plan does not hold: {clean(str(error))}"
    return None


def _exact(value: float | int | None) -> float | int | None:
    return float(value) if isinstance(value, int) and value > EXACT else value


def _candidate(folder: str, reading: RunReading) -> CopyCandidate:
    row = reading.row
    return CopyCandidate(
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
_SUMS: Final = re.compile(r"[0-9a-f]+:[0-9a-f]+")


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
    derived = run.get("derived", [])  # of an earlier version: neither these nor sums
    for file in (*run["files"], *derived):
        known = file["name"] in _DERIVED if file in derived else _NAME.fullmatch(file["name"])
        if not known or not isinstance(file["sha256"], str) or not _SUMS.fullmatch(file.get("byte_sums", "0:0")):
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


_EQUAL: Final = 1e-9
"""Relative: sums of doubles in another order, by another version, differ by less."""
_CHUNK: Final = 1 << 20
_NULL: Final = hashlib.sha256(b"null").hexdigest()
"""Of a field that was not known yet at the audit, such as the parameters of a run that goes on."""


class FindingKind(StrEnum):
    """What a finding means."""

    DIFFERS = "differs"
    """Something is not as it was audited."""
    GROWN = "grown since"
    """What was audited is whole, and more came behind it."""
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """One thing that was found."""

    kind: FindingKind
    place: str
    """File, folder or figure."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditVerdict:
    """What came out."""

    runs: int
    files: int
    findings: Sequence[AuditFinding]

    @property
    def ok(self) -> bool:
        """True if nothing differs."""
        return all(finding.kind is not FindingKind.DIFFERS for finding in self.findings)


def verify(
    document: Mapping[str, Any], root: Path, *, key: bytes | None = None, progress: Callable[[int], None] | None = None
) -> AuditVerdict:
    """Compare a document with itself, with the files under a root, and with the totals that follow from them.

    Args:
        document: The document, from ``read_document``.
        root: The folder in which its run folders lie.
        key: The key of the signature; with one, a document without a signature differs.
        progress: A function that is called with the number of runs checked so far.

    Raises:
        RunFolderError: The root cannot be read.
    """
    findings = [*_of_document(document, key)]
    files = 0
    for done, run in enumerate(document["runs"], 1):
        files += len(run["files"])
        try:
            findings += _of_run(run, root / run["folder"])
        except OSError as error:
            text = f"a file cannot be read: {error.strerror or error}"
            findings.append(AuditFinding(FindingKind.DIFFERS, run["folder"], text))
        if progress is not None:
            progress(done)
    known = {run["folder"] for run in document["runs"]}
    for found in find_runs(root):
        folder = below(root, found.folder)
        if folder not in known:
            findings.append(AuditFinding(FindingKind.NOTE, folder, "a run that was not there at the audit"))
    return AuditVerdict(runs=len(document["runs"]), files=files, findings=findings)


def _of_document(document: Mapping[str, Any], key: bytes | None) -> Iterator[AuditFinding]:
    def differs(text: str) -> AuditFinding:
        return AuditFinding(FindingKind.DIFFERS, "the document", text)

    if not hmac.compare_digest(checksum(document), document["checksum"]["value"]):
        yield differs("its checksum is of another text: it was edited after it was written")
    signed = document["signature"]
    if key is not None and signed is None:
        yield differs("it has no signature, and a key was given")
    elif key is not None and not hmac.compare_digest(signature(document, key), signed["value"]):
        yield differs("its signature is not of this key and this text: it was signed with another key, or edited")
    elif key is None and signed is not None:
        yield AuditFinding(FindingKind.NOTE, "the document", "its signature was not checked: give --key-file")
    yield from _unequal("totals of all runs", document["totals"], add_up(document["runs"]), "its runs")


def _of_run(run: Mapping[str, Any], folder: Path) -> Iterator[AuditFinding]:
    name = run["folder"]
    if not folder.is_dir():
        yield AuditFinding(FindingKind.DIFFERS, name, "the folder is gone")
        return
    sizes, grown = {}, False
    for file in run["files"]:
        place = str(PurePosixPath(name) / file["name"])
        sizes[file["name"]] = file["size_bytes"]
        if file["name"] == RUN_JSON:
            finding = _of_run_json(file, folder, run["run_json_fields"])
        else:
            finding = _of_journal(file, folder / file["name"])
        if finding is not None:
            grown = grown or finding[0] is FindingKind.GROWN
            yield AuditFinding(finding[0], place, finding[1])
    for path in sorted(folder.iterdir()):
        if is_raw(path.name) and path.name not in sizes:
            grown = True
            yield AuditFinding(FindingKind.GROWN, str(PurePosixPath(name) / clean(path.name)), "a new file")
    if run["error"] is not None:
        yield AuditFinding(FindingKind.NOTE, name, f"no totals: at the audit it was broken: {run['error']}")
        return
    yield from _of_derived(run.get("derived", []), name, folder, grown=grown)
    if (folder / RUN_JSON).exists() and RUN_JSON in sizes:
        sizes[RUN_JSON] = (folder / RUN_JSON).stat().st_size
    row = HashedFiles(sizes).read(folder).row
    if row.error is not None:
        yield AuditFinding(FindingKind.DIFFERS, name, f"its totals cannot be derived any more: {row.error}")
    else:
        yield from _unequal(name, run["totals"], figures(row), "the files")


def _of_derived(files: Sequence[Mapping[str, Any]], name: str, folder: Path, *, grown: bool) -> Iterator[AuditFinding]:
    for file in files:
        place = str(PurePosixPath(name) / file["name"])
        finding = _of_journal(file, folder / file["name"])
        standard = next((key for key, of in FILES.items() if of == file["name"]), None)
        wrong = None
        if standard is not None and (folder / file["name"]).is_file():
            wrong = first_difference(folder, standard)
        elif file["name"] == PLAN:
            wrong = _wrong_plan(folder / PLAN)
        if wrong is not None and finding is None and grown:
            yield AuditFinding(FindingKind.NOTE, place, "older than its journals, which have grown: write it again")
        elif wrong is not None:
            yield AuditFinding(FindingKind.DIFFERS, place, wrong)
        if finding is not None:  # written again since, of more journal, it differs from the audited one and is right
            again = wrong is None and (standard is not None or file["name"] == PLAN)
            kind = FindingKind.GROWN if again else FindingKind.DIFFERS
            gone = not (folder / file["name"]).exists()
            yield AuditFinding(FindingKind.DIFFERS if gone else kind, place, finding[1])


def _of_journal(file: Mapping[str, Any], path: Path) -> tuple[FindingKind, str] | None:
    try:
        size, digest, sums = _hash(path, file["size_bytes"])
    except FileNotFoundError:
        return FindingKind.DIFFERS, "the file is gone"
    except OSError as error:
        return FindingKind.DIFFERS, f"the file cannot be read: {error.strerror or error}"
    except RunFolderError:
        return FindingKind.DIFFERS, "it is no regular file any more"
    if size < file["size_bytes"]:
        return FindingKind.DIFFERS, f"the file is {file['size_bytes'] - size} bytes shorter"
    if digest != file["sha256"]:
        where = _where(file, path, sums)
        return FindingKind.DIFFERS, f"the first {file['size_bytes']} bytes, which were audited, have changed{where}"
    if size > file["size_bytes"]:
        return FindingKind.GROWN, f"{size - file['size_bytes']} bytes were appended; those before are as audited"
    return None


def _of_run_json(
    file: Mapping[str, Any], folder: Path, fields: Mapping[str, str] | None
) -> tuple[FindingKind, str] | None:
    finding = _of_journal(file, folder / RUN_JSON)
    now = fields_of(folder)
    if finding is None or fields is None or now is None:
        return finding  # it is replaced as a whole, never appended to
    learned = {key for key, digest in fields.items() if digest == _NULL and now.get(key, _NULL) != _NULL}
    changed = sorted(key for key in fields.keys() - learned if now.get(key, "") != fields[key])
    if changed:
        return FindingKind.DIFFERS, f"changed or gone: {', '.join(changed)}{finding[1].partition('have changed')[2]}"
    added = sorted((now.keys() - fields.keys()) | learned)
    return FindingKind.GROWN, f"written again, with {', '.join(added) or 'no new field'}; what was audited is the same"


def _where(file: Mapping[str, Any], path: Path, sums: ByteSums) -> str:
    """Return which byte has changed, if it is one alone and the hash with what it was is the audited one."""
    found = sums.changed(file["byte_sums"]) if "byte_sums" in file else None
    if found is None:
        return ""
    with open_regular(path) as opened:
        head = opened.read(found[0] + 1)
    was = head[-1] - found[1]
    if not 0 <= was <= 255 or _hash(path, file["size_bytes"], (found[0], was))[1] != file["sha256"]:
        return ""
    line, column = head[:-1].count(b"\n") + 1, len(head) - 1 - (head[:-1].rfind(b"\n") + 1) + 1
    return f": in line {line}, byte {column} is {chr(head[-1])!a} and was {chr(was)!a}"


def _hash(path: Path, most_bytes: int, put: tuple[int, int] | None = None) -> tuple[int, str, ByteSums]:
    """Return the size of a file, and the SHA-256 and sums of its first bytes, with one byte put in if asked."""
    digest, sums, done = hashlib.sha256(), ByteSums(), 0
    with open_regular(path) as file:
        while done < most_bytes and (part := file.read(min(most_bytes - done, _CHUNK))):
            if put is not None and 0 <= put[0] - done < len(part):
                part = part[: put[0] - done] + bytes([put[1]]) + part[put[0] - done + 1 :]
            digest.update(part)
            sums.update(part)
            done += len(part)
        return path.stat().st_size, digest.hexdigest(), sums


def _unequal(
    place: str, said: Mapping[str, Any], derived: Mapping[str, float | int | None], source: str
) -> Iterator[AuditFinding]:
    for name in FIGURES:
        a, b = said[name], derived[name]
        same = a == b if a is None or b is None else math.isclose(a, b, rel_tol=_EQUAL)
        if not same:
            told, found = ("unknown" if value is None else f"{value!r}" for value in (a, b))
            text = f"{name} is {told} in the document and {found} from {source}"
            yield AuditFinding(FindingKind.DIFFERS, place, text)
