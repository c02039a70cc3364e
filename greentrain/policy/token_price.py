"""The price of a token at which a job is done just in time, and the row that is worth it in each column.

The best plan against a known intensity is a fractional knapsack: along the lower hull of (tokens/s, W) each step up
buys tokens/s for W, dearer with every step, so a column of intensity c offers its j-th step at c mu_j grams a token.
Filled from the cheapest on until all tokens are done, this is the optimum of the linear programme; the last price
filled is its dual. A column needs nothing but that price to know its row, which is why a plan is one number.

Searched is the smallest price at which the tokens are reached. With the columns sorted once, the tokens at a price
are v - 1 look-ups in running sums of time, v the rows of the hull, and a bracket of prices that always ends at steps
that exist closes after a few of them: O(h log h) for h columns, and exact.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from greentrain.policy.menu import Menu
from greentrain.types import J_PER_KWH

Array = NDArray[np.float64]

TIE: Final = 1e-12
"""Prices this close count as equal: the same product, rounded in another order."""
_CLOSED: Final = 1e-10
"""A bracket of prices this narrow holds one price."""
_ROOM: Final = 1e-9
"""Tokens missed by this share are rounding, not a deadline missed."""
_CHUNK: Final = 256
"""Jobs at a time, so that their columns stay in the processor's cache."""
_FEW: Final = 4
"""Jobs up to which a call for each of them is faster than one loop for all."""


def steps_up(menu: Menu) -> tuple[NDArray[np.int64], Array, Array]:
    """Return the hull from its cheapest row on, and what each step up it costs and brings.

    Args:
        menu: With v rows on its hull that are as fast as the cheapest row or faster.

    Returns:
        (v,) rows; (v - 1,) grams a token at 1 g/kWh, increasing; (v - 1,) tokens/s.
    """
    power_w = menu.power_w[menu.hull]
    rows = menu.hull[power_w.size - 1 - int(np.argmin(power_w[::-1])) :]
    more_per_s = np.diff(menu.tokens_per_s[rows])
    return rows, np.diff(menu.power_w[rows]) / more_per_s / J_PER_KWH, more_per_s


def filled(seen_g_per_kwh: Array, weights_s: Array) -> Array:
    """Return the intensities with the mean of a job's known columns where one is unknown.

    Args:
        seen_g_per_kwh: (n, h), NaN where unknown.
        weights_s: (n, h) time in each column (s); only columns with time count as known.

    Returns:
        (n, h); 1 everywhere for a job of which nothing is known: any constant gives it the same rows.
    """
    unknown = np.isnan(seen_g_per_kwh)
    if not unknown.any():
        return seen_g_per_kwh
    known_s = np.where(unknown, 0.0, weights_s)
    total_s = known_s.sum(axis=1)
    sums = (np.where(unknown, 0.0, seen_g_per_kwh) * known_s).sum(axis=1)
    means = np.divide(sums, total_s, out=np.ones_like(sums), where=total_s > 0)
    return np.where(unknown, means[:, None], seen_g_per_kwh)


def price(seen_g_per_kwh: Array, weights_s: Array, tokens: Array, menu: Menu) -> Array:
    """Return the price at which each job is done by its deadline and not earlier.

    Args:
        seen_g_per_kwh: (n, h) intensity of each column; unknown ones (NaN) count as the mean of the job's known ones.
        weights_s: (n, h) time in each column that is left to the job (s).
        tokens: (n,) still to be done.
        menu: What the jobs can do. Off may cost power; that a job may end before its deadline is not counted here.

    Returns:
        (n,) g/token: 0 where nothing is left to do, inf where even the fastest row comes too late.
    """
    used = np.flatnonzero(weights_s.any(axis=0))
    columns = slice(used[0], used[-1] + 1) if used.size else slice(0)
    seen_g_per_kwh, weights_s = seen_g_per_kwh[:, columns], weights_s[:, columns]
    rows, per_token, more_per_s = steps_up(menu)
    total_s = weights_s.sum(axis=1)
    need = tokens - menu.tokens_per_s[rows[0]] * total_s
    found = np.zeros(len(tokens))
    most = more_per_s.sum() * total_s
    found[need > most + _ROOM * tokens] = np.inf
    need = np.minimum(need, most * (1 - TIE))
    open_ = np.flatnonzero((need > 0) & (tokens > 0) & np.isfinite(found))
    for first in range(0, open_.size, _CHUNK):
        some = open_[first : first + _CHUNK]
        seen = filled(seen_g_per_kwh[some], weights_s[some])
        found[some] = _search(seen, weights_s[some], need[some], per_token, more_per_s)
    return found


