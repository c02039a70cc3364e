"""The fake driver is real enough: codecarbon and zeus run on it unchanged, with their known defects.

Defect numbers are those of docs and benchmarks/metering.py; they hold for the versions named here only.
"""

import importlib.metadata
import json
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from greentrain.testing.fake_nvml import FakeDriver, FakeGpu, Wave

pytestmark = pytest.mark.long

GPUS = (FakeGpu(power=(Wave(low_w=300),)), FakeGpu(power=(Wave(low_w=100, high_w=200, period_s=0.1),)))
TICK_J = 0.1 * (300 + 200)
"""The most that all GPUs use between two ticks of their counters (J)."""

CODECARBON = """
import json, time
from codecarbon import OfflineEmissionsTracker
tracker = OfflineEmissionsTracker(
    country_iso_code="FRA", measure_power_secs=1, save_to_file=False, log_level="critical", allow_multiple_runs=True,
    force_cpu_power=1, force_ram_power=1,
)
times_s = [time.monotonic()]
tracker.start()
times_s.append(time.monotonic())
time.sleep(1.2)
times_s.append(time.monotonic())
tracker.stop()
times_s.append(time.monotonic())
data = tracker.final_emissions_data
print(json.dumps({"times_s": times_s, "gpu_j": data.gpu_energy * 3.6e6, "model": data.gpu_model}))
"""
ZEUS = """
import json, time
from zeus.monitor import ZeusMonitor
monitor = ZeusMonitor(cpu_indices=[])
times_s = [time.monotonic()]
monitor.begin_window("step", sync_execution=False)
times_s.append(time.monotonic())
time.sleep(0.5)
times_s.append(time.monotonic())
energy = monitor.end_window("step", sync_execution=False).gpu_energy
times_s.append(time.monotonic())
monitor.begin_window("reload", sync_execution=False)
print(json.dumps({"times_s": times_s, "gpu_j": list(energy.values())}), flush=True)
input()
print(json.dumps({"gpu_j": list(monitor.end_window("reload", sync_execution=False).gpu_energy.values())}))
"""


def needs(package: str, version: str) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    installed = importlib.metadata.version(package)
    if installed != version:
        pytest.skip(f"the defect is known of {package} {version}; {installed} is installed")


def run(code: str, env: dict[str, str], tmp_path: Path) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def bounds_j(driver: FakeDriver, times_s: list[float]) -> tuple[float, float]:
    """Truth from the end of the opening call to the start of the closing one, and the other way round (J)."""
    before_s, opened_s, closing_s, after_s = times_s
    low_j = sum(driver.true_energy_j(device, opened_s, closing_s) for device in range(2))
    return low_j, sum(driver.true_energy_j(device, before_s, after_s) for device in range(2))


def test_codecarbon_finds_the_gpus_and_measures_the_truth_to_a_tick(library: Path, tmp_path: Path) -> None:
    with FakeDriver(GPUS, library=library) as driver:
        found = run(CODECARBON, driver.env(), tmp_path)
        low_j, high_j = bounds_j(driver, found["times_s"])
    assert low_j - TICK_J < found["gpu_j"] < high_j + TICK_J
    assert found["model"] == "2 x NVIDIA H100 80GB HBM3"


def test_codecarbon_reports_nothing_for_a_gpu_named_by_uuid(library: Path, tmp_path: Path) -> None:
    needs("codecarbon", "3.3.2")
    with FakeDriver(GPUS, library=library) as driver:
        env = driver.env() | {"CUDA_VISIBLE_DEVICES": driver.uuid(1)}
        assert run(CODECARBON, env, tmp_path)["gpu_j"] == 0.0  # V2


def test_zeus_measures_windows_and_believes_a_counter_that_runs_backwards(library: Path, tmp_path: Path) -> None:
    needs("zeus", "0.16.0")
    with FakeDriver(GPUS, library=library) as driver:
        process = subprocess.Popen(
            [sys.executable, "-c", ZEUS],
            env=driver.env(),
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            assert process.stdout is not None
            first = json.loads(next(line for line in process.stdout if line.startswith("{")))
            low_j, high_j = bounds_j(driver, first["times_s"])
            time.sleep(max(0.0, driver.update(0, counter_jump_j=-1000.0) + 0.1 - time.monotonic()))
            out, err = process.communicate("\n", timeout=240)
    assert low_j - TICK_J < sum(first["gpu_j"]) < high_j + TICK_J
    assert json.loads(out.splitlines()[-1])["gpu_j"][0] < 0, err  # V12


def test_zeus_refuses_a_gpu_named_by_uuid(library: Path, tmp_path: Path) -> None:
    needs("zeus", "0.16.0")
    code = "from zeus.device.gpu.nvidia import NVIDIAGPUs\nNVIDIAGPUs()"
    with FakeDriver(GPUS, library=library) as driver:
        env = driver.env() | {"CUDA_VISIBLE_DEVICES": driver.uuid(1)}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "ValueError: invalid literal for int()" in done.stderr  # V3


def test_zeus_sets_and_restores_power_limits(library: Path, tmp_path: Path) -> None:
    needs("zeus", "0.16.0")
    code = (
        "import json\n"
        "from zeus.device.gpu.nvidia import NVIDIAGPUs\n"
        "gpus = NVIDIAGPUs()\n"
        "gpus.set_power_management_limit(0, 450_000)\n"
        "gpus.set_persistence_mode(0, True)\n"
        "print(json.dumps([gpus.get_power_management_limit(0), gpus.get_power_management_limit_constraints(0)]))"
    )
    with FakeDriver(1, library=library) as driver:
        assert run(code, driver.env(), tmp_path) == [450_000, [200_000, 700_000]]
        state = driver.state(0)
    assert (state.power_limit_w, state.power_limit_sets, state.persistence) == (450.0, 1, True)
