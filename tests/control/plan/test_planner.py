"""Rank 0's decisions: in the grid's time, against the real speed of the job, within what the process can do."""

import json
import types
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from greentrain.carbon.constant import ConstantSignal
from greentrain.carbon.replayed import GridTime
from greentrain.config.schema import GreenConfig, PolicyConfig
from greentrain.control.plan.planner import (
    MEMORY,
    MOST_EPOCHS,
    RECALIBRATE,
    CostAim,
    GridOutlook,
    PlanMessage,
    PlannedJob,
    Planner,
    or_none,
    plan_document,
)
from greentrain.policy.action_table import Action, ActionCost, ActionTable, MeanWithCI
from greentrain.policy.menu import OFF, Menu
from greentrain.policy.mpc import Mpc
from greentrain.policy.outlook import Array, Choice, Outlook
from greentrain.policy.registry import open_schedule
from greentrain.types import Gear, PricePoint

T0_S = 1_654_041_600.0
H = 3600.0


class Day:
    """A grid that is dirty for the first half of every day and clean for the second; known as it is."""

    step_s, unit, now_g_per_kwh = H, "g/kWh", None

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


# -- what a policy gets to see -----------------------------------------------------------------------------------


class Wants:
    """Wants what a test says, and keeps what it saw."""

    name = "wants"

    def __init__(self, row: int) -> None:
        self.row = row
        self.seen: list[Outlook] = []

    def choose(self, seen: Outlook) -> Choice:
        self.seen.append(seen)
        rows = np.full(len(seen.left_s), self.row)
        return Choice(rows=rows, reasons=("as wished",), reason=np.zeros_like(rows))


class Ramp:
    """A grid that gets dirtier by 1 g/kWh an hour."""

    step_s, unit, now_g_per_kwh = H, "g/kWh", None

    def at(self, grid_s: float, ahead_s: float) -> tuple[Array, Array]:
        now = 1000.0 + (grid_s - T0_S) / H
        hours: Array = now + np.arange(-24.0, round(ahead_s / H))
        return hours[:24], hours[24:]


def wishing(
    policy: Wants, *, tokens: float = 100.0 * H, choices: Menu | None = None, restarted_h: float = 0.0, **config: Any
) -> Planner:
    return Planner(
        PolicyConfig(**{"name": "mpc", "tokens": tokens, "deadline_h": 24.0, "decide_s": H, **config}),
        job=PlannedJob(tokens=tokens, start_s=T0_S, deadline_s=T0_S + 24 * H),
        time=GridTime(unix_s=restarted_h * H, grid_s=T0_S + restarted_h * H),
        grid=Ramp(),
        menu=choices or menu(),
        make=lambda scaled: policy,
        pausable=True,
    )


def test_a_policy_sees_the_job_as_it_is_and_each_later_hour_as_it_would_be() -> None:
    policy = Wants(OFF)
    plan = wishing(policy)
    plan.decide(0.0, 0.0)
    policy.seen.clear()
    plan.decide(2 * H, 60.0 * H)
    now, then = policy.seen
    assert (now.epoch_s, now.step_s) == (H, H)
    one = {"t_unix_s": T0_S + 2 * H, "left_s": 22 * H, "total_s": 24 * H, "tokens_left": 40.0 * H, "tokens": 100.0 * H}
    one |= {"current": OFF, "held_s": 2 * H}
    assert {name: getattr(now, name).tolist() for name in one} == {name: [value] for name, value in one.items()}
    assert now.forecast_g_per_kwh[0, 0] == 1002.0 and now.past_g_per_kwh[0, -1] == 1001.0
    later_h = np.arange(1.0, 22.0)  # every decision until the deadline, the job off until there
    assert (then.left_s == (22 - later_h) * H).all() and (then.t_unix_s == T0_S + (2 + later_h) * H).all()
    assert (then.held_s == (2 + later_h) * H).all() and (then.current == OFF).all()
    assert (then.tokens_left == 40.0 * H).all() and (then.tokens == 100.0 * H).all() and (then.total_s == 24 * H).all()
    assert then.job is not None and (then.job == 0).all(), "one job, whatever a policy remembers of it"
    assert then.forecast_g_per_kwh[:, 0].tolist() == (1002.0 + later_h).tolist()
    assert then.past_g_per_kwh[:, -1].tolist() == (1001.0 + later_h).tolist()
    assert then.forecast_g_per_kwh[-1, -1] == 1023.0, "past what is forecast the last hour holds"


