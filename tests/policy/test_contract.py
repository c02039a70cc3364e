"""Every policy of the configuration passes the conformance suite."""

from typing import ClassVar

import pytest

from greentrain.config.schema import SCHEDULERS, PolicyConfig
from greentrain.policy.baselines import CarbonBlind
from greentrain.policy.menu import Menu
from greentrain.policy.outlook import SchedulePolicy
from greentrain.policy.registry import open_schedule
from greentrain.testing.policy_contract import PolicyContract


class _Configured(PolicyContract):
    config: ClassVar[PolicyConfig]

    def make_policy(self, menu: Menu) -> SchedulePolicy:
        return open_schedule(self.config, menu)


def _config(name: str, **keys: float) -> PolicyConfig:
    return PolicyConfig(name=name, tokens=1e9, deadline_h=48.0, **keys)  # type: ignore[arg-type]


class TestStatic(_Configured):
    config = PolicyConfig()


class TestThreshold(_Configured):
    config = _config("threshold")


class TestLowestWindow(_Configured):
    config = _config("lowest_window")


class TestMpc(_Configured):
    config = _config("mpc")


class TestMpcSwitching(_Configured):
    config = _config("mpc", switch_s=600.0, dwell_s=7200.0)


class TestCarbonGear(_Configured):
    config = _config("carbongear", switch_s=600.0)


class TestCarbonGearPrinted(_Configured):
    config = _config("carbongear-printed")
    draws = True


class TestCarl(_Configured):
    config = _config("carl")


class TestSpot(_Configured):
    config = _config("spot")


class TestCarbonBlind(PolicyContract):
    def make_policy(self, menu: Menu) -> SchedulePolicy:
        return CarbonBlind(menu)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_none_is_left_out(name: str) -> None:
    tried = {one.config.name for one in _Configured.__subclasses__()}
    assert name in tried
