"""The sampler reads counters directly between two reads of their meter, and goes back to the meter when one fails."""

import dataclasses
import itertools
import math
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from greentrain.errors import GreenTrainWarning
from greentrain.power import sampler as sampler_module
from greentrain.power.detect import CompositeMeter
from greentrain.power.sampler import HANG_S, PROBES_S, SLOW_S, EnergyCurve, Sampler, _Reader, wake_period_s
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
        assert eventually(lambda: len(meter.past) > 2 * len(meter.reads) + 10)
    assert len(meter.past) > 2 * len(meter.reads) > 0
    for curve in curves.values():
        span_s = curve.frontier_s - curve.oldest_s
        energy_j, missing_s = curve.between(curve.oldest_s, curve.frontier_s)
        assert span_s > 0.6 and missing_s == 0
        held_j = 100 * 0.1  # the first or the last read was held up between its time and its value
        assert energy_j == pytest.approx(100 * span_s, rel=0.02, abs=held_j)


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
    end_s = time.monotonic() + 60
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
        assert ill.asked.wait(60)
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


class FakeClock:
    """A clock that stands still but for who sleeps on it."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.slept_s: list[float] = []

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_s(self) -> float:
        return self.now_s

    def sleep(self, wait_s: float) -> None:
        self.slept_s.append(wait_s)
        self.now_s += wait_s


class Played(_Reader):
    """The reading thread's part, played by the test on its clock up to a time (s); at it ``last`` is called."""

    def __init__(self, clock: FakeClock, end_s: float, last: Callable[[], object] = lambda: None) -> None:
        super().__init__(lambda reader: None)
        self.clock, self.end_s, self.last = clock, end_s, last

    def sleep(self, wait_s: float) -> bool:
        self.clock.now_s += max(0.0, wait_s)
        if self.clock.now_s < self.end_s:
            return True
        self.ended = True
        self.last()
        return False


class Cards:
    """Counters on the test's clock; those in ``direct`` may be read past the meter.

    ``takes_s`` is how long a read takes, ``spends`` what each card has used at a time, and ``calls`` when who was read.
    """

    def __init__(self, clock: FakeClock, *sensors: Sensor, direct: Collection[str] = ()) -> None:
        self.clock, self.sensors, self.direct = clock, list(sensors), direct
        self.calls: list[tuple[float, str]] = []
        self.takes_s = 0.0
        self.fails = False
        self.spends: Callable[[float], float] = lambda t_s: 100.0 * t_s
        self.pids: dict[str, Collection[int]] = {}
        self.selected: Collection[str] = ()

    def at(self, who: str) -> list[float]:
        """Return when one was read: "meter", or a card past it (s since the beginning)."""
        return [round(t_s - 1000.0, 6) for t_s, name in self.calls if name == who]

    def _call(self, who: str) -> float:
        self.calls.append((self.clock.now_s, who))
        taken_j = self.spends(self.clock.now_s)
        self.clock.now_s += self.takes_s
        if self.fails:
            raise OSError("lost")
        return taken_j

    def read(self) -> Sequence[PowerSample]:
        now_s = self.clock.now_s
        try:
            energy_j = self._call("meter")
        except OSError:
            return [PowerSample(sensor.device.uid, now_s, note="lost") for sensor in self.sensors]
        return [PowerSample(sensor.device.uid, now_s, energy_j) for sensor in self.sensors]

    def counters(self) -> Sequence[Counter]:
        return [Counter(uid, lambda uid=uid: self._call(uid), 0.001) for uid in self.direct]  # type: ignore[misc]

    def users(self) -> dict[str, Collection[int]]:
        self.calls.append((self.clock.now_s, "users"))
        return self.pids

    def select(self, uids: Collection[str]) -> None:
        self.selected = uids

    def close(self) -> None:
        pass


