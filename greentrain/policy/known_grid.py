"""What a job does at a price of a token, against a known intensity, with its limit on FP8 and its chosen end."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from greentrain.policy.menu import OFF, Menu
from greentrain.policy.token_price import row_at
from greentrain.types import J_PER_KWH

Array = NDArray[np.float64]
Rows = NDArray[np.int64]

ENDED: Final = -1
"""In place of a row: the job has ended, and nothing is held any more."""


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
            price: Of a token (g).
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
            tokens: To be done.
            price: Of a token (g).
            fp8_price: Of a second in FP8 (g), from 0 on.
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
        return (rows[0], only(self.menu, rows[0])), (rows[1], only(self.menu, rows[1]))

    def _rate(self, rows: Rows, price: float) -> Array:
        """Return (h,) what each column emits, less the worth of its tokens (g/s)."""
        return self.g_per_kwh * self.power_w[rows] / J_PER_KWH - price * self.tokens_per_s[rows]

    def _mixture(self, parts: tuple[tuple[float, Rows], ...], fp8_price: float) -> Mixture:
        tokens = sum(share * float(self.tokens_per_s[rows] @ self.weights_s) for share, rows in parts)
        weighted = self.g_per_kwh * self.weights_s / J_PER_KWH
        grams = sum(share * float(self.power_w[rows] @ weighted) for share, rows in parts)
        return Mixture(tokens=tokens, grams=grams, parts=parts, fp8_price=fp8_price)


def only(menu: Menu, rows: Rows) -> Menu:
    """Return some rows of a menu as a menu; its row 0 need not be off."""
    return replace(
        menu,
        actions=tuple(menu.actions[row] for row in rows),
        tokens_per_s=menu.tokens_per_s[rows],
        power_w=menu.power_w[rows],
        width=menu.width[rows],
    )
