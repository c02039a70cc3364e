"""How fast does a counter tick, and what does reading it cost? Found by polling for a fraction of a second.

Call costs depend on card and driver (0.5 us to several ms in public measurements), so they are measured, never
assumed. CPU time of the thread is what a read takes from the training; wall time also holds what the driver waits.
"""

import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from greentrain.utils.clock import Clock

SPAN_S: Final = 0.38
"""Longest probe (s); three ticks of 100 ms fit."""
PAUSE_S: Final = 0.002
"""Shortest pause between polls (s): a tick is dated to 2 ms."""
MAX_SHARE: Final = 0.1
"""Highest share of one core that polling takes; slow reads are polled less often."""
EDGES: Final = 3
"""Ticks to see before the probe may stop early."""
USUAL_TICK_S: Final = 0.1
"""Taken where the measurement allows it (ML.ENERGY blog, thermally stable profiling, read 2026-11-21)."""
SNAP_ERROR: Final = 0.2
"""A measurement worse than this (relative) allows nothing."""
MAX_ERROR: Final = 0.05
"""A tick known less well than this (relative) is not stated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Polled:
    """What polling one counter or power reading showed. None: could not be seen."""

    tick_s: float | None = None
    """Time between two changes of the value (s)."""
    edge_s: float | None = None
    """Monotonic time of one change (s)."""
    cpu_s: float | None = None
    """Median CPU time of one read (s)."""
    wall_s: float | None = None
    """Median wall time of one read (s)."""
    span_s: float = 0.0
    """How long was polled (s)."""


class _Watch:
    """Polls one value and keeps when it changed and what a read cost."""

    def __init__(self, value: Callable[[], float], clock: Clock) -> None:
        self._value = value
        self._clock = clock
        self._last: float | None = None
        self._last_s = math.nan
        self.edges: list[tuple[float, float]] = []
        self.cpu_s: list[float] = []
        self.wall_s: list[float] = []

    def poll(self) -> None:
        before_s, before_cpu_s = self._clock.monotonic_s(), time.thread_time()
        try:
            value = self._value()
        except Exception:
            self._last = None
            return
        after_cpu_s, after_s = time.thread_time(), self._clock.monotonic_s()
        self.cpu_s.append(after_cpu_s - before_cpu_s)
        self.wall_s.append(after_s - before_s)
        if self._last is not None and value != self._last:
            self.edges.append(((self._last_s + after_s) / 2, (after_s - self._last_s) / 2))
        self._last, self._last_s = value, before_s

    @property
    def is_sure(self) -> bool:
        return len(self.edges) >= EDGES and tick_of(self.edges)[0] is not None

    def result(self, span_s: float) -> Polled:
        if not self.cpu_s:
            return Polled(span_s=span_s)
        tick_s, edge_s = tick_of(self.edges)
        return Polled(
            tick_s=tick_s,
            edge_s=edge_s,
            cpu_s=statistics.median(self.cpu_s),
            wall_s=statistics.median(self.wall_s),
            span_s=span_s,
        )


def poll(values: Sequence[Callable[[], float]], clock: Clock, span_s: float = SPAN_S) -> list[Polled]:
    """Poll several readings side by side for at most ``span_s`` seconds. Never raises.

    Args:
        values: Calls that return a number; an exception counts as no reading.
        clock: Time; its monotonic scale must run.
        span_s: Longest duration (s).
    """
    watches = [_Watch(value, clock) for value in values]
    start_s = clock.monotonic_s()
    while (now_s := clock.monotonic_s()) - start_s < span_s:
        cpu_s = -time.thread_time()
        for watch in watches:
            watch.poll()
        cpu_s += time.thread_time()
        if all(watch.is_sure for watch in watches):
            break
        time.sleep(max(PAUSE_S, clock.monotonic_s() - now_s, cpu_s / MAX_SHARE))
    spent_s = clock.monotonic_s() - start_s
    return [watch.result(spent_s) for watch in watches]


def tick_of(edges: Sequence[tuple[float, float]]) -> tuple[float | None, float | None]:
    """Return tick period and time of one tick from the changes seen, None where they do not tell.

    Args:
        edges: Of each change its time and how far off that may be (s), in order.
    """
    if not edges:
        return None, None
    sharpest_s, smallest_s = min(edges, key=lambda edge: edge[1])
    # A poll that came late dates its change badly and may hide further ones: only neighbours of sharp ones count.
    sharp = [i for i, (_, off_s) in enumerate(edges) if off_s <= max(2 * smallest_s, PAUSE_S)]
    gaps = [(edges[j][0] - edges[i][0], j - i) for i, j in itertools.pairwise(sharp)]
    clean_s = [gap_s for gap_s, changes in gaps if changes == 1]
    if not clean_s:
        return None, None
    unit_s = statistics.mean(clean_s)
    ticks = sum(1 if changes == 1 else max(changes, round(gap_s / unit_s)) for gap_s, changes in gaps)
    tick_s = sum(gap_s for gap_s, _ in gaps) / ticks
    if 2 * max(edges[i][1] for i in sharp) > 0.8 * tick_s:
        return None, None  # polled too slowly: one change may be two ticks
    error_s = (edges[sharp[0]][1] + edges[sharp[-1]][1]) / ticks
    if abs(tick_s - USUAL_TICK_S) <= error_s <= SNAP_ERROR * USUAL_TICK_S:
        return USUAL_TICK_S, sharpest_s
    return (tick_s, sharpest_s) if error_s <= MAX_ERROR * tick_s else (None, None)
