"""The same run otherwise: on other devices, elsewhere, in FP8, begun at another hour. As ratios, for they hold better
than the grams: most of what is not known is the same on both sides.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from greentrain.carbon.constant import ConstantSignal
from greentrain.carbon.trace import TraceSignal
from greentrain.errors import CarbonSignalError, ConfigError
from greentrain.estimate.carbon import Signal, over
from greentrain.estimate.cluster import Cluster
from greentrain.estimate.hardware import Accelerator
from greentrain.estimate.workload import Workload
from greentrain.types import Gear

DEVICES: Final = ("A100-80GB", "H100-SXM", "H200", "B200", "TPUv5p")
ZONES: Final = ("CA-QC", "FRA", "DEU", "world", "IND")
SHORT_H: Final = 7 * 24.0
"""Runs of a week or more see every hour of the day alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """One other way, beside the estimate."""

    what: str
    """``device``, ``zone``, ``precision`` or ``start``."""
    name: str
    times: float
    """Grams over those of the estimate, two digits; operational by location and embodied, where both are known."""
    basis: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunGrams:
    """Middle of an estimate (gCO2e)."""

    operational: float
    embodied: float | None
    notes: tuple[str, ...] = ()
    """What else the basis should say."""
    grid: str = ""
    """Intensity, and who says so."""


Again = Callable[[Workload, Cluster], RunGrams]
"""Estimates another workload on another cluster, by the table of utilisations."""


def relations(
    workload: Workload,
    cluster: Cluster,
    *,
    again: Again,
    device: Accelerator,
    others: Sequence[Accelerator],
    zones: Sequence[str] = ZONES,
) -> tuple[Relation, ...]:
    """Return what can be computed from the tables; what cannot is left out.

    Args:
        workload: Workload of the estimate.
        cluster: Cluster of the estimate.
        again: Function that returns the grams of another workload or cluster, by the table.
        device: The cluster's device.
        others: Devices to compare it with.
        zones: Zones to compare the cluster's with.
    """
    try:
        here = again(workload, cluster)
    except (ConfigError, CarbonSignalError):  # by the table's hours it leaves its trace, or its precision has no peak
        return ()
    found: list[Relation] = []
    for other in others:
        if other.name != device.name:
            basis = f"peak x utilisation and watts of each device's class ({device.family}, {other.family})"
            there = dataclasses.replace(cluster, device=other.name)
            found += _beside("device", other.name, workload, there, again, here, basis)
    for zone in zones:
        if zone.casefold() != cluster.zone.casefold():
            there = dataclasses.replace(cluster, zone=zone, g_per_kwh=None, trace_csv="")
            found += _beside("zone", zone, workload, there, again, here, "")
    if Gear.FP8 in device.peak_flop_s and workload.precision in (Gear.BF16, Gear.FP16):
        quicker = dataclasses.replace(workload, precision=Gear.FP8)
        basis = "published gain of whole steps over BF16, at most that of the peaks, at the same watts"
        found += _beside("precision", "FP8", quicker, cluster, again, here, basis)
    return tuple(found)


def start_hours(signal: Signal, duration_h: float, start: datetime | None, share: float) -> tuple[Relation, ...]:
    """Return the best and the worst hour to begin; nothing for a grid without hours, or a run of weeks.

    Args:
        signal: Carbon intensity of the grid.
        duration_h: Length of the run (h).
        start: Start of the run; its day is searched. None: the middle of each month of a typical year, or the first
            day of a trace.
        share: Share of the operational grams in all grams: they alone depend on the hour.
    """
    if isinstance(signal, ConstantSignal) or duration_h >= SHORT_H:
        return ()
    if start is not None:
        days = [start.astimezone(UTC)]
        basis = f"the grid on {days[0]:%Y-%m-%d}"
    elif isinstance(signal, TraceSignal):
        days = [datetime.fromtimestamp(signal.start_unix_s, UTC)]
        basis = f"the trace on {days[0]:%Y-%m-%d}"
    else:
        days = [datetime(signal.profile.year, month, 15, tzinfo=UTC) for month in range(1, 13)]
        basis = "typical year, mean over the twelve months"
    by_hour: dict[int, float] = {}
    for hour in range(24):
        try:
            by_hour[hour] = sum(
                over(signal, _at(day, hour, start is not None).timestamp(), duration_h) for day in days
            ) / len(days)
        except ConfigError:
            continue
    if not by_hour:
        return ()
    now = over(signal, days[0].timestamp(), duration_h) if len(days) == 1 else sum(by_hour.values()) / len(by_hour)
    if now <= 0:
        return ()
    than = "beside the estimate's start" if len(days) == 1 else "beside any hour"
    found = []
    for hour in (min(by_hour, key=by_hour.__getitem__), max(by_hour, key=by_hour.__getitem__)):
        times = two_digits(1.0 - share + share * by_hour[hour] / now)
        found.append(Relation(what="start", name=f"{hour:02d}:00 UTC", times=times, basis=f"{basis}, {than}"))
    return () if all(relation.times == 1.0 for relation in found) else tuple(found)


def two_digits(value: float) -> float:
    """Return a number rounded to two significant digits."""
    return float(f"{value:.2g}")


def _beside(
    what: str, name: str, workload: Workload, cluster: Cluster, again: Again, here: RunGrams, basis: str
) -> list[Relation]:
    try:
        there = again(workload, cluster)
    except (ConfigError, CarbonSignalError):  # a device without this precision, a zone that is not in the tables
        return []
    both = here.embodied is not None and there.embodied is not None
    before, after = (grams.operational + (grams.embodied or 0.0 if both else 0.0) for grams in (here, there))
    if before <= 0 or (what == "zone" and there == here):  # another spelling of the same place
        return []
    notes = [note for note in there.notes if note not in here.notes]
    parts = [basis or there.grid, *([] if both else ["operational alone: embodied carbon is not known"]), *notes]
    return [Relation(what=what, name=name, times=two_digits(after / before), basis="; ".join(parts))]


def _at(day: datetime, hour: int, same_day: bool) -> datetime:
    """Return an hour of a day, of the next where it is over on the first."""
    found = day.replace(hour=hour, minute=0, second=0, microsecond=0)
    return found + timedelta(days=1) if found < day and same_day else found
