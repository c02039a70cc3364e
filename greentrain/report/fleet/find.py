"""Finds run folders under a root, and tells by sizes and times whether one has changed.

Run folders that hold the same ranks of the same run: one of them counts.
"""

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from greentrain.errors import RunFolderError
from greentrain.ledger.journal import RUN_JSON
from greentrain.ledger.run_folder import ESTIMATE
from greentrain.report.fleet.row import clean

DEPTH: Final = 3
"""Folders below the root in which a run may lie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRun:
    """A run folder, or a folder that could not be looked into."""

    folder: Path
    fingerprint: str = ""
    """Of names, sizes and times of what the run is read from; empty: it cannot be told, so it is read again."""
    error: str | None = None


def find_runs(root: Path) -> Iterator[FoundRun]:
    """Yield the run folders under a root, itself included, each once even where links lead to it in two ways.

    A folder with a journal or a run.json is a run, and is not searched further. Hidden folders are left out.

    Raises:
        RunFolderError: The root is no folder, or cannot be read.
    """
    try:
        os.scandir(root).close()
    except OSError as error:
        raise RunFolderError(
            f"{root} cannot be read: {error.strerror}; give a folder that holds run folders, for example runs"
        ) from error
    yield from _find(root, DEPTH, set())


def _find(folder: Path, depth: int, seen: set[tuple[int, int]]) -> Iterator[FoundRun]:
    try:
        status = folder.stat()
        if (status.st_dev, status.st_ino) in seen:
            return
        seen.add((status.st_dev, status.st_ino))
        with os.scandir(folder) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
    except OSError as error:
        yield FoundRun(folder=folder, error=f"the folder cannot be read: {error.strerror or error}")
        return
    raw = [entry.name for entry in entries if is_raw(entry.name)]
    if any(clean(name) != name for name in raw):
        yield FoundRun(folder=folder, error="the name of a file in it is not UTF-8: rename it")
    elif raw:
        yield FoundRun(folder=folder, fingerprint=_fingerprint(entries))
    elif depth > 0:
        for entry in entries:
            if entry.name.startswith(".") or not _is_folder(entry):
                continue
            if clean(entry.name) != entry.name:
                yield FoundRun(folder=folder / clean(entry.name), error="its name is not UTF-8: rename it")
            else:
                yield from _find(folder / entry.name, depth - 1, seen)


def below(root: Path, folder: Path) -> str:
    """Return the path of a folder that was found, from the root on, as text that UTF-8 can hold."""
    return clean(folder.relative_to(root).as_posix())


def is_raw(name: str) -> bool:
    """Return True for what a run is read from: run.json and the journals."""
    return name == RUN_JSON or fnmatchcase(name, "rank-*.jsonl")


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads in a circle
        return False


def _fingerprint(entries: "list[os.DirEntry[str]]") -> str:
    digest = hashlib.blake2b(digest_size=16)
    for entry in entries:
        if is_raw(entry.name) or entry.name == ESTIMATE:
            try:
                status = entry.stat()
            except OSError:
                return ""
            digest.update(f"{entry.name}\0{status.st_size}\0{status.st_mtime_ns}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyCandidate:
    """What tells copies apart."""

    folder: str
    run_id: str
    ranks: frozenset[int]
    starts: frozenset[str]
    """When its processes began, by rank; copies have some in common."""
    carried: bool
    """It went on from a checkpoint, so an earlier part of it may lie elsewhere."""
    end_unix_s: float | None
    energy_j: float | None


def copies(candidates: Iterable[CopyCandidate]) -> Mapping[str, str]:
    """Return the folder that counts by the folder that does not.

    Of two folders of one run that share a rank, the one counts that ended last: it was resumed, and has what the
    other one booked in it. Folders with other ranks of the run, as nodes write to disks of their own, all count; so do
    two runs that were only given the same id.
    """
    kept: defaultdict[str, list[CopyCandidate]] = defaultdict(list)
    out = {}
    for one in sorted(candidates, key=_place):
        same = next((other for other in kept[one.run_id] if _is_same(other, one)), None)
        if same is None:
            kept[one.run_id].append(one)
        else:
            out[one.folder] = same.folder
    return out


def _is_same(a: CopyCandidate, b: CopyCandidate) -> bool:
    if not a.ranks & b.ranks:
        return False
    return bool(a.starts & b.starts) or a.carried or b.carried or not (a.starts and b.starts)


def _place(one: CopyCandidate) -> tuple[float, float, str]:
    return -(one.end_unix_s or 0.0), -(one.energy_j or 0.0), one.folder
