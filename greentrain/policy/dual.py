"""What a token is worth: three ways to the price, the slow one of CarbonGearRL's two time scales.

The published dual rises with B - b, the tokens left, which is above zero until the last epoch: the price only ever
climbs, and in units of tokens one step takes it to its limit. Its "robust" variant averages the sign of the same
number, which is 1 to the end. What tells whether a price is too low is the *pace*: the share of the time that has
passed against the share of the tokens that is done.
"""

from typing import Final, Protocol

import numpy as np

from greentrain.policy.chain import TRAILING_H
from greentrain.policy.menu import Menu
from greentrain.policy.outlook import Array, Outlook
from greentrain.policy.waterfill import price
from greentrain.types import S_PER_HOUR

MEMORY: Final = 0.9
"""Weight of what was before in RobustDual's average, an epoch."""
GAIN: Final = 4.0
"""The price is multiplied by exp(GAIN x deficit)."""


class Dual(Protocol):
    """Says what one more token may emit."""

    past_s: float
    """How far back it looks (s)."""

    def price(self, seen: Outlook) -> Array:
        """Return (n,) g/token; inf where there is no time left to choose, 0 where nothing is left to do."""
        ...


class ForecastDual:
    """The price of the best plan on the forecast: that of ``mpc``. The default.

    Args:
        menu: What a job can do.
    """

    past_s = 0.0

    def __init__(self, menu: Menu) -> None:
        self._menu = menu

    def price(self, seen: Outlook) -> Array:
        """Return the price at which the rest of the job is done just in time, if the forecast is right."""
        return price(seen.forecast_g_per_kwh, seen.weights_s(), seen.tokens_left, self._menu)


class TrailingDual:
    """The price at which the last 14 days would have brought tokens at the pace that is needed now: no forecast at all.

    Args:
        menu: What a job can do.
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


class RobustDual:
    """The trailing price at the pace of the whole job, raised while the job is behind its pace and lowered while ahead.

    The deficit is the share of the time that has passed less the share of the tokens that is done: signed, without a
    unit, and averaged over some ten epochs. A factor exp(GAIN x deficit) is mirror descent on the price's logarithm.

    It remembers the average of each job, which starts at the deficit of the first outlook it sees: a resumed run goes
    on where it is.

    Args:
        menu: What a job can do.
    """

    past_s = TrailingDual.past_s

    def __init__(self, menu: Menu) -> None:
        self._trailing = TrailingDual(menu)
        self._deficit = np.zeros(0)
        self._at_s = np.zeros(0)

    def price(self, seen: Outlook) -> Array:
        """Return the price; the same outlook seen twice counts once."""
        jobs, total_s = seen.jobs, np.maximum(seen.total_s, 1e-9)
        deficit = seen.tokens_left / seen.tokens - seen.left_s / total_s
        more = max(0, int(jobs.max()) + 1 - len(self._at_s))
        self._deficit = np.concatenate([self._deficit, np.zeros(more)])
        self._at_s = np.concatenate([self._at_s, np.full(more, np.nan)])
        since_s = seen.t_unix_s - self._at_s[jobs]
        new = ~((since_s >= 0) & (since_s <= total_s - seen.left_s))
        averaged = MEMORY * self._deficit[jobs] + (1 - MEMORY) * deficit
        averaged = np.where(new, deficit, np.where(since_s > 0, averaged, self._deficit[jobs]))
        self._deficit[jobs], self._at_s[jobs] = averaged, seen.t_unix_s
        return self._trailing.at_pace(seen, seen.tokens / total_s) * np.exp(GAIN * averaged)
