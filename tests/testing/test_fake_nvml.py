"""The fake driver tells the truth: what NVML shows agrees with the power integrated by brute force."""

import itertools
import os
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pynvml
import pytest

from greentrain.testing.fake_nvml import LEAD_S, FakeDriver, FakeGpu, NvmlCode, Wave, build_library

WAVES = (
    Wave(low_w=120, high_w=410, period_s=0.083, duty=0.3, phase_s=0.021),
    Wave(low_w=-20, high_w=35, period_s=0.031, duty=0.61),
    Wave(low_w=40),
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("nvml"))


@contextmanager
def running(library: Path, *gpus: FakeGpu) -> Iterator[tuple[FakeDriver, list[Any]]]:
    with ExitStack() as stack:
        driver = stack.enter_context(FakeDriver(gpus, library=library))
        stack.enter_context(driver.installed())
        pynvml.nvmlInit()
        yield driver, [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(len(gpus))]


def wait_for(t_s: float) -> None:
    time.sleep(max(0.0, t_s - time.monotonic()) + 0.002)


def power_w(waves: tuple[Wave, ...], u_s: float) -> float:
    return sum(
        w.high_w if w.period_s and (u_s + w.phase_s) % w.period_s < w.duty * w.period_s else w.low_w for w in waves
    )


def instant_w(handle: Any) -> float:
    (value,) = pynvml.nvmlDeviceGetFieldValues(handle, [(pynvml.NVML_FI_DEV_POWER_INSTANT, 0)])
    assert value.nvmlReturn == 0
    return float(value.value.uiVal / 1000)


def test_the_true_energy_is_the_integral_of_the_waves(library: Path) -> None:
    with FakeDriver([FakeGpu(power=WAVES)], library=library) as driver:
        step_s, steps = 1e-5, 60_000
        summed_j = sum(power_w(WAVES, (i + 0.5) * step_s) for i in range(steps)) * step_s
        epoch_s = driver.epoch_s
        assert driver.true_energy_j(0, epoch_s, epoch_s + steps * step_s) == pytest.approx(summed_j, rel=1e-4)
        cuts = sorted(random.Random(0).uniform(-1, 10) for _ in range(20))
        parts_j = sum(driver.true_energy_j(0, epoch_s + a, epoch_s + b) for a, b in itertools.pairwise(cuts))
        assert parts_j == pytest.approx(driver.true_energy_j(0, epoch_s + cuts[0], epoch_s + cuts[-1]))


def test_the_counter_of_the_library_is_the_truth_of_python_at_its_last_tick(library: Path) -> None:
    with running(library, FakeGpu(power=WAVES, tick_s=0.001)) as (driver, (handle,)):
        for _ in range(3):
            before_s = time.monotonic()
            energy_j = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000 - 1e6
            after_s = time.monotonic()
            low_j = driver.true_energy_j(0, driver.epoch_s, before_s - 0.001)
            assert low_j - 0.002 <= energy_j <= driver.true_energy_j(0, driver.epoch_s, after_s) + 0.002
            time.sleep(0.03)


def test_the_counter_changes_only_at_its_ticks(library: Path) -> None:
    with running(library, FakeGpu(tick_s=0.04, tick_phase_s=0.011)) as (_, (handle,)):
        last, changes_s = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle), list[float]()
        begun_s = time.monotonic()

        def is_seen() -> bool:
            return len(changes_s) >= 2 and min(min(off_s, 0.04 - off_s) for off_s in changes_s) < 0.002

        # On a busy machine a change may be seen late; one of many is not.
        while (now_s := time.monotonic()) < begun_s + (0.2 if is_seen() else 60.0):
            value = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
            if value != last:
                assert (value - last) % round(300 * 0.04 * 1000) in (0, 1, 11_999)
                changes_s.append((now_s - 0.011) % 0.04)
            last = value
        assert is_seen() and len(changes_s) <= (now_s - begun_s) / 0.04 + 2


