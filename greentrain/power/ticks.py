"""When did a ticking counter last tick?

A GPU's energy counter is refreshed about every 100 ms. A value read now is the energy up to the last tick, not
up to now: taken at face value, a 0.5 s window of a square wave is wrong by 12 % and more. The tracker keeps an
estimate of period and phase of the ticks from when the value was seen to change, so that every value gets the
time of its tick.

Reading at 0.97 of the tick period makes the reads sweep over the ticks like a vernier: about every 33 reads one
pair of reads holds no tick and pins the phase to a few milliseconds, at no extra read.
"""

import math

VERNIER = 0.97
"""Share of the tick period at which to read."""
CLEAR_TICK = 0.3
"""A read so far after a tick (share of the period) cannot be taken for one before it."""


class TickTracker:
    """Tracks the ticks of one counter.

    Args:
        tick_s: Probed refresh period (s); refined while tracking, within 5 %.
        edge_s: Time of one tick (s), where the probe saw it.
    """

    def __init__(self, tick_s: float, edge_s: float | None = None) -> None:
        self.tick_s = tick_s
        self._nominal_s = tick_s
        self._edge_s = edge_s
        self._pinned_s = edge_s
        self._read_s: float | None = None

    def observe(self, t_s: float, changed: bool) -> float | None:
        """Take one read into account.

        Args:
            t_s: Time of the read (s), increasing.
            changed: True if the value differs from the read before.

        Returns:
            The estimated time of the last tick at or before the read; None until one was seen, here or by the probe.
        """
        before_s, self._read_s = self._read_s, t_s
        if before_s is None:
            if self._edge_s is not None:
                self._edge_s += math.floor((t_s - self._edge_s) / self.tick_s) * self.tick_s
            return self._edge_s
        if self._edge_s is None:
            if changed:
                self._edge_s = (before_s + t_s) / 2 if t_s - before_s < self.tick_s else t_s
            return self._edge_s
        edge_s = self._edge_s + math.floor((t_s - self._edge_s) / self.tick_s) * self.tick_s
        if changed and edge_s <= before_s:
            early = before_s - edge_s
            late = edge_s + self.tick_s - t_s
            edge_s = before_s + min(1e-4, (t_s - before_s) / 2) if early <= late else t_s
        elif not changed:
            if edge_s > before_s:
                edge_s = min(before_s, t_s - self.tick_s + 1e-4)
            if t_s - before_s > 0.8 * self.tick_s:
                self._pin(before_s - (self.tick_s - (t_s - before_s)) / 2)
        self._edge_s = edge_s
        return edge_s

    def settled_s(self, t_s: float) -> float:
        """Return the next time (s) at which a reading holds all of ``t_s`` and no tick is near that may confuse it."""
        if self._edge_s is None:
            return t_s + self.tick_s + 0.002
        return self._edge_s + (math.ceil((t_s - self._edge_s) / self.tick_s) + CLEAR_TICK) * self.tick_s

    def _pin(self, edge_s: float) -> None:
        # Two reads almost a period apart and no tick between them: the ticks are just outside both.
        if self._pinned_s is None:
            self._pinned_s = edge_s
            return
        ticks = round((edge_s - self._pinned_s) / self.tick_s)
        if ticks >= 16:
            refined_s = (edge_s - self._pinned_s) / ticks
            low_s, high_s = 0.95 * self._nominal_s, 1.05 * self._nominal_s
            self.tick_s = min(max(refined_s, low_s), high_s)
