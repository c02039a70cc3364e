"""How long until the next reading: longer while power does not change.

Two readings of a cumulative counter on a straight line say all there is between them, and one step of power in a
longer interval is found as well as in a short one (``EnergyCurve``). So a counter is read at every tick only while
its power moves; a wake-up and a read cost a core about 100 us, whatever they find.
"""

from typing import Final

FLAT: Final = 0.03
"""Largest relative change of power from one reading to the next that counts as none."""
FLAT_FOR: Final = 2
"""Flat readings after which every second tick is read."""
STEADY_FOR: Final = 10
"""Flat readings after which every third tick is read."""
LOOK_EVERY: Final = 10
"""Every so many readings one follows after a single tick, so that a period of two or three ticks cannot hide."""


class Pace:
    """Follows the summed power of the ticking counters of a meter.

    Args:
        tick_s: Their refresh period (s).
    """

    def __init__(self, tick_s: float) -> None:
        self._tick_s = tick_s
        self._energy_j = self._t_s = self._power_w = 0.0
        self._flat = 0
        self._seen = 0

    def after(self, t_s: float, energy_j: float, seen: int) -> int:
        """Return after how many ticks to read again.

        Args:
            t_s: Time of the reading (s).
            energy_j: Sum of the counters (J).
            seen: How many counters are in it; with none every tick is read.
        """
        if not seen or seen != self._seen:
            self._seen, self._flat, self._energy_j, self._t_s = seen, 0, energy_j, t_s
            return 1
        power_w = (energy_j - self._energy_j) / (round((t_s - self._t_s) / self._tick_s) or 1)
        change_w = power_w - self._power_w
        self._energy_j, self._t_s, self._power_w = energy_j, t_s, power_w
        if not -FLAT * power_w <= change_w <= FLAT * power_w:
            self._flat = 0
            return 1
        self._flat += 1
        if self._flat < FLAT_FOR or self._flat % LOOK_EVERY == 0:
            return 1
        return 2 if self._flat < STEADY_FOR else 3
