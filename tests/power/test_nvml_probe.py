"""How fast a counter ticks and what a read costs, found on the fake driver and on changes made up."""

import re
import time
from collections.abc import Sequence

import pytest

from greentrain.power import nvml
from greentrain.power.nvml import SPAN_S, NvmlMeter, Polled, _Watch, poll, tick_of
from greentrain.testing.fake_nvml import FakeGpu, NvmlCode
from greentrain.utils.clock import SystemClock
from tests.power.on_fake import ENERGY, Install, only


@pytest.mark.parametrize("tick_s", [0.02, 0.05, 0.1])
def test_the_probe_measures_the_tick_and_when_it_falls(install: Install, tick_s: float) -> None:
    install(FakeGpu(tick_s=tick_s, tick_phase_s=0.007), FakeGpu(tick_s=tick_s, tick_phase_s=0.013))
    meter = NvmlMeter({})
    assert [sensor.tick_s for sensor in meter.sensors] == [0.1, 0.1]
    assert [sensor.tick_edge_s for sensor in meter.sensors] == [None, None]
    for _ in range(60):  # a loaded machine may need another look
        meter.probe()
        if not any(sensor.tick_s is None for sensor in meter.sensors):
            break
    for sensor, phase_s in zip(meter.sensors, (0.007, 0.013), strict=True):
        assert sensor.tick_s == pytest.approx(tick_s, rel=0.06)
        assert sensor.tick_edge_s is not None
        off_s = (sensor.tick_edge_s - phase_s + tick_s / 2) % tick_s - tick_s / 2
        assert abs(off_s) < 0.3 * tick_s
        assert sensor.period_s >= 0.9 * tick_s
    meter.close()


def test_a_tick_too_slow_for_the_probe_is_not_invented(install: Install) -> None:
    install(FakeGpu(tick_s=60.0))
    meter = NvmlMeter({})
    meter.probe()
    assert only(meter).tick_s is None
    assert "could not be measured" in only(meter).note
    meter.close()


def test_the_probe_tells_waiting_from_working_and_reading_slows_down(install: Install) -> None:
    install(FakeGpu(delays={ENERGY: (0.012, 0.0)}), FakeGpu(delays={ENERGY: (0.0, 0.002)}))
    meter = NvmlMeter({})
    meter.probe()
    waiting, working = meter.sensors
    assert waiting.read_cost_s is not None and working.read_cost_s is not None
    assert waiting.read_cost_s < 0.001
    waited = re.search(r"one read takes (\d+) us, (\d+) us of them CPU", waiting.note)
    assert waited is not None and int(waited[1]) >= 12_000 > 10 * int(waited[2])
    assert waiting.period_s >= 0.2
    assert 0.0019 < working.read_cost_s < 0.01
    assert working.period_s >= 1.9
    meter.close()


@pytest.mark.parametrize(
    ("edges", "tick_s"),
    [
        ([], None),
        ([(1.0, 0.001)], None),
        ([(1.0, 0.001), (1.05, 0.001), (1.1, 0.001)], 0.05),
        ([(1.0, 0.001), (1.1003, 0.001), (1.2, 0.001)], 0.1),
        ([(1.0, 0.001), (1.06, 0.001), (1.15, 0.04), (1.24, 0.001)], 0.06),
        ([(1.0, 0.001), (1.15, 0.04), (1.24, 0.001)], None),
        ([(1.0, 0.02), (1.11, 0.02), (1.19, 0.02)], 0.1),
        ([(1.0, 0.02), (1.06, 0.02)], None),
        ([(i * 0.04, 0.02) for i in range(10)], None),
        # Ticks of 20 ms: 13 of them that were not watched look like 12 of the first.
        ([(1.0, 0.001), (1.0218, 0.001), (1.15, 0.04), (1.2809, 0.001)], None),
        ([(1.0, 0.001), (1.0218, 0.001), (1.15, 0.04), (1.2809, 0.001), (1.3009, 0.001), (1.3209, 0.001)], 0.02),
    ],
)
def test_the_tick_is_stated_only_where_the_changes_tell_it(
    edges: list[tuple[float, float]], tick_s: float | None
) -> None:
    found_s, edge_s = tick_of(edges)
    assert found_s == (None if tick_s is None else pytest.approx(tick_s, rel=0.02))
    assert (edge_s is None) == (tick_s is None)


