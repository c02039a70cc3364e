"""One append-only file of JSON lines a rank, the part of a run that survives crashes: its writer and its only reader.

A line is complete or it does not count: a torn last line (power cut, SIGKILL in a write) is closed with a
newline before the next process appends, and skipped by the reader. While the disk is full or gone, lines wait
in memory, bounded, and are written when it comes back.

A run folder may come from anybody. So the files of a run are only read where they are regular files, as a named pipe
or a device may never end, and line by line in pieces of bounded size; a line that is no JSON record counts nothing.

Keys and kinds of record are only ever added within a version of the format, so a reader that does not know one leaves
it out and says so once. ``FORMAT_VERSION`` rises when leaving something out would make a figure wrong; then nothing is
read. docs/run-format.md says what every record holds.
"""

import contextlib
import errno
import itertools
import json
import math
import os
import stat
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

from greentrain.errors import NewerFormatError, RunFolderError
from greentrain.types import (
    FORMAT_VERSION,
    CarbonBasis,
    CarbonKind,
    CarbonPoint,
    DeviceEnergy,
    GearUse,
    LedgerEntry,
    PricePoint,
    Provenance,
    PueSource,
)
from greentrain.utils.background import BackgroundWork
from greentrain.utils.never_raise import once, warn

_BINARY: Final = getattr(os, "O_BINARY", 0)
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0) | _BINARY
WAITING_LINES = 4096
"""Lines kept in memory while the disk refuses them: about 11 hours of 10 s intervals."""
_LINES_AT_ONCE: Final = 256
_STEP_GROUPS: Final = b',"step_groups":'
LONGEST_LINE_BYTES: Final = 1 << 22
"""More is read of no line at once; an entry of 20 devices, 100 phases and 64 step groups has 0.1 MB."""
_LARGEST_FILE_BYTES: Final = 1 << 23
"""More is read of no run.json, which has some kB: a plan's tables, and 0.2 kB for each layer of the model. So much JSON
becomes 0.2 GB of lists in lists at worst."""
_BLOCK_BYTES: Final = 1 << 16


def rank_path(folder: Path, rank: int) -> Path:
    """Return the journal of a rank in a run folder."""
    return folder / f"rank-{rank:05d}.jsonl"


