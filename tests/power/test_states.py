"""What a driver tells beside power: read from the fake driver by NVIDIA's own bindings, on the sampler's thread."""

import time

import pytest

from greentrain.power.nvml import NvmlMeter
from greentrain.power.sampler import EnergyCurve, Sampler
from greentrain.testing.fake_nvml import FakeGpu, NvmlCode
from greentrain.utils.clock import SystemClock
from tests.power.on_fake import Install, only

RATES = "nvmlDeviceGetUtilizationRates"


def test_utilisation_temperature_and_what_slows_a_gpu_are_read(install: Install) -> None:
    driver = install(FakeGpu(utilisation=80, memory_utilisation=65, temperature_c=71, clock_reasons=0x4 | 0x40))
    meter = NvmlMeter()
    (reader,) = meter.split()
    (state,) = reader.states()  # type: ignore[attr-defined]
    assert (state.sm, state.memory, state.temperature_c) == (0.8, 0.65, 71)
    assert state.slowed == ("thermal", "power") and state.device_uid == driver.uuid(0)
    driver.update(0, utilisation=(0, 0), clock_reasons=0x1)  # idle: nothing slows it
    (state,) = reader.states()  # type: ignore[attr-defined]
    assert (state.sm, state.memory, state.slowed) == (0.0, 0.0, ())
    meter.close()
    assert reader.states() == ()  # type: ignore[attr-defined]


def test_what_a_card_does_not_support_is_unknown_and_not_asked_again(install: Install) -> None:
    driver = install(FakeGpu(errors={RATES: NvmlCode.NOT_SUPPORTED, "nvmlDeviceGetTemperature": NvmlCode.UNKNOWN}))
    meter = NvmlMeter()
    (reader,) = meter.split()
    for _ in range(3):
        (state,) = reader.states()  # type: ignore[attr-defined]
        assert (state.sm, state.memory, state.temperature_c, state.slowed) == (None, None, None, ())
    assert driver.calls(0, RATES) == 1 and driver.calls(0, "nvmlDeviceGetTemperature") == 3
    meter.close()


@pytest.mark.parametrize("errors", [{}, {RATES: NvmlCode.UNKNOWN}])
def test_the_sampler_looks_about_once_a_second_beside_its_readings(install: Install, errors: dict[str, int]) -> None:
    driver = install(FakeGpu(errors=errors))
    meter, clock = NvmlMeter(), SystemClock()
    curves = {only(meter).device.uid: EnergyCurve(only(meter), clock.monotonic_s())}
    sampler = Sampler(meter, curves, sample_s=0.1, clock=clock, on_tick=lambda _: None)
    sampler.start()
    end_s = time.monotonic() + 30
    while len(sampler.states) < 2 and time.monotonic() < end_s:
        time.sleep(0.02)
    sampler.stop()
    first, second, *_ = sampler.states
    assert second.t_s - first.t_s > 0.9 and (first.sm is None) == bool(errors)
    assert driver.calls(0, RATES) == len(sampler.states)
    meter.close()
