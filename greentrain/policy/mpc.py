"""Model-predictive control: water-filling on the forecast, solved anew at every decision. The default.

The plan for the rest of the job is one number, the price of a token at which the job is done by its deadline
(``greentrain.policy.waterfill``). The row for the coming epoch is then the one of least c P - price x tokens/s at the
intensity that is known now; the forecast only enters through the price.
"""

import numpy as np

from greentrain.policy.menu import Menu
from greentrain.policy.outlook import Choice, Outlook
from greentrain.policy.waterfill import price, row_at


class Mpc:
    """Plans as if changes of width were free.

    Args:
        menu: What a job can do.
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
