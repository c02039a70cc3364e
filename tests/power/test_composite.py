import dataclasses
import warnings
from collections.abc import Collection, Iterator, Sequence

import pytest

from greentrain.config.schema import PowerConfig
from greentrain.errors import GreenTrainWarning
from greentrain.power.detect import CompositeMeter, open_run_meter
from greentrain.testing.meter_contract import MeterContract
from greentrain.types import Counter, Device, DeviceKind, PowerMeter, PowerSample, Provenance, Sensor, Topology
from tests.helpers.hand_clock import HandClock


class Fake:
    """A meter of some uids whose every read adds a joule."""

    def __init__(self, *uids: str, period_s: float = 0.1, clock: HandClock | None = None) -> None:
        self.clock = clock or HandClock(0.0, 0.0)
        self.reads = 0
        self.closed = 0
        self.error: Exception | None = None
        self._sensors = [
            Sensor(
                device=Device(uid=uid, kind=DeviceKind.GPU, name=uid),
                provenance=Provenance.MEASURED,
                method="fake",
                period_s=period_s,
            )
            for uid in uids
        ]

    @property
    def sensors(self) -> Sequence[Sensor]:
        return self._sensors

    def read(self) -> Sequence[PowerSample]:
        self.reads += 1
        if self.error is not None:
            raise self.error
        now_s = self.clock.now_s
        return [PowerSample(device_uid=s.device.uid, t_s=now_s, energy_j=float(self.reads)) for s in self._sensors]

    def close(self) -> None:
        self.closed += 1
        if self.error is not None:
            raise self.error


class Probed(Fake):
    def probe(self) -> None:
        if self.error is not None:
            raise self.error
        self._sensors = [dataclasses.replace(s, tick_s=0.1, read_cost_s=0.001) for s in self._sensors]


class TestCompositeContract(MeterContract):
    all_at_once = False

    @pytest.fixture
    def meter(self) -> Iterator[PowerMeter]:
        self.clock = HandClock(0.0, 0.0)
        self.members = (Fake("a", "b", clock=self.clock), Fake("c", period_s=1.0, clock=self.clock))
        meter = CompositeMeter(self.members, clock=self.clock)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GreenTrainWarning)
            yield meter
            meter.close()

    def advance(self) -> None:
        self.clock.now_s += 0.3

    def vanish(self) -> None:
        for member in self.members:
            member.error = OSError("gone")


def uids(samples: Sequence[PowerSample]) -> list[str]:
    return [sample.device_uid for sample in samples]


def test_members_are_read_at_their_own_period() -> None:
    clock = HandClock(0.0, 0.0)
    fast, slow = Fake("fast", period_s=0.1, clock=clock), Fake("slow", period_s=1.0, clock=clock)
    meter = CompositeMeter([fast, slow], clock=clock)
    for _ in range(31):
        meter.read()
        clock.now_s += 0.097
    assert fast.reads == 31
    assert slow.reads in (3, 4)


def test_first_of_two_equal_uids_wins() -> None:
    first, second = Fake("x", "y"), Fake("y", "z")
    first.reads = 10
    meter = CompositeMeter([first, second])
    assert [s.device.uid for s in meter.sensors] == ["x", "y", "z"]
    assert [(s.device_uid, s.energy_j) for s in meter.read()] == [("x", 11.0), ("y", 11.0), ("z", 1.0)]


def test_a_member_without_own_devices_is_not_read_but_closed() -> None:
    first, second = Fake("x"), Fake("x")
    meter = CompositeMeter([first, second])
    meter.read()
    meter.close()
    assert (second.reads, second.closed) == (0, 1)


def test_a_member_that_raises_gives_failed_samples_and_one_warning() -> None:
    good, bad = Fake("good"), Fake("bad1", "bad2")
    meter = CompositeMeter([bad, good])
    bad.error = RuntimeError("driver fell over")
    with pytest.warns(GreenTrainWarning, match="driver fell over") as caught:
        samples = meter.read()
        meter.read()
        meter.close()
    assert len(caught) == 1
    assert uids(samples) == ["bad1", "bad2", "good"]
    assert [s.missing for s in samples] == [True, True, False]
    assert "driver fell over" in samples[0].note
    assert good.closed == 1


def test_warnings_as_errors_do_not_break_the_read() -> None:
    bad = Fake("bad")
    meter = CompositeMeter([bad])
    bad.error = RuntimeError("driver fell over")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert meter.read()[0].missing
        meter.close()


def test_probe_reaches_members_that_have_one() -> None:
    probed, plain, broken = Probed("p"), Fake("q"), Probed("r")
    meter = CompositeMeter([probed, plain, broken])
    broken.error = RuntimeError("no")
    with pytest.warns(GreenTrainWarning, match="probing"):
        meter.probe()
    assert [s.tick_s for s in meter.sensors] == [0.1, None, None]


def test_no_members() -> None:
    meter = CompositeMeter([])
    assert list(meter.sensors) == []
    assert list(meter.read()) == []
    meter.close()


