import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from greentrain.errors import MeterError
from greentrain.power import cpu_model
from greentrain.power.cpu_model import CPU_UID, DRAM_UID, RAM_W_PER_GB, CpuModelMeter, TreeUsage, allowed_cpus
from greentrain.testing.meter_contract import MeterContract
from greentrain.types import DeviceKind, PowerMeter, Provenance
from tests.helpers.hand_clock import HandClock

THREADS = os.cpu_count() or 1
TICKS = os.sysconf("SC_CLK_TCK")


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
    def meter(self, proc: Path) -> Iterator[PowerMeter]:
        self.proc = fake_proc(proc)
        meter = CpuModelMeter(scope="machine", proc=str(self.proc))
        yield meter
        meter.close()

    def vanish(self) -> None:
        (self.proc / "stat").unlink()
        (self.proc / "meminfo").write_text("nonsense")


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a procfs of a test's own, which psutil reads too."""
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    return tmp_path


def fake_proc(folder: Path, busy_s: float = 10.0, used_gb: float = 8.0) -> Path:
    ticks = int(busy_s * TICKS)
    (folder / "stat").write_text(f"cpu  {ticks} 0 0 999999 777 0 0 555 0 0\ncpu0 1 2 3\n")
    total_kb = 64_000_000_000 // 1024
    available_kb = total_kb - int(used_gb * 1e9 / 1024)
    rest = "".join(f"{key}: 1 kB\n" for key in ("Buffers", "Cached", "Shmem", "Active", "Inactive"))
    (folder / "meminfo").write_text(f"MemTotal: {total_kb} kB\nMemFree: 1 kB\nMemAvailable: {available_kb} kB\n{rest}")
    (folder / "cpuinfo").write_text("model name : AMD EPYC\nflags : fpu hypervisor\n")
    return folder


def test_process_tree_books_idle_share_and_cpu_seconds() -> None:
    clock = HandClock(50.0)
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


def test_machine_books_all_load(proc: Path) -> None:
    clock = HandClock(50.0)
    fake_proc(proc)
    meter = CpuModelMeter(scope="machine", tdp_w=100.0, proc=str(proc), clock=clock)
    clock.now_s += 10.0
    fake_proc(proc, busy_s=13.0, used_gb=16.0)
    (cpu, memory) = meter.read()
    assert cpu.energy_j == pytest.approx(10.0 * 10.0 + 3.0 * 90.0 / THREADS)
    assert memory.power_w == pytest.approx(16.0 * RAM_W_PER_GB, rel=1e-3)
    fake_proc(proc, busy_s=1.0)
    (back, _) = meter.read()
    assert back.energy_j == cpu.energy_j
    meter.close()


def test_sensors_say_modelled_and_who_may_book_them(proc: Path) -> None:
    tree = CpuModelMeter(notes={DeviceKind.CPU: "RAPL is not readable"})
    machine = CpuModelMeter(scope="machine", proc=str(fake_proc(proc)))
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


def test_full_load_draws_the_tdp(proc: Path) -> None:
    clock = HandClock(50.0)
    meter = CpuModelMeter(scope="machine", tdp_w=80.0, proc=str(fake_proc(proc, busy_s=0.0)), clock=clock)
    clock.now_s += 1.0
    fake_proc(proc, busy_s=float(THREADS))
    assert meter.read()[0].energy_j == pytest.approx(80.0)
    meter.close()


def test_a_model_says_of_a_full_load_what_it_is_at_most(proc: Path) -> None:
    machine = CpuModelMeter(scope="machine", tdp_w=80.0, proc=str(fake_proc(proc)))
    total_gb = next(int(line.split()[1]) for line in (proc / "meminfo").read_text().splitlines()) * 1024 / 1e9
    assert machine.sensors[0].limit_w == pytest.approx(80.0 * 1.3)
    assert machine.sensors[1].limit_w == pytest.approx(RAM_W_PER_GB * total_gb * 1.6)
    machine.close()
    tree = CpuModelMeter(tdp_w=80.0, local_world_size=2)
    usable = allowed_cpus(os.getpid()) / THREADS
    assert tree.sensors[0].limit_w == pytest.approx(80.0 * usable * (0.1 / 2 + 0.9) * 1.3)
    tree.close()


