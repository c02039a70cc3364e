"""Checks an audit document: is it as it was written, are the files as they were, do the totals follow from them?"""

import hashlib
import hmac
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Any, Final

from greentrain.errors import RunFolderError
from greentrain.ledger.journal import RUN_JSON, open_regular
from greentrain.report.fleet.audit import FIGURES, HashedFiles, add_up, checksum, fields_of, figures, signature
from greentrain.report.fleet.find import below, find_runs, is_raw
from greentrain.report.fleet.row import clean

_EQUAL: Final = 1e-9
"""Relative: sums of doubles in another order, by another version, differ by less."""
_CHUNK: Final = 1 << 20
_NULL: Final = hashlib.sha256(b"null").hexdigest()
"""Of a field that was not known yet at the audit, such as the parameters of a run that goes on."""


class Kind(StrEnum):
    """What a finding means."""

    DIFFERS = "differs"
    """Something is not as it was audited."""
    GROWN = "grown since"
    """What was audited is whole, and more came behind it."""
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was found."""

    kind: Kind
    place: str
    """File, folder or figure."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What came out."""

    runs: int
    files: int
    findings: Sequence[Finding]

    @property
    def ok(self) -> bool:
        """True if nothing differs."""
        return all(finding.kind is not Kind.DIFFERS for finding in self.findings)


def verify(
    document: Mapping[str, Any], root: Path, *, key: bytes | None = None, progress: Callable[[int], None] | None = None
) -> Verdict:
    """Compare a document with itself, with the files under a root, and with the totals that follow from them.

    Args:
        document: From ``read_document``.
        root: Where its folders lie.
        key: For the signature; with one, a document without a signature differs.
        progress: Called with the runs checked so far.

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
            findings.append(Finding(kind=Kind.DIFFERS, place=run["folder"], text=text))
        if progress is not None:
            progress(done)
    known = {run["folder"] for run in document["runs"]}
    for found in find_runs(root):
        folder = below(root, found.folder)
        if folder not in known:
            findings.append(Finding(kind=Kind.NOTE, place=folder, text="a run that was not there at the audit"))
    return Verdict(runs=len(document["runs"]), files=files, findings=findings)


def _of_document(document: Mapping[str, Any], key: bytes | None) -> Iterator[Finding]:
    def differs(text: str) -> Finding:
        return Finding(kind=Kind.DIFFERS, place="the document", text=text)

    if not hmac.compare_digest(checksum(document), document["checksum"]["value"]):
        yield differs("its checksum is of another text: it was edited after it was written")
    signed = document["signature"]
    if key is not None and signed is None:
        yield differs("it has no signature, and a key was given")
    elif key is not None and not hmac.compare_digest(signature(document, key), signed["value"]):
        yield differs("its signature is not of this key and this text: it was signed with another key, or edited")
    elif key is None and signed is not None:
        yield Finding(kind=Kind.NOTE, place="the document", text="its signature was not checked: give --key-file")
    yield from _unequal("totals of all runs", document["totals"], add_up(document["runs"]), "its runs")


def _of_run(run: Mapping[str, Any], folder: Path) -> Iterator[Finding]:
    name = run["folder"]
    if not folder.is_dir():
        yield Finding(kind=Kind.DIFFERS, place=name, text="the folder is gone")
        return
    sizes = {}
    for file in run["files"]:
        place = str(PurePosixPath(name) / file["name"])
        sizes[file["name"]] = file["size_bytes"]
        if file["name"] == RUN_JSON:
            finding = _of_run_json(file, folder, run["run_json_fields"])
        else:
            finding = _of_journal(file, folder / file["name"])
        if finding is not None:
            yield Finding(kind=finding[0], place=place, text=finding[1])
    for path in sorted(folder.iterdir()):
        if is_raw(path.name) and path.name not in sizes:
            yield Finding(kind=Kind.GROWN, place=str(PurePosixPath(name) / clean(path.name)), text="a new file")
    if run["error"] is not None:
        yield Finding(kind=Kind.NOTE, place=name, text=f"no totals: at the audit it was broken: {run['error']}")
        return
    if (folder / RUN_JSON).exists() and RUN_JSON in sizes:
        sizes[RUN_JSON] = (folder / RUN_JSON).stat().st_size
    row = HashedFiles(sizes).read(folder).row
    if row.error is not None:
        yield Finding(kind=Kind.DIFFERS, place=name, text=f"its totals cannot be derived any more: {row.error}")
    else:
        yield from _unequal(name, run["totals"], figures(row), "the files")


def _of_journal(file: Mapping[str, Any], path: Path) -> tuple[Kind, str] | None:
    try:
        size, digest = _hash(path, file["size_bytes"])
    except FileNotFoundError:
        return Kind.DIFFERS, "the file is gone"
    except OSError as error:
        return Kind.DIFFERS, f"the file cannot be read: {error.strerror or error}"
    except RunFolderError:
        return Kind.DIFFERS, "it is no regular file any more"
    if size < file["size_bytes"]:
        return Kind.DIFFERS, f"the file is {file['size_bytes'] - size} bytes shorter"
    if digest != file["sha256"]:
        return Kind.DIFFERS, f"the first {file['size_bytes']} bytes, which were audited, have changed"
    if size > file["size_bytes"]:
        return Kind.GROWN, f"{size - file['size_bytes']} bytes were appended; those before are as audited"
    return None


def _of_run_json(file: Mapping[str, Any], folder: Path, fields: Mapping[str, str] | None) -> tuple[Kind, str] | None:
    finding = _of_journal(file, folder / RUN_JSON)
    now = fields_of(folder)
    if finding is None or fields is None or now is None:
        return finding  # it is replaced as a whole, never appended to
    learned = {key for key, digest in fields.items() if digest == _NULL and now.get(key, _NULL) != _NULL}
    changed = sorted(key for key in fields.keys() - learned if now.get(key, "") != fields[key])
    if changed:
        return Kind.DIFFERS, f"changed or gone: {', '.join(changed)}"
    added = sorted((now.keys() - fields.keys()) | learned)
    return Kind.GROWN, f"written again, with {', '.join(added) or 'no new field'}; what was audited is the same"


def _hash(path: Path, most_bytes: int) -> tuple[int, str]:
    """Return the size of a file, and the SHA-256 of its first bytes."""
    digest, left = hashlib.sha256(), most_bytes
    with open_regular(path) as file:
        while left > 0 and (part := file.read(min(left, _CHUNK))):
            digest.update(part)
            left -= len(part)
        return path.stat().st_size, digest.hexdigest()


def _unequal(
    place: str, said: Mapping[str, Any], derived: Mapping[str, float | int | None], source: str
) -> Iterator[Finding]:
    for name in FIGURES:
        a, b = said[name], derived[name]
        same = a == b if a is None or b is None else math.isclose(a, b, rel_tol=_EQUAL)
        if not same:
            told, found = ("unknown" if value is None else f"{value!r}" for value in (a, b))
            text = f"{name} is {told} in the document and {found} from {source}"
            yield Finding(kind=Kind.DIFFERS, place=place, text=text)
