"""MIG devices, clients of MPS and pods on one GPU: each job gets its part, modelled, by a rule that is named."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from greentrain.power import claims
from greentrain.power.nvml import NvmlMeter
from greentrain.testing.fake_nvml import FakeDriver, FakeGpu, Wave, build_library
from greentrain.types import Provenance

Install = Callable[..., FakeDriver]
ELSEWHERE = 2**22 + 7
"""A process number that this namespace never has."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def install(library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    monkeypatch.setattr(claims, "FIRST_PID_NAMESPACE", os.stat("/proc/self/ns/pid").st_ino)
    opened = []

    def start(*gpus: FakeGpu) -> FakeDriver:
        driver = FakeDriver(list(gpus), library=library)
        context = driver.installed()
        context.__enter__()
        opened.append((driver, context))
        return driver

    yield start
    for driver, context in reversed(opened):
        context.__exit__(None, None, None)
        driver.close()


def booked_j(meter: NvmlMeter, driver: FakeDriver) -> tuple[float, float]:
    """Return what the meter's one sensor told over some ticks, and what the GPU's counter told meanwhile."""
    import pynvml

    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    while True:
        whole_mj, first = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle), meter.read()[0]
        if pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) == whole_mj:
            break
    time.sleep(0.25)
    while True:
        end_mj, last = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle), meter.read()[0]
        if pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) == end_mj:
            break
    assert first.energy_j is not None and last.energy_j is not None, (first, last)
    return last.energy_j - first.energy_j, (end_mj - whole_mj) / 1000


def test_a_slice_gets_the_part_of_its_multiprocessors(install: Install) -> None:
    driver = install(FakeGpu(mig_uuids=("MIG-a", "MIG-b"), mig_sms=(60, 40), power=(Wave(low_w=400.0),)))
    meter = NvmlMeter({"CUDA_VISIBLE_DEVICES": "MIG-b"})
    (sensor,) = meter.sensors
    assert (sensor.device.uid, sensor.provenance) == ("MIG-b", Provenance.MODELLED)
    assert "rule sm-slices: 40 of the 100" in sensor.note and driver.uuid(0) in sensor.note
    ours_j, whole_j = booked_j(meter, driver)
    assert whole_j > 0 and ours_j == pytest.approx(0.4 * whole_j)
    meter.close()


def test_slices_of_a_card_that_tells_no_sizes_stay_the_whole_card(install: Install) -> None:
    driver = install(FakeGpu(mig_uuids=("MIG-a", "MIG-b")))
    meter = NvmlMeter({"CUDA_VISIBLE_DEVICES": "MIG-b"})
    assert [s.device.uid for s in meter.sensors] == [driver.uuid(0)]
    assert meter.sensors[0].provenance is Provenance.MEASURED
    meter.close()


@pytest.mark.parametrize(
    ("pids", "sm_utils", "part"),
    [
        ((os.getpid(), os.getppid()), (30, 10), 0.75),
        ((os.getpid(), os.getppid(), 1), (0, 0, 0), 1 / 3),
        ((os.getppid(),), (80,), 0.0),
        ((os.getpid(), os.getppid()), (0, 50), 0.0),
        ((ELSEWHERE, ELSEWHERE + 1), (40, 40), 0.5),
    ],
)
def test_processes_on_one_gpu_get_their_part_of_its_sm_time(
    install: Install, pids: tuple[int, ...], sm_utils: tuple[int, ...], part: float
) -> None:
    driver = install(FakeGpu(pids=pids, sm_utils=sm_utils, power=(Wave(low_w=300.0),)))
    meter = NvmlMeter({}, split="auto")
    (sensor,) = meter.sensors
    assert sensor.provenance is Provenance.MODELLED and "rule sm-time" in sensor.note and "split" in sensor.method
    ours_j, whole_j = booked_j(meter, driver)
    assert whole_j > 0 and ours_j == pytest.approx(part * whole_j)
    meter.close()


def test_a_neighbour_that_comes_later_counts_from_then_on_where_it_is_asked_for(install: Install) -> None:
    driver = install(FakeGpu(pids=(os.getpid(),), sm_utils=(50,), power=(Wave(low_w=300.0),)))
    auto, always, off = (NvmlMeter({}, split=split) for split in ("auto", "always", "off"))
    assert [m.sensors[0].provenance for m in (auto, always, off)] == [
        Provenance.MEASURED, Provenance.MODELLED, Provenance.MEASURED
    ]  # fmt: skip
    ours_j, whole_j = booked_j(always, driver)
    assert ours_j == pytest.approx(whole_j)
    driver.update(0, pids=(os.getpid(), os.getppid()), sm_utils=(50, 50))
    always.read()
    ours_j, whole_j = booked_j(always, driver)
    assert ours_j == pytest.approx(whole_j / 2)
    for meter in (auto, always, off):
        meter.close()


def test_in_a_pod_every_process_that_it_sees_is_its_own(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = install(FakeGpu(pids=(os.getppid(), ELSEWHERE), sm_utils=(20, 60), power=(Wave(low_w=300.0),)))
    monkeypatch.setattr(claims, "FIRST_PID_NAMESPACE", 1)
    meter = NvmlMeter({}, split="auto")
    ours_j, whole_j = booked_j(meter, driver)
    assert ours_j == pytest.approx(whole_j / 4)
    meter.close()


def test_used_books_nothing_until_something_is_known(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from greentrain import GreenSession
    from greentrain.config.schema import CarbonConfig
    from greentrain.ledger.active_run import ClaimedDevices
    from greentrain.types import Topology

    driver = install(FakeGpu(), FakeGpu())
    monkeypatch.setenv("GREENTRAIN_CLAIMS_DIR", str(tmp_path / "claims"))
    run = {"dir": str(tmp_path), "report": False, "live": False}
    with GreenSession({"run": run, "power": {"meters": ["nvml"], "gpus": ["used"]}}) as session:
        session.step(tokens=1)
    assert not any(session.totals().by_device.values())
    meter = NvmlMeter({})
    devices = ClaimedDevices(
        meter.sensors, Topology(), {"run_id": "r", "rank": 0}, CarbonConfig(), lambda *_: None, only_used=True
    )
    devices.start(0.0)
    devices.claim_rest(0.0, False, {})
    assert not devices.curves
    assert devices.claim_rest(0.0, False, {driver.uuid(0): [os.getppid()], driver.uuid(1): [os.getpid()]})
    assert list(devices.curves) == [driver.uuid(1)]
    devices.release()
    meter.close()
    with GreenSession({"run": run, "power": {"meters": ["nvml"], "gpus": ["all"]}}) as session:
        time.sleep(0.3)
        session.step(tokens=1)
    assert {uid for uid, joules in session.totals().by_device.items() if joules} == {driver.uuid(0), driver.uuid(1)}
