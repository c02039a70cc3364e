"""Clocks: bounded from above, freed again, and left alone where somebody else has set them."""

import contextlib
import os
import time

import pytest

from greentrain.carbon.constant import ConstantSignal
from greentrain.config.schema import ClocksConfig
from greentrain.control.actuators.clocks import StallControl, open_clocks
from greentrain.control.actuators.guardian import Guardian
from greentrain.control.controller import GpuLimits
from greentrain.ledger.bookkeeper import Bookkeeper, Mark
from greentrain.ledger.pue import ConstantPue
from greentrain.power.nvml import NvmlMeter
from greentrain.power.sampler import EnergyCurve
from greentrain.testing.fake_nvml import LEAD_S, FakeGpu, NvmlCode
from greentrain.types import PowerSample, Topology
from tests.control.actuators.on_fake import ADMIN_W, FREE_MHZ, Node, Said, alive, capping, clocking, wait_until
from tests.power.on_fake import only

LOCK = "nvmlDeviceSetGpuLockedClocks"


def test_the_upper_end_goes_down_and_up_again(node: Node) -> None:
    driver, said = node(FakeGpu(), FakeGpu()), Said()
    with clocking(said) as clocks:
        assert driver.state(0).gpu_clock_sets == 0, "an unlock at the opening would undo somebody's lock"
        assert clocks.share_below_max == 0.0
        assert clocks.apply(0.3) and clocks.share_below_max == 0.3
        assert driver.state(0).gpu_clocks_mhz == driver.state(1).gpu_clocks_mhz == (210, 990)
        assert clocks.apply(0.15) and driver.state(1).gpu_clocks_mhz == (210, 1200)
        assert clocks.apply(0.15) and driver.state(0).gpu_clock_sets == 2
        assert clocks.apply(0.0) and driver.state(0).gpu_clocks_mhz == FREE_MHZ
        assert clocks.apply(0.3)
        clocks.reset()
        clocks.reset()
        assert driver.state(0).gpu_clocks_mhz == FREE_MHZ and clocks.share_below_max == 0.0
        assert clocks.apply(0.3)
    assert driver.state(1).gpu_clocks_mhz == FREE_MHZ
    assert not clocks.apply(0.3) and said == [] and driver.init_depth == 0


def test_a_share_outside_is_refused(node: Node) -> None:
    said = Said()
    node(FakeGpu())
    with clocking(said) as clocks:
        assert not clocks.apply(0.6) and not clocks.apply(-0.1) and not clocks.apply(float("nan"))
        assert "outside 0 to 0.5" in said[0]


@pytest.mark.parametrize(
    ("gpu", "sign"),
    [
        (FakeGpu(clock_reasons=0x2), "an applications clock limits it now"),
        (FakeGpu(clock_reasons=0x104), "a display clock limits it now"),
        (FakeGpu(app_clocks_mhz=(990, 1410)), "its applications clock is 990 MHz, by default 1410 MHz"),
    ],
)
def test_a_sign_of_somebodys_setting_leaves_clocks_alone(node: Node, gpu: FakeGpu, sign: str) -> None:
    driver, said = node(gpu), Said()
    assert open_clocks(ClocksConfig(), Topology(), said) is None
    assert len(said) == 1 and sign in said[0] and "NVML could not put that back" in said[0]
    assert driver.init_depth == 0


def test_a_busy_gpu_below_its_maximum_without_a_reason_is_locked(node: Node) -> None:
    import pynvml

    driver, said = node(FakeGpu(utilisation=90)), Said()
    pynvml.nvmlInit()
    pynvml.nvmlDeviceSetGpuLockedClocks(pynvml.nvmlDeviceGetHandleByIndex(0), 210, 990)  # an administrator's
    assert open_clocks(ClocksConfig(), Topology(), said) is None
    assert "busy at 990 MHz of 1410 MHz" in said[0]
    assert driver.state(0).gpu_clocks_mhz == (210, 990)
    pynvml.nvmlShutdown()


def test_signs_are_looked_for_again_before_the_first_change(node: Node) -> None:
    driver, said = node(FakeGpu(clock_reasons=1), FakeGpu(clock_reasons=1)), Said()
    with clocking(said) as clocks:
        driver.update(0, clock_reasons=2)
        assert clocks.apply(0.3)
        assert driver.state(0).gpu_clocks_mhz == FREE_MHZ and driver.state(1).gpu_clocks_mhz == (210, 990)
        assert len(said) == 1 and driver.uuid(0) in said[0]


