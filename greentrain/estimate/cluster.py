"""How many devices, where, and for how long."""

from dataclasses import dataclass

from greentrain.errors import ConfigError
from greentrain.utils.validation import bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Devices of one kind in one place; either their number is given, or a time in which they must be done."""

    device: str
    count: int | None = None
    limit_h: float | None = None
    """Time limit (h): the smallest number of devices that keeps it is taken."""
    pue: float | None = None
    """Power usage effectiveness; None: the default's range, see ``carbon.PUE``."""
    zone: str = ""
    """Place, as ``carbon.zone``; its typical or constant intensity is taken."""
    g_per_kwh: float | None = None
    """Intensity of the grid (gCO2e/kWh), instead of the zone's."""
    trace_csv: str = ""
    """Intensity over time, instead of both."""
    market_g_per_kwh: float | None = None
    """By contracts, for the market-based figure; None: not known."""

    def __post_init__(self) -> None:
        if (self.count is None) == (self.limit_h is None):
            raise ConfigError(f"count={self.count}, limit_h={self.limit_h}: give one of them")
        if self.count is not None:
            bound("count", self.count, 1, 1e7)
            if self.count != int(self.count):
                raise ConfigError(f"count is {self.count!r}; it must be a whole number of devices")
        if self.limit_h is not None:
            bound("limit_h", self.limit_h, 1e-3, 1e6)
        if self.pue is not None:
            bound("pue", self.pue, 1.0, 5.0)
        given = [bool(self.zone), self.g_per_kwh is not None, bool(self.trace_csv)]
        if sum(given) != 1:
            raise ConfigError("give one of zone, g_per_kwh and trace_csv: where the energy comes from")