def test_a_member_that_splits_is_read_a_device_at_a_time_and_closed_once() -> None:
    class Card(Fake):
        def split(self) -> Sequence[PowerMeter]:
            return halves

    halves = (Fake("a"), Fake("b"))
    card = Card("a", "b")
    meter = CompositeMeter([card])
    assert [part.uids for part in meter.parts] == [("a",), ("b",)]
    halves[0].error = RuntimeError("fell off the bus")
    with pytest.warns(GreenTrainWarning, match="fell off"):
        assert [sample.missing for sample in meter.read()] == [True, False]
    meter.select(["b"])
    assert [part.idle for part in meter.parts] == [True, False]
    meter.close()
    assert (card.closed, halves[0].closed, card.reads) == (1, 0, 0)


def test_a_part_whose_reads_become_dear_is_read_more_rarely_and_again_more_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """2,500 processes make a read of the CPU's model cost 25 ms; the machine has fewer of them later."""
    cpu_s = [0.0]
    clock = HandClock(0.0, 0.0)

    class Tree(Fake):
        cost_s = 0.0002

        def read(self) -> Sequence[PowerSample]:
            cpu_s[0] += self.cost_s
            return super().read()

    monkeypatch.setattr("time.thread_time", lambda: cpu_s[0])
    tree = Tree("cpu", period_s=1.0, clock=clock)
    (part,) = CompositeMeter([tree], clock=clock).parts
    part.read()
    assert (part.cost_s, part.pace_s) == pytest.approx((0.0002, 1.0))
    tree.cost_s = 0.005
    part.read()
    assert part.cost_s < 0.0003, "one slow read may have been interrupted"
    for _ in range(20):
        part.read()
    assert (part.cost_s, part.pace_s) == pytest.approx((0.005, 5.0))
    clock.now_s += 4.0
    assert not part.due()
    clock.now_s += 1.0
    assert part.due()
    tree.cost_s = 0.025
    for _ in range(20):
        part.read()
    assert part.pace_s == 10.0
    tree.cost_s = 0.0002
    part.read()
    assert part.pace_s == 1.0


def test_ctrl_c_during_a_read_ends_the_training_as_ever() -> None:
    class Interrupted(Fake):
        def read(self) -> Sequence[PowerSample]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        CompositeMeter([Interrupted("a")]).read()


def test_a_meter_beside_the_runs_own_is_read_with_it_and_left_open() -> None:
    clock, config = HandClock(0.0, 0.0), PowerConfig(meters=("null",))
    own, beside = Fake("a", clock=clock), Fake("b", clock=clock)
    meter = open_run_meter(config, Topology(), clock, own=CompositeMeter([own], clock=clock), extra=[beside])
    assert [s.device.uid for s in meter.sensors] == ["a", "b"] == uids(meter.read())
    meter.close()
    assert (own.closed, beside.closed) == (1, 0)
    assert open_run_meter(config, Topology(), clock, own=own, extra=()) is own
    both = open_run_meter(config, Topology(), clock, own=own, extra=[beside])
    assert uids(both.read()) == ["a", "b"]
    named = open_run_meter(config, Topology(), clock, own=None, extra=[beside])
    assert [s.device.uid for s in named.sensors] == ["b"]


def test_a_selection_reaches_members_that_can_and_harms_no_other() -> None:
    class Chooser(Fake):
        wanted: Collection[str] = ()

        def select(self, uids: Collection[str]) -> None:
            self.wanted = uids
            if self.error is not None:
                raise self.error

    clock = HandClock(0.0, 0.0)
    chooser, plain, broken = Chooser("a", clock=clock), Fake("b", clock=clock), Chooser("c", clock=clock)
    meter = CompositeMeter([broken, plain, chooser], clock=clock)
    meter.read()
    broken.error = RuntimeError("no")
    with pytest.warns(GreenTrainWarning, match="selecting devices"):
        meter.select(["a"])
    assert chooser.wanted == ["a"]
    broken.error = None
    clock.now_s += 1.0
    assert uids(meter.read()) == ["a"]
    meter.select(["a", "b"])
    assert uids(meter.read()) == ["b"], "due at once, as its time has passed"


def test_reads_of_fast_counters_are_not_timed_as_the_probe_knows_better(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu_s = [0.0]

    class Working(Fake):
        def read(self) -> Sequence[PowerSample]:
            cpu_s[0] += 0.005
            return super().read()

    monkeypatch.setattr("time.thread_time", lambda: cpu_s[0])
    for period_s, pace_s in ((0.1, 0.1), (0.9, 0.9), (1.0, 5.0)):
        (part,) = CompositeMeter([Working("a", period_s=period_s)]).parts
        part.read()
        assert part.pace_s == pytest.approx(pace_s)


def test_a_part_is_due_a_little_before_its_pace_so_that_an_early_timer_skips_no_read() -> None:
    clock = HandClock(0.0, 0.0)
    (part,) = CompositeMeter([Fake("a", period_s=1.0, clock=clock)], clock=clock).parts
    assert part.due()
    part.read()
    for now_s, due in ((0.0, False), (0.85, False), (0.95, True)):
        clock.now_s = now_s
        assert part.due() is due
    part.idle = True
    assert not part.due()


def test_counters_are_those_of_the_parts_own_devices_while_somebody_wants_them() -> None:
    class Counting(Fake):
        def counters(self) -> Sequence[Counter]:
            return [Counter(uid, lambda: 1.0, 0.0) for uid in ("a", "b")]

    first, second = CompositeMeter([Fake("a"), Counting("a", "b")]).parts
    assert first.counters() == ()
    assert [counter.device_uid for counter in second.counters()] == ["b"], "a is the first one's"
    second.idle = True
    assert second.counters() == ()
