"""Sums over the books: joules, grams, steps and tokens of a rank, a part of a run or a whole job.

``EntrySums`` is the one reducer: the running session, the live page, the report, the fleet index and the exporters feed
it the entries of journals and ask it for sums. ``Totals`` is what it comes to, frozen, as checkpoints carry it.
"""

import copy
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from greentrain.ledger.journal import GEAR_KEYS, UNTOLD, Journal, add_states, entry_to_json
from greentrain.types import GearUse, LedgerEntry, Provenance, PueSource, grams, says_anything
from greentrain.utils import quantities
from greentrain.utils.display import Displayable, Table, View

MISSING: Final = Provenance.MISSING.value
MAX_GAPS: Final = 200
"""Gaps listed one by one; the number of all of them is always told."""


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
    cost: Mapping[str, float] = field(default_factory=dict)
    """Money for the electricity whose price is known, PUE included, by currency; empty where nobody says."""
    uncosted_j: float = 0.0
    """Energy of intervals whose price was to be known and is not (J): it is in no figure of money."""
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

    def it_grams(self, pue: float) -> float:
        """Return the operational grams without PUE; by a mean PUE where these totals do not tell."""
        return self.it_g if self.it_g > 0 else self.operational_g / pue

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

    @classmethod
    def of(cls, entry: LedgerEntry) -> "Totals":
        """Return the totals of a single entry."""
        sums = EntrySums()
        sums.add(entry_to_json(entry, exact=True))
        return sums.totals()

    def sums(self) -> dict[str, Any]:
        """Return what is summed over the ranks of a job while it runs: fields of ``OtherRanksTotals``."""
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
        for name in ("by_gear", "cost", "uncosted_j"):
            if not out[name]:
                del out[name]
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


@dataclass(slots=True)
class EnergyPart:
    """What one device, or several of a kind, used with one provenance."""

    energy_j: float = 0.0
    """Known IT energy (J)."""
    facility_j: float = 0.0
    """The same energy x PUE (J)."""
    unpriced_j: float = 0.0
    """The part of it whose carbon intensity is not known (J)."""
    known_s: float = 0.0
    """Device-seconds whose energy is known."""
    missing_s: float = 0.0
    """Device-seconds without knowledge. Below 0 where a counter delivered the energy of a gap late."""
    operational_g: float = 0.0
    embodied_g: float = 0.0
    priced: bool = False
    """True if some of the energy has a carbon intensity."""
    embodied: bool = False
    """True if a device of it has an embodied figure."""

    def merge(self, other: "EnergyPart") -> None:
        """Add another part."""
        for item in dataclasses.fields(self):
            mine, theirs = getattr(self, item.name), getattr(other, item.name)
            setattr(self, item.name, mine or theirs if isinstance(mine, bool) else mine + theirs)


@dataclass(slots=True)
class DeviceSums:
    """What one device used over some entries."""

    parts: dict[str, EnergyPart] = field(default_factory=dict)
    """By provenance; under ``missing`` what is booked for intervals of which nothing is known."""
    phases: dict[str, float] = field(default_factory=dict)
    """Exclusive energy by phase (J)."""
    states: dict[str, dict[str, float]] = field(default_factory=dict)
    """By phase, what its driver has told beside power (``STATE_KEYS``)."""
    booked_s: float = 0.0
    missing_s: float | None = None
    """Seconds without knowledge; None while there was none, not even one that came in late."""
    peak_w: float | None = None
    """Highest mean power over one ledger interval (W)."""
    gap: list[float] | None = None
    """The gap that is still open: its start, its end and the seconds missing in it."""

    @property
    def known(self) -> dict[str, EnergyPart]:
        """The parts whose energy is known, by provenance."""
        return {name: part for name, part in self.parts.items() if name != MISSING}

    @property
    def energy_j(self) -> float | None:
        """Known energy (J); None if nothing of it is known."""
        known = self.known
        return sum(part.energy_j for part in known.values()) if known else None

    @property
    def known_s(self) -> float:
        """Seconds whose energy is known."""
        return max(self.booked_s - max(self.missing_s or 0.0, 0.0), 0.0)

    def part(self, provenance: str) -> EnergyPart:
        """Return the part with a provenance, made when it is not there."""
        part = self.parts.get(provenance)
        if part is None:
            part = self.parts[provenance] = EnergyPart()
        return part

    def merge(self, other: "DeviceSums") -> None:
        """Add what the same device used elsewhere."""
        for provenance, part in other.parts.items():
            self.part(provenance).merge(part)
        _add(self.phases, other.phases)
        add_states(self.states, other.states)
        self.booked_s += other.booked_s
        if other.missing_s is not None:
            self.missing_s = (self.missing_s or 0.0) + other.missing_s
        if other.peak_w is not None:
            self.peak_w = max(self.peak_w or 0.0, other.peak_w)


