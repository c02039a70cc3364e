"""The best path of each job through the steps at given prices: a dynamic programme over all jobs side by side.

A path is off or in a form (pool and width) in each step. In a form the cheapest row is free to choose, so a step has
one cost a form, and four values at each step are enough, from the deadline on backwards: of being off at a place, of
being in a form and free to leave it, of starting in one, and of running until the end, which no shortest stay binds.

Jobs are aligned at their deadlines and sorted by the length of their windows, so that those that still have a step at a
level are the first ones: one loop over levels, and no work for steps outside of windows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from greentrain.policy.cluster.problem import OFF, Array, Problem, Row, Rows

Index = NDArray[np.intp]
_TIE: Final = 1e-12
"""Relative: values this close are of the same path."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """The best path of each job, in the order of the jobs asked for."""

    values: Array
    """(n,) cost at the prices, less the worth of the tokens (g)."""
    tokens: Array
    """(n,) done, what starts lose taken off."""
    job: Index
    """(k,) of the steps that are on: which job, as it was asked for."""
    step: Index
    """(k,) which step."""
    row: Rows
    """(k,) which row."""
    nodes: Array
    """(p, h) used by all."""
    watts: Array
    """(s, h) of IT, used by all."""

    def rows(self) -> Rows:
        """Return (n, h) rows; OFF: none."""
        rows = np.full((len(self.values), self.nodes.shape[1]), OFF, np.int64)
        rows[self.job, self.step] = self.row
        return rows


class Layout:
    """The jobs of a problem as arrays, made once for all searches: n jobs of r rows, in f forms of g gears.

    Args:
        problem: The problem.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem, jobs = problem, problem.jobs
        self.windows = np.array([problem.window(job) for job in jobs], dtype=np.intp).reshape(-1, 2)
        kinds = {id(job.rows): job.rows for job in jobs}  # many jobs may have one and the same
        number = {key: k for k, key in enumerate(kinds)}
        kind = np.array([number[id(job.rows)] for job in jobs], dtype=np.intp)
        shape = len(kinds), max((len(rows) for rows in kinds.values()), default=1)
        pool, form = np.zeros(shape, np.intp), np.zeros(shape, np.intp)
        nodes, power_w, speed, fastest = np.zeros(shape), np.zeros(shape), np.zeros(shape), np.zeros(shape)
        least_w, forms = problem.cap_w.min(), []
        for k, rows in enumerate(kinds.values()):
            found: dict[tuple[int, int], list[int]] = {}
            for i, row in enumerate(rows):
                pool[k, i], nodes[k, i] = problem.pool_index[row.pool], row.nodes
                power_w[k, i], speed[k, i] = row.power_w, row.tokens_per_s
                found.setdefault((int(pool[k, i]), row.nodes), []).append(i)
            for i, some in enumerate(found.values()):
                form[k, some], fastest[k, some] = i, speed[k, some].max()
            forms.append([_useful(rows, some, least_w) for some in found.values()])
        f = max((len(one) for one in forms), default=1)
        g = max((len(some) for one in forms for some in one), default=1)
        gears = np.array([[one[min(i, len(one) - 1)] for i in range(f)] for one in forms], dtype=object)
        row_of = [[[some[min(k, len(some) - 1)] for some in one] for one in gears] for k in range(g)]
        self.row = np.array(row_of, dtype=np.int64).reshape(g, -1, f).transpose(0, 2, 1)[:, :, kind]
        """(g, f, n) rows of the gears of each form."""
        self.forms = np.array([len(one) for one in forms], dtype=np.intp)[kind]
        """(n,) that each job has."""
        self.gears = np.array([max(map(len, one)) for one in forms], dtype=np.intp)[kind]
        self.sites = np.array([problem.site_index[one.site] for one in problem.pools], dtype=np.intp)
        """(p,)"""
        self.pool, self.site, self.nodes = pool[kind], self.sites[pool[kind]], nodes[kind]
        """(n, r) of each row; past a job's last they are 0."""
        self.power_w, self.speed, self.fastest = power_w[kind], speed[kind], fastest[kind]
        """(n, r), the last is of the form of the row."""
        self.current = np.array([OFF if job.current is None else job.current for job in jobs], dtype=np.intp)
        """(n,) row at the start of the plan."""
        self.form = np.where(self.current == OFF, OFF, form[kind, np.maximum(self.current, 0)])
        """(n,) of that row."""
        begins = [problem.place(job) for job in jobs]
        self.place = np.array([len(problem.sites) if place is None else place for place in begins], dtype=np.intp)
        """(n,) site that each begins from without moving; the number of sites: any."""
        names = ("tokens", "priority", "switch_s", "switch_g", "move_s", "move_g", "min_run_s", "held_s")
        table = np.array([[getattr(job, name) for name in names] for job in jobs], dtype=np.float64).reshape(-1, 8)
        self.tokens, self.priority, self.switch_s, self.switch_g, self.move_s, self.move_g, self.stay_s, held_s = (
            table.T
        )
        self.left_s = np.where(self.current == OFF, 0.0, np.maximum(0.0, self.stay_s - held_s))
        """(n,) that each has to stay in the form that it is in."""

    def of(self, job: "int | Index", row: "Rows | Index") -> tuple[Index, Array, Index, Array]:
        """Return pools, nodes, sites and watts of rows of jobs."""
        return self.pool[job, row], self.nodes[job, row], self.site[job, row], self.power_w[job, row]


