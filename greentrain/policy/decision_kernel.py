"""Observe, decide, shield: the same code in a training process (n = 1) and in the simulator (n windows x seeds).

A policy says what it wants. What a job then does is that, but for five rules, each of which outranks those before it:

1. a row that is vetoed is replaced by the best one that is not;
2. a row that is hardly better than the one in use is not worth a change (``hysteresis``);
3. a width is held for ``dwell_s``;
4. the deadline is met whenever it can be (the shield, by :class:`Reach`);
5. a job whose tokens are done is off.

Reasons in words are templates of a policy, filled in with figures where somebody reads them (:func:`explain`). Names
that every template may use:

* ``now``: intensity of the running step (g/kWh), ``mean``: until the deadline, as forecast (g/kWh)
* ``left_h``: time to the deadline (h), ``todo``: share of the tokens that is left
* ``row``: what was decided, ``current``: what ran until now, ``wanted``: what the policy asked for
* ``price``: of a million tokens (g)

and those of ``Choice.figures``. A figure that nobody knows reads ``unknown``.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from greentrain.errors import ConfigError
from greentrain.policy.menu import OFF, Menu
from greentrain.policy.outlook import Array, Choice, Outlook, SchedulePolicy
from greentrain.types import J_PER_KWH, S_PER_HOUR

Rows = NDArray[np.int64]
Allowed = NDArray[np.bool_]

ROUNDING: Final = 1e-9
"""Relative difference of two counts of tokens that is none."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Reach:
    """The arithmetic of a menu, switching times and a margin."""

    menu: Menu
    switch_s: float = 0.0
    """Time in which a change of width trains nothing (s)."""
    shift_s: float = 0.0
    """Time in which a change of gear trains nothing (s), at most an epoch. A change of width takes at least as long."""
    margin_s: float = 0.0
    """Time before the deadline that is not counted on (s)."""

    def pending_s(self, rows: Rows, current: Rows, held_s: Array) -> Array:
        """Return how long nothing is trained from now on, for a change of gear or the rest of one of width (s).

        Args:
            rows: Rows taken now.
            current: Rows until now, of a shape that broadcasts to that of ``rows``.
            held_s: Time since the width last changed (s), of such a shape too.
        """
        if not self._change_s:
            return np.zeros(np.broadcast(rows, current).shape)
        width, gear = self.menu.width[rows], self.menu.gear
        under_way = np.maximum(self._change_s - held_s, 0.0)
        under_way = np.maximum(under_way, np.where(gear[rows] != gear[current], self.shift_s, 0.0))
        pending: Array = np.where(width != self.menu.width[current], self._change_s, under_way)
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
        if not self._change_s:
            return speed * epoch + np.maximum(fastest * rest_s, 0.0)
        pending = self.pending_s(rows, current, held_s)
        now = speed * np.maximum(epoch - pending, 0.0)
        stay = best * (rest_s - np.maximum(pending - epoch, 0.0) - np.where(speed < best, self.shift_s, 0.0))
        go = fastest * (rest_s - self._change_s)
        return now + np.maximum(np.maximum(stay, go), 0.0)

    def _speeds(self, allowed: Allowed | None) -> tuple[Array, Array | float]:
        """Return the highest speed at the width of each row, (m,) or (n, m), and at any width, a number or (n,)."""
        if allowed is None:
            return self._free
        usable = np.where(allowed, self.menu.tokens_per_s, 0.0)
        if usable.ndim == 1:
            return (usable * self._alike).max(axis=1), float(usable.max())
        return (usable[:, None, :] * self._alike).max(axis=2), usable.max(axis=1)

    @property
    def _change_s(self) -> float:
        return max(self.switch_s, self.shift_s)

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
    found: Rows = rows[menu.only(rows).hull] if len(rows) else np.array([OFF])
    return found


class Figure(float):
    """A number that reads ``unknown`` where it is none."""

    def __format__(self, spec: str) -> str:
        return float.__format__(self, spec) if math.isfinite(self) else "unknown"


