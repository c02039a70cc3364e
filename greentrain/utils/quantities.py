"""Numbers with a unit: those that say where they are from, and how figures read for people.

Figures for people have three significant digits, the unit that keeps them short, and a dash or a word for unknown.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from greentrain.errors import ConfigError
from greentrain.types import Provenance


class SourceKind(StrEnum):
    """Where a number is from, the surest first."""

    MEASURED = "measured"
    AUDITED = "audited"
    """By a life-cycle assessment that somebody else has reviewed."""
    DATASHEET = "datasheet"
    MODELLED = "modelled"
    """Computed from data sheets, or from other numbers."""
    FITTED = "fitted"
    """Fitted to published runs; the source says to which."""
    PUBLISHED = "published"
    """Somebody's paper says so; nobody repeated it here."""
    GIVEN = "given"
    """By the user."""
    ASSUMED = "assumed"

    @property
    def provenance(self) -> Provenance:
        """What the ledger would call it."""
        return Provenance.MEASURED if self is SourceKind.MEASURED else Provenance.MODELLED


def least_sure(kinds: Iterable[SourceKind]) -> SourceKind:
    """Return the least sure of several kinds."""
    return max(kinds, key=list(SourceKind).index)


def sure_first(kinds: Iterable[SourceKind]) -> tuple[SourceKind, ...]:
    """Return the different ones among several kinds, the surest first."""
    found = set(kinds)
    return tuple(kind for kind in SourceKind if kind in found)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcedNumber:
    """A number that says where it is from.

    Raises:
        ConfigError: The value is not finite, or negative.
    """

    value: float
    unit: str
    """Of the value; ``1`` for shares and ratios."""
    source: str
    """The document that states it, or who measured it and how."""
    kind: SourceKind

    def __post_init__(self) -> None:
        if not (math.isfinite(self.value) and self.value >= 0):
            raise ConfigError(f"{self.value!r} {self.unit} ({self.source}): a number is finite and not negative")

    def __str__(self) -> str:
        """Return value, unit, kind and source in one line."""
        return f"{self.value:g} {self.unit} ({self.kind}: {self.source})"

    def times(self, factor: float, why: str, kind: SourceKind | None = None) -> "SourcedNumber":
        """Return a multiple.

        Args:
            factor: Factor of at least 0.
            why: Reason that is put behind the source; empty adds nothing.
            kind: Kind of the factor; the product has the less sure kind of both. None keeps the number's own.
        """
        joint = self.kind if kind is None else least_sure((self.kind, kind))
        source = f"{self.source}, {why}" if why else self.source
        return dataclasses.replace(self, value=self.value * factor, kind=joint, source=source)


UNKNOWN: Final = "unknown"
Units = Sequence[tuple[float, str]]
"""Sizes and names of the multiples of a unit, the largest first."""
ENERGY: Final[Units] = ((3.6e9, "MWh"), (3.6e6, "kWh"), (3600.0, "Wh"), (3.6, "mWh"))
KWH: Final[Units] = ((1e6, "GWh"), (1e3, "MWh"), (1.0, "kWh"), (1e-3, "Wh"))
MASS: Final[Units] = ((1e6, "t"), (1e3, "kg"), (1.0, "g"), (1e-3, "mg"), (1e-6, "\N{MICRO SIGN}g"))
LARGE_MASS: Final[Units] = ((1e9, "kt"), *MASS)
POWER: Final[Units] = ((1e6, "MW"), (1e3, "kW"), (1.0, "W"), (1e-3, "mW"))
WATTS: Final[Units] = ((1e3, "kW"), (1.0, "W"))
HOURS: Final[Units] = ((24.0, "d"), (1.0, "h"), (1 / 60, "min"), (1 / 3600, "s"))
PLAIN: Final[Units] = ((1e9, "G"), (1e6, "M"), (1.0, ""))
JOULE: Final[Units] = ((1e9, "GJ"), (1e6, "MJ"), (1e3, "kJ"), (1.0, "J"), (1e-3, "mJ"), (1e-6, "\N{MICRO SIGN}J"))
_TIME: Final = ((1.0, "s"), (1e-3, "ms"), (1e-6, "\N{MICRO SIGN}s"))
_COUNT: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"))


def significant(value: float, digits: int = 3, separator: str = "\N{THIN SPACE}") -> str:
    """Return a number without an exponent.

    Args:
        value: The number.
        digits: Number of significant digits.
        separator: Text that sets thousands apart.
    """
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    rounded = float(f"{value:.{digits}g}")
    places = digits - 1 - math.floor(math.log10(abs(rounded)))
    return f"{rounded:,.{max(places, 0)}f}".replace(",", separator)