def row_at(menu: Menu, g_per_kwh: Array, price_g: Array) -> NDArray[np.int64]:
    """Return the rows that emit least, a token being worth its price; of equals the fastest.

    Args:
        menu: What the jobs can do.
        g_per_kwh: Intensity, of any shape; where it is unknown (NaN) the fastest row is safe and is returned.
        price_g: Price (g/token), of a shape that goes with it.
    """
    rows, per_token, _ = steps_up(menu)
    with np.errstate(divide="ignore", invalid="ignore"):
        worth = np.divide(price_g, g_per_kwh) * (1 + TIE)
    return rows[np.searchsorted(per_token, worth, side="right")]


def _search(seen: Array, weights_s: Array, need: Array, per_token: Array, more_per_s: Array) -> Array:
    """Return the smallest price of each job, 0 < need <= what all steps of all columns bring."""
    n, h = seen.shape
    order = np.argsort(seen, axis=1)
    c = np.take_along_axis(seen, order, axis=1)
    time_s = np.zeros((n, h + 1))
    np.cumsum(np.take_along_axis(weights_s, order, axis=1), axis=1, out=time_s[:, 1:])
    counts = _counts_by_call if n <= _FEW else _counts_together
    found = np.empty(n)
    jobs = np.arange(n)[:, None]
    below = np.zeros((n, per_token.size), dtype=np.intp)
    above = np.full((n, per_token.size), h, dtype=np.intp)
    at = np.stack([np.zeros(n), time_s[:, -1] * more_per_s.sum()], axis=1)
    flip = False
    while jobs.size:
        # The bracket's ends, moved to steps that exist: the first above the lower end, the last up to the upper one.
        low = np.where(below < h, per_token * c[jobs, np.minimum(below, h - 1)], np.inf).min(axis=1)
        high = np.where(above > 0, per_token * c[jobs, np.maximum(above, 1) - 1], -np.inf).max(axis=1)
        closed = low >= high * (1 - _CLOSED)
        if closed.any():
            found[jobs[closed, 0]] = high[closed]
            going = ~closed
            jobs, below, above, at, need = jobs[going], below[going], above[going], at[going], need[going]
            low, high = low[going], high[going]
            if not jobs.size:
                break
        share = (need - at[:, 0]) / (at[:, 1] - at[:, 0])
        share = np.full_like(share, 0.5) if flip else np.clip(share, 0.02, 0.98)
        flip = not flip
        tried = low + share * (high - low)
        with np.errstate(divide="ignore"):
            limit = tried[:, None] / per_token * (1 + TIE)
        count = counts(c, jobs, limit, below, above)
        done = (time_s[jobs, count] * more_per_s).sum(axis=1)
        enough = done >= need
        above = np.where(enough[:, None], count, above)
        below = np.where(enough[:, None], below, count)
        at[np.arange(done.size), enough.astype(np.intp)] = done
    return found


def _counts_by_call(c: Array, jobs: NDArray[np.intp], limit: Array, below: object, above: object) -> NDArray[np.intp]:
    """Return how many columns of each job are at or below each limit."""
    return np.stack([np.searchsorted(c[job], some, side="right") for job, some in zip(jobs[:, 0], limit, strict=True)])


def _counts_together(
    c: Array, jobs: NDArray[np.intp], limit: Array, below: NDArray[np.intp], above: NDArray[np.intp]
) -> NDArray[np.intp]:
    """Return the same by one bisection for all, between counts known to be too small and large enough."""
    flat, before = c.ravel(), jobs * c.shape[1] - 1
    count = below.copy()
    for bit in range(int((above - below).max()).bit_length() - 1, -1, -1):
        more = count + (1 << bit)
        fits = more <= above
        fits &= flat.take(before + more, mode="clip") <= limit
        count += fits.astype(np.intp) << bit
    return count
