"""What is known of one zone over time: readings that never overlap, what was known before what was forecast."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from greentrain.carbon.source import GridRow, intensity
from greentrain.types import CarbonKind

HOLD_S: Final = 7200.0
"""How long the last known value stands for what comes after it, as an estimate (s). Grids move by the hour: the last
value is off by 5 to 35 % of the year's mean after 6 h."""
LEAD_S: Final = 24 * 3600.0
"""How far ahead a forecast is taken for the intensity of an interval (s); beyond, it is not known."""


class Reading(NamedTuple):
    """One checked value."""

    t0_unix_s: float
    t1_unix_s: float
    g_per_kwh: float
    kind: CarbonKind
    issued_unix_s: float | None
    """When the source said so; None where it does not tell."""
    fetched_unix_s: float
    """When it came to this machine."""


class MeanIntensity(NamedTuple):
    """An average over time."""

    g_per_kwh: float | None = None
    kind: CarbonKind = CarbonKind.ESTIMATED
    issued_unix_s: float | None = None


class Series:
    """Readings of one zone. Immutable, so that one thread may make it and another read it.

    Args:
        known: Actual and estimated values, sorted, not overlapping.
        ahead: Forecasts, sorted, not overlapping.
    """

    def __init__(self, known: Sequence[Reading] = (), ahead: Sequence[Reading] = ()) -> None:
        self.known = known
        self.ahead = ahead
        self._points = _joined(known, [r for r in ahead if r.t0_unix_s - r.fetched_unix_s <= LEAD_S])
        self._steps = list(_held(self._points))
        self._starts = [step.t0_unix_s for step in self._steps]

    def __len__(self) -> int:
        return len(self.known) + len(self.ahead)

    def plus(self, readings: Iterable[Reading]) -> "Series":
        """Return the series with newer readings in the place of those they overlap."""
        new: tuple[list[Reading], list[Reading]] = ([], [])
        for reading in sorted(readings, key=_start):
            new[reading.kind is CarbonKind.FORECAST].append(reading)
        return Series(_replaced(self.known, new[0]), _replaced(self.ahead, new[1]))

    def since(self, t_unix_s: float) -> "Series":
        """Return the series without what ended before a time."""
        return Series(
            [r for r in self.known if r.t1_unix_s > t_unix_s], [r for r in self.ahead if r.t1_unix_s > t_unix_s]
        )

    def mean(self, t0_unix_s: float, t1_unix_s: float) -> MeanIntensity:
        """Return the time average, where all of the interval is known, forecast for it, or held from before."""
        i = bisect_right(self._starts, t0_unix_s) - 1
        if not (t0_unix_s <= t1_unix_s) or i < 0 or not (t0_unix_s < self._steps[i].t1_unix_s):
            return MeanIntensity()
        used = [self._steps[i]]
        while used[-1].t1_unix_s < t1_unix_s:
            i += 1
            if i == len(self._steps) or self._steps[i].t0_unix_s > used[-1].t1_unix_s:
                return MeanIntensity()
            used.append(self._steps[i])
        kinds = {step.kind for step in used}
        kind = next(k for k in (CarbonKind.FORECAST, CarbonKind.ESTIMATED, CarbonKind.ACTUAL) if k in kinds)
        issued = [step.issued_unix_s for step in used if step.issued_unix_s is not None]
        value = used[0].g_per_kwh
        if len(used) > 1:
            area = sum(s.g_per_kwh * (min(s.t1_unix_s, t1_unix_s) - max(s.t0_unix_s, t0_unix_s)) for s in used)
            value = area / (t1_unix_s - t0_unix_s)
        return MeanIntensity(value, kind, max(issued) if len(issued) == len(used) else None)

    def points(self, t0_unix_s: float, t1_unix_s: float) -> list[Reading]:
        """Return what reaches into an interval, without what is held."""
        return [r for r in self._points if r.t1_unix_s > t0_unix_s and r.t0_unix_s < t1_unix_s]

    def forecast(self, t0_unix_s: float, t1_unix_s: float, oldest_unix_s: float) -> list[Reading]:
        """Return the forecasts that reach into an interval and did not come before a time."""
        return [
            r
            for r in self.ahead
            if r.t1_unix_s > t0_unix_s and r.t0_unix_s < t1_unix_s and r.fetched_unix_s >= oldest_unix_s
        ]


def checked(rows: Iterable[GridRow], fetched_unix_s: float) -> tuple[list[Reading], list[str]]:
    """Return the sound readings of an answer, and what is wrong with the others. What is null is neither."""
    readings: dict[tuple[bool, float], Reading] = {}
    odd = []
    for row in rows:
        try:
            value = intensity(row.g_per_kwh)
            if not row.t0_unix_s < row.t1_unix_s:
                raise ValueError("it ends before it begins")
        except ValueError as error:
            odd.append(str(error))
            continue
        if value is not None:
            forecast = row.kind is CarbonKind.FORECAST
            readings[forecast, row.t0_unix_s] = Reading(
                row.t0_unix_s, row.t1_unix_s, value, row.kind, row.issued_unix_s, fetched_unix_s
            )
    return list(readings.values()), odd


def _start(reading: Reading) -> float:
    return reading.t0_unix_s


def _replaced(old: Sequence[Reading], new: Sequence[Reading]) -> list[Reading]:
    """Return both, sorted, without the old ones that overlap a new one."""
    new = [
        a._replace(t1_unix_s=min(a.t1_unix_s, b.t0_unix_s)) for a, b in pairwise(new) if a.t0_unix_s < b.t0_unix_s
    ] + list(new[-1:])
    starts = [r.t0_unix_s for r in new]

    def overlapped(r: Reading) -> bool:
        i = bisect_left(starts, r.t1_unix_s) - 1
        return i >= 0 and new[i].t1_unix_s > r.t0_unix_s

    return sorted([*(r for r in old if not overlapped(r)), *new], key=_start)


def _joined(known: Sequence[Reading], ahead: Sequence[Reading]) -> list[Reading]:
    """Return what is known, and forecasts where nothing is."""
    starts = [r.t0_unix_s for r in ahead]

    def between(t0: float, t1: float) -> Iterator[Reading]:
        for i in range(max(bisect_right(starts, t0) - 1, 0), bisect_left(starts, t1)):
            r = ahead[i]
            if r.t1_unix_s > t0:
                yield r._replace(t0_unix_s=max(r.t0_unix_s, t0), t1_unix_s=min(r.t1_unix_s, t1))

    out: list[Reading] = []
    end = float("-inf")
    for r in known:
        if r.t0_unix_s > end:
            out.extend(between(end, r.t0_unix_s))
        out.append(r)
        end = r.t1_unix_s
    out.extend(between(end, float("inf")))
    return out


def _held(points: Sequence[Reading]) -> Iterator[Reading]:
    """Yield the points, each but a forecast followed by itself as an estimate where nothing follows it."""
    for i, point in enumerate(points):
        yield point
        end = min(points[i + 1].t0_unix_s if i + 1 < len(points) else float("inf"), point.t1_unix_s + HOLD_S)
        if point.kind is not CarbonKind.FORECAST and end > point.t1_unix_s:
            yield point._replace(t0_unix_s=point.t1_unix_s, t1_unix_s=end, kind=CarbonKind.ESTIMATED)