class Woken(Played):
    """The same, woken by who asks for a reading at some times (s)."""

    def __init__(self, clock: FakeClock, end_s: float, sampler: Sampler, asks_s: Sequence[float]) -> None:
        super().__init__(clock, end_s)
        self.sampler, self.asks_s = sampler, list(asks_s)
        sampler._reader = self

    def sleep(self, wait_s: float) -> bool:
        if not self.asks_s or self.clock.now_s + wait_s < self.asks_s[0]:
            return super().sleep(wait_s)
        self.clock.now_s = self.asks_s.pop(0)
        self.sampler.ask()
        return False


def sampler_of(
    meter: Any, clock: FakeClock, sample_s: float = 0.1, on_tick: Callable[[float], None] = lambda now_s: None
) -> tuple[Sampler, dict[str, EnergyCurve]]:
    curves = {s.device.uid: EnergyCurve(s, clock.now_s) for s in meter.sensors}
    return Sampler(meter, curves, sample_s=sample_s, clock=clock, on_tick=on_tick), curves


def card(uid: str, *, period_s: float = 0.1, tick_s: float | None = 0.1, cost_s: float = 0.0) -> Sensor:
    return dataclasses.replace(counting(uid, period_s, tick_s), read_cost_s=cost_s)


def play(sampler: Sampler, clock: FakeClock, seconds: float, last: Callable[[], object] = lambda: None) -> Played:
    reader = Played(clock, clock.now_s + seconds, last)
    sampler._run(reader)
    return reader


def grown(t_s: float) -> float:
    """Energy of a power that doubles in 0.7 s: no two ticks are alike."""
    return 100.0 * math.exp(t_s - 1000.0)


def test_counters_are_read_at_each_tick_while_power_moves_and_seldom_while_it_stands() -> None:
    clock = FakeClock()
    moving, still = (Cards(clock, card("GPU-0"), direct=["GPU-0"]) for _ in range(2))
    moving.spends = grown
    for meter in (moving, still):
        sampler, _ = sampler_of(meter, clock)
        play(sampler, clock, 3.0)
    steps_s = np.diff(sorted(moving.at("GPU-0") + moving.at("meter"))[:-1])
    assert steps_s == pytest.approx(0.097), "a little more often than it ticks, so that reads sweep over the ticks"
    assert len(moving.at("meter")) == 5, "past its meter, but for the start, the end, and once a second"
    rests_s = np.diff(sorted(still.at("GPU-0") + still.at("meter"))[15:-1])
    assert np.median(rests_s) == pytest.approx(3 * 0.097)


def test_a_reading_that_is_asked_for_tells_what_was_before_from_what_is_after() -> None:
    """100 W in one gear, a pause of 10 W from 4.2 to 5.9 s, 50 W in another gear; the meter is read every 3 s."""

    def spent(t_s: float) -> float:
        t_s -= 1000.0
        return 100.0 * min(t_s, 4.2) + 10.0 * min(max(t_s - 4.2, 0.0), 1.7) + 50.0 * max(t_s - 5.9, 0.0)

    found = {}
    for asks_s in ((), (1004.2, 1005.9)):
        clock = FakeClock()
        meter = Cards(clock, card("cpu", period_s=3.0, tick_s=None))
        meter.spends = spent
        sampler, curves = sampler_of(meter, clock)
        sampler._run(Woken(clock, 1012.0, sampler, asks_s))
        sampler.settle()
        found[len(asks_s)] = [curves["cpu"].between(1000.0 + a, 1000.0 + b)[0] for a, b in ((0, 4.2), (5.9, 12.0))]
        assert not asks_s or meter.at("meter")[2:5] == [4.2, 5.9, 8.9], "in its own pace afterwards"
    truth_j = [420.0, 305.0]
    assert found[2] == pytest.approx(truth_j), "what a pause drew is not in the gears around it"
    assert found[0] != pytest.approx(truth_j, rel=0.05), "or else this shows nothing"


def test_who_is_woken_and_finds_nothing_asked_reads_on() -> None:
    """Two have asked, and the reading for the first was the second's, too."""

    class Startled(Played):
        def sleep(self, wait_s: float) -> bool:
            return super().sleep(wait_s) and len(meter.calls) != 4

    clock = FakeClock()
    meter = Cards(clock, card("cpu", period_s=3.0, tick_s=None))
    sampler, _ = sampler_of(meter, clock)
    sampler._run(Startled(clock, clock.now_s + 30.0))
    assert meter.at("meter")[-2:] == [27.0, 30.0], "no device is missing from there on"


