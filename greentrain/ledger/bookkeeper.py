"""One interval at a time: curves x timeline x grid intensity x PUE -> a ledger entry.

Operational emissions: energy x facility overhead x carbon intensity.
"""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from greentrain.ledger.embodied import EmbodiedRate
from greentrain.ledger.pue import Facility
from greentrain.ledger.timeline import Floats, Mark, Slice, Timeline
from greentrain.power.curve import EnergyCurve
from greentrain.types import (
    S_PER_HOUR,
    CarbonPoint,
    CarbonSignal,
    DeviceEnergy,
    GearUse,
    LedgerEntry,
    Provenance,
    Sensor,
    grams,
)


def operational_g(energy_j: float, point: CarbonPoint, pue: float) -> float | None:
    """Return the operational emissions of an interval (gCO2e).

    Args:
        energy_j: Energy of the IT equipment over the interval (J).
        point: Carbon intensity over the same interval.
        pue: Power usage effectiveness: facility energy / IT energy, at least 1.

    Returns:
        Grams, or None where the intensity is not known: unknown is not 0.
    """
    if point.g_per_kwh is None:
        return None
    return grams(energy_j * pue, point.g_per_kwh)


STEP_GROUPS = 64
"""Most step records an entry; more steps than that are merged evenly, so a line stays small."""


class Bookkeeper:
    """Cuts the run into ledger entries.

    Args:
        t0_s: Monotonic start of the books (s).
        unix_offset_s: Unix time minus monotonic time (s), fixed at the start.
        signal: Carbon intensity.
        facility: Its PUE, in real time.
    """

    def __init__(self, *, t0_s: float, unix_offset_s: float, signal: CarbonSignal, facility: Facility) -> None:
        self._offset_s = unix_offset_s
        self._signal = signal
        self._facility = facility
        self.timeline = Timeline(t0_s)
        self._step_j = 0.0
        self._booked_j = 0.0

    @property
    def t_s(self) -> float:
        """Monotonic time up to which the books are closed (s)."""
        return self.timeline.t_s

    def book(
        self,
        t1_s: float,
        curves: Mapping[str, EnergyCurve],
        unread: Sequence[Sensor] = (),
        embodied: Mapping[str, EmbodiedRate] | None = None,
    ) -> LedgerEntry:
        """Close the interval from the last call to ``t1_s``.

        Args:
            t1_s: End of the interval (s); every curve should be known up to it.
            curves: By device uid.
            unread: Devices that are known to exist but cannot be read: booked as missing.
            embodied: Embodied rate by device uid, of the devices that have one.
        """
        t0_s = self.t_s
        t1_s = max(t0_s, t1_s)  # a clock that fell back: no interval has a negative length
        cut = self.timeline.cut(t1_s)
        devices: dict[str, DeviceEnergy] = {}
        inclusive: dict[str, float] = {}
        spent: list[tuple[Provenance, Floats, Floats]] = []
        opened = _opened(cut)
        step_t = np.array([mark.t_s for mark in cut.steps])
        step_cum = np.zeros(len(cut.steps))
        for uid, curve in curves.items():
            energy, missing = curve.at(cut.bounds_s)
            spent.append((curve.sensor.provenance, np.diff(energy), np.diff(missing)))
            by_phase = np.bincount(cut.phase, weights=np.diff(energy), minlength=len(cut.names))
            devices[uid] = DeviceEnergy(
                energy_j=float(energy[-1] - energy[0]),
                provenance=curve.sensor.provenance,
                missing_s=float(missing[-1] - missing[0]),
                phases={cut.names[i]: float(by_phase[i]) for i in np.unique(cut.phase)},
            )
            for name, times in opened.items():
                spans, _ = curve.at(times)
                inclusive[name] = inclusive.get(name, 0.0) + float(np.sum(spans[:, 1] - spans[:, 0]))
            if len(step_t):
                step_cum += curve.at(step_t)[0] - energy[0]
        for sensor in unread:
            devices[sensor.device.uid] = DeviceEnergy(
                energy_j=0.0, provenance=Provenance.MISSING, missing_s=t1_s - t0_s, phases={}
            )
        seconds = np.bincount(cut.phase, weights=np.diff(cut.bounds_s), minlength=len(cut.names))
        carbon = self._signal.mean(t0_s + self._offset_s, t1_s + self._offset_s)
        pue = self._facility.pue(t0_s + self._offset_s, t1_s + self._offset_s)
        energy_j = sum(device.energy_j for device in devices.values())
        groups = self._group_steps(cut.steps, step_cum)
        self._booked_j += energy_j
        rates = [rate for uid, rate in (embodied or {}).items() if uid in devices]
        hours = (t1_s - t0_s) / S_PER_HOUR
        return LedgerEntry(
            t0_unix_s=t0_s + self._offset_s,
            t1_unix_s=t1_s + self._offset_s,
            devices=devices,
            phase_s={cut.names[i]: float(seconds[i]) for i in np.unique(cut.phase)},
            phase_inclusive_j=inclusive,
            carbon=carbon,
            pue=pue.value,
            pue_source=pue.source,
            operational_g=operational_g(energy_j, carbon, pue.value),
            embodied_g=sum(rate.mid_g_per_h for rate in rates) * hours if rates else None,
            steps=_steps(cut.steps),
            tokens=sum(mark.tokens for mark in cut.steps),
            samples=sum(mark.samples for mark in cut.steps),
            step_groups=groups,
            gears=_by_gear(cut, spent, len(unread)),
        )

    def _group_steps(self, steps: Sequence[Mark], cumulative_j: Floats) -> list[tuple[int, float, float, int]]:
        if not steps:
            return []
        ends = np.unique(np.linspace(0, len(steps), min(len(steps), STEP_GROUPS) + 1).astype(int))
        groups = []
        for start, end in itertools.pairwise(ends):
            total_j = self._booked_j + float(cumulative_j[end - 1])
            tokens = sum(mark.tokens for mark in steps[start:end])
            t_s = round(steps[end - 1].t_s + self._offset_s, 4)
            groups.append((_steps(steps[start:end]), t_s, round(total_j - self._step_j, 6), tokens))
            self._step_j = total_j
        return groups


