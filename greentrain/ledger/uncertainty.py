"""How far the joules and grams of a run may be from the truth: 90 % intervals, and what widens them.

Distributions are propagated by drawing from them (JCGM 101:2008, supplement 1 to the GUM, JCGM 100:2008). A source of
error that several figures share is one and the same draw in all of them, so it adds up linearly; different sources are
drawn independently, so they add up in quadrature. Draws are stratified, mirrored and seeded by the name of their
source: the same books give the same interval. What is drawn:

calibration, model   rectangular, as far as the sensor states (GUM 4.3.7): one draw for all readings of a GPU, FPGA or
                     node, whose tolerance is that of its own parts; one for all CPUs or memory of a name, which are
                     read or modelled with the same constants
ends of the run      rectangular, half a tick, or half of what a sensor averages over, at the highest power
between readings     normal: how power varies over the phases, or the most it can between 0 and its limit, in the part
                     of a tick that the sensor does not see, over the root of the number of ticks
phases               normal, the standard error of the regression; of what nothing tells apart, and of readings that
                     several phases share, only the sum is known: each part's power is exponential (JCGM 101, 6.4.10),
                     ending at the device's limit where that is known, as maximum entropy has it with a mean and bounds
missing time         rectangular, from 0 W to the device's limit
PUE                  rectangular, by ``OVERHEAD`` and ``METERS``; normal where the user states its standard error
carbon intensity     normal, with the standard error that the source or the user states, for the whole run
embodied             rectangular, from low to mid and from mid to high, at once for all devices

Where a source of error has no figure, the bounds that it would move are None, and a sentence says why. An interval
speaks of what is counted; parts of the machines that no figure contains are told beside it.
"""

import functools
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from greentrain.ledger.reader import RankBooks, RankRecord
from greentrain.ledger.totals import DeviceSums, EntrySums
from greentrain.types import DeviceKind, PueSource

DRAWS: Final = 2000
"""Draws of each source: the bounds of a normal error are then within 2 % of its width."""
QUANTILES: Final = (0.05, 0.5, 0.95)
OVERHEAD: Final = 0.3
"""A configured PUE is a mean of the year (ISO/IEC 30134-2); its part above 1 is other in an hour. Our judgement: in
Google's fourth quarter of 2008 it was 16 % less than in the year (PUE 1.16, not 1.19: datacenterknowledge.com,
2009-01-28, read 2026-11-23), and hours vary more than quarters."""
METERS: Final = 0.02
"""A recorded PUE is the ratio of two meters, each within 1 % where they are of class 1 (IEC 62053-21)."""
_OWN: Final = (DeviceKind.GPU, DeviceKind.FPGA, DeviceKind.NODE)
MISSING: Final = "missing time"
Draws = npt.NDArray[np.float64]
Place = tuple[str, str]
"""Host and uid of a device."""
_Facts = tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, float], int]
"""Of a device: its sensor, its last attribution, what its readings share, and how many processes booked it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Where a quantity lies in 90 of 100 cases; None where nothing is known that bounds it."""

    low: float | None = None
    mid: float | None = None
    """As likely too low as too high. What may have been used in missing time is in it; the books' figure lacks that."""
    high: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    """Share of the variance by source, the largest first: what widens it most."""


@dataclass(slots=True)
class _Figure:
    """A quantity while it is added up: draws of its error by source, and which bounds are not known."""

    value: float = 0.0
    errors: dict[str, Draws] = field(default_factory=dict)
    no_low: bool = False
    no_high: bool = False

    def add(self, source: str, error: Draws) -> None:
        self.errors[source] = self.errors[source] + error if source in self.errors else error

    def plus(self, other: "_Figure") -> None:
        self.value += other.value
        for source, error in other.errors.items():
            self.add(source, error)
        self.no_low, self.no_high = self.no_low or other.no_low, self.no_high or other.no_high

    def times(self, scale: float, factors: Mapping[str, Draws]) -> "_Figure":
        """Return the quantity times a number, whose relative errors are given by source."""
        errors = {source: error * scale for source, error in self.errors.items()}
        out = _Figure(value=self.value * scale, errors=errors, no_low=self.no_low, no_high=self.no_high)
        for source, factor in factors.items():
            out.add(source, out.draws * factor)
        return out

    @property
    def draws(self) -> Draws:
        return sum(self.errors.values(), np.full(DRAWS, self.value))

    def interval(self) -> Interval:
        low, mid, high = np.quantile(self.draws, QUANTILES).tolist()
        parts = {source: float(np.var(error)) for source, error in self.errors.items()}
        whole = sum(parts.values())
        if not math.isfinite(whole):  # of books that were damaged: no figure is better than a wrong one
            return Interval(low=None, mid=None, high=None)
        return Interval(
            low=None if self.no_low else max(low, 0.0),
            mid=None if self.no_low or self.no_high else mid,
            high=None if self.no_high else high,
            parts={s: round(part / whole, 4) for s, part in sorted(parts.items(), key=lambda p: -p[1]) if part > 0},
        )


