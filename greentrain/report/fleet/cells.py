"""Sums of a run by UTC day, zone, kind of device and provenance: what totals by month, zone or device are made of."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from greentrain.ledger.totals import Totals
from greentrain.types import Provenance, kwh_from_j

DAY_S: Final = 86_400
"""Seconds of a UTC day; Unix time knows no leap second (POSIX.1-2024, 4.19)."""


_DAYS: Final = (-719_162, 2_932_896)
"""Years 1 to 9999, as the calendar of Python has them (datetime, MINYEAR and MAXYEAR)."""
LAST_S: Final = _DAYS[1] * DAY_S
"""End of that calendar (s since the epoch, UTC)."""
_MOST_DAYS: Final = 36_525
"""An interval of the ledger, 10 s as a rule, cannot be a century."""


@dataclass(frozen=True, slots=True)
class CellKey:
    """Where a sum belongs. None: nobody tells, as for parts of a run whose journals are in no folder."""

    day: int | None
    """Days since 1970-01-01 (UTC)."""
    zone: str | None
    kind: str | None
    """Of device, as ``gpu``."""
    provenance: str
    """``measured`` or ``modelled``; ``missing`` has seconds and no joules."""


@dataclass(slots=True, kw_only=True)
class Cell:
    """Sums of one key."""

    energy_j: float = 0.0
    facility_j: float = 0.0
    """energy_j x PUE (J)."""
    unpriced_j: float = 0.0
    device_s: float = 0.0
    """Device-seconds whose energy is known."""
    missing_s: float = 0.0
    """Device-seconds without knowledge. Below 0 where a counter delivered the energy of a gap late."""
    operational_g: float = 0.0
    embodied_g: float = 0.0
    priced: bool = False
    """Some of the energy has a carbon intensity."""
    embodied: bool = False
    """A device of the cell has an embodied figure."""

    def market_g(self, market_g_per_kwh: float | None) -> float | None:
        """Return grams by a contracted factor (g/kWh); None without one."""
        return None if market_g_per_kwh is None else kwh_from_j(self.facility_j) * market_g_per_kwh


@dataclass(slots=True, kw_only=True)
class Work:
    """What was done on one UTC day in one zone."""

    rank_s: float = 0.0
    tokens: int = 0
    samples: int = 0


@dataclass(slots=True, kw_only=True)
class Sensors:
    """What the cells need of a rank's sensors, by device uid."""

    kinds: dict[str, str] = field(default_factory=dict)
    embodied_g_per_h: dict[str, float] = field(default_factory=dict)

    def learn(self, records: list[Mapping[str, Any]]) -> None:
        """Take over the sensors of an ``open`` or ``sensors`` record."""
        for record in records:
            self.kinds[record["uid"]] = str(record["kind"])
            rate = record.get("embodied_g_per_h")
            if rate:
                self.embodied_g_per_h[record["uid"]] = float(rate["mid"])