def test_a_read_that_was_held_up_is_not_made_up_for() -> None:
    clock = FakeClock()
    meter = Cards(clock, card("GPU-0"), direct=["GPU-0"])
    meter.spends = grown
    sampler, _ = sampler_of(meter, clock)

    def held_up(t_s: float) -> float:
        meter.takes_s = 5.0 if 0.5 < t_s - 1000 < 1.0 else 0.0
        return grown(t_s)

    meter.spends = held_up
    play(sampler, clock, 7.0)
    held_s = next(t_s for t_s in meter.at("GPU-0") if t_s > 0.5)
    after_s = [t_s for t_s in sorted(meter.at("GPU-0") + meter.at("meter")) if t_s > held_s]
    assert np.diff(after_s[:8]) == pytest.approx(0.097), "as before, no burst for what was missed"


def test_a_direct_read_is_dated_by_its_beginning_and_one_that_was_held_up_by_its_middle() -> None:
    clock = FakeClock()
    for takes_s, delay_s in ((0.0, 0.001), (0.04, 0.001), (0.06, 0.03), (0.4, 0.2)):
        meter = Cards(clock, card("GPU-0"), card("GPU-1"), direct=["GPU-0", "GPU-1"])
        sampler, _ = sampler_of(meter, clock)
        samples: list[tuple[str, float, float]] = []

        def soon(t_s: float, meter: Cards = meter, takes_s: float = takes_s) -> float:
            meter.takes_s = takes_s if meter.calls[-1][1] != "meter" else 0.0
            return 100.0 * t_s

        meter.spends = soon
        play(sampler, clock, 0.35)
        samples = [s for s in sampler._unsorted if not isinstance(s, PowerSample)]
        began_s = [(uid, t_s) for t_s, uid in meter.calls if uid.startswith("GPU")]
        assert len(samples) > 1 and {uid for uid, _, _ in samples} == {"GPU-0", "GPU-1"}
        assert [uid for uid, _, _ in samples] == [uid for uid, _ in began_s]
        assert [t_s for _, t_s, _ in samples] == pytest.approx([t_s + delay_s for _, t_s in began_s])


def test_a_counter_that_fails_directly_is_read_through_its_meter_in_the_same_breath() -> None:
    clock = FakeClock()
    meter = Cards(clock, card("GPU-0"), direct=["GPU-0"])
    sampler, curves = sampler_of(meter, clock)
    meter.spends = grown
    play(sampler, clock, 0.5)
    meter.fails = True
    meter.calls.clear()
    play(sampler, clock, 0.5)
    direct, through = meter.at("GPU-0"), meter.at("meter")
    assert set(direct) <= set(through), "whatever fails is asked of the meter, which knows why"
    sampler.settle()
    assert curves["GPU-0"]._gap


def test_a_sensor_beside_them_that_cannot_wait_is_read_as_often_as_it_wants() -> None:
    clock = FakeClock()
    meter = Cards(clock, card("GPU-0"), card("other", tick_s=None), direct=["GPU-0"])
    meter.spends = grown
    sampler, _ = sampler_of(meter, clock)
    play(sampler, clock, 2.0)
    assert np.diff(meter.at("meter")[:-1]) == pytest.approx(0.097)


