"""Plans of a cluster: feasible by a checker that shares no code, and between the bound and the truth of a MILP."""

import json
from dataclasses import replace

import numpy as np
import pytest

from greentrain.policy import waterfill
from greentrain.policy.action_table import ActionTable
from greentrain.policy.check_plan import check
from greentrain.policy.cluster.planner import _Repair, _Search, solve, solve_alone
from greentrain.policy.cluster.problem import OFF, ClusterJob, Plan, Pool, Problem, Row, Site
from greentrain.policy.menu import Menu
from tests.helpers import cluster_milp
from tests.helpers.cluster_cases import cluster, grid


def drawn(seed: int, most_jobs: int = 8, most_h: int = 15) -> Problem:
    """Return a small problem of any kind."""
    rng = np.random.default_rng(seed)
    return cluster(
        seed,
        jobs=int(rng.integers(1, most_jobs + 1)),
        nodes=int(rng.integers(6, 20)),
        h=int(rng.integers(4, most_h + 1)),
        load=float(rng.choice([0.4, 0.7, 1.0])),
        pools=int(rng.integers(1, 3)),
        cap=[None, 0.9, 0.6][int(rng.integers(3))],
        stay_s=[0.0, 7200.0, 10800.0][int(rng.integers(3))],
        switch_s=[0.0, 300.0, 4000.0][int(rng.integers(3))],
        running=[0.0, 0.4][int(rng.integers(2))],
        mean_h=3,
    )


def checked(plan: Plan) -> Plan:
    """Return a plan that the checker has found right."""
    grams, bound = check(json.dumps(plan.to_dict(), allow_nan=False))
    assert float(grams) == pytest.approx(plan.grams, rel=1e-9)
    assert float(bound) <= plan.grams * (1 + 1e-9)
    return plan


def against_the_truth(problem: Problem, limit_s: float, gap: float = 0.0) -> None:
    """Hold the bound and the plan to the best that HiGHS knows of the same deadlines."""
    plan = checked(solve(problem))
    found = cluster_milp.best(plan.problem, plan.missed, limit_s, gap)
    assert found is not None
    best, proven = found
    assert plan.bound_g <= best * (1 + 1e-6) + 1e-6
    assert proven <= plan.grams * (1 + 1e-6) + 1e-6


@pytest.mark.parametrize("seed", [2, 5, 17, 21, 23])
def test_the_bound_is_below_the_optimum_and_the_plan_above(seed: int) -> None:
    against_the_truth(drawn(seed, most_h=8), 20.0, 1e-3)


def test_a_job_whose_last_step_ends_early_is_promised_no_more_than_it_emits() -> None:
    plan = checked(solve(drawn(103)))  # its bound was 3634 g of 3441 g
    assert plan.bound_g <= plan.grams


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 112))
def test_the_same_of_many(seed: int) -> None:
    against_the_truth(drawn(seed), 20.0)


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
def test_the_same_of_thirty_jobs(seed: int) -> None:
    against_the_truth(cluster(seed, jobs=30, nodes=20, h=24, switch_s=600.0, stay_s=7200.0, mean_h=4), 60.0, 5e-3)


@pytest.mark.parametrize("seed", range(3))
def test_several_sites_with_moves_agree_with_the_checker(seed: int) -> None:
    problem = cluster(seed, jobs=5, nodes=10, h=8, pools=3, sites=2, cap=0.8, stay_s=7200.0, running=0.5, mean_h=2)
    sites = [site.name for site in problem.sites]
    jobs = [replace(job, site=sites[i % 2], move_s=900.0, move_g=400.0) for i, job in enumerate(problem.jobs)]
    checked(solve(replace(problem, jobs=tuple(jobs))))


@pytest.mark.parametrize("seed", [11, 18])
def test_a_plan_with_moves_emits_no_more_than_one_without(seed: int) -> None:
    """Both by 4 and 6 % more, before the planner began at home, too."""
    problem = cluster(seed, jobs=10, nodes=12, h=20, load=0.9, pools=2, sites=2, running=0.6, mean_h=5)
    places = [site.name for site in problem.sites]
    jobs, still = [], []
    for i, job in enumerate(problem.jobs):
        place = places[i % 2] if job.current is None and i % 3 else None
        jobs.append(replace(job, site=place, move_s=900.0, move_g=3000.0))
        at = problem.place(jobs[-1])
        rows = tuple(row for row in job.rows if at is None or row.pool == problem.pools[at].name) or job.rows
        current = None if job.current is None else rows.index(job.rows[job.current])
        still.append(replace(jobs[-1], rows=rows, current=current))
    free, bound = (checked(solve(replace(problem, jobs=tuple(some)))) for some in (jobs, still))
    assert free.missed == bound.missed == ()
    assert free.grams <= bound.grams * 1.01


