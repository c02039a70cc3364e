"""The whole plan of one job whose changes of width cost time, one row a column, and how far from the best it may be.

Just below and just above the best price the dynamic programme takes widths that bring too few tokens and enough. A plan
may also follow one of them up to a column and the other from there on. Given widths, the rows are chosen again so that
the tokens are just reached; the cheapest plan is returned. The dual's value bounds every plan from below, so the gap to
it is measured, not promised.
"""

import itertools
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from greentrain.errors import ConfigError
from greentrain.policy.menu import OFF, hours_up
from greentrain.policy.switching import Beginning, Costs, JobsOnGrid, Switching
from greentrain.policy.waterfill import find_edge
from greentrain.types import J_PER_KWH, S_PER_HOUR

Array = NDArray[np.float64]
Rows = NDArray[np.int64]

_BESIDE: Final = (-3e-2, -1e-2, -1e-3, -1e-4, -1e-6, 1e-6, 1e-4, 1e-3, 1e-2, 3e-2)
"""Prices whose widths are tried, relative to the best one."""
_SPLICES: Final = 4
"""Columns at which a plan may go over from one path to another, on either side."""
_WITHIN: Final = 1e-7
"""Relative width of the bracket of the best price."""
_EXACT: Final = 1e-9
"""Share of tokens that is rounding."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SwitchPlan:
    """A plan with one row a column. After the last column at work the job has ended, and nothing is held."""

    rows: Rows
    """(h,)"""
    tokens: float
    """What they bring, losses by changes counted."""
    grams: float
    """Of IT power."""
    changes: int
    """Of width, those to off and back among them."""
    price: float
    """Of a token (g)."""
    bound_g: float
    """No plan emits less."""

    @property
    def gap(self) -> float:
        """By how much the plan may be worse than the best one, as a share of the bound."""
        return self.grams / self.bound_g - 1.0 if self.bound_g > 0 else 0.0


def plan_switching(
    switching: Switching,
    g_per_kwh: Array,
    weights_s: Array,
    tokens: float,
    *,
    current: int = OFF,
    held_s: float = np.inf,
) -> SwitchPlan:
    """Return a plan for a known grid.

    Args:
        switching: The menu and the costs of changes.
        g_per_kwh: (h,) intensity of each column.
        weights_s: (h,) time in each column until the deadline (s).
        tokens: To be done.
        current: Row in use until now.
        held_s: Since the width last changed (s).

    Raises:
        ConfigError: An intensity is not known, tokens is not above 0, or the tokens cannot be done in time; the message
            then says by when they can.
    """
    g, weights_s = np.asarray(g_per_kwh, dtype=np.float64), np.asarray(weights_s, dtype=np.float64)
    if not np.isfinite(g).all() or not tokens > 0:
        raise ConfigError(
            f"a plan needs known intensities and tokens above 0; {np.count_nonzero(~np.isfinite(g))} of {g.size}"
            f" columns are not known, and tokens is {tokens:g}"
        )
    job = _Job(switching, g, weights_s, tokens, current, held_s)
    best = switching.first(
        g[None], weights_s[None], job.state.tokens, np.array([current]), job.state.held_s, within=_WITHIN
    )
    price = float(best.price[0])
    prices = price * (1 + np.array(_BESIDE)) if np.isfinite(price) else np.zeros(0)
    paths = job.paths(prices)
    paths += [job.hurry(), *job.spliced(paths, price)]
    tried = [taken for path in paths if (taken := job.taken(path, price)) is not None]
    if not tried:
        raise ConfigError(
            f"{tokens:g} tokens cannot be done in the {weights_s.sum() / S_PER_HOUR:.6g} h until the deadline, as a"
            f" change of width costs {switching.rules.switch_s:g} s and a width is held for"
            f" {switching.rules.dwell_s:g} s. The earliest feasible deadline is"
            f" {job.shortest_s():.0f} s ({hours_up(job.shortest_s())}) after the start:"
            " raise policy.deadline_h, or lower policy.tokens"
        )
    plan = min(tried, key=lambda taken: taken.grams)
    ran = int(np.max(np.flatnonzero(plan.rows != OFF), initial=-1)) + 1
    widths = switching.menu.width[np.concatenate([[current], plan.rows[:ran]])]
    return SwitchPlan(
        rows=plan.rows,
        tokens=plan.tokens,
        grams=plan.grams,
        changes=int(np.count_nonzero(np.diff(widths))),
        price=price,
        bound_g=float(best.bound_g[0]),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Path:
    """Widths of h columns."""

    at: Rows
    """(h,) index of the width."""
    lost_s: Array
    """(h,) time that changes lose."""
    used_s: Array
    """(h,) time in each column; 0 where the job has ended."""


@dataclass(frozen=True, slots=True, eq=False)
class _Taken:
    """Rows of a path."""

    rows: Rows
    tokens: float
    grams: float


class _Job:
    def __init__(
        self, switching: Switching, g: Array, weights_s: Array, tokens: float, current: int, held_s: float
    ) -> None:
        self._widths, self._rules, self._menu = switching.widths, switching.rules, switching.menu
        self._g, self._weights_s, self._tokens = g, weights_s, tokens
        self.state = JobsOnGrid(
            g=g[None],
            weights_s=weights_s[None],
            tokens=np.array([tokens]),
            width=np.searchsorted(self._widths.width, self._menu.width[[current]]),
            held_s=np.array([held_s]),
        )

    def paths(self, prices: Array) -> list[_Path]:
        """Return the best widths at each of some prices."""
        if not prices.size:
            return []
        costs = Costs.of(self._widths, self._rules, self.state.g, self.state.weights_s, prices[None])
        begin = Beginning.of(self._widths, self._rules, self.state, prices[None], costs)
        return [self._path(costs, begin, i) for i in range(prices.size)]

    def spliced(self, paths: list[_Path], price: float) -> list[_Path]:
        """Return paths that begin as one of two and go on as the other, with about the tokens wanted.

        Args:
            paths: By price.
            price: At which their rows are chosen.
        """
        tokens = [self._tokens_by_column(path, price) for path in paths]
        few = [i for i, some in enumerate(tokens) if some.sum() < self._tokens]
        enough = [i for i, some in enumerate(tokens) if some.sum() >= self._tokens]
        found: list[_Path] = []
        if few and enough:
            for a, b in ((few[-1], enough[0]), (enough[0], few[-1])):
                before = np.concatenate([[0.0], np.cumsum(tokens[a])])
                after = np.concatenate([np.cumsum(tokens[b][::-1])[::-1], [0.0]])
                near = np.argsort(np.abs(before + after - self._tokens), kind="stable")
                some = (self._splice(paths[a], paths[b], int(k)) for k in near)
                found += itertools.islice((path for path in some if path is not None), _SPLICES)
        return found

    def hurry(self) -> _Path:
        """Return the way to be done soonest: at the fastest width as soon as it may be taken, or where the job is."""
        h, w = len(self._g), int(self.state.width[0])
        fastest = int(np.argmax(self._widths.speed.max(axis=1)))
        free = min(int(self._rules.bound(self.state.held_s)[0]), h)
        paths = [self._begun(w, h), self._begun(w, free)]
        self._change(paths[1], free, fastest, h)
        return max(paths, key=lambda path: self._taken(path, np.inf).tokens)

    def taken(self, path: _Path, guess: float) -> _Taken | None:
        """Return the rows that just reach the tokens with a path's widths; None if none do."""
        most = self._taken(path, np.inf).tokens
        if most < self._tokens * (1 - _EXACT):
            return None
        guess = guess if np.isfinite(guess) else float(self._g.mean()) / J_PER_KWH
        edge = find_edge(lambda price: self._taken(path, price), min(self._tokens, most), guess)
        rows, missing = edge.low.rows.copy(), self._tokens * (1 - _EXACT) - edge.low.tokens
        useful_s = np.maximum(path.used_s - path.lost_s, 0.0)
        gain = (self._menu.tokens_per_s[edge.high.rows] - self._menu.tokens_per_s[rows]) * useful_s
        for k in np.flatnonzero(gain > 0):
            if missing <= 0:
                break
            rows[k], missing = edge.high.rows[k], missing - gain[k]
        return self._count(path, rows)

    def shortest_s(self) -> float:
        """Return by when the job can be done (s)."""
        w, speeds = int(self.state.width[0]), self._widths.speed.max(axis=1)
        held_s = float(self.state.held_s[0])
        wait_s = max(self._rules.dwell_s - held_s, 0.0)
        pending_s = max(self._rules.switch_s - held_s, 0.0)
        stay_s = pending_s + self._tokens / speeds[w] if speeds[w] > 0 else np.inf
        before = speeds[w] * max(wait_s - pending_s, 0.0)
        return float(min(stay_s, wait_s + self._rules.switch_s + max(self._tokens - before, 0.0) / speeds.max()))

    def _path(self, costs: Costs, begin: Beginning, i: int) -> _Path:
        h, w = len(self._g), int(self.state.width[0])
        bound = int(begin.bound[0])
        enter, left = costs.enter[:, :, 0, i], costs.left[:, :, 0, i]
        k = bound
        stay = float(begin.stay[0, i])
        if bound == 0 and stay <= min(float(enter[0].min()), 0.0):
            k = 1
        path = self._begun(w, k)
        while k < h:
            if k:
                stay = float(costs.stay[k, w, 0, i] + left[k + 1, w])
            to = int(enter[k].argmin())
            if min(stay, float(enter[k, to])) >= 0.0:
                break
            if stay <= enter[k, to]:
                path.at[k], path.used_s[k] = w, self._weights_s[k]
                k += 1
                continue
            until = min(k + self._rules.held, h)
            self._change(path, k, to, until)
            k, w = until, to
        return path

    def _splice(self, first: _Path, then: _Path, at: int) -> _Path | None:
        """Return a path that goes over to another one at a column; None where a width would be held too shortly."""
        wanted = np.concatenate([first.at[:at], then.at[at:]])
        used_s = np.concatenate([first.used_s[:at], then.used_s[at:]])
        worked = np.flatnonzero(used_s)
        if not worked.size or worked[-1] + 1 != worked.size:
            return None  # it ends and goes on, or does nothing
        held, h = self._rules.held, len(wanted)
        starts = [int(k) + 1 for k in np.flatnonzero(np.diff(wanted[: worked.size]))]
        w, bound = int(self.state.width[0]), int(self._rules.bound(self.state.held_s)[0])
        if wanted[0] != w:
            starts.insert(0, 0)
        path = self._begun(w, starts[0] if starts else worked.size)
        for k, until in itertools.pairwise([*starts, worked.size]):
            if k < bound or (until - k < held and until < h):
                return None
            self._change(path, k, int(wanted[k]), until)
        return path

    def _begun(self, width: int, until: int) -> _Path:
        """Return a path that keeps its first width until a column and ends there."""
        h = len(self._g)
        path = _Path(np.zeros(h, dtype=np.int64), np.zeros(h), np.zeros(h))
        path.at[:until], path.used_s[:until] = width, self._weights_s[:until]
        if self._widths.width[width] > 0:
            pending_s = max(self._rules.switch_s - float(self.state.held_s[0]), 0.0)
            lost_s = np.clip(pending_s - np.arange(until) * self._rules.step_s, 0.0, self._rules.step_s)
            path.lost_s[:until] = lost_s
        return path

    def _change(self, path: _Path, k: int, to: int, until: int) -> None:
        """Let a path change its width at a column and keep it until another one."""
        path.at[k:until], path.used_s[k:until] = to, self._weights_s[k:until]
        if self._widths.width[to] > 0:
            lost = [self._rules.lost_s(j) for j in range(until - k)]
            path.lost_s[k:until] = lost

    def _tokens_by_column(self, path: _Path, price: float) -> Array:
        rows = self._taken(path, price).rows
        return np.asarray(self._menu.tokens_per_s[rows] * np.maximum(path.used_s - path.lost_s, 0.0))

    def _taken(self, path: _Path, price: float) -> _Taken:
        widths, useful_s = self._widths, np.maximum(path.used_s - path.lost_s, 0.0)
        if np.isinf(price):
            best = np.argmax(widths.speed[path.at] * useful_s[:, None], axis=1)
        else:
            cost = widths.cost(self._g, path.used_s, path.lost_s, np.asarray(price), path.at)
            best = cost.argmin(axis=1)
        return self._count(path, np.where(path.used_s > 0, widths.rows[path.at, best], OFF))

    def _count(self, path: _Path, rows: Rows) -> _Taken:
        useful_s = np.maximum(path.used_s - path.lost_s, 0.0)
        tokens = float(self._menu.tokens_per_s[rows] @ useful_s)
        ran = np.arange(len(rows)) <= np.max(np.flatnonzero(rows != OFF), initial=-1)
        grams = float((self._menu.power_w[rows] * ran) @ (self._g * self._weights_s)) / J_PER_KWH
        return _Taken(rows, tokens, grams)