def test_a_gpu_that_tells_power_alone_has_its_own_pace_beside_counters_that_rest() -> None:
    reads: list[tuple[list[float], list[float]]] = []
    for beside in (False, True):
        clock = FakeClock()
        still = Cards(clock, card("GPU-0"), direct=["GPU-0"])
        alone = Cards(clock, card("GPU-1", period_s=0.02, tick_s=None))
        sampler, _ = sampler_of(CompositeMeter([still, alone] if beside else [still], clock=clock), clock)
        play(sampler, clock, 6.0)
        reads.append((sorted(still.at("GPU-0") + still.at("meter")), alone.at("meter")))
    counter_s, power_s = reads[1]
    assert np.diff(power_s[1:-1]) == pytest.approx(0.097), "no rest, as nobody knows what it draws between two readings"
    assert np.median(np.diff(counter_s[15:-1])) == pytest.approx(3 * 0.097)
    assert len(counter_s) == pytest.approx(len(reads[0][0]), abs=3), "no more often than without it"


def test_a_meter_that_cannot_list_its_counters_is_read_instead() -> None:
    clock = FakeClock()
    meter = Cards(clock, card("GPU-0"), direct=["GPU-0"])
    meter.direct, meter.spends = None, grown  # type: ignore[assignment]
    sampler, _ = sampler_of(meter, clock)
    with pytest.warns(GreenTrainWarning, match="listing its counters") as caught:
        play(sampler, clock, 2.0)
    assert len(caught) == 1
    assert np.diff(meter.at("meter")[:-1]) == pytest.approx(0.097)


def test_eight_slow_gpus_are_read_as_rarely_as_a_thousandth_of_a_core_allows_and_the_curves_know() -> None:
    clock = FakeClock()
    meter = Cards(clock, *(card(f"GPU-{i}", cost_s=1e-4) for i in range(8)))
    sampler, curves = sampler_of(meter, clock)
    play(sampler, clock, 20.0)
    steps_s = np.diff(meter.at("meter")[1:-1])
    assert 8e-4 / np.median(steps_s) <= 1e-3
    assert [curve.pace_s for curve in curves.values()] == pytest.approx([np.median(steps_s)] * 8)
    unlike = [Cards(clock, card("GPU-0")), Cards(clock, card("slow", period_s=2.0, tick_s=None))]
    sampler, curves = sampler_of(CompositeMeter(unlike, clock=clock), clock)
    play(sampler, clock, 1.0)
    assert [curve.pace_s for curve in curves.values()] == [0.1, 2.0]


@pytest.mark.parametrize(
    ("tick_s", "wake_s"), [(0.1, 0.097), (0.121, 0.097), (0.126, 0.1), (0.081, 0.097), (0.079, 0.1)]
)
def test_reads_sweep_over_ticks_of_about_their_own_period_only(tick_s: float, wake_s: float) -> None:
    clock = FakeClock()
    sampler, _ = sampler_of(Cards(clock, card("GPU-0", tick_s=tick_s)), clock)
    assert sampler._wake_s(sampler._meter.sensors) == pytest.approx(wake_s)
    mixed, _ = sampler_of(Cards(clock, card("other", tick_s=None), card("GPU-0", tick_s=tick_s)), clock)
    assert mixed._wake_s(mixed._meter.sensors) == pytest.approx(wake_s)


def test_the_bookkeeper_is_called_once_a_second_and_told_the_time() -> None:
    clock, ticks = FakeClock(), list[float]()
    sampler, _ = sampler_of(Cards(clock, card("GPU-0")), clock, on_tick=ticks.append)
    reader = play(sampler, clock, 5.0)
    assert len(ticks) == 5 and np.diff(ticks) == pytest.approx(1.0, abs=0.3)
    assert ticks[0] - 1000.0 == pytest.approx(0.097)
    assert reader.cpu_s > 0


def test_who_uses_the_devices_is_looked_at_often_at_first_and_rarely_in_a_long_run() -> None:
    clock = FakeClock()
    meter = Cards(clock, card("GPU-0", period_s=1.0, tick_s=None))
    meter.pids = {"GPU-0": [41]}
    sampler, _ = sampler_of(meter, clock)
    play(sampler, clock, 600.0)
    looks = meter.at("users")
    assert sampler.pids == {"GPU-0": [41]}
    assert looks[0] <= 1.0 and np.diff(looks[:4]) == pytest.approx(3.0, abs=1.1)
    late = [b - a for a, b in itertools.pairwise(looks) if a > 60]
    assert late == pytest.approx([a / 5 for a in looks if a > 60][: len(late)], abs=1.1)


