"""Schedules that do not look at the grid: the usual training, and the constant pace of least energy."""

import numpy as np

from greentrain.policy.menu import Menu
from greentrain.policy.outlook import Choice, Outlook
from greentrain.policy.reach import ROUNDING


class StaticSchedule:
    """One row from the start until all tokens are done.

    Args:
        menu: What a job can do.
        row: The row; None: the usual training, ``menu.static``.
    """

    past_s = 0.0
    ahead_s = 0.0

    def __init__(self, menu: Menu, row: int | None = None) -> None:
        self.name = "static"
        self._row = menu.static if row is None else row

    def choose(self, seen: Outlook) -> Choice:
        """Return the row."""
        n = len(seen.left_s)
        return Choice(rows=np.full(n, self._row), reasons=_STATIC, reason=np.zeros(n, np.int64))


class CarbonBlind:
    """The least energy by the deadline, whatever the grid does: what is left, spread evenly over the time left.

    Between two rows of the hull it takes the faster one first, which changes row once instead of every epoch and keeps
    the deadline safe. Where idle ranks are held, no row pays that is slower than the one of least energy a token: the
    job ends when its tokens are done, and the holding with it.

    Args:
        menu: What a job can do.
    """

    past_s = 0.0
    ahead_s = 0.0

    def __init__(self, menu: Menu) -> None:
        self.name = "carbon_blind"
        self._rows = menu.hull[menu.tokens_per_s[menu.hull] > 0]
        self._speeds = menu.tokens_per_s[self._rows]
        self._leanest = int(np.argmin(menu.power_w[self._rows] / self._speeds))

    def choose(self, seen: Outlook) -> Choice:
        """Return the slowest row on the hull that is in time."""
        pace = seen.tokens_left / np.maximum(seen.left_s, 1e-9)
        step = np.searchsorted(self._speeds, pace * (1 - ROUNDING))
        rows = self._rows[np.clip(step, self._leanest, len(self._rows) - 1)]
        return Choice(rows=rows, reasons=_BLIND, reason=np.zeros(len(rows), np.int64), figures={"pace": pace})


_STATIC = ("static: {row} until all tokens are done",)
_BLIND = ("{pace:.4g} tokens/s are needed until the deadline, whatever the grid does: {row}",)
