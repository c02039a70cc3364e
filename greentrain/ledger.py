"""The books: what every rank used, phase by phase, and what that emitted.

``EnergyLedger`` adds entries to running totals and writes each one to the rank's journal. ``read_run`` reads
the journals of all ranks of a run folder back and reduces them: the reduction happens when read, so ranks
never wait for one another.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Final, cast

from greentrain.errors import RunFolderError
from greentrain.journal import Journal, read_journal
from greentrain.run_format import Unknown, check_format
from greentrain.shown import Shown, View
from greentrain.thinning import thin
from greentrain.types import (
    FORMAT_VERSION,
    CarbonBasis,
    CarbonKind,
    CarbonPoint,
    DeviceEnergy,
    GearUse,
    LedgerEntry,
    Provenance,
    PueSource,
)

_GEAR_KEYS: Final = {
    "j": "energy_j", "model_j": "modelled_j", "missing_s": "missing_s", "dev_s": "device_s", "s": "seconds",
    "steps": "steps", "tokens": "tokens", "samples": "samples",
}  # fmt: skip
"""Keys of a gear in an entry's record, and its fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals(Shown):
    """Sums over ledger entries. ``a + b`` adds the totals of two ranks or two parts of a run."""

    energy_j: float = 0.0
    """Known IT energy of all devices (J), without PUE."""
    duration_s: float = 0.0
    """Wall time booked (s); summed over ranks it is rank-seconds."""
    facility_j: float = 0.0
    """energy_j x PUE (J); 0 in totals of versions that did not count it."""
    operational_g: float = 0.0
    """Grams of the energy whose intensity is known, PUE included."""
    it_g: float = 0.0
    """The same grams without PUE; 0 in totals of versions that did not count them."""
    unpriced_j: float = 0.0
    """Energy booked while the intensity was not known (J): it is in no gram figure."""
    embodied_g: float = 0.0
    """Mid estimate of embodied carbon, of the devices that have a value."""
    steps: int = 0
    tokens: int = 0
    samples: int = 0
    by_device: Mapping[str, float] = field(default_factory=dict)
    """Energy by device uid (J)."""
    by_phase: Mapping[str, float] = field(default_factory=dict)
    """Exclusive energy by phase (J); sums to energy_j."""
    by_phase_inclusive: Mapping[str, float] = field(default_factory=dict)
    """Energy while the phase was open, nested phases included (J)."""
    by_provenance: Mapping[str, float] = field(default_factory=dict)
    """Energy by provenance (J); ``missing`` never appears here, its seconds are in missing_s."""
    missing_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds without knowledge by device uid."""
    phase_s: Mapping[str, float] = field(default_factory=dict)
    """Exclusive seconds by phase."""
    by_gear: Mapping[str, GearUse] = field(default_factory=dict)
    """What was used and done by precision gear; empty in runs without gears."""

    @property
    def emissions_g(self) -> float:
        """Operational grams plus the mid estimate of embodied grams."""
        return self.operational_g + self.embodied_g

    @property
    def mean_power_w(self) -> float | None:
        """Mean IT power (W) of one rank; None before anything is booked."""
        return self.energy_j / self.duration_s if self.duration_s > 0 else None

    def __add__(self, other: "Totals") -> "Totals":
        values: dict[str, Any] = {}
        for item in dataclasses.fields(self):
            mine, theirs = getattr(self, item.name), getattr(other, item.name)
            values[item.name] = _sum_maps(mine, theirs) if isinstance(mine, Mapping) else mine + theirs
        return Totals(**values)

    @classmethod
    def of_job(cls, ranks: Sequence["Totals"]) -> "Totals":
        """Return the sum over ranks, but ``steps``, by gear too, are those of the rank with most of them."""
        out = sum(ranks, cls())
        gears = {
            name: dataclasses.replace(use, steps=max(r.by_gear[name].steps for r in ranks if name in r.by_gear))
            for name, use in out.by_gear.items()
        }
        return dataclasses.replace(out, steps=max((rank.steps for rank in ranks), default=0), by_gear=gears)

    def add(self, entry: LedgerEntry) -> "Totals":
        """Return the totals with one more entry."""
        return self + Totals.of(entry)

    @classmethod
    def of(cls, entry: LedgerEntry) -> "Totals":
        """Return the totals of a single entry."""
        by_phase: dict[str, float] = {}
        by_provenance: dict[str, float] = {}
        interval_s = entry.t1_unix_s - entry.t0_unix_s
        known = {uid: device for uid, device in entry.devices.items() if device.is_known(interval_s)}
        for device in known.values():
            by_phase = _sum_maps(by_phase, device.phases)
            by_provenance = _sum_maps(by_provenance, {str(device.provenance): device.energy_j})
        return cls(
            energy_j=entry.energy_j,
            duration_s=interval_s,
            facility_j=entry.energy_j * entry.pue,
            operational_g=entry.operational_g or 0.0,
            it_g=entry.it_g or 0.0,
            unpriced_j=entry.energy_j if entry.operational_g is None else 0.0,
            embodied_g=entry.embodied_g or 0.0,
            steps=entry.steps,
            tokens=entry.tokens,
            samples=entry.samples,
            by_device={uid: device.energy_j for uid, device in known.items()},
            by_phase=by_phase,
            by_phase_inclusive=dict(entry.phase_inclusive_j),
            by_provenance=by_provenance,
            missing_s={uid: d.missing_s for uid, d in entry.devices.items() if d.missing_s},
            phase_s=dict(entry.phase_s),
            by_gear=dict(entry.gears),
        )

    def sums(self) -> dict[str, Any]:
        """Return what is summed over the ranks of a job while it runs: fields of :class:`~greentrain.peers.JobSums`."""
        return {
            "energy_j": self.energy_j,
            "emissions_g": self.emissions_g,
            "unpriced_j": self.unpriced_j,
            "tokens": self.tokens,
            "samples": self.samples,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return a plain dict for JSON and checkpoints."""
        out = {k: dict(v) if isinstance(v, Mapping) else v for k, v in dataclasses.asdict(self).items()}
        if not self.by_gear:
            del out["by_gear"]
        return out

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Totals":
        """Read what ``to_dict`` wrote; unknown keys of a newer version are ignored."""
        known = _fields(cls, data)
        gears = {name: GearUse(**_fields(GearUse, use)) for name, use in data.get("by_gear", {}).items()}
        return cls(**known | {"by_gear": gears})

    def _view(self) -> View:
        return cast("View", import_module("greentrain.report.notebook").totals_view(self))  # a floor above


