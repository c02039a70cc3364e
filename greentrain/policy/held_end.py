"""When a job should end whose ranks are held: they draw power until then, working or not.

For each column in which it may end the best plan is a linear programme of its own, and those have no order that one
could bisect. But every price of a token, tried for whichever end, bounds all ends from below at once. So the end with
the lowest bound is solved, its price bounds the others more tightly, and once no bound is below the best end found,
that one is the best of all. The job may end anywhere within its last column.
"""

from typing import Final

import numpy as np

from greentrain.policy.edge import Edge, find_edge
from greentrain.policy.known_grid import KnownGrid, Mixture
from greentrain.policy.token_price import price
from greentrain.units import J_PER_KWH

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
    found = float(price(grid.g_per_kwh[None], grid.weights_s[None], np.array([tokens]), grid.menu)[0])
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
