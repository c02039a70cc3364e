"""One pass over a run's entries: sums by device, phase, host, place and price."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from greentrain.ledger.reader import RankRecord, RunRecord
from greentrain.types import S_PER_HOUR, DeviceEnergy, LedgerEntry, Provenance

MAX_GAPS = 200
"""Gaps listed one by one; the number of all of them is always told."""


@dataclass(slots=True, kw_only=True)
class DeviceTally:
    """What one device used over the run."""

    host: str
    uid: str
    rank: int
    sensor: Mapping[str, Any] = field(default_factory=dict)
    by_provenance: dict[str, float] = field(default_factory=dict)
    """Known energy (J), ``measured`` and ``modelled``."""
    facility_j: float = 0.0
    """Known energy x PUE (J)."""
    booked_s: float = 0.0
    missing_s: float = 0.0
    peak_w: float | None = None
    """Highest mean power over one ledger interval (W)."""
    gap: list[float] | None = None
    """Open gap: start, end, seconds missing."""

    @property
    def energy_j(self) -> float | None:
        """Known energy (J); None if nothing of it is known."""
        if not self.by_provenance or (self.known_s <= 0 and not any(self.by_provenance.values())):
            return None
        return sum(self.by_provenance.values())

    @property
    def known_s(self) -> float:
        """Seconds whose energy is known."""
        return max(self.booked_s - max(self.missing_s, 0.0), 0.0)


@dataclass(slots=True, kw_only=True)
class GearTally:
    """What one gear emitted in the entries whose intensity is known."""

    operational_g: float = 0.0
    emissions_g: float = 0.0
    """Operational grams and the embodied share of the time in the gear."""
    tokens: int = 0


@dataclass(slots=True, kw_only=True)
class Tally:
    """Sums over all entries of all ranks."""

    devices: dict[tuple[str, str], DeviceTally] = field(default_factory=dict)
    facility_j: float = 0.0
    """Energy x PUE (J)."""
    entries_j: float = 0.0
    priced_facility_j: float = 0.0
    """Energy x PUE of the entries whose intensity is known (J)."""
    pue_j: dict[str, float] = field(default_factory=dict)
    """Energy (J) by source of its PUE."""
    pue_min: float | None = None
    pue_max: float | None = None
    phase_g: dict[str, float] = field(default_factory=dict)
    """Operational grams by exclusive phase, of the entries whose intensity is known."""
    device_g: dict[tuple[str, str], float] = field(default_factory=dict)
    gears: dict[str, GearTally] = field(default_factory=dict)
    intensity_min: float | None = None
    intensity_max: float | None = None
    zones: dict[tuple[str, str, str, str, str], float] = field(default_factory=dict)
    """Energy (J) by zone, source, kind, basis and accounting."""
    has_embodied: bool = False
    gaps: list[dict[str, Any]] = field(default_factory=list)
    gap_count: int = 0
    t0_unix_s: float | None = None
    t1_unix_s: float | None = None

    @classmethod
    def of(cls, record: RunRecord) -> "Tally":
        """Add up a run."""
        tally = cls()
        for rank in record.ranks:
            tally._add_rank(rank)
        tally.gaps.sort(key=lambda gap: float(gap["start_unix_s"]))
        return tally

    def _add_rank(self, rank: RankRecord) -> None:
        for uid, sensor in rank.sensors.items():
            self._device(rank, uid).sensor = sensor
        for entry in rank.entries:
            self._add_entry(rank, entry)
        for device in self.devices.values():
            self._close_gap(device)

    def _device(self, rank: RankRecord, uid: str) -> DeviceTally:
        key = (rank.host, uid)
        if key not in self.devices:
            self.devices[key] = DeviceTally(host=rank.host, uid=uid, rank=rank.rank)
        return self.devices[key]

    def _add_entry(self, rank: RankRecord, entry: LedgerEntry) -> None:
        span_s = entry.t1_unix_s - entry.t0_unix_s
        self.t0_unix_s = entry.t0_unix_s if self.t0_unix_s is None else min(self.t0_unix_s, entry.t0_unix_s)
        self.t1_unix_s = entry.t1_unix_s if self.t1_unix_s is None else max(self.t1_unix_s, entry.t1_unix_s)
        energy_j = 0.0
        g_per_j = entry.operational_g / entry.energy_j if entry.operational_g is not None and entry.energy_j else 0.0
        for uid, share in entry.devices.items():
            energy_j += share.energy_j
            self._add_device(self._device(rank, uid), share, entry, span_s)
            if g_per_j:
                key = (rank.host, uid)
                self.device_g[key] = self.device_g.get(key, 0.0) + share.energy_j * g_per_j
                for phase, phase_j in share.phases.items():
                    self.phase_g[phase] = self.phase_g.get(phase, 0.0) + phase_j * g_per_j
        if entry.operational_g is not None and span_s > 0:
            self._add_gears(entry, g_per_j, span_s)
        self.entries_j += energy_j
        self._add_pue(entry, energy_j)
        if entry.operational_g is not None:
            self.priced_facility_j += energy_j * entry.pue
        self.has_embodied = self.has_embodied or entry.embodied_g is not None
        self._add_carbon(entry, energy_j)

    def _add_pue(self, entry: LedgerEntry, energy_j: float) -> None:
        self.facility_j += energy_j * entry.pue
        if energy_j > 0:
            source = str(entry.pue_source)
            self.pue_j[source] = self.pue_j.get(source, 0.0) + energy_j
            self.pue_min = entry.pue if self.pue_min is None else min(self.pue_min, entry.pue)
            self.pue_max = entry.pue if self.pue_max is None else max(self.pue_max, entry.pue)

    def _add_gears(self, entry: LedgerEntry, g_per_j: float, span_s: float) -> None:
        for name, use in entry.gears.items():
            if use.is_known:
                gear = self.gears.setdefault(name, GearTally())
                grams = use.energy_j * g_per_j
                gear.operational_g += grams
                gear.emissions_g += grams + (entry.embodied_g or 0.0) * use.seconds / span_s
                gear.tokens += use.tokens

    def _add_carbon(self, entry: LedgerEntry, energy_j: float) -> None:
        point = entry.carbon
        if point.g_per_kwh is None:
            return
        key = (point.zone, point.source, str(point.kind), str(point.basis), point.accounting)
        self.zones[key] = self.zones.get(key, 0.0) + energy_j
        low, high = self.intensity_min, self.intensity_max
        self.intensity_min = point.g_per_kwh if low is None else min(low, point.g_per_kwh)
        self.intensity_max = point.g_per_kwh if high is None else max(high, point.g_per_kwh)

    def _add_device(self, device: DeviceTally, share: DeviceEnergy, entry: LedgerEntry, span_s: float) -> None:
        device.booked_s += span_s
        device.missing_s += share.missing_s
        known_s = span_s - max(share.missing_s, 0.0)
        if share.provenance is not Provenance.MISSING:
            name = str(share.provenance)
            device.by_provenance[name] = device.by_provenance.get(name, 0.0) + share.energy_j
            device.facility_j += share.energy_j * entry.pue
            if known_s > 0.5 * span_s and share.missing_s >= 0 and span_s > 0:
                device.peak_w = max(device.peak_w or 0.0, share.energy_j / known_s)
        if share.missing_s <= 0:
            self._close_gap(device)
        elif device.gap is not None and entry.t0_unix_s - device.gap[1] < 1.0:
            device.gap[1] = entry.t1_unix_s
            device.gap[2] += share.missing_s
        else:
            self._close_gap(device)
            device.gap = [entry.t0_unix_s, entry.t1_unix_s, share.missing_s]

    def _close_gap(self, device: DeviceTally) -> None:
        if device.gap is None:
            return
        start_s, end_s, missing_s = device.gap
        device.gap = None
        self.gap_count += 1
        if len(self.gaps) < MAX_GAPS:
            self.gaps.append(
                {
                    "host": device.host,
                    "uid": device.uid,
                    "start_unix_s": start_s,
                    "end_unix_s": end_s,
                    "missing_s": missing_s,
                }
            )

    def embodied_ratio(self) -> tuple[float, float] | None:
        """Return low / mid and high / mid of the embodied share, weighted by device-hours; None if unknown."""
        low = mid = high = 0.0
        for device in self.devices.values():
            rate = device.sensor.get("embodied_g_per_h")
            if rate:
                hours = device.booked_s / S_PER_HOUR
                low, mid, high = low + rate["low"] * hours, mid + rate["mid"] * hours, high + rate["high"] * hours
        return (low / mid, high / mid) if mid > 0 else None