def _fields(cls: type, data: Mapping[str, Any]) -> dict[str, Any]:
    names = {item.name for item in dataclasses.fields(cls)}
    return {key: value for key, value in data.items() if key in names}


def _sum_maps(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(a)
    for key, value in b.items():
        out[key] = out[key] + value if key in out else value
    return out


class EnergyLedger:
    """Running totals of one rank, written entry by entry to its journal.

    Args:
        journal: Where entries go; None keeps totals only.
        carried: Totals of earlier parts of the same run that are in no journal of this folder.
    """

    def __init__(self, journal: Journal | None, carried: Totals | None = None) -> None:
        self.journal = journal
        self.totals = carried or Totals()

    def record(self, entry: LedgerEntry) -> None:
        """Add an entry to the totals and to the journal."""
        self.totals = self.totals.add(entry)
        if self.journal is not None:
            record = entry_to_json(entry)
            groups = record.pop("step_groups")  # last in its line: who thins a journal cuts them off unread
            self.journal.append({**record, "sum": self.totals.sums(), "step_groups": groups})


def entry_to_json(entry: LedgerEntry) -> dict[str, Any]:
    """Return the journal record of an entry (kind ``entry``; short keys, it is written for years)."""
    record: dict[str, Any] = {
        "kind": "entry",
        "t0": round(entry.t0_unix_s, 6),
        "t1": round(entry.t1_unix_s, 6),
        "steps": entry.steps,
        "tokens": entry.tokens,
        "samples": entry.samples,
        "devices": {
            uid: {
                "j": d.energy_j,
                "prov": str(d.provenance),
                "missing_s": round(d.missing_s, 6),
                "phases": dict(d.phases),
            }
            for uid, d in entry.devices.items()
        },
        "phase_s": {k: round(v, 6) for k, v in entry.phase_s.items()},
        "phase_incl_j": dict(entry.phase_inclusive_j),
        "carbon": {
            "g_per_kwh": entry.carbon.g_per_kwh,
            "zone": entry.carbon.zone,
            "kind": str(entry.carbon.kind),
            "basis": str(entry.carbon.basis),
            "accounting": entry.carbon.accounting,
            "source": entry.carbon.source,
        },
        "pue": entry.pue,
        "op_g": entry.operational_g,
        "emb_g": entry.embodied_g,
    }
    if entry.pue_source is not PueSource.CONSTANT:
        record["pue_from"] = str(entry.pue_source)
    if entry.gears:
        record["gears"] = {
            name: {key: round(getattr(use, item), 6) for key, item in _GEAR_KEYS.items()}
            for name, use in entry.gears.items()
        }
    record["step_groups"] = [list(group) for group in entry.step_groups]
    return record


def entry_from_json(record: Mapping[str, Any]) -> LedgerEntry:
    """Read what ``entry_to_json`` wrote."""
    carbon = record["carbon"]
    return LedgerEntry(
        t0_unix_s=record["t0"],
        t1_unix_s=record["t1"],
        steps=record["steps"],
        tokens=record["tokens"],
        samples=record["samples"],
        devices={
            uid: DeviceEnergy(
                energy_j=d["j"], provenance=Provenance(d["prov"]), missing_s=d["missing_s"], phases=d["phases"]
            )
            for uid, d in record["devices"].items()
        },
        phase_s=record["phase_s"],
        phase_inclusive_j=record["phase_incl_j"],
        carbon=CarbonPoint(
            t0_unix_s=record["t0"],
            t1_unix_s=record["t1"],
            g_per_kwh=carbon["g_per_kwh"],
            zone=carbon["zone"],
            source=carbon["source"],
            kind=CarbonKind(carbon["kind"]),
            basis=CarbonBasis(carbon["basis"]),
            accounting=carbon["accounting"],
        ),
        pue=record["pue"],
        operational_g=record["op_g"],
        embodied_g=record["emb_g"],
        step_groups=tuple((g[0], g[1], g[2], g[3]) for g in record["step_groups"]),
        gears={
            name: GearUse(**{item: use[key] for key, item in _GEAR_KEYS.items()})
            for name, use in record.get("gears", {}).items()
        },
        pue_source=PueSource(record.get("pue_from", PueSource.CONSTANT)),
    )


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
        most: Merge neighbouring entries to about so many a rank (``greentrain.thinning``): sums stay exact,
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
        raise RunFolderError(f"{folder} {what}; give the folder of one run, for example runs/<run_id>")
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
    for record in read_journal(path) if most is None else thin(path, most):
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
    expected = record.run.get("run_id") or record.ranks[0].opens[0]["run_id"]
    for rank in record.ranks:
        for opened in rank.opens:
            if opened["run_id"] != expected:
                raise RunFolderError(
                    f"{record.folder}: the file of rank {rank.rank} belongs to run {opened['run_id']!r}, the folder to"
                    f" {expected!r}; move it to its own folder"
                )