Range = tuple[float, float] | None
"""Lowest and highest; None where there was none."""


@dataclass(slots=True)
class EntrySums:
    """Sums over journal entries, fed one by one; its memory does not grow with their number."""

    devices: dict[Any, DeviceSums] = field(default_factory=dict)
    """By device uid; where ranks are merged, by host and device uid."""
    duration_s: float = 0.0
    energy_j: float = 0.0
    facility_j: float = 0.0
    """Energy x PUE (J)."""
    priced_facility_j: float = 0.0
    """Energy x PUE of the entries whose intensity is known (J)."""
    operational_g: float = 0.0
    it_g: float = 0.0
    unpriced_j: float = 0.0
    embodied_g: float = 0.0
    embodied_of_none_g: float | None = None
    """The part of it that belongs to no device whose rate is known; None: there is none."""
    priced: bool = False
    """True if the grams of some known energy are known."""
    embodied: bool = False
    """True if some entry has an embodied figure."""
    steps: int = 0
    tokens: int = 0
    samples: int = 0
    phase_j: dict[str, float] = field(default_factory=dict)
    """Exclusive energy by phase (J)."""
    phase_inclusive_j: dict[str, float] = field(default_factory=dict)
    phase_s: dict[str, float] = field(default_factory=dict)
    phase_g: dict[str, float] = field(default_factory=dict)
    """Operational grams by exclusive phase, of the entries whose intensity is known."""
    gears: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By gear, with the short keys of the journal."""
    gear_g: dict[str, dict[str, float]] = field(default_factory=dict)
    """By gear, of the entries whose intensity is known: ``operational_g``, ``emissions_g`` with the embodied share of
    the time in the gear, and ``tokens``."""
    cost: dict[str, float] = field(default_factory=dict)
    """Money for electricity, PUE included, by currency."""
    uncosted_j: float = 0.0
    """Energy whose price is not known, of the entries that should have one (J)."""
    price_j: dict[tuple[str, ...], float] = field(default_factory=dict)
    """Energy (J) by currency, source and kind of its price."""
    per_kwh: Range = None
    """Price of a kWh."""
    references: dict[str, dict[str, float]] = field(default_factory=dict)
    """By uid of a sensor that contains others: what it told, ``j`` (J), and of how long, ``s`` (s); in no other sum."""
    pue_j: dict[str, float] = field(default_factory=dict)
    """Energy (J) by source of its PUE."""
    zone_j: dict[tuple[str, ...], float] = field(default_factory=dict)
    """Energy (J) by zone, source, kind, basis and accounting of its carbon intensity."""
    stated_g: dict[tuple[str, ...], float] = field(default_factory=dict)
    """By the same: operational grams x the standard error of the intensity, where its source states one."""
    unstated_g: float = 0.0
    """Operational grams where it does not."""
    pue: Range = None
    g_per_kwh: Range = None
    span_s: Range = None
    """First start and last end (s since the epoch, UTC)."""
    gaps: list[dict[str, Any]] = field(default_factory=list)
    """The first ``MAX_GAPS`` gaps that are over: device, start, end and seconds missing."""
    gap_count: int = 0
    power_w: dict[str, float] = field(default_factory=dict)
    """Mean power over the last entry by device uid (W), where it is known."""

    def add(self, entry: Mapping[str, Any], embodied_g_per_h: Mapping[str, float] | None = None) -> None:
        """Add an entry.

        Args:
            entry: The record as the journal has it, checked.
            embodied_g_per_h: Mid rates by device uid, by which the embodied grams of the entry are given to devices.
        """
        t0_s, t1_s, pue, grams_, embodied_g = entry["t0"], entry["t1"], entry["pue"], entry["op_g"], entry["emb_g"]
        span_s, devices, rates = t1_s - t0_s, entry["devices"], embodied_g_per_h or {}
        energy_j = 0.0
        for device in devices.values():
            energy_j += device["j"]
        g_per_j = grams_ / energy_j if grams_ is not None and energy_j else 0.0
        whole = sum(rates.get(uid, 0.0) for uid in devices) if embodied_g is not None else 0.0
        self.power_w = {}
        any_known = False
        for uid, device in devices.items():
            sums = self.devices.get(uid)
            if sums is None:
                sums = self.devices[uid] = DeviceSums()
            joules, missing_s = device["j"], device["missing_s"]
            known_s = span_s - missing_s
            known = says_anything(device["prov"], joules, missing_s, span_s)
            part = sums.part(device["prov"] if known else MISSING)
            sums.booked_s += span_s
            if "states" in device:
                add_states(sums.states, device["states"])
            if known:
                any_known = True
                part.energy_j += joules
                part.facility_j += joules * pue
                part.known_s += known_s
                if grams_ is None:
                    part.unpriced_j += joules
                elif joules:
                    part.operational_g += joules * g_per_j
                    part.priced = True
                if 0 < known_s <= 1.001 * span_s:  # not where a counter delivers a gap's energy late
                    power_w = self.power_w[uid] = joules / known_s
                    if known_s > 0.5 * span_s and missing_s >= 0 and power_w >= (sums.peak_w or 0.0):
                        sums.peak_w = power_w
                _add(self.phase_j, device["phases"])
                _add(sums.phases, device["phases"])
                if g_per_j:
                    _add(self.phase_g, {name: phase_j * g_per_j for name, phase_j in device["phases"].items()})
            if missing_s:
                sums.missing_s = (sums.missing_s or 0.0) + missing_s
            if whole > 0 and uid in rates:
                part.embodied_g += rates[uid] * embodied_g / whole
                part.embodied = True
            if missing_s > 0 or sums.gap is not None:
                self._add_gap(uid, sums, t0_s, t1_s, missing_s)
        self.duration_s += span_s
        self.energy_j += energy_j
        self.facility_j += energy_j * pue
        if grams_ is None:
            self.unpriced_j += energy_j
        else:
            self.operational_g += grams_
            self.priced_facility_j += energy_j * pue
            self.priced = self.priced or any_known
        if embodied_g is not None:
            self.embodied = True
            self.embodied_g += embodied_g
            if whole <= 0:
                self.embodied_of_none_g = (self.embodied_of_none_g or 0.0) + embodied_g
        self.steps += entry["steps"]
        self.tokens += entry["tokens"]
        self.samples += entry["samples"]
        _add(self.phase_s, entry["phase_s"])
        _add(self.phase_inclusive_j, entry["phase_incl_j"])
        self.span_s = _widest(self.span_s, (t0_s, t1_s))
        if energy_j > 0:
            _add(self.pue_j, {str(entry.get("pue_from", PueSource.CONSTANT)): energy_j})
            self.pue = _widest(self.pue, (pue, pue))
        carbon = entry["carbon"]
        if (g_per_kwh := carbon["g_per_kwh"]) is not None:
            self.it_g += grams(energy_j, g_per_kwh)
            self.g_per_kwh = _widest(self.g_per_kwh, (g_per_kwh, g_per_kwh))
            key = (carbon["zone"], carbon["source"], carbon["kind"], carbon["basis"], carbon["accounting"])
            self.zone_j[key] = self.zone_j.get(key, 0.0) + energy_j
            if carbon.get("error") is None:
                self.unstated_g += grams_ or 0.0
            else:
                _add(self.stated_g, {key: carbon["error"] * (grams_ or 0.0)})
        if (price := entry.get("price")) is not None:
            if (cost := entry.get("cost")) is None:
                self.uncosted_j += energy_j
            else:
                _add(self.cost, {price["currency"]: cost})
                _add(self.price_j, {(price["currency"], price["source"], price["kind"]): energy_j})
                self.per_kwh = _widest(self.per_kwh, (price["per_kwh"], price["per_kwh"]))
        for uid, told in entry.get("refs", {}).items():
            _add(self.references.setdefault(uid, {}), {key: told[key] for key in ("j", "s")})
        for name, use in entry.get("gears", {}).items():
            _add(self.gears.setdefault(name, {}), {key: (UNTOLD | use)[key] for key in GEAR_KEYS})
            if grams_ is not None and span_s > 0 and says_anything("", use["j"], use["missing_s"], use["dev_s"]):
                of_gear_g = use["j"] * g_per_j
                emitted_g = of_gear_g + (embodied_g or 0.0) * use["s"] / span_s
                more = {"operational_g": of_gear_g, "emissions_g": emitted_g, "tokens": use["tokens"]}
                _add(self.gear_g.setdefault(name, {}), more)

    def _add_gap(self, uid: str, device: DeviceSums, t0_s: float, t1_s: float, missing_s: float) -> None:
        if device.gap is not None and missing_s > 0 and t0_s - device.gap[1] < 1.0:
            device.gap[1] = t1_s
            device.gap[2] += missing_s
            return
        self._close_gap(uid, device)
        if missing_s > 0:
            device.gap = [t0_s, t1_s, missing_s]

    def _close_gap(self, uid: str, device: DeviceSums) -> None:
        if device.gap is None:
            return
        start_s, end_s, missing_s = device.gap
        device.gap = None
        self.gap_count += 1
        if len(self.gaps) < MAX_GAPS:
            self.gaps.append({"uid": uid, "start_unix_s": start_s, "end_unix_s": end_s, "missing_s": missing_s})

    def merge(self, other: "EntrySums", host: str | None = None) -> None:
        """Add other sums, such as those of another rank, which get no more entries: their last gaps are closed.

        Args:
            other: The other sums.
            host: The host of its devices; given, they are kept by host and uid, as are gaps.
        """
        for uid, device in other.devices.items():
            other._close_gap(uid, device)
            self.devices.setdefault(uid if host is None else (host, uid), DeviceSums()).merge(device)
        named = [gap if host is None else {"host": host, **gap} for gap in other.gaps]
        self.gaps += named[: max(MAX_GAPS - len(self.gaps), 0)]
        for name in _RANGES:
            theirs = getattr(other, name)
            if theirs is not None:
                setattr(self, name, _widest(getattr(self, name), theirs))
        for name in _MAPS_OF_MAPS:
            for key, sums in getattr(other, name).items():
                _add(getattr(self, name).setdefault(key, {}), sums)
        for name in _MAPS:
            _add(getattr(self, name), getattr(other, name))
        for name in _NUMBERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        if other.embodied_of_none_g is not None:
            self.embodied_of_none_g = (self.embodied_of_none_g or 0.0) + other.embodied_of_none_g
        self.priced, self.embodied = self.priced or other.priced, self.embodied or other.embodied

    def totals(self) -> Totals:
        """Return the sums as they are carried from one process to the next; of one rank, or of a part of its time."""
        known = {uid: parts for uid, device in self.devices.items() if (parts := device.known)}
        by_provenance: dict[str, float] = {}
        for parts in known.values():
            _add(by_provenance, {name: part.energy_j for name, part in parts.items()})
        return Totals(
            **{name: getattr(self, name) for name in _OF_TOTALS},
            cost=dict(self.cost),
            by_device={uid: sum(part.energy_j for part in parts.values()) for uid, parts in known.items()},
            by_phase=dict(self.phase_j),
            by_phase_inclusive=dict(self.phase_inclusive_j),
            by_provenance=by_provenance,
            missing_s={uid: device.missing_s for uid, device in self.devices.items() if device.missing_s is not None},
            phase_s=dict(self.phase_s),
            by_gear={
                gear: GearUse(**{name: use[key] for key, name in GEAR_KEYS.items()}) for gear, use in self.gears.items()
            },
        )


_RANGES: Final = ("pue", "g_per_kwh", "per_kwh", "span_s")
_MAPS: Final = (
    "phase_j", "phase_inclusive_j", "phase_s", "phase_g", "pue_j", "zone_j", "stated_g", "cost", "price_j",
)  # fmt: skip
_MAPS_OF_MAPS: Final = ("gears", "gear_g", "references")
_OF_TOTALS: Final = (
    "energy_j", "duration_s", "facility_j", "operational_g", "it_g", "unpriced_j", "embodied_g", "uncosted_j",
    "steps", "tokens", "samples",
)  # fmt: skip
_NUMBERS: Final = (*_OF_TOTALS, "priced_facility_j", "unstated_g", "gap_count")


UNTOLD_SHARE: Final = 0.1
"""Share of device time without knowledge from which on no quotient is made of a stage's joules: they are too few."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageUse:
    """What the devices of one kind used in one stage: any phase of a run, as an RLHF step's generation or reward."""

    stage: str
    """Name of the phase; its time and joules are exclusive of phases inside it."""
    kind: str
    """As ``gpu``, ``cpu``, ``fpga``."""
    energy_j: float | None = None
    """Known energy (J); None where no device of the kind was read or modelled."""
    provenance: str = MISSING
    """``measured``, ``modelled``, ``mixed`` or ``missing``."""
    missing_share: float = 1.0
    """Share of the time of these devices, in all stages, of which nothing is known."""
    seconds: float = 0.0
    """Wall time of the stage, of the rank with most of it (s)."""
    tokens: int = 0
    """Tokens of the whole run, all ranks: what a stage costs is told by what comes of it."""

    @property
    def told_j(self) -> float | None:
        """The energy where enough of it is known to divide it by something (J)."""
        return self.energy_j if self.missing_share <= UNTOLD_SHARE else None

    @property
    def j_per_token(self) -> float | None:
        """The Energy Density Index of EcoRL-Sched (J/token); None where joules or tokens are not known."""
        return None if self.told_j is None or not self.tokens else self.told_j / self.tokens

    @property
    def mean_power_w(self) -> float | None:
        """Mean power of all these devices while a rank was in the stage (W)."""
        return None if self.told_j is None or self.seconds <= 0 else self.told_j / self.seconds


