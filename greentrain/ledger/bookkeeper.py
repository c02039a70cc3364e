"""One interval at a time: curves x timeline x grid intensity x PUE -> a ledger entry.

The training thread only appends marks (time, what). Here they become segments: at every instant the time
belongs to the phase that was entered last and is still open, so exclusive phases never overlap and sum to the
whole, whichever way phases nest, overlap or come from other threads. Beside its phase, every segment has the
precision gear it ran in: a second labelling of the same time, with no nesting.
"""

import copy
import dataclasses
import itertools
import math
import operator
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from greentrain.ledger.embodied import EmbodiedRate
from greentrain.ledger.journal import add_states
from greentrain.ledger.pue import Facility
from greentrain.power.device_clock import Stamps
from greentrain.power.phase_power import Floats, Ints, LabelSeconds, PhaseFit, PhasePower
from greentrain.power.sampler import EnergyCurve
from greentrain.types import (
    IDLE_PHASES,
    S_PER_HOUR,
    Attribution,
    CarbonPoint,
    CarbonSignal,
    DeviceEnergy,
    DeviceState,
    GearUse,
    LedgerEntry,
    Phase,
    PriceSignal,
    Provenance,
    Sensor,
    grams,
)

SETTINGS: Final = ("gear", "cap", "clock")
"""Kinds of marks that say how a device runs from here on."""
_PHASES: Final = ("begin", "end")
MAX_OPEN = 64
"""Phases open at once; more are a forgotten end() and the oldest is closed."""


class Mark(NamedTuple):
    """One mark of the training thread."""

    t_s: float
    """Monotonic time (s)."""
    kind: str
    """``begin``, ``end``, ``gear``, ``cap``, ``clock``, ``step``, or ``count``: tokens or samples of a step that goes
    on."""
    name: str = ""
    """Phase name of a begin or end; gear, power cap or clock from here on, empty for none."""
    token: int = 0
    """Pairs a begin with its end; 0 = the last one open of that name. Of a step or count: which one it is."""
    tokens: int = 0
    samples: int = 0
    steps: int = 1
    """Steps that a ``step`` stands for: more than one where marks were folded."""
    stamps: Stamps = ()
    """Events that devices recorded at it."""


