"""What plans are held against, and that a run is held against the same."""

import numpy as np
import pytest

from greentrain.errors import ConfigError
from greentrain.policy.action_sources import IDLE_NODE_W, reference_table
from greentrain.policy.baselines import StaticSchedule
from greentrain.policy.decision_kernel import DecisionKernel
from greentrain.policy.hindsight import judge
from greentrain.policy.menu import Menu
from greentrain.simulator.grid_trace import Sight
from greentrain.simulator.jobs import Jobs
from greentrain.simulator.simulate import constant_pace, references
from greentrain.simulator.world import World
from tests.simulator.grids import HOUR, START, trace, wandering

FREE = Menu.of(reference_table())
HELD = Menu.of(reference_table(), released=False, idle_w=IDLE_NODE_W)
STATIC = float(FREE.tokens_per_s[FREE.static])


@pytest.mark.parametrize("menu", [FREE, HELD])
def test_they_are_those_of_a_run_in_hindsight(menu: Menu) -> None:
    grid = trace(wandering(300, 5))
    jobs = Jobs(
        start_unix_s=START + np.array([0.0, 30.0, 71.25]) * HOUR,
        deadline_s=np.array([40.0, 55.5, 100.0]) * HOUR,
        tokens=STATIC * np.array([40.0, 30.0, 50.0]) * HOUR,
    )
    known = references(grid, jobs, menu)
    for i in range(3):
        seen, seconds = grid.window(float(jobs.start_unix_s[i]), float(jobs.deadline_s[i]))
        verdict = judge(seen, seconds, menu, float(jobs.tokens[i]), 1.0)
        assert known.static_g[i] == pytest.approx(verdict.static_g)
        assert known.blind_g[i] == pytest.approx(verdict.blind_g)
        assert known.oracle_g[i] == pytest.approx(verdict.oracle_g)


def test_static_is_what_a_static_job_emits() -> None:
    grid = trace(wandering(300, 6))
    jobs = Jobs.alike(np.array([START + 10 * HOUR]), tokens=STATIC * 20.5 * HOUR, deadline_s=30 * HOUR)
    track = World(grid, Sight(grid, None, horizon_h=30)).run(DecisionKernel(StaticSchedule(FREE), FREE), jobs)
    assert track.grams == pytest.approx(references(grid, jobs, FREE).static_g)


def test_where_ranks_are_held_nobody_crawls() -> None:
    jobs = Jobs.alike(np.array([START]), tokens=STATIC * HOUR, deadline_s=100 * HOUR)
    free, held = constant_pace(jobs, FREE)[0][0], constant_pace(jobs, HELD)[0][0]
    assert free == pytest.approx(STATIC / 100) and held > 0.8 * STATIC


def test_an_impossible_job_is_told_when_it_could_be_done() -> None:
    jobs = Jobs.alike(np.array([START]), tokens=STATIC * 27 * HOUR, deadline_s=10 * HOUR)
    with pytest.raises(ConfigError, match=r"earliest feasible deadline is 72000 s \(20 h\) after the start"):
        references(trace(wandering(100)), jobs, FREE)
