"""NvmlMeter with the real pynvml on the fake driver; the truth is known in closed form."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from greentrain.power.accelerators import STUCK_S
from greentrain.power.nvml import AVERAGE, COUNTER, INSTANT, USAGE, NvmlMeter, Polled
from greentrain.testing.fake_nvml import SONAME, FakeDriver, FakeGpu, NvmlCode, Wave
from greentrain.types import DeviceKind, PowerMeter, Provenance
from tests.power.on_fake import ENERGY, Install, only

POWER = "nvmlDeviceGetPowerUsage"
INSTANT_FIELD = "NVML_FI_DEV_POWER_INSTANT"
AVERAGE_FIELD = "NVML_FI_DEV_POWER_AVERAGE"
NO = NvmlCode.NOT_SUPPORTED
UUID = "GPU-00000000-0000-0000-0000-{:012d}"


class SteppedClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = time.monotonic()

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_s(self) -> float:
        return self.now_s


def wait_for(t_s: float) -> None:
    time.sleep(max(0.0, t_s - time.monotonic()) + 0.002)


def test_the_counter_of_every_gpu_follows_the_truth_to_one_tick(install: Install) -> None:
    driver = install(
        FakeGpu(power=(Wave(low_w=100, high_w=400, period_s=0.13, duty=0.3),)),
        FakeGpu(name="NVIDIA L4", power=(Wave(low_w=30), Wave(low_w=0, high_w=40, period_s=0.05)), tick_phase_s=0.03),
    )
    meter = NvmlMeter({})
    assert isinstance(meter, PowerMeter)
    began_s = time.monotonic()
    first = meter.read()
    read_s = time.monotonic() - began_s
    time.sleep(0.35)
    began_s = time.monotonic()
    second = meter.read()
    read_s += time.monotonic() - began_s
    assert [sensor.device.uid for sensor in meter.sensors] == [UUID.format(0), UUID.format(1)]
    assert [sensor.device.name for sensor in meter.sensors] == ["NVIDIA H100 80GB HBM3", "NVIDIA L4"]
    for position, (a, b) in enumerate(zip(first, second, strict=True)):
        assert meter.sensors[position].method == COUNTER
        assert meter.sensors[position].device.kind is DeviceKind.GPU
        assert meter.sensors[position].shared
        assert a.device_uid == UUID.format(position)
        assert a.energy_j is not None and b.energy_j is not None
        truth_j = driver.true_energy_j(position, a.t_s, b.t_s)
        largest_w = (400.0, 70.0)[position]
        assert truth_j > 5
        assert abs(b.energy_j - a.energy_j - truth_j) <= largest_w * (0.1 + read_s) + 0.01
    meter.close()


def test_the_time_of_a_sample_lies_inside_its_call(install: Install) -> None:
    install(FakeGpu(delays={ENERGY: (0.02, 0.0)}))
    meter = NvmlMeter({})
    before_s = time.monotonic()
    (sample,) = meter.read()
    assert 0.009 < sample.t_s - before_s < time.monotonic() - before_s - 0.009
    meter.close()


@pytest.mark.parametrize(
    ("text", "positions"),
    [
        (UUID.format(2), [2]),
        (f"{UUID.format(2)},{UUID.format(0)}", [2, 0]),
        ("GPU-a1b2", [3]),
        ("3,1", [3, 1]),
        ("MIG-slice-b", [1]),
        ("MIG-slice-b,MIG-slice-a", [1]),
        ("1,0,9,2", [1, 0]),
    ],
)
def test_only_the_visible_gpus_are_read_also_by_uuid(install: Install, text: str, positions: list[int]) -> None:
    driver = install(
        FakeGpu(), FakeGpu(mig_uuids=["MIG-slice-a", "MIG-slice-b"]), FakeGpu(), FakeGpu(uuid="GPU-a1b2c3d4-0-0-0-0")
    )
    meter = NvmlMeter({"CUDA_VISIBLE_DEVICES": text})
    meter.read()
    assert [sensor.device.uid for sensor in meter.sensors] == [driver.uuid(position) for position in positions]
    assert [driver.calls(position, ENERGY) > 0 for position in range(4)] == [p in positions for p in range(4)]
    meter.close()


def test_the_environment_of_the_process_counts(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install(FakeGpu(), FakeGpu())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", UUID.format(1))
    meter = NvmlMeter()
    assert only(meter).device.uid == UUID.format(1)
    meter.close()


@pytest.mark.parametrize(
    ("errors", "method", "averaging_s"),
    [
        ({}, COUNTER, 0.0),
        ({ENERGY: NO}, INSTANT, 0.0),
        ({ENERGY: NO, INSTANT_FIELD: NO}, AVERAGE, 1.0),
        ({ENERGY: NO, INSTANT_FIELD: NO, AVERAGE_FIELD: NO}, USAGE, 1.0),
        ({ENERGY: NvmlCode.UNKNOWN, "nvmlDeviceGetFieldValues": NvmlCode.UNKNOWN}, USAGE, 1.0),
    ],
)
def test_the_best_method_that_answers_is_taken(
    install: Install, errors: dict[str, int], method: str, averaging_s: float
) -> None:
    install(FakeGpu(power=(Wave(low_w=250),), errors=errors))
    meter = NvmlMeter({})
    sensor = only(meter)
    assert (sensor.method, sensor.averaging_s, sensor.provenance) == (method, averaging_s, Provenance.MEASURED)
    assert ("the mean of 1 s: phases that come with each step are blurred" in sensor.note) == (averaging_s == 1.0)
    (sample,) = meter.read()
    if method == COUNTER:
        assert sample.energy_j == pytest.approx(1e6, rel=1e-2)
        assert sample.power_w is None
    else:
        assert "energy counter: " in sensor.note
        assert sample.power_w == pytest.approx(250)
        assert sample.energy_j is None
    meter.close()


@pytest.mark.parametrize(
    ("capability", "averaging_s"), [((7, 0), 0.0), ((7, 5), 0.0), ((8, 0), 0.0), ((8, 6), 1.0), ((10, 0), 1.0)]
)
def test_power_usage_is_an_average_only_after_ga100(
    install: Install, capability: tuple[int, int], averaging_s: float
) -> None:
    install(FakeGpu(compute_capability=capability, errors={ENERGY: NO, "nvmlDeviceGetFieldValues": NO}))
    meter = NvmlMeter({})
    assert (only(meter).method, only(meter).averaging_s) == (USAGE, averaging_s)
    meter.close()


def test_instant_power_follows_a_square_wave_and_the_average_does_not(install: Install) -> None:
    wave = (Wave(low_w=100, high_w=500, period_s=0.2),)
    install(FakeGpu(power=wave, errors={ENERGY: NO}), FakeGpu(power=wave, errors={ENERGY: NO, INSTANT_FIELD: NO}))
    meter = NvmlMeter({})
    instant: list[float] = []
    average: list[float] = []
    for _ in range(20):
        a, b = meter.read()
        instant.append(a.power_w or 0)
        average.append(b.power_w or 0)
        time.sleep(0.02)
    assert set(instant) == {100.0, 500.0}
    assert all(260 <= power_w <= 340 for power_w in average)
    meter.close()


def test_a_gpu_that_cannot_be_read_is_missing_and_says_why(install: Install) -> None:
    denied = {ENERGY: NvmlCode.NO_PERMISSION, "nvmlDeviceGetFieldValues": NO, POWER: NvmlCode.NO_PERMISSION}
    driver = install(FakeGpu(errors=denied), FakeGpu())
    meter = NvmlMeter({})
    bad, good = meter.sensors
    assert (bad.provenance, good.provenance) == (Provenance.MISSING, Provenance.MEASURED)
    assert "Insufficient Permissions" in bad.note
    calls = driver.calls(0, ENERGY)
    missing, sample = meter.read()
    assert missing.missing and "Insufficient Permissions" in missing.note
    assert not sample.missing
    assert driver.calls(0, ENERGY) == calls
    meter.probe()
    assert meter.sensors[0] == bad
    meter.close()


def test_a_slice_is_booked_as_its_whole_gpu_and_says_so(install: Install) -> None:
    driver = install(FakeGpu(mig_uuids=["MIG-a", "MIG-b"], power=(Wave(low_w=300),)))
    meter = NvmlMeter({"CUDA_VISIBLE_DEVICES": "MIG-a"})
    sensor = only(meter)
    assert sensor.device.uid == driver.uuid(0)
    assert sensor.provenance is Provenance.MEASURED
    assert sensor.shared
    assert "per slice" in sensor.note and "whole GPU" in sensor.note
    assert meter.read()[0].energy_j is not None
    meter.close()


def test_a_slice_whose_gpu_cannot_be_read_is_missing_never_zero(install: Install) -> None:
    code = NvmlCode.NO_PERMISSION
    install(FakeGpu(mig_uuids=["MIG-a"], errors={ENERGY: code, "nvmlDeviceGetFieldValues": code, POWER: code}))
    meter = NvmlMeter({"CUDA_VISIBLE_DEVICES": "MIG-a"})
    assert only(meter).provenance is Provenance.MISSING
    assert "MIG" in only(meter).note and "prometheus" in only(meter).note
    assert meter.read()[0].missing
    meter.close()


def test_a_lost_gpu_is_missing_for_ever_and_not_asked_again(install: Install) -> None:
    driver = install(FakeGpu(), FakeGpu())
    meter = NvmlMeter({})
    assert not any(sample.missing for sample in meter.read())
    wait_for(driver.update(0, lost=True))
    lost, alive = meter.read()
    assert lost.missing and "lost" in lost.note
    assert not alive.missing
    calls = driver.calls(0, ENERGY)
    wait_for(driver.update(0, lost=False))
    for _ in range(3):
        again, alive = meter.read()
        assert again.missing and "lost" in again.note
        assert not alive.missing
    meter.probe()
    assert driver.calls(0, ENERGY) == calls
    meter.close()


def test_a_gpu_lost_before_the_start_is_known_but_missing(install: Install) -> None:
    driver = install(FakeGpu(), FakeGpu())
    wait_for(driver.update(1, lost=True))
    meter = NvmlMeter({})
    assert [sensor.provenance for sensor in meter.sensors] == [Provenance.MEASURED, Provenance.MISSING]
    assert "lost" in meter.sensors[1].note
    assert meter.sensors[1].device.uid == "nvml:1"
    meter.close()


def test_a_passing_error_is_a_missing_sample_and_then_reading_goes_on(install: Install) -> None:
    driver = install(FakeGpu())
    meter = NvmlMeter({})
    wait_for(driver.update(0, errors={ENERGY: NvmlCode.UNKNOWN}))
    (sample,) = meter.read()
    assert sample.missing and "Unknown Error" in sample.note
    wait_for(driver.update(0, errors={ENERGY: NvmlCode.SUCCESS}))
    assert meter.read()[0].energy_j is not None
    meter.close()


def test_a_counter_that_runs_backwards_is_handed_on_as_it_is(install: Install) -> None:
    # The curve turns the fall into a gap: tests/power/test_curve.py.
    driver = install(FakeGpu(tick_s=0.01))
    meter = NvmlMeter({})
    (before,) = meter.read()
    wait_for(driver.update(0, counter_jump_j=-999_000.0) + 0.02)
    (after,) = meter.read()
    used_j = driver.true_energy_j(0, driver.epoch_s, time.monotonic())
    assert before.energy_j is not None and after.energy_j is not None
    assert 900 < after.energy_j < 1010 + used_j < before.energy_j
    meter.close()


def test_a_counter_that_stands_still_is_not_booked_as_zero(install: Install) -> None:
    install(FakeGpu(power=(Wave(low_w=0),)))
    clock = SteppedClock()
    meter = NvmlMeter({}, clock=clock)
    for _ in range(5):
        assert not meter.read()[0].missing
        clock.now_s += STUCK_S / 5
    clock.now_s += 0.1
    (sample,) = meter.read()
    assert sample.missing and "has stood at" in sample.note
    meter.close()


def test_power_methods_state_a_cost_and_no_tick(install: Install) -> None:
    install(FakeGpu(errors={ENERGY: NO}))
    meter = NvmlMeter({})
    meter.probe()
    assert only(meter).tick_s is None
    assert only(meter).tick_edge_s is None
    assert only(meter).read_cost_s is not None
    meter.close()


def test_closing_shuts_nvml_down_once_and_later_reads_are_missing(install: Install) -> None:
    driver = install(FakeGpu())
    first, second = NvmlMeter({}), NvmlMeter({})
    assert driver.init_depth == 2
    first.close()
    first.close()
    assert driver.init_depth == 1
    assert first.read()[0].missing and "closed" in first.read()[0].note
    first.probe()
    assert not second.read()[0].missing
    second.close()
    assert driver.init_depth == 0


def test_unlike_gpus_by_index_carry_a_warning(install: Install) -> None:
    install(FakeGpu(), FakeGpu(name="NVIDIA L4"))
    doubtful = NvmlMeter({"CUDA_VISIBLE_DEVICES": "0"})
    sure = NvmlMeter({"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in only(doubtful).note
    assert "CUDA_DEVICE_ORDER" not in only(sure).note
    doubtful.probe()
    assert "PCI_BUS_ID" in only(doubtful).note and "one read takes" in only(doubtful).note
    doubtful.close()
    sure.close()


def test_caveats_of_the_hardware_are_stated(install: Install) -> None:
    install(FakeGpu(), FakeGpu(compute_capability=(8, 9), name="NVIDIA L4"), FakeGpu(grace_hopper=True))
    meter = NvmlMeter({})
    h100, l4, grace, _ = (sensor.note for sensor in meter.sensors)
    assert "25 %" in h100 and "25 %" not in l4
    assert "Grace Hopper" in grace and "Grace Hopper" not in h100
    meter.close()


def test_a_module_contains_its_gpu_and_is_added_to_nothing(install: Install) -> None:
    driver = install(FakeGpu(), FakeGpu(grace_hopper=True, power=(Wave(low_w=400.0),)))
    meter = NvmlMeter({})
    module = meter.sensors[-1]
    assert (module.device.uid, module.device.kind) == (f"{driver.uuid(1)}:module", DeviceKind.NODE)
    assert module.reference and module.method == "NVML module power"
    assert [sensor.reference for sensor in meter.sensors] == [False, False, True]
    assert [sample.device_uid for sample in meter.read()] == [sensor.device.uid for sensor in meter.sensors]
    assert meter.read()[-1].power_w == 550.0
    wait_for(driver.update(1, errors={INSTANT_FIELD: NO}))
    assert meter.read()[-1].missing
    meter.close()
    without = NvmlMeter({})  # an older driver has no such scope: then there is no module, and the GPU as before
    assert len(without.sensors) == 2
    without.close()


def test_a_child_process_finds_the_driver_by_its_name_and_needs_no_nvidia_smi(library: Path) -> None:
    code = (
        "from greentrain.power.nvml import NvmlMeter\n"
        "meter = NvmlMeter()\n"
        "print([(s.device.uid, s.method) for s in meter.sensors], meter.read()[0].energy_j > 0)\n"
        "meter.close()"
    )
    with FakeDriver(2, library=library) as driver:
        env = driver.env(nvidia_smi=False) | {"CUDA_VISIBLE_DEVICES": UUID.format(1), "PATH": ""}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert library.name == SONAME
    assert done.stdout == f"[('{UUID.format(1)}', '{COUNTER}')] True\n", done.stderr


def test_the_module_loads_neither_bindings_nor_numpy() -> None:
    code = "import sys, greentrain.power.nvml; print([m for m in ('pynvml', 'numpy', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def slow(clock: SteppedClock, reader: Any, took_s: float, value: float) -> None:
    """Let reads of a GPU take a time, and say a value."""

    def read() -> float:
        clock.now_s += took_s
        return value

    reader.value = read


def test_a_read_known_to_be_short_is_dated_by_its_beginning_and_others_by_their_middle(install: Install) -> None:
    install(FakeGpu())
    clock = SteppedClock()
    meter = NvmlMeter({}, clock=clock)
    (reader,) = meter.split()
    for wall_s, took_s, dated_s in (
        (None, 0.010, 0.005),  # not probed
        (0.0002, 0.010, 0.0001),  # half of what it takes; the rest was a wait for the interpreter
        (0.0002, 0.060, 0.030),  # held up by the driver
        (0.0006, 0.010, 0.005),  # not short
    ):
        if wall_s is not None:
            reader.learn(Polled(tick_s=0.1, edge_s=0.0, cpu_s=1e-5, wall_s=wall_s))  # type: ignore[attr-defined]
        before_s = clock.now_s
        slow(clock, reader, took_s, before_s)
        (sample,) = reader.read()
        assert sample.t_s - before_s == pytest.approx(dated_s, abs=1e-6)
    meter.close()


def test_a_counter_is_read_directly_only_while_it_is_known_to_move_and_to_be_short(install: Install) -> None:
    install(FakeGpu(), FakeGpu(errors={ENERGY: NO}))
    clock = SteppedClock()
    meter = NvmlMeter({}, clock=clock)
    reader, of_power = meter.split()
    short, long = (Polled(tick_s=0.1, edge_s=0.0, cpu_s=1e-5, wall_s=wall_s) for wall_s in (0.0002, 0.0006))
    assert not reader.counters()  # type: ignore[attr-defined]
    for gpu in (reader, of_power):
        gpu.learn(short)  # type: ignore[attr-defined]
    assert not of_power.counters(), "power is no counter"  # type: ignore[attr-defined]
    for value_j, moves in ((5.0, True), (5.0, False), (6.0, True)):
        slow(clock, reader, 0.0, value_j)
        reader.read()
        counters = reader.counters()  # type: ignore[attr-defined]
        assert bool(counters) is moves, "one that stands is looked at by the meter, which tells when it is stuck"
        if moves:
            assert (counters[0].device_uid, counters[0].delay_s, counters[0].read_j()) == (
                UUID.format(0),
                pytest.approx(0.0001),
                value_j,
            )
    reader.learn(long)  # type: ignore[attr-defined]
    assert not reader.counters()  # type: ignore[attr-defined]
    meter.close()


@pytest.mark.parametrize(
    ("tick_s", "cpu_s", "wall_s", "period_s"),
    [
        (0.1, 1e-5, 1e-4, 0.1),
        (None, 1e-5, 1e-4, 0.1),
        (0.02, 1e-5, 1e-4, 0.02),
        (0.1, 1e-3, 1e-3, 1.0),
        (0.1, 1e-5, 0.1, 2.0),
    ],
)
def test_a_dear_read_is_made_rarely(
    install: Install, tick_s: float | None, cpu_s: float, wall_s: float, period_s: float
) -> None:
    """At most a thousandth of a core, and a twentieth of the time in the driver."""
    install(FakeGpu())
    meter = NvmlMeter({}, clock=SteppedClock())
    (reader,) = meter.split()
    reader.learn(Polled(tick_s=tick_s, edge_s=7.0, cpu_s=cpu_s, wall_s=wall_s))  # type: ignore[attr-defined]
    sensor = only(meter)
    assert (sensor.period_s, sensor.read_cost_s) == pytest.approx((period_s, cpu_s))
    assert (sensor.tick_s, sensor.tick_edge_s) == (tick_s, 7.0 if tick_s else None)
    meter.close()


def test_a_counter_is_called_stuck_after_some_reads_and_seconds_and_believed_once_it_moves(install: Install) -> None:
    install(FakeGpu())
    clock = SteppedClock()
    meter = NvmlMeter({}, clock=clock)
    (reader,) = meter.split()
    slow(clock, reader, 0.0, 50.0)
    assert not reader.read()[0].missing
    clock.now_s += 60.0  # nobody has read for a minute
    assert [reader.read()[0].missing for _ in range(3)] == [False, False, True]
    slow(clock, reader, 0.0, 51.0)
    assert reader.read()[0].energy_j == 51.0
    slow(clock, reader, 1.0, 51.0)
    assert [reader.read()[0].missing for _ in range(6)] == [False] * 5 + [True]
    meter.close()
