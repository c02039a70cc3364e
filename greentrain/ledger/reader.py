"""A run folder, read back: the journals of all ranks, reduced when read, so ranks never wait for one another.

``RankBooks`` takes in the records of one journal, whether it is read at once or grows, and has its sums. ``read_run``
keeps the entries as well. What the other ranks of a job have booked so far stands in the last lines of their journals:
rank 0 logs the figures of the whole job that way, with no collective, no message and nothing on the training thread.

A week of 10 s intervals is 60,480 lines a rank. A report draws 480 points, so neighbouring entries are added up while
their file is read: sums of joules, grams, seconds, steps and tokens stay exact; the time resolution and the energy of
single steps are given up. Entries are only merged with a direct neighbour that has the same devices, provenance, and
sources of carbon and PUE, so gaps, restarts and unknown intensities keep their edges. Intensity and PUE become means by
energy.
"""

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from greentrain.errors import RunFolderError
from greentrain.ledger.journal import (
    ATTRIBUTION,
    RUN_JSON,
    SHARED,
    WRONG_DATA,
    LineNumbers,
    UnknownRecords,
    add_states,
    check_entry,
    check_format,
    entry_from_json,
    is_event,
    last_record,
    lines_from_the_end,
    lines_of,
    parse_line,
    rank_path,
    read_journal,
    read_object,
)
from greentrain.ledger.totals import DeviceSums, EntrySums, Totals
from greentrain.types import FORMAT_VERSION, Attribution, LedgerEntry

_CARBON = ("zone", "kind", "basis", "accounting", "source", "error")


