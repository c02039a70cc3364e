"""The profiling phase under real power limits: those of the fake driver, set by the actuator of a run."""

import time

import pytest

from greentrain.control.profiling.distributed import Caps
from greentrain.testing.fake_nvml import LEAD_S, FakeDriver, FakeGpu, NvmlCode
from tests.control.actuators.on_fake import ADMIN_W, Node, Said, capping
from tests.helpers.capped import LIMIT_W, Job


class Driven(Job):
    """A job that is as fast as the driver's limit allows, whoever set it."""

    def __init__(self, caps: Caps, driver: FakeDriver) -> None:
        super().__init__(caps)
        self._driver = driver

    @property
    def in_force(self) -> float:
        return self._driver.state(0).power_limit_w / ADMIN_W


def test_rows_hold_what_the_drivers_limits_bring_and_the_administrators_limit_is_back(node: Node) -> None:
    driver, said = node(FakeGpu(limit_w=ADMIN_W)), Said()
    with capping(said, dwell_s=60.0) as caps:
        job = Driven(caps, driver)
        job.run(job.phase(rounds=3))
        (table,) = job.tables
        assert [cost.action.cap for cost in table.costs] == [1.0, 0.8, 0.6]
        for cost in table.costs:
            assert cost.power_w is not None and cost.steps_per_s is not None
            assert cost.power_w.mean == pytest.approx(cost.action.cap * LIMIT_W)
            assert cost.steps_per_s.mean == pytest.approx(job.speed(cost.action.cap))
        assert driver.state(0).power_limit_w == ADMIN_W
    assert said == []


def test_a_right_that_is_lost_in_the_phase_costs_the_caps_and_nothing_else(node: Node) -> None:
    driver, said = node(FakeGpu(limit_w=ADMIN_W)), Said()
    with capping(said) as caps:
        job = Driven(caps, driver)
        phase, lost = job.phase(), False
        while not phase.done:
            if caps.fraction == 0.8 and not lost:
                driver.update(0, errors={"nvmlDeviceSetPowerManagementLimit": NvmlCode.NO_PERMISSION})
                time.sleep(2 * LEAD_S)  # until the driver knows
                lost = True
            tokens = job.train()
            phase.boundary()
            phase.step(tokens, 8)
        for cost in job.tables[0].costs:
            assert cost.power_w is not None
            assert cost.power_w.mean == pytest.approx(cost.action.cap * LIMIT_W)
        assert 1.0 in [cost.action.cap for cost in job.tables[0].costs]
    assert any("power limits" in sentence for sentence in said)