def stage_uses(ranks: Iterable[tuple[EntrySums, Mapping[str, Mapping[str, Any]]]]) -> list[StageUse]:
    """Return what each kind of device used in each stage, the stage and then the kind with most joules first.

    What earlier parts of a run used whose journals are not here is in none of it, nor are their tokens.

    Args:
        ranks: Of each rank the sums over its entries, and the latest record of each of its sensors by device uid.
    """
    kinds: dict[str, DeviceSums] = {}
    seconds: dict[str, float] = {}
    tokens = 0
    for sums, sensors in ranks:
        tokens += sums.tokens
        seconds |= {name: max(s, seconds.get(name, 0.0)) for name, s in sums.phase_s.items()}
        for uid, device in sums.devices.items():
            kinds.setdefault(str(sensors.get(uid, {}).get("kind")), DeviceSums()).merge(device)
    found = []
    for kind, device in kinds.items():
        ways = [name for name, part in device.known.items() if part.energy_j] or list(device.known)
        share = max(device.missing_s or 0.0, 0.0) / device.booked_s if device.booked_s > 0 else 0.0
        found += [
            StageUse(
                stage=stage,
                kind=kind,
                energy_j=device.phases.get(stage) if ways else None,
                provenance=MISSING if not ways else ways[0] if len(ways) == 1 else "mixed",
                missing_share=share if ways else 1.0,
                seconds=seconds.get(stage, 0.0),
                tokens=tokens,
            )
            for stage in (device.phases if ways else seconds)
        ]
    joules: dict[str, float] = {}
    for use in found:
        joules[use.stage] = joules.get(use.stage, 0.0) + (use.energy_j or 0.0)
    return sorted(found, key=lambda use: (-joules[use.stage], use.stage, -(use.energy_j or 0.0), use.kind))