class Journal:
    """Appends JSON lines to one file, from a thread of its own, and never raises after it is open.

    Appending only queues: whoever appends neither writes nor waits, whatever the disk does. The file is locked, where
    its system can: ``alone`` is False where another process appends to it, whose lines this one would double. If it is
    deleted while the folder of all runs is there, it is brought back as it was.

    Args:
        path: The file; its folder is created when missing.
        fsync_s: Force the lines to the device this often (s), so that a power cut loses little more than a crash.
        beside: Function that the thread calls as well, after each time it looked for lines; for other files of the run.

    Raises:
        RunFolderError: The folder or file cannot be created or written.
    """

    def __init__(self, path: Path, *, fsync_s: float = 10.0, beside: Callable[[], None] = lambda: None) -> None:
        self.path = path
        self.lost_lines = 0
        """Lines that were given up, as too many waited."""
        self.brought_back = 0
        """Times that the file was deleted and brought back."""
        self._beside = beside
        self._given_up = itertools.count(1)
        self._told = 0
        self._waiting: deque[tuple[bytes, bytes]] = deque()
        self._taken: deque[bytes] = deque()
        """Lines with their number, of the writer alone."""
        self._ending = self._closed = self._unsynced = self._refused = False
        self._warn = once(warn)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_fifo() or path.is_socket():  # a pipe that nobody empties would hold the training up
                raise RunFolderError(f"{path} is no regular file: move it out of the run's folder")
            self._fd = os.open(path, _FLAGS, 0o644)
        except OSError as error:
            raise RunFolderError(
                f"cannot write the run file {path}: {error.strerror}. Make the folder writable or set run.dir to one"
                " that is"
            ) from error
        self._writer = BackgroundWork("greentrain-journal", self._write, fsync_s)
        # In a thread beside it, as a device that hangs in fsync still takes lines.
        self._syncer = BackgroundWork("greentrain-fsync", self._sync, fsync_s)
        if hasattr(os, "register_at_fork"):  # a worker that outlives the training would keep the file locked
            forget = weakref.WeakMethod(self._forget)
            os.register_at_fork(after_in_child=lambda: (call := forget()) and call())
        try:
            self.alone = _locked(self._fd)
            self._torn, self._number = self._end()
            self._writer.start()
            self._syncer.start()
        except BaseException:  # Ctrl-C, or no thread is left: nothing holds the file that nobody writes to
            self._writer.stop(0.0)
            self._syncer.stop(0.0)
            self._forget()
            raise

    @property
    def unwritten(self) -> int:
        """Lines that wait to be written."""
        return len(self._waiting) + len(self._taken)

    def append(self, record: Mapping[str, Any]) -> None:
        """Queue one record as one line, which gets a number ``n``; also from a signal handler.

        Raises:
            ValueError: It holds a figure that is not finite; nothing is queued.
        """
        facts = {key: value for key, value in record.items() if key not in ("kind", "n")}
        kind = json.dumps({"kind": record["kind"]}, separators=(",", ":"))[:-1].encode()
        self._waiting.append((kind, json.dumps(facts, separators=(",", ":"), allow_nan=False)[1:].encode() + b"\n"))
        if len(self._waiting) > WAITING_LINES:
            with contextlib.suppress(IndexError):
                self._waiting.popleft()
                self.lost_lines = next(self._given_up)
        self._writer.ask()

    def flush(self, wait_s: float = 1.0) -> bool:
        """Try to write every line that waits; return True if none of them is left, but perhaps later ones.

        Args:
            wait_s: Longest time to wait (s); 0 only asks.
        """
        ended = self._writer.ask(wait_s)
        return not self.unwritten or (ended and not self._refused)

    def close(self, wait_s: float = 1.0) -> bool:
        """Write what waits and close the file; return True if all of it is written. Idempotent.

        Args:
            wait_s: Longest time to wait for the disk (s); what it does not take by then is still tried.
        """
        end_s = time.monotonic() + wait_s
        self._ending = True
        if self._writer.stop(wait_s):
            self._syncer.stop(max(end_s - time.monotonic(), 0.0))
        return not self.unwritten

    def _write(self) -> None:
        self._refused = self._fd < 0
        if self._refused:
            return
        ending = self._ending  # looked at before the lines, as the last one was queued before
        try:
            if self.unwritten and os.fstat(self._fd).st_nlink == 0:
                self._bring_back()
            while self._take():
                data = (b"\n" if self._torn else b"") + b"".join(self._taken)
                left = os.write(self._fd, data) - self._torn
                self._unsynced = True
                while self._taken and left >= len(self._taken[0]) - 1:  # where only its end is missing, it is there
                    left -= len(self._taken.popleft())
                self._torn = left != 0
                if self._taken:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self._refused = True
            self._warn(f"{self.path} cannot be written ({error.strerror}); up to {WAITING_LINES} lines wait in memory")
        self._beside()
        if ending:
            self._closed = self._refused = True
            self._syncer.stop(0.0)

    def _take(self) -> bool:
        """Number the lines to be written next; False where there are none."""
        if not self._taken and self.lost_lines > self._told:
            lost, self._told = self.lost_lines - self._told, self.lost_lines
            text = (
                f"{lost} lines of {self.path} were given up, as it was not written in time: what they book is missing"
            )
            self._warn(text)
            event = {"t": time.time(), "name": "warning", "text": text, "lines": lost}
            self._waiting.appendleft((b'{"kind":"event"', json.dumps(event)[1:].encode() + b"\n"))
        while self._waiting and len(self._taken) < _LINES_AT_ONCE:
            kind, facts = self._waiting.popleft()
            self._number += 1
            self._taken.append(b'%s,"n":%d%s%s' % (kind, self._number, b"" if facts == b"}\n" else b",", facts))
        return bool(self._taken)

    def _bring_back(self) -> None:
        """Write the file anew from what is left of it: it was deleted, and lives while it is open."""
        try:
            self.path.parent.mkdir(exist_ok=True)
            fd = os.open(self.path, _FLAGS | os.O_EXCL, 0o644)
        except OSError as error:
            self._warn(f"{self.path} was deleted and cannot be brought back ({error.strerror}): its books end there")
            return
        try:
            _locked(fd)
            os.lseek(self._fd, 0, os.SEEK_SET)
            while block := os.read(self._fd, _BLOCK_BYTES):
                if os.write(fd, block) < len(block):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.dup2(fd, self._fd, inheritable=False)
        except OSError:
            self.path.unlink()
            raise
        finally:
            os.close(fd)
        self.brought_back += 1
        self._warn(f"{self.path} was deleted while it was written, and was brought back")

    def _sync(self) -> None:
        if self._unsynced:
            self._unsynced = False
            with contextlib.suppress(OSError, ValueError):  # the latter: it is closed already
                os.fsync(self._fd)
        if self._closed:
            self._forget()

    def _forget(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def _end(self) -> tuple[bool, int]:
        """Return whether the file ends in a torn line, and the number of its last line."""
        size = os.fstat(self._fd).st_size
        if size == 0:
            return False, 0
        os.lseek(self._fd, size - 1, os.SEEK_SET)
        torn = os.read(self._fd, 1) != b"\n"
        records = (parse_line(line, short=True) for line in lines_from_the_end(self.path))
        return torn, next((n for record in records if record and isinstance(n := record.get("n"), int)), 0)


def _locked(fd: int) -> bool:
    """Lock a file for as long as it is open; False where another process, or session, has it locked."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # this file system has no locks
        pass
    return True


class LineNumbers:
    """Tells which records of a journal stand in it a second time, as a write of theirs was half a success."""

    def __init__(self) -> None:
        self._last = 0

    def is_new(self, record: Mapping[str, Any]) -> bool:
        """Take in the next record; False where it was there already. Versions that did not number wrote each once."""
        number = record.get("n")
        if isinstance(number, int):
            if number == self._last or (number < self._last and record["kind"] != "open"):
                return False
            self._last = number
        return True


def open_regular(path: Path) -> BinaryIO:
    """Open a file of a run for reading.

    Args:
        path: The file, or a link to it.

    Raises:
        RunFolderError: It is a pipe, a socket, a device or a folder: reading it may never end.
        OSError: It is not there, or cannot be read.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise RunFolderError(f"{path} is no regular file")
    fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | _BINARY)
    if not stat.S_ISREG(os.fstat(fd).st_mode):  # it was exchanged meanwhile
        os.close(fd)
        raise RunFolderError(f"{path} is no regular file")
    return open(fd, "rb", buffering=_BLOCK_BYTES)


