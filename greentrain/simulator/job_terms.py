"""What somebody writes of a job, checked: how many tokens, from when, by when."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from greentrain.config_values import moment
from greentrain.errors import ConfigError
from greentrain.report.units_text import duration
from greentrain.simulator.grid_trace import GridTrace
from greentrain.simulator.zone_grids import next_hour
from greentrain.units import S_PER_HOUR, iso

MOST_H: Final = 24.0 * 366
"""Longest deadline (h), as of ``policy.deadline_h``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """A job with a deadline."""

    tokens: float
    start_s: float
    """s since the epoch, UTC"""
    deadline_s: float


def terms_of(tokens: float, deadline: str, start: str | None = None, traces: Sequence[GridTrace] = ()) -> Terms:
    """Return the job that was written.

    Args:
        tokens: Of the job.
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
    return Terms(tokens=tokens, start_s=start_s, deadline_s=_deadline(deadline, start_s))


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