def test_a_look_at_the_users_that_fails_leaves_what_was_known_and_the_others() -> None:
    class Shy(Cards):
        def users(self) -> dict[str, Collection[int]]:
            raise OSError("no")

    clock = FakeClock()
    known, shy = Cards(clock, card("GPU-0")), Shy(clock, card("GPU-1"))
    known.pids = {"GPU-0": [41]}
    sampler, _ = sampler_of(CompositeMeter([shy, known], clock=clock), clock)
    play(sampler, clock, 1.0)
    assert sampler.pids == {"GPU-0": [41]}


def test_only_what_is_wanted_is_read_from_the_next_look_at_the_meter_on() -> None:
    clock = FakeClock()
    wanted, other = Cards(clock, card("GPU-0"), direct=["GPU-0"]), Cards(clock, card("GPU-1"))
    wanted.spends = grown
    sampler, _ = sampler_of(CompositeMeter([wanted, other], clock=clock), clock)
    sampler.select(["GPU-0"])
    play(sampler, clock, 3.0)
    assert other.selected == frozenset(["GPU-0"])
    assert len(other.calls) == 1 + len(other.at("users")), "the first reading alone, not even a last one"
    assert len(wanted.at("GPU-0")) > 20 and len(wanted.at("meter")) < 7, "nor is the other waited for"


def test_a_slow_sensor_is_read_at_its_own_pace_beside_a_fast_one() -> None:
    clock = FakeClock()
    fast, slow = Cards(clock, card("GPU-0")), Cards(clock, card("slow", period_s=2.0, tick_s=None))
    sampler, _ = sampler_of(CompositeMeter([fast, slow], clock=clock), clock)
    play(sampler, clock, 11.0)
    assert np.diff(slow.at("meter")[:-1]) == pytest.approx(2.0, abs=0.3)
    assert clock.now_s - 1000.0 - slow.at("meter")[-1] < 0.2, "and a last time at the end"


def test_a_part_that_hangs_is_asked_for_nothing_by_who_reads_in_the_place_of_the_other() -> None:
    clock = FakeClock()
    well, ill = Cards(clock, card("GPU-0"), direct=["GPU-0"]), Cards(clock, card("GPU-1"))
    well.spends = grown
    sampler, _ = sampler_of(CompositeMeter([ill, well], clock=clock), clock)
    hung = Played(clock, 0.0)
    hung.part = sampler._meter.parts[0]
    sampler._stuck.append((hung.part, hung))
    play(sampler, clock, 3.0)
    assert not ill.calls
    assert len(well.at("GPU-0")) > 20 and len(well.at("meter")) < 7
    hung.part = None
    play(sampler, clock, 1.0)
    assert len(ill.at("meter")) > 5 and ill.at("users")


def test_what_a_probe_finds_reaches_the_curve_before_the_run_goes_on() -> None:
    clock, said = FakeClock(), list[str]()

    class Probed(Cards):
        def probe(self) -> None:
            self.sensors = [dataclasses.replace(card("GPU-0"), tick_s=0.1, tick_edge_s=1000.03), self.sensors[1]]

    meter = Probed(clock, card("GPU-0", tick_s=None), card("GPU-1", tick_s=None), card("nobody's", tick_s=None))
    sampler, curves = sampler_of(meter, clock)
    del curves["nobody's"]
    sampler._on_probe = lambda: said.append("probed")
    for _ in range(2):  # once for all readers
        play(sampler, clock, 0.5)
    assert said == ["probed"]
    assert curves["GPU-0"].sensor.tick_s == 0.1
    sampler.settle()
    assert curves["GPU-0"].wait_s(1001.45) == pytest.approx(0.08 + 0.03), "0.3 of a tick after the one at 1001.53 s"
    assert curves["GPU-1"].wait_s(1001.45) == 0.0
    sampler, _ = sampler_of(meter, clock)
    sampler._on_probe = lambda: said.append("probed")
    assert sampler.stop()
    play(sampler, clock, 0.0)
    assert said == ["probed"], "the end does not wait for a probe"


