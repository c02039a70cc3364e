"""One plan for all: near the bound, within every cap, and no later than its jobs ask for."""

from dataclasses import replace

import numpy as np
import pytest

from greentrain.carbon.forecast import profile_forecast
from greentrain.simulator.cluster.planned import Planned, _edges_s, _means, hindsight
from greentrain.simulator.cluster.policies import POLICIES, Fcfs, open_policy
from greentrain.simulator.cluster.result import slowdown_by_user
from greentrain.simulator.cluster.world import Choice, Event, FleetPool, FleetSite, FleetWorld, View
from tests.simulator.cluster.fleets import fleet, jobs
from tests.simulator.grids import HOUR, START, trace

WAVE = 250.0 - 180.0 * np.sin(np.arange(120 * 24) * 2 * np.pi / 24)
WORK = jobs(*[(2 * i, 2 * i + 26, 32, 3.0 + i % 3) for i in range(6)], users=(0, 1, 2, 0, 1, 2))
CAP_W = 0.5 * 96 * 975.0


def test_it_is_near_the_bound_and_below_all_others_where_it_knows_the_grid() -> None:
    world = fleet(WORK, gpus=192, grid=trace(WAVE), forecaster=None, tail_h=6.0)
    best, run = hindsight(world), world.run(Planned())
    assert not best.missed and (run.end_s <= WORK.deadline_s).all()
    assert best.bound_g <= run.grams.sum() <= 1.03 * best.bound_g
    for name in POLICIES:
        other = world.run(open_policy(name))
        assert (other.end_s <= WORK.deadline_s).all()
        assert run.grams.sum() < other.grams.sum(), name


def test_a_cap_that_falls_unannounced_is_kept_in_the_same_step_and_no_deadline_is_missed() -> None:
    event = Event(from_s=6 * HOUR, until_s=9 * HOUR, cap_share=0.7)
    world = fleet(WORK, gpus=96, cap_w=CAP_W, grid=trace(WAVE), forecaster=None, events=[event], tail_h=6.0)
    best = hindsight(world)
    assert not best.missed
    run = world.run(Planned())
    assert (run.end_s <= WORK.deadline_s).all()
    assert best.bound_g <= run.grams.sum()
    assert (run.facility_w <= run.cap_w * (1 + 1e-9)).all() and run.refused == 0
    assert run.facility_w[0, 6:9].min() > 0.5 * 0.7 * CAP_W, "the event binds"


def test_a_user_who_asks_for_it_is_never_twice_as_slow_as_under_fcfs() -> None:
    world = fleet(WORK, gpus=96, grid=trace(WAVE), forecaster=None, tail_h=6.0, switch_s=0.0)
    run = world.run(Planned(slowdown=2.0))
    assert run.policy == "planned_2x"
    assert (slowdown_by_user(run) <= 2.0 * slowdown_by_user(world.run(Fcfs())) + 0.35).all()


def test_it_plans_at_events_and_not_every_hour() -> None:
    work = jobs((0, 30, 32, 4.0), (5, 30, 8, 3.0))
    policy = Planned()
    fleet(work, gpus=64, grid=trace(WAVE), forecaster=None, tail_h=2.0).run(policy)
    assert 2 <= policy.plans <= 6


def test_a_job_that_runs_needs_no_second_start_to_meet_its_deadline() -> None:
    """Its deadline leaves it a minute: it may not be given up for the two of a start when another job comes."""
    grid = trace(np.where(np.arange(120 * 24) < 30 * 24 + 5, 500.0, 50.0))
    work = jobs((0, 5, 8, 4.95), (0.5, 40, 8, 1.0))
    policy = Planned()
    run = fleet(work, gpus=16, grid=grid, forecaster=None, tail_h=6.0).run(policy)
    assert policy.plans > 1 and (run.end_s <= work.deadline_s).all()


def test_a_job_that_takes_longer_than_its_user_said_goes_on_at_once() -> None:
    work = jobs((0, 60, 8, 6.0))
    wrong = replace(work, expected_tokens=work.tokens / 2)
    run = fleet(wrong, gpus=8, grid=trace(np.full(120 * 24, 100.0)), forecaster=None, tail_h=2.0).run(Planned())
    on = np.flatnonzero(run.facility_w[0])
    assert (np.diff(on) <= 2).all() and np.isfinite(run.end_s[0])


