"""CarbonGearRL, corrected: soft values of a width, a Gibbs policy over exact costs, and a price from a dual.

Two time scales: the price of a token follows the job slowly (:class:`ForecastDual`); at a price the policy acts at
once, on the exact cost of the coming epoch and the learned soft value of what comes after it (:class:`SoftValues`).
Where a change of width costs nothing there is nothing to learn, and this is ``mpc``: given the price, the best row is
then that of the hour.

Why it is not the algorithm as printed: ``carbongear_printed``. The published dual rises with B - b, the tokens left,
which is above zero until the last epoch: the price only ever climbs, and in units of tokens one step takes it to its
limit. What tells whether a price is too low is the *pace*: the share of the time that has passed against the share of
the tokens that is done.

Given the price of a token, the cost of an hour is known exactly and intensity goes its own way whatever a job does. So
the one thing there is to learn is the cost of what comes after: of being at a width when the next hour shows its
intensity, a change of which trains nothing for a while. That is a soft Q-function of the *post-decision* state
(state of the grid, width, price) ::

    q(a | x, n) = level(x) P(a) - price (t(a) - lost t(a) [n(a) != n]) + W(x, n(a))      cost of an hour, and after it
    V(x, n)     = -T log sum_a exp(-q(a | x, n) / T)                                      soft minimum
    W(x, n)    <- gamma sum_x' p(x' | x) V(x', n)

with power P and speed t relative to the fastest row. As no action moves the grid, one transition teaches all widths and
all prices at once; all transitions of the history are in every sweep, so it has no learning rate, draws nothing and is
done in a second. The published algorithm learns the whole cost from samples of its own 4,032 epochs, with a target in
which the price does not occur (``carbongear_printed``).

Draws from the Gibbs distribution (:func:`draw`) are the same for the same seed, job and time: a policy that draws stays
a function.
"""

import math
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from greentrain.policy.chain import TRAILING_H, TREND_H, IntensityChain, state, trailing_mean
from greentrain.policy.menu import Menu
from greentrain.policy.outlook import Array, Choice, Outlook
from greentrain.policy.waterfill import price, row_at
from greentrain.types import J_PER_KWH, S_PER_HOUR


class Dual(Protocol):
    """Says what one more token may emit."""

    past_s: float
    """How far back it looks (s)."""

    def price(self, seen: Outlook) -> Array:
        """Return (n,) g/token; inf where there is no time left to choose, 0 where nothing is left to do."""


class ForecastDual:
    """The price of the best plan on the forecast: that of ``mpc``. The default.

    Args:
        menu: Menu of the choices of a job.
    """

    past_s = 0.0

    def __init__(self, menu: Menu) -> None:
        self._menu = menu

    def price(self, seen: Outlook) -> Array:
        """Return the price at which the rest of the job is done just in time, if the forecast is right."""
        return price(seen.forecast_g_per_kwh, seen.weights_s(), seen.tokens_left, self._menu)