def _add(sums: dict[Any, float], more: Mapping[Any, float]) -> None:
    for key, value in more.items():
        sums[key] = sums[key] + value if key in sums else value


def _widest(a: Range, b: tuple[float, float]) -> Range:
    return b if a is None else (min(a[0], b[0]), max(a[1], b[1]))


class EnergyLedger:
    """Running totals of one rank, written entry by entry to its journal.

    Args:
        journal: The journal that entries go to.
        carried: Totals of earlier parts of the same run that are in no journal of this folder.
    """

    def __init__(self, journal: Journal, carried: Totals | None = None) -> None:
        self.journal = journal
        self.totals = self._carried = carried or Totals()
        self._sums = EntrySums()

    def parts(self) -> tuple[Totals, EntrySums]:
        """Return totals of what is in no entry here, and copied sums of the entries; for the thread that records."""
        return self._carried, copy.deepcopy(self._sums)

    def record(self, entry: LedgerEntry) -> None:
        """Add an entry to the totals and to the journal."""
        self._sums.add(entry_to_json(entry, exact=True))
        self.totals = self._carried + self._sums.totals()
        record = entry_to_json(entry)
        groups = record.pop("step_groups")  # last in its line: who downsamples a journal cuts them off unread
        self.journal.append({**record, "sum": self.totals.sums(), "step_groups": groups})


