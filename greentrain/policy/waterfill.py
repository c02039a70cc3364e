"""The best plan against a known intensity: exact, with a limit on the time in FP8 and with ranks that are held.

The best plan is a fractional knapsack: along the lower hull of (tokens/s, W) each step up buys tokens/s for W, dearer
with every step, so a column of intensity c offers its j-th step at c mu_j grams a token. Filled from the cheapest on
until all tokens are done, this is the optimum of the linear programme; the last price filled is its dual. A column
needs nothing but that price to know its row, which is why a plan is one number (:func:`deadline_price`).

:func:`deadline_price` searches the smallest price at which the tokens are reached. With the columns sorted once, the
tokens at a price are v - 1 look-ups in running sums of time, v the rows of the hull, and a bracket of prices that
always ends at steps that exist closes after a few of them: O(h log h) for h columns, and exact.

A limit on the time in FP8 changes what a column takes at a price: those that gain most by FP8 get it, as many as there
is time for (:class:`KnownGrid`). What a job can reach then is a set of points (tokens, grams), and the best mixtures
lie on its lower hull. Asked for a price, an oracle returns a corner of that hull; two corners on both sides of the
wanted tokens give the next price, that of the line between them, until no point lies below that line: then it is an
edge, and its slope is the price of a token there (:func:`find_edge`).

Ranks that are held draw power until the job ends, working or not, so its end is looked for as well. For each column in
which it may end the best plan is a linear programme of its own, and those have no order that one could bisect. But
every price of a token, tried for whichever end, bounds all ends from below at once. So the end with the lowest bound
is solved, its price bounds the others more tightly, and once no bound is below the best end found, that one is the
best of all (:func:`best_end`).

A best plan mixes rows in a column or two; on a flat grid many columns are alike, and those that go faster come first.
:func:`rounded` makes one row a column of it: the tokens that are missing then are bought by the cheapest single change
that brings enough, and what this brings too much is sold where that saves most.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from greentrain.errors import ConfigError
from greentrain.policy.menu import OFF, Menu, hours_up
from greentrain.types import J_PER_KWH, S_PER_HOUR

Array = NDArray[np.float64]
Rows = NDArray[np.int64]

NEAR: Final = 1e-9
"""Share by which a price is moved to see both corners of its edge."""
_EDGE_EXACT: Final = 1e-13
"""A corner this little below a line, relative to its grams, lies on it."""
_TURNS: Final = 1100
"""Halvings or doublings after which a float has run out of exponents."""
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
ENDED: Final = -1
"""In place of a row: the job has ended, and nothing is held any more."""
_SALES: Final = 4
"""Changes that sell surplus tokens; the first saves most."""
_EXACT: Final = 1e-12
"""Ends this close in grams are equal; tokens missed by this share are rounding."""
_FIRST: Final = (1.0, 1.25, 1.6, 2.5, 5.0)
"""Multiples of the price at the deadline with which the search begins: an earlier end has a higher one."""


class Corner(Protocol):
    """A point on the hull."""

    @property
    def tokens(self) -> float:
        """How many tokens are done."""

    @property
    def grams(self) -> float:
        """What that emits."""


C = TypeVar("C", bound=Corner)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge(Generic[C]):
    """Two neighbours on the hull. Where the cheapest corner of all already has the tokens, both are that one."""

    low: C
    high: C
    tokens: float
    """Wanted: at most those of ``high``."""

    @property
    def price(self) -> float:
        """Slope (g/token)."""
        more = self.high.tokens - self.low.tokens
        return max(0.0, (self.high.grams - self.low.grams) / more) if more > 0 else 0.0

    @property
    def share(self) -> float:
        """How much of ``high`` is in the mixture with the wanted tokens."""
        more = self.high.tokens - self.low.tokens
        return min(1.0, max(0.0, (self.tokens - self.low.tokens) / more)) if more > 0 else 1.0

    @property
    def grams(self) -> float:
        """Of that mixture."""
        return self.low.grams + self.share * (self.high.grams - self.low.grams)


def find_edge(corner: Callable[[float], C], tokens: float, guess: float) -> Edge[C]:
    """Return the edge that holds the tokens.

    Args:
        corner: The best point at a price (g/token); below 0 the cheapest, and of these the one with the
            fewest tokens.
        tokens: Wanted; where no price reaches them, the corner with the most stands for both ends.
        guess: A price close to the edge's, above 0; close saves time and changes nothing else.
    """
    low, high = _around(corner, tokens, guess)
    while low.tokens < tokens < high.tokens:
        price = (high.grams - low.grams) / (high.tokens - low.tokens)
        found = corner(price)
        below = (low.grams - price * low.tokens) - (found.grams - price * found.tokens)
        if below <= _EDGE_EXACT * (abs(found.grams) + abs(price * found.tokens)):
            break
        if found.tokens < tokens:
            low = found
        else:
            high = found
    return Edge(low=low, high=high, tokens=tokens)


def _around(corner: Callable[[float], C], tokens: float, guess: float) -> tuple[C, C]:
    """Return a corner with too few tokens and one with enough, near a price."""
    low, price = corner(guess * (1 - NEAR)), guess
    high: C | None = None
    while low.tokens >= tokens:
        high, price = low, price / 4
        low = corner(price if price > guess * 1e-9 else -1.0)
        if price <= guess * 1e-9:
            return (low, high) if low.tokens < tokens else (low, low)
    if high is not None:
        return low, high
    price = guess * (1 + NEAR)
    for _ in range(_TURNS):
        high = corner(price)
        if high.tokens >= tokens:
            return low, high
        low, price = high, price * 2
    return low, low


def steps_up(menu: Menu) -> tuple[NDArray[np.int64], Array, Array]:
    """Return the hull from its cheapest row on, and what each step up it costs and brings.

    Args:
        menu: Menu with v rows on its hull that are as fast as the cheapest row or faster.

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


