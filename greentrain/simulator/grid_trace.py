"""A recorded grid as an array, and what a policy sees of it at a given time."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from greentrain.carbon.trace import TraceSignal
from greentrain.errors import TraceError
from greentrain.types import S_PER_HOUR, CarbonBasis

Array = NDArray[np.float64]

Forecaster = Callable[[Array, int], Array]
"""From (n, p) past hours, oldest first and NaN where unknown, and a number of hours to (n, hours), the next ones."""


@dataclass(frozen=True, kw_only=True, eq=False)
class GridTrace:
    """An intensity that is constant over each of k steps."""

    name: str
    zone: str
    source: str
    start_unix_s: float
    step_s: float
    g_per_kwh: Array
    """(k,) all known."""
    basis: CarbonBasis = CarbonBasis.AVERAGE
    accounting: str = "unspecified"

    def __post_init__(self) -> None:
        bad = np.flatnonzero(~(np.isfinite(self.g_per_kwh) & (self.g_per_kwh >= 0)))
        if bad.size or not len(self.g_per_kwh):
            raise TraceError(
                f"trace {self.name!r}: {bad.size} of {len(self.g_per_kwh)} values are not known or below 0"
                f"{f' (the first is number {bad[0]}, {self.g_per_kwh[bad[0]]:g})' if bad.size else ''}: a simulation"
                " needs them all, fill the gaps"
            )

    @classmethod
    def read(
        cls,
        path: Path | str,
        *,
        max_gap_h: float = 0.0,
        basis: CarbonBasis = CarbonBasis.AVERAGE,
        accounting: str = "unspecified",
    ) -> "GridTrace":
        """Read a trace file, as ``greentrain.carbon.trace`` checks it.

        Args:
            path: Path of the CSV file.
            max_gap_h: Longest hole that is bridged (h); 0: none.
            basis: Average or marginal.
            accounting: ``production`` or ``consumption``, ``direct`` or ``life cycle``, as the source states it.

        Raises:
            TraceError: It is malformed, has a time without a zone, or a hole longer than ``max_gap_h``.
        """
        signal = TraceSignal(path, max_gap_h=max_gap_h, basis=basis, accounting=accounting)
        count = round((signal.end_unix_s - signal.start_unix_s) / signal.step_s)
        edges = signal.start_unix_s + np.arange(count + 1) * signal.step_s
        points = [signal.mean(float(a), float(b)) for a, b in pairwise(edges)]
        return cls(
            name=Path(path).stem,
            zone=signal.zone,
            source=signal.source,
            start_unix_s=signal.start_unix_s,
            step_s=signal.step_s,
            g_per_kwh=np.array([np.nan if p.g_per_kwh is None else p.g_per_kwh for p in points]),
            basis=basis,
            accounting=accounting,
        )

    @property
    def end_unix_s(self) -> float:
        """When the last step ends (s since the epoch, UTC)."""
        return self.start_unix_s + len(self.g_per_kwh) * self.step_s

    def at(self, t_unix_s: Array) -> Array:
        """Return the intensity of the running steps (g/kWh)."""
        return self.g_per_kwh[self._step(t_unix_s)]

    def integral(self, t_unix_s: Array) -> Array:
        """Return the integral from the start of the trace (g/kWh x s)."""
        step = self._step(t_unix_s)
        inside: Array = self._sums[step] + self.g_per_kwh[step] * (t_unix_s - self.start_unix_s - step * self.step_s)
        return inside

    def window(self, start_unix_s: float, length_s: float) -> tuple[Array, Array]:
        """Return the values from a time on, and how long each holds until the end of the window (s)."""
        end_s = start_unix_s + length_s - self.start_unix_s
        first, last = int((start_unix_s - self.start_unix_s) // self.step_s), int(np.ceil(end_s / self.step_s - 1e-9))
        edges = np.arange(first, last + 1) * self.step_s
        return self.g_per_kwh[first:last], np.diff(np.clip(edges, start_unix_s - self.start_unix_s, end_s))

    def _step(self, t_unix_s: Array) -> NDArray[np.int64]:
        step = np.floor((t_unix_s - self.start_unix_s) / self.step_s + 1e-9).astype(np.int64)
        return np.clip(step, 0, len(self.g_per_kwh) - 1)

    @cached_property
    def _sums(self) -> Array:
        return np.concatenate([[0.0], np.cumsum(self.g_per_kwh * self.step_s)])


class Sight:
    """What policies see of a trace: the hours behind, the running step, and a forecast issued anew every hour.

    Rows of the forecast are computed once and kept, so that jobs, seeds and policies share them.

    Args:
        trace: The truth.
        forecaster: Forecasts from the past hours, the running one among them; None: perfect foresight.
        horizon_h: Reach of the forecasts (h).
        past_h: Past that the forecaster gets (h); three weeks are enough.
    """

    step_s = S_PER_HOUR

    def __init__(
        self, trace: GridTrace, forecaster: Forecaster | None, *, horizon_h: int, past_h: int = 21 * 24
    ) -> None:
        self._trace, self._forecaster = trace, forecaster
        hours = int((trace.end_unix_s - trace.start_unix_s) / S_PER_HOUR + 1e-9)
        hourly = _hourly(trace, hours)
        self.past_h, self.horizon_h = past_h, horizon_h
        before = np.concatenate([np.full(past_h, np.nan), hourly])
        self._behind = np.lib.stride_tricks.sliding_window_view(before, past_h)
        if forecaster is None:
            after = np.concatenate([hourly, np.full(horizon_h, hourly[-1])])
            self._ahead = np.lib.stride_tricks.sliding_window_view(after, horizon_h + 1)
            self._known = np.ones(hours, np.bool_)
        else:
            self._ahead = np.empty((hours, horizon_h + 1))
            self._known = np.zeros(hours, np.bool_)

    def past(self, t_unix_s: Array, hours: int) -> Array:
        """Return (n, hours): the last full hours, oldest first; NaN before the trace."""
        hour, _ = self._hour(t_unix_s)
        return self._behind[hour, self.past_h - hours :]

    def ahead(self, t_unix_s: Array, hours: int) -> Array:
        """Return (n, hours): the running step, then what is forecast for the hours after it."""
        hour, part = self._hour(t_unix_s)
        self._issue(hour)
        if not part.any():
            found: Array = self._ahead[hour, :hours]
        else:
            found = (1 - part[:, None]) * self._ahead[hour, :hours] + part[:, None] * self._ahead[hour, 1 : hours + 1]
        found = np.array(found) if found.base is not None else found
        found[:, 0] = self._trace.at(t_unix_s)
        return found

    def _hour(self, t_unix_s: Array) -> tuple[NDArray[np.int64], Array]:
        hours = (t_unix_s - self._trace.start_unix_s) / S_PER_HOUR
        whole = np.floor(hours + 1e-9)
        return np.minimum(whole.astype(np.int64), len(self._known) - 1), np.maximum(hours - whole, 0.0)

    def _issue(self, hours: NDArray[np.int64]) -> None:
        """Forecast from the ends of these hours where that has not been done."""
        if self._forecaster is None or self._known[hours].all():
            return
        for chunk in np.array_split(new := np.unique(hours[~self._known[hours]]), len(new) // 512 + 1):
            running = np.minimum(chunk + 1, len(self._behind) - 1)
            past = self._behind[running]
            self._ahead[chunk, 0] = past[:, -1]
            self._ahead[chunk, 1:] = self._forecaster(past, self.horizon_h)
            self._known[chunk] = True


def _hourly(trace: GridTrace, hours: int) -> Array:
    """Return the means of the full hours of a trace."""
    steps = round(S_PER_HOUR / trace.step_s)
    if steps * trace.step_s == S_PER_HOUR:
        means: Array = trace.g_per_kwh[: hours * steps].reshape(hours, steps).mean(axis=1)
        return means
    edges = np.array([trace.start_unix_s + hour * S_PER_HOUR for hour in range(hours + 1)])
    return np.diff(trace.integral(edges)) / S_PER_HOUR
