"""One plan for all jobs of a cluster, and a bound on what any plan can reach: Lagrangian decomposition and repair.

Prices of nodes and watts by step, and of tokens by job, make every job its own shortest path
(``greentrain.policy.cluster.paths``). What all paths cost at these prices, less what the capacity is worth, is emitted
by every plan that meets the same deadlines: weak duality, whatever the prices are. Prices rise where paths ask for more
than there is: a subgradient, its steps by Polyak's rule towards a target that is lowered where it is not reached (B. T.
Polyak, 1969; S. Kim and others, 1991), its directions averaged (the volume algorithm: F. Barahona and R. Anbil, 2000).
A large problem takes its first prices from a tenth of its jobs on a tenth of the cluster.

The plan takes the paths at the best prices, the jobs with least room first, each around those that stand already; those
that do not fit search again in what is free. Then each path in turn is searched once more around all others, and
replaced where that emits less.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from greentrain.policy.cluster.paths import Index, Layout, Paths
from greentrain.policy.cluster.problem import DONE, OFF, Array, ClusterJob, Plan, Pool, Prices, Problem, Row, Rows, Site
from greentrain.policy.menu import OFF as MENU_OFF
from greentrain.policy.menu import Menu

_SAMPLE: Final = 400
"""Jobs above which prices are first sought on a sample of as many or of a tenth."""
_COLD: Final = 140
"""Steps of the subgradient on a sample, or on all jobs of a small problem."""
_AFTER_SAMPLE: Final = 30
"""On all jobs, where a sample has given prices."""
_WARM: Final = 20
"""On all jobs, where prices of nearly the same problem are known."""
_COLD_DELTA: Final = 0.02
"""Share of the bound by which the first target is above it."""
_WARM_DELTA: Final = 0.0005
"""The same where prices are known: steps towards a target that is far above are too long to better anything."""
_LEVELS: Final = 8
"""Evaluations that close in on the prices of tokens, at fixed other prices."""
_BATCH: Final = 96
"""Jobs that search around the same others at a time."""
_TRIES: Final = (1.0, 1.03, 1.1, 1.3, 2.0, 1e4)
"""Multiples of a token's price at which a path is searched: the last takes the fastest rows."""
_ROUNDS: Final = 12
"""Most rounds in which pairs of jobs are searched anew; fewer where jobs times rounds are more than _PAIRS."""
_PAIRS: Final = 600
_RESCUED: Final = 16
"""Jobs that found no place and are searched again together with others, at most."""
_LITTLE: Final = 1e-4
"""Share of the grams that a round has to save for another one."""
_PAIR: Final = 0.5
"""Share of the prices at which the first of a pair is searched; the second need leave nothing to others."""
_ROUNDING: Final = 1e-12
"""A row that is above a cap by this share is below it."""
_WHOLE: Final = 1 - 1e-9
"""Share of a cap that a plan uses, so that no rounding breaks it."""
_TURNS: Final = 3
"""Orders in which jobs are placed, those first that found no place before; the last is by priority."""
_MANY: Final = 1200
"""Jobs over which more orders than that cost no time to speak of, by their product."""
_SAFE: Final = 1e-9
"""Share by which the bound is lowered for rounding."""
_MORE: Final = (1.0, 1.02, 1.1, 1.3, 2.0)
"""Multiples of a price of tokens that are tried for the bound: a last step that ends early asks for a little more."""


def solve(problem: Problem, before: Plan | None = None) -> Plan:
    """Return a plan, with its bound.

    Args:
        problem: The cluster, its grids and its jobs.
        before: An earlier plan of many of the same jobs, to begin with its prices and, where they miss less, its rows.
    """
    if before is None:
        return _planned(problem, None, None, improve=True)
    return _planned(problem, before.prices.carried(before.problem, problem), before.carried(problem), improve=True)


