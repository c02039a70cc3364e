"""Plans in which a change of width costs time and a width is held for a while: a Lagrangian dynamic programme.

A change of width trains nothing for ``switch_s``, at the power of the new row; off is a width, and going off is free.
Given the price of a token the columns are bound to each other by the width alone, so what is left to pay from column k
on, being free to change, is ::

    W[k, w] = min( stay[k, w] + W[k + 1, w],  min over v of enter[k, v] + W[k + d, v],  0 )

with stay and enter the least that the rows of a width emit less the worth of their tokens, enter without those lost by
the change and with the columns that ``dwell_s`` holds, d in all, and 0 for a job that ends. The last minimum does not
depend on w: a column costs as much work as there are rows.

Where a change of gear takes time too (``shift_s``), each gear of a width is a width of its own here, with a third way
to come from one to the other: shift[k, w'] + W[k + 1, w'] over the gears w' of the same width.

The price is the one at which tokens x price + W[0] is largest (the dual). It is concave, so a comb of prices, swept
together from the deadline back to now, brackets the largest value, and the next comb is laid into the bracket. No
plan emits less than the dual's value; by how much a plan that is returned emits more is its duality gap.

Shapes of the arrays: n jobs, h columns, l prices for each job, g widths (off among them, where the menu has it as a
width), r rows a width. Costs are grams less the worth of tokens at a price.
"""

import math
from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np

from greentrain.errors import ConfigError
from greentrain.policy.menu import OFF, Menu
from greentrain.policy.waterfill import Array, Rows, deadline_price, filled, steps_up
from greentrain.types import J_PER_KWH


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Widths:
    """The rows of a menu by width, only those that can be best at their width; by width and gear where asked."""

    width: Rows
    """(g,) in order."""
    of_row: Rows
    """(m,) index of each row's width."""
    rows: Rows
    """(g, r); a width with fewer rows repeats its last."""
    speed: Array
    """(g, r) tokens/s."""
    g_per_s: Array
    """(g, r) grams a second at 1 g/kWh."""

    @classmethod
    def of(cls, menu: Menu, *, by_gear: bool = False) -> "Widths":
        """Return the widths of a menu.

        Args:
            menu: The choices.
            by_gear: Whether each gear of a width counts as a width.
        """
        keys = np.stack([menu.width, menu.gear if by_gear else np.zeros_like(menu.width)])
        groups, of_row = np.unique(keys, axis=1, return_inverse=True)
        of_row = of_row.reshape(-1)
        alike = [np.flatnonzero(of_row == group) for group in range(groups.shape[1])]
        kept = [some[steps_up(menu.only(some))[0]] for some in alike]
        most = max(map(len, kept))
        rows = np.stack([np.pad(some, (0, most - len(some)), mode="edge") for some in kept])
        widths: Rows = groups[0]
        return cls(
            width=widths,
            of_row=of_row,
            rows=rows,
            speed=menu.tokens_per_s[rows],
            g_per_s=menu.power_w[rows] / J_PER_KWH,
        )

    def cost(
        self,
        g: Array,
        weights_s: Array,
        lost_s: Array,
        price: Array,
        at: Rows,
    ) -> Array:
        """Return (..., r) what the rows of one width cost in each of any number of columns.

        Args:
            g: Intensity of each (g/kWh).
            weights_s: Time in each (s).
            lost_s: Part of it in which nothing is trained (s).
            price: Price of a token (g).
            at: Index of the width of each.
        """
        worth = price * np.maximum(weights_s - lost_s, 0.0)
        return np.asarray((g * weights_s)[..., None] * self.g_per_s[at] - worth[..., None] * self.speed[at])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SwitchRules:
    """How changes of width are bound."""

    step_s: float
    switch_s: float
    dwell_s: float
    hysteresis: float = 0.0
    """Share of what ``switch_s`` loses that a first change must gain beyond its cost."""
    shift_s: float = 0.0
    """Time lost by a change of gear at the same width, no more than a column."""

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
    shift: Array | None = None
    """(g, n, l) of a change to this gear of the same width in the first column, and of all that comes then."""

    @classmethod
    def of(cls, widths: Widths, rules: SwitchRules, g: Array, weights_s: Array, prices: Array) -> "Costs":
        """Sweep from the deadline back to now.

        Args:
            widths: Widths of the menu.
            rules: Rules of changes of width.
            g: (n, h) intensity (g/kWh).
            weights_s: (n, h) time in each column (s).
            prices: (n, l) prices of a token (g).
        """
        stay, enter = _columns(widths, rules, g, weights_s, prices)
        shift = (
            _columns(widths, replace(rules, switch_s=rules.shift_s), g, weights_s, prices)[1] if rules.shift_s else None
        )
        _, first, same = np.unique(widths.width, return_index=True, return_inverse=True)
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
            if shift is not None:
                shift[k] += left[k + 1]
                np.minimum(left[k], np.minimum.reduceat(shift[k], first, axis=0)[same], out=left[k])
        return cls(stay=stay, enter=enter, left=left, shift=None if shift is None else shift[0])