def test_a_process_that_begins_later_is_charged_from_its_first_moment() -> None:
    children: list[subprocess.Popen[str]] = []
    meter = CpuModelMeter(root_pid=lambda: children[0].pid if children else None, tdp_w=10.0 * THREADS)
    energies = []

    def read() -> tuple[float, float]:
        cpu, memory = meter.read()
        assert cpu.energy_j is not None and memory.power_w is not None
        energies.append(cpu.energy_j)
        return cpu.t_s, memory.power_w

    (t0_s, no_w), (t1_s, _) = read(), read()
    idle_w = 0.1 * 10.0 * allowed_cpus(os.getpid())
    assert no_w == 0.0 and energies[1] - energies[0] == pytest.approx(idle_w * (t1_s - t0_s))
    burn = "import time\nwhile time.process_time() < 0.2: pass\nprint('burnt', flush=True)\ninput()"
    children.append(
        subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    )
    with children[0] as child:
        assert child.stdout is not None and child.stdout.readline() == "burnt\n"
        t2_s, some_w = read()
        assert some_w > 0.0
        assert energies[2] - energies[1] - idle_w * (t2_s - t1_s) >= 9.0 * (0.2 - 2 / TICKS)
        child.communicate("")
    meter.close()


def test_wrong_scope_and_dead_root_are_errors() -> None:
    with pytest.raises(MeterError, match="scope is 'node'"):
        CpuModelMeter(scope="node")
    child = subprocess.Popen(["true"])
    child.wait()
    with pytest.raises(MeterError, match=f"process {child.pid} does not exist"):
        CpuModelMeter(root_pid=child.pid)


def test_every_kind_of_work_is_load_and_waiting_is_none(proc: Path) -> None:
    clock = HandClock(50.0)
    meter = CpuModelMeter(scope="machine", tdp_w=100.0, proc=str(fake_proc(proc, busy_s=10.0)), clock=clock)
    user, nice, system, irq, softirq = ((10 + 1) * TICKS, 2 * TICKS, 3 * TICKS, 4 * TICKS, 5 * TICKS)
    (proc / "stat").write_text(f"cpu  {user} {nice} {system} 5555555 666666 {irq} {softirq} 777777 0 0\n")
    assert meter.read()[0].energy_j == pytest.approx((1 + 2 + 3 + 4 + 5) * 90.0 / THREADS)
    (proc / "stat").write_text("cpu  1 2 3\n")
    assert all(sample.missing for sample in meter.read())
    meter.close()
    assert {sample.note for sample in meter.read()} == {"the meter is closed"}


def test_without_procfs_psutil_tells_the_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, times = HandClock(50.0), SimpleNamespace(user=10.0, system=5.0, nice=1.0, idle=1e6)
    monkeypatch.setattr(psutil, "cpu_times", lambda: times)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=64e9, available=60e9))
    meter = CpuModelMeter(scope="machine", tdp_w=100.0, proc=str(tmp_path / "none"), clock=clock)
    times.user, times.system, times.nice = 12.0, 6.0, 1.5
    cpu, memory = meter.read()
    assert cpu.energy_j == pytest.approx(3.5 * 90.0 / THREADS)
    assert memory.power_w == pytest.approx(4 * RAM_W_PER_GB)
    times.user = 0.0
    assert meter.read()[0].energy_j == cpu.energy_j, "what was counted stays"
    meter.close()


@pytest.mark.parametrize(
    ("limit", "cpus"),
    [("150000 100000\n", 1.5), ("max 100000\n", 8.0), ("900000 100000", 8.0), ("5 0", 8.0), ("", 8.0)],
)
def test_the_quota_of_a_container_limits_what_idle_power_is_charged(
    limit: str, cpus: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_model, "text_of", lambda path: limit.strip())
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert allowed_cpus(os.getpid()) == cpus


def test_memory_that_processes_share_is_charged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several processes the resident memory counts shared pages once each: no more than the machine uses."""
    clock = HandClock(50.0)
    meter = CpuModelMeter(clock=clock)
    for processes, used_bytes, charged_gb in ((1, 3e9, 8.0), (2, 3e9, 3.0), (2, 20e9, 8.0), (2, math.inf, 8.0)):
        usage = TreeUsage(1.0, int(8e9), processes)
        monkeypatch.setattr(meter._load._tree, "read", lambda usage=usage: usage)  # type: ignore[union-attr]
        monkeypatch.setattr(cpu_model, "_used_bytes", lambda used=used_bytes: used)
        assert meter.read()[1].power_w == pytest.approx(charged_gb * RAM_W_PER_GB)
    meter.close()


def test_a_probe_charges_its_cost_to_one_of_both_sensors(monkeypatch: pytest.MonkeyPatch) -> None:
    meter = CpuModelMeter()
    times_s = iter([5.0, 5.002])
    monkeypatch.setattr(time, "thread_time", lambda: next(times_s))
    meter.probe()
    assert [sensor.read_cost_s for sensor in meter.sensors] == [pytest.approx(0.002), 0.0], "one read brings both"
    meter.close()
