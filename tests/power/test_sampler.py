"""The sampler reads counters directly between two reads of their meter, and goes back to the meter when one fails."""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

import pytest

from greentrain.errors import GreenTrainWarning
from greentrain.power.sampler import EnergyCurve, Sampler
from greentrain.types import Counter, Device, DeviceKind, PowerSample, Provenance, Sensor
from greentrain.utils.clock import SystemClock


def counting(uid: str, period_s: float = 0.02, tick_s: float | None = 0.02) -> Sensor:
    device = Device(uid=uid, kind=DeviceKind.GPU, name=uid)
    return Sensor(
        device=device, provenance=Provenance.MEASURED, method="test", period_s=period_s, tick_s=tick_s, read_cost_s=0.0
    )


class Meter:
    """Counters of 100 W each; ``direct`` may be read past the meter."""

    def __init__(self, sensors: Sequence[Sensor], direct: Collection[str]) -> None:
        self.sensors = sensors
        self.direct = direct
        self.reads: list[str] = []
        self.past: list[str] = []
        self.fails = False

    def read(self) -> Sequence[PowerSample]:
        now_s = time.monotonic()
        self.reads.extend(sensor.device.uid for sensor in self.sensors)
        if self.fails:
            return [PowerSample(sensor.device.uid, now_s, note="lost") for sensor in self.sensors]
        return [PowerSample(sensor.device.uid, now_s, 100 * now_s) for sensor in self.sensors]

    def counters(self) -> Sequence[Counter]:
        return [Counter(uid, self._reader(uid), 0.0) for uid in self.direct]

    def close(self) -> None:
        pass

    def _reader(self, uid: str) -> Callable[[], float]:
        def read_j() -> float:
            if self.fails:
                raise OSError("lost")
            self.past.append(uid)
            return 100 * time.monotonic()

        return read_j


@contextmanager
def sampled(meter: Meter, tick_s: float = 0.3) -> Iterator[tuple[dict[str, EnergyCurve], list[str]]]:
    events: list[str] = []
    curves = {
        sensor.device.uid: EnergyCurve(sensor, time.monotonic(), lambda name, text: events.append(name))
        for sensor in meter.sensors
    }
    sampler = Sampler(
        meter, curves, sample_s=0.02, clock=SystemClock(), on_tick=lambda now_s: sampler.settle(), tick_s=tick_s
    )
    sampler.start()
    try:
        yield curves, events
    finally:
        assert sampler.stop()
        sampler.settle()


def test_counters_are_read_past_their_meter_and_lose_nothing() -> None:
    meter = Meter([counting("GPU-0"), counting("GPU-1")], direct=["GPU-0", "GPU-1"])
    with sampled(meter) as (curves, _):
        time.sleep(1.0)
    assert len(meter.past) > 2 * len(meter.reads) > 0
    for curve in curves.values():
        span_s = curve.frontier_s - curve.oldest_s
        energy_j, missing_s = curve.between(curve.oldest_s, curve.frontier_s)
        assert span_s > 0.6 and missing_s == 0
        assert energy_j == pytest.approx(100 * span_s, rel=0.02)


def test_a_sensor_beside_them_that_cannot_wait_is_read_as_often_as_it_wants() -> None:
    meter = Meter([counting("GPU-0"), counting("other", period_s=0.02, tick_s=None)], direct=["GPU-0"])
    with sampled(meter):
        time.sleep(0.6)
    assert meter.reads.count("other") > 10


def test_a_counter_that_fails_sends_the_sampler_back_to_its_meter() -> None:
    meter = Meter([counting("GPU-0")], direct=["GPU-0"])
    with sampled(meter) as (curves, events):
        time.sleep(0.5)
        meter.fails = True
        time.sleep(0.8)
    assert events == ["gap"]
    assert curves["GPU-0"].frontier_s < time.monotonic() - 0.6


def test_a_meter_that_cannot_list_its_counters_is_read_instead(recwarn: pytest.WarningsRecorder) -> None:
    meter = Meter([counting("GPU-0")], direct=["GPU-0"])
    meter.direct = None  # type: ignore[assignment]
    with sampled(meter) as (curves, _):
        time.sleep(0.4)
    assert curves["GPU-0"].frontier_s > time.monotonic() - 0.2
    assert len(meter.reads) > 8
    assert [
        str(w.message) for w in recwarn if w.category is GreenTrainWarning and "list its counters" in str(w.message)
    ]


def test_a_stop_cuts_a_long_sleep_short() -> None:
    meter = Meter([counting("slow", period_s=600.0, tick_s=None)], direct=[])
    t0_s = time.monotonic()
    with sampled(meter):
        time.sleep(0.1)
    assert time.monotonic() - t0_s < 60.0
