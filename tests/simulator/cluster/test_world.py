"""What a cluster does with what a policy says: GPUs, caps, work, grams, failures, moves."""

import math
from dataclasses import replace

import numpy as np
import pytest

from greentrain.errors import ConfigError, TraceError
from greentrain.simulator.cluster.policies import Fcfs, open_policy
from greentrain.simulator.cluster.workload import Ints
from greentrain.simulator.cluster.world import (
    Choice,
    Event,
    Failures,
    FleetPool,
    FleetRun,
    FleetSite,
    FleetWorld,
    View,
)
from greentrain.types import J_PER_KWH
from tests.simulator.cluster.fleets import drawn, fleet, jobs
from tests.simulator.grids import HOUR, START, trace

FULL_W = 8 * 975.0
"""Of a node at full power."""


class Says:
    """Says the fastest rows in the order of arrival, at pools that a test gives."""

    name = "says"

    def __init__(self, pools: dict[int, int] | None = None) -> None:
        self.views: list[View] = []
        self._pools = pools or {}

    def decide(self, view: View) -> Choice:
        self.views.append(view)
        pool = self._pools.get(round(view.t_s / HOUR), 0)
        pools: Ints = np.full(len(view.job), pool)
        return Choice(rows=view.tables.fastest[view.kind], pools=pools, order=np.arange(len(view.job)))


def test_one_job_alone_by_hand() -> None:
    grid = trace(np.arange(60 * 24, dtype=float))
    world = fleet(jobs((0.5, 10, 8, 1.5)), grid=grid, switch_s=600.0)
    run = world.run(Says())
    assert run.first_s.tolist() == [HOUR]  # at the first step after its release
    assert run.end_s.tolist() == pytest.approx([HOUR + 600 + 1.5 * HOUR])
    used_s = 600 + 1.5 * HOUR
    assert run.joules.tolist() == pytest.approx([FULL_W * used_s])
    first = 30 * 24 + 1
    grams = FULL_W * (HOUR * first + (used_s - HOUR) * (first + 1)) / J_PER_KWH
    assert run.grams.tolist() == pytest.approx([grams])
    assert run.money.tolist() == pytest.approx([0.1 * FULL_W * used_s / J_PER_KWH])
    assert run.facility_w[0, :3].tolist() == pytest.approx([0, FULL_W, FULL_W])
    assert (run.starts.tolist(), run.moves.tolist(), run.failures.tolist()) == ([1], [0], [0])


def test_no_gpu_works_for_two_jobs_and_a_later_one_that_fits_goes_on() -> None:
    world = fleet(jobs((0, 20, 32, 2), (0, 20, 64, 2), (0, 20, 16, 2)), gpus=64)
    run = world.run(Says())
    assert run.first_s.tolist() == [0.0, 3 * HOUR, 0.0]
    assert run.gpus.max() <= 64 and run.refused > 0


@pytest.mark.parametrize(
    "name", ["fcfs", "carbon_blind", "suspend_resume", "gaia_like", "carbonflex_like", "pcaps_like"]
)
def test_what_is_booked_adds_up_and_no_cap_is_passed(name: str) -> None:
    cap_w = 0.8 * 128 * 975.0
    event = Event(from_s=20 * HOUR, until_s=26 * HOUR, cap_share=0.7)
    world = fleet(drawn(20, days=1.5), gpus=128, cap_w=cap_w, events=[event], failures=Failures(per_gpu_h=1e-3))
    run = world.run(open_policy(name))
    assert np.isfinite(run.end_s).all() and (run.first_s >= world.work.release_s).all()
    assert (run.facility_w <= run.cap_w * (1 + 1e-9)).all(), "a cap was passed, or passed after it had been lowered"
    assert run.cap_w[0, 20:26].tolist() == pytest.approx([0.7 * cap_w] * 6)
    assert run.joules.sum() <= run.facility_w.sum() * HOUR * (1 + 1e-9)
    assert run.gpus.max() <= 128
    shortest_j = 975.0 * 0.6 * world.work.gpus * world.work.shortest_s
    assert (run.joules > 0.9 * shortest_j).all() and run.failures.sum() > 0


def test_each_alone_stampedes_where_one_plan_would_not() -> None:
    clean_at_noon = trace(np.tile(np.where(np.arange(24) == 12, 50.0, 400.0), 120))
    work = jobs(*[(0, 30, 8, 1.0)] * 8)
    run = fleet(work, gpus=64, cap_w=0.5 * 64 * 975.0, grid=clean_at_noon, forecaster=None).run(
        open_policy("each_alone")
    )
    assert run.facility_w.max() > 1.9 * 0.5 * 64 * 975.0
    assert int(np.argmax(run.facility_w[0])) == 12


def test_a_policy_knows_what_users_say_and_never_what_is() -> None:
    work = jobs((0, 40, 8, 4.0))
    says = Says()
    fleet(replace(work, expected_tokens=work.tokens / 2), switch_s=0.0).run(says)
    expected = [view.tokens_left[0] / work.tokens[0] for view in says.views]
    assert expected[:2] == pytest.approx([0.5, 0.25])
    assert len(expected) == 4 and 0 < expected[3] < 0.25, "a job that goes on is expected to end some time"