def _steps(marks: Sequence[Mark]) -> int:
    return sum(mark.kind == "step" for mark in marks)


def _by_gear(cut: Slice, spent: Sequence[tuple[Provenance, Floats, Floats]], unread: int) -> dict[str, GearUse]:
    """Sum a slice by gear.

    Args:
        cut: The slice.
        spent: Provenance of each device, its joules and its missing seconds by segment, shape (n,) each.
        unread: Devices that cannot be read.
    """
    if len(cut.gears) == 1:
        return {}
    count = len(cut.gears)
    length_s = np.diff(cut.bounds_s)
    energy_j, modelled_j, missing_s = np.zeros(len(length_s)), np.zeros(len(length_s)), unread * length_s
    for provenance, joules, blind_s in spent:
        energy_j += joules
        missing_s += blind_s
        if provenance is Provenance.MODELLED:
            modelled_j += joules
    energy, modelled, missing, seconds = (
        np.bincount(cut.gear, weights=values, minlength=count).tolist()
        for values in (energy_j, modelled_j, missing_s, length_s)
    )
    done = [(0, 0, 0)] * count
    for mark, gear in zip(cut.steps, cut.step_gear, strict=True):
        steps, tokens, samples = done[gear]
        done[gear] = (steps + (mark.kind == "step"), tokens + mark.tokens, samples + mark.samples)
    return {
        cut.gears[i]: GearUse(
            energy_j=energy[i],
            modelled_j=modelled[i],
            missing_s=missing[i],
            device_s=seconds[i] * (len(spent) + unread),
            seconds=seconds[i],
            steps=done[i][0],
            tokens=done[i][1],
            samples=done[i][2],
        )
        for i in range(1, count)
        if seconds[i] > 0 or any(done[i])
    }


def _opened(cut: Slice) -> dict[str, Floats]:
    times: dict[str, list[tuple[float, float]]] = {}
    for name, start_s, end_s in cut.open_s:
        times.setdefault(name, []).append((start_s, end_s))
    return {name: np.array(spans) for name, spans in times.items()}