TEMPERATURE: Final = 0.004
"""T, in hours of the fastest row at mean intensity; 0.001 does as well, 0.012 loses up to 0.3 points."""
DISCOUNT: Final = 0.97
"""gamma, an hour."""
PRICES: Final = 48
"""Prices for which values are kept, log-spaced; 15 lose up to 0.3 points, 9 up to 1.5 (PJM, 10 minutes a change)."""
_CLEANEST: Final = 0.3
_DIRTIEST: Final = 2.2
"""Relative intensities between which a price can make a difference to a row."""
_SWEEPS: Final = 200
"""At most; 20 to 60 are usual."""
_SETTLED: Final = 0.1
"""Sweeps end when no value moves by more than this share of T."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SoftValues:
    """Costs of what comes after, for v rows on the hull of a menu, g widths, l prices and x states of the grid."""

    rows: NDArray[np.int64]
    """(v,) rows of the menu."""
    power: Array
    """(v,) relative to the fastest row."""
    speed: Array
    """(v,) relative to the fastest row."""
    width_of: NDArray[np.int64]
    """(v,) index of the width of each row."""
    widths: NDArray[np.int64]
    """(g,)"""
    epoch_h: float
    lost_h: float
    """Hours of training that a change of width loses."""
    prices: Array
    """(l,) increasing; 1 is the price at which the fastest row is worth its emissions at mean intensity."""
    values: Array
    """(l, x, g)"""
    unit_g_per_token: float
    """A price of 1 at a mean intensity of 1 g/kWh."""

    def costs(self, relative: Array, state: NDArray[np.int64], price: Array, width: NDArray[np.int64]) -> Array:
        """Return (n, v): the cost of each row now and what comes after it.

        Args:
            relative: (n,) intensity of the coming epoch / mean of the last 14 days.
            state: (n,) of the grid.
            price: (n,) relative, as in ``prices``.
            width: (n,) in use.
        """
        at = np.interp(np.log(np.maximum(price, 1e-30)), np.log(self.prices), np.arange(len(self.prices)))
        low = np.minimum(at.astype(np.int64), len(self.prices) - 2)
        share = (at - low)[:, None]
        after = (1 - share) * self.values[low, state] + share * self.values[low + 1, state]
        changed = self.widths[self.width_of] != width[:, None]
        trained_h = self.epoch_h - self.lost_h * changed
        stage = relative[:, None] * self.power * self.epoch_h - price[:, None] * self.speed * trained_h
        costs: Array = stage + after[:, self.width_of]
        return costs


def train(menu: Menu, chain: IntensityChain, *, switch_s: float, epoch_s: float = S_PER_HOUR) -> SoftValues:
    """Return the soft values of a menu.

    Args:
        menu: Menu of the choices of a job.
        chain: Markov chain of hourly intensity.
        switch_s: Time in which a change of width trains nothing, at full power (s).
        epoch_s: Time between two decisions (s). Below an hour the values of an hour are used: intensity is hourly.
    """
    rows = menu.hull
    power = menu.power_w[rows] / menu.power_w[menu.fastest]
    speed = menu.tokens_per_s[rows] / menu.tokens_per_s[menu.fastest]
    widths, width_of = np.unique(menu.width[rows], return_inverse=True)
    hours = max(1, round(epoch_s / S_PER_HOUR))
    slopes = np.diff(power) / np.diff(speed)
    slopes = slopes[slopes > 0] if (slopes > 0).any() else np.ones(1)
    prices = np.geomspace(_CLEANEST * slopes[0], _DIRTIEST * slopes[-1], PRICES)
    lost_h = switch_s / S_PER_HOUR
    values = np.zeros((PRICES, len(chain.counts), len(widths)))
    if lost_h > 0 and len(widths) > 1:
        trained_h = hours - lost_h * (widths[:, None] != widths[width_of])
        worth = prices[:, None, None, None] * (speed * trained_h)
        stage = chain.levels()[None, :, None, None] * (power * hours) - worth
        values = _settled(stage, np.linalg.matrix_power(chain.probabilities(), hours), width_of, DISCOUNT**hours)
    return SoftValues(
        rows=rows,
        power=power,
        speed=speed,
        width_of=width_of,
        widths=widths,
        epoch_h=float(hours),
        lost_h=lost_h,
        prices=prices,
        values=values,
        unit_g_per_token=float(menu.power_w[menu.fastest] / menu.tokens_per_s[menu.fastest] / J_PER_KWH),
    )


def _settled(stage: Array, follows: Array, width_of: NDArray[np.int64], discount: float) -> Array:
    """Return (l, x, g): values swept until they rest. Only differences of widths matter, so their mean is taken off.

    Sweeps run in float32: its rounding is a 10,000th of T, and it is four times as fast.

    Args:
        stage: (l, x, g, v) cost of an epoch.
        follows: (x, x) probability of the next state.
        width_of: (v,) index of the width of each row.
        discount: Discount factor of an epoch.
    """
    stage_32, follows_32 = stage.astype(np.float32), (discount * follows).astype(np.float32)
    values = np.zeros(stage.shape[:3], np.float32)
    for _ in range(_SWEEPS):
        q = stage_32 + values[:, :, None, width_of]
        least = q.min(axis=-1)
        q -= least[..., None]
        np.exp(q * np.float32(-1 / TEMPERATURE), out=q)
        after = follows_32 @ (least - np.float32(TEMPERATURE) * np.log(q.sum(axis=-1)))
        after -= after.mean(axis=-1, keepdims=True)
        moved, values = float(np.abs(after - values).max()), after
        if moved < _SETTLED * TEMPERATURE:
            break
    return values.astype(np.float64)


def draw(energy: Array, seed: int, jobs: NDArray[np.int64], t_unix_s: Array) -> NDArray[np.int64]:
    """Return (n,): one column of each job, drawn with probability in proportion to exp(-energy).

    Args:
        energy: (n, v) cost / temperature.
        seed: Seed of the draws, 0 or above.
        jobs: (n,) which jobs these are.
        t_unix_s: (n,) time of the decision (s since the epoch, UTC).
    """
    below = np.cumsum(np.exp(energy.min(axis=1, keepdims=True) - energy), axis=1)
    keys = zip(jobs.tolist(), t_unix_s.tolist(), strict=True)
    drawn = np.array([np.random.default_rng((seed, job, max(0, math.floor(t_s)))).random() for job, t_s in keys])
    columns: NDArray[np.int64] = np.count_nonzero(below <= drawn[:, None] * below[:, -1:], axis=1)
    columns = np.minimum(columns, energy.shape[1] - 1)
    return columns


class CarbonGear:
    """Chooses the row whose cost, with what comes after it, is least.

    Its values are learned when it is made, in about a second, for the menu that the job has and from how intensity
    went on in other grids.

    Args:
        menu: Menu of the choices of a job.
        switch_s: Time in which a change of width trains nothing, at full power (s).
        epoch_s: Time between two decisions (s).
        dual: Source of the price of a token; None: the forecast, as in ``mpc``.
        chain: Markov chain of hourly intensity; None: the shipped one.
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
        self._values = train(
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
        return draw(costs / TEMPERATURE, self._seed, seen.jobs, seen.t_unix_s)


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
