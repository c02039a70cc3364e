"""One append-only file of JSON lines a rank: the part of a run that survives crashes.

A line is complete or it does not count: a torn last line (power cut, SIGKILL in a write) is closed with a
newline before the next process appends, and skipped by the reader. While the disk is full or gone, lines wait
in memory, bounded, and are written when it comes back.

Versions of the run folder's files: which are read, and what becomes of records that a newer version added.

Keys and kinds of record are only ever added within a version, so a reader that does not know one leaves it out and
says so once. ``FORMAT_VERSION`` rises when leaving something out would make a figure wrong; then nothing is read.
docs/run-format.md says what every record holds.
"""

import contextlib
import json
import os
import time
import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from greentrain.errors import GreenTrainWarning, NewerFormatError, RunFolderError
from greentrain.types import FORMAT_VERSION

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
WAITING_LINES = 4096
"""Lines kept in memory while the disk refuses them: about 11 hours of 10 s intervals."""
_STEP_GROUPS: Final = b',"step_groups":'


def rank_path(folder: Path, rank: int) -> Path:
    """Return the journal of a rank in a run folder."""
    return folder / f"rank-{rank:05d}.jsonl"


class Journal:
    """Appends JSON lines to one file and never raises after it is open.

    Args:
        path: The file; its folder is created when missing.
        fsync_s: Force the lines to the device this often (s), so that a power cut loses little more than a crash.

    Raises:
        RunFolderError: The folder or file cannot be created or written.
    """

    def __init__(self, path: Path, *, fsync_s: float = 10.0) -> None:
        self.path = path
        self._fsync_s = fsync_s
        self._synced_s = time.monotonic()
        self.lost_lines = 0
        self._waiting: deque[bytes] = deque()
        self._warned = False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, _FLAGS, 0o644)
        except OSError as error:
            raise RunFolderError(
                f"cannot write the run file {path}: {error.strerror}. Make the folder writable or set run.dir to one"
                " that is"
            ) from error
        self._torn = self._ends_torn()

    def append(self, record: Mapping[str, Any]) -> bool:
        """Write one record as one line.

        Returns:
            False if the line could not be written yet; it is kept and tried again with the next one.
        """
        line = json.dumps(record, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        if len(self._waiting) >= WAITING_LINES:
            self._waiting.popleft()
            self.lost_lines += 1
        self._waiting.append(line)
        return self.flush()

    def flush(self) -> bool:
        """Try to write every waiting line; return True if none is left."""
        if self._fd < 0:
            return False
        try:
            while self._waiting:
                if self._torn:
                    self._write(b"\n")
                    self._torn = False
                self._write(self._waiting[0])
                self._waiting.popleft()
            if time.monotonic() - self._synced_s >= self._fsync_s:
                self._sync()
        except OSError as error:
            self._warn(error)
            return False
        return True

    def close(self) -> None:
        """Write what waits and close the file. Idempotent."""
        if self._fd >= 0:
            self.flush()
            with contextlib.suppress(OSError):
                self._sync()
            os.close(self._fd)
            self._fd = -1

    def _sync(self) -> None:
        self._synced_s = time.monotonic()
        os.fsync(self._fd)

    def _write(self, data: bytes) -> None:
        written = os.write(self._fd, data)
        if written < len(data):
            self._torn = True
            raise OSError(28, "No space left on device")

    def _ends_torn(self) -> bool:
        size = os.fstat(self._fd).st_size
        if size == 0:
            return False
        os.lseek(self._fd, size - 1, os.SEEK_SET)
        return os.read(self._fd, 1) != b"\n"

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"GreenTrain cannot write {self.path} ({error.strerror}); up to {WAITING_LINES} intervals wait in"
                " memory and training goes on",
                GreenTrainWarning,
                stacklevel=2,
            )


def parse_line(line: bytes, *, short: bool = False) -> dict[str, Any] | None:
    """Return the record of a line; None where the line is torn, or holds none.

    Args:
        line: With or without its newline.
        short: Leave out an entry's step groups unread; they stand last in its line, and are most of it.
    """
    cut = line.rfind(_STEP_GROUPS) if short and line.endswith((b"]}\n", b"]}")) else -1
    texts = (line,) if cut < 0 else (line[:cut] + b',"step_groups":[]}', line)
    for text in texts:
        try:
            record = json.loads(text)
        except ValueError:
            continue
        return record if isinstance(record, dict) and "kind" in record else None
    return None


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the complete records of a journal, skipping torn lines.

    Raises:
        RunFolderError: The file cannot be read.
    """
    try:
        with path.open("rb") as file:
            for line in file:
                record = parse_line(line)
                if record is not None:
                    yield record
    except OSError as error:
        raise RunFolderError(f"cannot read the run file {path}: {error.strerror}") from error


NOTE: Final = "note"
"""Name of the event that a reader adds where it left something out."""
_WRITTEN: Final = {
    "open": "format run_id rank world_size local_rank local_world_size host pid t sensors carried excluded",
    "sensors": "sensors excluded",
    "entry": "t0 t1 steps tokens samples devices phase_s phase_incl_j carbon pue pue_from op_g emb_g gears sum"
    " step_groups",
    "close": "t reason totals",
}
_INSIDE: Final = {"entry": {"weight"}}  # of greentrain.ledger.reader, in memory only
KINDS: Final[Mapping[str, frozenset[str] | None]] = {
    **{kind: frozenset({"kind", *names.split()}) for kind, names in _WRITTEN.items()},
    "event": None,  # beside kind, t, name and text it has facts of its own, by its name
}
"""Kinds of journal record with their fields."""
_MOST_NAMES: Final = 8


def check_format(found: Any, path: Path) -> None:
    """Check that a file is of a version that this reader knows.

    Raises:
        NewerFormatError: A newer GreenTrain wrote it.
        RunFolderError: It names no version.
    """
    if type(found) is not int or found < 1:
        raise RunFolderError(f"{path} has format {found!r}, which is no version: it is damaged, or no file of a run")
    if found > FORMAT_VERSION:
        raise NewerFormatError(
            f"{path} has format {found}, this GreenTrain reads up to {FORMAT_VERSION}: upgrade it with"
            " pip install -U greentrain-torch"
        )


class Unknown:
    """What a reader met in one journal and did not know."""

    def __init__(self) -> None:
        self._names: dict[str, int] = {}

    def look(self, record: Mapping[str, Any]) -> None:
        """Note the kind of a record, or its fields, where they are unknown."""
        kind = str(record["kind"])
        if kind not in KINDS:
            self._count(f"records of kind {kind!r}")
            return
        fields = KINDS[kind]
        if fields is not None and not record.keys() <= fields:
            for name in sorted(record.keys() - fields - _INSIDE.get(kind, set())):
                self._count(f"{kind}.{name}")

    def note(self, t_unix_s: float) -> dict[str, Any] | None:
        """Return one event that names all of it; None where all was known.

        Args:
            t_unix_s: Time that the event gets (s since the epoch).
        """
        if not self._names:
            return None
        told = [f"{name} ({times} times)" for name, times in list(self._names.items())[:_MOST_NAMES]]
        more = len(self._names) - len(told)
        text = ", ".join(told) + (f" and {more} more" if more else "")
        return {
            "kind": "event",
            "t": t_unix_s,
            "name": NOTE,
            "text": f"left out, as this version does not know it: {text}; a newer greentrain-torch shows it",
        }

    def _count(self, name: str) -> None:
        self._names[name] = self._names.get(name, 0) + 1
