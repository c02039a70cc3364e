"""What columns cost at each width, and what is left to pay from each column on: the arrays of ``switching``.

Shapes: n jobs, h columns, l prices for each job, g widths (off among them, where the menu has it as a width), r rows a
width. Costs are grams less the worth of tokens at a price.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from greentrain.policy.known_grid import only
from greentrain.policy.menu import Menu
from greentrain.policy.token_price import steps_up
from greentrain.types import J_PER_KWH

Array = NDArray[np.float64]
Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Widths:
    """The rows of a menu by width, only those that can be best at their width."""

    width: Rows
    """(g,)"""
    rows: Rows
    """(g, r); a width with fewer rows repeats its last."""
    speed: Array
    """(g, r) tokens/s."""
    g_per_s: Array
    """(g, r) grams a second at 1 g/kWh."""

    @classmethod
    def of(cls, menu: Menu) -> "Widths":
        """Return the widths of a menu."""
        widths = np.unique(menu.width)
        alike = [np.flatnonzero(menu.width == width) for width in widths]
        kept = [some[steps_up(only(menu, some))[0]] for some in alike]
        most = max(map(len, kept))
        rows = np.stack([np.pad(some, (0, most - len(some)), mode="edge") for some in kept])
        return cls(width=widths, rows=rows, speed=menu.tokens_per_s[rows], g_per_s=menu.power_w[rows] / J_PER_KWH)

    def cost(self, g: Array, weights_s: Array, lost_s: Array, price: Array, at: Rows) -> Array:
        """Return (..., r) what the rows of one width cost in each of any number of columns.

        Args:
            g: Intensity of each (g/kWh).
            weights_s: Time in each (s).
            lost_s: Part of it in which nothing is trained (s).
            price: Of a token (g).
            at: Index of the width of each.
        """
        worth = price * np.maximum(weights_s - lost_s, 0.0)
        return np.asarray((g * weights_s)[..., None] * self.g_per_s[at] - worth[..., None] * self.speed[at])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rules:
    """How changes of width are bound."""

    step_s: float
    switch_s: float
    dwell_s: float
    hysteresis: float = 0.0
    """Share of what ``switch_s`` loses that a first change must gain beyond its cost."""

    @property
    def held(self) -> int:
        """Columns from a change of width to the next, at least."""
        return max(1, math.ceil(self.dwell_s / self.step_s - 1e-9), self.lost)

    @property
    def lost(self) -> int:
        """Columns over which a change loses time, at least 1."""
        return max(1, math.ceil(self.switch_s / self.step_s - 1e-9))

    def lost_s(self, column: int) -> float:
        """Return how much of a column after a change is lost (s), the change's own being column 0."""
        return min(max(self.switch_s - column * self.step_s, 0.0), self.step_s)

    def bound(self, held_s: Array) -> Rows:
        """Return (n,) how many columns a width still has to be held, which changed so long ago (s)."""
        needed_s = max(self.dwell_s, self.switch_s) if self.lost > 1 else self.dwell_s
        return np.maximum(np.ceil((needed_s - held_s) / self.step_s - 1e-9), 0).astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Costs:
    """What is left to pay, for l prices of each of n jobs."""

    stay: Array
    """(h, g, n, l) of a column at a width that was there before."""
    enter: Array
    """(h, g, n, l) of a change to a width at a column, until it may be left, and of all that comes then."""
    left: Array
    """(h + 1, g, n, l) of all from a column on, having a width and being free to change it."""

    @classmethod
    def of(cls, widths: Widths, rules: Rules, g: Array, weights_s: Array, prices: Array) -> "Costs":
        """Sweep from the deadline back to now.

        Args:
            widths: Of the menu.
            rules: Of changes.
            g: (n, h) intensity (g/kWh).
            weights_s: (n, h) time in each column (s).
            prices: (n, l) of a token (g).
        """
        stay, enter = _columns(widths, rules, g, weights_s, prices)
        h, held = len(stay), rules.held
        left = np.zeros((h + 1, *stay.shape[1:]))
        least = np.empty(stay.shape[2:])
        ends, ended = _while_held(stay, enter, rules) if held > 1 else (None, None)
        off_is_free = held == 1 and widths.width[0] == 0 and not widths.g_per_s[0].any()  # as good as an end
        for k in range(h - 1, -1, -1):
            later = left[min(k + held, h)]
            if ends is not None and ended is not None:
                later = np.minimum(ended[k], np.add(later, ends[k], out=ends[k]), out=ends[k])
            np.add(enter[k], later, out=enter[k])
            np.minimum.reduce(enter[k], axis=0, out=least)
            if not off_is_free:
                np.minimum(least, 0.0, out=least)
            np.add(stay[k], left[k + 1], out=left[k])
            np.minimum(left[k], least, out=left[k])
        return cls(stay=stay, enter=enter, left=left)