def test_a_tick_that_a_busy_machine_hid_is_looked_for_again_ever_more_rarely() -> None:
    clock, probed_s, told_s = FakeClock(), list[float](), list[float]()

    class Busy(Cards):
        seen_from_s = 2000.0

        def probe(self) -> None:
            probed_s.append(round(clock.now_s - 1000))
            clock.now_s += 0.38
            seen = {"tick_s": 0.1, "tick_edge_s": 1000.03} if clock.now_s >= self.seen_from_s else {"tick_s": None}
            self.sensors = [dataclasses.replace(self.sensors[0], **seen)]

    meter = Busy(clock, card("GPU-0"), direct=["GPU-0"])
    beside = Cards(clock, card("RAPL", period_s=9.0, tick_s=None))
    meter.spends = lambda t_s: 100 * t_s + 90 * math.sin(t_s)
    sampler, curves = sampler_of(CompositeMeter([meter, beside], clock=clock), clock)
    sampler._on_probe = lambda: told_s.append(round(clock.now_s - 1000))
    play(sampler, clock, 50.0)
    assert probed_s == pytest.approx([0, 4, 15, 45], abs=2) and told_s == [0]
    assert not meter.at("GPU-0") and curves["GPU-0"].tick_s is None
    meter.seen_from_s = 0.0
    play(sampler, clock, 120.0)
    assert len(probed_s) == 5 and len(told_s) == 2, "no more once it is known, and the run says so"
    assert curves["GPU-0"].tick_s == pytest.approx(0.1) and len(meter.at("GPU-0")) > 150, "read by its ticks from then"
    sampler.settle()
    assert len(curves["GPU-0"].ticks(math.inf)) > 0, "and told below the tick"
    never = Busy(clock, card("GPU-0"))
    never.seen_from_s = math.inf
    probed_s.clear()
    play(sampler_of(never, clock, sample_s=10.0)[0], clock, 9000.0)
    assert len(probed_s) == 1 + len(PROBES_S), "a tick that nobody can see is given up"


def test_the_last_readings_hold_the_end_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for tick_s, waited_s in ((0.1, 0.08), (0.5, 0.15), (None, 0.0)):
        clock = FakeClock()
        monkeypatch.setattr(time, "sleep", clock.sleep)
        meter = Cards(clock, card("GPU-0", tick_s=tick_s))
        sampler, curves = sampler_of(meter, clock)
        if tick_s:
            curves["GPU-0"].use_tick(tick_s, 1000.0)
        curves["GPU-0"].append(PowerSample("GPU-0", 1000.0, 1.0))
        reads = len(meter.calls)
        play(sampler, clock, 0.25, last=lambda sampler=sampler: sampler.stop(1000.25))  # type: ignore[misc]
        assert clock.slept_s == [pytest.approx(waited_s)]
        assert len(meter.calls) > reads + 1 and meter.calls[-1][0] == clock.now_s
        monkeypatch.undo()


class Idle(_Reader):
    """A reading thread that does nothing."""

    def __init__(self, run: Callable[[_Reader], None]) -> None:
        super().__init__(lambda reader: None)


