"""Policies that learn, on real grids."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from greentrain.carbon.forecast import profile_forecast
from greentrain.config.schema import GreenConfig
from greentrain.policy.action_sources import reference_table
from greentrain.policy.carbongear import CarbonGear
from greentrain.policy.chain import IntensityChain
from greentrain.policy.decision_kernel import DecisionKernel
from greentrain.policy.menu import Menu
from greentrain.policy.mpc import Mpc
from greentrain.policy.outlook import SchedulePolicy
from greentrain.policy.registry import caution, open_schedule
from greentrain.simulator.grid_trace import GridTrace, Sight
from greentrain.simulator.jobs import Jobs, windows
from greentrain.simulator.simulate import simulate
from greentrain.simulator.world import Track, World
from tests.simulator.grids import HOUR, trace, wandering
from tools.make_chain import TRACES, make_chain

MENU = Menu.of(reference_table())
RESIZE_S = 600.0
DAYS_S = 14 * 86400.0
TOKENS = float(MENU.tokens_per_s[MENU.static]) * DAYS_S


def config(**policy: Any) -> GreenConfig:
    return GreenConfig.load({"policy": {"tokens": TOKENS / 1.25, "deadline_h": DAYS_S / HOUR, **policy}})


def run(world: World, policy: SchedulePolicy, jobs: Jobs, switch_s: float = RESIZE_S) -> Track:
    return world.run(DecisionKernel(policy, MENU, switch_s=switch_s), jobs)


# Zones, years and accountings that the chain was never counted on, and two grids with their own hours taken out.
@pytest.mark.sweep
@pytest.mark.parametrize(
    "name", ["de_2023_em", "gb_2023_em", "us_caiso_2023_em", "us_ercot_2022_eia", "us_pjm_2022_eia"]
)
def test_a_learned_width_beats_plans_that_forget_ten_minutes_a_resize_on_grids_never_seen(
    name: str, traces: Path
) -> None:
    others = [other for other in TRACES if other != name]
    chain = IntensityChain.shipped() if len(others) == len(TRACES) else make_chain(traces, others)
    grid = GridTrace.read(traces / f"{name}.csv")
    world = World(grid, Sight(grid, profile_forecast, horizon_h=337))
    learned = CarbonGear(MENU, switch_s=RESIZE_S, chain=chain)
    for slack in (1.0, 1.75):
        jobs = Jobs.alike(windows(grid, 4, length_s=DAYS_S), tokens=TOKENS / slack, deadline_s=DAYS_S)
        ours, mpc = (run(world, policy, jobs) for policy in (learned, Mpc(MENU)))
        assert not ours.missed.any() and not mpc.missed.any()
        assert ours.grams.sum() < mpc.grams.sum()
        assert ours.switches.sum() < mpc.switches.sum() / 2


def test_the_printed_algorithm_misses_every_deadline_where_nothing_shields_it() -> None:
    grid = trace(wandering(900))
    asked = config(name="carbongear-printed", seed=3)
    alone = simulate(asked, [grid], policies=["carbongear-printed"], table=reference_table(), count=3, shield=False)
    names = ["carbongear-printed", "carbon_blind"]
    kept = simulate(asked, [grid], policies=names, table=reference_table(), count=3)
    done = 1 - alone.outcomes[0].track.tokens_left / (TOKENS / 1.25)
    assert alone.outcomes[0].misses == 3 and 0.6 < done.mean() < 0.9
    assert kept.outcomes[0].misses == 0 and kept.outcomes[0].track.shielded.sum() > 30
    assert kept.outcomes[0].saving < kept.outcomes[1].saving - 0.05, "worse than not to look at the grid at all"


def test_who_chooses_the_printed_algorithm_for_training_is_told() -> None:
    told = caution(config(name="carbongear-printed").policy)
    assert told is not None and "'carbongear' or 'mpc'" in told
    assert caution(config(name="carbongear").policy) is None


def test_settings_reach_the_policy() -> None:
    opened = open_schedule(config(name="carbongear", switch_s=RESIZE_S, decide_s=7200.0).policy, MENU)
    assert isinstance(opened, CarbonGear)
    by_hand = CarbonGear(MENU, switch_s=RESIZE_S, epoch_s=7200.0)
    grid = trace(wandering(900))
    world = World(grid, Sight(grid, profile_forecast, horizon_h=337), 7200.0)
    jobs = Jobs.alike(windows(grid, 2, length_s=DAYS_S), tokens=TOKENS / 1.5, deadline_s=DAYS_S)
    assert (run(world, opened, jobs).grams == run(world, by_hand, jobs).grams).all()


def test_draws_differ_between_seeds_of_a_window_and_not_between_runs() -> None:
    grid = trace(wandering(900))
    world = World(grid, Sight(grid, profile_forecast, horizon_h=337))
    starts = windows(grid, 1, length_s=DAYS_S)
    jobs = Jobs.alike(starts, tokens=TOKENS / 1.5, deadline_s=DAYS_S, seeds=3)
    one, two = (run(world, CarbonGear(MENU, switch_s=RESIZE_S, seed=5), jobs) for _ in range(2))
    assert (one.grams == two.grams).all()
    assert len(np.unique(one.grams)) == 3 and not one.missed.any()


def test_jobs_can_be_run_epoch_by_epoch() -> None:
    grid = trace(wandering(900))
    world = World(grid, Sight(grid, profile_forecast, horizon_h=337))
    jobs = Jobs.alike(windows(grid, 2, length_s=DAYS_S), tokens=TOKENS / 1.5, deadline_s=DAYS_S)
    kernel = DecisionKernel(Mpc(MENU), MENU)
    course = world.begin(kernel, jobs)
    while not course.over:
        rows = kernel.decide(course.look()).rows
        assert (course.step().rows == rows).all()
    assert (course.track().grams == world.run(kernel, jobs).grams).all()