def test_new_waves_keep_the_energy_so_far(library: Path) -> None:
    with running(library, FakeGpu(power=(Wave(low_w=100),), tick_s=0.001)) as (driver, (handle,)):
        first_s = driver.update(0, power=(Wave(low_w=500),))
        second_s = driver.update(0, power=(Wave(low_w=200),), at_s=first_s + 0.05)
        assert first_s + 0.05 <= second_s <= max(first_s + 0.05, time.monotonic() + LEAD_S)
        wait_for(second_s + 0.05)
        assert driver.true_energy_j(0, driver.epoch_s, first_s) == pytest.approx(100 * (first_s - driver.epoch_s))
        assert driver.true_energy_j(0, first_s - 0.01, second_s + 0.01) == pytest.approx(
            1 + 500 * (second_s - first_s) + 2
        )
        before_s = time.monotonic()
        energy_j = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000 - 1e6
        most_j = driver.true_energy_j(0, driver.epoch_s, time.monotonic())
        assert driver.true_energy_j(0, driver.epoch_s, before_s) - 1 <= energy_j <= most_j + 1
        assert instant_w(handle) == 200


def test_a_part_time_sensor_takes_its_window_for_the_whole_tick(library: Path) -> None:
    # Ticks fall on multiples of 100 ms. The first GPU is busy for 25 ms after each tick, the second before it.
    with running(library, FakeGpu(window_s=0.025), FakeGpu(window_s=0.025)) as (driver, handles):
        wave = Wave(low_w=100, high_w=500, period_s=0.1, duty=0.25)
        for _ in range(50):  # until the process is held up nowhere
            start_s = (int(time.monotonic() / 0.1) + 2) * 0.1
            starts_s = [driver.update(0, power=(wave,), at_s=start_s)]
            starts_s.append(driver.update(1, power=(wave,), at_s=start_s + 0.075))
            wait_for(start_s + 0.26)
            before_mj = [pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) for handle in handles]
            early = time.monotonic() < start_s + 0.3
            wait_for(start_s + 0.66)
            after_mj = [pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) for handle in handles]
            shown_w = [instant_w(handle) for handle in handles]
            if early and time.monotonic() < start_s + 0.7 and starts_s == [start_s, start_s + 0.075]:
                break
        unseen_j, seen_j = [(b - a) / 1000 for a, b in zip(before_mj, after_mj, strict=True)]
        assert shown_w == pytest.approx([100, 500], abs=1)
        assert pynvml.nvmlDeviceGetPowerUsage(handles[1]) > 250_000
    assert unseen_j % 10 == pytest.approx(0, abs=0.1) or unseen_j % 10 == pytest.approx(10, abs=0.1)
    assert unseen_j >= 39.9
    assert seen_j / unseen_j == pytest.approx(5, rel=0.01)


def test_power_usage_is_the_mean_of_a_second_and_ga100_shows_the_instant(library: Path) -> None:
    wave = (Wave(low_w=100, high_w=300, period_s=0.1),)
    with running(library, FakeGpu(power=wave), FakeGpu(power=wave, averaging_s=0.0)) as (_, (hopper, ga100)):
        assert pynvml.nvmlDeviceGetPowerUsage(hopper) == pytest.approx(200_000, rel=0.01)
        assert pynvml.nvmlDeviceGetPowerUsage(ga100) in (100_000, 300_000)
        fields = pynvml.nvmlDeviceGetFieldValues(ga100, [pynvml.NVML_FI_DEV_POWER_AVERAGE, 9999])
        assert [field.nvmlReturn for field in fields] == [NvmlCode.NOT_SUPPORTED] * 2


def test_a_step_of_power_reaches_the_average_slowly_and_the_instant_at_once(library: Path) -> None:
    with running(library, FakeGpu(power=(Wave(low_w=100),))) as (driver, (handle,)):
        stepped_s = driver.update(0, power=(Wave(low_w=500),))
        wait_for(stepped_s + 0.25)
        assert instant_w(handle) == 500
        before_s = time.monotonic()
        mean_w = pynvml.nvmlDeviceGetPowerUsage(handle) / 1000
        least_w, most_w = (100 + 400 * min(1.0, t_s - stepped_s) for t_s in (before_s, time.monotonic()))
        assert least_w - 45 <= mean_w <= most_w + 45, "of the last second"