def unit_of(value: float, units: Units, digits: int = 3) -> tuple[float, str]:
    """Return size and name of the largest unit of which a value has one when it is rounded, else of the smallest.

    Args:
        value: The value; 0 has the unit without a prefix.
        units: Sizes and names.
        digits: Number of digits of the value that will be shown.
    """
    if not value:
        return next((unit for unit in units if unit[0] in (1.0, 3600.0)), units[-1])
    almost_one = 1 - 0.5 * 10**-digits
    return next((unit for unit in units if abs(value) >= almost_one * unit[0]), units[-1])


def two_digits(value: float) -> str:
    """Return a number that is not known any better: two significant digits, thousands set apart by a narrow space."""
    if 0 < abs(value) < 1e-9:
        return f"{value:.2g}"
    return significant(value, 2, "\N{NARROW NO-BREAK SPACE}")


def spread(low: float, mid: float, high: float, units: Units) -> str:
    """Return a middle and its bounds in one unit: ``820 t (480 to 1400 t)``; without width the middle alone.

    Args:
        low: Lower bound.
        mid: Middle, which decides the unit.
        high: Upper bound.
        units: Sizes and names of the units that may be taken.
    """
    size, unit = unit_of(mid, units, 2)
    middle = f"{two_digits(mid / size)} {unit}".strip()
    bounds = two_digits(low / size), two_digits(high / size)
    return middle if bounds[0] == bounds[1] else f"{middle} ({bounds[0]} to {bounds[1]})"


def between(value: float | None, interval: Mapping[str, Any] | None, units: Units) -> str:
    """Return a value and its interval in one unit: ``12.3 kJ (11.6 to 13.1)``; the value alone where there is none.

    Args:
        value: The value, which decides the unit.
        interval: Its ``low`` and ``high``, each None where there is no such bound; None: there is no interval.
        units: Sizes and names of the units that may be taken.
    """
    text = _scaled(value, units)
    low, high = (None if interval is None else interval[side] for side in ("low", "high"))
    if value is None or (low is None and high is None):
        return text
    size, _ = unit_of(value, units)
    bounds = [significant(bound / size) for bound in (low, high) if bound is not None]
    return f"{text} ({' to '.join(bounds) if len(bounds) == 2 else f'at least {bounds[0]}'})"


def signed(share: float, *, plus: bool = False) -> str:
    """Return a share as a percentage with one digit, and no -0.0.

    Args:
        share: The share; below 0 it has a sign.
        plus: Whether a share above 0 has a sign too, and that below 0 a true minus: for differences.
    """
    percentage = round(share * 100, 1) + 0.0
    if not plus or not percentage:
        return f"{percentage:.1f} %"
    return f"{percentage:+.1f} %".replace("-", "\N{MINUS SIGN}")


def energy(energy_j: float | None) -> str:
    """Return an energy in the multiple of Wh that suits it."""
    return _scaled(energy_j, ENERGY)


def joules(energy_j: float | None) -> str:
    """Return an energy in the multiple of J that suits it."""
    return _scaled(energy_j, JOULE)


def mass(mass_g: float | None) -> str:
    """Return a mass in the multiple of g (or t) that suits it."""
    return _scaled(mass_g, MASS)


def carbon(mass_g: float | None) -> str:
    """Return a mass of CO2e."""
    return UNKNOWN if mass_g is None else f"{mass(mass_g)} CO\N{SUBSCRIPT TWO}e"


def power(power_w: float | None) -> str:
    """Return a power in the multiple of W that suits it."""
    return _scaled(power_w, POWER)


def money_units(currency: str) -> Units:
    """Return the multiples of a currency."""
    return (1e9, f"G{currency}"), (1e6, f"M{currency}"), (1.0, currency)


def money(amount: float | None, currency: str) -> str:
    """Return a sum of money; below 0 where somebody was paid."""
    return _scaled(amount, money_units(currency))


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


def clock(unix_s: float) -> str:
    """Return a time (s since the epoch) in UTC: ``05 Mar 14:00``."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%d %b %H:%M")


def count(value: float | None) -> str:
    """Return a count, with M, G or T from a million on."""
    if value is None:
        return UNKNOWN
    for size, unit in _COUNT:
        if value >= size:
            return f"{significant(value / size)} {unit}"
    return f"{value:,.0f}".replace(",", "\N{THIN SPACE}")


def counted(number: int, what: str) -> str:
    """Return a count of things by the word for one of them: ``1 step``, ``2 steps``."""
    return f"{count(number)} {what}{'' if number == 1 else 's'}"


def _scaled(value: float | None, units: Units) -> str:
    if value is None:
        return UNKNOWN
    size, unit = unit_of(value, units)
    return f"{significant(value / size)} {unit}"
