"""From a name to a policy."""

from pathlib import Path
from typing import Any

import pytest

from greentrain.config.schema import SCHEDULERS, PolicyConfig
from greentrain.errors import ConfigError
from greentrain.policy.menu import Menu
from greentrain.policy.mpc import Mpc, MpcSwitching
from greentrain.policy.outlook import SchedulePolicy
from greentrain.policy.registry import open_schedule
from tests.policy.cases import action_table
from tests.policy.drive import outlook

MENU = Menu.of(action_table())


def opened(name: str, **more: Any) -> SchedulePolicy:
    return open_schedule(PolicyConfig(name=name, tokens=1e9, deadline_h=24.0, **more), MENU)


def test_static_takes_the_gear_that_is_asked_for() -> None:
    seen = outlook(ahead=[[300.0]], tokens_left=[1e6], left_s=[1e6], current=[1])
    for gear in ("bf16", "fp8"):
        row = int(opened("static", gear=gear).choose(seen).rows[0])
        assert MENU.names()[row] == f"{gear} on 8"
    with pytest.raises(ConfigError, match=r"policy\.gear is 'fp16', but the action table only has bf16, fp8"):
        opened("static", gear="fp16")


def test_spot_says_where_its_prices_are_from(tmp_path: Path) -> None:
    assert opened("spot").name == "spot (synthetic prices)"
    path = tmp_path / "prices.csv"
    path.write_text("timestamp_utc,price_per_h\n2022-01-01T00:00Z,1\n2022-01-01T01:00Z,2\n", encoding="utf-8")
    assert opened("spot", prices_csv=str(path)).name == "spot"


def test_a_list_of_steps_plans_nothing() -> None:
    with pytest.raises(ConfigError, match="'scripted', which does not plan"):
        open_schedule(PolicyConfig(name="scripted", schedule=((0, "bf16"),)), MENU)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_every_scheduler_opens(name: str) -> None:
    policy = opened(name)
    assert isinstance(policy, SchedulePolicy) and policy.name.startswith(name)


def test_mpc_counts_changes_of_width_where_they_cost() -> None:
    for more, kind in (
        ({}, Mpc),
        ({"switch_s": 60.0}, MpcSwitching),
        ({"dwell_s": 60.0}, MpcSwitching),
        ({"switch_s": 60.0, "switching": "myopic"}, Mpc),
        ({"switching": "dp"}, MpcSwitching),
    ):
        assert isinstance(opened("mpc", **more), kind), more
