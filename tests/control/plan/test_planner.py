"""Rank 0's decisions: in the grid's time, against the real speed of the job, within what the process can do."""

import json

import numpy as np
import pytest

from greentrain.carbon.replayed import GridTime
from greentrain.config.schema import PolicyConfig
from greentrain.control.plan.planner import PlanMessage, PlannedJob, Planner
from greentrain.policy.action_table import Action, ActionCost, ActionTable, MeanWithCI
from greentrain.policy.menu import OFF, Menu
from greentrain.policy.mpc import Mpc
from greentrain.policy.outlook import Array
from greentrain.policy.registry import open_schedule
from greentrain.types import Gear

T0_S = 1_654_041_600.0
H = 3600.0


class Day:
    """A grid that is dirty for the first half of every day and clean for the second; known as it is."""

    step_s = H

    def __init__(self, dirty: float = 500.0, clean: float = 100.0) -> None:
        self.dirty, self.clean = dirty, clean

    def at(self, grid_s: float, ahead_s: float) -> tuple[Array, Array]:
        past = np.array([self.g(grid_s - k * H) for k in range(48, 0, -1)])
        return past, np.array([self.g(grid_s + k * H) for k in range(max(1, round(ahead_s / H)))])

    def g(self, grid_s: float) -> float:
        return self.dirty if (grid_s - T0_S) % (24 * H) < 12 * H else self.clean


def menu(*, idle_w: float | None = None) -> Menu:
    costs = [
        ActionCost(
            action=Action(gear=gear),
            steps_per_s=MeanWithCI(mean=1.0),
            tokens_per_s=MeanWithCI(mean=speed),
            power_w=MeanWithCI(mean=watts),
            provenance="measured",
        )
        for gear, speed, watts in ((Gear.BF16, 100.0, 500.0), (Gear.FP8, 150.0, 500.0))
    ]
    table = ActionTable(costs=costs, device="a device", created_unix_s=0.0)
    return Menu.of(table, released=idle_w is None, idle_w=idle_w)


def planner(
    tokens: float, *, speed: float = 1.0, pausable: bool = True, choices: Menu | None = None, decide_s: float = H
) -> Planner:
    config = PolicyConfig(name="mpc", tokens=tokens, deadline_h=24.0, decide_s=decide_s)
    return Planner(
        config,
        job=PlannedJob(tokens=tokens, start_s=T0_S, deadline_s=T0_S + 24 * H),
        time=GridTime(unix_s=0.0, grid_s=T0_S, speed=speed),
        grid=Day(),
        menu=choices or menu(),
        make=Mpc,
        pausable=pausable,
    )


def run(plan: Planner, tokens_per_s: float, *, speed: float = 1.0) -> list[PlanMessage]:
    """Train as the plan says, at a real speed, until all tokens are done."""
    words: list[PlanMessage] = []
    done = t_s = 0.0
    while not words or not words[-1].done:
        words.append(plan.decide(t_s, done))
        assert len(words) < 100
        real_s = (words[-1].next_s - words[-1].grid_s) / speed
        if words[-1].action is not None:
            trained = min(plan.job.tokens - done, tokens_per_s * real_s)
            plan.observe(trained, trained / tokens_per_s)
            done += trained
        t_s += real_s
    return words


def test_it_waits_for_the_clean_half_and_is_in_time() -> None:
    words = run(planner(150.0 * 10 * H), 150.0)
    rows = [word.action is not None for word in words[:-1]]
    assert rows == [False] * 12 + [True] * 10
    assert all(word.action == Action(gear=Gear.FP8) for word in words[12:-1])
    assert words[0].g_per_kwh == 500 and words[12].g_per_kwh == 100
    assert words[0].reason and words[-1].reason == "all tokens are done"


def test_a_replayed_day_is_decided_as_the_real_one() -> None:
    real = run(planner(150.0 * 10 * H), 150.0)
    fast = run(planner(150.0 * 10 * H / 480, speed=480.0), 150.0, speed=480.0)
    assert [(w.row, w.grid_s, w.reason) for w in fast] == [(w.row, w.grid_s, w.reason) for w in real]


def test_a_job_slower_than_its_table_starts_earlier() -> None:
    slow = planner(75.0 * 18 * H)
    words = run(slow, 75.0)
    assert slow.scale == pytest.approx(0.5, rel=0.02)
    assert words[-1].grid_s > T0_S + 24 * H, "it waited for the clean half, as nobody knew"
    slow = planner(75.0 * 18 * H)
    slow.observe(50.0 * H, H)  # in BF16, where the table says 100 tokens/s
    on_time = run(slow, 75.0)
    assert on_time[-1].grid_s <= T0_S + 24 * H
    assert sum(word.action is not None for word in on_time[:12]) >= 6


