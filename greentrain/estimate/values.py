"""Figures that are ranges, and the assumptions behind them.

Ranges as people read them: two significant digits, one unit for middle and bounds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from greentrain.errors import ConfigError
from greentrain.utils.quantities import SourceKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A figure and where it lies: ``low`` and ``high`` are 10th and 90th percentile, or bounds, as its place says."""

    low: float
    mid: float
    high: float

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, (self.low, self.mid, self.high))) or not self.low <= self.mid <= self.high:
            raise ConfigError(f"a range of {self.low} to {self.high} around {self.mid}: give finite low <= mid <= high")

    @classmethod
    def exactly(cls, value: float) -> "Range":
        """Return a range without width."""
        return cls(low=value, mid=value, high=value)

    def times(self, other: "Range | float") -> "Range":
        """Return the product of two ranges that are not negative, bound by bound: the widest that it can be."""
        by = other if isinstance(other, Range) else Range.exactly(other)
        if self.low < 0 or by.low < 0:
            raise ConfigError(f"a product of ranges that reach below 0: {self} and {by}")
        return Range(low=self.low * by.low, mid=self.mid * by.mid, high=self.high * by.high)

    def plus(self, other: "Range") -> "Range":
        """Return the sum, bound by bound: the widest that it can be."""
        return Range(low=self.low + other.low, mid=self.mid + other.mid, high=self.high + other.high)


def product(factors: Sequence[Range]) -> Range:
    """Return the product of independent ranges that lie above 0.

    Logarithmic half-widths add up in quadrature, each side for itself: three factors of x/÷ 1.5 are x/÷ 2.0, not 3.4.
    """
    if any(f.low <= 0 for f in factors):
        raise ConfigError("a product of independent ranges needs factors above 0: use Range.times")
    mid = math.prod(f.mid for f in factors)
    down = math.sqrt(sum(math.log(f.mid / f.low) ** 2 for f in factors))
    up = math.sqrt(sum(math.log(f.high / f.mid) ** 2 for f in factors))
    return Range(low=mid * math.exp(-down), mid=mid, high=mid * math.exp(up))


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """A default or an input that went into an estimate; every one of them is shown."""

    name: str
    value: str
    """As people read it, with its unit."""
    source: str
    kind: SourceKind


UNKNOWN: Final = "unknown"
Units = Sequence[tuple[float, str]]
KWH: Final[Units] = ((1e6, "GWh"), (1e3, "MWh"), (1.0, "kWh"), (1e-3, "Wh"))
GRAMS: Final[Units] = ((1e9, "kt"), (1e6, "t"), (1e3, "kg"), (1.0, "g"), (1e-3, "mg"), (1e-6, "\N{MICRO SIGN}g"))
HOURS: Final[Units] = ((24.0, "d"), (1.0, "h"), (1 / 60, "min"), (1 / 3600, "s"))
COUNT: Final[Units] = ((1e9, "G"), (1e6, "M"), (1.0, ""))
WATTS: Final[Units] = ((1e3, "kW"), (1.0, "W"))


def digits(value: float, most: int = 2) -> str:
    """Return a number of so many significant digits, without an exponent, thousands set apart."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    rounded = float(f"{value:.{most}g}")
    places = most - 1 - math.floor(math.log10(abs(rounded)))
    text = f"{rounded:,.{max(places, 0)}f}"
    if "." in text and abs(rounded) < 1e-9:
        return f"{rounded:.{most}g}"
    return text.replace(",", "\N{NARROW NO-BREAK SPACE}")


def span(found: Range | None, units: Units) -> str:
    """Return middle and bounds: ``820 t (480 to 1400 t)``; the middle alone where there is no width."""
    if found is None:
        return UNKNOWN
    size, unit = unit_of(found.mid, units)
    middle = f"{digits(found.mid / size)} {unit}".strip()
    low, high = digits(found.low / size), digits(found.high / size)
    return middle if low == high else f"{middle} ({low} to {high})"


def unit_of(value: float, units: Units) -> tuple[float, str]:
    """Return size and name of the largest unit of which a value has one, else of the smallest."""
    if not value:
        return next((unit for unit in units if unit[0] == 1.0), units[-1])
    return next((unit for unit in units if abs(value) >= 0.995 * unit[0]), units[-1])


def amount(found: Range | None, currency: str) -> str:
    """Return a sum of money."""
    return UNKNOWN if found is None else span(found, ((1e9, f"G{currency}"), (1e6, f"M{currency}"), (1.0, currency)))


def count(value: float) -> str:
    """Return a given number, with three digits: ``15 T``."""
    size, unit = unit_of(value, ((1e12, "T"), *COUNT))
    return f"{value / size:.3g} {unit}".strip()


def times(value: float) -> str:
    """Return a ratio: ``0.62 x``."""
    return f"{digits(value)} \N{MULTIPLICATION SIGN}"


Kind = SourceKind  # its name until version 0.3
