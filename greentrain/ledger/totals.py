"""Sums over the books: joules, grams, steps and tokens of a rank, a part of a run or a whole job."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from greentrain.ledger.entry import entry_to_json
from greentrain.ledger.journal import Journal
from greentrain.types import GearUse, LedgerEntry
from greentrain.utils import quantities
from greentrain.utils.display import Displayable, Table, View


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals(Displayable):
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

    @property
    def device_s(self) -> float:
        """Device time (s) of one rank, read or not: totals do not tell it, so each device counts for all of it."""
        devices = {*self.by_device, *self.missing_s}
        return max(self.duration_s * len(devices), sum(self.missing_s.values()))

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
        """Return what is summed over the ranks of a job while it runs: fields of ``JobSums``."""
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
        return books_view("Totals", self)


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


def books_view(title: str, totals: Totals, note: str = "", page: Path | None = None) -> View:
    """Return what is shown of totals under a title, with a note and the path of a report page if there are any."""
    known = bool(totals.by_device) or totals.energy_j > 0
    if not known and totals.duration_s <= 0:
        return View(line="nothing is booked yet", title=title, notes=["Nothing is booked yet."], page=page)
    energy_j = totals.energy_j if known else None
    grams = totals.emissions_g if known and (totals.unpriced_j <= 0 or totals.energy_j > totals.unpriced_j) else None
    from_, missing = _provenance(totals), _missing(totals)
    emissions = ("at least " if grams is not None and totals.unpriced_j > 0 else "") + quantities.carbon(grams)
    rows = [
        ("Energy", quantities.joules(energy_j), f"{quantities.energy(energy_j)}; {from_}" if known else from_),
        ("Emissions", emissions, _emissions(totals, known, grams)),
        ("Time", quantities.duration(totals.duration_s), f"mean power {quantities.power(_power(totals, known))}"),
    ]
    work = _work(totals, energy_j)
    if work:
        rows.append(("Work", *work))
    if missing:
        rows.append(("Missing", "", missing))
    grids = [Table(rows=rows)]
    if totals.by_device:
        grids.append(_of_whole("Device", "Energy by device", totals.by_device))
    if totals.by_phase:
        grids.append(_of_whole("Phase", "Energy by phase", totals.by_phase))
    shown = [f"{quantities.joules(energy_j)} ({from_})", emissions, quantities.duration(totals.duration_s)]
    shown += [": ".join(text for text in work if text)] if work else []
    line = ", ".join(shown) + (f"; missing: {missing}" if missing else "")
    return View(line=line, title=title, grids=grids, notes=[note] if note else [], page=page)


def _power(totals: Totals, known: bool) -> float | None:
    return totals.mean_power_w if known else None


def _provenance(totals: Totals) -> str:
    """Return where the energy is known from, as ``modelled`` or ``60.0 % measured, 40.0 % modelled``."""
    parts = {name: energy_j for name, energy_j in totals.by_provenance.items() if energy_j > 0}
    if len(parts) < 2 or totals.energy_j <= 0:
        return next(iter(parts or totals.by_provenance), "missing: no device could be read or modelled")
    return ", ".join(f"{quantities.percent(parts[name] / totals.energy_j)} {name}" for name in sorted(parts))


def _missing(totals: Totals) -> str:
    return ", ".join(
        f"{uid} for {quantities.duration(seconds)}" for uid, seconds in totals.missing_s.items() if seconds > 0
    )


def _emissions(totals: Totals, known: bool, grams: float | None) -> str:
    if grams is None:
        return "the grid's intensity is not known" if known else "the energy is not known"
    made = f"embodied {quantities.mass(totals.embodied_g)}" if totals.embodied_g > 0 else "embodied unknown"
    return f"electricity {quantities.mass(totals.operational_g)}, {made}"


def _work(totals: Totals, energy_j: float | None) -> tuple[str, str] | None:
    for one, count in (("token", totals.tokens), ("sample", totals.samples), ("step", totals.steps)):
        if count:
            steps = f"{_counted(totals.steps, 'step')}, " if totals.steps and one != "step" else ""
            each = "" if energy_j is None else f"{quantities.joules(energy_j / count)}/{one}"
            return f"{steps}{_counted(count, one)}", each
    return None


def _counted(count: int, one: str) -> str:
    return f"{quantities.count(count)} {one}" + ("" if count == 1 else "s")


def _of_whole(what: str, title: str, energy_j: Mapping[str, float]) -> Table:
    whole_j = sum(energy_j.values())
    rows = [
        (name, quantities.joules(value), quantities.percent(value / whole_j) if whole_j > 0 else "")
        for name, value in sorted(energy_j.items(), key=lambda item: -item[1])
    ]
    return Table(rows=rows, head=(what, "Energy", "Share"), title=title, folded=True)
