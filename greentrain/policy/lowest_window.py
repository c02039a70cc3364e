"""The cheapest hours of the next day.

The interruptible rule of "Let's wait awhile" (Wiesner et al., Middleware 2021, https://doi.org/10.1145/3464298.3493399)
on a rolling window: the work is spread evenly over the time left, and within each window it goes where the forecast is
lowest.
"""

import math

import numpy as np

from greentrain.policy.menu import OFF, Menu
from greentrain.policy.outlook import Choice, Outlook
from greentrain.units import S_PER_HOUR


class LowestWindow:
    """Runs one row in the cheapest steps of the window ahead, or nothing.

    Args:
        menu: What a job can do.
        window_h: How far it looks ahead (h).
        row: The row; None: the usual training, ``menu.static``.
    """

    past_s = 0.0

    def __init__(self, menu: Menu, window_h: float = 24.0, row: int | None = None) -> None:
        self.name = "lowest_window"
        self.ahead_s = window_h * S_PER_HOUR
        self._row = menu.static if row is None else row
        self._speed = float(menu.tokens_per_s[self._row])

    def choose(self, seen: Outlook) -> Choice:
        """Return the row where the running step is among the cheapest of its window, else off."""
        steps = min(seen.forecast_g_per_kwh.shape[1], math.ceil(self.ahead_s / seen.step_s))
        ahead = seen.forecast_g_per_kwh[:, :steps]
        starts_s = np.arange(steps) * seen.step_s
        weight_s = np.clip(np.minimum(seen.left_s, self.ahead_s)[:, None] - starts_s, 0.0, seen.step_s)
        need_s = seen.tokens_left / self._speed
        duty = need_s / np.maximum(seen.left_s, 1e-9)
        cleaner_s = np.where(ahead < ahead[:, :1], weight_s, 0.0).sum(axis=1)
        urgent = need_s >= seen.left_s - seen.epoch_s
        wanted_s = duty * weight_s.sum(axis=1)
        run = urgent | (cleaner_s < wanted_s)
        return Choice(
            rows=np.where(run, self._row, OFF),
            reasons=_REASONS,
            reason=np.where(urgent, 2, np.where(run, 0, 1)),
            figures={
                "duty": duty,
                "cleaner_h": cleaner_s / S_PER_HOUR,
                "wanted_h": wanted_s / S_PER_HOUR,
                "window_h": np.full(len(duty), self.ahead_s / S_PER_HOUR),
            },
        )


_REASONS = (
    "{now:.0f} g/kWh: {cleaner_h:.0f} h of the next {window_h:.0f} h are cleaner, {wanted_h:.1f} h are needed: run",
    "{now:.0f} g/kWh: {cleaner_h:.0f} h of the next {window_h:.0f} h are cleaner, {wanted_h:.1f} h are needed: wait",
    "{duty:.0%} of the time left is needed: run, at {now:.0f} g/kWh",
)
