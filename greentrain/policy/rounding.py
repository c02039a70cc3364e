"""A plan with one row a column, made of one that mixes rows, with hardly more grams and all its tokens.

A best plan mixes rows in a column or two; on a flat grid many columns are alike, and those that go faster come first,
so that the job changes its width once and is on the safe side. The tokens that are missing then are bought by the
cheapest single change that brings enough, and what this brings too much is sold where that saves most.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from greentrain.policy.known_grid import ENDED, KnownGrid
from greentrain.policy.menu import OFF
from greentrain.types import J_PER_KWH

Array = NDArray[np.float64]
Rows = NDArray[np.int64]

_SALES: Final = 4
"""Changes that sell surplus tokens; the first saves most."""
_EXACT: Final = 1e-12
"""Tokens missed by this share are rounding."""


def rounded(grid: KnownGrid, tokens: float, low: Rows, high: Rows) -> Rows:
    """Return one row a column with at least the tokens; the limit on FP8 is kept but where nothing else reaches them.

    Args:
        grid: (h,) columns, until the plan's end.
        tokens: To be done.
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
