"""A number that says who measured, computed, published or assumed it."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from greentrain.errors import ConfigError
from greentrain.types import Provenance


class Origin(StrEnum):
    """Where a figure is from, the surest first."""

    MEASURED = "measured"
    MODELLED = "modelled"
    """Computed from data sheets, or from other figures."""
    PUBLISHED = "published"
    """Somebody's paper says so; nobody repeated it here."""
    ASSUMED = "assumed"

    @property
    def provenance(self) -> Provenance:
        """What the ledger would call it."""
        return Provenance.MEASURED if self is Origin.MEASURED else Provenance.MODELLED


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A number of a table.

    Raises:
        ConfigError: It is not finite, or negative.
    """

    value: float
    origin: Origin
    source: str
    """Who says so, and how he knows."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.value) and self.value >= 0):
            raise ConfigError(f"{self.value!r} ({self.source}): a figure is finite and not negative")

    def times(self, factor: float, why: str, origin: Origin | None = None) -> "Figure":
        """Return a multiple.

        Args:
            factor: Of at least 0.
            why: Put behind the source.
            origin: Of the factor; the product has the less sure origin of both. None: the figure's own.
        """
        joint = self.origin if origin is None else least_sure((self.origin, origin))
        return Figure(value=self.value * factor, origin=joint, source=f"{self.source}, {why}" if why else self.source)


def least_sure(origins: Iterable[Origin]) -> Origin:
    """Return the least sure of several origins."""
    order = list(Origin)
    return max(origins, key=order.index)


def sure_first(origins: Iterable[Origin]) -> tuple[Origin, ...]:
    """Return the different ones, the surest first."""
    found = set(origins)
    return tuple(origin for origin in Origin if origin in found)