def books_view(
    title: str, totals: Totals, note: str = "", page: Path | None = None, told: Mapping[str, Any] | None = None
) -> View:
    """Return what is shown of totals under a title.

    Args:
        title: What they are of.
        totals: The totals.
        note: A note on them.
        page: The path of a report page, if there is one.
        told: Of their summary ``interval_j``, and by device uid and by phase, ``devices``
            and ``phases``, interval and how the joules are told.
    """
    told = told or {}
    known = bool(totals.by_device) or totals.energy_j > 0
    if not known and totals.duration_s <= 0:
        return View(line="nothing is booked yet", title=title, notes=["Nothing is booked yet."], page=page)
    energy_j = totals.energy_j if known else None
    grams = totals.operational_g if known and (totals.unpriced_j <= 0 or totals.energy_j > totals.unpriced_j) else None
    from_, missing, power_w = _provenance(totals), _missing(totals), totals.mean_power_w if known else None
    emissions = ("at least " if grams is not None and totals.unpriced_j > 0 else "") + quantities.carbon(grams)
    rows = [
        (
            "Energy",
            quantities.between(energy_j, told.get("interval_j"), quantities.JOULE),
            f"{quantities.energy(energy_j)}; {from_}" if known else from_,
        ),
        ("Emissions", emissions, _emissions(totals, known, grams)),
        ("Time", quantities.duration(totals.duration_s), f"mean power {quantities.power(power_w)}"),
    ]
    work = _work(totals, energy_j)
    if work:
        rows.append(("Work", *work))
    if missing:
        rows.append(("Missing", "", missing))
    grids = [Table(rows=rows)]
    if totals.by_device:
        grids.append(_of_whole("Device", "Energy by device", totals.by_device, told.get("devices", {})))
    if totals.by_phase:
        grids.append(_of_whole("Phase", "Energy by phase", totals.by_phase, told.get("phases", {})))
    shown = [f"{quantities.joules(energy_j)} ({from_})", emissions, quantities.duration(totals.duration_s)]
    shown += [": ".join(text for text in work if text)] if work else []
    line = ", ".join(shown) + (f"; missing: {missing}" if missing else "")
    return View(line=line, title=title, grids=grids, notes=[note] if note else [], page=page)