def _while_held(stay: Array, enter: Array, rules: Rules) -> tuple[Array, Array]:
    """Return (h, g, n, l) twice: what the columns cost that a changed width is held, and if the job ends in them."""
    h, held, lost = len(stay), rules.held, rules.lost
    until = np.concatenate([np.zeros_like(stay[:1]), np.cumsum(stay, axis=0)])
    begins = until[np.minimum(np.arange(h) + lost, h)]
    ended = np.concatenate([until[min(lost, h) :], np.repeat(until[-1:], min(lost, h) + held, axis=0)])
    reach = 1
    while reach < held - lost:  # the least of ever more columns, up to held - lost of them
        step = min(reach, held - lost - reach)
        ended = np.minimum(ended[: len(ended) - step], ended[step:])
        reach += step
    return until[np.minimum(np.arange(h) + held, h)] - begins, ended[:h] - begins


def _columns(widths: Widths, rules: Rules, g: Array, weights_s: Array, prices: Array) -> tuple[Array, Array]:
    """Return (h, g, n, l) twice: the cost of each column at each width, and of a change with the columns it loses."""
    time_s = weights_s.T
    shape = (len(time_s), len(widths.width), *prices.shape)
    works = (widths.width > 0).astype(np.float64)
    stay = _cheapest(widths, g, np.zeros(shape[:3:2]), works, prices, np.empty(shape))
    stay *= time_s[:, None, :, None]
    enter: Array = stay
    for j in range(rules.lost):
        lost_s = np.minimum(rules.lost_s(j), time_s)
        share = np.divide(lost_s, time_s, out=np.ones_like(time_s), where=time_s > 0)
        some = _cheapest(widths, g, share, works, prices, np.empty(shape))
        some *= time_s[:, None, :, None]
        if j == 0:
            enter = some
        else:
            enter[:-j] += some[j:]
    return stay, enter


def _cheapest(widths: Widths, g: Array, share: Array, works: Array, prices: Array, out: Array) -> Array:
    """Return ``out``, (h, g, n, l), with the least cost a second at each width, a share of the time (h, n) being lost.

    Most columns lose the same share, and what their tokens are worth is worked out once for all of them.
    """
    usual = share[0]
    others = np.flatnonzero((share != usual).any(axis=1))
    carbon = g.T[:, None, :, None]
    rate = np.empty_like(out)
    for r in range(widths.rows.shape[1]):
        worth = widths.speed[:, r, None, None] * prices
        useful = 1.0 - works[:, None, None] * usual[:, None]
        into = rate if r else out
        np.subtract(carbon * widths.g_per_s[None, :, r, None, None], worth * useful, out=into)
        for k in others:
            useful = 1.0 - works[:, None, None] * share[k][:, None]
            into[k] = carbon[k] * widths.g_per_s[:, r, None, None] - worth * useful
        if r:
            np.minimum(out, rate, out=out)
    return out