@dataclass(slots=True, kw_only=True)
class Cells:
    """All sums of one run."""

    cells: dict[CellKey, Cell] = field(default_factory=dict)
    work: dict[tuple[int | None, str | None], Work] = field(default_factory=dict)

    def add(self, entry: Mapping[str, Any], sensors: Sensors) -> None:
        """Book an ``entry`` record; one over midnight by the time on each side of it."""
        zone = str(entry["carbon"]["zone"]) or None
        tokens, samples = int(entry["tokens"]), int(entry["samples"])
        told_tokens = told_samples = 0
        upto = 0.0
        for day, share in _days(entry["t0"], entry["t1"]):
            self._add_devices(entry, sensors, day, zone, share)
            upto += share
            work = self.work.setdefault((day, zone), Work())
            work.rank_s += (entry["t1"] - entry["t0"]) * share
            new_tokens, new_samples = (round(min(upto, 1.0) * whole) for whole in (tokens, samples))
            work.tokens += new_tokens - told_tokens
            work.samples += new_samples - told_samples
            told_tokens, told_samples = new_tokens, new_samples
        work.tokens += tokens - told_tokens
        work.samples += samples - told_samples

    def carry(self, carried: Totals, pue: float) -> None:
        """Book an earlier part of the run, of which only totals are known: its day, zone and devices are not.

        Args:
            carried: The totals.
            pue: For totals that do not tell their facility energy.
        """
        facility_j = carried.facility_j if carried.facility_j >= carried.energy_j else carried.energy_j * pue
        known_j = sum(carried.by_provenance.values())
        missing_s = sum(carried.missing_s.values())
        known_s = carried.device_s - missing_s
        for provenance, energy_j in carried.by_provenance.items():
            share = energy_j / known_j if known_j else 1.0 / len(carried.by_provenance)
            cell = self._cell(CellKey(None, None, None, provenance))
            cell.energy_j += energy_j
            cell.device_s += known_s * share
            cell.facility_j += facility_j * share
            cell.unpriced_j += carried.unpriced_j * share
            cell.operational_g += carried.operational_g * share
            cell.embodied_g += carried.embodied_g * share
            cell.embodied = cell.embodied or carried.embodied_g > 0
            cell.priced = cell.priced or carried.energy_j > carried.unpriced_j
        if carried.embodied_g > 0 and not carried.by_provenance:
            cell = self._cell(CellKey(None, None, None, Provenance.MISSING.value))
            cell.embodied_g, cell.embodied = cell.embodied_g + carried.embodied_g, True
        if missing_s:
            self._cell(CellKey(None, None, None, Provenance.MISSING.value)).missing_s += missing_s
        work = self.work.setdefault((None, None), Work())
        work.rank_s += carried.duration_s
        work.tokens += carried.tokens
        work.samples += carried.samples

    def _cell(self, key: CellKey) -> Cell:
        cell = self.cells.get(key)
        if cell is None:
            cell = self.cells[key] = Cell()
        return cell

    def _add_devices(
        self, entry: Mapping[str, Any], sensors: Sensors, day: int, zone: str | None, share: float
    ) -> None:
        devices = entry["devices"]
        span_s, pue, grams = entry["t1"] - entry["t0"], entry["pue"], entry["op_g"]
        energy_j = sum(device["j"] for device in devices.values())
        g_per_j = grams / energy_j if grams is not None and energy_j else 0.0
        g_per_rate = _g_per_rate(entry, sensors)
        for uid, device in devices.items():
            kind, joules, missing_s = sensors.kinds.get(uid), device["j"] * share, device["missing_s"]
            known = device["prov"] != "missing" and (joules != 0.0 or missing_s < 0.999 * span_s)  # as DeviceEnergy
            cell = self._cell(CellKey(day, zone, kind, device["prov"] if known else Provenance.MISSING.value))
            if known:
                cell.energy_j += joules
                cell.facility_j += joules * pue
                cell.device_s += (span_s - missing_s) * share
                if grams is None:
                    cell.unpriced_j += joules
                elif joules:
                    cell.operational_g += joules * g_per_j
                    cell.priced = True
            if missing_s:
                self._cell(CellKey(day, zone, kind, Provenance.MISSING.value)).missing_s += missing_s * share
            rate = sensors.embodied_g_per_h.get(uid)
            if g_per_rate is not None and rate is not None:
                cell.embodied_g += rate * g_per_rate * share
                cell.embodied = True
        if g_per_rate is None and entry["emb_g"] is not None:
            cell = self._cell(CellKey(day, zone, None, Provenance.MISSING.value))
            cell.embodied_g += entry["emb_g"] * share
            cell.embodied = True


def _g_per_rate(entry: Mapping[str, Any], sensors: Sensors) -> float | None:
    """Return the embodied grams of an entry by the rates of its devices; None if it has none, or no device has one."""
    if entry["emb_g"] is None:
        return None
    whole = 0.0
    for uid in entry["devices"]:
        whole += sensors.embodied_g_per_h.get(uid, 0.0)
    return entry["emb_g"] / whole if whole > 0 else None


def _days(t0_unix_s: float, t1_unix_s: float) -> Iterator[tuple[int, float]]:
    """Yield the UTC days of an interval with its share on each; the shares add up to 1.

    Raises:
        ValueError: It is in no calendar, or longer than a century.
    """
    first, last = int(t0_unix_s // DAY_S), int(t1_unix_s // DAY_S)
    if not _DAYS[0] <= first <= last + 1 <= _DAYS[1] or last - first > _MOST_DAYS:
        raise ValueError(f"an interval from {t0_unix_s:g} to {t1_unix_s:g} s after 1970-01-01 cannot be")
    if t1_unix_s <= t0_unix_s or last == first or t1_unix_s == last * DAY_S == (first + 1) * DAY_S:
        yield first, 1.0
        return
    begin_s, span_s = t0_unix_s, t1_unix_s - t0_unix_s
    for day in range(first, last + 1):
        end_s = min((day + 1) * DAY_S, t1_unix_s)
        if end_s > begin_s:
            yield day, (end_s - begin_s) / span_s
        begin_s = end_s