def lines_of(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file with their ends; one that is longer than any record comes in pieces, which are none.

    Args:
        path: The file.

    Raises:
        RunFolderError: It is no regular file.
        OSError: It cannot be read.
    """
    with open_regular(path) as file:
        yield from iter(lambda: file.readline(LONGEST_LINE_BYTES), b"")


def lines_from_the_end(path: Path) -> Iterator[bytes]:
    """Yield the last lines of a file, the last one first, without their ends; no more is read than is asked for.

    Args:
        path: The file; of its lines those in its last ``LONGEST_LINE_BYTES`` are yielded.

    Raises:
        RunFolderError: It is no regular file.
        OSError: It is not there, or cannot be read.
    """
    with open_regular(path) as file:
        at = file.seek(0, os.SEEK_END)
        least, begun = max(0, at - LONGEST_LINE_BYTES), b""
        while at > least:
            size = min(_BLOCK_BYTES, at - least)
            at = file.seek(at - size)
            begun, *lines = (file.read(size) + begun).split(b"\n")
            yield from filter(None, reversed(lines))
        if at == 0 and begun:
            yield begun


def last_record(path: Path, *kinds: str) -> dict[str, Any] | None:
    """Return the record in the last line of a journal; None where that line is torn, or nothing can be read.

    Args:
        path: The journal.
        kinds: The last complete record of these is returned, whatever stands after it.
    """
    try:
        records = (parse_line(line, short=True) for line in lines_from_the_end(path))
        return next((one for one in records if not kinds or (one is not None and one.get("kind") in kinds)), None)
    except (OSError, RunFolderError):
        return None


def parse_line(line: bytes, *, short: bool = False) -> dict[str, Any] | None:
    """Return the record of a line; None where the line is torn, or holds none.

    Args:
        line: The line, with or without its newline.
        short: True leaves out an entry's step groups unread; they stand last in its line, and are most of it.
    """
    cut = line.rfind(_STEP_GROUPS) if short and line.endswith((b"]}\n", b"]}")) else -1
    texts = (line,) if cut < 0 else (line[:cut] + b',"step_groups":[]}', line)
    for text in texts:
        try:
            record = json.loads(text.decode())
        except (ValueError, RecursionError):
            continue
        return record if isinstance(record, dict) and "kind" in record else None
    return None


def read_journal(path: Path, *, short: bool = False) -> Iterator[dict[str, Any]]:
    """Yield the complete records of a journal, skipping torn lines.

    Args:
        path: The journal.
        short: True leaves out the step groups of entries.

    Raises:
        RunFolderError: The file cannot be read, or is no regular file.
    """
    try:
        numbers = LineNumbers()
        for line in lines_of(path):
            record = parse_line(line, short=short)
            if record is not None and numbers.is_new(record):
                yield record
    except OSError as error:
        raise RunFolderError(f"cannot read the run file {path}: {error.strerror}") from error


class JournalTail:
    """Reads the complete lines that were appended to one file since the last time.

    A line counts when its newline is there; one that a dead process left torn is closed by the next one, and skipped.
    The file is opened anew each time, so that what another machine has appended to a shared folder is seen.

    Args:
        path: The file; it may not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.behind = True
        """True until a reading has reached the end of the file."""
        self._at = 0
        """Where the first line begins that is not read yet."""
        self._looked = 0
        """Up to where it is known to have no end: a line that never ends is not searched again at each reading."""
        self._numbers = LineNumbers()

    def read(self, most_bytes: float = math.inf) -> Iterator[dict[str, Any]]:
        """Yield the new records; entries get no step groups, which are most of a line.

        Args:
            most_bytes: About where this reading stops; the next one goes on from there.

        Raises:
            RunFolderError: It is no regular file.
            OSError: The file is there and cannot be read.
        """
        try:
            file = open_regular(self.path)
        except FileNotFoundError:
            return
        with file:
            start, most_of_line = file.seek(self._looked), LONGEST_LINE_BYTES + self._at
            while self._looked - start < most_bytes:
                line = file.readline(most_of_line - self._looked)
                self._looked += len(line)
                if not line.endswith(b"\n") and self._looked < most_of_line:  # it is being written, or there is none
                    self.behind = False
                    break
                if len(line) < self._looked - self._at:  # it had begun when the file was read before
                    file.seek(self._at)
                    line = file.read(self._looked - self._at)
                self._at, most_of_line = self._looked, self._looked + LONGEST_LINE_BYTES
                record = parse_line(line, short=True)
                if record is not None and self._numbers.is_new(record):
                    yield record


RUN_JSON: Final = "run.json"


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file of a run, such as run.json.

    Args:
        path: The file.

    Raises:
        RunFolderError: It is no regular file, too large, no JSON, or JSON of another type.
        OSError: It is not there, or cannot be read.
    """
    return object_of(lines_of(path), path)


def object_of(lines: Iterable[bytes], path: Path) -> dict[str, Any]:
    """Return the JSON object in the lines of a file; of a larger one than any run has, no more than that is read.

    Args:
        lines: The lines.
        path: The file that they are from, for the message.

    Raises:
        RunFolderError: It is too large, no JSON, or JSON of another type.
    """
    text = bytearray()
    for line in lines:
        text += line
        if len(text) > _LARGEST_FILE_BYTES:
            raise RunFolderError(f"{path} has more than {_LARGEST_FILE_BYTES} bytes: it was damaged, or is of no run")
    try:
        found = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise RunFolderError(f"{path} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise RunFolderError(f"{path} holds a {type(found).__name__}, not an object with the facts of a run")
    return found


ATTRIBUTION: Final = "attribution"
"""Name of the event that says how phases are told apart on a device whose counter ticks."""
SHARED: Final = "shared"
"""Name of the event that says, of a device whose counter does not tick slowly, how much of each phase lies in readings
with other phases. The last one of a device holds; without one, all of it does."""
CLOCKS: Final = "clocks"
"""Name of the event that says by whose times a device's joules are cut in each phase: ``device``, ``host`` or
``mixed``. The last one of a device holds; without one, it is the host's."""
NOTE: Final = "note"
"""Name of the event that a reader adds where it left something out."""
_WRITTEN: Final = {
    "open": "format run_id rank world_size local_rank local_world_size host pid t sensors carried excluded pue_error",
    "sensors": "sensors excluded",
    "entry": "t0 t1 steps tokens samples devices phase_s phase_incl_j carbon pue pue_from op_g emb_g price cost gears"
    " refs sum"
    " step_groups",
    "close": "t reason totals",
}
_INSIDE: Final = {"entry": {"weight"}}  # of greentrain.ledger.reader, in memory only
KINDS: Final[Mapping[str, frozenset[str] | None]] = {
    **{kind: frozenset({"kind", "n", *names.split()}) for kind, names in _WRITTEN.items()},
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


class UnknownRecords:
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
        if kind == "event" and not is_event(record):
            self._count("events without a time or a name")
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


GEAR_KEYS: Final = {
    "j": "energy_j", "model_j": "modelled_j", "missing_s": "missing_s", "dev_s": "device_s", "s": "seconds",
    "steps": "steps", "tokens": "tokens", "samples": "samples", "shared_s": "shared_s",
}  # fmt: skip
"""Keys of a gear in an entry's record, and its fields."""
UNTOLD: Final = {"shared_s": 0.0}
"""Those that entries of earlier versions do not have."""


STATE_KEYS: Final = {
    "util_s": "seconds whose utilisation is known", "sm_s": "of them, those in which a kernel ran",
    "memory_s": "those in which memory was read or written", "whole_s": "those in a sample period all of this phase",
    "temp_s": "seconds whose temperature is known", "c_s": "degrees Celsius times seconds", "max_c": "highest of them",
    "clocks_s": "seconds of which it is known what holds the clocks down", "thermal_s": "of them, by heat",
    "power_s": "by the power limit", "brake_s": "by an external signal",
}  # fmt: skip
"""Keys of what a driver tells of a device in a phase; those that are 0 are left out."""


def add_states(sums: dict[str, dict[str, float]], more: Mapping[str, Mapping[str, float]]) -> None:
    """Add to what a driver has told of a device, by phase.

    Args:
        sums: By phase, sums with ``STATE_KEYS``.
        more: The same of other time.
    """
    for phase, values in more.items():
        into = sums.setdefault(phase, {})
        for key, value in values.items():
            into[key] = max(into.get(key, value), value) if key == "max_c" else into.get(key, 0.0) + value


_PLAIN: Final = {
    "steps": "steps", "tokens": "tokens", "samples": "samples", "phase_incl_j": "phase_inclusive_j", "pue": "pue",
    "op_g": "operational_g", "emb_g": "embodied_g",
}  # fmt: skip
"""Keys of an entry's record, and the fields that they hold as they are."""
_CARBON: Final = ("g_per_kwh", "zone", "kind", "basis", "accounting", "source")
_PRICE: Final = ("per_kwh", "currency", "source", "kind")


def _as_text(found: object, names: Iterable[str]) -> dict[str, Any]:
    """Return fields by name, words of an enumeration as plain text."""
    values = ((name, getattr(found, name)) for name in names)
    return {name: str(value) if isinstance(value, str) else value for name, value in values}


def entry_to_json(entry: LedgerEntry, *, exact: bool = False) -> dict[str, Any]:
    """Return the journal record of an entry (kind ``entry``; short keys, it is written for years).

    Args:
        entry: The entry.
        exact: True leaves times as they are, to be summed; in a journal they have six decimals.
    """

    def rounded(values: Mapping[str, float], digits: int = 6) -> dict[str, float]:
        return dict(values) if exact else {key: round(value, digits) for key, value in values.items()}

    record: dict[str, Any] = {
        "kind": "entry",
        **rounded({"t0": entry.t0_unix_s, "t1": entry.t1_unix_s}),
        **{key: getattr(entry, name) for key, name in _PLAIN.items()},
        "devices": {
            uid: {
                "j": d.energy_j,
                "prov": str(d.provenance),
                **rounded({"missing_s": d.missing_s}),
                "phases": dict(d.phases),
                **({"states": {phase: rounded(sums, 3) for phase, sums in d.states.items()}} if d.states else {}),
            }
            for uid, d in entry.devices.items()
        },
        "phase_s": rounded(entry.phase_s),
        "carbon": _as_text(entry.carbon, _CARBON),
    }
    if entry.carbon.relative_error is not None:
        record["carbon"]["error"] = entry.carbon.relative_error
    if entry.price is not None:
        record |= {"price": _as_text(entry.price, _PRICE), "cost": entry.cost}
    if entry.pue_source is not PueSource.CONSTANT:
        record["pue_from"] = str(entry.pue_source)
    if entry.gears:
        record["gears"] = {
            name: rounded({key: getattr(use, item) for key, item in GEAR_KEYS.items()})
            for name, use in entry.gears.items()
        }
    if entry.references:
        record["refs"] = {uid: rounded(told) for uid, told in entry.references.items()}
    record["step_groups"] = [list(group) for group in entry.step_groups]
    return record


def entry_from_json(record: Mapping[str, Any]) -> LedgerEntry:
    """Read what ``entry_to_json`` wrote."""
    span: dict[str, Any] = {"t0_unix_s": record["t0"], "t1_unix_s": record["t1"]}
    told, price = record["carbon"], record.get("price")
    carbon = {name: told[name] for name in _CARBON}
    carbon |= {"kind": CarbonKind(told["kind"]), "basis": CarbonBasis(told["basis"])}
    if price is not None:
        price = {name: price[name] for name in _PRICE} | {"kind": CarbonKind(price["kind"])}
    return LedgerEntry(
        **span,
        **{name: record[key] for key, name in _PLAIN.items()},
        devices={
            uid: DeviceEnergy(
                energy_j=d["j"],
                provenance=Provenance(d["prov"]),
                missing_s=d["missing_s"],
                phases=d["phases"],
                states=d.get("states", {}),
            )
            for uid, d in record["devices"].items()
        },
        phase_s=record["phase_s"],
        carbon=CarbonPoint(**span, **carbon, relative_error=told.get("error")),
        step_groups=tuple((g[0], g[1], g[2], g[3]) for g in record["step_groups"]),
        gears={
            name: GearUse(**{item: (UNTOLD | use)[key] for key, item in GEAR_KEYS.items()})
            for name, use in record.get("gears", {}).items()
        },
        pue_source=PueSource(record.get("pue_from", PueSource.CONSTANT)),
        references=record.get("refs", {}),
        price=None if price is None else PricePoint(**span, **price),
    )


WRONG_DATA: Final = (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, IndexError)
"""What a record raises that makes no sense."""
_MOST: Final = 2.0**63
"""No joule, gram, second or count of an entry is so large; what is, or is no number, is damaged."""


LATEST_S: Final = 253_402_300_800.0
"""End of the year 9999, after which Python has no date (s since the epoch, UTC)."""


def is_event(record: Mapping[str, Any]) -> bool:
    """Return whether a record of kind ``event`` has a time in the calendar, a name, and no text that is none."""
    t_unix_s = record.get("t")
    known = isinstance(t_unix_s, int | float) and abs(t_unix_s) < LATEST_S
    return known and isinstance(record.get("name"), str) and isinstance(record.get("text", ""), str)


def check_entry(entry: Mapping[str, Any]) -> None:
    """Check an entry's record before any part of it is added up.

    Args:
        entry: A record of kind ``entry``.

    Raises:
        KeyError: A field is missing; so for each of ``WRONG_DATA``, which say what else is wrong with it.
    """
    carbon = entry["carbon"]
    price = entry.get("price") or {"per_kwh": None, "currency": "", "source": "", "kind": CarbonKind.ACTUAL}
    optional = carbon["g_per_kwh"], carbon.get("error"), entry["op_g"], entry["emb_g"], price["per_kwh"]
    figures = [figure for figure in (*optional, entry.get("cost")) if figure is not None]
    figures += entry["pue"], entry["t0"], entry["t1"], entry["steps"], entry["tokens"], entry["samples"]
    for device in entry["devices"].values():
        Provenance(device["prov"])
        figures += device["j"], device["missing_s"]
        figures += device["phases"].values()
        for told in device.get("states", {}).values():
            figures += told.values()
    figures += entry["phase_s"].values()
    figures += entry["phase_incl_j"].values()
    for use in entry.get("gears", {}).values():
        figures += map((UNTOLD | use).__getitem__, GEAR_KEYS)
    for told in entry.get("refs", {}).values():
        figures += told["j"], told["s"]
    for steps, t_unix_s, energy_j, tokens in entry["step_groups"]:
        figures += steps, t_unix_s, energy_j, tokens
    if not sum(map(abs, figures)) < _MOST:  # of NaN too; all at once, as a journal of weeks has a million of them
        raise ValueError("a figure of its ledger is not finite, or absurdly large")
    (
        CarbonKind(price["kind"]),
        CarbonKind(carbon["kind"]),
        CarbonBasis(carbon["basis"]),
        PueSource(entry.get("pue_from", PueSource.CONSTANT)),
    )
    if not all(isinstance(carbon[name], str) for name in ("zone", "accounting", "source")):
        raise TypeError("the source of its carbon intensity is no text")
    if not all(isinstance(price[name], str) for name in ("currency", "source")):
        raise TypeError("the currency or source of its price is no text")
