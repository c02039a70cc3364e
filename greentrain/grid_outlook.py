"""What is known of the grid at one moment: three weeks behind, and the time to the deadline ahead."""

import math
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from greentrain.carbon.forecast import ProfileForecast
from greentrain.policy.outlook import Array
from greentrain.types import CarbonSignal
from greentrain.units import S_PER_HOUR

PAST_H: Final = 21 * 24
"""Hours of history that forecasts use: more than three weeks adds nothing (docs/scheduling-benchmarks.md)."""


class GridOutlook:
    """Asks a signal, in the grid's time, and forecasts what it does not say.

    Args:
        signal: The signal.
    """

    step_s: Final = S_PER_HOUR
    """Spacing of past and forecast (s)."""

    def __init__(self, signal: CarbonSignal) -> None:
        self._signal = signal
        self._forecast = ProfileForecast(signal)

    def at(self, grid_s: float, ahead_s: float) -> tuple[Array, Array]:
        """Return the past hours, oldest first, and the hours ahead, the running one first (g/kWh; NaN: unknown).

        Args:
            grid_s: The moment (s since the epoch, UTC).
            ahead_s: How far to look (s).
        """
        past = self.past(grid_s)
        return past, self._forecast.ahead(grid_s, math.ceil(ahead_s / self.step_s), past)

    def past(self, grid_s: float) -> Array:
        """Return the three weeks before a moment, hour by hour, oldest first (g/kWh; NaN: unknown)."""
        return self.means(grid_s - np.arange(PAST_H, -1, -1) * self.step_s)

    @property
    def basis(self) -> str:
        """What the last look ahead rests on, for people; empty before."""
        return self._forecast.basis

    def means(self, edges_s: NDArray[np.floating[Any]]) -> Array:
        """Return the intensity between each two edges, as :func:`means` does."""
        return means(self._signal, edges_s)


def means(signal: CarbonSignal, edges_s: NDArray[np.floating[Any]]) -> Array:
    """Return the mean intensity between each two edges (g/kWh); NaN where the signal does not know it.

    Args:
        signal: Of one zone.
        edges_s: (k + 1,) s since the epoch, UTC.
    """
    values = [signal.mean(a, b).g_per_kwh for a, b in pairwise(edges_s.tolist())]
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
