"""What a run may change on its own GPUs: power limits and clocks, undone at its end.

Clocks follow how long the GPU waits for data; that is looked at in the thread which books, never in the training's.
"""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from greentrain.config.schema import ActuatorsConfig
from greentrain.errors import ConfigError
from greentrain.types import LedgerEntry, Topology
from greentrain.utils.never_raise import never_raises

if TYPE_CHECKING:
    from greentrain.control.actuators.clocks import ClockLimit
    from greentrain.control.actuators.power_cap import PowerCap
    from greentrain.control.actuators.stall import StallControl

FULL: Final = 1.0


class GpuLimits:
    """Power limits and clocks of one process; without arguments it has none.

    Args:
        power_cap: Sets power limits.
        clocks: Sets clocks.
        stall: Says which.
    """

    def __init__(
        self,
        power_cap: "PowerCap | None" = None,
        clocks: "ClockLimit | None" = None,
        stall: "StallControl | None" = None,
    ) -> None:
        self.power_cap = power_cap
        """The power limits; None: they are left alone, or there is no right to change them."""
        self._clocks, self._stall = clocks, stall
        self._seen: LedgerEntry | None = None
        self._changed = False

    @classmethod
    def open(cls, config: ActuatorsConfig, topology: Topology, warn: Callable[[str], None]) -> "GpuLimits":
        """Put right what dead jobs have left on the node's GPUs, and open what the configuration asks for.

        Args:
            config: Section ``actuators``.
            topology: Place of this process.
            warn: Called with a sentence where something cannot be done.

        Raises:
            ConfigError: A device is not this process's, or a limit is out of its range.
        """
        from greentrain.control.actuators import clocks, driver, guardian, power_cap, stall

        for sentence in driver.repair():
            warn(sentence)
        if config.power_cap is None and config.clocks is None:
            return cls()
        if sys.platform == "win32":
            raise ConfigError(
                "actuators.power_cap and actuators.clocks are set, but the guardian that puts limits back needs Linux:"
                " leave both out on Windows"
            )
        one = guardian.Guardian()
        cap, limit, control = None, None, None
        if config.power_cap is not None:
            cap = power_cap.open_power_cap(config.power_cap, topology, warn, guardian=one)
        if config.clocks is not None:
            limit = clocks.open_clocks(config.clocks, topology, warn, guardian=one)
            control = stall.StallControl(config.clocks)
        return cls(cap, limit, control)

    @property
    def caps(self) -> tuple[float, ...]:
        """Fractions of the power limit found that can be set; (1.0,) where none can."""
        return (FULL,) if self.power_cap is None else self.power_cap.fractions

    @property
    def limit_w(self) -> float | None:
        """Power limits of this process's GPUs, as found (W); None where it sets none."""
        return None if self.power_cap is None else self.power_cap.limit_w

    def cap(self, fraction: float, *, at_once: bool = False) -> None:
        """Set a fraction of the power limit found. Never raises.

        Args:
            fraction: One of ``caps``.
            at_once: However short ago the last change was.
        """
        if self.power_cap is not None:
            self._changed = self._changed or fraction != self.power_cap.fraction
            self.power_cap.apply(fraction, at_once=at_once)

    @never_raises
    def look(self, entry: LedgerEntry | None, *, profiling: bool = False) -> None:
        """Let clocks follow what was booked last; from the thread that books.

        Args:
            entry: The last entry of the books.
            profiling: Gears or limits are being measured, so its speed says nothing.
        """
        self._changed = self._changed or profiling  # it may be over when the interval is booked
        if self._clocks is None or self._stall is None or entry is None or entry is self._seen:
            return
        self._seen = entry
        ordinary = not (self._changed or len(entry.gears) > 1)
        self._changed = False
        seconds = entry.t1_unix_s - entry.t0_unix_s
        level = self._stall.observe(seconds, entry.phase_s, entry.steps, ordinary=ordinary)
        if level is not None and not self._clocks.apply(level) and self._stall.below:
            self._stall.stop("clocks cannot be set")

    def close(self) -> None:
        """Put everything back as it was found. Idempotent; never raises."""
        for hand in (self._clocks, self.power_cap):
            if hand is not None:
                hand.close()
