"""The power limit of one GPU: what was found, what was set, and what a fraction of it is."""

from typing import Final

from greentrain.control.actuators import guardian_main
from greentrain.control.actuators.gpu_knobs import GpuKnobs

IGNORED: Final = 0.02
"""A change of less than this share of the card's range is not made."""
FULL: Final = 1.0


class CappedGpu:
    """One GPU and what was done to it (mW).

    Args:
        knobs: Its settings.
    """

    def __init__(self, knobs: GpuKnobs) -> None:
        self.knobs = knobs
        self.range = knobs.limits()
        self.set_mw: int | None = None
        """None: it has the limit found."""
        self._before_mw: int | None = None

    def about_to_set(self, target_mw: int) -> None:
        """Note a limit whose setting may still fail."""
        self._before_mw, self.set_mw = self.set_mw, target_mw

    def is_ours(self, limit_mw: int) -> bool:
        """Return True if this process has set a limit."""
        return any(mw is not None and is_same(limit_mw, mw) for mw in (self.set_mw, self._before_mw))

    def is_found(self, limit_mw: int) -> bool:
        """Return True if a limit is the one that was found."""
        return is_same(limit_mw, self.range.found_mw)

    def forget(self) -> None:
        """Note that nothing of ours is set."""
        self.set_mw = self._before_mw = None

    def is_near(self, one_mw: int, other_mw: int) -> bool:
        """Return True if two limits differ by too little to matter."""
        return abs(one_mw - other_mw) < IGNORED * (self.range.max_mw - self.range.min_mw)

    def target_mw(self, fraction: float) -> int:
        """Return the limit of a fraction (mW), in whole watts; the limit found at 1."""
        return self.range.found_mw if fraction >= FULL else round(self.range.base_mw * fraction / 1000) * 1000

    def takes(self, fraction: float) -> bool:
        """Return True if the card has such a limit."""
        return fraction == FULL or self.range.min_mw <= self.target_mw(fraction) <= self.range.found_mw


def is_same(one_mw: int, other_mw: int) -> bool:
    """Return True if two limits are one: drivers round (mW)."""
    return abs(one_mw - other_mw) <= guardian_main.TOLERANCE_MW
