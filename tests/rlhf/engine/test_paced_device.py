"""The devices that tests are made with keep the contract of a device, and take the time that they say."""

import time
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from benchmarks import paced_device
from benchmarks.paced_device import Paced
from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.batch import Batch
from greentrain.fpga_backend.device import OffloadDevice
from greentrain.fpga_backend.emulator.device import Emulator
from greentrain.fpga_backend.emulator.engine import Engine
from greentrain.testing.offload_contract import OffloadContract
from tests.helpers.flaky_device import Fault, Flaky


class TestPaced(OffloadContract):
    @pytest.fixture
    def device(self) -> Iterator[OffloadDevice]:
        device = Paced(Emulator(), s_per_sequence=2e-4, s_per_batch=2e-4, depth=6)
        yield device
        device.close()


class TestFlakyWithoutFaults(OffloadContract):
    @pytest.fixture
    def device(self) -> Iterator[OffloadDevice]:
        device = Flaky(Emulator(), {10_000: Fault.LOST}, depth=6)
        yield device
        device.close()


def test_paced_takes_its_time_and_no_cpu(reward: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    still = SimpleNamespace(perf_counter=lambda: 0.0, monotonic=lambda: 0.0)  # the inner device takes none of the time
    monkeypatch.setattr(paced_device, "time", still)
    batch = Batch.of([[1, 2, 3], [4, 5], [6]])
    device = Paced(Emulator(), s_per_sequence=0.05, s_per_batch=0.1)
    try:
        handle = device.load(reward)
        cpu_s = sum(psutil.Process().cpu_times()[:2])
        begun_s = time.perf_counter()
        found = [device.submit(handle, batch) for _ in range(2)]
        results = [future.result(240) for future in found]
        took_s = time.perf_counter() - begun_s
        assert sum(psutil.Process().cpu_times()[:2]) - cpu_s < 0.25
    finally:
        device.close()
    assert [result.run_s for result in results] == pytest.approx([0.25, 0.25])
    assert took_s >= 0.5
    wanted = Engine(reward).run(batch).scores
    assert wanted is not None
    for result in results:
        assert result.modelled
        assert result.scores is not None and np.array_equal(result.scores, wanted)


def test_closing_does_not_wait_for_the_emulated_time(reward: Artifact) -> None:
    device = Paced(Emulator(), s_per_sequence=600.0)
    future = device.submit(device.load(reward), Batch.of([[1, 2]]))
    time.sleep(0.05)
    begun_s = time.monotonic()
    device.close()
    assert time.monotonic() - begun_s < 120
    assert "closed" in str(future.exception(60))