def _planned(problem: Problem, warm: Prices | None, stands: Rows | None, *, improve: bool) -> Plan:
    begun = time.process_time()
    search = _Search(problem)
    prices = search.prices(warm)
    repair = _Repair(problem, search, prices)
    repair.place(stands)
    stopped = repair.stopped()
    if stopped:
        jobs = [replace(job, held_s=math.inf) if job.name in stopped else job for job in problem.jobs]
        return _planned(replace(problem, jobs=tuple(jobs)), prices, stands, improve=improve)
    if improve:
        repair.improve()
    plan = repair.plan()
    if improve and len(problem.sites) > 1 and (search.layout.place < len(problem.sites)).any():
        # What a move makes room for no search of pairs undoes: so once more from a plan in which nobody moves.
        still, kept = _at_home(problem)
        there = _Search(still)
        home = _Repair(still, there, there.prices(prices))
        home.place()
        home.improve()
        again = _Repair(problem, search, prices)
        for j in np.flatnonzero(home._placed).tolist():
            again._take(j, kept[j][home.rows[j]])
        if not again.stopped():
            again.improve()
            weight = {job.name: job.priority for job in problem.jobs}
            both = plan, again.plan()
            plan = min(both, key=lambda found: (sum(weight[name] for name in found.missed), found.grams))
    if plan.missed:
        plan = replace(plan, excuse=search.excuse(prices))
    prices, bound_g = search.bound(replace(prices, tokens=repair.worth), plan.missed)
    figures = {"cpu_s": time.process_time() - begun, "evaluations": search.evaluations}
    return replace(plan, prices=prices, bound_g=bound_g, figures=figures)


def _at_home(problem: Problem) -> tuple[Problem, list[Rows]]:
    """Return the problem in which no job moves that has rows at its site, and the rows that each keeps, OFF last."""
    jobs, kept, known = [], [], dict[tuple[int, int | None], tuple[tuple[Row, ...], Rows]]()
    for job in problem.jobs:
        at = problem.place(job)
        if (key := (id(job.rows), at)) not in known:
            sites = [problem.site_index[problem.pools[problem.pool_index[row.pool]].site] for row in job.rows]
            near = [i for i, site in enumerate(sites) if at in (None, site)]
            some = near if any(job.rows[i].tokens_per_s > 0 for i in near) else list(range(len(sites)))
            known[key] = tuple(job.rows[i] for i in some), np.array([*some, OFF], dtype=np.int64)
        rows, own = known[key]
        current = None if job.current is None else int(np.flatnonzero(own == job.current)[0])
        jobs.append(replace(job, rows=rows, current=current))
        kept.append(own)
    return replace(problem, jobs=tuple(jobs)), kept


def solve_alone(g_per_kwh: Array, edges_s: Array, tokens: float, menu: Menu, *, pausable: bool = True) -> Plan | None:
    """Return the plan of one job that has all its ranks to itself, with its bound; None where nothing is left to do.

    Args:
        g_per_kwh: (h,) intensity of each step.
        edges_s: (h + 1,) edges of the steps, from now to the deadline (s since the epoch, UTC).
        tokens: Tokens still to be trained.
        menu: Choices of the job. Changes are free, so that the bound holds whatever they cost.
        pausable: Whether it may be off before its end.
    """
    if tokens <= 0:
        return None
    # Ranks that are held when off, or never off, are one form in which the job stays until it ends.
    stays, widest = bool(menu.power_w[MENU_OFF] > 0) or not pausable, int(max(menu.width))
    on = [i for i in range(len(menu)) if menu.tokens_per_s[i] > 0 or (pausable and stays)]
    rows = tuple(
        Row(
            name=name,
            pool="ranks",
            nodes=widest if stays else int(menu.width[i]),
            tokens_per_s=float(menu.tokens_per_s[i]),
            power_w=float(menu.power_w[i]),
        )
        for i, name in enumerate(menu.names())
        if i in on
    )
    h, now_s, end_s = len(g_per_kwh), float(edges_s[0]), float(edges_s[-1])
    job = ClusterJob(name="job", release_s=now_s, deadline_s=end_s, tokens=tokens, rows=rows)
    if stays:
        job = replace(job, min_run_s=end_s - now_s, current=0, held_s=0.0)
    site = Site(name="grid", g_per_kwh=g_per_kwh, power_cap_w=np.full(h, np.inf), pue=np.ones(h))
    pool = Pool(name="ranks", site="grid", nodes=np.full(h, float(widest)))
    problem = Problem(edges_s=edges_s, sites=(site,), pools=(pool,), jobs=(job,))
    return _planned(problem, None, None, improve=False)


