"""Figures with units for people: three significant digits, the unit that keeps them short, a dash for unknown."""

import math
from typing import Final

UNKNOWN: Final = "unknown"
_ENERGY: Final = ((3.6e9, "MWh"), (3.6e6, "kWh"), (3600.0, "Wh"), (3.6, "mWh"))
_MASS: Final = ((1e6, "t"), (1e3, "kg"), (1.0, "g"), (1e-3, "mg"), (1e-6, "\N{MICRO SIGN}g"))
_POWER: Final = ((1e6, "MW"), (1e3, "kW"), (1.0, "W"), (1e-3, "mW"))
_JOULE: Final = ((1e9, "GJ"), (1e6, "MJ"), (1e3, "kJ"), (1.0, "J"), (1e-3, "mJ"), (1e-6, "\N{MICRO SIGN}J"))
_TIME: Final = ((1.0, "s"), (1e-3, "ms"), (1e-6, "\N{MICRO SIGN}s"))
_COUNT: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"))


def significant(value: float, digits: int = 3) -> str:
    """Return a number with so many significant digits, without an exponent, thousands set apart."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    places = digits - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, places)
    if rounded and math.floor(math.log10(abs(rounded))) > math.floor(math.log10(abs(value))):
        places -= 1
    return f"{rounded:,.{max(places, 0)}f}".replace(",", "\N{THIN SPACE}")


def energy(energy_j: float | None) -> str:
    """Return an energy in the multiple of Wh that suits it."""
    return _scaled(energy_j, _ENERGY)


def joules(energy_j: float | None) -> str:
    """Return an energy in the multiple of J that suits it."""
    return _scaled(energy_j, _JOULE)


def mass(mass_g: float | None) -> str:
    """Return a mass in the multiple of g (or t) that suits it."""
    return _scaled(mass_g, _MASS)


def carbon(mass_g: float | None) -> str:
    """Return a mass of CO2e."""
    return UNKNOWN if mass_g is None else f"{mass(mass_g)} CO\N{SUBSCRIPT TWO}e"


def power(power_w: float | None) -> str:
    """Return a power in the multiple of W that suits it."""
    return _scaled(power_w, _POWER)


def intensity(g_per_kwh: float | None) -> str:
    """Return a carbon intensity."""
    return UNKNOWN if g_per_kwh is None else f"{significant(g_per_kwh)} g/kWh"


def cue(kg_per_kwh: float | None) -> str:
    """Return a carbon usage effectiveness, per kWh of IT energy."""
    return UNKNOWN if kg_per_kwh is None else f"{significant(kg_per_kwh)} kg/kWh"


def percent(share: float | None) -> str:
    """Return a share of 1 as a percentage; never '0 %' for something and never '100 %' for less than all."""
    if share is None:
        return UNKNOWN
    if 0 < share < 0.001:
        return "< 0.1 %"
    if 0.999 < share < 1:
        return "> 99.9 %"
    return f"{share * 100:.1f} %" if 0 < share < 1 else f"{share * 100:.0f} %"


def duration(time_s: float | None) -> str:
    """Return a duration: ``41.2 s``, ``3 min 5 s``, ``2 h 4 min``, ``6 d 23 h``."""
    if time_s is None:
        return UNKNOWN
    if time_s < 60:
        return _scaled(time_s, _TIME)
    total_s = round(time_s)
    for size_s, unit, small_s, small in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if total_s >= size_s:
            rest = total_s % size_s // small_s
            return f"{total_s // size_s} {unit}" + (f" {rest} {small}" if rest else "")
    return f"{total_s} s"


def count(value: float | None) -> str:
    """Return a count, with M, G or T from a million on."""
    if value is None:
        return UNKNOWN
    for size, unit in _COUNT:
        if value >= size:
            return f"{significant(value / size)} {unit}"
    return f"{value:,.0f}".replace(",", "\N{THIN SPACE}")


def _scaled(value: float | None, units: tuple[tuple[float, str], ...]) -> str:
    if value is None:
        return UNKNOWN
    for size, unit in units:
        if abs(value) >= size * 0.9995:
            return f"{significant(value / size)} {unit}"
    size, unit = units[-1] if value else next(item for item in units if item[0] in (1.0, 3600.0))
    return f"{significant(value / size)} {unit}"
