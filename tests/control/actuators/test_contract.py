"""Limits and clocks keep the contract of actuators."""

from collections.abc import Iterator

import pytest

from greentrain.testing.actuator_contract import Actuator, ActuatorContract
from greentrain.testing.fake_nvml import FakeDriver, FakeGpu
from tests.control.actuators.on_fake import ADMIN_W, Node, Said, capping, clocking


class TestPowerCap(ActuatorContract):
    levels = (1.0, 0.8, 0.6)
    can_refuse = True
    driver: FakeDriver

    @pytest.fixture
    def actuator(self, node: Node) -> Iterator[Actuator]:
        self.driver = node(FakeGpu(limit_w=ADMIN_W), FakeGpu(limit_w=600.0))
        with capping(Said()) as cap:
            yield cap
            self.driver.update(1, may_set=True)

    def setting(self) -> object:
        return [self.driver.state(gpu).power_limit_w for gpu in (0, 1)]

    def refuse(self) -> None:
        self.driver.update(1, may_set=False)


class TestClockLimit(ActuatorContract):
    levels = (0.0, 0.15, 0.3)
    can_refuse = True
    driver: FakeDriver

    @pytest.fixture
    def actuator(self, node: Node) -> Iterator[Actuator]:
        self.driver = node(FakeGpu(), FakeGpu())
        with clocking(Said()) as clocks:
            yield clocks
            self.driver.update(1, may_set=True)

    def setting(self) -> object:
        return [self.driver.state(gpu).gpu_clocks_mhz for gpu in (0, 1)]

    def refuse(self) -> None:
        self.driver.update(1, may_set=False)
