"""The search for the best paths: what it finds costs what it says, and no other path is cheaper."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from greentrain.policy.cluster.paths import Layout, Paths
from greentrain.policy.cluster.problem import OFF, ClusterJob, Pool, Problem, Row, Rows, Site
from tests.helpers.cluster_cases import cluster


def priced(problem: Problem, j: int, rows: Rows, nodes: np.ndarray, watts: np.ndarray, mu: float) -> float:
    """Return what a path costs at some prices, less the worth of its tokens: by walking it."""
    job, cost, was = problem.jobs[j], 0.0, None if problem.jobs[j].current is None else problem.jobs[j].current
    place = problem.place(job)
    form = None if was is None else (job.rows[was].pool, job.rows[was].nodes)
    for t in range(problem.steps):
        if rows[t] == OFF:
            form = None
            continue
        row = job.rows[rows[t]]
        pool = problem.pool_index[row.pool]
        site = problem.site_index[problem.pools[pool].site]
        if form != (row.pool, row.nodes):
            fastest = max(one.tokens_per_s for one in job.rows if (one.pool, one.nodes) == (row.pool, row.nodes))
            away = place is not None and place != site
            cost += job.switch_g + away * job.move_g + mu * fastest * (job.switch_s + away * job.move_s)
        form, place = (row.pool, row.nodes), site
        cost += row.nodes * nodes[pool, t] + row.power_w * (problem.g_per_w[site, t] + watts[site, t])
        cost -= mu * row.tokens_per_s * problem.length_s[t]
    return cost


@pytest.mark.parametrize("seed", range(6))
def test_the_paths_that_are_told_cost_what_is_said_and_do_the_tokens_that_are_said(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = cluster(
        seed, jobs=24, nodes=120, h=14, pools=3, sites=1 + seed % 2, stay_s=[0.0, 7200.0][seed // 2 % 2], running=1.0
    )
    nodes = rng.exponential(300.0, problem.nodes.shape)
    watts = rng.exponential(0.05, problem.cap_w.shape)
    mu = rng.choice([2e-5, 3e-3], len(problem.jobs))
    layout = Layout(problem)
    some = rng.permutation(len(problem.jobs))[:17]
    paths = Paths(layout, some)
    found = paths.best(nodes, problem.g_per_w + watts, mu[some], paths.blocked(problem.nodes, problem.cap_w))
    rows = found.rows()
    assert (found.tokens > 0).any() and (rows == OFF).any()
    for i, j in enumerate(some.tolist()):
        assert found.values[i] == pytest.approx(priced(problem, j, rows[i], nodes, watts, mu[j]), rel=1e-9, abs=1e-6)
    used = np.zeros_like(nodes)
    for i, j in enumerate(some.tolist()):
        for t in np.flatnonzero(rows[i] != OFF).tolist():
            row = problem.jobs[j].rows[rows[i, t]]
            used[problem.pool_index[row.pool], t] += row.nodes
    assert found.nodes == pytest.approx(used)


@pytest.mark.parametrize("seed", range(3))
def test_no_path_of_a_short_job_is_cheaper(seed: int) -> None:
    problem = cluster(seed, jobs=3, nodes=12, h=4, pools=2, sites=2, switch_s=600.0, running=0.5, mean_h=1)
    jobs = [replace(job, rows=job.rows[::3], current=None, site="site0", move_g=300.0) for job in problem.jobs]
    problem = replace(problem, jobs=tuple(jobs))
    rng = np.random.default_rng(seed)
    nodes, watts = rng.exponential(300.0, problem.nodes.shape), np.zeros(problem.cap_w.shape)
    mu = np.full(3, 6e-4)
    paths = Paths(Layout(problem), range(3))
    found = paths.best(nodes, problem.g_per_w, mu, paths.blocked(problem.nodes, problem.cap_w))
    for j, job in enumerate(problem.jobs):
        a, b = problem.window(job)
        best = 0.0
        for choice in itertools.product(range(OFF, len(job.rows)), repeat=b - a):
            rows = np.full(problem.steps, OFF)
            rows[a:b] = choice
            best = min(best, priced(problem, j, rows, nodes, watts, mu[j]))
        assert found.values[j] == pytest.approx(best, rel=1e-9, abs=1e-6)


def test_one_job_may_leave_at_once_where_the_one_before_it_goes_on_to_its_end() -> None:
    site = Site(name="here", g_per_kwh=np.full(3, 100.0), power_cap_w=np.full(3, 1e5), pue=np.ones(3))
    pools = tuple(Pool(name=name, site="here", nodes=np.ones(3)) for name in ("a", "b"))
    jobs = tuple(
        ClusterJob(
            name=pool.name,
            release_s=0.0,
            deadline_s=3 * 3600.0,
            tokens=1e5,
            rows=(Row(name="one", pool=pool.name, nodes=1, tokens_per_s=10.0, power_w=1000.0),),
            current=0,
        )
        for pool in pools
    )
    problem = Problem(edges_s=np.array([0.0, 3600.0, 7200.0, 10800.0]), sites=(site,), pools=pools, jobs=jobs)
    paths = Paths(Layout(problem), range(2))
    nodes = np.array([[0.0, 0.0, 0.0], [1e6, 1e6, 1e6]])
    found = paths.best(nodes, problem.g_per_w, np.full(2, 1.0), paths.blocked(problem.nodes, problem.cap_w))
    assert found.rows().tolist() == [[0, 0, 0], [OFF, OFF, OFF]]