def session_view(
    totals: Totals, *, state: str, folder: Path | None, page: Path | None, told: Mapping[str, Any] | None = None
) -> View:
    """Return what is shown of a session.

    Args:
        totals: The totals of this rank, as of now.
        state: ``not started``, ``running`` or ``closed``.
        folder: The folder of its run; None before the first start.
        page: The path of the run's report; None where there is none.
        told: As for ``books_view``.
    """
    if folder is None:
        title = f"GreenSession, {state}"
        return View(line=title, title=title, notes=["start() or a with block begins to measure."])
    note = "" if state == "closed" else "As of the last booking, a few seconds ago; close() makes them final."
    return books_view(f"{folder.name}, {state}", totals, note, page, told)


def cell_view(name: str, totals: Totals | None) -> View:
    """Return what is shown of a cell that was measured within a run that goes on.

    Args:
        name: Name of the run.
        totals: The totals of the cell; None where a reading is missing in it.
    """
    if totals is None:
        line = "unknown: a reading is missing in this time or is late, or the run ended in it"
        return View(
            line=line, title=f"Cell of {name}", notes=[line.capitalize() + ". The run's books have what is known."]
        )
    return books_view(f"Cell of {name}", totals, "It is part of that run, and in its books.")


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
    made = quantities.mass(totals.embodied_g) if totals.embodied_g > 0 else "unknown"
    return f"electricity; beside it embodied {made}"


def _work(totals: Totals, energy_j: float | None) -> tuple[str, str] | None:
    for one, count in (("token", totals.tokens), ("sample", totals.samples), ("step", totals.steps)):
        if count:
            steps = f"{quantities.counted(totals.steps, 'step')}, " if totals.steps and one != "step" else ""
            each = "" if energy_j is None else f"{quantities.joules(energy_j / count)}/{one}"
            return f"{steps}{quantities.counted(count, one)}", each
    return None


def _of_whole(
    what: str, title: str, energy_j: Mapping[str, float], told: Mapping[str, tuple[Mapping[str, Any] | None, str]]
) -> Table:
    whole_j = sum(energy_j.values())
    how = any(text for _, text in told.values())
    rows = []
    for name, value in sorted(energy_j.items(), key=lambda item: -item[1]):
        interval, text = told.get(name, (None, ""))
        share = quantities.percent(value / whole_j) if whole_j > 0 else ""
        rows.append((name, quantities.between(value, interval, quantities.JOULE), share, *([text] if how else [])))
    return Table(rows=rows, head=(what, "Energy", "Share", *(["Told"] if how else [])), title=title, folded=True)
