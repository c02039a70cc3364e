"""A run folder, read back: the journals of all ranks, reduced when read, so ranks never wait for one another.

Reading long journals in bounded memory: neighbouring entries are added up while the file is read.

A week of 10 s intervals is 60,480 lines a rank. A report draws 480 points, so it reads a journal with ``thin``:
sums of joules, grams, seconds, steps and tokens stay exact; the time resolution and the energy of single steps
are given up. Entries are only merged with a direct neighbour that has the same devices, provenance, and sources of
carbon and PUE, so gaps, restarts and unknown intensities keep their edges. Intensity and PUE become means by energy.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from greentrain.errors import RunFolderError
from greentrain.ledger.entry import entry_from_json
from greentrain.ledger.journal import Unknown, check_format, parse_line, read_journal
from greentrain.ledger.totals import Totals
from greentrain.types import FORMAT_VERSION, LedgerEntry

_CARBON = ("zone", "kind", "basis", "accounting", "source")


def downsample(path: Path, most: int) -> Iterator[dict[str, Any]]:
    """Yield the records of a journal with at most about ``most`` entries (more only where they cannot be merged).

    Args:
        path: The journal.
        most: Entries wanted; a shorter journal is not changed.

    Raises:
        RunFolderError: The file cannot be read.
    """
    try:
        with path.open("rb") as file:
            lines = sum(1 for _ in file)
            file.seek(0)
            size = -(-lines // most)
            held: dict[str, Any] | None = None
            count = 0
            for line in file:
                record = parse_line(line, short=size > 1)
                if record is None:
                    continue
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
    except OSError as error:
        raise RunFolderError(f"cannot read the run file {path}: {error.strerror}") from error


def _mergeable(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    if b["kind"] != "entry" or abs(b["t0"] - a["t1"]) > 1e-3 or a.get("pue_from") != b.get("pue_from"):
        return False
    if (a["op_g"] is None) != (b["op_g"] is None) or (a["emb_g"] is None) != (b["emb_g"] is None):
        return False
    old, new = a["carbon"], b["carbon"]
    if (old["g_per_kwh"] is None) != (new["g_per_kwh"] is None) or any(old[key] != new[key] for key in _CARBON):
        return False
    devices = b["devices"]
    return a["devices"].keys() == devices.keys() and all(
        device["prov"] == devices[uid]["prov"] and (device["missing_s"] > 0) == (devices[uid]["missing_s"] > 0)
        for uid, device in a["devices"].items()
    )


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
    _add(a["phase_s"], b["phase_s"])
    _add(a["phase_incl_j"], b["phase_incl_j"])
    devices = b["devices"]
    for uid, device in a["devices"].items():
        other = devices[uid]
        device["j"] += other["j"]
        device["missing_s"] += other["missing_s"]
        _add(device["phases"], other["phases"])
    for name, use in b.get("gears", {}).items():
        _add(a.setdefault("gears", {}).setdefault(name, {}), use)


def _add(a: dict[str, float], b: Mapping[str, float]) -> None:
    for key, value in b.items():
        if key in a:
            a[key] += value
        else:
            a[key] = value


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

    @property
    def totals(self) -> Totals:
        """Totals of this rank over all its processes."""
        out = self.carried
        for entry in self.entries:
            out = out.add(entry)
        return out


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
    paths = sorted(folder.glob("rank-*.jsonl"))
    if not paths:
        what = "has no rank-*.jsonl file" if folder.is_dir() else "does not exist"
        within = sorted({path.parent.name for path in folder.glob("*/rank-*.jsonl")})
        example = folder / within[-1] if within else "runs/RUN_ID"
        raise RunFolderError(f"{folder} {what}; give the folder of one run, for example {example}")
    run: Mapping[str, Any] = {}
    if (folder / "run.json").exists():
        try:
            run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RunFolderError(f"cannot read {folder / 'run.json'}: {error}") from error
        if not isinstance(run, Mapping):
            raise RunFolderError(f"{folder / 'run.json'} holds a {type(run).__name__}, not the facts of a run")
        check_format(run.get("format", FORMAT_VERSION), folder / "run.json")
    ranks = [_read_rank(path, most) for path in paths]
    record = RunRecord(folder=folder, run=run, ranks=[rank for rank in ranks if rank is not None])
    if not record.ranks:
        raise RunFolderError(f"{folder}: no rank file has a complete line; the run died before it booked anything")
    _check_same_run(record)
    return record


def _read_rank(path: Path, most: int | None) -> RankRecord | None:
    try:
        return _rank(path, most)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RunFolderError(
            f"{path} holds a record that cannot be read ({error!r}): it was damaged, or changed by hand; bring the file"
            " back, or move it away to read the other ranks"
        ) from error


def _rank(path: Path, most: int | None) -> RankRecord | None:
    opens: list[dict[str, Any]] = []
    sensors: dict[str, Mapping[str, Any]] = {}
    excluded: Sequence[Mapping[str, str]] = ()
    entries: list[LedgerEntry] = []
    events: list[dict[str, Any]] = []
    close: dict[str, Any] | None = None
    carried = Totals()
    unknown = Unknown()
    for record in read_journal(path) if most is None else downsample(path, most):
        unknown.look(record)
        kind = record["kind"]
        if kind == "open":
            check_format(record.get("format"), path)
            opens.append(record)
            close = None
            if record.get("carried"):
                carried = carried + Totals.from_dict(record["carried"])
        if kind in ("open", "sensors"):
            sensors.update({s["uid"]: s for s in record["sensors"]})
            excluded = record.get("excluded", ())
        elif kind == "entry":
            entries.append(entry_from_json(record))
        elif kind == "event":
            events.append(record)
        elif kind == "close":
            close = record
    if not opens:
        return None
    note = unknown.note(opens[0].get("t", 0.0))
    if note is not None:
        events.append(note)
    return RankRecord(
        rank=opens[0]["rank"],
        host=opens[0]["host"],
        opens=opens,
        sensors=sensors,
        excluded=excluded,
        entries=entries,
        events=events,
        close=close,
        carried=carried,
    )


def _check_same_run(record: RunRecord) -> None:
    numbers = [rank.rank for rank in record.ranks]
    if len(set(numbers)) < len(numbers):
        twice = next(number for number in numbers if numbers.count(number) > 1)
        raise RunFolderError(f"{record.folder} has two files of rank {twice}: move one of them out of the folder")
    expected = record.run.get("run_id") or record.ranks[0].opens[0]["run_id"]
    for rank in record.ranks:
        for opened in rank.opens:
            if opened["run_id"] != expected:
                raise RunFolderError(
                    f"{record.folder}: the file of rank {rank.rank} belongs to run {opened['run_id']!r}, the folder to"
                    f" {expected!r}; move it to its own folder"
                )
