import csv
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from greentrain.errors import MeterError
from greentrain.power.replay import COLUMNS, ReplayMeter
from greentrain.testing.meter_contract import MeterContract
from greentrain.types import DeviceKind, PowerMeter, PowerSample, Provenance, Sensor
from tests.helpers.hand_clock import HandClock

HEADER = "t_s,device_uid,kind,name,energy_j,power_w,provenance\n"
GOOD = HEADER + (
    "10.0,GPU-1,gpu,NVIDIA H100,1000,,\n"
    "10.0,model:cpu,cpu,EPYC,,40,modelled\n"
    "11.0,GPU-1,gpu,NVIDIA H100,1300,,\n"
    "12.0,model:cpu,cpu,EPYC,,80,modelled\n"
    "13.0,GPU-1,gpu,NVIDIA H100,1400,,\n"
)


def recording(folder: Path, text: str = GOOD) -> Path:
    path = folder / "rec.csv"
    path.write_text(text)
    return path


def write_recording(path: str | Path, sensors: Iterable[Sensor], samples: Iterable[PowerSample]) -> None:
    """Write samples of a meter as a file that ReplayMeter reads.

    Args:
        path: The CSV file; replaced if it exists.
        sensors: The sensors of the meter.
        samples: Its samples, in the order of time; those of unknown devices are dropped.
    """
    by_uid: Mapping[str, Sensor] = {sensor.device.uid: sensor for sensor in sensors}
    with Path(path).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for sample in samples:
            sensor = by_uid.get(sample.device_uid)
            if sensor is None:
                continue
            device = sensor.device
            energy, power = ("" if value is None else repr(value) for value in (sample.energy_j, sample.power_w))
            row = (repr(sample.t_s), device.uid, str(device.kind), device.name, energy, power, str(sensor.provenance))
            writer.writerow(row)


class TestReplayContract(MeterContract):
    @pytest.fixture
    def meter(self, tmp_path: Path) -> Iterator[PowerMeter]:
        self.clock = HandClock(500.0)
        self.path = recording(tmp_path)
        meter = ReplayMeter(self.path, clock=self.clock)
        yield meter
        meter.close()

    def advance(self) -> None:
        self.clock.now_s += 0.7

    def vanish(self) -> None:
        self.path.unlink()
        self.clock.now_s += 100.0


def test_values_are_interpolated_from_the_moment_of_opening(tmp_path: Path) -> None:
    clock = HandClock(500.0)
    meter = ReplayMeter(recording(tmp_path), clock=clock)
    for after_s, energy_j, power_w in ((0.0, 1000.0, 40.0), (0.5, 1150.0, 50.0), (2.0, 1350.0, 80.0)):
        clock.now_s = 500.0 + after_s
        gpu, cpu = meter.read()
        assert (gpu.t_s, gpu.device_uid, cpu.device_uid) == (clock.now_s, "GPU-1", "model:cpu")
        assert gpu.energy_j == pytest.approx(energy_j)
        assert cpu.power_w == pytest.approx(power_w)
    clock.now_s = 502.5
    gpu, cpu = meter.read()
    assert gpu.energy_j == pytest.approx(1375.0)
    assert cpu.missing and "ended" in cpu.note
    meter.close()


def test_sensors_are_as_recorded(tmp_path: Path) -> None:
    gpu, cpu = ReplayMeter(recording(tmp_path)).sensors
    assert (gpu.device.kind, gpu.device.name, gpu.provenance) == (DeviceKind.GPU, "NVIDIA H100", Provenance.MEASURED)
    assert (cpu.device.kind, cpu.provenance) == (DeviceKind.CPU, Provenance.MODELLED)
    assert gpu.method == "replay of rec.csv"
    assert cpu.period_s == pytest.approx(2.0)


def test_a_recorded_failure_fails_again_until_the_next_good_row(tmp_path: Path) -> None:
    clock = HandClock(500.0)
    text = "t_s,device_uid,kind,name,power_w\n0,g,gpu,G,10\n1,g,gpu,G,\n2,g,gpu,G,30\n3,g,gpu,G,40\n"
    meter = ReplayMeter(recording(tmp_path, text), clock=clock)
    got = []
    for after_s in (0.0, 0.5, 1.5, 2.0, 2.5):
        clock.now_s = 500.0 + after_s
        got.append(meter.read()[0].power_w)
    assert got == [10.0, None, None, 30.0, pytest.approx(35.0)]
    meter.close()