def _downsample(path: Path, most: int) -> Iterator[dict[str, Any]]:
    """Yield the records of a journal with at most about ``most`` entries (more only where they cannot be merged)."""
    size = -(-sum(1 for _ in lines_of(path)) // most)
    held: dict[str, Any] | None = None
    count = 0
    for record in read_journal(path, short=size > 1):
        if held is not None and count < size and _mergeable(held, record):
            _merge(held, record)
            count += 1
            continue
        if held is not None:
            yield _priced(held)
            held = None
        if record["kind"] == "entry" and size > 1:
            held, count = record, 1
            _weigh(held)
        else:
            yield record
    if held is not None:
        yield _priced(held)


def _mergeable(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    if b["kind"] != "entry" or abs(b["t0"] - a["t1"]) > 1e-3 or a.get("pue_from") != b.get("pue_from"):
        return False
    if (a["op_g"] is None) != (b["op_g"] is None) or (a["emb_g"] is None) != (b["emb_g"] is None):
        return False
    old, new = a["carbon"], b["carbon"]
    if (old["g_per_kwh"] is None) != (new["g_per_kwh"] is None) or any(old.get(key) != new.get(key) for key in _CARBON):
        return False
    if _price_of(a) != _price_of(b):
        return False
    devices = b["devices"]
    return a["devices"].keys() == devices.keys() and all(
        device["prov"] == devices[uid]["prov"] and (device["missing_s"] > 0) == (devices[uid]["missing_s"] > 0)
        for uid, device in a["devices"].items()
    )


def _price_of(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    price = entry.get("price") or {}
    return "price" in entry, price.get("per_kwh") is None, *(price.get(key) for key in ("currency", "source", "kind"))


def _weigh(entry: dict[str, Any]) -> None:
    """Turn the intensity into a sum that can be added up: g/kWh times joules."""
    joules = _joules(entry)
    entry["weight"] = joules
    if entry["carbon"]["g_per_kwh"] is not None:
        entry["carbon"]["g_per_kwh"] *= joules


def _priced(entry: dict[str, Any]) -> dict[str, Any]:
    """Turn the sum back into a mean."""
    weight = entry.pop("weight")
    if entry["carbon"]["g_per_kwh"] is not None:
        entry["carbon"]["g_per_kwh"] /= weight
    return entry


def _joules(entry: Mapping[str, Any]) -> float:
    """Return the energy that an intensity is weighted with (J); a trace of it where there is none."""
    joules = 1e-9
    for device in entry["devices"].values():
        joules += device["j"]
    return joules


def _merge(a: dict[str, Any], b: Mapping[str, Any]) -> None:
    a["t1"] = b["t1"]
    for key in ("steps", "tokens", "samples"):
        a[key] += b[key]
    for key in ("op_g", "emb_g"):
        if b[key] is not None:
            a[key] += b[key]
    joules = _joules(b)
    a["weight"] += joules
    if b["pue"] != a["pue"]:
        a["pue"] += (b["pue"] - a["pue"]) * joules / a["weight"]
    if b["carbon"]["g_per_kwh"] is not None:
        a["carbon"]["g_per_kwh"] += b["carbon"]["g_per_kwh"] * joules
    if b.get("cost") is not None:
        a["cost"] += b["cost"]
        a["price"]["per_kwh"] += (b["price"]["per_kwh"] - a["price"]["per_kwh"]) * joules / a["weight"]
    _add(a["phase_s"], b["phase_s"])
    _add(a["phase_incl_j"], b["phase_incl_j"])
    devices = b["devices"]
    for uid, device in a["devices"].items():
        other = devices[uid]
        device["j"] += other["j"]
        device["missing_s"] += other["missing_s"]
        _add(device["phases"], other["phases"])
        if "states" in other:
            add_states(device.setdefault("states", {}), other["states"])
    for uid, told in b.get("refs", {}).items():
        _add(a.setdefault("refs", {}).setdefault(uid, {}), told)
    for name, use in b.get("gears", {}).items():
        _add(a.setdefault("gears", {}).setdefault(name, {}), use)


def _add(a: dict[str, float], b: Mapping[str, float]) -> None:
    for key, value in b.items():
        if key in a:
            a[key] += value
        else:
            a[key] = value


Groups = Iterable[tuple[Any, Mapping[str, Any]]]
"""Parts of an entry, each with the key of the group that it belongs to."""


def _one_group(entry: Mapping[str, Any]) -> Groups:
    return ((None, entry),)


class RankBooks:
    """What the journal of one rank says, taken in record by record: its processes, its sensors, its sums, its end.

    Args:
        split: Function that divides an entry among groups summed apart, such as days and zones; by default one.
    """

    def __init__(self, split: Callable[[Mapping[str, Any]], Groups] = _one_group) -> None:
        self._split = split
        self.opens: list[Mapping[str, Any]] = []
        """One record a process that wrote here: the first start and every resume."""
        self.sensors: dict[str, Mapping[str, Any]] = {}
        """Latest sensor record by device uid."""
        self.told: dict[str, Mapping[str, Any]] = {}
        """Last ``attribution`` event by device uid, of those that make sense."""
        self.shared: dict[str, Mapping[str, float]] = {}
        """By device uid, the ``phases`` of its last ``shared`` event."""
        self.excluded: Sequence[Mapping[str, str]] = ()
        self.close: Mapping[str, Any] | None = None
        """Last record of a clean end after the last start."""
        self.carried = Totals()
        """Totals of earlier parts of the run whose journals are not in this folder."""
        self.groups: dict[Any, EntrySums] = {}
        """Sums over the entries by group."""
        self._rates: dict[str, float] = {}

    @property
    def sums(self) -> EntrySums:
        """Sums over all entries."""
        if len(self.groups) == 1:
            return next(iter(self.groups.values()))
        out = EntrySums()
        for sums in self.groups.values():
            out.merge(sums)
        return out

    def add(self, record: Mapping[str, Any]) -> None:
        """Take in one record; what is damaged counts nothing, and of a kind not known here nothing is known.

        Args:
            record: The record as the journal has it.

        Raises:
            KeyError: A field is missing; so for each of ``WRONG_DATA``, which say what else is wrong with it.
        """
        kind = record["kind"]
        if kind == "entry":
            check_entry(record)
            for key, part in self._split(record):
                sums = self.groups.get(key)
                if sums is None:
                    sums = self.groups[key] = EntrySums()
                sums.add(part, self._rates)
        elif kind in ("open", "sensors"):
            for sensor in record["sensors"]:
                self.sensors[str(sensor["uid"])] = sensor
                if rate := sensor.get("embodied_g_per_h"):
                    self._rates[sensor["uid"]] = float(rate["mid"])
            self.excluded = record.get("excluded", ())
            if kind == "open":
                self.opens.append(record)
                self.close = None
                if record.get("carried"):
                    self.carried = self.carried + Totals.from_dict(record["carried"])
        elif kind == "close":
            self.close = record
        elif kind == "event" and record.get("name") == SHARED:
            with contextlib.suppress(*WRONG_DATA):
                if all(0 <= share <= 1 for share in record["phases"].values()):
                    self.shared[str(record["device"])] = record["phases"]
        elif kind == "event" and record.get("name") == ATTRIBUTION:
            with contextlib.suppress(*WRONG_DATA):
                figures = [record["tick_s"], record["sees_s"], record["late_s"]]
                for phase in record["phases"].values():
                    figures += phase["error"], phase["w"]
                    _ = Attribution(phase["how"])
                if all(map(math.isfinite, figures)) and record["tick_s"] > 0:
                    self.told[record["device"]] = {"text": "", **record}


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRecord:
    """The journal of one rank, read back."""

    rank: int
    host: str
    opens: Sequence[Mapping[str, Any]]
    """One record a process that wrote here: the first start and every resume."""
    sensors: Mapping[str, Mapping[str, Any]]
    """Latest sensor record by device uid, with embodied rates (``embodied_g_per_h``: low, mid, high, source)."""
    excluded: Sequence[Mapping[str, str]]
    """Devices of the node that another run books: uid, name and reason."""
    entries: Sequence[LedgerEntry]
    events: Sequence[Mapping[str, Any]]
    """Gaps, warnings, checkpoints, resumes: records with ``t`` (unix s), ``name`` and ``text``."""
    close: Mapping[str, Any] | None
    """Last record of a clean end after the last start; None: the process was killed."""
    carried: Totals
    """Totals of earlier parts of the run whose journals are not in this folder."""
    sums: EntrySums = field(default_factory=EntrySums)
    """Sums over the entries."""
    told: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Last ``attribution`` event by device uid, of those that make sense."""
    shared: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By device uid, the ``phases`` of its last ``shared`` event."""

    @property
    def totals(self) -> Totals:
        """Totals of this rank over all its processes."""
        return self.carried + self.sums.totals()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A run folder, read back."""

    folder: Path
    run: Mapping[str, Any]
    """run.json; empty when rank 0 never wrote it."""
    ranks: Sequence[RankRecord]

    @property
    def run_id(self) -> str:
        """The run's id."""
        return str(self.run.get("run_id") or self.folder.name)

    @property
    def totals(self) -> Totals:
        """Totals over all ranks. ``steps`` are those of the rank with most, not a sum over ranks."""
        return Totals.of_job([rank.totals for rank in self.ranks])

    @property
    def sensors(self) -> Mapping[tuple[str, str], Mapping[str, Any]]:
        """Latest sensor record by host and device uid."""
        return {(rank.host, uid): sensor for rank in self.ranks for uid, sensor in rank.sensors.items()}

    @property
    def sums(self) -> EntrySums:
        """Sums over the entries of all ranks; devices by host and uid, those without an entry too."""
        out = EntrySums()
        for rank in self.ranks:
            for uid in rank.sensors:
                out.devices.setdefault((rank.host, uid), DeviceSums())
            out.merge(rank.sums, rank.host)
        out.gaps.sort(key=lambda gap: float(gap["start_unix_s"]))
        return out

    @property
    def wall_s(self) -> float:
        """Wall time booked by the rank with most of it (s)."""
        return max((rank.totals.duration_s for rank in self.ranks), default=0.0)


def read_run(folder: Path | str, *, most: int | None = None) -> RunRecord:
    """Read a run folder.

    Args:
        folder: The run's folder.
        most: Merge neighbouring entries to about so many a rank (``greentrain.ledger.reader``): sums stay exact,
            memory stays bounded. None keeps every entry.

    Raises:
        RunFolderError: The folder does not exist, holds no rank file, holds rank files of another run, or a record
            in it is damaged.
        NewerFormatError: A newer GreenTrain wrote it.
    """
    folder = Path(folder)
    run = read_run_json(folder)
    ranks: dict[Path, RankRecord] = {}

    def read(path: Path) -> RankBooks:
        books, entries, events, unknown = RankBooks(), [], [], UnknownRecords()
        for record in _checked(read_journal(path) if most is None else _downsample(path, most), path):
            unknown.look(record)
            books.add(record)
            if record["kind"] == "entry":
                entries.append(entry_from_json(record))
            elif record["kind"] == "event" and is_event(record):
                events.append({"text": "", **record})
        if books.opens:
            note = unknown.note(books.opens[0].get("t", 0.0))
            ranks[path] = RankRecord(
                rank=books.opens[0]["rank"],
                host=books.opens[0]["host"],
                opens=books.opens,
                sensors=books.sensors,
                told=books.told,
                shared=books.shared,
                excluded=books.excluded,
                entries=entries,
                events=events if note is None else [*events, note],
                close=books.close,
                carried=books.carried,
                sums=books.sums,
            )
        return books

    read_ranks(folder, run, read)
    return RunRecord(folder=folder, run=run, ranks=list(ranks.values()))


def read_run_json(folder: Path) -> Mapping[str, Any]:
    """Return what run.json says; nothing where rank 0 never wrote it.

    Args:
        folder: The run's folder.

    Raises:
        RunFolderError: It cannot be read, is no regular file, or holds something else than a JSON object.
        NewerFormatError: A newer GreenTrain wrote it.
    """
    path = folder / RUN_JSON
    try:
        run = read_object(path)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise RunFolderError(f"cannot read {path}: {error.strerror}") from error
    check_format(run.get("format", FORMAT_VERSION), path)
    return run


def read_ranks(folder: Path, run: Mapping[str, Any], read: Callable[[Path], RankBooks]) -> dict[int, RankBooks]:
    """Read the journals of a run and check that they are its.

    Args:
        folder: The run's folder.
        run: Content of run.json.
        read: Function that reads one journal, and may raise what is in ``WRONG_DATA``.

    Returns:
        Books by rank, of the ranks that have begun.

    Raises:
        RunFolderError: The folder does not exist, holds no rank file, holds rank files of another run, or a record
            in it is damaged.
        NewerFormatError: A newer GreenTrain wrote it.
    """
    paths = sorted(folder.glob("rank-*.jsonl"))
    if not paths:
        what = "has no rank-*.jsonl file" if folder.is_dir() else "does not exist"
        within = sorted({path.parent.name for path in folder.glob("*/rank-*.jsonl")})
        example = folder / within[-1] if within else "runs/RUN_ID"
        raise RunFolderError(f"{folder} {what}; give the folder of one run, for example {example}")
    ranks: dict[int, RankBooks] = {}
    for path in paths:
        try:
            books = read(path)
            rank = books.opens[0]["rank"] if books.opens else None
            if rank in ranks:
                raise RunFolderError(f"{folder} has two files of rank {rank}; move {path.name} out of the folder")
            expected = (
                run.get("run_id") or next(iter([*ranks.values(), books])).opens[0]["run_id"] if books.opens else None
            )
            for opened in books.opens:
                if opened["run_id"] != expected:
                    raise RunFolderError(
                        f"{folder}: the file of rank {rank} belongs to run {opened['run_id']!r}, the folder to"
                        f" {expected!r}; move it to its own folder"
                    )
        except OSError as error:
            raise RunFolderError(f"cannot read the run file {path}: {error.strerror}") from error
        except WRONG_DATA as error:
            raise RunFolderError(
                f"{path} holds a record that cannot be read ({error!r}): it was damaged, or changed by hand; bring the"
                " file back, or move it away to read the other ranks"
            ) from error
        if rank is not None:
            ranks[rank] = books
    if not ranks:
        raise RunFolderError(f"{folder}: no rank file has a complete line; the run died before it booked anything")
    return ranks


def read_books(path: Path, books: RankBooks, lines: Callable[[Path], Iterable[bytes]] = lines_of) -> RankBooks:
    """Take in a journal, entry by entry, and return the books.

    Args:
        path: The journal.
        books: The books that take it in.
        lines: Function that opens the journal and yields its lines.

    Raises:
        RunFolderError: It is no regular file, or of no version.
        NewerFormatError: A newer GreenTrain wrote it.
        KeyError: A record is damaged; so for each of ``WRONG_DATA``.
        OSError: It cannot be read.
    """
    numbers = LineNumbers()
    records = (parse_line(line, short=True) for line in lines(path))  # step groups are in no sum
    for record in _checked((record for record in records if record is not None and numbers.is_new(record)), path):
        books.add(record)
    return books


def _checked(records: Iterable[dict[str, Any]], path: Path) -> Iterator[dict[str, Any]]:
    for record in records:
        if record["kind"] == "open":
            check_format(record.get("format"), path)
        yield record


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherRanksTotals:
    """Sums over ranks."""

    ranks: int = 0
    """Ranks counted."""
    energy_j: float = 0.0
    emissions_g: float = 0.0
    unpriced_j: float = 0.0
    power_w: float = 0.0
    """Mean power of each rank's last ledger interval (W)."""
    tokens: int = 0
    samples: int = 0

    def __add__(self, other: "OtherRanksTotals") -> "OtherRanksTotals":
        return OtherRanksTotals(**{name: getattr(self, name) + getattr(other, name) for name in _OF_OTHERS})


_OF_OTHERS: Final = tuple(item.name for item in fields(OtherRanksTotals))


def sums_of_others(folder: Path, rank: int, world_size: int) -> OtherRanksTotals:
    """Return the sums of all ranks but one as of their last bookings, from the last lines of their journals.

    Never raises. Ranks whose journals are not visible here (another node without a shared folder) are not counted, and
    the count says so. Ranks beyond ``world_size`` are of an earlier attempt that was wider: what they used counts, they
    draw nothing now.

    Args:
        folder: The run's folder.
        rank: The rank that asks.
        world_size: Ranks of the job now.
    """
    out = OtherRanksTotals()
    other = 0
    while other < world_size or os.path.lexists(rank_path(folder, other)):
        sums = None if other == rank else _last_sums(rank_path(folder, other))
        if sums is not None:
            out = out + (sums if other < world_size else replace(sums, ranks=0, power_w=0.0))
        other += 1
    return out


def _last_sums(path: Path) -> OtherRanksTotals | None:
    """Return what the last complete entry of a journal says; None where there is none that makes sense."""
    try:
        for line in lines_from_the_end(path):
            record = parse_line(line, short=True) if line.startswith(b'{"kind":"entry"') else None
            if record is not None:
                check_entry(record)
                sums = {name: value for name, value in record["sum"].items() if name in _OF_OTHERS}  # later ones add
                if not all(abs(value) < float("inf") for value in sums.values()):
                    return None
                energy_j = sum(device["j"] for device in record["devices"].values())
                power_w = energy_j / max(record["t1"] - record["t0"], 1e-9)
                return OtherRanksTotals(**sums | {"ranks": 1, "power_w": power_w})
    except (OSError, RunFolderError, *WRONG_DATA):
        pass
    return None


def wait_for_ranks(folder: Path, world_size: int, timeout_s: float) -> bool:
    """Wait until every rank has written its closing line, so that a report holds all of them.

    Args:
        folder: The run's folder.
        world_size: Ranks of the job.
        timeout_s: Longest time to wait (s).

    Returns:
        True if all of them have; False where the time is over.
    """
    deadline_s = time.monotonic() + timeout_s
    open_ranks = set(range(world_size))
    while time.monotonic() < deadline_s:
        open_ranks -= {r for r in open_ranks if (last_record(rank_path(folder, r)) or {}).get("kind") == "close"}
        if not open_ranks:
            return True
        time.sleep(0.05)
    return False