def folded(marks: Iterable[tuple[Any, ...]]) -> Iterator[Mark]:
    """Yield fewer marks that count the same steps, tokens and samples, and leave the same phases open.

    The time of phases that begin and end among them counts to what is open around them.

    Args:
        marks: Fields of marks, in order of time.
    """
    phases: dict[int, tuple[Any, ...]] = {}
    t_s = steps = tokens = samples = 0

    def counted() -> Iterator[Mark]:
        if steps or tokens or samples:
            yield Mark(t_s, "step" if steps else "count", "", 0, tokens, samples, steps)

    for mark in marks:
        kind = mark[1]
        if kind in ("step", "count"):
            t_s = mark[0]
            steps += kind == "step"
            tokens += mark[4]
            samples += mark[5]
        elif kind == "begin":
            phases[mark[3]] = mark
        elif kind in SETTINGS:
            yield from counted()  # what was done before, was done in the gear before
            steps = tokens = samples = 0
            yield Mark(*mark)
        else:
            token = mark[3] or next((token for token in reversed(phases) if phases[token][2] == mark[2]), 0)
            if phases.pop(token, None) is None:
                yield Mark(*mark)
    yield from counted()
    yield from itertools.starmap(Mark, phases.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseSlice:
    """The segments of one ledger interval."""

    bounds_s: Floats
    """Segment boundaries (s), shape (n + 1,)."""
    phase: npt.NDArray[np.intp]
    """Index into ``names`` of each segment, shape (n,)."""
    names: Sequence[str]
    gear: npt.NDArray[np.intp]
    """Index into ``gears`` of each segment, shape (n,)."""
    gears: Sequence[str]
    """Names of gears; the first is empty: time in no gear."""
    open_s: Sequence[tuple[str, float, float]] = field(default_factory=tuple)
    """(phase, from, to) while at least one phase of that name was open."""
    steps: Sequence[Mark] = field(default_factory=tuple)
    step_gear: Sequence[int] = ()
    """Index into ``gears`` of each of ``steps``: the gear they ended in."""
    limit: npt.NDArray[np.intp]
    """Number of the power cap and clock of each segment, shape (n,)."""


class PhaseTimeline:
    """Turns marks into slices, keeping what is open from one slice to the next.

    Args:
        t0_s: Start of the first slice (s).
    """

    def __init__(self, t0_s: float) -> None:
        self._t_s = t0_s
        self._stack: list[tuple[str, int]] = []
        self._since: dict[str, float] = {}
        self._pending: list[Mark] = []
        self._names: list[str] = [Phase.OTHER.value]
        self._ids: dict[str, int] = {Phase.OTHER.value: 0}
        self._gears: dict[str, int] = {"": 0}
        self._gear = self._limit = 0
        self._limits: dict[tuple[str, str], int] = {("", ""): 0}
        self._limited: dict[str, str] = {"cap": "", "clock": ""}

    @property
    def t_s(self) -> float:
        """End of the last slice (s)."""
        return self._t_s

    @property
    def names(self) -> Sequence[str]:
        """Names of phases so far."""
        return self._names

    @property
    def names_open(self) -> set[str]:
        """Names of phases that are open, or are in marks that are in no slice yet."""
        return {name for name, _ in self._stack} | {mark.name for mark in self._pending if mark.kind in _PHASES}

    @property
    def waiting(self) -> int:
        """Marks that are in no slice yet."""
        return len(self._pending)

    def ahead(self, t1_s: float) -> PhaseSlice:
        """Return the slice that :meth:`cut` would, and drop nothing."""
        other = self.copied()
        other._names, other._ids, other._gears = list(self._names), dict(self._ids), dict(self._gears)
        other._limits = dict(self._limits)
        return other.cut(t1_s)

    def copied(self) -> "PhaseTimeline":
        """Return one that goes on alone from here, and numbers phases and gears with this one."""
        other = copy.copy(self)
        other._stack, other._since, other._pending = list(self._stack), dict(self._since), list(self._pending)
        other._limited = dict(self._limited)
        return other

    def add(self, marks: Iterable[Mark]) -> None:
        """Add marks, roughly in order of time. Of marks at the same time, the one added first counts first."""
        self._pending.extend(marks)

    def cut(self, t1_s: float) -> PhaseSlice:
        """Return the slice from the end of the last one to ``t1_s`` and drop its marks."""
        marks = sorted(self._pending, key=operator.itemgetter(0))  # by their time
        bounds = [self._t_s]
        phases: list[int] = []
        gears: list[int] = []
        limits: list[int] = []
        intervals: list[tuple[str, float, float]] = []
        steps: list[Mark] = []
        step_gear: list[int] = []
        used = 0
        for mark in marks:
            if mark.t_s > t1_s:
                break
            used += 1
            if mark.kind in ("step", "count"):
                steps.append(mark)
                step_gear.append(self._gear)
                continue
            top, gear, limit = self._top(), self._gear, self._limit
            t_s = max(mark.t_s, bounds[-1])
            if mark.kind == "gear":
                self._gear = self._gears.setdefault(mark.name, len(self._gears))
            elif mark.kind in SETTINGS:
                self._limited[mark.kind] = mark.name
                both = self._limited["cap"], self._limited["clock"]
                self._limit = self._limits.setdefault(both, len(self._limits))
            else:
                closed = self._apply(mark, t_s)
                if closed is not None:
                    intervals.append(closed)
            if (self._top(), self._gear, self._limit) != (top, gear, limit) and t_s > bounds[-1]:
                bounds.append(t_s)
                phases.append(top)
                gears.append(gear)
                limits.append(limit)
        self._pending = marks[used:]
        bounds.append(max(t1_s, bounds[-1]))
        phases.append(self._top())
        gears.append(self._gear)
        limits.append(self._limit)
        for name, since_s in self._since.items():
            intervals.append((name, since_s, bounds[-1]))
            self._since[name] = bounds[-1]
        self._t_s = bounds[-1]
        return PhaseSlice(
            bounds_s=np.array(bounds),
            phase=np.array(phases, dtype=np.intp),
            names=tuple(self._names),
            gear=np.array(gears, dtype=np.intp),
            gears=tuple(self._gears),
            limit=np.array(limits, dtype=np.intp),
            open_s=[interval for interval in intervals if interval[2] > interval[1]],
            steps=steps,
            step_gear=step_gear,
        )

    def _top(self) -> int:
        if not self._stack:
            return 0
        return self._ids[self._stack[-1][0]]

    def _apply(self, mark: Mark, t_s: float) -> tuple[str, float, float] | None:
        name = mark.name
        if mark.kind == "begin":
            if name not in self._ids:
                self._ids[name] = len(self._names)
                self._names.append(name)
            self._stack.append((name, mark.token))
            self._since.setdefault(name, t_s)
            if len(self._stack) > MAX_OPEN:
                return self._close(0, t_s)
            return None
        for i in range(len(self._stack) - 1, -1, -1):
            if self._stack[i][0] == name and mark.token in (0, self._stack[i][1]):
                return self._close(i, t_s)
        return None

    def _close(self, i: int, t_s: float) -> tuple[str, float, float] | None:
        name, _ = self._stack.pop(i)
        if any(other == name for other, _ in self._stack):
            return None
        return (name, self._since.pop(name), t_s)


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


AROUND_S: Final = 5.0
"""Time around a window whose ticks say how much there is to split (s)."""
RESOLVED: Final = 3.0
"""Mean length of a phase, in ticks, from which on most of it lies in ticks of its own."""
TOLD: Final = 0.08
"""Largest standard error of a phase's energy, as a share of it, with which it is told: 95 of 100 are then within a
sixth of it."""
BLURRED: Final = 0.1
"""Share of a gear's time in readings with other time from which on it is not told."""


SAMPLE_S: Final = 1.0
"""NVML's longest sample period (s): what a driver tells of its last one is given to the phases of this time."""
MOST_STATES: Final = 1024
"""Looks at a device that wait to be booked; a rank books every ten seconds."""


class BelowTheTick:
    """How the energy of a device whose counter ticks is split between ticks.

    What was booked while its phases were known less well is split again when they are known better, as long as all of
    it is remembered, and the difference is moved with the next interval.

    Args:
        tick_s: Refresh period of the counter (s).
    """

    def __init__(self, tick_s: float) -> None:
        self.power = PhasePower(tick_s)
        self._since_s: float | None = math.inf
        """From when on what is booked may be split anew; infinite before the first interval, None: no more."""
        self._booked_j: Floats = np.zeros(0)
        self._open_s: Floats = np.zeros(0)
        """How long each label has lasted in what may be split anew (s)."""
        self._error_j: Floats = np.zeros(0)
        """By label, standard error of what may not (J), as it was known when it was booked."""
        self._over_j: Floats = np.zeros(0)
        """By label, what was booked more than its power says, as the counter has another sum (J)."""
        self._open_over_j: Floats = np.zeros(0)
        """The same of what may be split anew."""

    def book(
        self, curve: EnergyCurve, bounds_s: Floats, label: Ints, *, last: bool
    ) -> tuple[Callable[[Floats], Floats], Mapping[int, float]]:
        """Split an interval, which follows the one before.

        Args:
            curve: The device's.
            bounds_s: Bounds of its segments (s), shape (m + 1,).
            label: Label of each segment, shape (m,).
            last: No other follows.

        Returns:
            Energy as a function of time in the interval (J), and what earlier intervals owe to each label (J), by
            label; these sum to 0.
        """
        t0_s, t1_s = float(bounds_s[0]), float(bounds_s[-1])
        if not t0_s < t1_s:
            return lambda t_s: curve.at(t_s)[0], {}
        if self._since_s == math.inf:
            self._since_s = t0_s
        before, ticks = self.power.fit, curve.ticks(t1_s)
        self.power.add(bounds_s, label, ticks[:, 0], ticks[:, 1])
        if last:
            self.power.refit()
        moved = {} if self.power.fit is before else self._moved(t0_s, before)
        self._open_s = _summed(self._open_s, np.bincount(label, weights=np.diff(bounds_s)))
        energy_j, missing_s = curve.at(bounds_s[[0, -1]])
        nodes_s = self.power.nodes_s(t0_s, t1_s)
        used_j, over_j = None, np.zeros(0)
        if missing_s[1] != missing_s[0]:
            self._since_s = None  # nobody knows what of it was in the gap
        elif len(set(label.tolist())) > 1:
            used_j, over_j = self._split(nodes_s, float(energy_j[1] - energy_j[0]))
        self._over_j, self._open_over_j = _summed(self._over_j, over_j), _summed(self._open_over_j, over_j)
        if self._since_s is not None:
            at_nodes_j = curve.at(nodes_s)[0] if used_j is None else used_j
            by_label = np.bincount(self.power.labels(nodes_s), weights=np.diff(at_nodes_j))
            self._booked_j = _summed(self._booked_j, by_label)
        else:
            self._error_j, self._open_s = self._errors_j(self.power.fit), np.zeros(0)
        if used_j is None:
            return lambda t_s: curve.at(t_s)[0], moved
        return lambda t_s: np.interp(t_s, nodes_s, energy_j[0] + used_j), moved

    def between(self, curve: EnergyCurve, bounds_s: Floats, label: Ints, t0_s: float, t1_s: float) -> float | None:
        """Return the energy of a window (J); None where the straight line between ticks says it as well.

        Args:
            curve: The device's.
            bounds_s: Bounds of the segments that are not booked yet (s), up to where the curve is known.
            label: Label of each.
            t0_s: Start of the window (s).
            t1_s: Its end (s).
        """
        power = self.power.since(t0_s - AROUND_S)
        end_s = float(bounds_s[-1])
        if end_s > bounds_s[0]:
            ticks = curve.ticks(end_s, take=False)
            power.add(bounds_s, label, ticks[:, 0], ticks[:, 1])
        a_s, b_s = t0_s - AROUND_S + 2 * self.power.tick_s, min(t1_s + AROUND_S, end_s)
        if not power.covers(a_s):
            a_s = t0_s
        if not power.covers(a_s) or t1_s > end_s:
            return None
        total_j, missing_s = curve.between(a_s, b_s)
        nodes_s = power.nodes_s(a_s, b_s)
        if missing_s or len(set(power.labels(nodes_s).tolist())) < 2:
            return None
        used_j = power.spread(nodes_s, total_j)
        return None if used_j is None else float(np.diff(np.interp([t0_s, t1_s], nodes_s, used_j))[0])

    def told(
        self, fit: PhaseFit, phase: Ints, label_s: Floats, label_n: Floats, names: Sequence[str]
    ) -> dict[str, Any]:
        """Return what is seen of a tick, and how each phase is told from the others.

        Args:
            fit: The last one.
            phase: Phase of each label, shape (K,).
            label_s: How long each has lasted (s), shape (K,).
            label_n: How often, shape (K,).
            names: Names of phases.
        """
        tick_s = self.power.tick_s
        known = slice(len(fit.power_w))
        phase, label_s = phase[known], label_s[known]
        energy_j, error_j, seconds, times = (
            np.bincount(phase, weights=values)
            for values in (fit.power_w * label_s, self._errors_j(fit)[known], label_s, label_n[known])
        )
        told = {}
        over_j = np.bincount(phase, weights=_summed(np.zeros(len(phase)), self._over_j)[: len(phase)])
        for i in np.flatnonzero(seconds).tolist():
            error = min(float(np.hypot(error_j[i], over_j[i]) / energy_j[i]), 1.0) if energy_j[i] > 0 else 1.0
            how = Attribution.REGRESSED if error <= TOLD else Attribution.BLURRED
            if seconds[i] > RESOLVED * tick_s * times[i]:
                how = Attribution.RESOLVED
            told[names[i]] = {"how": str(how), "error": round(error, 4), "w": round(float(energy_j[i] / seconds[i]), 2)}
        return {
            "readings": fit.rows,
            "tick_s": round(tick_s, 6),
            "sees_s": round(fit.width * tick_s, 6),
            "late_s": round(fit.lag * tick_s, 6),
            "phases": told,
        }

    def _split(self, nodes_s: Floats, total_j: float) -> tuple[Floats | None, Floats]:
        """Return what of an interval was used by each of some times (J), and by label what the counter adds (J)."""
        said_j = self.power.said(nodes_s)
        if said_j is None:
            return None, np.zeros(0)
        more = total_j / float(said_j[-1])
        by_label = np.bincount(self.power.labels(nodes_s), weights=np.diff(said_j)).astype(np.float64)
        return more * said_j, (more - 1) * by_label

    def _errors_j(self, fit: PhaseFit | None) -> Floats:
        """Return the standard error of what is booked by a fit and before, by label (J); their signs are alike."""
        error_w = np.zeros(0) if fit is None else fit.error_w
        open_s = _summed(np.zeros_like(error_w), self._open_s)
        return _summed(self._error_j, open_s[: len(error_w)] * error_w)

    def _moved(self, t0_s: float, before: PhaseFit | None) -> Mapping[int, float]:
        """Split anew what is booked up to a time, as the fit before said."""
        since_s, booked_j = self._since_s, self._booked_j
        if since_s is None or not since_s < t0_s or not self.power.covers(since_s):
            self._error_j, self._open_s, self._since_s = self._errors_j(before), np.zeros(0), None
            return {}
        nodes_s = self.power.nodes_s(since_s, t0_s)
        used_j, over_j = self._split(nodes_s, float(booked_j.sum()))
        if used_j is None:
            return {}
        self._over_j = _summed(_summed(self._over_j, -self._open_over_j), over_j)
        self._open_over_j = over_j
        again_j = np.bincount(self.power.labels(nodes_s), weights=np.diff(used_j))
        self._booked_j = _summed(np.zeros_like(booked_j), again_j)
        return dict(enumerate((self._booked_j - booked_j).tolist()))


def _summed(sums: Floats, more: npt.NDArray[Any]) -> Floats:
    """Return the sums where ``more`` may have entries that there were none of before."""
    found = np.zeros(max(len(sums), len(more)))
    found[: len(sums)] += sums
    found[: len(more)] += more
    return found


class _Track:
    """The phases by one clock, the host's or a device's own, and what was spent in them.

    Args:
        timeline: The phases.
    """

    def __init__(self, timeline: PhaseTimeline) -> None:
        self.timeline = timeline
        self.slice: PhaseSlice
        """The last interval."""
        self._before: PhaseSlice | None = None
        """The one before."""
        self.label: Ints
        """Label of each of its segments."""
        self.opened: dict[str, Floats] = {}
        """From when to when each phase was open in it (s), shape (n, 2)."""
        self.label_s: Floats = np.zeros(0)
        self.label_n: Floats = np.zeros(0)
        self.clocks: dict[str, str] = {}
        """By phase, whose times its marks have."""
        self._inside_s: dict[str, Floats] = {}
        """By phase, how long each label lasted while it was open (s)."""
        self._spent_j = 0.0
        self._step_j: Floats = np.zeros(0)
        self._ended: deque[tuple[float, Mark, float]] = deque()
        """Steps: when they ended (s), and what was spent until then (J)."""

    def copied(self) -> "_Track":
        """Return one of a device on which nothing was spent yet."""
        other = _Track(self.timeline.copied())
        other._ended.extend((t_s, mark, 0.0) for t_s, mark, _ in self._ended)
        other.label_s, other.label_n, other._inside_s = self.label_s, self.label_n, dict(self._inside_s)
        other.clocks = dict.fromkeys(other.timeline.names_open, "host")
        return other

    def add(self, marks: Sequence[tuple[float, bool, Mark]]) -> None:
        """Add marks: time (s), whether the clock is the device's own, the mark."""
        for _, own, mark in marks:
            if mark.kind in _PHASES:
                clock = "device" if own else "host"
                if self.clocks.setdefault(mark.name, clock) != clock:
                    self.clocks[mark.name] = "mixed"
        self.timeline.add(mark._replace(t_s=t_s, stamps=()) for t_s, _, mark in marks)

    def cut(self, t1_s: float, numbers: Callable[[PhaseSlice], Ints]) -> None:
        """End an interval, number its segments, and note how long each number has lasted."""
        self._before = getattr(self, "slice", None)
        cut = self.slice = self.timeline.cut(t1_s)
        self.opened, self.label = _opened(cut), numbers(cut)
        seconds = LabelSeconds(cut.bounds_s, self.label, int(self.label.max()) + 1)
        self.label_s = _summed(self.label_s, seconds(cut.bounds_s[-1:])[0])
        self.label_n = _summed(self.label_n, np.bincount(self.label))
        for name, spans in self.opened.items():
            inside_s = (seconds(spans[:, 1]) - seconds(spans[:, 0])).sum(axis=0)
            self._inside_s[name] = _summed(self._inside_s.get(name, np.zeros(0)), inside_s)
        self._step_j = np.full(len(cut.steps), self._spent_j)

    def seconds(self, starts_s: Floats, ends_s: Floats) -> Floats:
        """Return how long each phase lasted between times of the last two intervals (s), shape (n, phases)."""
        found = np.zeros((len(starts_s), len(self.slice.names)))
        for cut in (self.slice, self._before):
            if cut is not None and starts_s.min() < cut.bounds_s[-1]:
                lasted, ends = LabelSeconds(cut.bounds_s, cut.phase, found.shape[1]), cut.bounds_s[[0, -1]]
                found += lasted(np.clip(ends_s, *ends)) - lasted(np.clip(starts_s, *ends))
        return found

    def inside(self, label: int) -> dict[str, float]:
        """Return by phase the share of a label's time in which it was open."""
        if not self.label_s[label] > 0:
            return {}
        return {name: float(s[label] / self.label_s[label]) for name, s in self._inside_s.items() if label < len(s)}

    def spend(self, used: Callable[[Floats], Floats], energy_j: float, before_j: float) -> None:
        """Add what a device has used in the interval."""
        if len(self._step_j):
            self._step_j += used(np.array([mark.t_s for mark in self.slice.steps])) - before_j
        self._spent_j += energy_j

    def ended(self) -> "deque[tuple[float, Mark, float]]":
        """Return the steps that have ended by this clock, those of the interval behind those that still wait."""
        marks = self.slice.steps
        self._ended.extend(zip((mark.t_s for mark in marks), marks, self._step_j.tolist(), strict=True))
        return self._ended


class Bookkeeper:
    """Cuts the run into ledger entries.

    Args:
        t0_s: The monotonic time at which the books start (s).
        unix_offset_s: Unix time minus monotonic time (s), fixed at the start.
        signal: The carbon intensity of the grid.
        facility: The PUE of the facility, asked in real time.
        price: The price of electricity; None: nobody says, and nothing is booked.
        carbon_error: Standard error of the intensity, as a share of it; None: what the signal states itself.
    """

    def __init__(
        self,
        *,
        t0_s: float,
        unix_offset_s: float,
        signal: CarbonSignal,
        facility: Facility,
        price: PriceSignal | None = None,
        carbon_error: float | None = None,
    ) -> None:
        self._offset_s = unix_offset_s
        self._signal = signal
        self._facility, self._price = facility, price
        self._carbon_error = carbon_error
        self._host = _Track(PhaseTimeline(t0_s))
        self._own: dict[str, _Track] = {}
        """By device, what its own clock says of the phases."""
        self._step_j = 0.0
        self._loads: list[tuple[int, int, int]] = []
        """Phase, gear and limits of each label, as the timeline numbers them."""
        self._labels: dict[tuple[int, int, int], int] = {}
        self._below: dict[str, BelowTheTick] = {}
        self._referred_s: dict[str, float] = {}
        """By sensor that contains others, up to when it was told (s)."""
        self._states: dict[str, deque[DeviceState]] = {}
        """By device, what its driver has told and is not booked yet."""
        self._shared_s: dict[str, dict[str, Floats]] = {}
        """By device and phase, its seconds in readings that hold others as well, and all that were read (s)."""

    @property
    def timeline(self) -> PhaseTimeline:
        """Phases by the host's clock."""
        return self._host.timeline

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
        references: Mapping[str, EnergyCurve] | None = None,
        *,
        last: bool = False,
    ) -> LedgerEntry:
        """Close the interval from the last call to ``t1_s``.

        Args:
            t1_s: End of the interval (s); every curve should be known up to it.
            curves: The energy curves by device uid.
            unread: The devices that are known to exist but cannot be read: booked as missing.
            embodied: The embodied rate by device uid, of the devices that have one.
            references: The curves of sensors that contain others: told beside the sums, as far as they are known.
            last: No other follows.
        """
        t0_s = self.t_s
        t1_s = max(t0_s, t1_s)  # a clock that fell back: no interval has a negative length
        tracks = [self._host, *self._own.values()]
        for track in tracks:
            track.cut(t1_s, self._numbers)
        cut = self._host.slice
        devices: dict[str, DeviceEnergy] = {}
        spent: list[_Spent] = []
        inclusive = dict.fromkeys(itertools.chain.from_iterable(track.opened for track in tracks), 0.0)
        moved_gears: dict[int, float] = {}
        for uid, curve in curves.items():
            track = self._own.get(uid, self._host)
            own = track.slice
            missing = curve.at(own.bounds_s)[1]
            used, moved = self._used(uid, curve, own.bounds_s, track.label, last=last)
            energy = used(own.bounds_s)
            spent.append(_Spent(own, curve.sensor.provenance, np.diff(energy), np.diff(missing)))
            if uid not in self._below:
                parts, more_s = self._shared_s.setdefault(uid, {}), _shared_s(own, own.phase, len(own.names), curve)
                for i in np.flatnonzero(more_s[1]).tolist():
                    parts[own.names[i]] = parts.get(own.names[i], np.zeros(2)) + more_s[:, i]
            by_phase = np.bincount(own.phase, weights=np.diff(energy), minlength=len(own.names))
            phases = {own.names[i]: float(by_phase[i]) for i in np.unique(own.phase)}
            for name, times in track.opened.items():
                spans = used(times)
                inclusive[name] += float(np.sum(spans[:, 1] - spans[:, 0]))
            for i, joules in moved.items():
                phase, gear, _ = self._loads[i]
                phases[cut.names[phase]] = phases.get(cut.names[phase], 0.0) + joules
                if cut.names[phase] not in IDLE_PHASES:
                    moved_gears[gear] = moved_gears.get(gear, 0.0) + joules
                for name, share in track.inside(i).items():
                    inclusive[name] = inclusive.get(name, 0.0) + joules * share
            devices[uid] = DeviceEnergy(
                energy_j=float(energy[-1] - energy[0]),
                provenance=curve.sensor.provenance,
                missing_s=float(missing[-1] - missing[0]),
                phases=phases,
                states=self._told(uid, track, t1_s),
            )
            track.spend(used, float(energy[-1] - energy[0]), energy[0])
        for sensor in unread:
            devices[sensor.device.uid] = DeviceEnergy(
                energy_j=0.0, provenance=Provenance.MISSING, missing_s=t1_s - t0_s, phases={}
            )
        seconds = np.bincount(cut.phase, weights=np.diff(cut.bounds_s), minlength=len(cut.names))
        carbon = self._signal.mean(t0_s + self._offset_s, t1_s + self._offset_s)
        if self._carbon_error is not None:
            carbon = dataclasses.replace(carbon, relative_error=self._carbon_error)
        pue = self._facility.pue(t0_s + self._offset_s, t1_s + self._offset_s)
        price = None if self._price is None else self._price.mean(t0_s + self._offset_s, t1_s + self._offset_s)
        energy_j = sum(device.energy_j for device in devices.values())
        rates = [rate for uid, rate in (embodied or {}).items() if uid in devices]
        hours = (t1_s - t0_s) / S_PER_HOUR
        return LedgerEntry(
            t0_unix_s=t0_s + self._offset_s,
            t1_unix_s=t1_s + self._offset_s,
            devices=devices,
            phase_s={cut.names[i]: float(seconds[i]) for i in np.unique(cut.phase)},
            phase_inclusive_j=inclusive,
            carbon=carbon,
            price=price,
            pue=pue.value,
            pue_source=pue.source,
            operational_g=operational_g(energy_j, carbon, pue.value),
            embodied_g=sum(rate.mid_g_per_h for rate in rates) * hours if rates else None,
            steps=_steps(cut.steps),
            tokens=sum(mark.tokens for mark in cut.steps),
            samples=sum(mark.samples for mark in cut.steps),
            step_groups=self._group_steps([track.ended() for track in tracks]),
            gears=_by_gear(cut, spent, len(unread), moved_gears, list(curves.values())),
            references={
                uid: told for uid, curve in (references or {}).items() if (told := self._refer(uid, curve, t1_s))
            },
        )

    def _refer(self, uid: str, curve: EnergyCurve, t1_s: float) -> dict[str, float]:
        """Return what a sensor that contains others has told since the last time; readings come late and count then."""
        since_s = self._referred_s.get(uid, curve.oldest_s)
        until_s = self._referred_s[uid] = max(since_s, min(curve.frontier_s, t1_s))
        energy_j, missing_s = curve.between(since_s, until_s)
        known_s = until_s - since_s - missing_s
        return {"j": energy_j, "s": known_s} if known_s > 0 else {}

    def look(self, states: Iterable[DeviceState]) -> None:
        """Take what drivers have told beside power, to be booked with the interval that it falls into."""
        for state in states:
            self._states.setdefault(state.device_uid, deque(maxlen=MOST_STATES)).append(state)

    def _told(self, uid: str, track: _Track, t1_s: float) -> dict[str, dict[str, float]]:
        """Give what a driver has told up to a time to the phases of its sample period."""
        waiting = self._states.get(uid, ())
        states = [state for state in waiting if state.t_s <= t1_s]
        if not states:
            return {}
        self._states[uid] = deque((state for state in waiting if state.t_s > t1_s), maxlen=MOST_STATES)
        ends_s = np.array([state.t_s for state in states])
        lasted = track.seconds(ends_s - np.minimum(SAMPLE_S, np.diff(ends_s, prepend=-math.inf)), ends_s)
        found: dict[str, dict[str, float]] = {}
        for state, seconds in zip(states, lasted, strict=True):
            inside = np.flatnonzero(seconds > 1e-6).tolist()
            for i in inside:
                of: dict[str, float] = {}
                if state.sm is not None and state.memory is not None:
                    of |= {"util_s": 1.0, "sm_s": state.sm, "memory_s": state.memory, "whole_s": len(inside) == 1}
                if state.temperature_c is not None:
                    of |= {"temp_s": 1.0, "c_s": state.temperature_c}
                if state.slowed is not None:
                    of |= {"clocks_s": 1.0, **{f"{why}_s": 1.0 for why in state.slowed}}
                told = {key: float(value * seconds[i]) for key, value in of.items() if value}
                if state.temperature_c is not None:
                    told["max_c"] = state.temperature_c
                add_states(found, {track.slice.names[i]: told})
        return found

    def follow(self, uid: str, marks: Sequence[tuple[float, bool, Mark]]) -> None:
        """Cut a device's joules by its own clock from now on.

        All marks of the timeline are to come here too, in the same order, when the device has got to them.

        Args:
            uid: The device.
            marks: Time of each (s), whether it is the device's own or the host's, and the mark.
        """
        if uid not in self._own:
            self._own[uid] = self._host.copied()
        self._own[uid].add(marks)

    def clocks(self) -> dict[str, dict[str, str]]:
        """Return by device and phase whether its own clock says when it was: ``device``, ``host`` or ``mixed``."""
        return {uid: dict(sorted(track.clocks.items())) for uid, track in self._own.items()}

    def _numbers(self, cut: PhaseSlice) -> Ints:
        """Number the loads: a device draws another power in each phase, gear, and under each power cap and clock."""
        found = np.empty(len(cut.phase), dtype=np.intp)
        for i, load in enumerate(zip(cut.phase.tolist(), cut.gear.tolist(), cut.limit.tolist(), strict=True)):
            if load not in self._labels:
                self._labels[load] = len(self._loads)
                self._loads.append(load)
            found[i] = self._labels[load]
        return found

    def between(self, uid: str, curve: EnergyCurve, t0_s: float, t1_s: float) -> tuple[float, float]:
        """Return energy (J) and missing seconds of a window, booked or not, that the curve knows."""
        energy_j, missing_s = curve.between(t0_s, t1_s)
        below = self._below.get(uid)
        if below is None or below.power.fit is None or missing_s:
            return energy_j, missing_s
        cut = self._own.get(uid, self._host).timeline.ahead(curve.frontier_s)
        found_j = below.between(curve, cut.bounds_s, self._numbers(cut), t0_s, t1_s)
        return energy_j if found_j is None else found_j, missing_s

    def _used(
        self, uid: str, curve: EnergyCurve, bounds_s: Floats, label: Ints, *, last: bool
    ) -> tuple[Callable[[Floats], Floats], Mapping[int, float]]:
        """Return a device's energy as a function of time (J), and what earlier intervals owe to each label (J)."""
        if curve.tick_s is None:
            return lambda t_s: curve.at(t_s)[0], {}
        below = self._below.get(uid)
        if below is None:
            below = self._below[uid] = BelowTheTick(curve.tick_s)
        return below.book(curve, bounds_s, label, last=last)

    def attributions(self, known: Mapping[str, int] | None = None) -> dict[str, dict[str, Any]]:
        """Return how phases are told apart on each device whose counter ticks, by its uid, where that is known.

        Args:
            known: By device, readings of what was returned of it before; what rests on less than twice as many is left
                out.
        """
        found = {}
        for uid, below in self._below.items():
            if below.power.fit is None or below.power.fit.rows < 2 * (known or {}).get(uid, 0):
                continue
            phase = np.array([phase for phase, _, _ in self._loads], dtype=np.intp)
            track = self._own.get(uid, self._host)
            found[uid] = below.told(below.power.fit, phase, track.label_s, track.label_n, self.timeline.names)
        return found

    def shared(self) -> dict[str, dict[str, float]]:
        """Return of each device without such ticks, by phase, the share of its time in readings with other phases."""
        return {
            uid: {name: round(min(float(part_s[0] / part_s[1]), 1.0), 4) for name, part_s in parts.items()}
            for uid, parts in self._shared_s.items()
            if uid not in self._below
        }

    def _group_steps(self, clocks: Sequence[deque[tuple[float, Mark, float]]]) -> list[tuple[int, float, float, int]]:
        """Take the steps that have ended by all clocks."""
        ready = min(map(len, clocks))
        if not ready:
            return []
        ended = [[clock.popleft() for _ in range(ready)] for clock in clocks]
        steps = [mark for _, mark, _ in ended[0]]
        ends = np.unique(np.linspace(0, ready, min(ready, STEP_GROUPS) + 1).astype(int))
        groups = []
        for start, end in itertools.pairwise(ends):
            total_j = sum(clock[end - 1][2] for clock in ended)
            tokens = sum(mark.tokens for mark in steps[start:end])
            t_s = round(max(clock[end - 1][0] for clock in ended) + self._offset_s, 4)
            groups.append((_steps(steps[start:end]), t_s, round(total_j - self._step_j, 6), tokens))
            self._step_j = total_j
        return groups


