"""What it is worth to have a width, learned from how intensity goes on: the soft values of CarbonGearRL, corrected.

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

Draws from a Gibbs distribution, the same for the same seed, job and time: a policy that draws stays a function.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from greentrain.policy.chain import IntensityChain
from greentrain.policy.menu import Menu
from greentrain.policy.outlook import Array
from greentrain.types import J_PER_KWH, S_PER_HOUR

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
        menu: What a job can do.
        chain: How intensity goes on.
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
        discount: Of an epoch.
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
        seed: Of the draws, 0 or above.
        jobs: (n,) which jobs these are.
        t_unix_s: (n,) time of the decision (s since the epoch, UTC).
    """
    below = np.cumsum(np.exp(energy.min(axis=1, keepdims=True) - energy), axis=1)
    keys = zip(jobs.tolist(), t_unix_s.tolist(), strict=True)
    drawn = np.array([np.random.default_rng((seed, job, max(0, math.floor(t_s)))).random() for job, t_s in keys])
    columns: NDArray[np.int64] = np.count_nonzero(below <= drawn[:, None] * below[:, -1:], axis=1)
    columns = np.minimum(columns, energy.shape[1] - 1)
    return columns
