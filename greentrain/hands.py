"""What a run may change on its own GPUs: power limits and clocks, undone at its end.

Clocks follow how long the GPU waits for data; that is looked at in the thread which books, never in the training's.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from greentrain.config_actuators import ActuatorsConfig
from greentrain.harmless import harmless
from greentrain.types import LedgerEntry, Topology

if TYPE_CHECKING:
    from greentrain.actuators.clocks import ClockLimit
    from greentrain.actuators.power_cap import PowerCap
    from greentrain.actuators.stall import StallControl

FULL: Final = 1.0


class Hands:
    """Power limits and clocks of one process.

    Args:
        config: Section ``actuators``.
        topology: Place of this process.
        warn: Called with a sentence where something cannot be done.

    Raises:
        ConfigError: A device is not this process's, or a limit is out of its range.
    """

    def __init__(self, config: ActuatorsConfig, topology: Topology, warn: Callable[[str], None]) -> None:
        self.power_cap: PowerCap | None = None
        """The power limits; None: they are left alone, or there is no right to change them."""
        self._clocks: ClockLimit | None = None
        self._stall: StallControl | None = None
        self._seen: LedgerEntry | None = None
        if config.power_cap is not None:
            from greentrain.actuators import power_cap

            self.power_cap = power_cap.open_power_cap(config.power_cap, topology, warn)
        if config.clocks is not None:
            from greentrain.actuators import clocks, stall

            self._clocks = clocks.open_clocks(config.clocks, topology, warn)
            self._stall = stall.StallControl(config.clocks)

    @property
    def caps(self) -> tuple[float, ...]:
        """Fractions of the power limit found that can be set; (1.0,) where none can."""
        return (FULL,) if self.power_cap is None else self.power_cap.fractions

    @property
    def limit_w(self) -> float | None:
        """Power limits of this process's GPUs, as found (W); None where it sets none."""
        return None if self.power_cap is None else self.power_cap.limit_w

    def cap(self, fraction: float) -> None:
        """Set a fraction of the power limit found. Never raises."""
        if self.power_cap is not None:
            self.power_cap.apply(fraction, at_once=True)

    @harmless
    def look(self, entry: LedgerEntry | None) -> None:
        """Let clocks follow what was booked last; from the thread that books."""
        if self._clocks is None or self._stall is None or entry is None or entry is self._seen:
            return
        self._seen = entry
        level = self._stall.observe(entry.t1_unix_s - entry.t0_unix_s, entry.phase_s, entry.steps)
        if level is not None:
            self._clocks.apply(level)

    def close(self) -> None:
        """Put everything back as it was found. Idempotent; never raises."""
        for hand in (self._clocks, self.power_cap):
            if hand is not None:
                hand.close()