Pair = tuple[Interval | None, Interval | None]
"""Of energy (J) and of operational grams; None where the quantity itself is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunIntervals:
    """The intervals of a run."""

    total: Pair = (None, None)
    emissions_g: Interval | None = None
    """Of operational and embodied grams together."""
    devices: Mapping[Place, Pair] = field(default_factory=dict)
    phases: Mapping[str, Pair] = field(default_factory=dict)
    stages: Mapping[tuple[str, str], Interval] = field(default_factory=dict)
    """Of the energy (J) by phase and kind of device."""
    notes: Sequence[str] = ()
    """Why bounds are not known, in whole sentences."""


@np.errstate(over="ignore", invalid="ignore")
def intervals(ranks: Sequence[RankBooks | RankRecord], *, parts: bool = True) -> RunIntervals:
    """Return the intervals of a run.

    What earlier parts of it used whose journals are not here is taken to be as uncertain as the rest.

    Args:
        ranks: The books of its ranks.
        parts: False leaves out devices and phases.
    """
    sums, notes = EntrySums(), list[str]()
    known: dict[Place, _Facts] = {}
    for rank in ranks:
        host = str(rank.opens[0]["host"])
        sums.merge(rank.sums, host)
        for uid, sensor in rank.sensors.items():
            known[host, uid] = sensor, rank.told.get(uid, {}), rank.shared.get(uid, {}), len(rank.opens)
    whole, devices, phases = _Figure(), dict[Place, _Figure](), dict[str, _Figure]()
    stages: dict[tuple[str, str], _Figure] = {}
    for place, device in sums.devices.items():
        facts = known.get(place, ({}, {}, {}, 1))
        devices[place] = _device(place, device, facts, sums.phase_s, notes)
        whole.plus(devices[place])
        split = _phases(place, device, devices[place], facts, sums.phase_s) if parts else {}
        for name, part in split.items():
            phases.setdefault(name, _Figure()).plus(part)
            stages.setdefault((name, str(facts[0].get("kind"))), _Figure()).plus(part)
    if whole.value <= 0:
        return RunIntervals(notes=notes)
    if any(seconds > 0 for rank in ranks for seconds in rank.carried.missing_s.values()):
        whole.no_high = True
        notes.append("No upper bound: readings of an earlier part of the run are missing.")
    factors = _factors(sums, ranks)
    if sums.unstated_g > 0:
        notes.append("No interval of grams: nobody states how far the grid's intensity may be off.")

    def priced(figure: _Figure, operational_g: float) -> _Figure | None:
        if operational_g <= 0 or figure.value <= 0:
            return None
        grams = figure.times(operational_g / figure.value, factors)
        grams.no_low = grams.no_low or sums.unstated_g > 0
        grams.no_high = grams.no_high or sums.unstated_g > 0 or sums.unpriced_j > 0
        return grams

    def pair(figure: _Figure, operational_g: float) -> Pair:
        grams = priced(figure, operational_g)
        return figure.interval(), None if grams is None else grams.interval()

    before = {name: sum(getattr(r.carried, name) for r in ranks) for name in ("energy_j", "operational_g")}
    total = whole.times(1 + before["energy_j"] / whole.value, {})
    emissions = operational = priced(total, sums.operational_g + before["operational_g"])
    if operational is not None and sums.embodied_g > 0:
        emissions = _embodied(sums, {place: sensor for place, (sensor, *_) in known.items()}, ranks)
        emissions.plus(operational)
    by_device = {
        place: pair(devices[place], sum(part.operational_g for part in device.known.values()))
        for place, device in (sums.devices.items() if parts else ())
        if device.known
    }
    return RunIntervals(
        total=(total.interval(), None if operational is None else operational.interval()),
        emissions_g=None if emissions is None else emissions.interval(),
        devices=by_device,
        phases={name: pair(figure, sums.phase_g.get(name, 0.0)) for name, figure in phases.items()},
        stages={key: figure.interval() for key, figure in stages.items()},
        notes=list(dict.fromkeys(notes)),
    )


def _device(place: Place, device: DeviceSums, facts: _Facts, phase_s: Mapping[str, float], notes: list[str]) -> _Figure:
    """Return the energy of a device (J)."""
    sensor, told, _, starts = facts
    energy_j, missing_s = device.energy_j or 0.0, max(device.missing_s or 0.0, 0.0)
    figure, where, name = _Figure(value=energy_j), "/".join(place), sensor.get("name") or place[1]
    stated, limit_w = _number(sensor, "uncertainty"), _number(sensor, "limit_w") or 0.0
    modelled = sensor.get("provenance") == "modelled"
    if energy_j > 0 and (stated is None or len(device.known) > 1):
        figure.no_low = figure.no_high = True
        notes.append(f"No interval: nobody states how far the readings of {name} may be off ({sensor.get('method')}).")
    elif energy_j > 0 and stated is not None:
        one = where if sensor.get("kind") in _OWN else f"{sensor.get('method')} {name}"
        figure.add(f"{'model' if modelled else 'calibration'} of {name}", energy_j * stated * _even(one))
    if energy_j > 0 and device.known_s > 0 and not modelled:
        mean_w = energy_j / device.known_s
        peak_w = max(device.peak_w or 0.0, mean_w)
        tick_s, average_s, period_s = (_number(sensor, key) or 0.0 for key in ("tick_s", "averaging_s", "period_s"))
        at_ends = np.sum([_even(f"{where} {n}") for n in range(2 * starts)], axis=0)
        figure.add("ends of the run", peak_w * max(tick_s, average_s) / 2 * at_ends)
        seen = told["sees_s"] / told["tick_s"] if told else _number(sensor, "seen_share") or 1.0
        unseen_s = tick_s * (1 - min(seen, 1.0)) if tick_s or average_s else period_s
        spread_w = _spread_w(mean_w, max(limit_w, peak_w), told, phase_s)
        figure.add("between readings", spread_w * (unseen_s * device.known_s) ** 0.5 * _normal(f"{where} between"))
    if missing_s > 0 and limit_w:
        figure.add(MISSING, missing_s * limit_w * (1 + _even(f"{where} missing")) / 2)
    elif missing_s > 0:
        figure.no_high = True
        notes.append(f"No upper bound: {name} was not read for {missing_s:.4g} s, and its power limit is not known.")
    return figure


def _number(sensor: Mapping[str, Any], key: str) -> float | None:
    """Return a figure of a sensor; None where its record has none that makes sense."""
    value = sensor.get(key)
    return float(value) if isinstance(value, int | float) and 0 <= value < np.inf else None


def _spread_w(mean_w: float, most_w: float, told: Mapping[str, Any], phase_s: Mapping[str, float]) -> float:
    """Return the standard deviation of a device's power (W): that of its phases, or the largest that is possible."""
    rows = told.get("phases", {})
    power_w = np.array([row["w"] for row in rows.values()], dtype=float)
    seconds = np.array([phase_s.get(name, 0.0) for name in rows])
    if seconds.sum() <= 0:
        return float(max(mean_w * (most_w - mean_w), 0.0) ** 0.5)  # Bhatia and Davis, Am. Math. Monthly 107(4), 2000
    return float(np.average((power_w - np.average(power_w, weights=seconds)) ** 2, weights=seconds) ** 0.5)