def test_a_plan_of_seconds_looks_at_no_more_later_decisions_than_it_can_take_in() -> None:
    policy = Wants(OFF)
    word = wishing(policy, decide_s=1.0).decide(0.0, 0.0)
    assert len(policy.seen[-1].left_s) < MOST_EPOCHS
    assert word.next_s == T0_S + 1.0 and word.resume_s is not None, "the deadline needs it"


def test_a_width_is_held_for_its_time_as_a_pause_is() -> None:
    policy = Wants(OFF)
    plan = wishing(policy, dwell_s=3 * H)
    rows = [plan.decide(hour * H, 0.0).row != OFF for hour in range(5)]
    policy.row = 2
    rows += [plan.decide(hour * H, 0.0).row != OFF for hour in range(5, 9)]
    assert rows == [True] * 3 + [False] * 3 + [True] * 3


def test_the_width_of_a_restarted_job_is_held_from_its_restart_on() -> None:
    plan = wishing(Wants(OFF), restarted_h=5.0, dwell_s=3 * H)
    assert [plan.decide(hour * H, 0.0).row != OFF for hour in range(5, 10)] == [True] * 3 + [False] * 2


def test_the_margin_of_the_configuration_is_kept() -> None:
    late = wishing(Wants(OFF), tokens=150.0 * 20 * H)
    assert late.decide(3 * H, 0.0).row == OFF
    assert wishing(Wants(OFF), tokens=150.0 * 20 * H, margin_s=2 * H).decide(3 * H, 0.0).shielded


def test_what_is_done_waits_for_nothing_and_what_nobody_knows_is_none() -> None:
    plan = wishing(Wants(OFF))
    done = plan.decide(H, 100.0 * H)
    assert done.done and done.action is None and done.resume_s is None and done.resume_ranks is None
    assert not plan.decide(H, 100.0 * H - 1.0).done
    plan._grid.at = lambda grid_s, ahead_s: (np.full(24, np.nan), np.full(24, np.nan))  # type: ignore[method-assign]
    word = plan.decide(H, 0.0)
    assert word.g_per_kwh is None and word.to_dict()["g_per_kwh"] is None
    assert or_none(np.array([1.0, np.nan, 0.0])) == [1.0, None, 0.0]


def test_it_says_with_how_many_ranks_it_comes_back() -> None:
    word = wishing(Wants(OFF), tokens=200.0 * H, choices=wide_menu()).decide(0.0, 0.0)
    assert word.resume_s == T0_S + 23 * H and word.resume_ranks == 2, "as late as can be, and as wide"


def test_off_is_no_choice_where_it_cannot_be_or_somebody_has_ended_it() -> None:
    plan = wishing(Wants(OFF))
    plan.pausable = False
    word = plan.decide(0.0, 0.0)
    assert word.action is not None and word.resume_s is None


def test_near_the_deadline_it_decides_on_and_trains_at_once() -> None:
    plan = wishing(Wants(OFF))
    for left_s, next_s in ((1.5, 1.5), (1.0, H), (0.0, H), (-9.0, H)):
        word = plan.decide(24 * H - left_s, 0.0)
        assert word.next_s - word.grid_s == pytest.approx(next_s, abs=1e-6)
        assert plan.next_on(24 * H - left_s, 0.0) == 24 * H - left_s


# -- how fast the job is -----------------------------------------------------------------------------------------


def test_older_epochs_count_less_in_the_speed_of_the_job() -> None:
    plan = planner(1e9)  # in BF16, by the table at 100 tokens/s
    plan.observe(50.0 * H, H)
    assert plan.scale == pytest.approx(0.5)
    plan.observe(100.0 * H, H)
    assert plan.scale == pytest.approx((MEMORY * 50 + 100) / (MEMORY * 100 + 100)) and 0 < MEMORY < 1