def test_errors_start_when_told_and_are_of_one_gpu_and_one_function(library: Path) -> None:
    with running(library, FakeGpu(), FakeGpu()) as (driver, handles):
        at_s = driver.update(0, errors={"nvmlDeviceGetPowerUsage": NvmlCode.UNKNOWN}, at_s=time.monotonic() + 0.05)
        try:
            assert pynvml.nvmlDeviceGetPowerUsage(handles[0]) > 0
        except pynvml.NVMLError_Unknown:
            assert time.monotonic() >= at_s, "no sooner than told"
        wait_for(at_s)
        with pytest.raises(pynvml.NVMLError_Unknown):
            pynvml.nvmlDeviceGetPowerUsage(handles[0])
        assert pynvml.nvmlDeviceGetPowerUsage(handles[1]) > 0
        assert pynvml.nvmlDeviceGetTotalEnergyConsumption(handles[0]) > 0
        assert driver.calls(0, "nvmlDeviceGetPowerUsage") == 2


def test_a_lost_gpu_answers_nothing_until_it_is_back(library: Path) -> None:
    with running(library, FakeGpu()) as (driver, (handle,)):
        wait_for(driver.update(0, lost=True))
        for call in (pynvml.nvmlDeviceGetName, pynvml.nvmlDeviceGetTotalEnergyConsumption, pynvml.nvmlDeviceGetUUID):
            with pytest.raises(pynvml.NVMLError_GpuIsLost):
                call(handle)
        driver.update(0, lost=False)
        assert pynvml.nvmlDeviceGetName(handle)


def test_a_slice_has_identity_but_no_energy(library: Path) -> None:
    with running(library, FakeGpu(mig_uuids=["MIG-a", "MIG-b"])) as (_, (parent,)):
        assert pynvml.nvmlDeviceGetMigMode(parent) == [1, 1]
        handle = pynvml.nvmlDeviceGetHandleByUUID("MIG-b")
        assert pynvml.nvmlDeviceGetUUID(handle) == "MIG-b"
        assert pynvml.nvmlDeviceGetGpuInstanceId(handle) == 2
        assert pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)).startswith("GPU-")
        for call in (pynvml.nvmlDeviceGetTotalEnergyConsumption, pynvml.nvmlDeviceGetPowerUsage):
            with pytest.raises(pynvml.NVMLError_NotSupported):
                call(handle)
            assert call(parent) > 0
        with pytest.raises(pynvml.NVMLError_NotFound):
            pynvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, 2)


def test_setters_are_recorded_bounded_and_may_be_forbidden(library: Path) -> None:
    with running(library, FakeGpu(), FakeGpu(may_set=False)) as (driver, (free, forbidden)):
        pynvml.nvmlDeviceSetPowerManagementLimit(free, 400_000)
        assert pynvml.nvmlDeviceGetPowerManagementLimit(free) == 400_000
        assert driver.state(0).power_limit_w == 400
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlDeviceSetPowerManagementLimit(free, 199_000)
        with pytest.raises(pynvml.NVMLError_NoPermission):
            pynvml.nvmlDeviceSetPowerManagementLimit(forbidden, 400_000)
        pynvml.nvmlDeviceSetGpuLockedClocks(free, 300, 900)
        assert driver.state(0).gpu_clocks_mhz == (300, 900)
        pynvml.nvmlDeviceResetGpuLockedClocks(free)
        assert driver.state(0).gpu_clocks_mhz == (210, 1410)
        assert driver.state(1).power_limit_sets == 0


def test_without_an_installed_driver_this_process_sees_what_it_saw_before(library: Path) -> None:
    before = pynvml.nvmlLib, dict(os.environ)
    with running(library, FakeGpu()):
        assert pynvml.nvmlDeviceGetCount() == 1
    assert (pynvml.nvmlLib, dict(os.environ)) == before
    with FakeDriver(1, library=library) as driver, driver.installed(), pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()


