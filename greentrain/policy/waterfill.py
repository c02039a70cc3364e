"""The best plan against a known intensity: exact, with a limit on the time in FP8 and with ranks that are held.

Without limits the price of a token says all (``token_price``). A limit on the time in FP8 changes what a column takes
at a price: those that gain most by FP8 get it, as many as there is time for. Ranks that are held draw power until the
job ends, so its end is looked for as well. Either way the plan is a mixture of two neighbours on the lower hull of all
(tokens, grams) that the job can reach (``edge``), and it is the optimum of the linear programme.

When a job should end whose ranks are held: they draw power until then, working or not.

For each column in which it may end the best plan is a linear programme of its own, and those have no order that one
could bisect. But every price of a token, tried for whichever end, bounds all ends from below at once. So the end with
the lowest bound is solved, its price bounds the others more tightly, and once no bound is below the best end found,
that one is the best of all. The job may end anywhere within its last column.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from greentrain.errors import ConfigError
from greentrain.policy import token_price
from greentrain.policy.edge import Edge, find_edge
from greentrain.policy.known_grid import ENDED, KnownGrid, Mixture
from greentrain.policy.menu import OFF, Menu, hours_up
from greentrain.policy.rounding import rounded
from greentrain.policy.token_price import filled, row_at
from greentrain.types import J_PER_KWH, S_PER_HOUR

_EXACT: Final = 1e-12
"""Ends this close in grams are equal."""
_FIRST: Final = (1.0, 1.25, 1.6, 2.5, 5.0)
"""Multiples of the price at the deadline with which the search begins: an earlier end has a higher one."""


def best_end(grid: KnownGrid, tokens: float) -> tuple[Edge[Mixture], int]:
    """Return the best plan and the column in which it ends.

    Args:
        grid: Until the deadline.
        tokens: To be done, no more than can be.
    """
    bounds = np.where(grid.most() >= tokens, -np.inf, np.inf)
    start = plain_price(grid, tokens)
    for multiple in _FIRST:
        bounds = np.maximum(bounds, grid.bounds(tokens, multiple * start, 0.0))
    best: tuple[Edge[Mixture], int] | None = None
    while True:
        last = int(np.argmin(bounds))
        if best is not None and bounds[last] >= best[0].grams * (1 - _EXACT):
            return best
        edge = _ending_in(grid.until(last), tokens)
        bounds = np.maximum(bounds, grid.bounds(tokens, edge.price, edge.high.fp8_price))
        bounds[last] = edge.grams
        if best is None or edge.grams < best[0].grams:
            best = edge, last


def plain_price(grid: KnownGrid, tokens: float) -> float:
    """Return the price without a limit on FP8 and without an early end, and above 0: where a search may begin."""
    found = float(token_price.price(grid.g_per_kwh[None], grid.weights_s[None], np.array([tokens]), grid.menu)[0])
    return found if np.isfinite(found) and found > 0 else _cheapest(grid, float(grid.g_per_kwh.max() or 1.0))


def _ending_in(grid: KnownGrid, tokens: float) -> Edge[Mixture]:
    """Return the best plan that ends within the last column of a grid."""
    guess = plain_price(grid, tokens)
    pays = _cheapest(grid, float(grid.g_per_kwh[-1]))
    if guess < pays and len(grid.g_per_kwh) > 1:  # more of the last column is worth nothing
        before = grid.until(len(grid.g_per_kwh) - 2)
        guess = min(pays, plain_price(before, tokens)) if before.most()[-1] >= tokens else pays
    return find_edge(lambda price: grid.best(price, may_end=True), tokens, guess)


def _cheapest(grid: KnownGrid, g_per_kwh: float) -> float:
    """Return the price of a token (g) of which a second of work pays for itself at an intensity."""
    speeds = grid.menu.tokens_per_s
    works = speeds > 0
    return float(np.min(grid.menu.power_w[works] / speeds[works])) * g_per_kwh / J_PER_KWH


__all__ = ["Plan", "filled", "price", "row_at", "shortest_s", "solve"]

Array = NDArray[np.float64]
Rows = NDArray[np.int64]

_ROOM: Final = 1e-9
"""Tokens missed by this share are rounding, not a deadline missed."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """The plan that emits least, and the same with one row a column. h columns, m rows."""

    tokens_per_s: Array
    """(h,) mean speed in each column; 0 after the end."""
    power_w: Array
    """(h,) mean IT power in each column; 0 after the end."""
    tokens: float
    grams: float
    """Of IT power: PUE scales every plan alike."""
    price: float
    """What one more token would emit (g)."""
    fp8_price: float
    """What one more second in FP8 would save (g); 0 where the limit does not bind."""
    end_s: float
    """When the job ends, from the first column on (s)."""
    shares: Array
    """(m,) of each row in the time until the end."""
    rows: Rows
    """(h,) one row a column."""
    rounded_tokens: float
    """What ``rows`` bring: the tokens asked for, or more."""
    rounded_grams: float
    """What ``rows`` emit."""


def solve(g_per_kwh: Array, weights_s: Array, tokens: float, menu: Menu, *, fp8_max_share: float = 1.0) -> Plan:
    """Return the plan that emits least.

    Args:
        g_per_kwh: (h,) intensity of each column.
        weights_s: (h,) time in each column until the deadline (s).
        tokens: To be done.
        menu: What the job can do. Where off draws power, ranks are held until the job ends, and its end is chosen.
        fp8_max_share: Largest share of the time until the deadline in FP8.

    Raises:
        ConfigError: An intensity is not known, a figure is out of its range, or the tokens cannot be done in time;
            the message then says by when they can.
    """
    g, weights_s = np.asarray(g_per_kwh, dtype=np.float64), np.asarray(weights_s, dtype=np.float64)
    _check(g, weights_s, tokens, fp8_max_share)
    wall_s = float(weights_s.sum())
    needed_s = shortest_s(tokens, menu, fp8_max_share=fp8_max_share)
    if needed_s > wall_s * (1 + _ROOM):
        limit = f", at most {fp8_max_share:.0%} of the time in FP8," if fp8_max_share < 1 and menu.fp8.any() else ""
        raise ConfigError(
            f"{tokens:g} tokens cannot be done in the {wall_s / S_PER_HOUR:.6g} h until the deadline: the fastest"
            f" choices{limit} need {needed_s / S_PER_HOUR:.6g} h. The earliest feasible deadline is"
            f" {needed_s:.0f} s ({hours_up(needed_s)}) after the start: raise policy.deadline_h, or lower policy.tokens"
        )
    grid = KnownGrid(g_per_kwh=g, weights_s=weights_s, menu=menu, fp8_s=fp8_max_share * wall_s)
    tokens = min(tokens, float(grid.most()[-1]) * (1 - token_price.TIE))
    if grid.held:
        edge, last = best_end(grid, tokens)
    else:
        edge, last = find_edge(grid.best, tokens, plain_price(grid, tokens)), len(g) - 1
    return _plan(grid, edge, last)


def price(seen_g_per_kwh: Array, weights_s: Array, tokens: Array, menu: Menu) -> Array:
    """Return the price at which each job does its tokens with the least grams.

    Args:
        seen_g_per_kwh: (n, h) intensity of each column; unknown ones (NaN) count as the mean of the job's known ones.
        weights_s: (n, h) time in each column that is left to the job (s).
        tokens: (n,) still to be done.
        menu: What the jobs can do. Where off draws power each job's end is looked for, one job after the other.

    Returns:
        (n,) g/token: 0 where nothing is left to do, inf where even the fastest row comes too late.
    """
    found = token_price.price(seen_g_per_kwh, weights_s, tokens, menu)
    if menu.power_w[OFF] > 0:
        seen_g_per_kwh = filled(seen_g_per_kwh, weights_s)
        for i in np.flatnonzero(np.isfinite(found) & (tokens > 0)):
            grid = KnownGrid(g_per_kwh=seen_g_per_kwh[i], weights_s=weights_s[i], menu=menu, fp8_s=math.inf)
            found[i] = best_end(grid, min(float(tokens[i]), float(grid.most()[-1]) * (1 - token_price.TIE)))[0].price
    return found


def shortest_s(tokens: float, menu: Menu, *, fp8_max_share: float = 1.0) -> float:
    """Return the shortest time in which a job can be done (s): its earliest feasible deadline, from its start.

    Args:
        tokens: Of the job.
        menu: What it can do.
        fp8_max_share: Largest share of that time in FP8.
    """
    speed = float(menu.tokens_per_s[~menu.fp8].max())
    speed += fp8_max_share * (float(menu.tokens_per_s.max()) - speed)
    return tokens / speed if speed > 0 else math.inf


def _check(g_per_kwh: Array, weights_s: Array, tokens: float, fp8_max_share: float) -> None:
    if g_per_kwh.ndim != 1 or g_per_kwh.shape != weights_s.shape or not g_per_kwh.size:
        raise ConfigError(
            f"a plan needs as many intensities as times of columns, at least one; the shapes are {g_per_kwh.shape} and"
            f" {weights_s.shape}"
        )
    bad = np.flatnonzero(~(np.isfinite(g_per_kwh) & (g_per_kwh >= 0)))
    if bad.size:
        raise ConfigError(
            f"the intensity of {bad.size} of {g_per_kwh.size} columns is not known or below 0 (the first is column"
            f" {bad[0]}, {g_per_kwh[bad[0]]:g} g/kWh): fill the gaps (carbon.trace_max_gap_h), or shorten the horizon"
        )
    if not (np.isfinite(weights_s) & (weights_s >= 0)).all():
        raise ConfigError("the time in a column is below 0 or not finite; it must be 0 s or more")
    if not (math.isfinite(tokens) and tokens > 0):
        raise ConfigError(f"tokens is {tokens:g}; a plan needs a number above 0 (policy.tokens)")
    if not 0.0 <= fp8_max_share <= 1.0:
        raise ConfigError(f"fp8_max_share is {fp8_max_share:g}; it is a share of the time, from 0 to 1")


def _plan(grid: KnownGrid, edge: Edge[Mixture], last: int) -> Plan:
    """Return the plan of an edge that ends in a column."""
    within, h = grid.until(last), len(grid.g_per_kwh)
    parts = [(edge.share * part, rows) for part, rows in edge.high.parts]
    parts += [((1 - edge.share) * part, rows) for part, rows in edge.low.parts]
    speed, power_w, shares = np.zeros(h), np.zeros(h), np.zeros(len(grid.menu) + 1)
    for share, rows in parts:
        speed[: last + 1] += share * grid.tokens_per_s[rows]
        power_w[: last + 1] += share * grid.power_w[rows]
        np.add.at(shares, rows, share * within.weights_s)
    end_s = float(shares[:ENDED].sum())
    weighted = grid.g_per_kwh * grid.weights_s / J_PER_KWH
    rows = np.full(h, OFF)
    rows[: last + 1] = rounded(within, edge.tokens, edge.low.parts[-1][1], edge.high.parts[-1][1])
    used = np.arange(h) <= np.max(np.flatnonzero(rows != OFF), initial=-1)
    return Plan(
        tokens_per_s=speed,
        power_w=power_w,
        tokens=float(speed @ grid.weights_s),
        grams=float(power_w @ weighted),
        price=edge.price,
        fp8_price=edge.share * edge.high.fp8_price + (1 - edge.share) * edge.low.fp8_price,
        end_s=end_s,
        shares=shares[:ENDED] / end_s,
        rows=rows,
        rounded_tokens=float(grid.menu.tokens_per_s[rows] @ grid.weights_s),
        rounded_grams=float((grid.menu.power_w[rows] * used) @ weighted),
    )