def test_steps_may_have_any_length() -> None:
    problem = cluster(3, jobs=6, nodes=12, h=12, mean_h=3)
    edges = np.concatenate([[0.0, 300.0, 600.0, 1800.0], np.arange(1, 10) * 3600.0 + 1234.5])
    checked(solve(replace(problem, edges_s=edges)))


def test_at_seventy_per_cent_load_nothing_is_missed_and_the_gap_is_small() -> None:
    plan = checked(solve(cluster(1, jobs=60, nodes=40, h=72, mean_h=8)))
    assert plan.missed == ()
    assert plan.gap < 0.04


def test_a_warm_start_is_as_good() -> None:
    problem = cluster(5, jobs=40, nodes=30, h=48, mean_h=6)
    cold = solve(problem)
    later = replace(problem, jobs=problem.jobs[1:])  # one has ended
    warm = checked(solve(later, cold))
    again = solve(later)
    assert len(warm.missed) <= len(again.missed)
    assert warm.bound_g >= again.bound_g * 0.99
    assert warm.figures["evaluations"] < cold.figures["evaluations"]


def test_deadlines_that_the_plan_before_met_are_not_missed_by_a_new_forecast() -> None:
    problem = cluster(48, jobs=24, nodes=14, h=24, mean_h=4, load=0.9)
    before = solve(problem)
    sites = tuple(replace(site, g_per_kwh=np.roll(site.g_per_kwh, 6)) for site in problem.sites)
    plan = checked(solve(replace(problem, sites=sites), before))
    weight = {job.name: job.priority for job in problem.jobs}
    assert 0 < sum(weight[name] for name in plan.missed) <= sum(weight[name] for name in before.missed)


def test_who_finds_no_place_is_searched_again_with_those_that_may_move_for_it() -> None:
    """Three jobs of one node and six hours each: the short one that comes first sits where the wide one has to be."""
    site = Site(
        name="here", g_per_kwh=np.array([90.0, 90.0, 100.0, 100.0]), power_cap_w=np.full(4, 1e5), pue=np.ones(4)
    )
    pool = Pool(name="pool", site="here", nodes=np.full(4, 2.0))

    def job(name: str, nodes: int, first_h: float, last_h: float, hours: float) -> ClusterJob:
        row = Row(name="on", pool="pool", nodes=nodes, tokens_per_s=10.0 * nodes, power_w=1000.0 * nodes)
        tokens = 36_000.0 * nodes * hours
        return ClusterJob(
            name=name, release_s=first_h * 3600, deadline_s=last_h * 3600, tokens=tokens, rows=(row,), min_run_s=7200.0
        )

    jobs = (job("wide", 2, 0, 4, 2), job("narrow", 1, 0, 4, 2), job("other", 1, 0, 4, 2))
    problem = Problem(edges_s=np.linspace(0.0, 14400.0, 5), sites=(site,), pools=(pool,), jobs=jobs)
    search = _Search(problem)
    repair = _Repair(problem, search, search.prices(None))
    for j, steps in ((1, [0, 1]), (2, [2, 3])):  # each of them leaves one node free, and none leaves two
        rows = np.full(4, OFF)
        rows[steps] = 0
        assert repair._take(j, rows)
    repair.improve()
    assert repair.plan().missed == ()


def test_a_search_of_pairs_takes_nothing_away_and_emits_less() -> None:
    problem = cluster(3, jobs=12, nodes=14, h=12, mean_h=3, stay_s=7200.0, cap=0.61)
    search = _Search(problem)
    repair = _Repair(problem, search, search.prices(None))
    repair.place()
    placed, grams = int(repair._placed.sum()), repair._grams.sum()
    repair.improve()
    assert repair._placed.sum() >= placed and repair._grams.sum() < grams
    free_w = problem.cap_w - repair.plan().used_w()
    assert (free_w >= 0).all() and repair._watts == pytest.approx(free_w, abs=1e-2)


def test_the_same_problem_gives_the_same_plan() -> None:
    problem = cluster(6, jobs=10, nodes=12, h=12, mean_h=3)
    assert solve(problem).to_dict() == solve(problem).to_dict()


def test_what_no_cluster_can_finish_is_missed_and_runs_on_late() -> None:
    problem = cluster(7, jobs=3, nodes=20, h=24, mean_h=3)
    hopeless = replace(problem.jobs[0], tokens=problem.jobs[0].tokens * 3, release_s=0.0, deadline_s=7200.0)
    plan = checked(solve(replace(problem, jobs=(hopeless, *problem.jobs[1:]))))
    assert plan.missed == (hopeless.name,)
    assert plan.late_g > 0
    assert (plan.rows[0, 2:] != OFF).any()