@pytest.mark.parametrize(
    ("share", "scale"),
    [
        (0.0, 0.1),
        (1000.0, 10.0),
        (1 + 0.9 * RECALIBRATE, 1.0),
        (1 - 0.9 * RECALIBRATE, 1.0),
        (1 + 1.1 * RECALIBRATE, None),
    ],
)
def test_a_speed_that_no_job_has_is_bounded_and_a_small_difference_is_none(share: float, scale: float | None) -> None:
    plan = planner(1e9)
    plan.observe(share * 100.0 * H, H)
    assert plan.scale == pytest.approx(share if scale is None else scale)


@pytest.mark.parametrize(("then", "scale"), [(0.504, 0.5), (0.52, 0.52), (2.0, 2.0)])
def test_a_plan_is_made_anew_where_the_speed_has_changed_against_what_it_was_made_with(
    then: float, scale: float
) -> None:
    plan = planner(1e9)  # in BF16, by the table at 100 tokens/s
    plan.observe(50.0 * H, H)
    plan.observe((then * (MEMORY + 1) - MEMORY * 0.5) * 100.0 * H, H)
    assert plan.scale == pytest.approx(scale)


def test_a_pause_says_nothing_of_the_speed() -> None:
    plan = planner(100.0 * H * 3)
    assert plan.decide(0.0, 0.0).row == OFF
    plan.observe(5.0, H)
    plan.observe(0.0, 0.0)
    assert plan.scale == 1.0


def test_a_faster_job_is_planned_with_its_own_speed() -> None:
    """At twice the speed of its table the same work fits into the clean half's last five hours."""
    tokens = 150.0 * 23 * H
    slow, fast = planner(tokens), planner(tokens)
    fast.observe(2 * 100.0 * H, H)
    assert slow.decide(0.0, 0.0).row != OFF and fast.decide(0.0, 0.0).row == OFF


def test_an_action_of_no_table_is_not_in_use() -> None:
    plan = planner(100.0 * H * 30, pausable=False, choices=wide_menu())
    row = plan.row
    plan.stayed(Action(gear=Gear.FP8, ranks=7))
    assert plan.row == row


@pytest.mark.parametrize(("ranks", "row"), [(2, 3), (1, 2), (3, 3), (None, 3)])
def test_it_begins_with_the_usual_training(ranks: int | None, row: int) -> None:
    """Of the widest BF16, though FP8 is faster; at a width without it with the fastest of that width."""
    rows = [("bf16", 1, 100.0), ("fp8", 1, 150.0), ("bf16", 2, 200.0), ("fp8", 2, 300.0)]
    table = [{"gear": gear, "ranks": n, "tokens_per_s": speed, "power_w": 500.0 * n} for gear, n, speed in rows]
    choices = Menu.of(ActionTable.declare(table, device="declared"))
    plan = Planner(
        PolicyConfig(name="mpc", tokens=1e6, deadline_h=24.0),
        job=PlannedJob(tokens=1e6, start_s=T0_S, deadline_s=T0_S + 24 * H),
        time=GridTime(unix_s=0.0, grid_s=T0_S),
        grid=Day(),
        menu=choices,
        make=Mpc,
        pausable=True,
        ranks=ranks,
    )
    assert plan.row == row


# -- what is told ------------------------------------------------------------------------------------------------


