import contextlib
import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from greentrain.errors import MeterError
from greentrain.fpga_backend.xrt import pci
from greentrain.fpga_backend.xrt.sensors import CardMeter, Hwmon, meter_of
from greentrain.power.detect import Borrowed
from greentrain.testing.meter_contract import MeterContract
from greentrain.types import Device, DeviceKind, PowerMeter, Provenance

CARD = Device(uid="xrt:0000:c1:00.1", kind=DeviceKind.FPGA, name="Alveo U55C")


def hwmon(function: Path, *, value: str, number: int = 1, more: dict[str, str] | None = None) -> Path:
    """Make a sensor as XRT's driver shows it."""
    folder = function / "hwmon" / "hwmon3"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {"input": value, **(more or {})}.items():
        (folder / f"power{number}_{name}").write_text(f"{text}\n")
    return folder


class Told(Hwmon):
    """A sensor that says what it is told, or hangs."""

    method = "told"

    def __init__(self, *said: float | Exception) -> None:
        self.said = list(said)
        self.go_on, self.hanging = threading.Event(), threading.Event()
        self.hang = False

    def temperature_c(self) -> None:
        return None

    def read_w(self) -> float:
        if self.hang:
            self.hanging.set()
            self.go_on.wait(240)
        value = self.said.pop(0) if len(self.said) > 1 else self.said[0]
        if isinstance(value, Exception):
            raise value
        return value


class Ahead:
    """The machine's clock, which a test puts forward."""

    def __init__(self) -> None:
        self.by_s = 0.0

    def monotonic_s(self) -> float:
        return time.monotonic() + self.by_s

    def unix_s(self) -> float:
        return time.time() + self.by_s


class Ticking:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_s(self) -> float:
        return self.now_s


def polled(meter: CardMeter, clock: Ticking, times_s: list[float]) -> None:
    """Read at some moments, in this thread."""
    for now_s in times_s:
        clock.now_s = now_s
        meter._read_once()


class TestCardMeter(MeterContract):
    @pytest.fixture
    def meter(self, tmp_path: Path) -> Iterator[PowerMeter]:
        self.folder = hwmon(tmp_path, value="23500000")
        self.clock = Ahead()
        self.polls = CardMeter(CARD, Hwmon(tmp_path), clock=self.clock, period_s=0.01, stale_s=60.0)
        yield self.polls
        self.polls.close()

    def vanish(self) -> None:
        (self.folder / "power1_input").unlink()
        end_s = time.monotonic() + 120
        while "cannot be read" not in self.polls._why and time.monotonic() < end_s:
            time.sleep(0.005)
        self.clock.by_s += 120.0

    def test_a_sensor_that_vanished_is_missing_and_says_why(self, meter: PowerMeter) -> None:
        (sample,) = meter.read()
        assert sample.power_w == 23.5
        self.vanish()
        (sample,) = meter.read()
        assert sample.missing
        assert "s old: " in sample.note and "cannot be read" in sample.note


class TestMissingCardMeter(MeterContract):
    @pytest.fixture
    def meter(self) -> Iterator[PowerMeter]:
        meter = CardMeter(CARD, None, note="nothing shows its power")
        yield meter
        meter.close()


def test_hwmon_counts_microwatts_or_says_otherwise(tmp_path: Path) -> None:
    hwmon(tmp_path, value="41250000", more={"label": "Power"})
    assert Hwmon(tmp_path).read_w() == 41.25
    hwmon(
        tmp_path,
        number=2,
        value="38600",
        more={"label": "Total Power", "unitm": "-3", "status": "Sensor Present and Valid"},
    )
    assert Hwmon(tmp_path).read_w() == pytest.approx(38.6)


@pytest.mark.parametrize(
    ("value", "more", "why"),
    [
        ("4294967295", {}, "stands for no value"),
        ("-1", {}, "stands for no value"),
        ("many", {}, "cannot be read"),
        ("1000", {"unitm": "x"}, "cannot be read"),
        ("0", {"status": "Sensor Not Present"}, "Sensor Not Present"),
    ],
)
def test_hwmon_without_a_value_is_an_error(tmp_path: Path, value: str, more: dict[str, str], why: str) -> None:
    hwmon(tmp_path, value=value, more=more)
    with pytest.raises(MeterError, match=why):
        Hwmon(tmp_path).read_w()


def test_no_hwmon_at_all(tmp_path: Path) -> None:
    with pytest.raises(MeterError, match="the driver shows no power"):
        Hwmon(tmp_path)


def test_energy_is_the_trapezoid_of_the_raw_readings() -> None:
    clock = Ticking()
    meter = CardMeter(None, None, clock=clock)
    meter._device, meter._source = CARD, Told(20.0, 40.0, 30.0, 30.0)
    assert meter.energy().energy_j is None and meter.energy().provenance is Provenance.MISSING
    polled(meter, clock, [100.0, 101.0, 103.0, 104.0])
    reading = meter.energy()
    assert reading.energy_j == pytest.approx(30.0 + 70.0 + 30.0)
    assert reading.provenance is Provenance.MEASURED and reading.note == ""


