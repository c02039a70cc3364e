"""What the simple policies want, and why they say so."""

import numpy as np
import pytest

from greentrain.policy.baselines import CarbonBlind, LowestWindow, StaticSchedule, Threshold
from greentrain.policy.decision_kernel import DecisionKernel, above_zero
from greentrain.policy.menu import OFF, Menu
from greentrain.policy.mpc import Mpc
from greentrain.policy.outlook import Outlook, SchedulePolicy
from greentrain.policy.waterfill import price
from tests.policy.cases import action_table
from tests.policy.drive import outlook

MENU = Menu.of(action_table())
STATIC = MENU.static
SPEED = float(MENU.tokens_per_s[STATIC])
HOUR = 3600.0
WEEK = np.arange(168.0)


def half_duty(now: float, ahead: list[float] | None = None) -> Outlook:
    """A job that needs half of its 100 h, after a week of 0, 1, 2 ... 167 g/kWh."""
    return outlook(
        ahead=[[now, *(ahead or [])]],
        past=WEEK[None, :],
        tokens_left=[50 * HOUR * SPEED],
        left_s=[100 * HOUR],
        current=[OFF],
    )


def said(policy: SchedulePolicy, seen: Outlook) -> tuple[str, str]:
    kernel = DecisionKernel(policy, MENU)
    decided = kernel.decide(seen)
    return MENU.names()[int(decided.rows[0])], kernel.explain(seen, decided)


def test_every_policy_fits_the_protocol() -> None:
    for policy in (StaticSchedule(MENU), CarbonBlind(MENU), Threshold(MENU), LowestWindow(MENU), Mpc(MENU)):
        assert isinstance(policy, SchedulePolicy)


def test_static_is_one_row() -> None:
    assert said(StaticSchedule(MENU), half_duty(1e3)) == ("bf16 on 8", "static: bf16 on 8 until all tokens are done")
    assert said(StaticSchedule(MENU, row=1), half_duty(1e3))[0] == MENU.names()[1]


def test_carbon_blind_takes_the_slowest_row_in_time() -> None:
    hull = MENU.hull
    for i in (2, 5, 9):
        pace = 0.5 * (MENU.tokens_per_s[hull[i]] + MENU.tokens_per_s[hull[i + 1]])
        seen = outlook(ahead=[[300.0]], tokens_left=[pace * HOUR * 9], left_s=[9 * HOUR], current=[STATIC])
        row, why = said(CarbonBlind(MENU), seen)
        assert row == MENU.names()[int(hull[i + 1])]
        assert why == f"{pace:.4g} tokens/s are needed until the deadline, whatever the grid does: {row}"


def test_carbon_blind_does_not_crawl_where_ranks_are_held() -> None:
    held = Menu.of(action_table(), released=False, idle_w=2100.0)
    seen = outlook(ahead=[[300.0]], tokens_left=[HOUR * 1e4], left_s=[9 * HOUR], current=[held.static])
    row = int(CarbonBlind(held).choose(seen).rows[0])
    j_per_token = held.power_w[1:] / held.tokens_per_s[1:]
    assert row == int(j_per_token.argmin()) + 1
    assert int(CarbonBlind(MENU).choose(seen).rows[0]) == int(MENU.hull[1])


@pytest.mark.parametrize(("now", "runs"), [(83.0, True), (85.0, False), (0.0, True), (1e3, False)])
def test_threshold_runs_in_the_cleaner_half_of_the_week(now: float, runs: bool) -> None:
    row, why = said(Threshold(MENU), half_duty(now))
    assert row == ("bf16 on 8" if runs else "off")
    share = f"{np.mean(now > WEEK):.0%}"
    assert f"{share} of the last 7 days were cleaner, and 50% of the time left is needed" in why
    assert why.endswith("run" if runs else "wait")


def test_threshold_without_history_runs() -> None:
    seen = outlook(ahead=[[300.0]], tokens_left=[SPEED], left_s=[HOUR * 9], current=[OFF])
    assert said(Threshold(MENU), seen)[0] == "bf16 on 8"


