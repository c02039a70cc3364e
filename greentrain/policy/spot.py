"""Buy rank-hours while they are cheap: what a job does that looks at its bill and not at the grid.

The rule is that of ``threshold``, with the price of a rank and hour in place of the intensity: a job that needs a share
q of the time it has left runs while the price is within the lowest q of the last seven days.
"""

import numpy as np

from greentrain.policy.menu import OFF, Menu
from greentrain.policy.outlook import Array, Choice, Outlook
from greentrain.policy.prices import Prices, SyntheticPrices
from greentrain.policy.threshold import TRAILING_S
from greentrain.units import S_PER_HOUR


class Spot:
    """Runs one row, or nothing.

    Args:
        menu: What a job can do.
        prices: Where prices come from; None makes them up, and says so in name and reasons.
        row: The row; None: the usual training, ``menu.static``.
    """

    past_s = 0.0
    ahead_s = 0.0

    def __init__(self, menu: Menu, prices: Prices | None = None, row: int | None = None) -> None:
        self._prices = SyntheticPrices() if prices is None else prices
        self.name = "spot (synthetic prices)" if isinstance(self._prices, SyntheticPrices) else "spot"
        self._row = menu.static if row is None else row
        self._speed = float(menu.tokens_per_s[self._row])
        source = self._prices.name.replace("{", "{{").replace("}", "}}")
        unit = f" {self._prices.currency}".rstrip()
        paid = f"{{paid:.3g}}{unit} a rank and hour ({source}): "
        self._reasons = (
            paid + "only {rank:.0%} of the last 7 days were cheaper, and {duty:.0%} of the time left is needed: run",
            paid + "{rank:.0%} of the last 7 days were cheaper, and {duty:.0%} of the time left is needed: wait",
            paid + "{duty:.0%} of the time left is needed: run",
        )

    def choose(self, seen: Outlook) -> Choice:
        """Return the row where a rank is cheap enough now, or nobody knows its price; else off."""
        paid = seen.price_per_h[:, 0] if seen.price_per_h is not None else self._prices.at(seen.t_unix_s)
        trailing = self._prices.at(_hours_before(seen.t_unix_s))
        known = np.isfinite(trailing)
        cheaper = (trailing < paid[:, None]) & known
        rank = cheaper.sum(axis=1) / np.maximum(1, known.sum(axis=1))
        need_s = seen.tokens_left / self._speed
        duty = need_s / np.maximum(seen.left_s, 1e-9)
        urgent = need_s >= seen.left_s - seen.epoch_s
        run = urgent | (rank <= duty) | np.isnan(paid)
        return Choice(
            rows=np.where(run, self._row, OFF),
            reasons=self._reasons,
            reason=np.where(urgent, 2, np.where(run, 0, 1)),
            figures={"paid": paid, "rank": rank, "duty": duty},
        )


def _hours_before(t_unix_s: Array) -> Array:
    """Return (n, 168): the hours of the last seven days."""
    hours = np.arange(round(TRAILING_S / S_PER_HOUR), 0, -1)
    before: Array = t_unix_s[:, None] - hours * S_PER_HOUR
    return before
