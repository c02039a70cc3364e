"""How many tokens a job can still do by its deadline, if it takes a row now and hurries from then on.

A change of width costs ``switch_s`` in which nothing is trained; once started it also delays what follows. After the
coming epoch a job can do no better than the faster of two ways: stay at the width it has, or change to the fastest.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from greentrain.policy.menu import OFF, Menu
from greentrain.policy.outlook import Array, Outlook

Rows = NDArray[np.int64]
Allowed = NDArray[np.bool_]

ROUNDING: Final = 1e-9
"""Relative difference of two counts of tokens that is none."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Reach:
    """The arithmetic of a menu, a switching time and a margin."""

    menu: Menu
    switch_s: float = 0.0
    """Time in which a change of width trains nothing (s)."""
    margin_s: float = 0.0
    """Time before the deadline that is not counted on (s)."""

    def pending_s(self, rows: Rows, current: Rows, held_s: Array) -> Array:
        """Return how long nothing is trained from now on, for the rest of a change of width (s).

        Args:
            rows: Rows taken now.
            current: Rows until now, of a shape that broadcasts to that of ``rows``.
            held_s: Since the width last changed (s), likewise.
        """
        if not self.switch_s:
            return np.zeros(np.broadcast(rows, current).shape)
        width = self.menu.width[rows]
        under_way = np.maximum(self.switch_s - held_s, 0.0)
        pending: Array = np.where(width != self.menu.width[current], self.switch_s, under_way)
        return np.where(width > 0, pending, 0.0)

    def tokens(self, seen: Outlook, rows: Rows, allowed: Allowed | None = None) -> Array:
        """Return (n,): the most that can be done if these rows are taken now.

        Args:
            seen: The jobs.
            rows: (n,) rows for the coming epoch.
            allowed: (m,) or (n, m) rows that may be used, now and later; None: all.
        """
        best, fastest = self._speeds(allowed)
        best = best[rows] if best.ndim == 1 else np.take_along_axis(best, rows[:, None], axis=1)[:, 0]
        return self._count(rows, best, fastest, seen.current, seen.held_s, seen.left_s, seen.epoch_s)

    def tokens_of_all(self, seen: Outlook, jobs: NDArray[np.int64], allowed: Allowed | None = None) -> Array:
        """Return (k, m): the most that k of the jobs can do if they take each of the rows now.

        Args:
            seen: All jobs.
            jobs: (k,) which.
            allowed: (m,) or (n, m), as in :meth:`tokens`.
        """
        if allowed is not None and allowed.ndim == 2:
            allowed = allowed[jobs]
        best, fastest = self._speeds(allowed)
        return self._count(
            np.arange(len(self.menu))[None, :],
            best if best.ndim == 2 else best[None, :],
            fastest if isinstance(fastest, float) else fastest[:, None],
            seen.current[jobs, None],
            seen.held_s[jobs, None],
            seen.left_s[jobs, None],
            seen.epoch_s,
        )

    def _count(
        self,
        rows: Rows,
        best: Array,
        fastest: Array | float,
        current: Rows,
        held_s: Array,
        left_s: Array,
        epoch_s: float,
    ) -> Array:
        epoch = np.clip(left_s, 0.0, epoch_s)
        rest_s = left_s - self.margin_s - epoch
        speed = self.menu.tokens_per_s[rows]
        if not self.switch_s:
            return speed * epoch + np.maximum(fastest * rest_s, 0.0)
        pending = self.pending_s(rows, current, held_s)
        now = speed * np.maximum(epoch - pending, 0.0)
        stay = best * (rest_s - np.maximum(pending - epoch, 0.0))
        go = fastest * (rest_s - self.switch_s)
        return now + np.maximum(np.maximum(stay, go), 0.0)

    def _speeds(self, allowed: Allowed | None) -> tuple[Array, Array | float]:
        """Return the highest speed at the width of each row, (m,) or (n, m), and at any width, a number or (n,)."""
        if allowed is None:
            return self._free
        usable = np.where(allowed, self.menu.tokens_per_s, 0.0)
        if usable.ndim == 1:
            return (usable * self._alike).max(axis=1), float(usable.max())
        return (usable[:, None, :] * self._alike).max(axis=2), usable.max(axis=1)

    @cached_property
    def _free(self) -> tuple[Array, float]:
        speed = self.menu.tokens_per_s
        return (speed * self._alike).max(axis=1), float(speed.max())

    @cached_property
    def _alike(self) -> Allowed:
        alike: Allowed = self.menu.width[:, None] == self.menu.width[None, :]
        return alike


def hull_rows(menu: Menu, allowed: Allowed | None) -> Rows:
    """Return the rows on the lower hull of those allowed, slowest first; off is among them where it is allowed.

    Args:
        menu: The choices.
        allowed: (m,) which of them count; None: all.
    """
    if allowed is None or bool(allowed.all()):
        return menu.hull
    rows = np.flatnonzero(allowed)
    part = Menu(
        actions=tuple(menu.actions[row] for row in rows),
        tokens_per_s=menu.tokens_per_s[rows],
        power_w=menu.power_w[rows],
        width=menu.width[rows],
        provenance=menu.provenance,
    )
    found: Rows = rows[part.hull] if len(rows) else np.array([OFF])
    return found
