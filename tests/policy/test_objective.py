"""One action for energy, carbon or cost, under a bound on speed."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greentrain.errors import ConfigError
from greentrain.policy.action_table import (
    Action,
    ActionCost,
    ActionObjective,
    ActionTable,
    ChosenAction,
    MeanWithCI,
    choose,
)
from greentrain.policy.menu import Menu
from greentrain.types import Gear


def _cost(
    cap: float, speed: float | None, power_w: float | None, *, spread: float | None = None, gear: Gear = Gear.BF16
) -> ActionCost:
    """Return a row; ``spread`` is the half width of the interval of its J/token, as a share."""
    j_per_token = None
    if speed is not None and power_w is not None:
        mean = power_w / speed
        j_per_token = MeanWithCI(mean=mean)
        if spread is not None:
            j_per_token = MeanWithCI(mean=mean, low=mean * (1 - spread), high=mean * (1 + spread))
    return ActionCost(
        action=Action(gear=gear, cap=cap),
        steps_per_s=None,
        tokens_per_s=None if speed is None else MeanWithCI(mean=speed),
        power_w=None if power_w is None else MeanWithCI(mean=power_w),
        j_per_token=j_per_token,
    )


def _table(*costs: ActionCost) -> ActionTable:
    return ActionTable(costs=costs, device="a device", created_unix_s=0.0)


TABLE = _table(_cost(1.0, 100.0, 700.0), _cost(0.8, 95.0, 560.0), _cost(0.6, 80.0, 420.0), _cost(0.4, 50.0, 280.0))
"""7.0, 5.89, 5.25 and 5.6 J a token."""


def _cap(objective: ActionObjective, table: ActionTable = TABLE) -> float:
    return choose(table, objective).action.cap


def test_least_energy() -> None:
    found = choose(TABLE, ActionObjective())
    assert found == ChosenAction(
        action=Action(gear=Gear.BF16, cap=0.6),
        score=5.25,
        reference=Action(gear=Gear.BF16),
        reference_score=7.0,
        slowdown=1.0 - 80.0 / 100.0,
    )
    assert str(found) == "bf16 at 60%: 20.0% slower than bf16, 25.0% saved"
    assert str(replace(found, slowdown=-0.022)) == "bf16 at 60%: 2.2% faster than bf16, 25.0% saved"


def test_carbon_is_energy_where_nothing_is_embodied_and_time_where_the_grid_is_clean() -> None:
    assert _cap(ActionObjective(name="carbon", g_per_kwh=500.0)) == 0.6
    assert _cap(ActionObjective(name="carbon", g_per_kwh=0.0, embodied_g_per_s=0.01)) == 1.0
    some = ActionObjective(name="carbon", g_per_kwh=36.0, pue=1.25, embodied_g_per_s=0.006)
    grams = {c: (w * 36.0 * 1.25 / 3.6e6 + 0.006) / v for c, v, w in ((1.0, 100, 700), (0.8, 95, 560), (0.6, 80, 420))}
    assert choose(TABLE, some).score == pytest.approx(min(grams.values()))
    assert _cap(some) == min(grams, key=lambda cap: grams[cap]) == 0.8


def test_more_overhead_of_the_facility_makes_energy_count_for_more() -> None:
    def cap(pue: float) -> float:
        return _cap(ActionObjective(name="carbon", g_per_kwh=36.0, pue=pue, embodied_g_per_s=0.006))

    assert cap(1.0) == 0.8 and cap(2.5) == 0.6


@pytest.mark.parametrize(("eta", "cap"), [(0.0, 1.0), (0.5, 0.8), (1.0, 0.6)])
def test_zeus_cost(eta: float, cap: float) -> None:
    objective = ActionObjective(name="cost", eta=eta, limit_w=700.0)
    found = choose(TABLE, objective)
    assert found.action.cap == cap
    speed, power_w = {1.0: (100.0, 700.0), 0.8: (95.0, 560.0), 0.6: (80.0, 420.0)}[cap]
    assert found.score == pytest.approx(eta * power_w / speed + (1 - eta) * 700.0 / speed)


@pytest.mark.parametrize(("bound", "cap"), [(0.0, 1.0), (0.04, 1.0), (0.05, 0.8), (0.19, 0.8), (0.2, 0.6)])
def test_the_bound_on_speed_is_kept(bound: float, cap: float) -> None:
    assert _cap(ActionObjective(max_slowdown=bound)) == cap


def test_the_bound_is_relative_to_the_reference_that_is_named() -> None:
    table = _table(*TABLE.costs, _cost(1.0, 150.0, 700.0, gear=Gear.FP8), _cost(0.6, 120.0, 420.0, gear=Gear.FP8))
    assert choose(table, ActionObjective(max_slowdown=0.1)).action == Action(gear=Gear.FP8)
    bf16 = choose(table, ActionObjective(max_slowdown=0.1), reference=Action(gear=Gear.BF16))
    assert bf16.action == Action(gear=Gear.FP8, cap=0.6) and bf16.slowdown == pytest.approx(-0.2)
    only = choose(table, ActionObjective(max_slowdown=0.1), wanted=lambda action: action.gear is Gear.BF16)
    assert only.action.cap == 0.8 and only.reference == Action(gear=Gear.BF16)


def test_a_tie_goes_to_the_faster_unless_the_intervals_say_that_it_is_none() -> None:
    close = [_cost(1.0, 100.0, 505.0, spread=None), _cost(0.6, 80.0, 400.0, spread=None)]  # 5.05 and 5.0 J a token
    assert _cap(ActionObjective(), _table(*close)) == 1.0
    assert _cap(ActionObjective(), _table(_cost(1.0, 100.0, 510.0), close[1])) == 0.6
    apart = _table(_cost(1.0, 100.0, 505.0, spread=0.001), _cost(0.6, 80.0, 400.0, spread=0.001))
    assert _cap(ActionObjective(), apart) == 0.6
    wide = _table(_cost(1.0, 100.0, 700.0, spread=0.9), _cost(0.6, 80.0, 400.0, spread=0.9))
    assert _cap(ActionObjective(), wide) == 0.6  # intervals that overlap are no reason to waste the difference of means


def test_rows_of_unknown_power_are_never_chosen_but_count_for_the_bound() -> None:
    table = _table(_cost(1.0, 100.0, None), *TABLE.costs[1:])
    found = choose(table, ActionObjective())
    assert found.action.cap == 0.6 and found.reference.cap == 1.0 and found.reference_score is None
    assert choose(table, ActionObjective(max_slowdown=0.06)).action.cap == 0.8
    assert "saved" not in str(found)


def test_nothing_left_says_what_is_missing() -> None:
    with pytest.raises(ConfigError, match="0 have a known power"):
        choose(_table(_cost(1.0, 100.0, None)), ActionObjective())
    with pytest.raises(ConfigError, match="knows no speed of any action"):
        choose(_table(), ActionObjective())
    with pytest.raises(ConfigError, match="knows no speed of fp8"):
        choose(TABLE, ActionObjective(), reference=Action(gear=Gear.FP8))
    table = _table(_cost(1.0, 100.0, None), _cost(0.5, 50.0, 300.0))
    with pytest.raises(ConfigError, match=r"makes 90 a second, where bf16 makes 100: raise max_slowdown"):
        choose(table, ActionObjective(max_slowdown=0.1))


def test_a_loop_that_told_no_tokens_is_judged_by_its_steps() -> None:
    def row(cap: float, speed: float, power_w: float) -> ActionCost:
        return ActionCost(
            action=Action(gear=Gear.BF16, cap=cap), steps_per_s=MeanWithCI(mean=speed), power_w=MeanWithCI(mean=power_w)
        )

    assert _cap(ActionObjective(), _table(row(1.0, 4.0, 700.0), row(0.6, 3.5, 420.0))) == 0.6


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"name": "power"}, "objective is 'power'"),
        ({"name": "carbon"}, "carbon intensity, and it is not known"),
        ({"name": "carbon", "g_per_kwh": math.nan}, "g_per_kwh is nan"),
        ({"name": "carbon", "g_per_kwh": 1.0, "pue": 0.9}, "pue is 0.9"),
        ({"name": "carbon", "g_per_kwh": 1.0, "embodied_g_per_s": -1.0}, "embodied_g_per_s is -1.0"),
        ({"name": "cost", "limit_w": 700.0, "eta": 1.1}, "eta is 1.1"),
        ({"name": "cost"}, "power limit of the devices"),
        ({"max_slowdown": 1.0}, "max_slowdown is 1.0"),
    ],
)
def test_values_that_make_no_sense_are_refused(values: dict[str, float], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        ActionObjective(**values)  # type: ignore[arg-type]


rows = st.lists(st.tuples(st.floats(1.0, 100.0), st.floats(1.0, 1000.0)), min_size=1, max_size=19)


@given(rows=rows, time_w=st.floats(0.0, 1000.0), bound=st.none() | st.floats(0.0, 0.9))
def test_what_is_chosen_keeps_the_bound_and_nothing_allowed_is_better_by_more_than_a_tie(
    rows: list[tuple[float, float]], time_w: float, bound: float | None
) -> None:
    table = _table(*(_cost(1.0 - 0.05 * i, v, w) for i, (v, w) in enumerate(rows)))
    objective = ActionObjective(name="cost", eta=0.5, limit_w=max(time_w, 1e-3), max_slowdown=bound)
    found = choose(table, objective)
    fastest = max(v for v, _ in rows)
    allowed = [(v, w) for v, w in rows if bound is None or v >= (1 - bound) * fastest]
    speed = (1.0 - found.slowdown) * fastest
    assert speed == pytest.approx(max(speed, (1 - (bound or 1.0)) * fastest))
    assert found.score <= 1.01 * min(objective.score(v, w) for v, w in allowed) + 1e-12


@given(rows=rows, eta=st.floats(0.01, 1.0))
def test_every_objective_has_its_best_action_on_the_hull_of_the_menu(
    rows: list[tuple[float, float]], eta: float
) -> None:
    table = _table(*(_cost(1.0 - 0.05 * i, v, w) for i, (v, w) in enumerate(rows)))
    objective = ActionObjective(name="cost", eta=eta, limit_w=500.0)
    menu = Menu.of(table)
    best = min(objective.score(v, w) for v, w in rows)
    hull = [i for i in menu.hull.tolist() if i]
    assert min(objective.score(menu.tokens_per_s[i], menu.power_w[i]) for i in hull) == pytest.approx(best)
