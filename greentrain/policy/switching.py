"""Plans in which a change of width costs time and a width is held for a while: a Lagrangian dynamic programme.

A change of width trains nothing for ``switch_s``, at the power of the new row; off is a width, and going off is free.
Given the price of a token the columns are bound to each other by the width alone, so what is left to pay from column k
on, being free to change, is ::

    W[k, w] = min( stay[k, w] + W[k + 1, w],  min over v of enter[k, v] + W[k + d, v],  0 )

with stay and enter the least that the rows of a width emit less the worth of their tokens, enter without those lost by
the change and with the columns that ``dwell_s`` holds, d in all, and 0 for a job that ends. The last minimum does not
depend on w: a column costs as much work as there are rows.

The price is the one at which tokens x price + W[0] is largest (the dual). It is concave, so a comb of prices, swept
together from the deadline back to now, brackets the largest value, and the next comb is laid into the bracket. No
plan emits less than the dual's value; by how much a plan that is returned emits more is its duality gap.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from greentrain.errors import ConfigError
from greentrain.policy.menu import OFF, Menu
from greentrain.policy.token_price import filled, price, steps_up
from greentrain.policy.width_costs import Costs, Rules, Widths

Array = NDArray[np.float64]
Rows = NDArray[np.int64]

_COMB: Final = 10
"""Prices of a comb."""
_SPAN: Final = (0.94, 1.14)
"""Ends of the first comb, relative to the price without costs of changing: lost tokens make the others dearer."""
_STRETCH: Final = 3.0
"""How far a comb is moved on if the largest value is at its end."""
_LEAST: Final = 1e-4
"""Where clean hours alone would do without costs of changing: the price to begin at, relative to a usual one."""
_CHUNK: Final = 16
"""Jobs at a time, so that their columns stay in the processor's cache."""
_MOVES: Final = 10
"""How often; then the job is late, or nothing that it does matters."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class First:
    """What n jobs do in their first column, all others planned with it."""

    rows: Rows
    """(n,)"""
    price: Array
    """(n,) of a token (g); inf where the tokens cannot be done in time, 0 where none are left."""
    bound_g: Array
    """(n,) no plan emits less."""


class Switching:
    """Plans for jobs whose changes of width cost time.

    Args:
        menu: What the jobs can do.
        step_s: Spacing of the columns (s); dwell counts in whole columns.
        switch_s: Time in which a change of width trains nothing (s).
        dwell_s: Shortest time between two changes of width (s).
        hysteresis: What a first change must gain beyond its cost, as a share of what ``switch_s`` loses at full speed:
            a forecast that wavers would else have a job follow it. It changes no value, only the first rows.

    Raises:
        ConfigError: A time is below 0.
    """

    def __init__(
        self, menu: Menu, *, step_s: float, switch_s: float = 0.0, dwell_s: float = 0.0, hysteresis: float = 0.0
    ) -> None:
        if not (switch_s >= 0 and dwell_s >= 0 and step_s > 0):
            raise ConfigError(
                f"switch_s is {switch_s:g}, dwell_s {dwell_s:g} and step_s {step_s:g}; the first two must be at least"
                " 0 s, the last above 0 s"
            )
        self.menu = menu
        self.rules = Rules(step_s=step_s, switch_s=switch_s, dwell_s=dwell_s, hysteresis=hysteresis)
        self.widths = Widths.of(menu)

    def first(
        self, g_per_kwh: Array, weights_s: Array, tokens: Array, current: Rows, held_s: Array, *, within: float = 0.01
    ) -> First:
        """Return the best rows for the first column.

        Args:
            g_per_kwh: (n, h) intensity; unknown columns (NaN) count as the mean of the job's known ones.
            weights_s: (n, h) time in each column until the deadline (s).
            tokens: (n,) to be done.
            current: (n,) row in use until now.
            held_s: (n,) since the width last changed (s).
            within: Relative width of the bracket of the price in the end.
        """
        used = np.flatnonzero(weights_s.any(axis=0))
        h = int(used[-1]) + 1 if used.size else 1
        seen, weights_s = filled(g_per_kwh[:, :h], weights_s[:, :h]), weights_s[:, :h]
        found = price(seen, weights_s, tokens, self.menu)
        rows = np.where(np.isinf(found), self.menu.fastest, OFF)
        bound_g = np.where(np.isinf(found), np.inf, 0.0)
        some = np.flatnonzero(np.isfinite(found) & (tokens > 0))
        width = np.searchsorted(self.widths.width, self.menu.width[current])
        state = State(g=seen, weights_s=weights_s, tokens=tokens, width=width, held_s=held_s)
        for at in range(0, some.size, _CHUNK):
            jobs = some[at : at + _CHUNK]
            found[jobs], bound_g[jobs], rows[jobs] = self._search(state.of(jobs), found[jobs], within)
        return First(rows=rows, price=found, bound_g=bound_g)

    def _search(self, state: "State", guess: Array, within: float) -> tuple[Array, Array, Rows]:
        """Return (n,) price, bound and row: of the best price found."""
        n = len(guess)
        found, bound_g, rows = np.zeros(n), np.zeros(n), np.zeros(n, dtype=np.int64)
        usual = np.maximum(state.g.mean(axis=1), _LEAST) * float(steps_up(self.menu)[1][:1].sum())
        guess = np.maximum(guess, _LEAST * usual)
        low, high = guess * _SPAN[0], guess * _SPAN[1]
        moves = np.full(n, _MOVES)
        while (jobs := np.flatnonzero((high > low * (1 + within)) & (moves > 0))).size:
            some = state.of(jobs)
            prices = np.geomspace(low[jobs], high[jobs], _COMB, axis=1)
            dual, chosen = _now(self.widths, self.rules, some, prices)
            best = dual.argmax(axis=1)
            here = np.arange(jobs.size)
            found[jobs], bound_g[jobs], rows[jobs] = prices[here, best], dual[here, best], chosen[here, best]
            last = _COMB - 1
            low[jobs], high[jobs] = prices[here, np.maximum(best - 1, 0)], prices[here, np.minimum(best + 1, last)]
            moved = (best == 0) | (best == last)
            high[jobs[best == last]] *= _STRETCH
            low[jobs[best == 0]] /= _STRETCH
            moves[jobs[moved]] -= 1
        return found, bound_g, rows


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class State:
    """n jobs and their grids."""

    g: Array
    """(n, h) known intensities."""
    weights_s: Array
    """(n, h)"""
    tokens: Array
    """(n,)"""
    width: Rows
    """(n,) index of the width in use until now."""
    held_s: Array
    """(n,)"""

    def of(self, jobs: Rows) -> "State":
        """Return some of the jobs."""
        return State(
            g=self.g[jobs],
            weights_s=self.weights_s[jobs],
            tokens=self.tokens[jobs],
            width=self.width[jobs],
            held_s=self.held_s[jobs],
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Beginning:
    """What it costs n jobs to begin with the width that they have, at l prices each."""

    bound: Rows
    """(n,) columns for which they have to."""
    pending_s: Array
    """(n,) what the last change of width still loses (s)."""
    stay: Array
    """(n, l) of these columns, or of one, and of all that comes then; the job may end once it has begun."""
    rows: Rows
    """(n, l) the best row of the first column at that width."""

    @classmethod
    def of(cls, widths: Widths, rules: Rules, state: State, prices: Array, costs: Costs) -> "Beginning":
        """Count what is pending into the first columns."""
        w = state.width
        bound = np.minimum(rules.bound(state.held_s), len(costs.stay))
        pending_s = np.where(widths.width[w] > 0, np.maximum(rules.switch_s - state.held_s, 0.0), 0.0)
        until = np.maximum(bound, 1)
        stay, rows = costs.left[until, w, np.arange(len(w))], np.zeros(prices.shape, dtype=np.int64)
        before, ended = np.zeros(prices.shape), np.full(prices.shape, np.inf)
        for k in range(int(until.max())):
            lost_s = np.clip(pending_s - k * rules.step_s, 0.0, rules.step_s)[:, None]
            some = widths.cost(state.g[:, k, None], state.weights_s[:, k, None], lost_s, prices, w[:, None])
            before += np.where(k < until[:, None], some.min(axis=2), 0.0)
            ended = np.where(k < until[:, None], np.minimum(ended, before), ended)
            if k == 0:
                rows = widths.rows[w[:, None], some.argmin(axis=2)]
        stay = np.minimum(ended, before + stay)
        return cls(bound=bound, pending_s=pending_s, stay=stay, rows=rows)


def _now(widths: Widths, rules: Rules, state: State, prices: Array) -> tuple[Array, Rows]:
    """Return (n, l) twice: the dual's value at each of l prices, and the best row of the first column."""
    costs = Costs.of(widths, rules, state.g, state.weights_s, prices)
    begin = Beginning.of(widths, rules, state, prices, costs)
    to = costs.enter[0].argmin(axis=0)
    enter = np.where(begin.bound[:, None] == 0, costs.enter[0].min(axis=0), np.inf)
    lost_s = np.array([[rules.lost_s(0)]])
    some = widths.cost(state.g[:, :1], state.weights_s[:, :1], lost_s, prices, to)
    little = rules.hysteresis * rules.switch_s * widths.speed.max() * prices
    rows = np.where(begin.stay <= enter + little, begin.rows, widths.rows[to, some.argmin(axis=2)])
    return prices * state.tokens[:, None] + np.minimum(begin.stay, enter), rows
