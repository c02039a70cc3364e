"""Outlooks by hand, and one job driven through its epochs by the definition of the rules, one at a time."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from greentrain.policy.decision_kernel import Decided, DecisionKernel
from greentrain.policy.menu import Menu
from greentrain.policy.outlook import Array, Choice, Outlook


def outlook(
    *,
    ahead: Sequence[Sequence[float]] | Array,
    tokens_left: Sequence[float],
    left_s: Sequence[float],
    current: Sequence[int],
    past: Sequence[Sequence[float]] | Array | None = None,
    tokens: Sequence[float] | None = None,
    held_s: Sequence[float] | None = None,
    epoch_s: float = 3600.0,
    t_unix_s: float = 1.7e9,
) -> Outlook:
    n = len(tokens_left)
    return Outlook(
        epoch_s=epoch_s,
        step_s=3600.0,
        t_unix_s=np.full(n, t_unix_s),
        left_s=np.array(left_s, float),
        total_s=np.full(n, 14 * 86400.0),
        tokens_left=np.array(tokens_left, float),
        tokens=np.array(tokens_left if tokens is None else tokens, float),
        current=np.array(current, np.int64),
        held_s=np.full(n, 1e9) if held_s is None else np.array(held_s, float),
        past_g_per_kwh=np.zeros((n, 0)) if past is None else np.array(past, float),
        forecast_g_per_kwh=np.array(ahead, float),
    )


class Fixed:
    """Wants the same rows at every decision."""

    name = "fixed"

    def __init__(self, rows: Sequence[int], price: Sequence[float] | None = None) -> None:
        self._rows, self._price = np.array(rows, np.int64), None if price is None else np.array(price, float)

    def choose(self, seen: Outlook) -> Choice:
        rows, price = self._rows[seen.jobs], None if self._price is None else self._price[seen.jobs]
        return Choice(rows=rows, reasons=("fixed",), reason=np.zeros_like(rows), price=price)


class Whim:
    """Wants rows by its moods."""

    name = "whim"

    def __init__(self, menu: Menu, rng: np.random.Generator) -> None:
        self._menu, self._rng = menu, rng

    def choose(self, seen: Outlook) -> Choice:
        rows = self._rng.integers(len(self._menu), size=len(seen.left_s))
        price = self._rng.choice([np.nan, 0.0, 1e-3, np.inf], size=len(rows)) if self._rng.random() < 0.5 else None
        return Choice(rows=rows, reasons=("a whim",), reason=np.zeros_like(rows), price=price)


def drive(
    kernel: DecisionKernel,
    menu: Menu,
    *,
    tokens: float,
    deadline_s: float,
    epoch_s: float,
    switch_s: float = 0.0,
    vetoed: NDArray[np.bool_] | None = None,
    grid: Callable[[float], Array] = lambda t_s: np.full((1, 8), 300.0),
    watch: Callable[[Outlook, Decided], None] = lambda seen, decided: None,
) -> float:
    """Return the tokens that are left at the deadline."""
    t_s, left, row, loss_s, changed_s = 0.0, tokens, menu.static, 0.0, -1e9
    while t_s < deadline_s and left > 0:
        seen = outlook(
            ahead=grid(t_s),
            tokens_left=[left],
            left_s=[deadline_s - t_s],
            current=[row],
            held_s=[t_s - changed_s],
            epoch_s=epoch_s,
            tokens=[tokens],
        )
        decided = kernel.decide(seen, vetoed)
        watch(seen, decided)
        new = int(decided.rows[0])
        if menu.width[new] != menu.width[row]:
            loss_s, changed_s = switch_s, t_s
        row = new
        for _ in range(64):  # an epoch in slices, as a clock would see it
            slice_s = min(epoch_s, deadline_s - t_s) / 64
            lost = min(loss_s, slice_s) if menu.width[row] else 0.0
            left -= menu.tokens_per_s[row] * (slice_s - lost)
            loss_s = max(0.0, loss_s - slice_s)
        t_s += min(epoch_s, deadline_s - t_s)
    return left