def _steps(marks: Sequence[Mark]) -> int:
    return sum(mark.steps for mark in marks if mark.kind == "step")


class _Spent(NamedTuple):
    """What one device spent in an interval."""

    cut: PhaseSlice
    """Its segments."""
    provenance: Provenance
    joules: Floats
    """By segment, shape (n,)."""
    missing_s: Floats


def _by_gear(
    cut: PhaseSlice,
    spent: Sequence[_Spent],
    unread: int,
    moved_j: Mapping[int, float],
    curves: Sequence[EnergyCurve],
) -> dict[str, GearUse]:
    """Sum the time of an interval in which something is trained, by gear.

    Args:
        cut: Its segments by the host's clock.
        spent: What each device spent.
        unread: The devices that cannot be read.
        moved_j: Joules that earlier slices owe to a gear, by its index.
        curves: The curve of each device of ``spent``.
    """
    if len(cut.gears) == 1:
        return {}
    count = len(cut.gears)

    def in_gear(own: PhaseSlice) -> Ints:
        idle = [i for i, name in enumerate(own.names) if name in IDLE_PHASES]
        return np.where(np.isin(own.phase, idle), 0, own.gear)

    def by_gear(own: PhaseSlice, values: Floats) -> Floats:
        return np.bincount(in_gear(own), weights=values, minlength=count).astype(np.float64)

    seconds = by_gear(cut, np.diff(cut.bounds_s))
    energy, modelled, missing, device_s = np.zeros(count), np.zeros(count), unread * seconds, unread * seconds
    shared_s = np.zeros(count)
    for one, curve in zip(spent, curves, strict=True):
        own = one.cut
        joules = by_gear(own, one.joules)
        energy += joules
        modelled += joules * (one.provenance is Provenance.MODELLED)
        missing += by_gear(own, one.missing_s)
        device_s += by_gear(own, np.diff(own.bounds_s))
        shared_s += _shared_s(own, in_gear(own), count, curve)[0]
    done = [(0, 0, 0)] * count
    for mark, gear in zip(cut.steps, cut.step_gear, strict=True):
        steps, tokens, samples = done[gear]
        done[gear] = (steps + _steps((mark,)), tokens + mark.tokens, samples + mark.samples)
    return {
        cut.gears[i]: GearUse(
            energy_j=float(energy[i]) + moved_j.get(i, 0.0),
            modelled_j=float(modelled[i]),
            missing_s=float(missing[i]),
            device_s=float(device_s[i]),
            shared_s=float(shared_s[i]),
            seconds=float(seconds[i]),
            steps=done[i][0],
            tokens=done[i][1],
            samples=done[i][2],
        )
        for i in range(1, count)
        if device_s[i] > 0 or seconds[i] > 0 or any(done[i]) or moved_j.get(i)
    }


def _shared_s(cut: PhaseSlice, label: Ints, count: int, curve: EnergyCurve) -> Floats:
    """Return how long each label was in a device's readings with other time, if no longer than that, and in all (s)."""
    read_s = curve.readings_s(float(cut.bounds_s[0]), float(cut.bounds_s[-1]))
    known = np.diff(curve.at(read_s)[1]) == 0
    each_s = np.diff(LabelSeconds(cut.bounds_s, label, count)(read_s), axis=0)[known]
    both_s: Floats = np.stack([np.minimum(each_s, np.diff(read_s)[known, None] - each_s), each_s]).sum(axis=1)
    return both_s


def _opened(cut: PhaseSlice) -> dict[str, Floats]:
    times: dict[str, list[tuple[float, float]]] = {}
    for name, start_s, end_s in cut.open_s:
        times.setdefault(name, []).append((start_s, end_s))
    return {name: np.array(spans) for name, spans in times.items()}