@pytest.mark.parametrize(
    ("period_s", "limit_s"), [(0.1, HANG_S), (3.0, 3.0), (60.0, SLOW_S), (None, SLOW_S)], ids=["", "", "", "a probe"]
)
def test_a_driver_is_left_after_its_own_pace_but_not_because_the_process_stood_still(
    period_s: float | None, limit_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    monkeypatch.setattr(sampler_module, "_Reader", Idle)
    sampler, curves = sampler_of(Cards(clock, card("GPU-0", period_s=period_s or 0.1)), clock)
    part = sampler._meter.parts[0] if period_s else sampler._all
    reader = sampler._reader
    sampler.look_after()
    reader.part, reader.since_s = part, clock.now_s
    clock.now_s += limit_s - 0.01
    sampler.look_after()
    clock.now_s += 0.02

    def answered(wait_s: float) -> None:
        clock.sleep(wait_s)
        reader.since_s = clock.now_s - 0.05

    monkeypatch.setattr(time, "sleep", answered)
    sampler.look_after()
    assert sampler._reader is reader and not reader.is_left() and not sampler._unsorted
    clock.now_s = reader.since_s + limit_s + 0.01
    monkeypatch.setattr(time, "sleep", clock.sleep)
    sampler.look_after()
    assert reader.is_left() and sampler._reader is not reader
    assert sampler._hangs(part)
    assert sampler._probed and sampler._first.is_set(), "neither is tried again, nor waited for"
    sampler.settle()
    assert curves["GPU-0"]._gap is bool(period_s), "the part that hangs is missing, and nothing else"
    reader.part = None
    assert not sampler._hangs(part), "its driver has let go"


def test_a_reader_that_was_left_brings_nothing_of_what_it_read_meanwhile() -> None:
    clock = FakeClock()
    for direct in ((), ("GPU-0", "GPU-1")):
        meter = Cards(clock, card("GPU-0"), card("GPU-1"), direct=direct)
        sampler, _ = sampler_of(meter, clock)
        reader = Played(clock, clock.now_s + 3.0)
        left_s = clock.now_s + 0.5

        def hung(t_s: float, reader: Played = reader, left_s: float = left_s) -> float:
            reader.left = t_s > left_s
            return 100.0 * t_s

        meter.spends = hung
        sampler._run(reader)
        times_s = [s.t_s if isinstance(s, PowerSample) else s[1] for s in sampler._unsorted]
        assert max(times_s) < left_s + 0.01
        assert len([t_s for t_s, _ in meter.calls if t_s > left_s and _ != "users"]) == 1, "it ends at once"


def test_sleep_of_the_reader_ends_when_the_run_does() -> None:
    reader = _Reader(lambda reader: None)
    assert reader.sleep(-1.0) and reader.sleep(0.0) and reader.sleep(0.001)
    reader.wake()
    reader.wake()
    assert not reader.sleep(0.001) and reader.sleep(0.001), "once, however many have woken it"
    reader.wake()
    start_s = time.monotonic()
    assert not reader.sleep(60.0)
    assert time.monotonic() - start_s < 30


def test_a_driver_that_never_answers_keeps_no_process_from_ending() -> None:
    assert _Reader(lambda reader: None).thread.daemon


def test_a_run_that_has_started_has_its_first_readings() -> None:
    clock = SystemClock()
    meter = Meter([counting("GPU-0", period_s=60.0, tick_s=None)], direct=[])
    curves = {"GPU-0": EnergyCurve(meter.sensors[0], clock.monotonic_s())}
    sampler = Sampler(meter, curves, sample_s=0.1, clock=clock, on_tick=lambda now_s: None)
    sampler.start()
    assert sampler._first.is_set() and curves["GPU-0"]._n == 1
    assert sampler.stop()


def test_the_end_leaves_a_driver_that_hangs_and_says_what_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    monkeypatch.setattr(sampler_module, "_Reader", Idle)
    for stop_s, hung_s in ((0.0, 0.0), (0.05, 10.0)):
        monkeypatch.setattr(sampler_module, "STOP_S", stop_s)
        meter = CompositeMeter([Cards(clock, card("GPU-0")), Cards(clock, card("GPU-1"))], clock=clock)
        sampler, curves = sampler_of(meter, clock)
        reader = sampler._reader
        reader.part, reader.since_s = meter.parts[1], clock.now_s
        clock.now_s += hung_s
        answers = threading.Event()
        reader.thread = threading.Thread(target=answers.wait, args=(60,))
        reader.thread.start()
        try:
            assert not sampler.stop()
        finally:
            answers.set()
            reader.thread.join()
        sampler.settle()
        assert [curve._gap for curve in curves.values()] == [False, True]
        assert reader.is_left() is (hung_s > 0)
        assert not hung_s or not sampler._reader.going.locked(), "who reads on in its place ends, too"
