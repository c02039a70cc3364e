"""Made-up grids for tests."""

from collections.abc import Sequence

import numpy as np

from greentrain.simulator.grid_trace import Array, GridTrace
from greentrain.types import CarbonBasis
from greentrain.utils.validation import moment

START = 1_640_995_200.0
"""2022-01-01T00:00Z."""
HOUR = 3600.0


def trace(
    g_per_kwh: Array, step_s: float = HOUR, basis: CarbonBasis = CarbonBasis.AVERAGE, name: str = "made up"
) -> GridTrace:
    return GridTrace(
        name=name, zone="XX", source="made up", start_unix_s=START, step_s=step_s, g_per_kwh=g_per_kwh, basis=basis
    )


def moments(texts: Sequence[str], key: str = "start") -> Array:
    """Return points in time (s since the epoch, UTC) written in ISO 8601 with their offset."""
    return np.array([moment(key, text).timestamp() for text in texts])


def wandering(hours: int, seed: int = 0) -> Array:
    """Return intensities with a day in them that wander."""
    rng = np.random.default_rng(seed)
    day = 120.0 * np.sin(np.arange(hours) * 2 * np.pi / 24)
    return np.maximum(300.0 + day + rng.standard_normal(hours).cumsum() * 10.0, 20.0)


def daily(past: Array, hours: int) -> Array:
    """Forecast that tomorrow is like today."""
    return np.tile(past[:, -24:], -(-hours // 24))[:, :hours]