def test_what_cannot_pause_runs_on() -> None:
    words = run(planner(100.0 * 10 * H, pausable=False), 150.0)
    assert all(word.action is not None for word in words[:-1])


def test_held_ranks_that_draw_as_much_as_working_ones_never_rest() -> None:
    words = run(planner(150.0 * 10 * H, choices=menu(idle_w=490.0)), 150.0)
    assert all(word.action is not None for word in words[:9])


def test_a_vetoed_gear_is_not_used() -> None:
    word = planner(150.0 * 23 * H).decide(0.0, 0.0, vetoed={Gear.FP8: "noise"})
    assert word.action == Action(gear=Gear.BF16)


def test_somebody_may_wake_it() -> None:
    plan = planner(150.0 * 10 * H)
    assert plan.decide(0.0, 0.0).row == OFF
    word = plan.decide(10.0, 0.0, awake=True)
    assert word.row != OFF and word.reason == "woken by hand"


def test_a_word_survives_the_way_to_other_ranks() -> None:
    plan = planner(150.0 * 10 * H)
    for t_s in (0.0, 13 * H):
        word = plan.decide(t_s, 0.0)
        assert PlanMessage.from_dict(json.loads(json.dumps(word.to_dict()))) == word


def test_the_last_decision_does_not_reach_past_the_deadline() -> None:
    word = planner(150.0 * 10 * H, decide_s=5 * H).decide(22 * H, 150.0 * 9 * H)
    assert word.next_s == T0_S + 24 * H
    late = planner(150.0 * 10 * H).decide(25 * H, 150.0 * 9 * H)
    assert late.action is not None and late.next_s == T0_S + 26 * H


def test_a_pause_knows_its_end_as_it_then_happens() -> None:
    plan = planner(100.0 * H * 3)
    first = plan.decide(0.0, 0.0)
    assert first.action is None and first.resume_s == T0_S + 12 * H
    assert plan.next_on(0.0, 0.0) == 12 * H
    assert plan.next_on(12 * H, 0.0) == 12 * H
    words = run(planner(100.0 * H * 3), 100.0)
    assert next(word.grid_s for word in words if word.action is not None) == first.resume_s


def test_the_end_of_a_pause_is_told_in_the_time_of_the_machine() -> None:
    assert planner(100.0 * 3, speed=3600.0).next_on(0.0, 0.0) == pytest.approx(12.0)


@pytest.mark.parametrize("name", ["threshold", "lowest_window", "carbongear", "carl", "spot"])
def test_every_policy_can_say_when_it_goes_on(name: str) -> None:
    config = PolicyConfig(name=name, tokens=100.0 * H * 3, deadline_h=24.0)
    plan = Planner(
        config,
        job=PlannedJob(tokens=100.0 * H * 3, start_s=T0_S, deadline_s=T0_S + 24 * H),
        time=GridTime(unix_s=0.0, grid_s=T0_S),
        grid=Day(),
        menu=menu(),
        make=lambda scaled: open_schedule(config, scaled),
        pausable=True,
    )
    word = plan.decide(0.0, 0.0)
    when = plan.next_on(0.0, 0.0)
    assert when is not None and 0.0 <= when < 22 * H
    assert (word.action is None) == (word.resume_s is not None)


def test_nothing_is_left_to_wait_for_after_the_deadline() -> None:
    assert planner(100.0 * H * 3).next_on(25 * H, 0.0) == 25 * H


def wide_menu() -> Menu:
    rows = [{"gear": "bf16", "ranks": n, "tokens_per_s": 100.0 * n, "power_w": 500.0 * n} for n in (1, 2)]
    return Menu.of(ActionTable.declare(rows, device="declared"))


def test_a_job_that_stayed_as_it_was_is_not_taken_for_a_slow_one() -> None:
    def told(action: Action | None) -> float:
        plan = planner(100.0 * H * 30, pausable=False, choices=wide_menu())
        wanted = plan.decide(12 * H, 100.0 * H * 12).action
        assert wanted is not None and wanted.ranks == 2
        if action is not None:
            plan.stayed(action)
        plan.observe(100.0 * H, H)
        return plan.scale

    assert told(None) == pytest.approx(0.5)
    assert told(Action(gear=Gear.BF16, ranks=1)) == 1.0


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_plan_begins_at_the_width_of_its_job(ranks: int) -> None:
    plan = Planner(
        PolicyConfig(name="mpc", tokens=1e6, deadline_h=24.0),
        job=PlannedJob(tokens=1e6, start_s=T0_S, deadline_s=T0_S + 24 * H),
        time=GridTime(unix_s=0.0, grid_s=T0_S),
        grid=Day(),
        menu=wide_menu(),
        make=Mpc,
        pausable=True,
        ranks=ranks,
    )
    assert plan.menu.width[plan.row] == ranks
