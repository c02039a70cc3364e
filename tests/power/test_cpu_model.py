import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from greentrain.errors import MeterError
from greentrain.power.cpu_model import CPU_UID, DRAM_UID, RAM_W_PER_GB, CpuModelMeter, allowed_cpus
from greentrain.testing.meter_contract import MeterContract
from greentrain.types import DeviceKind, PowerMeter, Provenance

THREADS = os.cpu_count() or 1
TICKS = os.sysconf("SC_CLK_TCK")


class FakeClock:
    def __init__(self) -> None:
        self.now_s = 50.0

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_s(self) -> float:
        return self.now_s + 1.7e9


class TestProcessTreeContract(MeterContract):
    @pytest.fixture
    def meter(self) -> Iterator[PowerMeter]:
        self.child = subprocess.Popen(["sleep", "60"])
        meter = CpuModelMeter(root_pid=self.child.pid)
        yield meter
        meter.close()
        self.child.kill()
        self.child.wait()

    def vanish(self) -> None:
        self.child.kill()
        self.child.wait()


class TestMachineContract(MeterContract):
    @pytest.fixture
    def meter(self, tmp_path: Path) -> Iterator[PowerMeter]:
        self.proc = fake_proc(tmp_path)
        meter = CpuModelMeter(scope="machine", proc=str(self.proc))
        yield meter
        meter.close()

    def vanish(self) -> None:
        (self.proc / "stat").unlink()
        (self.proc / "meminfo").write_text("nonsense")


def fake_proc(folder: Path, busy_s: float = 10.0, used_gb: float = 8.0) -> Path:
    ticks = int(busy_s * TICKS)
    (folder / "stat").write_text(f"cpu  {ticks} 0 0 999999 777 0 0 555 0 0\ncpu0 1 2 3\n")
    total_kb = 64_000_000_000 // 1024
    available_kb = total_kb - int(used_gb * 1e9 / 1024)
    (folder / "meminfo").write_text(f"MemTotal: {total_kb} kB\nMemFree: 1 kB\nMemAvailable: {available_kb} kB\n")
    (folder / "cpuinfo").write_text("model name : AMD EPYC\nflags : fpu hypervisor\n")
    return folder


def test_process_tree_books_idle_share_and_cpu_seconds() -> None:
    clock = FakeClock()
    meter = CpuModelMeter(tdp_w=100.0, local_world_size=2, clock=clock)
    (before, _) = meter.read()
    code = "import time\nend = time.process_time() + 0.4\nwhile time.process_time() < end: pass\n"
    subprocess.run([sys.executable, "-S", "-c", code], check=True)
    (busy, _) = meter.read()
    clock.now_s += 100.0
    (idle, _) = meter.read()
    assert before.energy_j is not None and busy.energy_j is not None and idle.energy_j is not None
    assert 0.38 < (busy.energy_j - before.energy_j) / (90.0 / THREADS) < 1.5
    share = allowed_cpus(os.getpid()) / THREADS / 2
    assert idle.energy_j - busy.energy_j == pytest.approx(100.0 * 10.0 * share, abs=0.1 * 90.0 / THREADS)
    meter.close()


def test_process_tree_memory_is_a_rate_per_gb() -> None:
    meter = CpuModelMeter()
    (_, memory) = meter.read()
    with open("/proc/self/statm") as file:
        rss_gb = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e9
    assert memory.power_w == pytest.approx(RAM_W_PER_GB * rss_gb, rel=0.2)
    meter.close()


def test_machine_books_all_load(tmp_path: Path) -> None:
    clock = FakeClock()
    proc = fake_proc(tmp_path)
    meter = CpuModelMeter(scope="machine", tdp_w=100.0, proc=str(proc), clock=clock)
    clock.now_s += 10.0
    fake_proc(tmp_path, busy_s=13.0, used_gb=16.0)
    (cpu, memory) = meter.read()
    assert cpu.energy_j == pytest.approx(10.0 * 10.0 + 3.0 * 90.0 / THREADS)
    assert memory.power_w == pytest.approx(16.0 * RAM_W_PER_GB, rel=1e-3)
    fake_proc(tmp_path, busy_s=1.0)
    (back, _) = meter.read()
    assert back.energy_j == cpu.energy_j
    meter.close()


def test_sensors_say_modelled_and_who_may_book_them(tmp_path: Path) -> None:
    tree = CpuModelMeter(notes={DeviceKind.CPU: "RAPL is not readable"})
    machine = CpuModelMeter(scope="machine", proc=str(fake_proc(tmp_path)))
    assert [s.device.uid for s in tree.sensors] == [CPU_UID, DRAM_UID] == [s.device.uid for s in machine.sensors]
    for sensor in (*tree.sensors, *machine.sensors):
        assert sensor.provenance is Provenance.MODELLED
        assert sensor.uncertainty is not None and sensor.note and sensor.period_s == 1.0
    assert not any(s.shared for s in tree.sensors) and all(s.shared for s in machine.sensors)
    assert tree.sensors[0].note.startswith("RAPL is not readable. ")
    assert "4 W for each" in machine.sensors[0].note
    tree.probe()
    assert tree.sensors[0].read_cost_s is not None and tree.sensors[0].read_cost_s < 0.05
    tree.close()
    machine.close()


def test_kinds_choose_what_is_modelled() -> None:
    meter = CpuModelMeter(kinds=[DeviceKind.DRAM])
    assert [s.device.uid for s in meter.sensors] == [DRAM_UID] == [s.device_uid for s in meter.read()]
    meter.close()


def test_full_load_draws_the_tdp(tmp_path: Path) -> None:
    clock = FakeClock()
    meter = CpuModelMeter(scope="machine", tdp_w=80.0, proc=str(fake_proc(tmp_path, busy_s=0.0)), clock=clock)
    clock.now_s += 1.0
    fake_proc(tmp_path, busy_s=float(THREADS))
    assert meter.read()[0].energy_j == pytest.approx(80.0)
    meter.close()


def test_wrong_scope_and_dead_root_are_errors() -> None:
    with pytest.raises(MeterError, match="scope is 'node'"):
        CpuModelMeter(scope="node")
    child = subprocess.Popen(["true"])
    child.wait()
    with pytest.raises(MeterError, match=f"process {child.pid} does not exist"):
        CpuModelMeter(root_pid=child.pid)
