"""A carbon intensity recorded as a CSV file: columns ``timestamp_utc`` and ``g_per_kwh``.

Each value holds from its timestamp to the next one; the last holds for one regular step. The mean over an
interval is the exact integral of that staircase, by prefix sums and bisection. Outside the file nothing is known.
"""

import csv
import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import median_low
from typing import Final

from greentrain.carbon.source import Stated
from greentrain.errors import TraceError
from greentrain.types import S_PER_HOUR, CarbonBasis, CarbonKind, CarbonPoint, iso

TIME: Final = "timestamp_utc"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """What a trace holds beside its times."""

    name: str
    low: float
    high: float
    unit: str
    remedy: str
    """What to do with a value outside."""
    key: str
    """Key of the configuration that names the file."""
    removed: str = "to leave a gap"
    """What it means to remove a line."""


INTENSITY: Final = Column(
    name="g_per_kwh",
    low=0.0,
    high=5000.0,  # no grid emits more; a larger number is in another unit (gCO2/MWh, say)
    unit=" gCO2e/kWh",
    remedy="convert the unit",
    key="carbon.trace_csv",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRows:
    """The checked content of a trace file."""

    t_unix_s: "array[float]"
    values: "array[float]"
    line: "array[int]"
    step_s: float
    """The regular step: the median distance between two rows (s)."""


def read_trace(path: Path | str, column: Column = INTENSITY) -> TraceRows:
    """Read and check a trace file. Gaps are left to the caller.

    Args:
        path: The file.
        column: Name, bounds and unit of the values.

    Raises:
        TraceError: The file cannot be read, lacks a column, has fewer than two rows, a time without a zone, times
            that do not increase, or a value that is no number or out of bounds. Names file, line and remedy.
    """
    path = Path(path)
    times, values, lines = array("d"), array("d"), array("L")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            header = [name.strip() for name in next(reader, [])]
            if TIME not in header or column.name not in header:
                raise TraceError(f"{path}:1: the columns are {header}; a trace needs {TIME!r} and {column.name!r}")
            i_time, i_value = header.index(TIME), header.index(column.name)
            for row in reader:
                if not row:
                    continue
                where = f"{path}:{reader.line_num}"
                if len(row) <= max(i_time, i_value):
                    raise TraceError(
                        f"{where}: {row} has {len(row)} of {len(header)} columns; complete or remove the line"
                    )
                t_s = _time(row[i_time], where)
                if times and not t_s > times[-1]:
                    raise TraceError(
                        f"{where}: {TIME} {row[i_time]!r} is not after that of line {lines[-1]}; sort the rows and"
                        " remove duplicates"
                    )
                times.append(t_s)
                values.append(_value(row[i_value], where, column))
                lines.append(reader.line_num)
    except OSError as error:
        raise TraceError(f"cannot read the trace {path}: {error.strerror or error}; check {column.key}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path} is no CSV text in UTF-8: {error}") from error
    if len(times) < 2:
        raise TraceError(f"{path} has {len(times)} rows of data; a trace needs two or more, to know its step")
    return TraceRows(
        t_unix_s=times,
        values=values,
        line=lines,
        step_s=median_low(round(b - a, 3) for a, b in pairwise(times)),
    )


def _time(text: str, where: str) -> float:
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise TraceError(f"{where}: {TIME} {text!r} is no ISO 8601 time; write it like 2022-01-01T00:00Z") from error
    if moment.tzinfo is None:
        raise TraceError(
            f"{where}: {TIME} {text!r} has no time zone; append Z if it is UTC, or its offset, as in"
            f" {text.strip()}+01:00"
        )
    return moment.timestamp()


def _value(text: str, where: str, column: Column) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise TraceError(
            f"{where}: {column.name} is {text!r}, not a number; remove the line {column.removed}"
        ) from error
    if not (math.isfinite(value) and column.low <= value <= column.high):
        raise TraceError(
            f"{where}: {column.name} is {text!r}; it must be between {column.low:g} and {column.high:g}{column.unit}."
            f" Remove the line {column.removed}, or {column.remedy}"
        )
    return value


GAP_STEPS: Final = 1.5
"""Two rows further apart than this many regular steps have a hole between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Staircase:
    """A function that is ``values[i]`` from ``t_s[i]`` to ``t_s[i + 1]``, and unknown outside."""

    t_s: "array[float]"
    """n + 1 edges (s), the first at 0."""
    values: "array[float]"
    """n values."""
    integral: "array[float]"
    """n + 1 integrals from 0 to each edge."""
    filled_before: "array[int]"
    """n + 1 numbers of filled-in values before each edge."""
    filled_s: float
    """Time of filled-in values (s)."""

    @classmethod
    def of(cls, rows: TraceRows, fill: Callable[[int], Iterable[tuple[float, float]]]) -> "Staircase":
        """Return the function that a trace is, from 0 on: each value holds to the next row, the last for one step.

        Args:
            rows: The trace.
            fill: Gives, for the row before a hole, what stands in the hole: seconds after the row, and values from
                then on.
        """
        start_s, step_s = rows.t_unix_s[0], rows.step_s
        t_s, values, filled = array("d"), array("d"), array("b")
        ends = (*rows.t_unix_s[1:], rows.t_unix_s[-1] + step_s)
        for row, (t0_s, t1_s) in enumerate(zip(rows.t_unix_s, ends, strict=True)):
            is_hole = t1_s - t0_s > GAP_STEPS * step_s
            for after_s, value in ((0.0, rows.values[row]), *(fill(row) if is_hole else ())):
                t_s.append(t0_s + after_s - start_s)
                values.append(value)
                filled.append(after_s > 0)
        t_s.append(ends[-1] - start_s)
        widths = [b - a for a, b in pairwise(t_s)]
        areas = (value * width for value, width in zip(values, widths, strict=True))
        return cls(
            t_s=t_s,
            values=values,
            integral=array("d", accumulate(areas, initial=0.0)),
            filled_before=array("L", accumulate(filled, initial=0)),
            filled_s=sum(width for width, flag in zip(widths, filled, strict=True) if flag),
        )

    def mean(self, t0: float, t1: float) -> tuple[float | None, bool]:
        """Return the mean from t0 to t1 and whether a filled-in value is in it; None outside."""
        t = self.t_s
        if not (0 <= t0 <= t1 <= t[-1] and t0 < t[-1]):
            return None, False
        i0 = bisect_right(t, t0) - 1
        i1 = max(i0, bisect_left(t, t1) - 1)
        filled = self.filled_before[i1 + 1] > self.filled_before[i0]
        if i0 == i1:
            return self.values[i0], filled
        inner = self.integral[i1] - self.integral[i0 + 1]
        area = self.values[i0] * (t[i0 + 1] - t0) + inner + self.values[i1] * (t1 - t[i1])
        return area / (t1 - t0), filled


class TraceSignal(Stated):
    """The carbon intensity in a CSV file.

    Args:
        csv_path: The file; times carry ``Z`` or an offset.
        zone: Place that it is of; None takes the file's name.
        source: Publication that says so, with year; None names the file.
        max_gap_h: Holes up to this long (h) are bridged by a straight line and marked as estimated; 0 accepts none.
        start_unix_s: Replay: the trace's first point is moved to this time (s since the epoch). None keeps its times.
        kind: Kind of the values.
        basis: Average or marginal.
        accounting: ``production`` or ``consumption``, ``direct`` or ``life cycle``, as the source states it.

    Raises:
        TraceError: The file is malformed or has a hole longer than ``max_gap_h``.
    """

    def __init__(
        self,
        csv_path: Path | str,
        *,
        zone: str | None = None,
        source: str | None = None,
        max_gap_h: float = 0.0,
        start_unix_s: float | None = None,
        kind: CarbonKind = CarbonKind.ACTUAL,
        basis: CarbonBasis = CarbonBasis.AVERAGE,
        accounting: str = "unspecified",
    ) -> None:
        path = Path(csv_path)
        rows = read_trace(path)
        self.zone = zone if zone is not None else path.stem
        self.kind = kind if start_unix_s is None else CarbonKind.ESTIMATED
        self.basis = basis
        self.accounting = accounting
        self.source = source if source is not None else f"trace {path.name}"
        if start_unix_s is not None:
            self.source += f", replayed from {iso(rows.t_unix_s[0])}"
        self.step_s = rows.step_s
        self._steps = Staircase.of(rows, lambda row: self._bridge(path, rows, row, max_gap_h))
        self.start_unix_s = rows.t_unix_s[0] if start_unix_s is None else float(start_unix_s)
        self.end_unix_s = self.start_unix_s + self._steps.t_s[-1]

    def mean(self, t0_unix_s: float, t1_unix_s: float) -> CarbonPoint:
        """Return the time average; ``g_per_kwh`` is None where the trace does not cover the whole interval."""
        value, filled = self._steps.mean(t0_unix_s - self.start_unix_s, t1_unix_s - self.start_unix_s)
        return CarbonPoint(
            t0_unix_s=t0_unix_s,
            t1_unix_s=t1_unix_s,
            g_per_kwh=value,
            zone=self.zone,
            source=self.source,
            kind=CarbonKind.ESTIMATED if filled else self.kind,
            basis=self.basis,
            accounting=self.accounting,
        )

    def describe(self) -> Mapping[str, str]:
        """Return what the report says about the signal."""
        covers = f"{iso(self.start_unix_s)} to {iso(self.end_unix_s)}"
        bridged_h = f"{self._steps.filled_s / S_PER_HOUR:g}"
        terms = "those of the file's source"
        return self._says("trace", f"{self.step_s:g} s", terms, self.kind, covers=covers, bridged_h=bridged_h)

    def _bridge(self, path: Path, rows: TraceRows, row: int, max_gap_h: float) -> Iterator[tuple[float, float]]:
        """Yield a straight line over the hole behind a row, a step at a time."""
        t0, t1 = rows.t_unix_s[row : row + 2]
        gap_h = (t1 - t0 - rows.step_s) / S_PER_HOUR
        if gap_h > max_gap_h:
            raise TraceError(
                f"{path}:{rows.line[row + 1]}: a gap of {gap_h:g} h from {iso(t0 + rows.step_s)} to {iso(t1)} (the"
                f" trace's step is {rows.step_s:g} s). Fill it, or accept gaps up to this length, bridged by a straight"
                f" line and marked as estimated, with max_gap_h={math.ceil(gap_h * 100) / 100:g}"
                " (carbon.trace_max_gap_h)"
            )
        rise = rows.values[row + 1] - rows.values[row]
        for k in range(1, math.ceil((t1 - t0) / rows.step_s - 0.001)):
            yield k * rows.step_s, rows.values[row] + rise * k * rows.step_s / (t1 - t0)