def test_a_failure_costs_work_and_gpus_until_they_are_repaired() -> None:
    work = jobs((0, 200, 64, 40.0))
    says = Says()
    rule = Failures(per_gpu_h=2e-3, repair_s=3 * HOUR, checkpoint_s=HOUR / 2)
    run = fleet(work, gpus=64, failures=rule, switch_s=0.0).run(says)
    assert run.failures[0] > 0
    assert run.end_s[0] > 40 * HOUR
    assert {int(view.gpus[0]) for view in says.views} == {56, 64}
    assert run.starts[0] == run.failures[0] + 1


def test_a_move_between_sites_costs_its_time_and_is_counted() -> None:
    grids = [trace(np.full(60 * 24, value), name=name) for value, name in ((500.0, "a"), (100.0, "b"))]
    world = FleetWorld(
        sites=tuple(
            FleetSite(grid=grid, pue=pue, price_per_kwh=0.0, egress_per_gb=fee)
            for grid, pue, fee in zip(grids, (1.0, 1.5), (0.02, math.nan), strict=True)
        ),
        pools=(FleetPool(name="a", site=0, gpus=8), FleetPool(name="b", site=1, gpus=8, speed=0.5, power=0.8)),
        work=jobs((0, 90, 8, 4.0)),
        start_unix_s=START + 30 * 24 * HOUR,
        switch_s=120.0,
        checkpoint_gb=75.0,
        link_gbit_s=10.0,
        link_kwh_per_gb=0.05,
    )
    says = Says({hour: 1 for hour in range(2, 99)})
    run = world.run(says)
    assert (run.starts[0], run.moves[0]) == (2, 1)
    assert run.end_s[0] == pytest.approx(2 * HOUR + 600 + 2 * (2 * HOUR + 120))
    in_b_j = FULL_W * 0.8 * 1.5 * (run.end_s[0] - 2 * HOUR)
    assert run.joules[0] == pytest.approx(FULL_W * 2 * HOUR + in_b_j)
    transfer_g = 8 * 75 * 0.05 * (500 + 100) / 2
    assert run.transfer_g[0] == pytest.approx(transfer_g)
    assert run.grams[0] == pytest.approx((FULL_W * 2 * HOUR * 500 + in_b_j * 100) / J_PER_KWH + transfer_g)
    assert run.money[0] == pytest.approx(8 * 75 * 0.02)
    assert says.views[2].move_s.tolist() == [480.0]
    assert says.views[2].move_g.tolist() == pytest.approx([transfer_g])
    assert run.facility_w[1].max() == pytest.approx(FULL_W * 0.8 * 1.5)


def test_a_transfer_that_is_longer_than_a_step_takes_the_next_ones_too_and_money_of_no_price_is_unknown() -> None:
    grids = [trace(np.full(60 * 24, 100.0), name=name) for name in "ab"]
    world = FleetWorld(
        sites=tuple(FleetSite(grid=grid, price_per_kwh=0.1) for grid in grids),
        pools=(FleetPool(name="a", site=0, gpus=8), FleetPool(name="b", site=1, gpus=8)),
        work=jobs((0, 90, 8, 4.0), (0, 90, 8, 1.0)),
        start_unix_s=START + 30 * 24 * HOUR,
        switch_s=0.0,
        checkpoint_gb=9000.0 / 8 * 2 / 8,
        link_gbit_s=2.0,
    )
    run = world.run(Says({hour: 1 for hour in range(1, 99)}))
    assert run.moves.tolist() == [1, 0]
    assert run.end_s[0] == pytest.approx(4 * HOUR + 9000.0)
    assert math.isnan(run.money[0]) and not math.isnan(run.money[1])


def test_an_event_is_known_once_it_is_announced() -> None:
    event = Event(from_s=10 * HOUR, until_s=12 * HOUR, cap_share=0.7, told_s=2 * HOUR)
    says = Says()
    fleet(jobs((0, 30, 8, 14.0)), cap_w=1e6, events=[event]).run(says)
    assert says.views[7].cap_w[0, :5].tolist() == [1e6] * 5
    assert says.views[8].cap_w[0, :5].tolist() == [1e6, 1e6, 0.7e6, 0.7e6, 1e6]


def test_five_minutes_give_the_same_work_as_an_hour() -> None:
    work = jobs((0, 30, 8, 3.3))
    hour, minutes = (fleet(work, step_s=step_s).run(Fcfs()) for step_s in (HOUR, 300.0))
    assert minutes.end_s[0] == pytest.approx(hour.end_s[0]) and minutes.grams[0] == pytest.approx(hour.grams[0])


def test_the_same_world_gives_the_same_run() -> None:
    def once() -> FleetRun:
        return fleet(drawn(8, days=1.0), gpus=128, failures=Failures(per_gpu_h=1e-3)).run(open_policy("pcaps_like"))

    one, two = once(), once()
    assert (one.grams == two.grams).all() and (one.end_s == two.end_s).all() and (one.failures == two.failures).all()


def test_what_cannot_be_simulated_is_refused() -> None:
    with pytest.raises(ConfigError, match="job 0 has 128 GPUs and the largest pool 64"):
        fleet(jobs((0, 10, 128, 1.0)))
    with pytest.raises(TraceError, match=r"but grid 'made up' covers .* take another start or fewer days"):
        fleet(jobs((0, 10, 8, 1.0)), grid=trace(np.ones(31 * 24)))
    with pytest.raises(ConfigError, match="step_s is 7200"):
        fleet(jobs((0, 10, 8, 1.0)), step_s=7200.0)
