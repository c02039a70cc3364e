"""Conversions between the SI units used inside GreenTrain and the units of drivers and reports.

Inside the package every quantity is in joules, watts, seconds, grams and g/kWh; drivers and reports
convert here and nowhere else.
"""

from datetime import UTC, datetime
from typing import Final

J_PER_KWH: Final = 3_600_000.0
S_PER_HOUR: Final = 3600.0
S_PER_YEAR: Final = 365.25 * 24 * S_PER_HOUR
G_PER_KG: Final = 1000.0
G_PER_LB: Final = 453.59237
"""Grams in an international avoirdupois pound, exact (NIST Handbook 44, appendix C)."""


def kwh_from_j(energy_j: float) -> float:
    """Convert joules to kilowatt-hours."""
    return energy_j / J_PER_KWH


def j_from_kwh(energy_kwh: float) -> float:
    """Convert kilowatt-hours to joules."""
    return energy_kwh * J_PER_KWH


def g_per_kwh_from_lb_per_mwh(lb_per_mwh: float) -> float:
    """Convert a carbon intensity from lb/MWh (EPA eGRID, WattTime) to g/kWh."""
    return lb_per_mwh * G_PER_LB / 1000.0


def grams(energy_j: float, g_per_kwh: float) -> float:
    """Return the emissions in grams of ``energy_j`` joules at an intensity of ``g_per_kwh``."""
    return energy_j / J_PER_KWH * g_per_kwh


def iso(t_unix_s: float) -> str:
    """Return a time (s since the epoch) for people: ISO 8601 in UTC, to the minute."""
    return datetime.fromtimestamp(float(t_unix_s), UTC).isoformat(timespec="minutes").replace("+00:00", "Z")
