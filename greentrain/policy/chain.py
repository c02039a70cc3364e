"""How a grid's intensity goes on from one hour to the next: a Markov chain that carries over from grid to grid.

A state is a pair of what everybody knows at a decision: how dirty the hour is against the last 14 days, and whether the
next six hours are forecast to be dirtier or cleaner than it. Both are ratios, and neither is a time of day, so a chain
counted on some grids says what to expect on another one, in another time zone and year.

``chain.npz`` holds what ``tools.make_chain`` counted on EIA's hourly traces of 2022.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from greentrain.carbon.forecast import profile_forecast
from greentrain.errors import ConfigError
from greentrain.policy.outlook import Array
from greentrain.types import S_PER_HOUR

SHIPPED: Final = Path(__file__).with_name("chain.npz")
TRAILING_H: Final = 14 * 24
"""Against how many hours an hour is dirty or clean."""
TREND_H: Final = 6
"""How many hours ahead count for the trend. 3 and 12 hours do as well, to 0.2 points."""
HISTORY_H: Final = 21 * 24
"""What a forecast looks back on."""
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
    made_by: str = "counted in this process"
    sources: Sequence[str] = ()

    @classmethod
    def count(cls, histories: Sequence[Array], *, made_by: str = "", sources: Sequence[str] = ()) -> "IntensityChain":
        """Count the hours of some grids.

        Args:
            histories: One array a grid: hourly intensity without gaps (g/kWh), at least 21 days and a day.
            made_by: Command that gives the same counts.
            sources: Names of the histories.

        Raises:
            ConfigError: A history is too short.
        """
        counts = np.zeros((STATES, STATES), np.int64)
        level_sum = np.zeros(STATES)
        for g_per_kwh in histories:
            if len(g_per_kwh) < HISTORY_H + 24:
                raise ConfigError(
                    f"a history of {len(g_per_kwh)} h is too short to count a chain on: {HISTORY_H + 24} h are needed"
                )
            relative, trend = _hours(np.asarray(g_per_kwh, np.float64))
            x = state(relative, trend)
            np.add.at(counts, (x[:-1], x[1:]), 1)
            np.add.at(level_sum, x[:-1], relative[:-1])
        return cls(counts=counts, level_sum=level_sum, made_by=made_by, sources=tuple(sources))

    @classmethod
    def shipped(cls) -> "IntensityChain":
        """Return the chain that comes with GreenTrain."""
        with np.load(SHIPPED, allow_pickle=False) as file:
            about: dict[str, Any] = json.loads(str(file["about"]))
            counts = np.zeros((STATES, STATES), np.int64)
            counts[file["before"], file["after"]] = file["hours"]
            return cls(
                counts=counts,
                level_sum=file["level_sum"].astype(np.float64),
                made_by=about["made_by"],
                sources=tuple(about["traces"]),
            )

    def save(self, path: Path, about: dict[str, Any]) -> None:
        """Write the counts, those that are not 0.

        Args:
            path: File to write.
            about: Facts on their origin: ``made_by``, ``traces`` and what else a reader should know.
        """
        before, after = np.nonzero(self.counts)
        np.savez_compressed(
            path,
            before=before.astype(np.uint16),
            after=after.astype(np.uint16),
            hours=self.counts[before, after].astype(np.uint16),
            level_sum=self.level_sum,
            about=json.dumps(about, sort_keys=True),
        )

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


def _hours(g_per_kwh: Array) -> tuple[Array, Array]:
    """Return relative intensity and trend of all hours with enough history, oldest first."""
    windows = np.lib.stride_tricks.sliding_window_view(g_per_kwh, HISTORY_H)
    now = windows[:, -1]
    mean = trailing_mean(windows[:, :-1], now, S_PER_HOUR)
    ahead = profile_forecast(windows, TREND_H).mean(axis=1)
    return now / mean, (ahead - now) / mean
