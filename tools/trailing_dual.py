"""A price of tokens for the environments of policies that learn, and for what they are held against."""

import numpy as np

from greentrain.policy.chain import TRAILING_H
from greentrain.policy.menu import Menu
from greentrain.policy.outlook import Array, Outlook
from greentrain.policy.waterfill import price
from greentrain.types import S_PER_HOUR


class TrailingDual:
    """The price at which the last 14 days would have brought tokens at the pace that is needed now: no forecast at all.

    Args:
        menu: Menu of the choices of a job.
    """

    past_s = TRAILING_H * S_PER_HOUR

    def __init__(self, menu: Menu) -> None:
        self._menu = menu

    def price(self, seen: Outlook) -> Array:
        """Return that price."""
        return self.at_pace(seen, seen.tokens_left / np.maximum(seen.left_s, 1e-9))

    def at_pace(self, seen: Outlook, pace: Array) -> Array:
        """Return the price that would have brought a pace.

        Args:
            seen: The jobs.
            pace: (n,) tokens/s.
        """
        steps = min(seen.past_g_per_kwh.shape[1], round(self.past_s / seen.step_s) - 1)
        past = seen.past_g_per_kwh[:, seen.past_g_per_kwh.shape[1] - steps :]
        known = np.concatenate([past, seen.forecast_g_per_kwh[:, :1]], axis=1)
        weights_s = np.full(known.shape, seen.step_s)
        return price(known, weights_s, pace * weights_s.sum(axis=1), self._menu)
