"""Jobs to simulate: how many tokens by when, and windows of a trace to try them in."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from greentrain.errors import ConfigError, TraceError
from greentrain.simulator.grid_trace import GridTrace
from greentrain.simulator.grids import next_hour
from greentrain.types import S_PER_HOUR, iso
from greentrain.utils.quantities import duration
from greentrain.utils.validation import moment

Array = NDArray[np.float64]

HISTORY_H: Final = 21 * 24.0
"""Hours before a window that forecasts learn from (three weeks are enough)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Jobs:
    """What has to be done: n jobs."""

    start_unix_s: Array
    """(n,)"""
    deadline_s: Array
    """(n,) after the start (s)."""
    tokens: Array
    """(n,)"""

    def __post_init__(self) -> None:
        if not len(self.tokens) == len(self.deadline_s) == len(self.start_unix_s) > 0:
            raise ConfigError(
                f"{len(self.start_unix_s)} starts, {len(self.deadline_s)} deadlines and {len(self.tokens)} numbers of"
                " tokens: jobs need as many of each, at least one"
            )
        for key, values, unit in (("deadline", self.deadline_s, " s after its start"), ("tokens", self.tokens, "")):
            bad = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
            if bad.size:
                raise ConfigError(f"{key} of job {bad[0]} is {values[bad[0]]:g}{unit}; it must be above 0")

    @classmethod
    def alike(cls, starts: Array, *, tokens: float, deadline_s: float, seeds: int = 1) -> "Jobs":
        """Return the same job at several starts, each ``seeds`` times.

        Args:
            starts: Starts of the jobs (s since the epoch, UTC), shape (n,).
            tokens: Tokens of each job.
            deadline_s: Deadline of each job, after its start (s).
            seeds: Number of copies of each start; policies that draw, draw for each anew.
        """
        start_unix_s = np.repeat(starts, seeds)
        n = len(start_unix_s)
        return cls(start_unix_s=start_unix_s, deadline_s=np.full(n, deadline_s), tokens=np.full(n, tokens))


def windows(trace: GridTrace, count: int, *, length_s: float, history_h: float = HISTORY_H) -> Array:
    """Return (count,) starts of windows: one behind the other from the end of the history on where they fit, else
    spread evenly, and so overlapping.

    Args:
        trace: The grid.
        count: Number of windows.
        length_s: Length of each window (s).
        history_h: Hours of the trace before the first window.

    Raises:
        ConfigError: There shall be none.
        TraceError: Not even one fits.
    """
    if count < 1:
        raise ConfigError(f"windows is {count}; at least one is needed")
    first_s, last_s = history_h * S_PER_HOUR, trace.end_unix_s - trace.start_unix_s - length_s
    if first_s > last_s + 1e-6:
        raise TraceError(
            f"trace {trace.name!r} covers {(trace.end_unix_s - trace.start_unix_s) / S_PER_HOUR:g} h, which is shorter"
            f" than {history_h:g} h of history and the {length_s / S_PER_HOUR:g} h of a job: take a longer trace, less"
            " history or a shorter policy.deadline_h"
        )
    distance_s = min(length_s, (last_s - first_s) / max(1, count - 1))
    distance_s = distance_s if distance_s == length_s else distance_s // trace.step_s * trace.step_s
    return np.array([trace.start_unix_s + first_s + i * distance_s for i in range(count)])


MOST_H: Final = 24.0 * 366
"""Longest deadline (h), as of ``policy.deadline_h``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTerms:
    """A job with a deadline."""

    tokens: float
    start_s: float
    """s since the epoch, UTC"""
    deadline_s: float


def terms_of(tokens: float, deadline: str, start: str | None = None, traces: Sequence[GridTrace] = ()) -> JobTerms:
    """Return the job that was written.

    Args:
        tokens: Tokens of the job.
        deadline: Hours after the start, or a time in ISO 8601 with its offset.
        start: A time in ISO 8601 with its offset; None: the start of the recordings, where there are any, else the next
            full hour.
        traces: Recordings that it is to run on.

    Raises:
        ConfigError: A number or a time is out of its range, malformed or without an offset.
    """
    if not (math.isfinite(tokens) and tokens >= 1):
        raise ConfigError(f"--tokens is {tokens:g}; a job has 1 or more")
    if start is not None:
        start_s = moment("--start", start).timestamp()
    else:
        start_s = max(trace.start_unix_s for trace in traces) if traces else next_hour()
    return JobTerms(tokens=tokens, start_s=start_s, deadline_s=_deadline(deadline, start_s))


def _deadline(text: str, start_s: float) -> float:
    try:
        hours = float(text)
    except ValueError:
        deadline_s = moment("--deadline", text).timestamp()
        if deadline_s <= start_s:
            raise ConfigError(
                f"--deadline is {text!r}, {duration(start_s - deadline_s)} before the start at {iso(start_s)}: choose a"
                " time after it"
            ) from None
        hours = (deadline_s - start_s) / S_PER_HOUR
    if not 0 < hours <= MOST_H:
        raise ConfigError(
            f"--deadline is {text!r}; it must be hours above 0 and up to {MOST_H:g}, or a time in ISO 8601, such as"
            f" {iso(start_s + 24 * S_PER_HOUR)}"
        )
    return start_s + hours * S_PER_HOUR