def test_closing_removes_every_file(library: Path) -> None:
    driver = FakeDriver(1, library=library)
    folder = driver.state_file.parent
    assert folder.is_dir()
    driver.close()
    driver.close()
    assert not folder.exists()
    assert library.exists()


def test_wrong_programs_are_refused_with_the_bound(library: Path) -> None:
    with pytest.raises(ValueError, match="17 GPUs, but the fake driver holds at most 16"):
        FakeDriver(17, library=library)
    with FakeDriver(1, library=library) as driver:
        with pytest.raises(ValueError, match="'nvmlNothing' cannot be programmed; known: NVML_FI_DEV"):
            driver.update(0, errors={"nvmlNothing": 1})
        with pytest.raises(ValueError, match="5 waves"):
            driver.update(0, power=(Wave(low_w=1),) * 5)
        with pytest.raises(ValueError, match="device is 16"):
            driver.true_energy_j(16, 0, 1)
        before_s = time.monotonic()
        assert driver.update(0, lost=True, at_s=0.0) >= before_s + LEAD_S


def test_a_board_that_obeys_never_draws_more_than_its_limit(library: Path) -> None:
    wave = Wave(low_w=100.0, high_w=600.0, period_s=0.02, duty=0.5)
    with running(library, FakeGpu(power=(wave,), obeys_limit=True, limit_w=650.0)) as (driver, (handle,)):
        free_s = time.monotonic()
        assert driver.true_energy_j(0, free_s, free_s + 2.0) == pytest.approx(700.0, rel=0.01)
        pynvml.nvmlDeviceSetPowerManagementLimit(handle, 300_000)
        capped_s = time.monotonic()
        assert driver.true_energy_j(0, capped_s, capped_s + 2.0) == pytest.approx(400.0, rel=0.01)
        wait_for(capped_s + FakeGpu().refresh_s)
        for _ in range(100):
            assert instant_w(handle) <= 300.0
            time.sleep(0.001)
        changed_s = driver.update(0, power=(Wave(low_w=500.0),), at_s=time.monotonic() + 0.05)
        assert driver.true_energy_j(0, changed_s, changed_s + 1.0) == pytest.approx(300.0)
        driver.update(0, limit_w=450.0)
        wait_for(changed_s)
        later_s = time.monotonic()
        assert driver.true_energy_j(0, later_s, later_s + 1.0) == pytest.approx(450.0)
        least_j = driver.true_energy_j(0, driver.epoch_s, time.monotonic()) - 60.0  # one tick of 0.1 s at 600 W at most
        counted_j = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000 - 1e6
        assert least_j <= counted_j <= driver.true_energy_j(0, driver.epoch_s, time.monotonic()) + 60.0
    with pytest.raises(ValueError, match="holds at most 1"):
        FakeDriver([FakeGpu(power=WAVES, obeys_limit=True)], library=library)


def test_an_administrators_hand_needs_no_right(library: Path) -> None:
    gpu = FakeGpu(may_set=False, limit_w=650.0, enforced_w=500.0, pid=7, pids=(8, 9), app_clocks_mhz=(990, 1410))
    with running(library, gpu) as (driver, (handle,)):
        assert pynvml.nvmlDeviceGetPowerManagementLimit(handle) == 650_000
        assert pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) == 500_000
        driver.update(0, limit_w=444.0, pids=(10, 11), clock_reasons=4)
        assert pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) == 444_000
        assert [process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)] == [10, 11]
        assert pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle) == pynvml.nvmlClocksEventReasonSwPowerCap
        assert pynvml.nvmlDeviceGetApplicationsClock(handle, pynvml.NVML_CLOCK_GRAPHICS) == 990
        assert pynvml.nvmlDeviceGetDefaultApplicationsClock(handle, pynvml.NVML_CLOCK_GRAPHICS) == 1410
        driver.update(0, may_set=True)
        pynvml.nvmlDeviceSetPowerManagementLimit(handle, 300_000)
        assert driver.state(0).power_limit_sets == 1