@pytest.mark.parametrize("seed", [0, 2, 3, 8, 13])
def test_no_more_misses_are_excused_than_there_have_to_be(seed: int) -> None:
    problem = cluster(seed, jobs=6, nodes=8, h=8, mean_h=3, load=1.3) if seed % 2 else drawn(seed, most_h=8)
    plan = checked(solve(problem))
    assert plan.excuse is not None
    weight = sum(job.priority for job in problem.jobs if job.name in plan.missed)
    assert 0 < plan.excuse[0] <= cluster_milp.least_misses(problem) * (1 + 1e-9) <= weight * (1 + 2e-9)


def test_what_a_budget_leaves_out_is_proven_to_be_too_much() -> None:
    problem = cluster(8, jobs=6, nodes=20, h=24, mean_h=3)
    free = solve(problem)
    assert free.excuse is None
    plan = checked(solve(replace(problem, budget_g=0.3 * free.grams)))
    weight = sum(job.priority for job in problem.jobs if job.name in plan.missed)
    assert plan.excuse is not None
    assert weight - 1 < plan.excuse[0] <= weight  # weights are whole, so no plan misses less
    assert plan.excuse[1] > 0
    again = Plan.from_dict(json.loads(json.dumps(plan.to_dict())))
    assert again.excuse is not None and again.excuse[2].to_dict() == plan.excuse[2].to_dict()


def test_a_budget_holds_and_the_weightiest_jobs_stay() -> None:
    problem = cluster(8, jobs=6, nodes=20, h=24, mean_h=3)
    free = solve(problem)
    plan = checked(solve(replace(problem, budget_g=0.6 * free.grams)))
    assert plan.grams + plan.late_g <= 0.6 * free.grams
    assert 0 < len(plan.missed) < 6


def test_a_cap_that_falls_waives_the_shortest_stay_of_what_it_stops() -> None:
    problem = cluster(9, jobs=6, nodes=12, h=12, stay_s=4 * 3600.0, running=1.0, cap=1.0, mean_h=3)
    jobs = tuple(replace(job, held_s=0.0) if job.current is not None else job for job in problem.jobs)
    running = sum(job.current is not None for job in jobs)
    assert running >= 2
    cap = np.array([2500.0 * 1.2] * 3 + [100_000.0] * 9)
    plan = checked(solve(replace(problem, jobs=jobs, sites=(replace(problem.sites[0], power_cap_w=cap),))))
    assert (plan.used_w()[0, :3] <= 2500.0).all()


def test_an_empty_cluster_has_an_empty_plan() -> None:
    plan = checked(solve(replace(cluster(1, jobs=1, nodes=4, h=4), jobs=())))
    assert plan.rows.shape == (0, 4)
    assert plan.gap == 0.0


def menu(idle_w: float | None) -> Menu:
    table = ActionTable.declare(
        [
            {"gear": "bf16", "tokens_per_s": 100, "power_w": 500},
            {"gear": "fp8", "tokens_per_s": 150, "power_w": 640},
            {"gear": "fp8", "cap": 0.7, "tokens_per_s": 130, "power_w": 450},
        ],
        device="declared",
    )
    return Menu.of(table, released=idle_w is None, idle_w=idle_w)


@pytest.mark.parametrize(("idle_w", "pausable"), [(None, True), (90.0, True), (None, False)])
def test_of_one_job_the_bound_is_that_of_the_water_level(idle_w: float | None, pausable: bool) -> None:
    h = 72
    g_per_kwh, edges_s = grid(np.random.default_rng(2), h, 3600.0), np.arange(h + 1, dtype=np.float64) * 3600.0
    tokens = 0.45 * h * 3600 * 150
    plan = solve_alone(g_per_kwh, edges_s, tokens, menu(idle_w), pausable=pausable)
    assert plan is not None
    checked(plan)
    assert plan.missed == ()
    if pausable:
        best = waterfill.solve(g_per_kwh, np.full(h, 3600.0), tokens, menu(idle_w))
        # Ranks that are held until an end that is chosen make no convex problem: one price then proves a little less.
        assert plan.bound_g == pytest.approx(best.grams, rel=2e-3 if idle_w is None else 3e-2)
        assert plan.bound_g <= best.grams * (1 + 1e-9)
        assert plan.gap < (0.02 if idle_w is None else 0.04)
    else:
        on = np.flatnonzero(plan.rows[0] != OFF)
        assert on.tolist() == list(range(len(on)))