def _while_held(stay: Array, enter: Array, rules: SwitchRules) -> tuple[Array, Array]:
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


def _columns(widths: Widths, rules: SwitchRules, g: Array, weights_s: Array, prices: Array) -> tuple[Array, Array]:
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


def _cheapest(
    widths: Widths,
    g: Array,
    share: Array,
    works: Array,
    prices: Array,
    out: Array,
) -> Array:
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
class FirstColumn:
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
        menu: Menu of the choices of the jobs.
        step_s: Spacing of the columns (s); dwell counts in whole columns.
        switch_s: Time in which a change of width trains nothing (s).
        dwell_s: Shortest time between two changes of width (s); the gear is held with it.
        shift_s: Time in which a change of gear trains nothing (s), at most ``step_s``. A change of width takes at least
            as long.
        hysteresis: Least gain of a first change beyond its cost, as a share of what ``switch_s`` loses at full speed:
            a forecast that wavers would else have a job follow it. It changes no value, only the first rows.

    Raises:
        ConfigError: A time is below 0.
    """

    def __init__(
        self,
        menu: Menu,
        *,
        step_s: float,
        switch_s: float = 0.0,
        dwell_s: float = 0.0,
        shift_s: float = 0.0,
        hysteresis: float = 0.0,
    ) -> None:
        if not (switch_s >= 0 and dwell_s >= 0 and step_s > 0):
            raise ConfigError(
                f"switch_s is {switch_s:g}, dwell_s {dwell_s:g} and step_s {step_s:g}; the first two must be at least"
                " 0 s, the last above 0 s"
            )
        if not 0 <= shift_s <= step_s:
            raise ConfigError(f"shift_s is {shift_s:g}; it must be from 0 s to a step of the plan, {step_s:g} s")
        self.menu = menu
        self.rules = SwitchRules(
            step_s=step_s,
            switch_s=max(switch_s, shift_s),
            dwell_s=dwell_s,
            hysteresis=hysteresis,
            shift_s=shift_s,
        )
        self.widths = Widths.of(menu, by_gear=shift_s > 0)

    def first(
        self, g_per_kwh: Array, weights_s: Array, tokens: Array, current: Rows, held_s: Array, *, within: float = 0.01
    ) -> FirstColumn:
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
        found = deadline_price(seen, weights_s, tokens, self.menu)
        rows = np.where(np.isinf(found), self.menu.fastest, OFF)
        bound_g = np.where(np.isinf(found), np.inf, 0.0)
        some = np.flatnonzero(np.isfinite(found) & (tokens > 0))
        width = self.widths.of_row[current]
        state = JobsOnGrid(g=seen, weights_s=weights_s, tokens=tokens, width=width, held_s=held_s)
        for at in range(0, some.size, _CHUNK):
            jobs = some[at : at + _CHUNK]
            found[jobs], bound_g[jobs], rows[jobs] = self._search(state.of(jobs), found[jobs], within)
        return FirstColumn(rows=rows, price=found, bound_g=bound_g)

    def _search(self, state: "JobsOnGrid", guess: Array, within: float) -> tuple[Array, Array, Rows]:
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
class JobsOnGrid:
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

    def of(self, jobs: Rows) -> "JobsOnGrid":
        """Return some of the jobs."""
        return JobsOnGrid(**{f.name: getattr(self, f.name)[jobs] for f in fields(self)})


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
    def of(cls, widths: Widths, rules: SwitchRules, state: JobsOnGrid, prices: Array, costs: Costs) -> "Beginning":
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


def _now(widths: Widths, rules: SwitchRules, state: JobsOnGrid, prices: Array) -> tuple[Array, Rows]:
    """Return (n, l) twice: the dual's value at each of l prices, and the best row of the first column."""
    costs = Costs.of(widths, rules, state.g, state.weights_s, prices)
    begin = Beginning.of(widths, rules, state, prices, costs)
    free = begin.bound[:, None] == 0
    to = costs.enter[0].argmin(axis=0)
    change = np.where(free, costs.enter[0].min(axis=0), np.inf)
    lost_s: Array = np.full(prices.shape, rules.lost_s(0))
    needs_s: Array = np.full(prices.shape, rules.switch_s)
    if costs.shift is not None:
        beside = widths.width[:, None] == widths.width[state.width]
        shift = np.where(beside[:, :, None] & free, costs.shift, np.inf)
        better = shift.min(axis=0) < change
        to, change = np.where(better, shift.argmin(axis=0), to), np.minimum(change, shift.min(axis=0))
        lost_s, needs_s = np.where(better, rules.shift_s, lost_s), np.where(better, rules.shift_s, needs_s)
    some = widths.cost(state.g[:, :1], state.weights_s[:, :1], lost_s, prices, to)
    little = rules.hysteresis * needs_s * widths.speed.max() * prices
    rows = np.where(begin.stay <= change + little, begin.rows, widths.rows[to, some.argmin(axis=2)])
    return prices * state.tokens[:, None] + np.minimum(begin.stay, change), rows
