"""Operational emissions: energy x facility overhead x carbon intensity."""

from greentrain.types import CarbonPoint
from greentrain.units import grams


def operational_g(energy_j: float, point: CarbonPoint, pue: float) -> float | None:
    """Return the operational emissions of an interval (gCO2e).

    Args:
        energy_j: Energy of the IT equipment over the interval (J).
        point: Carbon intensity over the same interval.
        pue: Power usage effectiveness: facility energy / IT energy, at least 1.

    Returns:
        Grams, or None where the intensity is not known: unknown is not 0.
    """
    if point.g_per_kwh is None:
        return None
    return grams(energy_j * pue, point.g_per_kwh)