@pytest.mark.parametrize("make", [Threshold, LowestWindow])
def test_what_needs_all_its_time_runs(make: type[Threshold] | type[LowestWindow]) -> None:
    seen = outlook(
        ahead=[[900.0, 1.0, 1.0]],
        past=WEEK[None, :],
        tokens_left=[2.5 * HOUR * SPEED],
        left_s=[3 * HOUR],
        current=[OFF],
    )
    assert said(make(MENU), seen) == ("bf16 on 8", "83% of the time left is needed: run, at 900 g/kWh")


def test_the_cheapest_hours_of_the_window_are_taken() -> None:
    day = [300.0] * 11 + [100.0] * 12  # half of the day is to be used, and twelve hours are cleaner
    assert said(LowestWindow(MENU), half_duty(200.0, day)) == (
        "off",
        "200 g/kWh: 12 h of the next 24 h are cleaner, 12.0 h are needed: wait",
    )
    assert said(LowestWindow(MENU), half_duty(200.0, [*day[1:], 300.0]))[0] == "off"
    assert said(LowestWindow(MENU), half_duty(200.0, [300.0] * 12 + [100.0] * 11))[0] == "bf16 on 8"


def test_no_window_looks_past_the_deadline() -> None:
    seen = outlook(ahead=[[200.0] + [100.0] * 23], tokens_left=[HOUR * SPEED], left_s=[3 * HOUR], current=[OFF])
    assert said(LowestWindow(MENU), seen)[0] == "off"
    seen = outlook(
        ahead=[[200.0, 300.0, 300.0] + [100.0] * 21], tokens_left=[HOUR * SPEED], left_s=[3 * HOUR], current=[OFF]
    )
    assert said(LowestWindow(MENU), seen)[0] == "bf16 on 8"


def test_a_shorter_window() -> None:
    assert said(LowestWindow(MENU, window_h=4), half_duty(200.0, [300.0] * 3 + [100.0] * 20))[0] == "bf16 on 8"


def test_mpc_says_its_price() -> None:
    seen = half_duty(80.0, [300.0] * 99)
    row, why = said(Mpc(MENU), seen)
    found = price(seen.forecast_g_per_kwh, seen.weights_s(), seen.tokens_left, MENU)[0]
    assert row == "fp8 on 8"
    assert why == (
        "80 g/kWh now and 298 on average until the deadline in 100.0 h, where 100.0% of the tokens are left: fp8 on 8,"
        f" at a price of {found * 1e6:.4g} g per million tokens"
    )


def test_mpc_judges_an_epoch_by_its_mean() -> None:
    """A clean hour at the start of a dirty half day is no reason to run all of it."""
    ahead = [10.0] + [900.0] * 11 + [100.0] * 36
    need = SPEED * 20 * HOUR
    for current in (OFF, MENU.fastest):
        short, long = (
            outlook(ahead=[ahead], tokens_left=[need], left_s=[48 * HOUR], current=[current], epoch_s=epoch_s)
            for epoch_s in (HOUR, 12 * HOUR)
        )
        assert said(Mpc(MENU), short)[0] == "fp8 on 8"
        assert said(Mpc(MENU), long)[0] == "off"


def test_the_mean_of_an_epoch_ends_with_the_job() -> None:
    seen = outlook(
        ahead=[[100.0, 200.0, 300.0, 1e9]] * 3,
        tokens_left=[1.0] * 3,
        left_s=[1.5 * HOUR, 9 * HOUR, 0.0],
        current=[OFF] * 3,
        epoch_s=3 * HOUR,
    )
    assert seen.epoch_g_per_kwh().tolist() == pytest.approx([(100 + 0.5 * 200) / 1.5, 200.0, 100.0])


def test_values_below_zero_are_put_above_it_in_their_order() -> None:
    values = np.array([[50.0, -500.0, 0.0, -1.0, 30.0, -1e9]])
    found = above_zero(values)
    assert (found > 0).all() and np.isfinite(found).all()
    assert found[0, [0, 4]].tolist() == [50.0, 30.0] or found.min() > 0
    order = np.argsort(values[0])
    assert (np.diff(found[0][order]) >= 0).all()
    plain = np.array([[5.0, 0.0]])
    assert above_zero(plain) is plain
