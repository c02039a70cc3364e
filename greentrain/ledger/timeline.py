"""From phase and step marks to segments of time.

The training thread only appends marks (time, what). Here they become segments: at every instant the time
belongs to the phase that was entered last and is still open, so exclusive phases never overlap and sum to the
whole, whichever way phases nest, overlap or come from other threads. Beside its phase, every segment has the
precision gear it ran in: a second labelling of the same time, with no nesting.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from greentrain.types import Phase

Floats = npt.NDArray[np.float64]
MAX_OPEN = 64
"""Phases open at once; more are a forgotten end() and the oldest is closed."""


class Mark(NamedTuple):
    """One mark of the training thread."""

    t_s: float
    """Monotonic time (s)."""
    kind: str
    """``begin``, ``end``, ``gear``, ``step``, or ``count``: tokens or samples of a step that goes on."""
    name: str = ""
    """Phase name of a begin or end; name of the gear from here on, empty for none."""
    token: int = 0
    """Pairs a begin with its end; 0 = the last one open of that name."""
    tokens: int = 0
    samples: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
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


class Timeline:
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
        self._gear = 0

    @property
    def t_s(self) -> float:
        """End of the last slice (s)."""
        return self._t_s

    def add(self, marks: Iterable[Mark]) -> None:
        """Add marks, roughly in order of time. Of marks at the same time, the one added first counts first."""
        self._pending.extend(marks)

    def cut(self, t1_s: float) -> Slice:
        """Return the slice from the end of the last one to ``t1_s`` and drop its marks."""
        marks = sorted(self._pending, key=_time)
        bounds = [self._t_s]
        phases: list[int] = []
        gears: list[int] = []
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
            top, gear = self._top(), self._gear
            t_s = max(mark.t_s, bounds[-1])
            if mark.kind == "gear":
                self._gear = self._gears.setdefault(mark.name, len(self._gears))
            else:
                closed = self._apply(mark, t_s)
                if closed is not None:
                    intervals.append(closed)
            if (self._top() != top or self._gear != gear) and t_s > bounds[-1]:
                bounds.append(t_s)
                phases.append(top)
                gears.append(gear)
        self._pending = marks[used:]
        bounds.append(max(t1_s, bounds[-1]))
        phases.append(self._top())
        gears.append(self._gear)
        for name, since_s in self._since.items():
            intervals.append((name, since_s, bounds[-1]))
            self._since[name] = bounds[-1]
        self._t_s = bounds[-1]
        return Slice(
            bounds_s=np.array(bounds),
            phase=np.array(phases, dtype=np.intp),
            names=tuple(self._names),
            gear=np.array(gears, dtype=np.intp),
            gears=tuple(self._gears),
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


def _time(mark: Mark) -> float:
    return mark.t_s