def deadline_price(seen_g_per_kwh: Array, weights_s: Array, tokens: Array, menu: Menu) -> Array:
    """Return the price at which each job is done by its deadline and not earlier.

    Args:
        seen_g_per_kwh: (n, h) intensity of each column; unknown ones (NaN) count as the mean of the job's known ones.
        weights_s: (n, h) time in each column that is left to the job (s).
        tokens: (n,) still to be done.
        menu: Menu of the jobs. Off may cost power; that a job may end before its deadline is not counted here.

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
        menu: Menu of the choices of the jobs.
        g_per_kwh: Intensity, of any shape; where it is unknown (NaN) the fastest row is safe and is returned.
        price_g: Price (g/token), of a shape that goes with it.
    """
    rows, per_token, _ = steps_up(menu)
    with np.errstate(divide="ignore", invalid="ignore"):
        worth = np.divide(price_g, g_per_kwh) * (1 + TIE)
    return rows[np.searchsorted(per_token, worth, side="right")]


def _search(
    seen: Array,
    weights_s: Array,
    need: Array,
    per_token: Array,
    more_per_s: Array,
) -> Array:
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mixture:
    """What the job does: mixtures of one row a column."""

    tokens: float
    grams: float
    parts: tuple[tuple[float, Rows], ...]
    """Share of the mixture, and (h,) its rows; the last part is the one with the least FP8."""
    fp8_price: float
    """What one more second in FP8 would save (g)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class KnownGrid:
    """A job on a known grid of h columns."""

    g_per_kwh: Array
    """(h,)"""
    weights_s: Array
    """(h,) time in each column (s)."""
    menu: Menu
    fp8_s: float
    """Longest time in FP8 (s)."""

    @property
    def held(self) -> bool:
        """Whether off draws power, so that a job should end early."""
        return bool(self.menu.power_w[OFF] > 0)

    @cached_property
    def limited(self) -> bool:
        """Whether the limit on FP8 can bind."""
        return bool(self.menu.fp8.any() and self.fp8_s < self.weights_s.sum())

    @cached_property
    def tokens_per_s(self) -> Array:
        """(m + 1,) of each row, and of ENDED."""
        return np.append(self.menu.tokens_per_s, 0.0)

    @cached_property
    def power_w(self) -> Array:
        """(m + 1,) of each row, and of ENDED."""
        return np.append(self.menu.power_w, 0.0)

    @cached_property
    def useful(self) -> Rows:
        """Rows that a best plan can use."""
        if not self.limited:
            return self.menu.hull
        return np.concatenate([rows[some.hull] for rows, some in self._gears])

    def until(self, last: int) -> "KnownGrid":
        """Return the grid up to and with a column."""
        return replace(self, g_per_kwh=self.g_per_kwh[: last + 1], weights_s=self.weights_s[: last + 1])

    def most(self) -> Array:
        """Return (h,) the tokens of the fastest way until the end of each column."""
        menu, until_s = self.menu, np.cumsum(self.weights_s)
        speed = float(menu.tokens_per_s[~menu.fp8].max())
        gain = max(0.0, float(menu.tokens_per_s.max()) - speed)
        return np.asarray(until_s * speed + np.minimum(until_s, self.fp8_s) * gain)

    def best(self, price: float, *, may_end: bool = False) -> Mixture:
        """Return what emits least at a price, with no more FP8 than there is time for.

        Args:
            price: Price of a token (g).
            may_end: Whether the job may end within the last column.
        """
        rows, fp8_rows, gain = self._rows(price)
        if may_end and self._rate(rows, price)[-1] > 0:
            rows[-1] = ENDED
        if fp8_rows is None:
            return self._mixture(((1.0, rows),), 0.0)
        if may_end:
            gain[-1] = (self._rate(rows, price) - self._rate(fp8_rows, price))[-1]
        order = np.argsort(-gain, kind="stable")
        until_s = np.cumsum(self.weights_s[order])
        wanted = int(np.count_nonzero(gain > 0))
        whole = min(wanted, int(np.searchsorted(until_s, self.fp8_s, side="right")))
        rows[order[:whole]] = fp8_rows[order[:whole]]
        if whole == wanted:
            return self._mixture(((1.0, rows),), 0.0)
        at = order[whole]
        share = (self.fp8_s - (until_s[whole - 1] if whole else 0.0)) / self.weights_s[at]
        more = rows.copy()
        more[at] = fp8_rows[at]
        return self._mixture(((share, more), (1.0 - share, rows)), float(gain[at]))

    def bounds(self, tokens: float, price: float, fp8_price: float) -> Array:
        """Return (h,) what the job at least emits if it ends in each column: weak duality, for any two prices.

        Args:
            tokens: Tokens still to be trained.
            price: Price of a token (g).
            fp8_price: Price of a second in FP8 (g), from 0 on.
        """
        rows, _, gain = self._rows(price)
        best = self._rate(rows, price) - (np.maximum(gain - fp8_price, 0.0) if self.limited else 0.0)
        whole = best * self.weights_s
        before = np.concatenate(([0.0], np.cumsum(whole)[:-1]))
        limit = fp8_price * self.fp8_s if self.limited else 0.0
        return np.asarray(price * tokens - limit + before + np.minimum(whole, 0.0))

    def _rows(self, price: float) -> tuple[Rows, Rows | None, Array]:
        """Return the best rows (those without FP8 if it is limited), the best in FP8, and what these gain (g/s)."""
        if not self.limited:
            return row_at(self.menu, self.g_per_kwh, np.asarray(price)), None, np.zeros(0)
        (other, other_menu), (fp8, fp8_menu) = self._gears
        rows = other[row_at(other_menu, self.g_per_kwh, np.asarray(price))]
        fp8_rows = fp8[row_at(fp8_menu, self.g_per_kwh, np.asarray(price))]
        return rows, fp8_rows, self._rate(rows, price) - self._rate(fp8_rows, price)

    @cached_property
    def _gears(self) -> tuple[tuple[Rows, Menu], tuple[Rows, Menu]]:
        """Rows without and with FP8, each as a menu of its own."""
        rows = np.flatnonzero(~self.menu.fp8), np.flatnonzero(self.menu.fp8)
        return (rows[0], self.menu.only(rows[0])), (rows[1], self.menu.only(rows[1]))

    def _rate(self, rows: Rows, price: float) -> Array:
        """Return (h,) what each column emits, less the worth of its tokens (g/s)."""
        return self.g_per_kwh * self.power_w[rows] / J_PER_KWH - price * self.tokens_per_s[rows]

    def _mixture(self, parts: tuple[tuple[float, Rows], ...], fp8_price: float) -> Mixture:
        tokens = sum(share * float(self.tokens_per_s[rows] @ self.weights_s) for share, rows in parts)
        weighted = self.g_per_kwh * self.weights_s / J_PER_KWH
        grams = sum(share * float(self.power_w[rows] @ weighted) for share, rows in parts)
        return Mixture(tokens=tokens, grams=grams, parts=parts, fp8_price=fp8_price)


def rounded(grid: KnownGrid, tokens: float, low: Rows, high: Rows) -> Rows:
    """Return one row a column with at least the tokens; the limit on FP8 is kept but where nothing else reaches them.

    Args:
        grid: (h,) columns, until the plan's end.
        tokens: Tokens still to be trained.
        low: (h,) rows or ENDED, of a plan with too few tokens or just enough.
        high: (h,) rows or ENDED, of one that is as good and has enough.
    """
    book = _Book(grid, tokens, low)
    book.follow(high)
    book.buy()
    book.sell()
    return np.where(book.rows == ENDED, OFF, book.rows)


class _Book:
    """What a plan still misses, and what changes of it bring and cost."""

    def __init__(self, grid: KnownGrid, tokens: float, rows: Rows) -> None:
        self.rows = rows.copy()
        self._grid = grid
        self._to = grid.useful
        self._fp8 = np.append(grid.menu.fp8, False)
        self._g_per_w = grid.g_per_kwh * grid.weights_s / J_PER_KWH
        self._fp8_left_s = grid.fp8_s * (1 + _EXACT) - float(self._fp8[rows] @ grid.weights_s)
        self._missing = tokens * (1 - _EXACT) - float(grid.tokens_per_s[rows] @ grid.weights_s)

    def follow(self, high: Rows) -> None:
        """Take the rows of another plan, from the first column on, while tokens are missing."""
        weights_s = self._grid.weights_s
        gain = (self._grid.tokens_per_s[high] - self._grid.tokens_per_s[self.rows]) * weights_s
        fp8_s = (self._fp8[high].astype(np.float64) - self._fp8[self.rows]) * weights_s
        gain, fp8_s = np.cumsum(gain), np.cumsum(fp8_s)
        stops = np.flatnonzero((gain > self._missing) | (fp8_s > self._fp8_left_s))
        until = int(stops[0]) if stops.size else len(high)
        if until:
            self.rows[:until] = high[:until]
            self._missing -= float(gain[until - 1])
            self._fp8_left_s -= float(fp8_s[until - 1])

    def buy(self) -> None:
        """Change rows until no tokens are missing."""
        while self._missing > 0:
            gain, cost, fp8_s = self._changes()
            allowed = (gain > 0) & (fp8_s <= self._fp8_left_s)
            if not allowed.any():
                if np.isinf(self._fp8_left_s):
                    return
                self._fp8_left_s = np.inf
                continue
            enough = allowed & (gain >= self._missing)
            if enough.any():
                self._change(np.where(enough, cost, np.inf), gain, fp8_s)
            else:
                self._change(np.where(allowed, cost / np.where(allowed, gain, 1.0), np.inf), gain, fp8_s)

    def sell(self) -> None:
        """Change rows while that saves grams and leaves enough tokens."""
        for _ in range(_SALES):
            gain, cost, fp8_s = self._changes()
            allowed = (gain >= self._missing) & (cost < 0) & (fp8_s <= self._fp8_left_s)
            if not allowed.any():
                return
            self._change(np.where(allowed, cost, np.inf), gain, fp8_s)

    def _changes(self) -> tuple[Array, Array, Array]:
        """Return (h, r) tokens, grams and seconds in FP8 that each column gains with each useful row."""
        grid, to, rows = self._grid, self._to, self.rows
        weights_s = grid.weights_s[:, None]
        gain = (grid.tokens_per_s[to] - grid.tokens_per_s[rows][:, None]) * weights_s
        cost = (grid.power_w[to] - grid.power_w[rows][:, None]) * self._g_per_w[:, None]
        return gain, cost, (self._fp8[to].astype(np.float64) - self._fp8[rows][:, None]) * weights_s

    def _change(self, score: Array, gain: Array, fp8_s: Array) -> None:
        column, row = np.unravel_index(int(np.argmin(score)), score.shape)
        self.rows[column] = self._to[row]
        self._missing -= float(gain[column, row])
        self._fp8_left_s -= float(fp8_s[column, row])


def best_end(grid: KnownGrid, tokens: float) -> tuple[Edge[Mixture], int]:
    """Return the best plan and the column in which it ends.

    Args:
        grid: Grid and job until the deadline.
        tokens: Tokens still to be trained, no more than can be.
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
    found = float(deadline_price(grid.g_per_kwh[None], grid.weights_s[None], np.array([tokens]), grid.menu)[0])
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
        tokens: Tokens still to be trained.
        menu: Menu of the job. Where off draws power, ranks are held until the job ends, and its end is chosen.
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
    tokens = min(tokens, float(grid.most()[-1]) * (1 - TIE))
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
        menu: Menu of the jobs. Where off draws power each job's end is looked for, one job after the other.

    Returns:
        (n,) g/token: 0 where nothing is left to do, inf where even the fastest row comes too late.
    """
    found = deadline_price(seen_g_per_kwh, weights_s, tokens, menu)
    if menu.power_w[OFF] > 0:
        seen_g_per_kwh = filled(seen_g_per_kwh, weights_s)
        for i in np.flatnonzero(np.isfinite(found) & (tokens > 0)):
            grid = KnownGrid(g_per_kwh=seen_g_per_kwh[i], weights_s=weights_s[i], menu=menu, fp8_s=math.inf)
            found[i] = best_end(grid, min(float(tokens[i]), float(grid.most()[-1]) * (1 - TIE)))[0].price
    return found


def shortest_s(tokens: float, menu: Menu, *, fp8_max_share: float = 1.0) -> float:
    """Return the shortest time in which a job can be done (s): its earliest feasible deadline, from its start.

    Args:
        tokens: Tokens of the job.
        menu: Menu of the choices of the job.
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