def _phases(
    place: Place, device: DeviceSums, whole: _Figure, facts: _Facts, phase_s: Mapping[str, float]
) -> dict[str, _Figure]:
    """Return the energy of each phase on a device (J)."""
    figures = {name: _Figure(value=energy_j) for name, energy_j in device.phases.items()}
    sensor, told, shared, _ = facts
    errors = {name: row["error"] for name, row in told.get("phases", {}).items() if row["error"] < 1}
    apart = {
        name: figures[name].value * errors[name] * _normal(f"{place} {name}") for name in figures if name in errors
    }
    pool = {
        name: figure.value * (1.0 if told else shared.get(name, 1.0))
        for name, figure in figures.items()
        if name not in apart and figure.value > 0
    }
    pool_j, limit_w = sum(pool.values()), _number(sensor, "limit_w") or np.inf
    on_s = device.known_s / (sum(phase_s.values()) or 1.0)
    weights = {
        name: pool[name] * _up_to(limit_w * on_s * phase_s.get(name, 0.0) / figures[name].value, f"{place} {name}")
        for name in pool
    }
    summed = sum(weights.values(), np.zeros(DRAWS))
    rest_j = -sum(apart.values(), np.zeros(DRAWS))  # what the others have too much, these have too little
    for name, figure in figures.items():
        if name in apart:
            figure.add("phases", apart[name])
        elif pool_j > 0 and name in pool:
            figure.add("phases", np.maximum(pool_j + rest_j, 0.0) * weights[name] / summed - pool[name])
        for source, error in whole.errors.items():
            share = figure.value / whole.value if whole.value > 0 else 0.0
            if source == MISSING:
                share = phase_s.get(name, 0.0) / (sum(phase_s.values()) or 1.0)
            figure.add(source, error * share)
        figure.no_low, figure.no_high = whole.no_low, whole.no_high
    return figures