def test_a_device_that_begins_later_is_missing_until_then_and_nothing_is_of_a_closed_meter(tmp_path: Path) -> None:
    clock = HandClock(500.0)
    text = "t_s,device_uid,kind,name,power_w\n7,early,gpu,G,0\n9,early,gpu,G,10\n8,late,gpu,G,30\n9,late,gpu,G,30\n"
    meter = ReplayMeter(recording(tmp_path, text), clock=clock)
    clock.now_s += 0.5
    early, late = meter.read()
    assert early.power_w == pytest.approx(2.5) and late.note == "the recording of this device has not begun"
    clock.now_s += 0.5
    assert [sample.power_w for sample in meter.read()] == [pytest.approx(5.0), 30.0]
    meter.close()
    assert {sample.note for sample in meter.read()} == {"the meter is closed"}


def test_what_is_written_reads_back(tmp_path: Path) -> None:
    clock = HandClock(500.0)
    meter = ReplayMeter(recording(tmp_path), clock=clock)
    samples: list[PowerSample] = []
    for _ in range(5):
        samples.extend(meter.read())
        clock.now_s += 0.25
    copy = tmp_path / "copy.csv"
    write_recording(copy, meter.sensors, samples)
    clock.now_s = 900.0
    again = ReplayMeter(copy, clock=clock)
    assert [s.device for s in again.sensors] == [s.device for s in meter.sensors]
    assert [s.provenance for s in again.sensors] == [Provenance.MEASURED, Provenance.MODELLED]
    clock.now_s += 0.6
    gpu, cpu = again.read()
    assert gpu.energy_j == pytest.approx(1180.0)
    assert cpu.power_w == pytest.approx(52.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("t_s,device_uid,kind\n0,g,gpu\n", r"rec\.csv:1: column name is missing"),
        ("t_s,device_uid,kind,name\n0,g,gpu,G\n", r"rec\.csv:1: column energy_j or power_w is missing"),
        ("", r"rec\.csv:1: column t_s, device_uid, kind, name is missing"),
        (HEADER, "no sample"),
        (HEADER + "0,g,gpu,G,1,,\n0,g,gpu,G,2,,\n", r"rec\.csv:3: t_s is 0, not after 0"),
        (HEADER + "0,g,gpu,G,nan,,\n", r"rec\.csv:2: energy_j is 'nan'; expected a finite number"),
        (HEADER + "0,g,gpu,G,ten,,\n", r"rec\.csv:2: energy_j is 'ten'"),
        (HEADER + "0,g,gpu,G,,-1,\n", r"rec\.csv:2: power_w is -1; it must not be negative"),
        (HEADER + "0,g,gpu,G,5,,\n1,g,gpu,G,4,,\n", r"rec\.csv:3: energy_j falls from 5 to 4"),
        (HEADER + "0,g,gpu,G,5,6,\n", r"rec\.csv:2: energy_j and power_w are both filled in"),
        (HEADER + "0,g,gpu,G,5,,\n1,g,gpu,G,,6,\n", r"rec\.csv:3: 'g' has energy_j in some rows"),
        (HEADER + "0,g,tpu,G,5,,\n", r"rec\.csv:2: kind is 'tpu'; known: gpu, cpu, dram, fpga, node"),
        (HEADER + "0,g,gpu,G,5,,guessed\n", r"rec\.csv:2: provenance is 'guessed'"),
        (HEADER + "0,g,gpu,G,5,,\n1,g,cpu,G,6,,\n", r"rec\.csv:3: kind, name or provenance of 'g' differs"),
        (HEADER + ",g,gpu,G,5,,\n", r"rec\.csv:2: t_s and device_uid must be filled in"),
        (HEADER + '0,g,gpu,"G,5,,\n', "not a CSV file"),
    ],
)
def test_wrong_files_name_the_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(MeterError, match=message):
        ReplayMeter(recording(tmp_path, text))


def test_missing_and_binary_files(tmp_path: Path) -> None:
    with pytest.raises(MeterError, match=r"cannot read the recording .*No such file"):
        ReplayMeter(tmp_path / "absent.csv")
    (tmp_path / "x.bin").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(MeterError, match="not a CSV file in UTF-8"):
        ReplayMeter(tmp_path / "x.bin")
