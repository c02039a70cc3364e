"""Model-predictive control: water-filling on the forecast, solved anew at every decision. The default.

The plan for the rest of the job is one number, the price of a token at which the job is done by its deadline
(``greentrain.policy.waterfill``). The row for the coming epoch is then the one of least c P - price x tokens/s at the
intensity that is known now; the forecast only enters through the price.

Model-predictive control that counts what a change of width costs.

As ``mpc``, it plans on the forecast anew at every decision; but the plan is that of the dynamic programme of
``greentrain.policy.switching``, in which a change loses time and a width is held. So it changes width where that pays
over the hours to come, not where the coming hour alone would gain.
"""

import math
from typing import Final

import numpy as np

from greentrain.policy.menu import OFF, Menu
from greentrain.policy.outlook import Array, Choice, Outlook
from greentrain.policy.switching import Switching
from greentrain.policy.waterfill import price, row_at


class Mpc:
    """Plans as if changes of width were free.

    Args:
        menu: Menu of the choices of a job.
    """

    past_s = 0.0

    def __init__(self, menu: Menu) -> None:
        self.name = "mpc"
        self._menu = menu

    def choose(self, seen: Outlook) -> Choice:
        """Return the best row for the coming epoch, and the price behind it."""
        ahead = seen.forecast_g_per_kwh
        found = price(ahead, seen.weights_s(), seen.tokens_left, self._menu)
        hurried = np.isinf(found)
        rows = row_at(self._menu, seen.epoch_g_per_kwh(), found)
        rows[hurried] = self._menu.fastest
        return Choice(rows=rows, reasons=_REASONS, reason=hurried.astype(np.int64), price=found)


_REASONS = (
    "{now:.0f} g/kWh now and {mean:.0f} on average until the deadline in {left_h:.1f} h, where {todo:.1%} of the tokens"
    " are left: {row}, at a price of {price:.4g} g per million tokens",
    "{todo:.1%} of the tokens are left for {left_h:.1f} h: {row}, the fastest there is",
)


HYSTERESIS: Final = 0.05
"""What a change must gain beyond its cost, as a share of that cost. On eight shared grids at slack 1.25 and 2.0, with
10 minutes a change, there are a quarter to three quarters fewer changes than without, and savings are the same or up to
0.5 points higher, as plans follow less of the forecast's noise. 0.1 and 0.15 save about as much, 0.25 and more less."""


WITHIN: Final = 0.05
"""How closely the price is searched, relative to itself. 0.01 and 0.003 take twice and thrice as long and save neither
more nor less: on four grids savings differ by up to 0.1 points, to either side."""


class MpcSwitching:
    """Plans changes of width.

    Args:
        menu: Menu of the choices of a job.
        switch_s: Time in which a change of width trains nothing, at the power of the new width (s).
        dwell_s: Shortest time between two changes of width (s).
        shift_s: Time in which a change of gear trains nothing, at the power of the new row (s).
    """

    past_s = 0.0

    def __init__(self, menu: Menu, *, switch_s: float = 0.0, dwell_s: float = 0.0, shift_s: float = 0.0) -> None:
        self.name = "mpc"
        self._menu, self._switch_s, self._dwell_s, self._shift_s = menu, switch_s, dwell_s, shift_s
        self._plans: dict[float, Switching] = {}

    def choose(self, seen: Outlook) -> Choice:
        """Return the first row of the best plan.

        The choice has no ``price``: it would invite a hysteresis that looks at the coming epoch alone, and what a
        change costs and brings later is in the plan already. The reason names it.
        """
        ahead, weights_s, step_s = _by_epoch(seen)
        if step_s not in self._plans:
            self._plans[step_s] = Switching(
                self._menu,
                step_s=step_s,
                switch_s=self._switch_s,
                dwell_s=self._dwell_s,
                shift_s=self._shift_s,
                hysteresis=HYSTERESIS,
            )
        first = self._plans[step_s].first(ahead, weights_s, seen.tokens_left, seen.current, seen.held_s, within=WITHIN)
        width = self._menu.width
        reason = np.where(width[first.rows] == width[seen.current], 0, np.where(first.rows == OFF, 2, 1))
        reason[np.isinf(first.price)] = 3
        n = len(reason)
        return Choice(
            rows=first.rows,
            reasons=_MPC_SWITCHING_REASONS,
            reason=reason,
            figures={"price": first.price * 1e6, "switch_min": np.full(n, max(self._switch_s, self._shift_s) / 60)},
        )


def _by_epoch(seen: Outlook) -> tuple[Array, Array, float]:
    """Return forecast, weights and spacing of columns that are as long as an epoch, where an epoch is longer."""
    ahead, weights_s = seen.forecast_g_per_kwh, seen.weights_s()
    each = round(seen.epoch_s / seen.step_s)
    if each <= 1:
        return ahead, weights_s, seen.step_s
    n, h = ahead.shape
    columns = math.ceil(h / each)
    pad = ((0, 0), (0, columns * each - h))
    weights_s = np.pad(weights_s, pad).reshape(n, columns, each)
    grams = np.pad(ahead, pad).reshape(n, columns, each) * weights_s
    total_s = weights_s.sum(axis=2)
    means = np.divide(grams.sum(axis=2), total_s, out=np.zeros((n, columns)), where=total_s > 0)
    return means, total_s, each * seen.step_s


_SEEN = "{now:.0f} g/kWh now and {mean:.0f} on average until the deadline in {left_h:.1f} h: "
_MPC_SWITCHING_REASONS = (
    _SEEN + "{row}, at a price of {price:.4g} g per million tokens",
    _SEEN + "{row}, which is worth the {switch_min:.3g} min of a change at {price:.4g} g per million tokens",
    _SEEN + "off, which is worth the {switch_min:.3g} min of starting again at {price:.4g} g per million tokens",
    "{todo:.1%} of the tokens are left for {left_h:.1f} h: {row}, the fastest there is",
)