def explain(template: str, seen: Outlook, choice: Choice, row: int, names: Sequence[str], job: int = 0) -> str:
    """Return the reason of one job as a sentence.

    Args:
        template: One of ``reasons`` of a choice or a decision.
        seen: State of the jobs and grids that the policy saw.
        choice: Choice that the policy wanted.
        row: Row that was decided.
        names: Names of the menu's rows.
        job: Index of the job.
    """
    figures: dict[str, Figure | str] = {
        "now": Figure(seen.now_g_per_kwh[job]),
        "mean": Figure(_mean(seen, job)),
        "left_h": Figure(seen.left_s[job] / S_PER_HOUR),
        "todo": Figure(seen.tokens_left[job] / seen.tokens[job]),
        "row": names[row],
        "current": names[int(seen.current[job])],
        "wanted": names[int(choice.rows[job])],
        "price": Figure(math.nan if choice.price is None else choice.price[job] * 1e6),
    }
    figures |= {name: Figure(values[job]) for name, values in choice.figures.items()}
    return template.format(**figures)


_NEAR_ZERO: Final = 1e-3
_LOWEST: Final = -60.0
"""Of an exponent: what is lower is alike, and no product of it underflows."""


def above_zero(values: Array) -> Array:
    """Return values above 0 in the same order: what is below a thousandth of their mean size falls off towards 0.

    At a price below 0, more power and more tokens both pay, so of a hull's rows the fastest is the best, as at one just
    above 0. The order says which of such hours come first.

    Args:
        values: (n, h), of jobs by column; returned as they are where none is below 0.
    """
    if (values >= 0).all():
        return values
    size = np.maximum(np.abs(values).mean(axis=1, keepdims=True), np.finfo(np.float64).tiny)
    floor = _NEAR_ZERO * size
    low: Array = floor * np.exp(np.maximum((values - floor) / size, _LOWEST))
    return np.where(values < floor, low, values)


def _mean(seen: Outlook, job: int) -> float:
    ahead = seen.forecast_g_per_kwh[job]
    weights = np.clip(seen.left_s[job] - np.arange(len(ahead)) * seen.step_s, 0.0, seen.step_s)
    known = np.isfinite(ahead) & (weights > 0)
    return float(np.average(ahead[known], weights=weights[known])) if known.any() else math.nan


HYSTERESIS: Final = 0.001
"""Share of the emissions at full speed that a change of row must save. On the ten shared grids a quarter fewer widths
change with it, and no saving of mpc is lower by more than 0.05 points; 0.002 would cost 0.1 points, 0.01 half a one."""
KERNEL_REASONS: Final = (
    "{wanted} may not be used now: {row} instead",
    "{wanted} would save too little for a change: {row} stays",
    "the width has to be held for a while: {row} instead of {wanted}",
    "{todo:.1%} of the tokens are left and {left_h:.1f} h: {wanted} would miss the deadline, so {row}",
    "{todo:.1%} of the tokens are left and {left_h:.1f} h: the deadline cannot be met any more, so {row}, to be late by"
    " as little as can be",
    "all tokens are done",
)
_VETO, _SMALL, _DWELL, _SHIELD, _LATE, _DONE = range(len(KERNEL_REASONS))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decided:
    """What n jobs do in the coming epoch."""

    rows: Rows
    """(n,) rows of the menu."""
    reasons: Sequence[str]
    """Templates, for :meth:`DecisionKernel.explain`."""
    reason: NDArray[np.int64]
    """(n,) which reason."""
    shielded: NDArray[np.bool_]
    """(n,) where the deadline overruled the policy."""
    wanted: Choice
    """What the policy asked for."""


