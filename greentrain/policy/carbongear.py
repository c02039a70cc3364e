"""CarbonGearRL, corrected: soft values of a width, a Gibbs policy over exact costs, and a price from a dual.

Two time scales: the price of a token follows the job slowly (``dual``); at a price the policy acts at once, on the
exact cost of the coming epoch and the learned soft value of what comes after it (``softq``). Where a change of width
costs nothing there is nothing to learn, and this is ``mpc``: given the price, the best row is then that of the hour.

Why it is not the algorithm as printed: ``carbongear_printed``.
"""

import numpy as np
from numpy.typing import NDArray

from greentrain.policy import soft_q
from greentrain.policy.chain import TRAILING_H, TREND_H, IntensityChain, state, trailing_mean
from greentrain.policy.dual import Dual, ForecastDual
from greentrain.policy.menu import Menu
from greentrain.policy.outlook import Array, Choice, Outlook
from greentrain.policy.soft_q import draw
from greentrain.policy.waterfill import row_at
from greentrain.types import S_PER_HOUR


class CarbonGear:
    """Chooses the row whose cost, with what comes after it, is least.

    Its values are learned when it is made, in about a second, for the menu that the job has and from how intensity
    went on in other grids.

    Args:
        menu: What a job can do.
        switch_s: Time in which a change of width trains nothing, at full power (s).
        epoch_s: Time between two decisions (s).
        dual: Where the price is from; None: the forecast, as in ``mpc``.
        chain: How intensity goes on from hour to hour; None: the shipped one.
        seed: Draw rows from the Gibbs distribution exp(-cost / T) with random numbers of this seed; None: take the
            row of least cost, which is its limit for T to 0.
    """

    past_s = TRAILING_H * S_PER_HOUR

    def __init__(
        self,
        menu: Menu,
        *,
        switch_s: float = 0.0,
        epoch_s: float = S_PER_HOUR,
        dual: Dual | None = None,
        chain: IntensityChain | None = None,
        seed: int | None = None,
    ) -> None:
        self.name = "carbongear"
        self._menu = menu
        self._dual = ForecastDual(menu) if dual is None else dual
        self._seed = seed
        self._switch_min = switch_s / 60.0
        self._learns = switch_s > 0 and len(np.unique(menu.width[menu.hull])) > 1
        self._values = soft_q.train(
            menu,
            (IntensityChain.shipped() if chain is None else chain),
            switch_s=switch_s if self._learns else 0.0,
            epoch_s=epoch_s,
        )

    def choose(self, seen: Outlook) -> Choice:
        """Return the rows for the coming epoch.

        Where a change of width costs time, the choice has no ``price``: that would invite a hysteresis which looks at
        the coming epoch alone, and what a change costs and brings later is in the values already. The reason names it.
        """
        price = self._dual.price(seen)
        hurried = np.isinf(price)
        now = seen.epoch_g_per_kwh()
        myopic = row_at(self._menu, now, price)
        rows = myopic
        if self._learns or self._seed is not None:
            mean = trailing_mean(seen.past_g_per_kwh, seen.now_g_per_kwh, seen.step_s)
            mean = np.maximum(mean, 1e-9)
            relative = now / mean
            costs = self._values.costs(
                relative,
                state(relative, _ahead(seen) / mean - relative),
                np.where(hurried, 0.0, price) / (self._values.unit_g_per_token * mean),
                self._menu.width[seen.current],
            )
            rows = self._values.rows[self._pick(costs, seen)]
        rows = np.where(hurried, self._menu.fastest, rows)
        return Choice(
            rows=rows,
            reasons=_REASONS,
            reason=np.where(hurried, 2, np.where(rows == myopic, 0, 1)),
            price=None if self._learns else price,
            figures={"price": price * 1e6, "switch_min": np.full(len(rows), self._switch_min)},
        )

    def _pick(self, costs: Array, seen: Outlook) -> NDArray[np.int64]:
        if self._seed is None:
            best: NDArray[np.int64] = costs.argmin(axis=1)
            return best
        return draw(costs / soft_q.TEMPERATURE, self._seed, seen.jobs, seen.t_unix_s)


def _ahead(seen: Outlook) -> Array:
    """Return (n,): mean of the forecast from the next hour on, as far as the trend goes and the job has time."""
    first = max(1, round(S_PER_HOUR / seen.step_s))
    ahead = seen.forecast_g_per_kwh[:, first : first + round(TREND_H * S_PER_HOUR / seen.step_s)]
    weights_s = seen.weights_s()[:, first : first + ahead.shape[1]]
    total_s = weights_s.sum(axis=1)
    sums = (np.where(weights_s > 0, ahead, 0.0) * weights_s).sum(axis=1)
    mean: Array = np.divide(sums, total_s, out=seen.now_g_per_kwh.copy(), where=total_s > 0)
    return mean


_REASONS = (
    "{now:.0f} g/kWh now and {mean:.0f} on average until the deadline in {left_h:.1f} h: {row}, at a price of"
    " {price:.4g} g per million tokens",
    "{now:.0f} g/kWh now and {mean:.0f} on average until the deadline in {left_h:.1f} h: {row}, at a price of"
    " {price:.4g} g per million tokens and {switch_min:.0f} min lost by each change of width",
    "{todo:.1%} of the tokens are left for {left_h:.1f} h: {row}, the fastest there is",
)
