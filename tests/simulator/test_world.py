"""Jobs on a grid: what they emit, when they end, and what holds for every plan."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from greentrain.errors import TraceError
from greentrain.policy.action_sources import IDLE_NODE_W, reference_table
from greentrain.policy.baselines import CarbonBlind, LowestWindow, Spot, StaticSchedule, Threshold
from greentrain.policy.decision_kernel import DecisionKernel
from greentrain.policy.menu import OFF, Menu
from greentrain.policy.mpc import Mpc, MpcSwitching
from greentrain.policy.outlook import SchedulePolicy
from greentrain.policy.waterfill import solve
from greentrain.simulator.grid_trace import Array, Forecaster, GridTrace, Sight
from greentrain.simulator.jobs import Jobs
from greentrain.simulator.simulate import references
from greentrain.simulator.world import Track, World
from tests.policy.cases import small_menu
from tests.policy.drive import Fixed
from tests.simulator.grids import HOUR, START, daily, trace, wandering

MENU = Menu.of(reference_table())
STATIC = float(MENU.tokens_per_s[MENU.static])
DAY = 24 * HOUR


def run(
    policy: SchedulePolicy,
    grid: GridTrace,
    *,
    tokens: float,
    deadline_s: float,
    starts_h: tuple[float, ...] = (48.0,),
    forecaster: Forecaster | None = daily,
    menu: Menu = MENU,
    epoch_s: float = HOUR,
    **rules: Any,
) -> Track:
    sight = Sight(grid, forecaster, horizon_h=int(deadline_s / HOUR) + 1, past_h=48)
    jobs = Jobs.alike(START + np.array(starts_h) * HOUR, tokens=tokens, deadline_s=deadline_s)
    return World(grid, sight, epoch_s).run(DecisionKernel(policy, menu, **rules), jobs, history=True)


def policies(menu: Menu) -> list[SchedulePolicy]:
    return [StaticSchedule(menu), CarbonBlind(menu), Threshold(menu), LowestWindow(menu), Mpc(menu), Spot(menu)]


# -- the books ---------------------------------------------------------------------------------------------------


def test_a_static_job_by_hand() -> None:
    grid = trace(np.array([100.0] * 48 + [200.0, 400.0, 300.0, 300.0]))
    track = run(StaticSchedule(MENU), grid, tokens=STATIC * 1.5 * HOUR, deadline_s=4 * HOUR)
    assert track.end_s.tolist() == pytest.approx([1.5 * HOUR])
    assert track.joules.tolist() == pytest.approx([62_400.0 * 1.5 * HOUR])
    assert track.grams.tolist() == pytest.approx([62.4 * (200.0 + 0.5 * 400.0)])
    assert track.tokens_left.tolist() == [0.0] and not track.missed.any()
    assert (track.switches.tolist(), track.shielded.tolist(), track.decisions) == ([0], [0], 2)
    history = track.history
    assert history is not None
    assert history.rows.tolist() == [[MENU.static, MENU.static, OFF, OFF]]
    assert history.grams.tolist() == [pytest.approx([62.4 * 200.0, 62.4 * 200.0, 0.0, 0.0])]
    assert history.tokens.sum() == pytest.approx(STATIC * 1.5 * HOUR)
    assert history.g_per_kwh[0, :2].tolist() == [200.0, 400.0]


def test_a_change_of_width_trains_nothing_for_a_while_at_full_power() -> None:
    four = MENU.names().index("bf16 on 4")
    grid = trace(np.full(60, 100.0))
    speed = float(MENU.tokens_per_s[four])
    track = run(Fixed([four]), grid, tokens=speed * 2 * HOUR, deadline_s=9 * HOUR, switch_s=1.5 * HOUR)
    assert track.switches.tolist() == [1]
    assert track.end_s.tolist() == pytest.approx([3.5 * HOUR])
    assert track.joules.tolist() == pytest.approx([MENU.power_w[four] * 3.5 * HOUR])
    assert track.history is not None
    assert track.history.tokens[0, :4] / speed / HOUR == pytest.approx([0.0, 0.5, 1.0, 0.5])


def test_a_change_of_gear_trains_nothing_for_a_while_and_is_no_change_of_width() -> None:
    fp8 = MENU.names().index("fp8 on 8")
    grid, speed = trace(np.full(60, 100.0)), float(MENU.tokens_per_s[fp8])
    track = run(Fixed([fp8]), grid, tokens=speed * 2 * HOUR, deadline_s=9 * HOUR, shift_s=600.0)
    assert track.switches.tolist() == [0]
    assert track.end_s.tolist() == pytest.approx([2 * HOUR + 600.0])
    assert track.joules.tolist() == pytest.approx([MENU.power_w[fp8] * (2 * HOUR + 600.0)])


@pytest.mark.parametrize("epoch_s", [HOUR, 600.0])
def test_shifts_that_take_time_miss_no_deadline(epoch_s: float) -> None:
    grid, most = trace(wandering(200)), float(MENU.tokens_per_s.max()) * (60 * HOUR - 500.0)
    for policy in (*policies(MENU), MpcSwitching(MENU, shift_s=500.0)):
        track = run(policy, grid, tokens=most, deadline_s=60 * HOUR, epoch_s=epoch_s, shift_s=500.0)
        assert not track.missed.any(), policy.name


def test_held_ranks_are_paid_until_the_end() -> None:
    menu = Menu.of(reference_table(), released=False, idle_w=IDLE_NODE_W)
    grid = trace(np.full(60, 100.0))
    one = menu.names().index("bf16 on 1")
    track = run(Fixed([one]), grid, tokens=menu.tokens_per_s[one] * HOUR, deadline_s=9 * HOUR, menu=menu)
    assert track.joules.tolist() == pytest.approx([(7800.0 + 7 * IDLE_NODE_W) * HOUR])


def test_a_miss_is_told() -> None:
    grid = trace(np.full(60, 100.0))
    track = run(StaticSchedule(MENU), grid, tokens=STATIC * 1e3 * HOUR, deadline_s=2.5 * HOUR)
    assert track.missed.tolist() == [True]
    assert track.end_s.tolist() == [2.5 * HOUR]
    done = STATIC * 1e3 * HOUR - track.tokens_left[0]
    assert done == pytest.approx(float(MENU.tokens_per_s[MENU.fastest]) * 2.5 * HOUR)


def test_a_job_outside_the_trace_is_refused_with_its_times() -> None:
    grid = trace(np.full(60, 100.0))
    with pytest.raises(TraceError, match=r"from 2022-01-03T00:00Z for 13.0 h.*2022-01-01T00:00Z to 2022-01-03T12:00Z"):
        run(StaticSchedule(MENU), grid, tokens=1.0, deadline_s=13 * HOUR)


def test_jobs_side_by_side_are_like_each_alone() -> None:
    grid = trace(wandering(400))
    starts = (48.0, 72.5, 100.0, 61.0)
    rules: dict[str, Any] = {"switch_s": 300.0, "dwell_s": 2 * HOUR, "margin_s": 600.0}
    for policy in policies(MENU):
        together = run(policy, grid, tokens=STATIC * 40 * HOUR, deadline_s=3 * DAY, starts_h=starts, **rules)
        for i, start in enumerate(starts):
            alone = run(policy, grid, tokens=STATIC * 40 * HOUR, deadline_s=3 * DAY, starts_h=(start,), **rules)
            assert alone.grams[0] == pytest.approx(together.grams[i], rel=1e-12)
            assert alone.switches[0] == together.switches[i]


def test_twice_the_same() -> None:
    grid = trace(wandering(300))
    for policy in policies(MENU):
        a, b = (run(policy, grid, tokens=STATIC * 40 * HOUR, deadline_s=3 * DAY) for _ in range(2))
        assert a.grams.tolist() == b.grams.tolist()


# -- what holds for every plan -------------------------------------------------------------------------------------


@pytest.mark.long
@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 10_000), slack=st.floats(1.0, 3.0), held=st.booleans())
def test_more_slack_never_costs_carbon_with_perfect_foresight(seed: int, slack: float, held: bool) -> None:
    menu = Menu.of(reference_table(), released=not held, idle_w=IDLE_NODE_W if held else None)
    grid = trace(wandering(400, seed))
    grams = [
        run(Mpc(menu), grid, tokens=STATIC * 48 * HOUR, deadline_s=s * 48 * HOUR, forecaster=None, menu=menu).grams[0]
        for s in (slack, slack * 1.3)
    ]
    assert grams[1] <= grams[0] * 1.002  # one row an epoch instead of a mixture


@settings(deadline=None, max_examples=15)
@given(g=st.floats(1.0, 900.0), slack=st.floats(1.0, 3.0))
def test_on_a_constant_grid_mpc_is_the_plan_of_least_energy(g: float, slack: float) -> None:
    grid = trace(np.full(48 + 200, g))
    jobs = Jobs.alike(np.array([START + 48 * HOUR]), tokens=STATIC * 48 * HOUR, deadline_s=slack * 48 * HOUR)
    least = references(grid, jobs, MENU)
    assert least.oracle_g == pytest.approx(least.blind_g, rel=1e-9)
    for policy in (Mpc(MENU), CarbonBlind(MENU)):
        track = run(policy, grid, tokens=STATIC * 48 * HOUR, deadline_s=slack * 48 * HOUR)
        assert track.grams == pytest.approx(least.blind_g, rel=2e-3)
        assert track.switches[0] <= 4


@pytest.mark.parametrize("factor", [0.25, 3.7])
def test_another_unit_of_carbon_changes_no_decision(factor: float) -> None:
    values = wandering(300)
    for policy in policies(MENU):
        rows: list[NDArray[np.int64]] = []
        for scale in (1.0, factor):
            track = run(policy, trace(values * scale), tokens=STATIC * 50 * HOUR, deadline_s=4 * DAY, switch_s=60.0)
            assert track.history is not None
            rows.append(track.history.rows)
        assert np.array_equal(rows[0], rows[1]), policy.name


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 2**32 - 1),
    share=st.floats(0.3, 1.0),
    hours=st.floats(3.0, 40.0),
    epoch_s=st.sampled_from([300.0, HOUR, 5400.0]),
    switch_s=st.sampled_from([0.0, 600.0, 5000.0]),
    lies=st.sampled_from(["noise", "nothing", "the opposite", "zeros"]),
)
def test_tokens_are_met_whatever_the_forecast_says(
    seed: int, share: float, hours: float, epoch_s: float, switch_s: float, lies: str
) -> None:
    rng = np.random.default_rng(seed)
    menu = small_menu(rng, int(rng.integers(1, 6)), idle_w=30.0 if rng.random() < 0.3 else None)
    grid = trace(wandering(120, seed % 1000))

    def forecaster(past: Array, ahead_h: int) -> Array:
        shape = (len(past), ahead_h)
        if lies == "noise":
            return np.where(rng.random(shape) < 0.3, np.nan, rng.uniform(0.0, 2000.0, shape))
        if lies == "nothing":
            return np.full(shape, np.nan)
        if lies == "zeros":
            return np.zeros(shape)
        return 1e3 / daily(past, ahead_h)

    width = menu.width[menu.static]
    at_once = float(menu.tokens_per_s[menu.width == width].max()) * hours * HOUR
    most = max(at_once, float(menu.tokens_per_s.max()) * (hours * HOUR - switch_s))
    for policy in policies(menu):
        track = run(
            policy,
            grid,
            tokens=share * most,
            deadline_s=hours * HOUR,
            forecaster=forecaster,
            menu=menu,
            epoch_s=epoch_s,
            switch_s=switch_s,
        )
        assert not track.missed.any(), policy.name


def test_mpc_with_perfect_foresight_is_almost_the_optimum() -> None:
    grid = trace(wandering(500, 7))
    track = run(Mpc(MENU), grid, tokens=STATIC * 168 * HOUR, deadline_s=14 * DAY, forecaster=None)
    best = solve(*grid.window(START + 48 * HOUR, 14 * DAY), STATIC * 168 * HOUR, MENU)
    assert best.grams <= track.grams[0] <= best.grams * 1.001


def test_shorter_epochs_follow_a_finer_grid() -> None:
    """Half an hour of clean wind in each hour: only who decides twice an hour can use it."""
    grid = trace(np.tile([100.0, 700.0], 24 * 6), step_s=1800.0)
    grams = [
        run(Mpc(MENU), grid, tokens=STATIC * 24 * HOUR, deadline_s=3 * DAY, epoch_s=epoch_s).grams[0]
        for epoch_s in (HOUR, 1800.0)
    ]
    assert grams[1] < 0.7 * grams[0]
