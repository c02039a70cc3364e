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

from greentrain.policy.cluster.problem import OFF, Array, ClusterJob, Problem, Row, Rows

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


class Paths:
    """The jobs of a problem, laid out for the search.

    Args:
        problem: The problem.
        jobs: Indices of jobs; one may be there more than once.
        late: Whether windows last until the end of the problem, past deadlines.
    """

    def __init__(self, problem: Problem, jobs: Sequence[int], *, late: bool = False) -> None:
        self._problem, self._jobs = problem, jobs
        some = [problem.jobs[j] for j in jobs]
        windows = np.array([problem.window(job) for job in some], dtype=np.intp).reshape(-1, 2)
        if late:
            windows[:, 1] = problem.steps
        size = windows[:, 1] - windows[:, 0]
        self._order = np.argsort(-size, kind="stable")
        size, self._end = size[self._order], windows[self._order, 1]
        some = [some[i] for i in self._order]
        self.size, n, levels = size, len(some), int(size.max(initial=0))
        alive = np.searchsorted(-size, -np.arange(levels + 1), side="right")  # jobs with so many steps or more
        alive[0] = n
        self._base = np.concatenate([[0], np.cumsum(alive)])
        self._alive = alive
        level = np.repeat(np.arange(levels + 1), alive)
        self._rank = np.arange(level.size) - self._base[level]
        self._level = level
        self.step = np.minimum(self._end[self._rank] - level, problem.steps - 1)
        self._forms(some)
        self._stays(some)
        self._at_pool = np.take(self.pool, self._rank, axis=1) * problem.steps + self.step
        self._at_site = np.take(self.site, self._rank, axis=1) * problem.steps + self.step
        self._flat_nodes = np.take(self.width, self._rank, axis=1)
        self._flat_w = np.take(self.power_w, self._rank, axis=2)
        self._flat_tokens = np.take(self.speed, self._rank, axis=2) * problem.length_s[self.step]

    def _forms(self, some: list[ClusterJob]) -> None:
        problem = self._problem
        forms = []
        for job in some:
            found: dict[tuple[int, int], list[int]] = {}
            for i, row in enumerate(job.rows):
                found.setdefault(_form(problem, row), []).append(i)
            least_w = problem.cap_w.min()
            forms.append({form: _useful(job.rows, rows, least_w) for form, rows in found.items()})
        n = len(some)
        f = max((len(one) for one in forms), default=1)
        g = max((len(rows) for one in forms for rows in one.values()), default=1)
        self.pool, self.width = np.zeros((f, n), np.intp), np.zeros((f, n))
        self.power_w, self.speed, self.row = np.zeros((g, f, n)), np.zeros((g, f, n)), np.zeros((g, f, n), np.int64)
        self._real = np.zeros((f, n), bool)
        self._current = np.full(n, OFF)
        for b, (job, one) in enumerate(zip(some, forms, strict=True)):
            for i, ((pool, width), rows) in enumerate(one.items()):
                self._real[i, b], self.pool[i, b], self.width[i, b] = True, pool, width
                for k in range(g):
                    index = rows[min(k, len(rows) - 1)]
                    self.row[k, i, b] = index
                    self.power_w[k, i, b], self.speed[k, i, b] = job.rows[index].power_w, job.rows[index].tokens_per_s
                if job.current is not None and (pool, width) == _form(problem, job.rows[job.current]):
                    self._current[b] = i
        sites = np.array([problem.site_index[pool.site] for pool in problem.pools], dtype=np.intp)
        self.site = sites[self.pool]
        places = len(problem.sites) + 1
        begins = [problem.place(job) for job in some]
        self._place = np.array([places - 1 if place is None else place for place in begins], np.intp)
        fastest = self.speed.max(axis=0)
        moves = (np.arange(places)[:, None, None] != self.site) & (np.arange(places) < places - 1)[:, None, None]
        several = places > 2 and bool((moves & self._real).any())
        self._places = places if several else 1
        moves = moves[: self._places] if several else np.zeros((1, *self.site.shape), bool)
        if not several:
            self._place = np.zeros(n, np.intp)
        switch_s, move_s = np.array([job.switch_s for job in some]), np.array([job.move_s for job in some])
        switch_g, move_g = np.array([job.switch_g for job in some]), np.array([job.move_g for job in some])
        self._lost = fastest * (switch_s + moves * move_s)
        self._starts_g = switch_g + moves * move_g

    def _stays(self, some: list[ClusterJob]) -> None:
        edges = self._problem.edges_s
        least_s = np.array([job.min_run_s for job in some])
        self._stay = None
        if len(some) and least_s.max() > self._problem.length_s.min():
            near = 1e-6
            after = np.searchsorted(edges, edges[self.step] + least_s[self._rank] - near) - self.step
            self._stay = np.clip(after, 1, np.maximum(self._level, 1))
        left_s = np.array([0.0 if job.current is None else max(0.0, job.min_run_s - job.held_s) for job in some])
        self._left = np.minimum(np.searchsorted(edges, edges[0] + left_s - 1e-6), self.size)
        self._left[left_s <= 0] = 0

    def blocked(self, nodes: Array, watts: Array, own: "Rows | None" = None) -> list[Index]:
        """Return for each place of a row in its form the flat (f, m) indices where it does not fit into what is free.

        Args:
            nodes: (p, h) free.
            watts: (s, h) of IT, free.
            own: (n, h) rows that the jobs have now, which are free to each of them besides.
        """
        free, free_w = nodes.ravel()[self._at_pool], watts.ravel()[self._at_site]
        if own is not None:
            row = own[self._order[self._rank], self.step]
            on = np.flatnonzero(row != OFF)
            b = self._order[self._rank[on]]
            pool, width, site, power_w = (table[b, row[on]] for table in tables(self._problem, self._jobs))
            free[:, on] += width * (self.pool[:, self._rank[on]] == pool)
            free_w[:, on] += power_w * (self.site[:, self._rank[on]] == site)
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
        form, begun = self._forward(cost, start, *trail)
        return self._told(values, form, gear, begun)

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
    ) -> tuple[Array, tuple[Array, Array, Array, Array]]:
        """Return (n,) values, and those of all steps: on and free, on until the end, begun, off.

        Args:
            cost: (f, m) of each step by form.
            start: (places, f, n) of starts.
            end: (f, m) of a step in which a job ends, at most that of ``cost``; None: the same.
        """
        f, m = cost.shape
        on, last, new = np.zeros((f, m)), np.zeros((f, m)), np.full((f, m), np.inf)
        off = np.zeros((self._places, m))
        stay, base = self._stay, self._base
        total = blocked = None
        if stay is not None:
            open_ = np.isfinite(cost)
            total, blocked = np.zeros((f, m)), np.zeros((f, m), np.int32)
            filled = np.where(open_, cost, 0.0)
        for level in range(1, len(self._alive)):
            n = self._alive[level]
            a = base[level]
            now, then = slice(a, a + n), slice(base[level - 1], base[level - 1] + n)
            c = cost[:, now]
            ahead = c + on[:, then]
            ends = c if end is None else end[:, now]
            last[:, now] = np.minimum(c + last[:, then], ends)
            if stay is None:
                jump = ahead
            else:
                assert total is not None and blocked is not None
                total[:, now] = filled[:, now] + total[:, then]
                blocked[:, now] = blocked[:, then] + ~open_[:, now]
                to = base[level - stay[now]] + np.arange(n)
                jump = total[:, now] - total[:, to] + on[:, to]
                jump[blocked[:, now] != blocked[:, to]] = np.inf
            fresh = np.minimum(jump, last[:, now])
            new[:, now] = fresh
            if self._places == 1:
                np.minimum(off[0, then], (fresh + start[0, :, :n]).min(axis=0), out=off[0, now])
                on[:, now] = np.minimum(ahead, off[0, now])
            else:
                np.minimum(off[:, then], (fresh + start[:, :, :n]).min(axis=1), out=off[:, now])
                on[:, now] = np.minimum(ahead, off[self.site[:, :n], np.arange(a, a + n)])
            if end is not None:
                np.minimum(on[:, now], ends, out=on[:, now])
        n = len(self.size)
        top = base[self.size] + np.arange(n)
        values = off[self._place, top]
        running = np.flatnonzero((self._current != OFF) & (self.size > 0))
        if running.size:
            i, at, left = self._current[running], top[running], self._left[running]
            held = left > 0
            to = base[self.size[running] - left] + running
            forced = last[i, at]
            if total is not None and blocked is not None:
                whole = total[i, at] - total[i, to] + on[i, to]
                forced = np.minimum(forced, np.where(blocked[i, at] == blocked[i, to], whole, np.inf))
            else:
                whole = cost[i, at] + on[i, np.maximum(to, 0)]
                forced = np.minimum(forced, whole)
            fits = np.isfinite(cost[i, at])
            values[running] = np.where(fits, np.where(held, forced, on[i, at]), values[running])
        return values, (on, last, new, off)

    def _forward(
        self, cost: Array, start: Array, on: Array, last: Array, new: Array, off: Array
    ) -> tuple[NDArray[np.int8], Array]:
        """Return (m,) the form of each step, OFF: none, and (n,) tokens that starts lost."""
        m, n = cost.shape[1], len(self.size)
        form = np.full(m, OFF, np.int8)
        lost = np.zeros(n)
        state, until, ending = np.full(n, OFF), np.zeros(n, np.intp), np.zeros(n, bool)
        place = self._place.copy()
        base, stay = self._base, self._stay
        top = base[self.size] + np.arange(n)
        for b in np.flatnonzero((self._current != OFF) & (self.size > 0)).tolist():
            i, at = int(self._current[b]), top[b]
            if not np.isfinite(cost[i, at]):
                continue
            state[b], until[b] = i, self.size[b] - self._left[b]
            if self._left[b] > 0:
                to = base[until[b]] + b
                runs = cost[i, base[until[b] + 1 : self.size[b] + 1] + b]
                whole = runs.sum() + on[i, to]
                if not np.isfinite(whole) or last[i, at] < whole:
                    ending[b] = True
        for level in range(len(self._alive) - 1, 0, -1):
            k = self._alive[level]
            a, p = base[level], base[level - 1]
            some = np.arange(k)
            s = state[:k]
            here = off[place[:k], a + some]
            running = s != OFF
            at = np.where(running, s, 0)
            free = running & (level <= until[:k]) & ~ending[:k]
            ahead = cost[at, a + some] + on[at, p + some]
            s[free & (ahead > here + _TIE * np.abs(here))] = OFF
            ended = ending[:k] & (until[:k] < 0)
            begin = np.flatnonzero((s == OFF) & ~ended & (here < off[place[:k], p + some]))
            if begin.size:
                whole = new[:, a + begin] + start[place[begin], :, begin].T
                i = whole.argmin(axis=0)
                s[begin] = i
                lost[begin] += self._lost[place[begin], i, begin]
                place[begin] = self.site[i, begin] if self._places > 1 else 0
                until[begin] = level - (1 if stay is None else stay[a + begin])
                ending[begin] = last[i, a + begin] <= new[i, a + begin]
            form[a : a + k] = s
            stop = np.flatnonzero(ending[:k] & (s != OFF))
            if stop.size:
                stop = stop[last[s[stop], p + stop] >= 0]
                s[stop], until[stop] = OFF, -1
        return form, lost

    def _told(self, values: Array, form: NDArray[np.int8], gear: NDArray[np.int8], lost: Array) -> Found:
        n, h = len(self.size), self._problem.steps
        on = np.flatnonzero(form != OFF)
        b, i, step = self._rank[on], form[on].astype(np.intp), self.step[on]
        k = gear[i, on]
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


def _form(problem: Problem, row: Row) -> tuple[int, int]:
    return problem.pool_index[row.pool], row.nodes


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


def tables(problem: Problem, jobs: Sequence[int]) -> tuple[Index, Array, Index, Array]:
    """Return (n, r) pool, nodes, site and watts of the rows of jobs, side by side; past a job's last row they are 0.

    Args:
        problem: The problem.
        jobs: Indices of jobs.
    """
    shape = len(jobs), max((len(problem.jobs[j].rows) for j in jobs), default=1)
    pool, site = np.zeros(shape, np.intp), np.zeros(shape, np.intp)
    nodes, power_w = np.zeros(shape), np.zeros(shape)
    sites = [problem.site_index[one.site] for one in problem.pools]
    for b, j in enumerate(jobs):
        rows = problem.jobs[j].rows
        pool[b, : len(rows)] = [problem.pool_index[row.pool] for row in rows]
        site[b, : len(rows)] = [sites[i] for i in pool[b, : len(rows)]]
        nodes[b, : len(rows)] = [row.nodes for row in rows]
        power_w[b, : len(rows)] = [row.power_w for row in rows]
    return pool, nodes, site, power_w
