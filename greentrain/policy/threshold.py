"""Suspend and resume: train while the grid is cleaner than usual.

The rule of "Let's wait awhile" (Wiesner et al., Middleware 2021, https://doi.org/10.1145/3464298.3493399) with a
threshold that follows the work: a job that needs a share q of the time it has left runs while the intensity is within
the lowest q of the last seven days.
"""

import numpy as np

from greentrain.policy.menu import OFF, Menu
from greentrain.policy.outlook import Choice, Outlook
from greentrain.units import S_PER_HOUR

TRAILING_S = 7 * 24 * S_PER_HOUR
"""A week, so that working days and weekends are in it."""


class Threshold:
    """Runs one row, or nothing.

    Args:
        menu: What a job can do.
        row: The row; None: the usual training, ``menu.static``.
    """

    past_s = TRAILING_S
    ahead_s = 0.0

    def __init__(self, menu: Menu, row: int | None = None) -> None:
        self.name = "threshold"
        self._row = menu.static if row is None else row
        self._speed = float(menu.tokens_per_s[self._row])

    def choose(self, seen: Outlook) -> Choice:
        """Return the row where the running step is clean enough, else off."""
        now = seen.now_g_per_kwh
        steps = min(seen.past_g_per_kwh.shape[1], round(TRAILING_S / seen.step_s))
        trailing = seen.past_g_per_kwh[:, seen.past_g_per_kwh.shape[1] - steps :]
        need_s = seen.tokens_left / self._speed
        duty = need_s / np.maximum(seen.left_s, 1e-9)
        rank = np.count_nonzero(trailing < now[:, None], axis=1) / max(1, steps)
        urgent = need_s >= seen.left_s - seen.epoch_s
        run = urgent | (rank <= duty)
        return Choice(
            rows=np.where(run, self._row, OFF),
            reasons=_REASONS,
            reason=np.where(urgent, 2, np.where(run, 0, 1)),
            figures={"duty": duty, "rank": rank},
        )


_REASONS = (
    "{now:.0f} g/kWh: only {rank:.0%} of the last 7 days were cleaner, and {duty:.0%} of the time left is needed: run",
    "{now:.0f} g/kWh: {rank:.0%} of the last 7 days were cleaner, and {duty:.0%} of the time left is needed: wait",
    "{duty:.0%} of the time left is needed: run, at {now:.0f} g/kWh",
)
