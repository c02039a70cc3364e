"""The truth on small clusters: the plan as a mixed integer programme, solved by HiGHS (``scipy.optimize.milp``)."""

from collections.abc import Collection

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_matrix

from greentrain.policy.cluster.problem import Problem


class Model:
    """Rows by step, parts of steps, starts and ends of all jobs. No job has a checkpoint that costs to be moved."""

    def __init__(self, problem: Problem, free: Collection[str] = (), *, misses: bool = False) -> None:
        self.cost: list[float] = []
        self.whole: list[int] = []
        self.low: list[float] = []
        self.high: list[float] = []
        self.entries: list[tuple[int, int, float]] = []
        nodes: dict[tuple[int, int], list[tuple[int, float]]] = {}
        watts: dict[tuple[int, int], list[tuple[int, float]]] = {}
        for job in problem.jobs:
            if job.name in free:
                continue
            a, b = problem.window(job)
            forms = sorted({(row.pool, row.nodes) for row in job.rows})
            current = None if job.current is None else (job.rows[job.current].pool, job.rows[job.current].nodes)
            tokens: list[tuple[int, float]] = []
            runs: dict[tuple[tuple[str, int], int], list[int]] = {}
            ends = {t: self.variable(0.0) for t in range(a, b)}
            for t in range(a, b):
                for row in job.rows:
                    pool = problem.pool_index[row.pool]
                    site = problem.site_index[problem.pools[pool].site]
                    on = self.variable(0.0)
                    part = self.variable(0.0 if misses else row.power_w * problem.g_per_w[site, t], whole=False)
                    self.rule([(on, 1.0), (part, -1.0)], 0.0)
                    if t + 1 < b:  # power is drawn until the tokens are done
                        self.rule([(part, 1.0), (on, -1.0), (ends[t + 1], 1.0)], 0.0)
                    tokens.append((part, row.tokens_per_s * problem.length_s[t]))
                    runs.setdefault(((row.pool, row.nodes), t), []).append(on)
                    nodes.setdefault((pool, t), []).append((on, float(row.nodes)))
                    watts.setdefault((site, t), []).append((on, row.power_w))
                every = [one for form in forms for one in runs[form, t]]
                self.rule([(ends[t], -1.0), *((one, -1.0) for one in every)], -1.0)
                if t > a:
                    self.rule([(ends[t], 1.0), (ends[t - 1], -1.0)], 0.0)
            for form in forms:
                fastest = max(row.tokens_per_s for row in job.rows if (row.pool, row.nodes) == form)
                for t in range(a, b):
                    start = self.variable(0.0 if misses else job.switch_g)
                    tokens.append((start, -fastest * job.switch_s))
                    before = [(one, 1.0) for one in runs[form, t - 1]] if t > a else []
                    held = 1.0 if t == a == 0 and form == current else 0.0
                    self.rule([(start, 1.0), *((one, -1.0) for one in runs[form, t]), *before], -held)
                    until = np.searchsorted(problem.edges_s, problem.edges_s[t] + job.min_run_s - 1e-6)
                    for k in range(t + 1, min(int(until), b)):
                        self.rule([(ends[k], 1.0), (start, -1.0), *((one, 1.0) for one in runs[form, k])], 0.0)
            if current is not None and job.held_s < job.min_run_s:
                until = np.searchsorted(problem.edges_s, problem.edges_s[0] + job.min_run_s - job.held_s - 1e-6)
                for k in range(min(int(until), b)):
                    self.rule([*([(ends[k], 1.0)] if k else []), *((one, 1.0) for one in runs[current, k])], 1.0)
            if misses:
                tokens.append((self.variable(job.priority), 10 * job.tokens))
            self.rule(tokens, job.tokens)
        for (pool, t), used in nodes.items():
            self.rule([(one, -value) for one, value in used], -float(problem.nodes[pool, t]))
        for (site, t), used in watts.items():
            if np.isfinite(problem.cap_w[site, t]):
                self.rule([(one, -value) for one, value in used], -float(problem.cap_w[site, t]))

    def variable(self, cost: float, *, whole: bool = True) -> int:
        self.cost.append(cost)
        self.whole.append(int(whole))
        return len(self.cost) - 1

    def rule(self, terms: list[tuple[int, float]], least: float) -> None:
        self.entries += [(len(self.low), i, value) for i, value in terms]
        self.low.append(least)

    def solve(self, limit_s: float = 60.0, gap: float = 0.0) -> tuple[float, float] | None:
        """Return the best value found and a bound on it; None where there is no plan."""
        rows, columns, values = zip(*self.entries, strict=True)
        matrix = coo_matrix((values, (rows, columns)), shape=(len(self.low), len(self.cost))).tocsr()
        found = milp(
            np.array(self.cost),
            constraints=LinearConstraint(matrix, np.array(self.low), np.inf),
            integrality=np.array(self.whole),
            bounds=Bounds(0, 1),
            options={"time_limit": limit_s, "mip_rel_gap": gap},
        )
        return None if found.x is None else (float(found.fun), float(found.mip_dual_bound))


def best(
    problem: Problem, free: Collection[str] = (), limit_s: float = 60.0, gap: float = 0.0
) -> tuple[float, float] | None:
    """Return the least grams of all jobs but some, and a bound on it; None where that cannot be done."""
    return Model(problem, free).solve(limit_s, gap)


def least_misses(problem: Problem) -> float:
    """Return the least weight of deadlines missed."""
    found = Model(problem, misses=True).solve()
    assert found is not None
    return found[0]
