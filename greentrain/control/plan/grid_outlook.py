"""What is known of the grid at one moment: three weeks behind, and the time to the deadline ahead.

A PUE that does not change scales all hours alike, so plans leave it out. One that is recorded for all of a job's time
(a facility with free cooling at night, a replayed day) does not: then an hour's intensity is multiplied by its PUE.
"""

import math
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from greentrain.carbon.forecast import ProfileForecast
from greentrain.ledger.pue import Facility
from greentrain.policy.outlook import Array
from greentrain.types import S_PER_HOUR, CarbonSignal, PueSource

PAST_H: Final = 21 * 24
"""Hours of history that forecasts use: more than three weeks adds nothing (docs/scheduling-benchmarks.md)."""


class Overhead:
    """The PUE of a job's hours, as its facility has recorded them.

    Args:
        facility: In the grid's own time.
        start_s: Start of the job (s since the epoch, UTC).
        deadline_s: Its deadline.
    """

    def __init__(self, facility: Facility, start_s: float, deadline_s: float) -> None:
        self._facility = facility
        self._deadline_s = deadline_s
        self._usual = facility.pue(start_s, deadline_s).value

    @classmethod
    def of(cls, facility: Facility, start_s: float, deadline_s: float) -> "Overhead | None":
        """Return the overhead; None where no record covers the whole job: then each hour counts alike."""
        return cls(facility, start_s, deadline_s) if facility.covers(start_s, deadline_s) else None

    def means(self, edges_s: NDArray[np.floating[Any]]) -> Array:
        """Return the PUE between each two edges; the mean of the job's time where nothing is recorded.

        Args:
            edges_s: (k + 1,) s since the epoch, UTC. Of an interval across the deadline the part before it counts.
        """
        values = []
        for a, b in pairwise(edges_s.tolist()):
            point = self._facility.pue(a, min(b, self._deadline_s) if a < self._deadline_s else b)
            values.append(point.value if point.source is PueSource.TRACE else self._usual)
        return np.array(values, dtype=np.float64)


class GridOutlook:
    """Asks a signal, in the grid's time, and forecasts what it does not say.

    Args:
        signal: The signal.
        overhead: Multiplies every intensity; None: nothing does.
    """

    step_s: Final = S_PER_HOUR
    """Spacing of past and forecast (s)."""

    def __init__(self, signal: CarbonSignal, overhead: Overhead | None = None) -> None:
        self._signal = signal
        self._overhead = overhead
        self._forecast = ProfileForecast(signal)

    def at(self, grid_s: float, ahead_s: float) -> tuple[Array, Array]:
        """Return the past hours, oldest first, and the hours ahead, the running one first (g/kWh; NaN: unknown).

        Args:
            grid_s: The moment (s since the epoch, UTC).
            ahead_s: How far to look (s).
        """
        edges_s = self._past_edges_s(grid_s)
        hours, past = math.ceil(ahead_s / self.step_s), means(self._signal, edges_s)
        ahead = self._forecast.ahead(grid_s, hours, past)
        if self._overhead is None:
            return past, ahead
        ahead_edges_s = grid_s + np.arange(hours + 1) * self.step_s
        return past * self._overhead.means(edges_s), ahead * self._overhead.means(ahead_edges_s)

    def past(self, grid_s: float) -> Array:
        """Return the three weeks before a moment, hour by hour, oldest first (g/kWh; NaN: unknown)."""
        return self.means(self._past_edges_s(grid_s))

    @property
    def with_pue(self) -> bool:
        """True if intensities are multiplied by the PUE of their hour."""
        return self._overhead is not None

    @property
    def basis(self) -> str:
        """What the last look ahead rests on, for people; empty before."""
        return self._forecast.basis

    def means(self, edges_s: NDArray[np.floating[Any]]) -> Array:
        """Return the intensity between each two edges, as :func:`means` does."""
        values = means(self._signal, edges_s)
        return values if self._overhead is None else values * self._overhead.means(edges_s)

    def _past_edges_s(self, grid_s: float) -> Array:
        return np.asarray(grid_s - np.arange(PAST_H, -1, -1) * self.step_s, dtype=np.float64)


def means(signal: CarbonSignal, edges_s: NDArray[np.floating[Any]]) -> Array:
    """Return the mean intensity between each two edges (g/kWh); NaN where the signal does not know it.

    Args:
        signal: Of one zone.
        edges_s: (k + 1,) s since the epoch, UTC.
    """
    values = [signal.mean(a, b).g_per_kwh for a, b in pairwise(edges_s.tolist())]
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