def test_a_missing_right_is_named(node: Node) -> None:
    driver, said = node(FakeGpu(may_set=False)), Said()
    assert open_clocks(ClocksConfig(), Topology(), said) is None
    assert len(said) == 1 and said[0].startswith("clocks are left alone") and "CAP_SYS_ADMIN" in said[0]
    assert driver.init_depth == 0


def test_a_card_whose_power_limit_is_fixed_may_have_clocks(node: Node) -> None:
    driver, said = node(FakeGpu(errors={"nvmlDeviceSetPowerManagementLimit": NvmlCode.NOT_SUPPORTED})), Said()
    with clocking(said) as clocks:
        assert clocks.apply(0.3) and driver.state(0).gpu_clocks_mhz == (210, 990)


def test_an_error_mid_run_costs_one_warning(node: Node) -> None:
    driver, said = node(FakeGpu(), FakeGpu()), Said()
    with clocking(said) as clocks:
        assert clocks.apply(0.15)
        driver.update(1, errors={LOCK: NvmlCode.UNKNOWN})
        time.sleep(2 * LEAD_S)
        assert not clocks.apply(0.3) and not clocks.apply(0.15)
        assert len(said) == 1 and "clocks are left alone" in said[0]
        assert driver.state(0).gpu_clocks_mhz == driver.state(1).gpu_clocks_mhz == FREE_MHZ


def test_one_guardian_serves_limits_and_clocks(node: Node) -> None:
    driver, said = node(FakeGpu(limit_w=ADMIN_W)), Said()
    guardian = Guardian(library=str(driver.library))
    with capping(said, guardian=guardian) as cap, clocking(said, guardian=guardian) as clocks:
        assert clocks.apply(0.3)
        pid = guardian.pid
        assert cap.apply(0.6) and guardian.pid == pid
        cap.close()
        assert alive(pid) and driver.state(0).power_limit_w == ADMIN_W
        assert driver.state(0).gpu_clocks_mhz == (210, 990)
    assert driver.state(0).gpu_clocks_mhz == FREE_MHZ
    assert wait_until(lambda: not alive(pid)) and said == []


def test_another_guardian_of_the_same_process_is_told_apart(node: Node) -> None:
    node(FakeGpu(limit_w=ADMIN_W))
    said = Said()
    with clocking(said) as clocks, capping(said) as cap:
        assert clocks.apply(0.3)
        assert not cap.apply(0.6)
        assert "another guardian of this process" in said[0]


def test_a_stranger_who_comes_gets_his_clocks_back(node: Node, stranger: int) -> None:
    driver, said = node(FakeGpu(), FakeGpu()), Said()
    with clocking(said) as clocks:
        assert clocks.apply(0.15)
        driver.update(0, pids=[os.getpid(), stranger])
        assert clocks.apply(0.3)
        assert driver.state(0).gpu_clocks_mhz == FREE_MHZ and driver.state(1).gpu_clocks_mhz == (210, 990)
        assert len(said) == 1 and str(stranger) in said[0]


def test_clocks_follow_what_the_driver_tells_of_memory_and_are_free_again_at_the_end(node: Node) -> None:
    driver, said = node(FakeGpu(utilisation=95, memory_utilisation=80)), Said()
    config, told = ClocksConfig(stalls="memory"), []
    with contextlib.closing(NvmlMeter()) as meter, clocking(said) as clocks:
        (reader,), uid = meter.split(), driver.uuid(0)
        limits = GpuLimits(None, clocks, StallControl(config))
        books = Bookkeeper(t0_s=0.0, unix_offset_s=0.0, signal=ConstantSignal(1.0), facility=ConstantPue(1.0))
        curve = EnergyCurve(only(meter), 0.0)
        for i in range(1, 31):
            curve.append(PowerSample(device_uid=uid, t_s=10.0 * i, energy_j=100.0 * i))
            (state,) = reader.states()  # type: ignore[attr-defined]
            books.look(state._replace(t_s=10.0 * i - k) for k in range(9, -1, -1))
            books.timeline.add([Mark(10.0 * i - 5, "step", steps=100)])
            told.append(limits.look(books.book(10.0 * i, {uid: curve})))
        assert driver.state(0).gpu_clocks_mhz == (210, 990)
        assert [text for text in told if text] == [
            "clocks at most 15% below their maximum: 100% of the time is bound by memory",
            "clocks at most 30% below their maximum: 100% of the time is bound by memory",
        ]
    assert driver.state(0).gpu_clocks_mhz == FREE_MHZ and said == []
