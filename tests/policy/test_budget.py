"""What a budget of grams says and does."""

import math

import pytest

from greentrain.control.carbon_budget import BudgetView, CarbonBudget
from greentrain.policy.action_sources import reference_table
from greentrain.policy.menu import OFF, Menu
from greentrain.types import Gear

MENU = Menu.of(reference_table("T5"))


def look(
    action: str,
    spent_g: float | None,
    gear: Gear = Gear.BF16,
    reported: tuple[str, ...] = (),
    tokens: float | None = 100.0,
) -> BudgetView:
    return CarbonBudget(1000.0, action, MENU).look(spent_g, 50.0, tokens, gear, reported)


def kinds(view: BudgetView) -> list[str]:
    return [event.kind for event in view.events]


@pytest.mark.parametrize("action", ["warn", "cheaper", "stop"])
def test_nothing_is_said_below_80_percent(action: str) -> None:
    view = look(action, 799.0)
    assert view.events == () and view.share == 0.799 and not view.stop and not view.vetoed.any()


def test_from_80_percent_on_it_warns_and_suggests() -> None:
    view = look("warn", 800.0)
    assert kinds(view) == ["near", "suggest"] and not view.vetoed.any() and not view.stop
    assert view.events[0].text == (
        "800 g of the budget of 1 kg are spent (80%), for 50% of the tokens; as until now the whole job takes 1.6 kg"
    )
    assert view.events[1].text == (
        "fp8 needs 26% less energy a token than bf16, about 207 g less for the rest of the job: use it, or let"
        " policy.budget_action 'cheaper' do so"
    )


def test_where_it_is_allowed_it_takes_the_cheapest_gear() -> None:
    for action in ("cheaper", "stop"):
        view = look(action, 900.0)
        assert kinds(view) == ["near", "cheaper"] and not view.stop
        assert "so it is the only gear from now on" in view.events[1].text
        assert view.vetoed.tolist() == [False] + [row.gear is not Gear.FP8 for row in MENU.actions[1:] if row]
        assert not view.vetoed[OFF]


def test_who_runs_in_the_cheapest_gear_is_not_told_to() -> None:
    assert kinds(look("cheaper", 900.0, gear=Gear.FP8)) == ["near"]


@pytest.mark.parametrize(
    ("action", "kind", "stop"), [("warn", "spent", False), ("cheaper", "spent", False), ("stop", "stop", True)]
)
def test_at_100_percent_it_says_so_and_stops_where_asked(action: str, kind: str, stop: bool) -> None:
    view = look(action, 1001.0)
    assert kinds(view)[-1] == kind and view.stop is stop
    assert view.events[-1].text.startswith("the budget of 1 kg is spent (1 kg) with 50% of the tokens left")


def test_nothing_is_said_twice_but_the_rest_stays_in_force() -> None:
    view = look("stop", 1001.0, reported=("near", "cheaper", "stop"))
    assert kinds(view) == [] and view.stop and view.vetoed.any()


def test_unknown_grams_are_no_reason_to_act() -> None:
    view = look("stop", None)
    assert kinds(view) == [] and math.isnan(view.share) and not view.stop and not view.vetoed.any()


def test_without_a_number_of_tokens_it_foresees_nothing() -> None:
    view = look("warn", 800.0, tokens=None)
    assert view.events[0].text == "800 g of the budget of 1 kg are spent (80%)"
    assert "for the rest of the job" not in view.events[1].text


def test_the_same_view_for_the_same_figures() -> None:
    assert [event.text for event in look("stop", 900.0).events] == [event.text for event in look("stop", 900.0).events]