def test_polling_ends_in_time() -> None:
    clock = SystemClock()
    start_s = clock.monotonic_s()
    (polled,) = poll([lambda: 1.0], clock)
    assert SPAN_S <= polled.span_s <= clock.monotonic_s() - start_s
    assert SPAN_S <= 0.4


def test_polling_a_reading_that_fails_tells_nothing_and_raises_nothing() -> None:
    def broken() -> float:
        raise RuntimeError("no")

    (polled,) = poll([broken], SystemClock(), span_s=0.01)
    assert (polled.tick_s, polled.edge_s, polled.cpu_s, polled.wall_s) == (None, None, None, None)


class WorkedClock:
    """A clock of a thread that only sleeps, and works where it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = self.cpu_s = 100.0
        self.slept_s: list[float] = []
        monkeypatch.setattr(time, "sleep", self.sleep)
        monkeypatch.setattr(time, "thread_time", lambda: self.cpu_s)

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_s(self) -> float:
        return self.now_s

    def sleep(self, wait_s: float) -> None:
        self.slept_s.append(wait_s)
        self.now_s += wait_s

    def work(self, cpu_s: float, wait_s: float = 0.0) -> None:
        self.cpu_s += cpu_s
        self.now_s += cpu_s + wait_s


def test_polling_ends_when_all_counters_have_shown_their_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = WorkedClock(monkeypatch)
    values = [lambda tick_s=tick_s: float(clock.now_s // tick_s) for tick_s in (0.02, 0.05)]
    quick, slow = poll(values, clock)
    assert (quick.tick_s, slow.tick_s) == pytest.approx((0.02, 0.05), rel=0.05)
    assert 0.1 <= slow.span_s < 0.2, "after three ticks of the slower one"
    assert slow.edge_s is not None and slow.edge_s % 0.05 == pytest.approx(0.0, abs=0.0021)
    assert clock.slept_s == pytest.approx([0.002] * len(clock.slept_s))


def test_polling_works_a_tenth_of_the_time_and_waits_for_the_driver_at_most_half(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = WorkedClock(monkeypatch)
    (polled,) = poll([lambda: clock.work(0.001) or 1.0], clock)  # type: ignore[func-returns-value]
    assert clock.slept_s[0] == pytest.approx(0.01)
    assert (polled.cpu_s, polled.wall_s) == pytest.approx((0.001, 0.001)) and polled.tick_s is None
    clock.slept_s.clear()
    (polled,) = poll([lambda: clock.work(0.0, 0.03) or 1.0], clock)  # type: ignore[func-returns-value]
    assert clock.slept_s[0] == pytest.approx(0.03)
    assert (polled.cpu_s, polled.wall_s) == pytest.approx((0.0, 0.03), abs=1e-9)


def test_a_change_is_dated_between_the_reads_that_it_lies_between_and_not_over_a_failed_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = WorkedClock(monkeypatch)
    answers = iter([1.0, 1.0, 2.0, None, 3.0, 3.0])

    def value() -> float:
        clock.work(0.0, 0.01)
        answer = next(answers)
        if answer is None:
            raise OSError("no")
        return answer

    watch = _Watch(value, clock)
    for _ in range(6):
        watch.poll()
        clock.now_s += 0.09
    # The second read began at 100.1 s, the third ended at 100.21 s.
    assert len(watch.edges) == 1 and watch.edges[0] == pytest.approx((100.155, 0.055))
    assert len(watch.wall_s) == 5 and not watch.is_sure


def test_a_second_probe_asks_only_the_gpus_whose_tick_was_not_seen(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(FakeGpu(), FakeGpu(), FakeGpu(errors={ENERGY: NvmlCode.NOT_SUPPORTED}))
    asked: list[int] = []

    def polled(values: Sequence[object], clock: object) -> list[Polled]:
        asked.append(len(values))
        seen = (0.1, None, None) if len(values) == 3 else (0.1,)
        return [Polled(tick_s=tick_s, edge_s=7.0, cpu_s=1e-5, wall_s=1e-5) for tick_s in seen]

    monkeypatch.setattr(nvml, "poll", polled)
    meter = NvmlMeter({})
    for _ in range(3):
        meter.probe()
    assert asked == [3, 1]
    assert [sensor.tick_s for sensor in meter.sensors] == [0.1, 0.1, None], "the last one has no counter"
    assert "could not be measured" not in " ".join(sensor.note for sensor in meter.sensors)
    meter.close()
