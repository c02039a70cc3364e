"""mpc that counts what a change of width costs."""

import numpy as np
import pytest

from greentrain.policy.decision_kernel import DecisionKernel
from greentrain.policy.menu import OFF, Menu
from greentrain.policy.mpc import Mpc, MpcSwitching
from greentrain.policy.outlook import Outlook, SchedulePolicy
from greentrain.simulator.grid_trace import Array, Sight
from greentrain.simulator.jobs import Jobs
from greentrain.simulator.world import Track, World
from tests.policy.cases import action_table
from tests.policy.drive import outlook
from tests.simulator.grids import HOUR, START, daily, trace, wandering

MENU = Menu.of(action_table(nodes=3))
SPEED = float(MENU.tokens_per_s[MENU.static])
FAST = MENU.fastest


def run(policy: SchedulePolicy, values: Array, switch_s: float, dwell_s: float = 0.0, hours: int = 96) -> Track:
    grid = trace(values)
    jobs = Jobs.alike(START + np.array([48.0, 60.0]) * HOUR, tokens=SPEED * 48 * HOUR, deadline_s=hours * HOUR)
    kernel = DecisionKernel(policy, MENU, switch_s=switch_s, dwell_s=dwell_s)
    return World(grid, Sight(grid, daily, horizon_h=hours, past_h=48)).run(kernel, jobs, history=True)


def seen(ahead: list[float], current: int, epoch_s: float = HOUR, share: float = 0.5) -> Outlook:
    return outlook(
        ahead=[ahead],
        tokens_left=[share * len(ahead) * HOUR * SPEED],
        left_s=[len(ahead) * HOUR],
        current=[current],
        epoch_s=epoch_s,
    )


def said(policy: SchedulePolicy, now: Outlook, switch_s: float) -> tuple[str, str]:
    kernel = DecisionKernel(policy, MENU, switch_s=switch_s)
    decided = kernel.decide(now)
    return MENU.names()[int(decided.rows[0])], kernel.explain(now, decided)


def test_a_dirty_hour_is_not_worth_a_pause_that_costs_more() -> None:
    ahead = [100.0] * 6 + [300.0] + [100.0] * 13
    now = seen(ahead[6:], FAST, share=0.4)
    assert said(Mpc(MENU), now, 0.0)[0] == "off"
    assert said(MpcSwitching(MENU, switch_s=60.0), now, 60.0)[0] == "off"
    row, why = said(MpcSwitching(MENU, switch_s=2 * HOUR), now, 2 * HOUR)
    assert row != "off" and why.startswith("300 g/kWh now and 114 on average until the deadline in 14.0 h: fp8")


def test_it_says_what_a_change_is_worth() -> None:
    night = [400.0] * 12 + [100.0] * 24
    row, why = said(MpcSwitching(MENU, switch_s=600.0), seen(night, FAST), 600.0)
    assert row == "off" and "off, which is worth the 10 min of starting again at" in why
    row, why = said(MpcSwitching(MENU, switch_s=600.0), seen([100.0] * 12 + [400.0] * 24, OFF, share=0.6), 600.0)
    assert row.endswith("on 3") and f"{row}, which is worth the 10 min of a change at" in why
    late = seen([100.0] * 3, OFF, share=10.0)
    row, why = said(MpcSwitching(MENU, switch_s=600.0), late, 600.0)
    assert (row, why) == ("fp8 on 3", "100.0% of the tokens are left for 3.0 h: fp8 on 3, the fastest there is")


def test_without_costs_it_is_mpc() -> None:
    values = wandering(300, 3)
    plain, counted = run(Mpc(MENU), values, 0.0), run(MpcSwitching(MENU), values, 0.0)
    assert counted.grams == pytest.approx(plain.grams, rel=5e-3)


@pytest.mark.parametrize("switch_s", [600.0, 1800.0])
def test_it_emits_less_and_changes_less_where_changes_cost(switch_s: float) -> None:
    values = wandering(300, 4)
    plain, counted = run(Mpc(MENU), values, switch_s), run(MpcSwitching(MENU, switch_s=switch_s), values, switch_s)
    assert counted.grams.sum() < plain.grams.sum()
    assert counted.switches.sum() < plain.switches.sum()
    assert not counted.missed.any()


def test_it_plans_with_the_time_that_a_width_is_held() -> None:
    values = wandering(300, 5)
    held = run(MpcSwitching(MENU, dwell_s=6 * HOUR), values, 0.0, 6 * HOUR)
    free = run(MpcSwitching(MENU), values, 0.0)
    assert held.history is not None and not held.missed.any()
    assert held.switches.sum() < free.switches.sum()
    for rows, end_s in zip(held.history.rows, held.end_s, strict=True):
        width = MENU.width[rows[: int(end_s / HOUR)]]
        changes = np.flatnonzero(np.diff(width))
        assert (np.diff(changes) >= 6).all()


def test_epochs_of_several_hours_are_planned_as_such() -> None:
    """Three hours at once: two dirty ones weigh more than a clean one."""
    ahead = ([100.0] + [700.0] * 2) + [300.0] * 9
    assert said(MpcSwitching(MENU), seen(ahead, FAST), 0.0)[0] != "off"
    assert said(MpcSwitching(MENU), seen(ahead, FAST, epoch_s=3 * HOUR), 0.0)[0] == "off"


def test_hysteresis_keeps_a_width_at_a_tie() -> None:
    """A forecast that wavers by a percent must not have a job follow it."""
    rng = np.random.default_rng(0)
    policy, rows, current = MpcSwitching(MENU, switch_s=600.0), [], FAST
    for hour in range(30):
        now = seen((300.0 + 3 * rng.standard_normal(60 - hour)).tolist(), current, share=0.9)
        current = int(DecisionKernel(policy, MENU, switch_s=600.0).decide(now).rows[0])
        rows.append(current)
    assert len(np.flatnonzero(np.diff(MENU.width[rows]))) <= 2
