"""A carbon intensity that does not change: a number, or the annual average of a place."""

import math
from collections.abc import Mapping
from typing import Final

from greentrain.carbon.regions import lookup
from greentrain.carbon.source import Stated
from greentrain.errors import CarbonSignalError
from greentrain.types import CarbonKind, CarbonPoint

ANNUAL_ERROR: Final = 0.224
"""Standard error of the annual average of a place as the intensity of an hour, as a share of it: root mean square of
0.07 to 0.38 over the seven zones of ``typical.json``, by their profiles and how far the year's hours were from them."""


class ConstantSignal(Stated):
    """The same carbon intensity at all times.

    Args:
        g_per_kwh: The intensity (gCO2e/kWh), at least 0.
        zone: Place that it is of.
        source: Publication that says so, with year.
        accounting: ``production`` or ``consumption``, ``direct`` or ``life cycle``, as the source states it.
        resolution: Period that the number is an average over.
        relative_error: Standard error of the number as the intensity of an hour, as a share of it; None: not stated.

    Raises:
        CarbonSignalError: The number is negative, infinite or not a number.
    """

    def __init__(
        self,
        g_per_kwh: float,
        *,
        zone: str = "unnamed",
        source: str = "given by the user",
        accounting: str = "unspecified",
        resolution: str = "constant",
        relative_error: float | None = None,
    ) -> None:
        if not (math.isfinite(g_per_kwh) and g_per_kwh >= 0):
            raise CarbonSignalError(
                f"the carbon intensity of {zone!r} is {g_per_kwh!r} g/kWh; it must be a finite number, at least 0"
            )
        self.g_per_kwh = float(g_per_kwh)
        self.zone = zone
        self.source = source
        self.accounting = accounting
        self.resolution = resolution
        self.relative_error = relative_error

    @classmethod
    def of(cls, zone: str) -> "ConstantSignal":
        """Return the annual average of a place, as :func:`greentrain.carbon.regions.lookup` finds it.

        Raises:
            UnknownZoneError: The place is in none of the tables; the message lists the nearest names.
            CarbonSignalError: codecarbon's tables cannot be read.
        """
        place = lookup(zone)
        return cls(
            place.g_per_kwh,
            zone=place.zone,
            source=place.citation,
            accounting=place.accounting,
            resolution="annual average",
            relative_error=ANNUAL_ERROR,
        )

    def mean(self, t0_unix_s: float, t1_unix_s: float) -> CarbonPoint:
        """Return the constant."""
        return CarbonPoint(
            t0_unix_s=t0_unix_s,
            t1_unix_s=t1_unix_s,
            g_per_kwh=self.g_per_kwh,
            zone=self.zone,
            source=self.source,
            kind=CarbonKind.ESTIMATED,
            basis=self.basis,
            accounting=self.accounting,
            relative_error=self.relative_error,
        )

    def describe(self) -> Mapping[str, str]:
        """Return what the report says about the signal."""
        return self._says("constant", self.resolution, "attribute the source", g_per_kwh=f"{self.g_per_kwh:g}")
