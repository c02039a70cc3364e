"""How a grid's intensity goes on from one hour to the next: a Markov chain that carries over from grid to grid.

A state is a pair of what everybody knows at a decision: how dirty the hour is against the last 14 days, and whether the
next six hours are forecast to be dirtier or cleaner than it. Both are ratios, and neither is a time of day, so a chain
counted on some grids says what to expect on another one, in another time zone and year.

``chain.npz`` holds what ``tools.make_chain`` counted on EIA's hourly traces of 2022.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from greentrain.policy.outlook import Array
from greentrain.types import S_PER_HOUR

SHIPPED: Final = Path(__file__).with_name("chain.npz")
TRAILING_H: Final = 14 * 24
"""Against how many hours an hour is dirty or clean."""
TREND_H: Final = 6
"""How many hours ahead count for the trend. 3 and 12 hours do as well, to 0.2 points."""
LEVELS: Final = np.array(
    [0.35, 0.5, 0.62, 0.72, 0.8, 0.86, 0.91, 0.95, 0.985, 1.015, 1.05, 1.09, 1.14, 1.2, 1.28, 1.4, 1.6]
)
"""Edges of the bins of intensity / mean; narrow near 1, where flat grids such as PJM spend the year."""
TRENDS: Final = np.array([-0.4, -0.25, -0.15, -0.08, -0.03, 0.03, 0.08, 0.15, 0.25, 0.4])
"""Edges of the bins of (mean of the next hours - intensity) / mean."""
STATES: Final = (len(LEVELS) + 1) * (len(TRENDS) + 1)


def state(relative: Array, trend: Array) -> NDArray[np.int64]:
    """Return the state of hours.

    Args:
        relative: (n,) intensity / its mean of the last 14 days.
        trend: (n,) mean of the next six hours / that mean - ``relative``.
    """
    return np.searchsorted(LEVELS, relative) * (len(TRENDS) + 1) + np.searchsorted(TRENDS, trend)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IntensityChain:
    """Counts of what followed what. x = STATES."""

    counts: NDArray[np.int64]
    """(x, x) hours in a state that were followed by one in another."""
    level_sum: Array
    """(x,) sum of the relative intensity of all hours in a state that was followed."""

    @classmethod
    def shipped(cls) -> "IntensityChain":
        """Return the chain that comes with GreenTrain."""
        with np.load(SHIPPED, allow_pickle=False) as file:
            counts = np.zeros((STATES, STATES), np.int64)
            counts[file["before"], file["after"]] = file["hours"]
            return cls(counts=counts, level_sum=file["level_sum"].astype(np.float64))

    def probabilities(self) -> Array:
        """Return (x, x): how likely each state follows each; one that was never seen goes on like all of its level."""
        alike = self.counts.reshape(len(LEVELS) + 1, len(TRENDS) + 1, STATES).sum(axis=1)
        alike = np.where(alike.sum(axis=1, keepdims=True) > 0, alike, self.counts.sum(axis=0) + 1e-9)
        seen = self.counts.sum(axis=1, keepdims=True) > 0
        weights = np.where(seen, self.counts, np.repeat(alike, len(TRENDS) + 1, axis=0))
        shares: Array = weights / weights.sum(axis=1, keepdims=True)
        return shares

    def levels(self) -> Array:
        """Return (x,): mean relative intensity in each state; where none was seen, the middle of its bin."""
        seen = self.counts.sum(axis=1)
        edges = np.concatenate([[LEVELS[0] ** 2 / LEVELS[1]], LEVELS, [LEVELS[-1] ** 2 / LEVELS[-2]]])
        middle = np.repeat(np.sqrt(edges[:-1] * edges[1:]), len(TRENDS) + 1)
        return np.where(seen > 0, self.level_sum / np.maximum(seen, 1), middle)


def trailing_mean(past_g_per_kwh: Array, now_g_per_kwh: Array, step_s: float) -> Array:
    """Return (n,): the mean intensity of the last 14 days, as far as they are known, with the running step.

    Args:
        past_g_per_kwh: (n, p) the last p steps, without gaps.
        now_g_per_kwh: (n,) the running one.
        step_s: Spacing (s).
    """
    steps = min(past_g_per_kwh.shape[1], round(TRAILING_H * S_PER_HOUR / step_s) - 1)
    recent = past_g_per_kwh[:, past_g_per_kwh.shape[1] - steps :]
    mean: Array = (recent.sum(axis=1) + now_g_per_kwh) / (steps + 1)
    return mean