def test_a_gap_adds_no_energy_and_is_told() -> None:
    clock = Ticking()
    meter = CardMeter(None, None, clock=clock)
    meter._device, meter._source = CARD, Told(20.0, 20.0, MeterError("busy"), 50.0, 50.0)
    polled(meter, clock, [100.0, 101.0, 103.0, 111.0, 112.0])
    reading = meter.energy()
    assert reading.energy_j == pytest.approx(20.0 + 50.0)
    assert reading.note == "10.0 s since opening are not in it"


def test_a_reading_keeps_its_own_time_until_it_is_stale() -> None:
    clock = Ticking()
    meter = CardMeter(None, None, clock=clock)
    meter._device, meter._source = CARD, Told(20.0, MeterError("no answer from the satellite controller"), 21.0)
    polled(meter, clock, [100.0])
    clock.now_s = 102.9
    assert [(s.t_s, s.power_w) for s in meter.read()] == [(100.0, 20.0)]
    clock.now_s = 103.1
    (missing,) = meter.read()
    assert missing.missing and missing.t_s == 103.1
    assert missing.note == "the last reading is 3.1 s old: the sensor is silent"
    polled(meter, clock, [104.0])
    assert meter.read()[0].note == "the last reading is 4.0 s old: no answer from the satellite controller"
    polled(meter, clock, [105.0])
    assert [(s.t_s, s.power_w) for s in meter.read()] == [(105.0, 21.0)]


def test_a_sensor_that_hangs_holds_nobody_up() -> None:
    source = Told(20.0)
    clock = Ahead()
    meter = CardMeter(CARD, source, clock=clock, period_s=0.01, stale_s=60.0)
    assert meter.read()[0].power_w == 20.0
    source.hang = True
    assert source.hanging.wait(120)
    clock.by_s += 120.0
    took_s = []
    for _ in range(20):
        start_s = time.monotonic()
        (sample,) = meter.read()
        meter.energy()
        took_s.append(time.monotonic() - start_s)
    assert min(took_s) < 0.1
    meter.close()
    assert not source.go_on.is_set(), "the sensor hangs until now"
    assert sample.missing and "the sensor is silent" in sample.note
    source.go_on.set()


def test_a_driver_that_raises_anything_is_a_missing_reading() -> None:
    meter = CardMeter(CARD, Told(ValueError("what?")), period_s=0.01)
    (sample,) = meter.read()
    assert sample.missing and "told failed: ValueError" in sample.note
    assert math.isfinite(sample.t_s)
    assert meter.energy().energy_j is None and "ValueError" in meter.energy().note
    meter.close()


def test_a_cards_power_is_what_the_driver_shows(tmp_path: Path) -> None:
    card = pci.PciFunction(
        address="0000:c1:00.1", name="Alveo U55C", role="user", driver="xocl", folder=tmp_path / "function"
    )
    meter = meter_of(card)
    (sensor,) = meter.sensors
    assert sensor.provenance is Provenance.MISSING and "the driver shows no power of this card" in sensor.note
    assert meter.energy().energy_j is None
    meter.close()
    hwmon(card.folder, value="23500000")
    meter = meter_of(card)
    (sensor,) = meter.sensors
    assert (sensor.device.uid, sensor.device.kind) == ("xrt:0000:c1:00.1", DeviceKind.FPGA)
    assert sensor.provenance is Provenance.MEASURED and sensor.method == "XRT driver, hwmon power"
    assert sensor.period_s == 1.0
    assert meter.read()[0].power_w == 23.5
    meter.close()


def test_a_card_of_the_table_draws_at_most_what_its_cooling_is_laid_out_for() -> None:
    for name, limit_w in {"Alveo U55C": 115.0, "XRT card 5fff": None}.items():
        device = Device(uid="xrt:0000:c1:00.1", kind=DeviceKind.FPGA, name=name)
        meter = CardMeter(device, None, note="no driver")
        assert [s.limit_w for s in meter.sensors] == [limit_w]
        meter.close()


def test_the_hottest_of_board_and_chip_is_told_beside_the_power(tmp_path: Path) -> None:
    folder = hwmon(tmp_path, value="23500000")
    with contextlib.closing(CardMeter(CARD, Hwmon(tmp_path))) as meter:
        assert [state.temperature_c for state in meter.states()] == [None], "no file, no temperature"
    for number, (value, more) in enumerate(
        [("41000", {}), ("67", {"unitm": "0"}), ("99", {"unitm": "0", "status": "Sensor Not Present"})], start=1
    ):
        (folder / f"temp{number}_input").write_text(value)
        for what, text in more.items():
            (folder / f"temp{number}_{what}").write_text(text)
    with contextlib.closing(CardMeter(CARD, Hwmon(tmp_path))) as meter:
        (state,) = Borrowed(meter).states()
        assert (state.device_uid, state.temperature_c, state.sm, state.slowed) == (CARD.uid, 67.0, None, None)
    assert meter.states() == [], "closed"