class DecisionKernel:
    """Asks a policy, and keeps what it wants within what is allowed and what the deadline needs.

    Args:
        policy: Decides.
        menu: Menu of the choices of a job.
        switch_s: Time in which a change of width trains nothing, at the power of the new width (s).
        shift_s: Time in which a change of gear trains nothing, at the power of the new row (s).
        dwell_s: Shortest time between two changes of width (s).
        margin_s: Time to spare before the deadline (s).
        hysteresis: A change must save this share of the emissions at full speed; 0: every change is worth it.
        shield: Whether the deadline outranks the policy. Only the simulator does without, to show what one does alone.
    """

    def __init__(
        self,
        policy: SchedulePolicy,
        menu: Menu,
        *,
        switch_s: float = 0.0,
        shift_s: float = 0.0,
        dwell_s: float = 0.0,
        margin_s: float = 0.0,
        hysteresis: float = HYSTERESIS,
        shield: bool = True,
    ) -> None:
        self.policy = policy
        self.menu = menu
        self.reach = Reach(menu=menu, switch_s=switch_s, shift_s=shift_s, margin_s=margin_s)
        self._dwell_s = dwell_s
        self._hysteresis = hysteresis
        self._shields = shield

    def observe(self, seen: Outlook) -> Outlook:
        """Return an outlook without gaps, as policies get it.

        An unknown step takes the value of the last known one before it, else of the first one after it; where nothing
        is known at all the grid is taken as constant, and a plan is the one of least energy. What a plan of money finds
        below 0 becomes a small number above it: there the fastest row of the hull is the best one.
        """
        ahead, past = seen.forecast_g_per_kwh, seen.past_g_per_kwh
        if (ahead >= 0).all() and (past >= 0).all():  # of NaN, neither
            return seen
        p = past.shape[1]
        whole = above_zero(_bridged(np.concatenate([past, ahead], axis=1)))
        return replace(seen, past_g_per_kwh=whole[:, :p], forecast_g_per_kwh=whole[:, p:])

    def decide(self, seen: Outlook, vetoed: Allowed | None = None) -> Decided:
        """Return what the jobs do until the next decision.

        Args:
            seen: The jobs and what is known of their grids; NaN where nobody knows.
            vetoed: (m,) or (n, m) rows that must not be used now. Off is used all the same where nothing else is left.
        """
        clear = self.observe(seen)
        choice = self.policy.choose(clear)
        rows = np.array(choice.rows)
        if len(rows) and not (rows.min() >= 0 and rows.max() < len(self.menu)):
            raise IndexError(
                f"policy {self.policy.name!r} chose the rows {rows.min()} to {rows.max()}; the menu has 0 to"
                f" {len(self.menu) - 1}"
            )
        reason = np.array(choice.reason)
        base = len(choice.reasons)
        allowed = self._allowed(vetoed)
        if allowed is not None:
            barred = ~(allowed[rows] if allowed.ndim == 1 else np.take_along_axis(allowed, rows[:, None], 1)[:, 0])
            self._replace(np.flatnonzero(barred), clear, choice, allowed, rows)
            reason[barred] = base + _VETO
        if self._hysteresis and choice.price is not None:
            kept = self._hardly_better(clear, choice.price, rows, allowed)
            rows[kept] = clear.current[kept]
            reason[kept] = base + _SMALL
        if self._dwell_s:
            width = self.menu.width
            held = np.flatnonzero((width[rows] != width[clear.current]) & (clear.held_s < self._dwell_s))
            alike = width[None, :] == width[clear.current[held], None]
            bound = alike if allowed is None else alike & (allowed if allowed.ndim == 1 else allowed[held])
            usable = bound.any(axis=1)
            self._replace(held[usable], clear, choice, bound[usable], rows)
            reason[held[usable]] = base + _DWELL
        shielded = np.zeros(len(rows), np.bool_)
        if self._shields:
            shielded = self._shield(clear, allowed, rows, reason, base)
        done = clear.tokens_left <= 0.0
        if done.any():
            rows[done], reason[done], shielded[done] = OFF, base + _DONE, False
        return Decided(
            rows=rows, reasons=(*choice.reasons, *KERNEL_REASONS), reason=reason, shielded=shielded, wanted=choice
        )

    def explain(self, seen: Outlook, decided: Decided, job: int = 0) -> str:
        """Return why a job does what was decided, as a sentence; unknown figures are called so."""
        template = decided.reasons[int(decided.reason[job])]
        return explain(template, seen, decided.wanted, int(decided.rows[job]), self.menu.names(), job)

    def _allowed(self, vetoed: Allowed | None) -> Allowed | None:
        if vetoed is None or not vetoed.any():
            return None
        if vetoed.shape[-1] != len(self.menu):
            raise ConfigError(f"a veto covers {vetoed.shape[-1]} rows, but the menu has {len(self.menu)}")
        allowed = ~vetoed
        allowed[..., OFF] |= ~allowed.any(axis=-1)
        return allowed

    def _replace(self, jobs: Rows, seen: Outlook, choice: Choice, allowed: Allowed, rows: Rows) -> None:
        """Give jobs the best of the rows allowed: at their price, else the one whose speed is nearest to that wanted.

        Args:
            jobs: (k,) which.
            seen: All jobs.
            choice: Choice that the policy wanted.
            allowed: (m,), (k, m) or (n, m).
            rows: (n,) changed in place.
        """
        if not len(jobs):
            return
        if allowed.ndim == 2 and len(allowed) != len(jobs):
            allowed = allowed[jobs]
        speed, power = self.menu.tokens_per_s, self.menu.power_w
        loss = np.abs(speed[None, :] - speed[rows[jobs], None]) + 1e-9 * power
        if choice.price is not None:
            price = choice.price[jobs, None]
            cost = seen.epoch_g_per_kwh()[jobs, None] * power / J_PER_KWH
            with np.errstate(invalid="ignore"):
                at_price = np.where(np.isinf(price), -speed, cost - price * speed)
            loss = np.where(np.isnan(price), loss, at_price)
        rows[jobs] = np.where(allowed, loss, np.inf).argmin(axis=1)

    def _hardly_better(self, seen: Outlook, price: Array, rows: Rows, allowed: Allowed | None) -> NDArray[np.bool_]:
        """Return (n,) where the row in use costs almost as little as the chosen one, at the price of tokens.

        Also at the price that there is after it was kept: where only few hours can take the tokens that it leaves, they
        may be far dearer than the last ones that the plan counted on.
        """
        speed, power, current = self.menu.tokens_per_s, self.menu.power_w, seen.current
        intensity = seen.epoch_g_per_kwh() / J_PER_KWH

        def is_little(price: Array, jobs: slice | Rows) -> NDArray[np.bool_]:
            now, new, g = current[jobs], rows[jobs], intensity[jobs]
            with np.errstate(invalid="ignore"):
                gain = g * (power[now] - power[new]) - price * (speed[now] - speed[new])
                little: NDArray[np.bool_] = gain < self._hysteresis * g * power[self.menu.fastest]
            return little

        kept = is_little(price, slice(None))
        kept &= (rows != current) & (current != OFF)  # to go on is never too early: waiting longer saves nothing
        kept &= np.isfinite(price) & (price > 0.0)
        if allowed is not None:
            kept &= allowed[current] if allowed.ndim == 1 else np.take_along_axis(allowed, current[:, None], 1)[:, 0]
        jobs = np.flatnonzero(kept)
        if len(jobs) and (later := self.policy.choose(seen.after(jobs, speed[current])).price) is not None:
            kept[jobs] = is_little(later, jobs) | (
                later <= 0.0
            )  # at 0 the rows differ by when the job ends, not by how
        return kept

    def _shield(
        self, seen: Outlook, allowed: Allowed | None, rows: Rows, reason: NDArray[np.int64], base: int
    ) -> NDArray[np.bool_]:
        """Give jobs that would be late the slowest row of the hull that is in time, else the best there is."""
        needed = seen.tokens_left * (1.0 - ROUNDING)
        short: NDArray[np.bool_] = self.reach.tokens(seen, rows, allowed) < needed
        if not short.any():
            return short
        jobs = np.flatnonzero(short)
        can = self.reach.tokens_of_all(seen, jobs, allowed)
        usable = np.ones((1, len(self.menu)), bool) if allowed is None else np.atleast_2d(allowed)
        usable = np.broadcast_to(usable, can.shape) if len(usable) == 1 else usable[jobs]
        found = np.empty(len(jobs), np.int64)
        patterns, which = np.unique(usable, axis=0, return_inverse=True)
        for k, pattern in enumerate(patterns):
            mine = np.flatnonzero(which.reshape(-1) == k)
            hull = hull_rows(self.menu, pattern)
            keeps = can[np.ix_(mine, hull)] >= needed[jobs[mine], None]
            found[mine] = hull[keeps.argmax(axis=1)]
            late = ~keeps.any(axis=1)
            found[mine[late]] = self._soonest(can[mine[late]], pattern)
        reached = np.take_along_axis(can, found[:, None], axis=1)[:, 0]
        changed = found != rows[jobs]
        rows[jobs] = found
        reason[jobs[changed]] = base + np.where(reached >= needed[jobs], _SHIELD, _LATE)[changed]
        short[jobs[~changed]] = False
        return short

    def _soonest(self, can: Array, allowed: Allowed) -> Rows:
        """Return the rows that bring most by the deadline, of equals the fastest; (k, m) tokens that each may reach."""
        best = np.where(allowed, can, -np.inf)
        equal = best >= best.max(axis=1, keepdims=True) * (1.0 - ROUNDING)
        rows: Rows = np.where(equal, self.menu.tokens_per_s, -1.0).argmax(axis=1)
        return rows


def _bridged(values: Array) -> Array:
    """Return rows of values without NaN: the last known one holds; before the first known one, that."""
    known = np.isfinite(values)
    columns = np.arange(values.shape[1])
    last = np.maximum.accumulate(np.where(known, columns, -1), axis=1)
    first = np.where(known.any(axis=1), known.argmax(axis=1), 0)
    taken = np.where(last >= 0, last, first[:, None])
    filled = np.take_along_axis(values, taken, axis=1)
    return np.where(np.isfinite(filled), filled, 1.0)
