"""The choices of a job, and which of them a best plan can use."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from greentrain.errors import ConfigError
from greentrain.policy.action_table import Action, ActionCost, ActionTable, MeanWithCI
from greentrain.policy.menu import OFF, Menu
from greentrain.types import Gear


def cost(action: Action, tokens_per_s: float | None, power_w: float | None, provenance: str = "measured") -> ActionCost:
    return ActionCost(
        action=action,
        steps_per_s=MeanWithCI(mean=1.0),
        tokens_per_s=None if tokens_per_s is None else MeanWithCI(mean=tokens_per_s),
        power_w=None if power_w is None else MeanWithCI(mean=power_w),
        provenance=provenance,
    )


def table(*costs: ActionCost, world_size: int = 1) -> ActionTable:
    return ActionTable(costs=costs, device="a device", world_size=world_size, created_unix_s=0.0)


BF16, FP8 = Action(gear=Gear.BF16), Action(gear=Gear.FP8)


def test_off_comes_first_and_what_nobody_measured_is_left_out() -> None:
    menu = Menu.of(table(cost(BF16, 100.0, 500.0), cost(FP8, 130.0, None), cost(Action(gear=Gear.FP32), None, 400.0)))
    assert menu.actions == (None, BF16)
    assert menu.names() == ["off", "bf16"]
    assert menu.power_w.tolist() == [0.0, 500.0] and menu.width.tolist() == [0, 1]
    assert menu.provenance == "measured"


def test_a_loop_that_counts_samples_plans_samples() -> None:
    images = ActionCost(
        action=BF16,
        steps_per_s=MeanWithCI(mean=1.0),
        samples_per_s=MeanWithCI(mean=64.0),
        power_w=MeanWithCI(mean=500.0),
        provenance="measured",
    )
    assert Menu.of(table(images)).tokens_per_s.tolist() == [0.0, 64.0]


def test_held_ranks_go_on_drawing_power() -> None:
    rows = [cost(Action(gear=Gear.BF16, ranks=n), 100.0 * n, 500.0 * n) for n in (1, 2, 4)]
    menu = Menu.of(table(*rows), released=False, idle_w=60.0)
    assert menu.power_w.tolist() == [240.0, 680.0, 1120.0, 2000.0]
    with pytest.raises(ConfigError, match="idle_w"):
        Menu.of(table(*rows), released=False)


def test_an_empty_table_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"policy\.actions"):
        Menu.of(table())
    with pytest.raises(ConfigError, match=r"'a device' has .*, and of none"):
        Menu.of(table(cost(BF16, 100.0, 500.0)), wanted=lambda action: action.gear is Gear.FP8)


def test_static_is_bf16_at_full_power_and_full_width() -> None:
    rows = [
        cost(Action(gear=gear, cap=cap, ranks=n), n * speed * cap**0.3, n * 500.0 * cap, provenance)
        for gear, speed, provenance in ((Gear.BF16, 100.0, "measured"), (Gear.FP8, 135.0, "modelled"))
        for cap in (1.0, 0.6)
        for n in (1, 8)
    ]
    menu = Menu.of(table(*rows))
    assert menu.actions[menu.static] == Action(gear=Gear.BF16, ranks=8)
    assert menu.actions[menu.fastest] == Action(gear=Gear.FP8, ranks=8)
    assert menu.provenance == "mixed"
    assert menu.fp8.tolist() == [action is not None and action.gear is Gear.FP8 for action in menu.actions]
    assert OFF not in (menu.static, menu.fastest)


def test_a_share_of_fp8_is_a_mixture_of_steps() -> None:
    rows = [cost(BF16, 100.0, 500.0), cost(FP8, 200.0, 400.0)]
    menu = Menu.of(table(*rows)).with_fp8_share(0.5)
    # 100 tokens of each: 1 s at 500 W and 0.5 s at 400 W
    assert menu.tokens_per_s.tolist() == pytest.approx([0.0, 100.0, 200 / 1.5])
    assert menu.power_w.tolist() == pytest.approx([0.0, 500.0, 700 / 1.5])
    none = Menu.of(table(*rows)).with_fp8_share(0.0)
    assert (none.tokens_per_s[2], none.power_w[2]) == pytest.approx((100.0, 500.0))
    assert Menu.of(table(*rows)).with_fp8_share(1.0).tokens_per_s[2] == 200.0
    alone = Menu.of(table(rows[1])).with_fp8_share(0.5)
    assert alone.tokens_per_s[1] == 200.0, "there is no other gear"


@given(
    st.lists(st.tuples(st.floats(1.0, 1e4), st.floats(1.0, 1e4)), min_size=1, max_size=12),
    st.floats(0.0, 1.0),
)
def test_no_mixture_of_choices_is_cheaper_than_the_hull(points: list[tuple[float, float]], share: float) -> None:
    rows = [cost(Action(gear=Gear.BF16, ranks=i + 1), speed, power) for i, (speed, power) in enumerate(points)]
    menu = Menu.of(table(*rows))
    asked = share * menu.tokens_per_s[menu.fastest]
    best = linprog(
        menu.power_w,
        A_eq=np.vstack([np.ones(len(menu)), menu.tokens_per_s]),
        b_eq=[1.0, asked],
    )
    found = np.interp(asked, menu.tokens_per_s[menu.hull], menu.power_w[menu.hull])
    assert found == pytest.approx(best.fun, rel=1e-7, abs=1e-6)  # HiGHS keeps its bounds to 1e-7 each
    slopes = np.diff(menu.power_w[menu.hull]) / np.diff(menu.tokens_per_s[menu.hull])
    assert np.all(np.diff(slopes) > 0)