class Paths:
    """Some jobs, laid out for the search.

    Args:
        layout: The jobs of the problem.
        jobs: Indices of jobs; one may be there more than once.
        late: Whether windows last until the end of the problem, past deadlines.
    """

    def __init__(self, layout: Layout, jobs: "Sequence[int] | Index", *, late: bool = False) -> None:
        self._layout, self._problem = layout, layout.problem
        problem, steps = layout.problem, layout.problem.steps
        some = np.asarray(jobs, dtype=np.intp)
        windows = layout.windows[some]
        ends = np.full(len(some), steps) if late else windows[:, 1]
        size = ends - windows[:, 0]
        self._order = np.argsort(-size, kind="stable")
        self.size, self._end, self._job = size[self._order], ends[self._order], some[self._order]
        size, n, levels = self.size, len(some), int(size.max(initial=0))
        alive = np.searchsorted(-size, -np.arange(levels + 1), side="right")  # jobs with so many steps or more
        alive[0] = n
        self._base = np.concatenate([[0], np.cumsum(alive)])
        self._alive = alive
        level = np.repeat(np.arange(levels + 1), alive)
        self._rank = np.arange(level.size) - self._base[level]
        self._level = level
        self._then = np.where(level > 0, self._base[level - 1] + self._rank, np.arange(level.size))
        self.step = np.minimum(self._end[self._rank] - level, steps - 1)
        self._forms()
        self._stays()
        self._at_pool = np.take(self.pool, self._rank, axis=1) * steps + self.step
        self._at_site = np.take(self.site, self._rank, axis=1) * steps + self.step
        self._flat_nodes = np.take(self.width, self._rank, axis=1)
        self._flat_w = np.take(self.power_w, self._rank, axis=2)
        self._flat_tokens = np.take(self.speed, self._rank, axis=2) * problem.length_s[self.step]

    def _forms(self) -> None:
        at, job = self._layout, self._job
        f, g = int(at.forms[job].max(initial=1)), int(at.gears[job].max(initial=1))
        self.row = at.row[:g, :f, job]
        self.pool, self.width, self.site, _ = at.of(job, self.row[0])
        self.power_w, self.speed = at.power_w[job, self.row], at.speed[job, self.row]
        self._real = np.arange(f)[:, None] < at.forms[job]
        self._current, self._place = at.form[job], at.place[job]
        places = len(self._problem.sites) + 1
        moves = (np.arange(places)[:, None, None] != self.site) & (np.arange(places) < places - 1)[:, None, None]
        several = places > 2 and bool((moves & self._real).any())
        self._places = places if several else 1
        moves = moves[: self._places] if several else np.zeros((1, *self.site.shape), bool)
        if not several:
            self._place = np.zeros(len(job), np.intp)
        self._lost = at.fastest[job, self.row[0]] * (at.switch_s[job] + moves * at.move_s[job])
        self._starts_g = at.switch_g[job] + moves * at.move_g[job]

    def _stays(self) -> None:
        edges, near = self._problem.edges_s, 1e-6
        stay_s, left_s = self._layout.stay_s[self._job], self._layout.left_s[self._job]
        self._stay = None
        if stay_s.max(initial=0) > self._problem.length_s.min() or left_s.any():
            after = np.searchsorted(edges, edges[self.step] + stay_s[self._rank] - near) - self.step
            self._stay = np.clip(after, 1, np.maximum(self._level, 1))
        self._left = np.minimum(np.searchsorted(edges, edges[0] + left_s - near), self.size)
        self._left[left_s <= 0] = 0

    def blocked(self, nodes: Array, watts: Array, own: "tuple[Array, Array] | None" = None) -> list[Index]:
        """Return for each place of a row in its form the flat (f, m) indices where it does not fit into what is free.

        Args:
            nodes: (p, h) free.
            watts: (s, h) of IT, free.
            own: (n, p, h) and (n, s, h) that are free to each job besides, as asked for.
        """
        free, free_w = nodes.ravel()[self._at_pool], watts.ravel()[self._at_site]
        if own is not None:
            mine = self._order[self._rank]
            free = free + own[0].reshape(len(own[0]), -1)[mine, self._at_pool]
            free_w = free_w + own[1].reshape(len(own[1]), -1)[mine, self._at_site]
        fits = (self._flat_nodes <= free) & np.take(self._real, self._rank, axis=1)
        return [np.flatnonzero(~(fits & (power_w <= free_w))) for power_w in self._flat_w]

    def best(self, nodes: Array, g_per_w: Array, tokens: Array, blocked: list[Index]) -> Found:
        """Return the best paths.

        Args:
            nodes: (p, h) price of a node for a step (g).
            g_per_w: (s, h) grams of a watt for a step, with its price.
            tokens: (n,) worth of a token of each job (g).
            blocked: What may not be used, from :meth:`blocked`.
        """
        mu = np.asarray(tokens, dtype=np.float64)[self._order]
        cost, gear = self._costs(nodes, g_per_w, mu, blocked)
        start = self._starts_g + mu * self._lost  # (places, f, n)
        values, trail = self._backward(cost, start)
        on, form, begun = self._forward(cost, start, *trail)
        return self._told(values, on, form, gear, begun)

    def least(self, nodes: Array, watts: Array, tokens: Sequence[Array], blocked: list[Index]) -> list[Array]:
        """Return for each worth of tokens (n,) what no path costs less than, less that worth (g).

        A job emits only until its tokens are done, within its last step, where it holds nodes and watts to the end. So
        a last step costs what it holds, and any part of its grams less the worth of its tokens: none if they are more.

        Args:
            nodes: (p, h) price of a node for a step (g).
            watts: (s, h) price of a watt for a step (g).
            tokens: Some (n,) worths of a token of each job (g).
            blocked: What may not be used, from :meth:`blocked`.
        """
        held = np.full(self._at_site.shape, np.inf)
        for power_w, out in zip(self._flat_w, blocked, strict=True):
            one = power_w * watts.ravel()[self._at_site]
            one.ravel()[out] = np.inf
            np.minimum(held, one, out=held)
        held += self._flat_nodes * nodes.ravel()[self._at_pool]
        found = []
        for worth in tokens:
            mu, values = np.asarray(worth, dtype=np.float64)[self._order], np.empty(len(self.size))
            cost, _ = self._costs(nodes, self._problem.g_per_w + watts, mu, blocked)
            values[self._order], _ = self._backward(cost, self._starts_g + mu * self._lost, np.minimum(cost, held))
            found.append(values)
        return found

    def _costs(self, nodes: Array, g_per_w: Array, mu: Array, blocked: list[Index]) -> tuple[Array, NDArray[np.int8]]:
        """Return (f, m) cost of each step by form, inf where no row fits, and which row that is."""
        watt = g_per_w.ravel()[self._at_site]
        worth = mu[self._rank]
        best, gear = np.empty(0), np.zeros(watt.shape, np.int8)
        for k, out in enumerate(blocked):
            one = self._flat_w[k] * watt
            one -= self._flat_tokens[k] * worth
            one.ravel()[out] = np.inf
            if k == 0:
                best = one
            else:
                np.putmask(gear, one < best, k)
                np.minimum(best, one, out=best)
        if nodes.any():
            best += self._flat_nodes * nodes.ravel()[self._at_pool]
        return best, gear

    def _backward(
        self, cost: Array, start: Array, end: Array | None = None
    ) -> tuple[Array, tuple[Array, Array, Array, Array, NDArray[np.bool_]]]:
        """Return (n,) values, and of all steps those of going on, on until the end, begun, off; and who ends held.

        Without shortest stays no path is better on until its end than free to leave, so that is left out.

        Args:
            cost: (f, m) of each step by form.
            start: (places, f, n) of starts.
            end: (f, m) of a step in which a job ends, at most that of ``cost``; None: the same.
        """
        f, m = cost.shape
        stay, base = self._stay, self._base
        on, ahead, off = np.zeros((f, m)), np.zeros((f, m)), np.zeros((self._places, m))
        new = ahead if stay is None and end is None else np.zeros((f, m))
        last = ahead if stay is None else np.zeros((f, m))
        if stay is not None:
            open_ = np.isfinite(cost)
            total, blocked = np.zeros((f, m)), np.zeros((f, m), np.int32)
            filled = np.where(open_, cost, 0.0)
        for level in range(1, len(self._alive)):
            n = self._alive[level]
            a, p = base[level], base[level - 1]
            now, then = slice(a, a + n), slice(p, p + n)
            c, fresh = cost[:, now], new[:, now]
            goes = np.add(c, on[:, then], out=ahead[:, now])
            if stay is None:
                if end is not None:
                    np.minimum(goes, end[:, now], out=fresh)
            else:
                last[:, now] = np.minimum(c + last[:, then], c if end is None else end[:, now])
                total[:, now] = filled[:, now] + total[:, then]
                blocked[:, now] = blocked[:, then] + ~open_[:, now]
                to = base[level - stay[now]] + np.arange(n)
                jump = total[:, now] - total[:, to] + on[:, to]
                jump[blocked[:, now] != blocked[:, to]] = np.inf
                np.minimum(jump, last[:, now], out=fresh)
            if self._places == 1:
                np.minimum(off[0, then], (fresh + start[0, :, :n]).min(axis=0), out=off[0, now])
                np.minimum(goes, off[0, now], out=on[:, now])
            else:
                np.minimum(off[:, then], (fresh + start[:, :, :n]).min(axis=1), out=off[:, now])
                np.minimum(goes, off[self.site[:, :n], np.arange(a, a + n)], out=on[:, now])
            if end is not None:
                np.minimum(on[:, now], end[:, now], out=on[:, now])
        n = len(self.size)
        top = base[self.size] + np.arange(n)
        values, ending = off[self._place, top], np.zeros(n, bool)
        running = np.flatnonzero((self._current != OFF) & (self.size > 0))
        if running.size:
            i, at, left = self._current[running], top[running], self._left[running]
            best = on[i, at]
            if stay is not None:
                to = base[self.size[running] - left] + running
                whole = total[i, at] - total[i, to] + on[i, to]
                whole[blocked[i, at] != blocked[i, to]] = np.inf
                ending[running] = (left > 0) & ((last[i, at] < whole) | np.isinf(whole))
                best = np.where(left > 0, np.minimum(last[i, at], whole), best)
            values[running] = np.where(np.isfinite(cost[i, at]), best, values[running])
        return values, (ahead, last, new, off, ending)

    def _forward(
        self, cost: Array, start: Array, ahead: Array, last: Array, new: Array, off: Array, ending: NDArray[np.bool_]
    ) -> tuple[Index, Index, Array]:
        """Return (k,) cells that are on, their forms, and (n,) tokens that starts lost.

        All jobs go from step to step side by side: who is in a form stays while that is best, or it must; who is off
        begins where that is better than to wait. Form 0 is off here.
        """
        (f, m), stay, several, base = ahead.shape, self._stay, self._places > 1, self._base
        mine = off[self.site[:, self._rank], np.arange(m)] if several else off
        keep = np.zeros((f + 1, m), bool)
        np.less_equal(ahead, mine + _TIE * np.abs(mine), out=keep[1:])
        begin, (place, cell) = np.zeros(off.shape, np.intp), np.nonzero(off < off[:, self._then])
        begin[place, cell] = (new[:, cell] + start[place, :, self._rank[cell]].T).argmin(axis=0) + 1
        form, at_place = np.where((self._current != OFF) & (self.size > 0), self._current + 1, 0), self._place.copy()
        on = np.flatnonzero(form)
        form[on] *= np.isfinite(cost[form[on] - 1, (base[self.size] + np.arange(len(form)))[on]])
        forms, kept, places = np.zeros(m, np.intp), np.zeros(m, bool), np.zeros(m, np.intp)
        until, ends, over = self.size - self._left, ending & (form > 0), np.zeros(len(form), bool)
        for level in range(len(self._alive) - 1, 0, -1):
            n, a = self._alive[level], base[level]
            now, cells = slice(a, a + n), np.arange(a, a + n)
            was, stays = form[:n], keep.take(form[:n] * m + cells)
            if stay is not None:
                stays = np.where(was > 0, ends[:n] | (until[:n] < level) | stays, over[:n])
            to = np.where(stays, was, begin.take(at_place[:n] * m + cells) if several else begin[0, now])
            forms[now], kept[now] = to, stays
            if stay is not None:
                some = np.flatnonzero(~stays & (to > 0))
                at, i = a + some, to[some] - 1
                until[some] = level - stay[at]
                ends[some] = last[i, at] <= new[i, at]
                over[:n] |= ends[:n] & (last[to - 1, base[level - 1] + np.arange(n)] >= 0)
                ends[:n] &= ~over[:n]
                to = to * ~over[:n]
            if several:
                places[now] = at_place[:n]
                at_place[:n] = np.where(to > 0, self.site[to - 1, np.arange(n)], at_place[:n])
            form[:n] = to
        fresh, runs = np.flatnonzero(~kept & (forms > 0)), np.flatnonzero(forms)
        job = self._rank[fresh]
        lost: Array = np.bincount(job, self._lost[places[fresh], forms[fresh] - 1, job], len(form)).astype(np.float64)
        return runs, forms[runs] - 1, lost

    def _told(self, values: Array, on: Index, i: Index, gear: NDArray[np.int8], lost: Array) -> Found:
        n, h = len(self.size), self._problem.steps
        b, step, k = self._rank[on], self.step[on], gear[i, on]
        done = np.bincount(b, self.speed[k, i, b] * self._problem.length_s[step], n) - lost
        back_values, tokens = np.empty(n), np.empty(n)
        back_values[self._order], tokens[self._order] = values, done
        pools, sites = len(self._problem.pools), len(self._problem.sites)
        return Found(
            values=back_values,
            tokens=tokens,
            job=self._order[b],
            step=step,
            row=self.row[k, i, b],
            nodes=_summed(self.pool[i, b] * h + step, self.width[i, b], pools, h),
            watts=_summed(self.site[i, b] * h + step, self.power_w[k, i, b], sites, h),
        )


def _summed(at: Index, values: Array, n: int, h: int) -> Array:
    return np.bincount(at, values, n * h).astype(np.float64).reshape(n, h)


def _useful(rows: Sequence[Row], some: list[int], least_w: float) -> list[int]:
    """Return the rows of a form that can be best at some prices: the lower hull of (tokens/s, W).

    A cap that some row does not fit under may make any of the others best; then all are.
    """
    if max(rows[i].power_w for i in some) > least_w:
        return some
    hull: list[int] = []
    for i in sorted(some, key=lambda i: (rows[i].tokens_per_s, -rows[i].power_w)):
        speed, power_w = rows[i].tokens_per_s, rows[i].power_w
        while hull and rows[hull[-1]].power_w >= power_w:
            hull.pop()
        while len(hull) > 1:
            a, b = rows[hull[-2]], rows[hull[-1]]
            slope = (b.power_w - a.power_w) / (b.tokens_per_s - a.tokens_per_s)
            if (power_w - b.power_w) / (speed - b.tokens_per_s) > slope:
                break
            hull.pop()
        hull.append(i)
    return hull
