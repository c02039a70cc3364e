"""The sampler reads counters directly between two reads of their meter, and goes back to the meter when one fails."""

import math
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from greentrain.errors import GreenTrainWarning
from greentrain.power import sampler as sampler_module
from greentrain.power.detect import CompositeMeter
from greentrain.power.sampler import EnergyCurve, Sampler, wake_period_s
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
        str(w.message) for w in recwarn if w.category is GreenTrainWarning and "listing its counters" in str(w.message)
    ]


def test_a_stop_cuts_a_long_sleep_short() -> None:
    meter = Meter([counting("slow", period_s=600.0, tick_s=None)], direct=[])
    t0_s = time.monotonic()
    with sampled(meter):
        time.sleep(0.1)
    assert time.monotonic() - t0_s < 60.0


class Held:
    """One counter of 100 W whose driver can be told to hang."""

    def __init__(self, uid: str) -> None:
        self.sensors = [counting(uid, tick_s=None)]
        self.answers = threading.Event()
        self.answers.set()
        self.asked = threading.Event()

    def read(self) -> Sequence[PowerSample]:
        self.asked.set()
        assert self.answers.wait(60)
        now_s = time.monotonic()
        return [PowerSample(self.sensors[0].device.uid, now_s, 100 * now_s)]

    def close(self) -> None:
        pass


@contextmanager
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Held, Sampler, dict[str, EnergyCurve], list[str]]]:
    """Sample two devices, each of which can hang, by a sampler that calls a read hung after a third of a second."""
    for name, value in (("HANG_S", 0.3), ("AGAIN_S", 0.03)):
        monkeypatch.setattr(sampler_module, name, value)
    events: list[str] = []
    well, ill = Held("GPU-0"), Held("GPU-1")
    curves = {
        member.sensors[0].device.uid: EnergyCurve(
            member.sensors[0], time.monotonic(), lambda name, text: events.append(f"{name}: {text}")
        )
        for member in (well, ill)
    }
    sampler = Sampler(
        CompositeMeter([well, ill]),
        curves,
        sample_s=0.02,
        clock=SystemClock(),
        on_tick=lambda now_s: sampler.settle(),
        tick_s=0.05,
    )
    over = threading.Event()

    def work_in() -> None:
        while not over.wait(0.05):
            sampler.look_after()
            sampler.settle()

    desk = threading.Thread(target=work_in)
    desk.start()
    try:
        yield ill, sampler, curves, events
    finally:
        over.set()
        desk.join()
        ill.answers.set()
        assert sampler.stop() or not sampler._reader.thread.is_alive()


def eventually(fact: Callable[[], bool]) -> bool:
    end_s = time.monotonic() + 20
    while not fact() and time.monotonic() < end_s:
        time.sleep(0.01)
    return fact()


def test_a_device_that_hangs_is_missing_alone_and_read_again_once_its_driver_lets_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with held(monkeypatch) as (ill, sampler, curves, events):
        sampler.start()
        assert eventually(lambda: all(curve.frontier_s > curve.oldest_s for curve in curves.values()))
        read_s = {uid: curve.frontier_s for uid, curve in curves.items()}
        ill.answers.clear()
        assert eventually(lambda: any("GPU-1" in text and "does not answer" in text for text in events))
        hung_s = time.monotonic()
        assert eventually(lambda: curves["GPU-0"].frontier_s > hung_s)
        assert curves["GPU-1"].frontier_s < hung_s
        ill.answers.set()
        assert eventually(lambda: curves["GPU-1"].frontier_s > hung_s)
    assert not [text for text in events if "GPU-0" in text]
    for uid, curve in curves.items():
        span_s = curve.frontier_s - read_s[uid]
        assert curve.between(read_s[uid], curve.frontier_s) == pytest.approx((100 * span_s, 0.0), abs=1e-3)


def test_the_end_does_not_wait_for_a_device_that_hangs_and_books_nothing_that_was_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with held(monkeypatch) as (ill, sampler, curves, _):
        sampler.start()
        assert eventually(lambda: curves["GPU-1"].frontier_s > curves["GPU-1"].oldest_s)
        ill.answers.clear()
        ill.asked.clear()
        assert ill.asked.wait(20)
        sampler.settle()
        known_s = curves["GPU-1"].frontier_s
        time.sleep(0.2)
        end_s = time.monotonic()
        assert not sampler.stop(end_s)
        assert time.monotonic() - end_s < 20
        sampler.settle()
        for curve in curves.values():
            curve.finish(end_s)
        energy_j, missing_s = curves["GPU-1"].between(known_s, end_s)
        assert energy_j == pytest.approx(100 * (end_s - known_s - missing_s), abs=0.1)  # nothing of what is missing
        assert missing_s > 0.15
        assert curves["GPU-0"].between(known_s, end_s) == pytest.approx((100 * (end_s - known_s), 0), rel=0.02)


def test_a_start_does_not_wait_for_a_device_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    with held(monkeypatch) as (ill, sampler, curves, events):
        ill.answers.clear()
        sampler.start()
        assert eventually(lambda: any("GPU-1" in text for text in events))
        assert eventually(lambda: curves["GPU-0"].frontier_s > curves["GPU-0"].oldest_s)
        assert curves["GPU-1"].between(curves["GPU-1"].oldest_s, time.monotonic())[0] == 0


class Odd:
    """A meter that answers whatever it is told, or raises it."""

    def __init__(self, answer: Any) -> None:
        self.sensors = [counting("odd")]
        self.answer = answer

    def read(self) -> Any:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    "answer",
    [
        None,
        "text",
        ["text"],
        [("odd", 1.0, 2.0, None, "")],
        [PowerSample("odd", 1.0, "12.5")],  # type: ignore[arg-type]
        [PowerSample("odd", "now", 12.5)],  # type: ignore[arg-type]
        [PowerSample("odd", math.nan, 12.5)],
        [PowerSample("odd", 1e12, 12.5)],
        SystemExit(3),
        GeneratorExit(),
    ],
)
@pytest.mark.filterwarnings("ignore::greentrain.errors.GreenTrainWarning")
def test_whatever_a_meter_answers_the_others_are_read_on(answer: Any) -> None:
    odd, good = Odd(answer), Meter([counting("good")], direct=[])
    events: list[str] = []
    curves = {
        uid: EnergyCurve(counting(uid), time.monotonic(), lambda name, text: events.append(f"{name}: {text}"))
        for uid in ("odd", "good")
    }
    sampler = Sampler(
        CompositeMeter([odd, good]),
        curves,
        sample_s=0.01,
        clock=SystemClock(),
        on_tick=lambda now_s: sampler.settle(),
        tick_s=0.02,
    )
    sampler.start()
    start_s = time.monotonic()
    assert eventually(lambda: curves["good"].frontier_s > start_s + 0.1)
    assert sampler.stop()
    assert [text.partition(":")[0] for text in events] == ["gap"] and "odd" in events[0]
    curves["odd"].finish(start_s + 0.1)
    assert curves["odd"].between(start_s, start_s + 0.1) == pytest.approx((0, 0.1))


def test_reading_costs_at_most_a_thousandth_of_a_core() -> None:
    assert wake_period_s([], 0.1) == 1.0
    assert wake_period_s([(1e-5, 0.1), (2e-4, 1.0)], 0.1) == 0.1
    assert wake_period_s([(1e-5, 0.1)], 0.5) == 0.5
    eight = wake_period_s([(1e-4, 0.1)] * 8, 0.1)
    assert 0.8 <= eight <= 0.8 * 1.25
    assert wake_period_s([(1.0, 0.1)], 0.1) == 10.0