class _Search:
    """Prices at which as little as possible is wanted twice."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.layout, n = Layout(problem), len(problem.jobs)
        self.need = self.layout.tokens * (1 - DONE)
        paths = Paths(self.layout, range(n))
        fast = paths.best(*self._free(), np.full(n, 1e4 * self.usual().max(initial=1.0)), self._empty(paths))
        self.evaluations = 0
        self.able = np.flatnonzero(fast.tokens >= self.need)
        """Jobs that an empty cluster could finish in time."""

    def usual(self) -> Array:
        """Return (n,) grams of a token of each job at its cheapest row and the mean intensity."""
        g_per_j = self.problem.g_per_w.mean() / self.problem.length_s.mean()
        at = self.layout
        ratio = np.divide(at.power_w, at.speed, out=np.full(at.speed.shape, np.inf), where=at.speed > 0)
        return np.asarray(ratio.min(axis=1) * g_per_j)

    def _free(self) -> tuple[Array, Array]:
        return np.zeros_like(self.problem.nodes), self.problem.g_per_w

    def _empty(self, paths: Paths) -> list[NDArray[np.intp]]:
        return paths.blocked(self.problem.nodes, self.problem.cap_w * (1 + _ROUNDING))

    def prices(self, warm: Prices | None) -> Prices:
        """Return good prices of nodes, watts and tokens."""
        problem, able = self.problem, self.able
        start = Prices.zero(problem) if warm is None else warm
        usual = self.usual()
        start = replace(start, tokens=np.where(start.tokens > 0, start.tokens, usual))
        if not len(able):
            return start
        if warm is None and len(able) > _SAMPLE:
            count = max(_SAMPLE, len(able) // 10)
            some = np.sort(np.random.default_rng(0).permutation(able)[:count])
            share = self._work(some) / self._work(able)
            start = self._ascend(start, some, share, _COLD, _COLD_DELTA)
            return self._ascend(start, able, 1.0, _AFTER_SAMPLE, _COLD_DELTA)
        if warm is None:
            return self._ascend(start, able, 1.0, _COLD, _COLD_DELTA)
        return self._ascend(start, able, 1.0, _WARM, _WARM_DELTA)

    def _work(self, some: NDArray[np.intp]) -> float:
        at = self.layout
        ratio = np.divide(at.nodes, at.speed, out=np.full(at.speed.shape, np.inf), where=at.speed > 0)
        return float((at.tokens * ratio.min(axis=1))[some].sum())

    def _ascend(self, start: Prices, some: NDArray[np.intp], share: float, steps: int, above: float) -> Prices:
        """Return better prices.

        Args:
            start: Prices to begin with.
            some: Jobs that count.
            share: Of the capacity that is theirs.
            steps: Evaluations.
            above: Share of the bound by which the first target is above it.
        """
        problem = self.problem
        paths = Paths(self.layout, some)
        blocked = self._empty(paths)
        nodes_cap, watts_cap = problem.nodes * share, problem.cap_w * share
        limited = np.isfinite(watts_cap)
        watts_room = np.where(limited, watts_cap, 0.0)
        nodes, watts = start.nodes.copy(), start.watts.copy()
        need, mu = self.need[some], start.tokens[some].copy()
        mu, *_ = levels(paths, nodes, problem.g_per_w + watts, need, mu, blocked)
        move = np.full(len(some), 0.04)
        sign = np.zeros(len(some))
        best, best_value, delta, since = (nodes, watts, mu), -math.inf, 0.0, 0
        way: tuple[Array, Array] | None = None
        for _ in range(steps):
            found = paths.best(nodes, problem.g_per_w + watts, mu, blocked)
            value = float((found.values + mu * need).sum() - (nodes * nodes_cap).sum() - (watts * watts_room).sum())
            self.evaluations += 1
            delta = delta or above * abs(value)
            if value > best_value:
                since = 0 if value > best_value + 0.1 * delta else since + 1
                best, best_value = (nodes.copy(), watts.copy(), mu.copy()), value
            else:
                since += 1
            if since >= 6:
                delta, since = delta / 2, 0
                nodes, watts = best[0].copy(), best[1].copy()
            over = (
                (found.nodes - nodes_cap) / np.maximum(nodes_cap, 1.0),
                np.where(limited, (found.watts - watts_room) / np.maximum(watts_room, 1.0), 0.0),
            )
            way = over if way is None else tuple(0.5 * a + 0.5 * b for a, b in zip(way, over, strict=True))  # type: ignore[assignment]
            assert way is not None
            # Where nothing is asked too much of and nothing is paid, there is no direction to go.
            dirs = [np.where((d < 0) & (x <= 0), 0.0, d) for d, x in zip(way, (nodes, watts), strict=True)]
            square = sum(float((d * d).sum()) for d in dirs)
            if square == 0 and self.evaluations > 1:
                break  # nothing is scarce: the prices of tokens are known
            if square > 0:
                size = (best_value + delta - value) / square
                nodes = np.maximum(0.0, nodes + size * dirs[0] / np.maximum(nodes_cap, 1.0))
                watts = np.maximum(0.0, watts + size * dirs[1] / np.maximum(watts_room, 1.0))
            up = np.where(found.tokens < need, 1.0, -1.0)
            move = np.clip(np.where(up == sign, move * 1.3, move * 0.5), 2e-4, 0.2)
            sign = up
            mu = mu * np.exp(up * move)
        tokens = start.tokens.copy()
        tokens[some] = best[2]
        return Prices(nodes=best[0], watts=best[1], tokens=tokens)

    def bound(self, prices: Prices, missed: Sequence[str]) -> tuple[Prices, float]:
        """Return the prices, those of tokens as good as can be, as the file will have them, and the bound they give.

        Args:
            prices: Of nodes, watts and tokens.
            missed: Jobs that may do nothing.
        """
        out = set(missed)
        met = np.array([j for j, job in enumerate(self.problem.jobs) if job.name not in out], dtype=np.intp)
        found, jobs_g, worth, size = self._parts(prices, met, _LEVELS // 2)
        return found, max(0.0, float(jobs_g.sum() - worth - _SAFE * (size.sum() + worth)))

    def excuse(self, prices: Prices) -> tuple[float, float, Prices]:
        """Return a weight of deadlines that every plan misses at least, the worth of a gram, and prices that prove it.

        Prices in units of weight: each job adds its part of the bound or, if that is less, the weight of its miss. All
        parts together cannot be paid out of what nodes, watts and the budget are worth; what is left over is missed.
        """
        problem, judge = self.problem, self
        budget_g = problem.budget_g
        if math.isinf(budget_g):  # grams are no reason to miss anything
            sites = tuple(replace(site, g_per_kwh=np.zeros(problem.steps)) for site in problem.sites)
            jobs = tuple(replace(job, switch_g=0.0, move_g=0.0) for job in problem.jobs)
            judge, budget_g = _Search(replace(problem, sites=sites, jobs=jobs)), 0.0
        found, parts, worth, size = judge._parts(prices, np.arange(len(problem.jobs), dtype=np.intp))
        weight = self.layout.priority
        tried = np.append(0.0, (weight / np.maximum(parts, 1e-300))[(parts > 0) & (weight > 0)])
        left = [np.minimum(weight, scale * parts).sum() - scale * (worth + budget_g) for scale in tried.tolist()]
        scale = float(tried[int(np.argmax(left))])
        room = _SAFE * (weight.sum() + scale * (size.sum() + worth + budget_g)) * 10
        scaled = Prices(
            nodes=_written(found.nodes * scale),
            watts=_written(found.watts * scale),
            tokens=_written(found.tokens * scale),
        )
        return max(0.0, max(left) - room), 0.0 if math.isinf(problem.budget_g) else scale, scaled

    def _parts(self, prices: Prices, met: Index, turns: int = _LEVELS) -> tuple[Prices, Array, float, Array]:
        """Return prices, of tokens as good as can be; parts of jobs, worth of the capacity, and sizes of terms."""
        problem = self.problem
        nodes, watts = _written(prices.nodes), _written(prices.watts)
        paths = Paths(self.layout, met)
        blocked, need = self._empty(paths), self.layout.tokens[met]
        mu, *_ = levels(paths, nodes, problem.g_per_w + watts, need, prices.tokens[met], blocked, turns)
        tokens, values, jobs_g = np.zeros(len(problem.jobs)), np.zeros(len(met)), np.full(len(met), -np.inf)
        all_tried = [_written(mu * more) for more in _MORE]
        # Each job has a price of its own, and what it proves is a part of the sum.
        for tried, least in zip(all_tried, paths.least(nodes, watts, all_tried, blocked), strict=True):
            better = least + tried * need > jobs_g
            jobs_g = np.where(better, least + tried * need, jobs_g)
            values, tokens[met] = np.where(better, least, values), np.where(better, tried, tokens[met])
        worth = (nodes * problem.nodes).sum() + (watts * np.where(np.isfinite(problem.cap_w), problem.cap_w, 0.0)).sum()
        return (
            Prices(nodes=nodes, watts=watts, tokens=tokens),
            jobs_g,
            float(worth),
            np.abs(values) + tokens[met] * need,
        )


class _Repair:
    """A plan that fits: paths around one another."""

    def __init__(self, problem: Problem, search: _Search, prices: Prices) -> None:
        self._problem, self._search, self._prices = problem, search, prices
        n, h = len(problem.jobs), problem.steps
        self.rows = np.full((n, h), OFF, np.int64)
        self._nodes, self._watts = problem.nodes.copy(), problem.cap_w * _WHOLE
        self._layout = search.layout
        self._grams = np.zeros(n)
        self._placed = np.zeros(n, bool)
        self.worth = prices.tokens.copy()
        """(n,) of a token of each job, at the prices of nodes and watts."""
        at = self._layout
        length_s = problem.edges_s[at.windows[:, 1]] - problem.edges_s[at.windows[:, 0]]
        self._room = length_s * at.speed.max(axis=1, initial=0.0) / at.tokens
        self._held, self._priority = at.left_s > 0, at.priority

    def place(self, stands: Rows | None = None) -> None:
        """Give every job that can be finished a path.

        Args:
            stands: (n, h) rows of an earlier plan, which are kept where jobs would find no place without.
        """
        search, problem = self._search, self._problem
        able = search.able
        if not len(able):
            return
        paths = Paths(self._layout, able)
        blocked = search._empty(paths)
        g_per_w = problem.g_per_w + self._prices.watts
        self.worth[able], _, rows, fine = levels(
            paths, self._prices.nodes, g_per_w, search.need[able], self._prices.tokens[able], blocked
        )
        found = self._cut(able[fine], rows[fine])
        kept = {} if stands is None else self._cut(able, stands[able])
        first: NDArray[np.float64] = np.zeros(len(problem.jobs))
        alike = np.ptp(self._priority[able]) == 0
        best: tuple[float, Rows] | None = None
        turns = max(_TURNS, min(10 * _TURNS, _MANY // len(able)))
        for turn in range(turns):
            rank, these = first, found
            if turn == 1 and kept:
                rank, these = np.zeros(len(problem.jobs)), {**found, **kept}
                rank[list(kept)] = -1.0
            elif turn == (2 if kept else 1) and not alike:
                rank = -self._priority
            missed = self._insert(able[np.lexsort((self._room[able], rank[able], ~self._held[able]))].tolist(), these)
            weight = float(self._priority[missed].sum())
            if best is None or weight < best[0]:
                best = weight, self.rows.copy()
            if not missed:
                return
            first[missed] -= self._priority[missed]
        assert best is not None
        self._clear()
        for j in able.tolist():
            if (best[1][j] != OFF).any():
                self._take(j, best[1][j])

    def _cut(self, some: Index, rows: Rows) -> dict[int, tuple[Rows, float]]:
        """Return of jobs that do their tokens in rows (n, h) the rows until their ends, with their grams."""
        cut, grams, tokens = ended(self._layout, some, rows)
        fine = np.flatnonzero(tokens >= self._search.need[some])
        return {int(some[i]): (cut[i], float(grams[i])) for i in fine}

    def stopped(self) -> set[str]:
        """Return the jobs that had to stay in their form, and cannot: their shortest stay is waived."""
        placed = np.flatnonzero(self._placed)
        return {self._problem.jobs[j].name for j in placed[self._leaves(placed, self.rows[placed])].tolist()}

    def _leaves(self, some: Index, rows: Rows) -> NDArray[np.bool_]:
        """Return which jobs (n,) would have to stay in their form, and do not in their rows (n, h)."""
        now, was = rows[:, 0], self._layout.current[some]
        (pool, nodes, *_), (other, others, *_) = self._layout.of(some, now), self._layout.of(some, was)
        return np.asarray(self._held[some] & ((now == OFF) | (pool != other) | (nodes != others)))

    def _clear(self) -> None:
        for j in np.flatnonzero(self._placed).tolist():
            self._leave(j)

    def _insert(self, order: list[int], found: Mapping[int, tuple[Rows, float]]) -> list[int]:
        """Place jobs one after the other, from nothing; return those that found no place."""
        self._clear()
        left = [j for j in order if not (j in found and self._take(j, *found[j]))]
        for batch in (_BATCH, _BATCH // 8, 1):
            left = self._search_in_free(left, batch)
        return left

    def _search_in_free(self, left: list[int], batch: int) -> list[int]:
        """Place jobs in what is free, some at a time; return those for which nothing was found."""
        out = []
        for a in range(0, len(left), batch):
            some = left[a : a + batch]
            paths = Paths(self._layout, np.repeat(some, len(_TRIES)))
            mu = np.outer(self.worth[some], _TRIES).ravel()
            found = paths.best(
                self._prices.nodes,
                self._problem.g_per_w + self._prices.watts,
                mu,
                paths.blocked(self._nodes, self._watts),
            )
            rows = found.rows().reshape(len(some), len(_TRIES), -1)
            enough = found.tokens.reshape(len(some), -1) >= self._search.need[some][:, None]
            cost = np.where(enough, (found.values + mu * found.tokens).reshape(len(some), -1), np.inf)
            for i, j in enumerate(some):
                best = int(cost[i].argmin())
                if not (enough[i, best] and self._take(j, rows[i, best])):
                    out.append(j)
        return out

    def improve(self) -> None:
        """Search each path once more around all others, and then with that of another job, while that costs little.

        First who found no place, each with others that may move for it.
        """
        rng, window, able = np.random.default_rng(0), self._layout.windows, self._search.able
        missed = able[~self._placed[able]]
        for j in missed[np.argsort(-self._priority[missed], kind="stable")][:_RESCUED].tolist():
            near = self._placed & (window[:, 0] < window[j, 1]) & (window[:, 1] > window[j, 0])
            some = rng.permutation(np.flatnonzero(near))[:_BATCH]
            self._again(np.stack([np.full(len(some), j), some], axis=1))
        placed = np.flatnonzero(self._placed)
        for turn in range(1 + max(1, min(_ROUNDS, _PAIRS // max(1, len(placed))))):
            was = self._grams.sum()
            for a in range(0, len(placed), 2 * _BATCH):
                some = placed[a : a + 2 * _BATCH]
                if turn == 0:
                    self._again(some[:, None])
                    continue
                near = (window[placed, 0] < window[some, 1:]) & (window[placed, 1] > window[some, :1])
                other = np.where(placed == some[:, None], 2.0, rng.random(near.shape) + ~near).argmin(axis=1)
                self._again(rng.permuted(np.stack([some, placed[other]], axis=1), axis=1))
            little = self._grams.sum() > was * (1 - _LITTLE)
            if len(placed) < 2 or (little and (turn > 1 or len(placed) > _BATCH)):  # of few jobs others may be drawn
                break

    def _again(self, groups: Index) -> None:
        """Search the paths of groups (n, k) of jobs anew, one after the other, and keep those that emit less."""
        problem, (n, k) = self._problem, groups.shape
        own = np.zeros((n, *self._nodes.shape)), np.zeros((n, *self._watts.shape))
        for some in groups.T:
            self._use(own, some, self.rows[some], 1.0)
        was, now, all_found = self._grams[groups].sum(axis=1), np.zeros(n), []
        for turn, some in enumerate(groups.T, 1):
            paths, need, share = Paths(self._layout, some), self._search.need[some], 0.0 if turn == k else _PAIR
            nodes, g_per_w = share * self._prices.nodes, problem.g_per_w + share * self._prices.watts
            blocked = paths.blocked(self._nodes, self._watts, own)
            *_, rows, fine = levels(paths, nodes, g_per_w, need, self.worth[some], blocked, 6)
            rows, grams, _ = ended(self._layout, some, rows)
            fine &= ~self._leaves(some, rows)
            now += np.where(fine, grams, np.inf)
            self._use(own, some, rows, -1.0)
            all_found.append((rows, grams))
        for i in np.argsort(now - was, kind="stable").tolist():
            some = groups[i].tolist()
            old = [(j, self.rows[j].copy(), float(self._grams[j])) for j in some if self._placed[j]]
            before = sum(grams for *_, grams in old) if len(old) == k else math.inf
            if now[i] < before * (1 - 1e-9):
                for j in some:
                    self._leave(j)
                new = zip(some, all_found, strict=True)
                if not all(self._take(j, cut[i], float(emitted[i])) for j, (cut, emitted) in new):
                    for j in some:
                        self._leave(j)
                    for j, path, emits in old:
                        self._put(j, path, emits)

    def _use(self, own: tuple[Array, Array], some: Index, rows: Rows, sign: float) -> None:
        """Add nodes and watts of rows (n, h) of jobs (n,) to (n, p, h) and (n, s, h)."""
        i, step = np.nonzero(rows != OFF)
        pool, nodes, site, power_w = self._layout.of(some[i], rows[i, step])
        own[0][i, pool, step] += sign * nodes
        own[1][i, site, step] += sign * power_w

    def _take(self, j: int, rows: Rows, grams: float | None = None) -> bool:
        """Give a job a path, if it fits; with the grams of one that is cut to its end already."""
        if grams is None:
            cut, emitted, _ = ended(self._layout, np.array([j]), rows[None])
            rows, grams = cut[0], float(emitted[0])
        step = np.flatnonzero(rows != OFF)
        pool, nodes, site, power_w = self._layout.of(j, rows[step])
        if (self._nodes[pool, step] < nodes).any() or (self._watts[site, step] < power_w).any():
            return False
        self._put(j, rows, grams)
        return True

    def _put(self, j: int, rows: Rows, grams: float) -> None:
        """Give a job a path that fits, or did until now: sums of doubles may differ."""
        step = np.flatnonzero(rows != OFF)
        pool, nodes, site, power_w = self._layout.of(j, rows[step])
        self._nodes[pool, step] -= nodes
        self._watts[site, step] -= power_w
        self.rows[j], self._grams[j], self._placed[j] = rows, grams, True

    def _leave(self, j: int) -> None:
        step = np.flatnonzero(self.rows[j] != OFF)
        pool, nodes, site, power_w = self._layout.of(j, self.rows[j, step])
        self._nodes[pool, step] += nodes
        self._watts[site, step] += power_w
        self.rows[j], self._grams[j], self._placed[j] = OFF, 0.0, False

    def plan(self) -> Plan:
        """Return the plan, without a bound."""
        problem = self._problem
        worth = self._grams / self._priority
        for j in np.argsort(-worth, kind="stable").tolist():
            if self._grams.sum() <= problem.budget_g * _WHOLE:
                break
            self._leave(j)
        met = self._placed.copy()
        grams = self._grams.sum()
        late = np.flatnonzero(~met).tolist()
        for j in sorted(late, key=lambda j: (-self._priority[j], self._room[j], j)):
            paths = Paths(self._layout, [j], late=True)
            fast = np.array([1e4 * max(self.worth[j], 1e-9)])
            found = paths.best(
                np.zeros_like(self._nodes), problem.g_per_w, fast, paths.blocked(self._nodes, self._watts)
            )
            if self._take(j, found.rows()[0]) and self._grams.sum() > problem.budget_g * _WHOLE:
                self._leave(j)
        missed = tuple(job.name for job, fine in zip(problem.jobs, met, strict=True) if not fine)
        return Plan(
            problem=self._problem,
            rows=self.rows,
            prices=self._prices,
            bound_g=0.0,
            grams=float(grams),
            late_g=float(self._grams[~met].sum()),
            missed=missed,
        )


def ended(at: Layout, jobs: Index, rows: Rows) -> tuple[Rows, Array, Array]:
    """Return the rows of jobs until their tokens are done, what they emit (g), and the tokens done then.

    Args:
        at: The jobs of the problem.
        jobs: (n,) indices of jobs.
        rows: (n, h) rows; OFF: none.
    """
    problem, on, job = at.problem, rows != OFF, jobs[:, None]
    row, step = np.where(on, rows, 0), np.arange(rows.shape[1])
    pool, nodes, site, power_w = at.of(job, row)
    g_per_w, length_s, speed = problem.g_per_w[site, step], problem.length_s, at.speed[job, row]
    done, grams = on * speed * length_s, on * power_w * g_per_w
    last_on = np.maximum.accumulate(np.where(on, step, -1), axis=1)
    before = np.take_along_axis(site, np.maximum(last_on[:, :-1], 0), axis=1)
    before = np.hstack([at.place[job], np.where(last_on[:, :-1] < 0, at.place[job], before)])
    fresh = on.copy()
    fresh[:, 1:] &= ~on[:, :-1] | (np.diff(pool) != 0) | (np.diff(nodes) != 0)
    was, width, *_ = at.of(jobs, at.current[jobs])
    fresh[:, 0] &= (at.current[jobs] == OFF) | (pool[:, 0] != was) | (nodes[:, 0] != width)
    i, t = np.nonzero(fresh)
    j, away = jobs[i], (before[i, t] != site[i, t]) & (before[i, t] < len(problem.sites))
    done[i, t] -= at.fastest[j, rows[i, t]] * (at.switch_s[j] + away * at.move_s[j])
    grams[i, t] += at.switch_g[j] + away * at.move_g[j]
    total = np.cumsum(done, axis=1)
    enough = on & (total >= at.tokens[job] * (1 - DONE))
    last = np.where(enough.any(axis=1), enough.argmax(axis=1), last_on[:, -1])
    i = np.flatnonzero(last >= 0)
    end = i, last[i]
    surplus = np.maximum(0.0, total[end] - at.tokens[jobs[i]])
    grams[end] -= surplus / np.maximum(speed[end], 1e-300) * power_w[end] * g_per_w[end] / length_s[last[i]]
    after = step > last[:, None]
    done = np.where(last < 0, 0.0, np.take_along_axis(total, np.maximum(last, 0)[:, None], axis=1)[:, 0])
    return np.where(after, OFF, rows), np.where(after, 0.0, grams).sum(axis=1), done


def levels(
    paths: Paths,
    nodes: Array,
    g_per_w: Array,
    need: Array,
    mu: Array,
    blocked: list[NDArray[np.intp]],
    turns: int = _LEVELS,
) -> tuple[Array, Array, Rows, NDArray[np.bool_]]:
    """Return for each job the price of a token at which its part of the bound is highest, and that part.

    Args:
        paths: The jobs.
        nodes: (p, h) price of a node (g).
        g_per_w: (s, h) grams of a watt, with its price.
        need: (n,) tokens.
        mu: (n,) prices to begin with, above 0.
        blocked: What may not be used.
        turns: Evaluations.

    Returns:
        (n,) prices; (n,) parts of the bound (g); (n, h) rows at the lowest price tried at which a job does its tokens;
        (n,) whether there is one.
    """
    n = len(mu)
    low, high = np.zeros((3, n)), np.zeros((3, n))  # price, tokens, cost
    low_known, high_known = np.zeros(n, bool), np.zeros(n, bool)
    best, best_mu, rows = np.full(n, -np.inf), mu.copy(), np.full((n, nodes.shape[1]), OFF, np.int64)
    reach = np.full(n, 1.05)
    for _ in range(turns):
        found = paths.best(nodes, g_per_w, mu, blocked)
        cost = found.values + mu * found.tokens
        part = found.values + mu * need
        better = part > best
        best, best_mu = np.where(better, part, best), np.where(better, mu, best_mu)
        enough = found.tokens >= need
        line = np.stack([mu, found.tokens, cost])
        lower = enough & (~high_known | (mu < high[0]))
        high, rows = np.where(lower, line, high), np.where(lower[:, None], found.rows(), rows)
        high_known |= enough
        low = np.where(~enough & (~low_known | (mu > low[0])), line, low)
        low_known |= ~enough
        both = low_known & high_known
        with np.errstate(divide="ignore", invalid="ignore"):
            cross = (high[2] - low[2]) / (high[1] - low[1])
        inside = both & (cross > low[0]) & (cross < high[0])
        reach = reach**2
        mu = np.where(inside, cross, np.where(both, (low[0] + high[0]) / 2, np.where(enough, mu / reach, mu * reach)))
    return best_mu, best, rows, high_known


def _written(prices: Array) -> Array:
    """Return prices as their decimals in a file say."""
    text = [f"{price:.9e}" for price in prices.ravel().tolist()]
    return np.array([float(one) for one in text], dtype=np.float64).reshape(prices.shape)