def test_swings_that_do_not_come_are_not_planned_with() -> None:
    class Believing(Planned):
        def decide(self, view: View) -> Choice:
            assert view.trust[0] < 0.3
            return super().decide(replace(view, trust=np.ones(1)))

    grid = trace(250.0 + np.random.default_rng(0).normal(0.0, 60.0, 120 * 24))
    world = fleet(WORK, gpus=192, grid=grid, forecaster=profile_forecast, tail_h=6.0)
    assert world.run(Planned(every_h=6)).grams.sum() < world.run(Believing(every_h=6)).grams.sum()
    assert fleet(WORK, gpus=192, grid=grid, forecaster=None).trust(0.0).tolist() == [1.0]


def test_jobs_go_to_the_clean_site_and_do_not_commute() -> None:
    sites = tuple(
        FleetSite(grid=trace(np.full(60 * 24, value), name=name)) for value, name in ((400.0, "a"), (80.0, "b"))
    )
    world = FleetWorld(
        sites=sites,
        pools=(FleetPool(name="a", site=0, gpus=32), FleetPool(name="b", site=1, gpus=32)),
        work=jobs((0, 20, 8, 3.0), (0, 20, 8, 4.0)),
        start_unix_s=START + 30 * 24 * HOUR,
        tail_h=2.0,
    )
    run = world.run(Planned())
    assert run.facility_w[0].sum() == 0.0 and run.facility_w[1].sum() > 0
    assert run.moves.sum() == 0 and (run.end_s <= world.work.deadline_s).all()


@pytest.mark.parametrize(("kwh_per_gb", "moves"), [(0.0, True), (0.06, True), (6.0, False)])
def test_nothing_moves_that_does_not_pay(kwh_per_gb: float, moves: bool) -> None:
    """Each site is clean for half of each day, and no job can be done in one half."""
    half = np.where(np.arange(120 * 24) % 24 < 12, 60.0, 400.0)
    sites = tuple(FleetSite(grid=trace(grid, name=name)) for grid, name in ((half, "a"), (460.0 - half, "b")))
    world = FleetWorld(
        sites=sites,
        pools=(FleetPool(name="a", site=0, gpus=8), FleetPool(name="b", site=1, gpus=8)),
        work=jobs((0, 24, 8, 15.0)),
        start_unix_s=START + 30 * 24 * HOUR,
        tail_h=2.0,
        link_kwh_per_gb=kwh_per_gb,
    )
    run, stays = world.run(Planned()), replace(world, link_kwh_per_gb=1e9).run(Planned())
    assert stays.moves.sum() == 0 and (run.end_s <= world.work.deadline_s).all()
    assert bool(run.moves.sum()) is moves
    assert run.transfer_g.sum() == pytest.approx(run.moves.sum() * 128 * kwh_per_gb * 230.0)
    assert run.grams.sum() < 0.8 * stays.grams.sum() if moves else run.grams.sum() == stays.grams.sum()
    assert hindsight(world).bound_g <= run.grams.sum()


def test_edges_are_hours_for_a_day_and_keep_deadlines_that_are_tight() -> None:
    edges_h = _edges_s(5.5 * HOUR, 100 * HOUR, np.array([50 * HOUR])) / HOUR
    assert edges_h[:3].tolist() == [5.5, 6.0, 7.0] and edges_h[-1] == 100
    assert 50 in edges_h and 51 not in edges_h
    assert np.diff(edges_h).max() <= 6 and len(edges_h) < 60


def test_means_over_steps_are_of_the_hours_in_them() -> None:
    seen: list[View] = []

    class Looks(Fcfs):
        def decide(self, view: View) -> Choice:
            seen.append(view)
            return super().decide(view)

    fleet(jobs((0, 60, 8, 1.0)), grid=trace(np.arange(120 * 24, dtype=float)), forecaster=None, tail_h=1.0).run(Looks())
    view = seen[0]
    edges_s = view.start_unix_s + np.array([0, 1, 3, 6]) * HOUR
    first = 30 * 24
    assert _means(view.g_per_kwh, view, edges_s)[0].tolist() == pytest.approx([first, first + 1.5, first + 4.0])
    assert _means(view.g_per_kwh, view, edges_s, lowest=True)[0].tolist() == [first, first + 1, first + 3]