def _factors(sums: EntrySums, ranks: Sequence[RankBooks | RankRecord]) -> dict[str, Draws]:
    """Return the relative errors of PUE and intensity."""
    factors = {"PUE": np.zeros(DRAWS), "carbon intensity": np.zeros(DRAWS)}
    stated = [error for rank in ranks for error in [_number(rank.opens[-1], "pue_error")] if error is not None]
    if stated:  # a facility uses no less than its devices
        factors["PUE"] = np.maximum(stated[0] * _normal("pue"), sums.energy_j / sums.facility_j - 1)
    overhead = OVERHEAD * (1 - sums.energy_j / sums.facility_j) if sums.facility_j > 0 else 0.0
    for source, energy_j in () if stated else sums.pue_j.items():
        recorded = source in (PueSource.TRACE, PueSource.PROMETHEUS)
        share = energy_j / sum(sums.pue_j.values())
        factors["PUE"] += share * (METERS if recorded else overhead) * _even(f"pue {recorded}")
    for key, error_g in sums.stated_g.items() if sums.operational_g > 0 else ():
        factors["carbon intensity"] += error_g / sums.operational_g * _normal(f"grid {key}")
    return factors


def _embodied(
    sums: EntrySums, sensors: Mapping[Place, Mapping[str, Any]], ranks: Sequence[RankBooks | RankRecord]
) -> _Figure:
    rates = [(one.booked_s, sensors.get(place, {}).get("embodied_g_per_h")) for place, one in sums.devices.items()]
    low, mid, high = (sum(s * rate[name] for s, rate in rates if rate) for name in ("low", "mid", "high"))
    figure = _Figure(value=sums.embodied_g + sum(rank.carried.embodied_g for rank in ranks))
    figure.no_low = figure.no_high = mid <= 0
    if mid > 0:
        side = _even("embodied")
        figure.add("embodied", figure.value * np.where(side < 0, side * (1 - low / mid), side * (high / mid - 1)))
    return figure


def _strata(name: str) -> npt.NDArray[np.int64]:
    """Return the stratum of each draw of a source, of ``DRAWS``: each once, the second half the mirror of the first."""
    rng = np.random.default_rng(zlib.crc32(name.encode("utf-8", "replace")))
    half = rng.permutation(DRAWS // 2)
    half = np.where(rng.random(DRAWS // 2) < 0.5, half, DRAWS - 1 - half)
    return np.concatenate([half, DRAWS - 1 - half])


def _even(name: str) -> Draws:
    """Return draws between -1 and 1, all equally likely."""
    return (2 * _strata(name) + 1) / DRAWS - 1


def _up_to(most: float, name: str) -> Draws:
    """Return draws from 0 to ``most``, of mean 1 and else as spread out as can be: exponential without a bound."""
    even = (1 + _even(name)) / 2
    if not 1.03 < most < 30:
        return -np.log1p(-even) if most > 1.03 else np.ones(DRAWS)
    rates = np.linspace(-30.0, 30.0, 600)  # of the density exp(-rate x) from 0 to 1; none is 0
    rate = np.interp(-1 / most, 1 / np.expm1(rates) - 1 / rates, rates) or 1e-6
    drawn: Draws = most * -np.log1p(even * np.expm1(-rate)) / rate
    return drawn


def _normal(name: str) -> Draws:
    """Return draws of the standard normal distribution."""
    return _normal_strata()[_strata(name)]


@functools.cache
def _normal_strata() -> Draws:
    return np.array([NormalDist().inv_cdf((stratum + 0.5) / DRAWS) for stratum in range(DRAWS)])
