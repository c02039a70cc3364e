"""The meter of a card that is not there."""

from collections.abc import Iterator

import pytest

from greentrain.errors import ConfigError
from greentrain.fpga_backend.roofline.cards import U55C, assume
from greentrain.fpga_backend.roofline.counts import BatchLayout
from greentrain.fpga_backend.roofline.latency import ModelledMeter, service
from greentrain.testing.meter_contract import MeterContract
from greentrain.testing.offload_models import encoder
from greentrain.types import DeviceKind, Provenance

CARD = assume(U55C).with_(idle_power_w=20.0)
SERVICE = service(encoder().program, BatchLayout.equal(8, 32), CARD)


class _Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_s(self) -> float:
        return self.now_s


class TestModelledMeter(MeterContract):
    @pytest.fixture
    def meter(self) -> Iterator[ModelledMeter]:
        meter = ModelledMeter("emulator-1", CARD)
        yield meter
        meter.close()


def test_it_says_what_it_is() -> None:
    (sensor,) = ModelledMeter("emulator-1", CARD).sensors
    assert sensor.provenance is Provenance.MODELLED
    assert sensor.device.kind is DeviceKind.FPGA
    assert "emulated" in sensor.device.name
    assert "no card" in sensor.note and "20 W" in sensor.note


def test_batches_and_the_idle_time_between_them() -> None:
    clock = _Clock()
    meter = ModelledMeter("e", CARD, clock=clock)
    clock.now_s += 10.0
    assert meter.energy_j == pytest.approx(200.0)
    meter.add(SERVICE)
    assert meter.energy_j == pytest.approx(SERVICE.energy_j + 20.0 * (10.0 - SERVICE.run_s))
    clock.now_s += 1.0
    (sample,) = meter.read()
    assert sample.energy_j == pytest.approx(SERVICE.energy_j + 20.0 * (11.0 - SERVICE.run_s))


def test_more_work_than_time_never_lowers_the_counter() -> None:
    clock = _Clock()
    meter = ModelledMeter("e", CARD, clock=clock)
    last_j = 0.0
    for _ in range(50):
        meter.add(SERVICE)
        clock.now_s += SERVICE.run_s / 3
        assert meter.energy_j >= last_j
        last_j = meter.energy_j
    assert last_j == pytest.approx(50 * SERVICE.energy_j)


def test_closed_it_stays_as_it_is() -> None:
    clock = _Clock()
    meter = ModelledMeter("e", CARD, clock=clock)
    clock.now_s += 1.0
    meter.close()
    clock.now_s += 1.0
    meter.close()
    (sample,) = meter.read()
    assert sample.energy_j == pytest.approx(20.0)
    assert sample.t_s == clock.now_s


def test_it_needs_the_idle_power() -> None:
    with pytest.raises(ConfigError, match="idle_power_w"):
        ModelledMeter("e", U55C)