def test_the_hours_of_a_job_end_at_its_deadline() -> None:
    class Rising:
        """Intensity in hours since the start, as a mean of what is asked for."""

        def mean(self, t0_unix_s: float, t1_unix_s: float) -> Any:
            return types.SimpleNamespace(g_per_kwh=((t0_unix_s + t1_unix_s) / 2 - T0_S) / H)

        def describe(self) -> dict[str, str]:
            return {}

    plan = planner(1e6, choices=menu(idle_w=40.0))
    plan.job = replace(plan.job, deadline_s=T0_S + 2.5 * H)
    told = plan_document(plan, policy="mpc", grid=GridOutlook(Rising()), past=[None, 1.0], tokens=7.0)
    assert told["hourly_g_per_kwh"] == [0.5, 1.5, 2.25] and told["past_hourly_g_per_kwh"] == [None, 1.0]
    assert told["held"] is True and told["static"] == 1 and told["tokens_done"] == 7.0 and told["speed_of_table"] == 1.0
    assert [row["name"] for row in told["rows"]] == ["off", "bf16", "fp8"]
    assert told["rows"][1] == {"name": "bf16", "tokens_per_s": 100.0, "power_w": 500.0, "width": 1}
    free = plan_document(planner(1e6), policy="mpc", grid=GridOutlook(Rising()), past=[], tokens=0.0)
    assert free["held"] is False and json.dumps(free)


# -- money in the place of grams ---------------------------------------------------------------------------------------


class Nights:
    """-1 EUR a MWh in the first half of every day and 5 in the second."""

    def mean(self, t0_unix_s: float, t1_unix_s: float) -> PricePoint:
        paid = (t0_unix_s - T0_S) % (24 * H) < 12 * H
        return PricePoint(
            t0_unix_s=t0_unix_s,
            t1_unix_s=t1_unix_s,
            per_kwh=-0.001 if paid else 0.005,
            currency="EUR",
            source="test",
        )


def aim(objective: Any, carbon_per_t: float | None = None) -> CostAim:
    price = {"per_kwh": 1.0, "carbon_per_t": carbon_per_t}
    found = CostAim.of(GreenConfig.load({"price": price, "policy": {"objective": objective}}), Nights())
    assert found is not None
    return found


def test_a_plan_of_cost_sees_prices_and_one_of_both_their_sum_in_money() -> None:
    signal = ConstantSignal(300.0, zone="test", source="test")
    grid = GridOutlook(signal, aim=aim("cost"))
    past, ahead = grid.at(T0_S, 24 * H)
    assert ahead.tolist() == pytest.approx([-1.0] * 12 + [5.0] * 12) and len(past) == 21 * 24
    assert grid.unit == "EUR/MWh" and grid.now_g_per_kwh == 300.0
    both = GridOutlook(signal, aim=aim({"carbon": 2.0, "cost": 1.0}, carbon_per_t=100.0))
    assert both.at(T0_S, 24 * H)[1] == pytest.approx(ahead + 2.0 * 0.3 * 100.0)
    assert CostAim.of(GreenConfig(), Nights()) is None


@pytest.mark.parametrize("name", ["threshold", "lowest_window", "mpc", "carbongear"])
def test_every_policy_plans_money_and_trains_where_it_is_paid_for(name: str) -> None:
    signal = ConstantSignal(300.0, zone="test", source="test")
    config = PolicyConfig(name=name, tokens=150.0 * 10 * H, deadline_h=24.0, decide_s=H)
    plan = Planner(
        config,
        job=PlannedJob(tokens=150.0 * 10 * H, start_s=T0_S, deadline_s=T0_S + 24 * H),
        time=GridTime(unix_s=0.0, grid_s=T0_S),
        grid=GridOutlook(signal, aim=aim("cost")),
        menu=menu(),
        make=lambda scaled: open_schedule(config, scaled),
        pausable=True,
    )
    words = run(plan, 150.0)
    on = [word.action is not None for word in words[:-1]]
    assert all(on) and len(on) == 10  # the ten hours of least price, each flat out
    fastest = "fp8" if name in ("mpc", "carbongear") else "bf16"  # the others have one row, the usual training
    assert {str(word.action) for word in words[:-1]} == {fastest}
    assert all("g/kWh" not in word.reason and " g per million" not in word.reason for word in words)
    assert words[0].g_per_kwh == 300.0
    told = plan_document(plan, policy=name, grid=GridOutlook(signal, aim=aim("cost")), past=[], tokens=0.0)
    assert told["objective"] == "EUR/MWh" and set(told["hourly_g_per_kwh"]) == {300.0}
