"""Figures that are ranges, and the assumptions behind them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from greentrain.errors import ConfigError
from greentrain.utils import quantities
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
    def of(cls, low: float, mid: float, high: float) -> "Range":
        """Return a range of its three figures."""
        return cls(low=low, mid=mid, high=high)

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


def span(found: Range | None, units: quantities.Units) -> str:
    """Return middle and bounds: ``820 t (480 to 1400 t)``; the middle alone where there is no width."""
    return quantities.UNKNOWN if found is None else quantities.spread(found.low, found.mid, found.high, units)


def amount(found: Range | None, currency: str) -> str:
    """Return a sum of money."""
    return span(found, quantities.money_units(currency))


Kind = SourceKind  # its name until version 0.3
