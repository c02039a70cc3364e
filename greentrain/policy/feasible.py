"""A deadline as ``policy.deadline_h`` takes it."""

import math

from greentrain.units import S_PER_HOUR


def hours_up(time_s: float) -> str:
    """Return a time (s) in hours with two decimals, rounded up: what can be done in it can be done in these."""
    hours = time_s / S_PER_HOUR
    return f"{math.ceil(hours * 100 - 1e-9) / 100 if math.isfinite(hours) else hours:.10g} h"
