"""One run while it is measured: nothing of it makes the training wait, die, or lose a step without a word."""

import contextlib
import dataclasses
import itertools
import json
import logging
import os
import shutil
import signal
import threading
import time
import types
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from greentrain import GreenSession
from greentrain.carbon.constant import ConstantSignal
from greentrain.config.schema import GreenConfig
from greentrain.errors import GreenTrainWarning
from greentrain.ledger import active_run, journal
from greentrain.ledger.active_run import ActiveRun, metrics_of
from greentrain.ledger.journal import read_journal
from greentrain.ledger.reader import OtherRanksTotals, RankRecord, read_run
from greentrain.ledger.totals import Totals
from greentrain.power import device_clock
from greentrain.power.sampler import EnergyCurve, Sampler
from greentrain.report.summary import summarize, told_of
from greentrain.types import Device, DeviceKind, DeviceState, LedgerEntry, PowerSample, Provenance, Sensor, Topology
from greentrain.utils import quantities
from tests.helpers.child import in_a_child
from tests.helpers.fake_accelerator import FakeGpu, fake_torch
from tests.helpers.flat_meter import FlatMeter
from tests.helpers.hand_clock import HandClock

WAIT_S = 60.0
"""Longest wait for a thread that is not held up (s)."""


def _session(folder: Path) -> GreenSession:
    config = {"run": {"dir": str(folder), "report": False}, "power": {"sample_s": 0.02}}
    return GreenSession(config, meter=FlatMeter(), signal=None)


def _rank(green: GreenSession) -> RankRecord:
    return read_run(green.folder or "").ranks[0]


class _HungOs:
    """``os`` of a process whose disk does not answer until it is let go."""

    def __init__(self, call: str) -> None:
        self._call = call
        self.go_on = threading.Event()

    def __getattr__(self, name: str) -> object:
        real = getattr(os, name)
        return (lambda *args: self.go_on.wait(WAIT_S) and real(*args)) if name == self._call else real


def test_errors_that_a_user_states_are_in_the_books(tmp_path: Path) -> None:
    carbon = {"g_per_kwh": 400.0, "relative_error": 0.1, "pue": 1.5, "pue_relative_error": 0.02}
    config = {"run": {"dir": str(tmp_path), "report": False}, "carbon": carbon}
    with GreenSession(config, meter=FlatMeter()) as green:
        green.step(tokens=1)
    rank = _rank(green)
    assert {entry.carbon.relative_error for entry in rank.entries} == {0.1}
    assert rank.opens[0]["pue_error"] == 0.02
    assert {uid: set(shares) for uid, shares in rank.shared.items()} == {
        uid: {"other"} for uid, sensor in rank.sensors.items()
    }
    with GreenSession(config | {"carbon": {"g_per_kwh": 400.0}}, meter=FlatMeter()) as plain:
        plain.step(tokens=1)
    assert "pue_error" not in _rank(plain).opens[0] and _rank(plain).entries[0].carbon.relative_error is None


def test_a_session_shows_in_a_notebook_what_its_report_says(tmp_path: Path) -> None:
    meter = FlatMeter()
    meter.sensors = [dataclasses.replace(sensor, uncertainty=0.05) for sensor in meter.sensors]
    config = {"run": {"dir": str(tmp_path), "report": False}, "power": {"sample_s": 0.02}}
    with GreenSession(config, meter=meter) as green:
        with green.phase("forward"):
            green.step(tokens=1)
        green.checkpoint()
        assert green.running and green._view().title.endswith("running")
    rank, shown = _rank(green), green._view()
    known = told_of(rank)
    assert green._last is not None and (record := green._last.rank_record()) is not None
    assert told_of(record) == known and record.sums.energy_j == pytest.approx(rank.sums.energy_j)
    texts = {row[0]: row[1] for grid in shown.grids for row in grid.rows}
    for name, (interval, _) in (known["devices"] | known["phases"]).items():
        assert interval is not None and " to " in texts[name]
    assert texts["Energy"] == quantities.between(green.totals().energy_j, known["interval_j"], quantities.JOULE)


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_disk_that_hangs_holds_up_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    monkeypatch.setattr(journal, "os", disk := _HungOs(call))
    wait_s = 0.01 if call == "write" else WAIT_S / 2  # writing takes its time on a busy machine
    for name in ("book_now", "save"):
        monkeypatch.setattr(getattr(active_run.ActiveRun, name), "__defaults__", (wait_s,))
    monkeypatch.setattr(active_run, "SAVE_S", wait_s)
    monkeypatch.setattr(active_run, "CLOSE_S", 1.0)  # it waits in vain for a device that hangs in fsync
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with _session(tmp_path) as green:
            green.step(tokens=3)
            green.checkpoint()
            green.state_dict()
        assert not disk.go_on.is_set()  # all of it went by while the disk hung
    told = [str(one.message) for one in said if "does not take the journal" in str(one.message)]
    assert len(told) == (call == "write")  # what is written survives a kill, if no loss of power
    disk.go_on.set()
    deadline_s = time.monotonic() + WAIT_S
    while not _closed(green) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert _rank(green).totals.tokens == 3


def _closed(green: GreenSession) -> bool:
    try:
        return _rank(green).close is not None
    except Exception:
        return False


@pytest.mark.filterwarnings("error")
def test_a_full_disk_is_no_exception_where_warnings_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with _session(tmp_path) as green:
        full = _HungOs("write")
        full.go_on.wait = lambda timeout=None: False  # type: ignore[method-assign]
        monkeypatch.setattr(journal, "os", full)  # it takes not a byte
        green.checkpoint()
        green.state_dict()
        monkeypatch.undo()
    assert "checkpoint" in [event["name"] for event in _rank(green).events]


@in_a_child
def test_signals_in_the_middle_of_checkpoints_book_each_interval_once(tmp_path: Path) -> None:
    signals = 0

    def handle(*_: object) -> None:
        nonlocal signals
        signals += 1

    signal.signal(signal.SIGTERM, handle)
    green = _session(tmp_path)
    with green:
        over = threading.Event()

        def storm() -> None:
            while not over.wait(0.002):
                os.kill(os.getpid(), signal.SIGTERM)

        thread = threading.Thread(target=storm)
        thread.start()
        steps = 0
        while signals < 50:
            steps += 1
            with green.phase("x"):
                green.step(tokens=2)
            green.state_dict()
            green.checkpoint()
        over.set()
        thread.join()
    rank = _rank(green)
    assert (rank.totals.steps, rank.totals.tokens) == (steps, 2 * steps)
    ends = [(one.t1_unix_s, two.t0_unix_s) for one, two in itertools.pairwise(rank.entries)]
    assert ends and all(end == start for end, start in ends)


@in_a_child
def test_who_interrupts_the_wait_of_close_does_not_lose_the_end(tmp_path: Path) -> None:
    green = _session(tmp_path)
    run = green.start().active()
    assert run is not None
    settle = Sampler.settle

    def slowly(sampler: Sampler) -> None:
        time.sleep(0.3)
        settle(sampler)

    Sampler.settle = slowly  # type: ignore[assignment, method-assign]
    green.step(tokens=5)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    with pytest.raises(KeyboardInterrupt):
        while True:
            green.close()
    green.close()
    assert _rank(green).close is not None and _rank(green).totals.tokens == 5


def test_of_too_many_marks_every_step_and_token_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(active_run, "MANY_MARKS", 100)
    with pytest.warns(GreenTrainWarning, match="more than 100 marks"), _session(tmp_path) as green:
        outer = green.begin("outer")
        for _ in range(1000):
            with green.phase("inner"):
                green.step(tokens=2)
            green.count(tokens=1)
        green.end("outer", outer)
    totals = green.totals()
    assert (totals.steps, totals.tokens) == (1000, 3000)
    assert set(totals.phase_s) <= {"outer", "inner", "other"}


def test_steps_that_fall_out_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(active_run, "MAX_MARKS", 50)
    with pytest.warns(GreenTrainWarning, match="in no sum"), _session(tmp_path) as green:
        run = green.active()
        assert run is not None
        with run._lock:  # the bookkeeper is stuck
            for _ in range(200):
                green.step(tokens=1)
    told = [event["steps"] for event in _rank(green).events if "steps" in event]
    assert sum(told) + green.totals().steps == 200 and green.totals().steps >= 50


def test_a_second_process_with_the_same_id_has_a_run_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fcntl")
    monkeypatch.setenv("GREENTRAIN_RUN_ID", "twin")
    first = _session(tmp_path).start()
    with pytest.warns(GreenTrainWarning, match="another process writes run twin"):
        second = _session(tmp_path).start()
    for green in (first, second):
        green.step(tokens=7)
        green.close()
        assert _rank(green).totals.tokens == 7
    assert [green.folder and green.folder.name for green in (first, second)] == ["twin", "twin-2"]
    third = _session(tmp_path).start()
    third.close()
    assert third.folder == first.folder


def test_a_folder_that_is_deleted_is_noticed_and_brought_back(tmp_path: Path) -> None:
    with pytest.warns(GreenTrainWarning, match="deleted"), _session(tmp_path) as green:
        green.step(tokens=4)
        green.state_dict()
        assert green.folder is not None
        shutil.rmtree(green.folder)
        green.checkpoint()
    assert _rank(green).totals.tokens == 4
    assert (green.folder / "run.json").is_file()


def test_a_folder_that_is_deleted_with_all_runs_is_told_of_once(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        config = {"run": {"dir": str(tmp_path / "runs")}, "power": {"sample_s": 0.02}}
        green = GreenSession(config, meter=FlatMeter()).start()
        green.state_dict()
        shutil.rmtree(tmp_path / "runs")
        green.checkpoint()
        before = len(told)
        green.close()
    assert before == len(told) == 1 and "was deleted and cannot be brought back" in str(told[0].message)
    assert green.report_path is None and not list(tmp_path.iterdir())


@in_a_child
def test_a_forked_child_waits_for_no_lock_of_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(active_run, "SAVE_S", 0.01)
    with _session(tmp_path) as green:
        run = green.active()
        assert run is not None
        t_s = time.monotonic()
        run._lock.acquire()
        child = os.fork()
        if child == 0:  # where nobody gives the lock back
            green.step(tokens=5)
            green.checkpoint()
            green.state_dict()
            found = green.energy(t_s, t_s)
            green.close()
            run.close("finished")
            os._exit(found is not None)
        run._lock.release()
        assert os.waitpid(child, 0)[1] == 0
    assert _rank(green).totals.tokens == 0


# -- one run by hand: a clock that a test moves, and nothing that runs beside it ------------------------------------


class ByHand:
    """The thread of the books, whose passes the test makes itself; who waits for one gets it at once."""

    busy_s = 0.25

    def __init__(self, name: str, work: Callable[[], None], every_s: float) -> None:
        self._work, self.every_s = work, every_s
        self.asked, self.answers = 0, True

    def start(self) -> None:
        pass

    def ask(self, wait_s: float = 0.0) -> bool:
        self.asked += 1
        if wait_s > 0 and self.answers:
            self._work()
        return self.answers

    def stop(self, wait_s: float) -> bool:
        return self.ask(wait_s)


class Readings:
    """A sampler whose devices draw constant power and are read at each look; those in ``silent`` are not."""

    busy_s = 0.5
    pids: Mapping[str, frozenset[int]] = {}

    def __init__(self, meter: "Meter", curves: Mapping[str, EnergyCurve], **settings: Any) -> None:
        self._meter, self._curves, self.settings = meter, curves, settings
        self.selected: list[frozenset[str]] = []
        self.states: deque[DeviceState] = deque()
        self.stopped_s: float | None = None

    def start(self) -> None:
        self.settle()

    def settle(self) -> None:
        t_s = self.settings["clock"].monotonic_s()
        for uid, curve in self._curves.items():
            if uid not in self._meter.silent:
                curve.append(PowerSample(device_uid=uid, t_s=t_s, energy_j=self._meter.watts[uid] * t_s))

    def look_after(self) -> None:
        pass

    def select(self, uids: frozenset[str]) -> None:
        self.selected.append(uids)

    def stop(self, t1_s: float | None = None) -> bool:
        self.stopped_s = t1_s
        return not self._meter.silent


class Meter:
    """Sensors with constant power, of which some fall silent."""

    def __init__(self, **watts: float) -> None:
        self.watts, self.closed = watts, 0
        self.silent: set[str] = set()
        self.sensors = [
            Sensor(
                device=Device(uid=uid, kind=DeviceKind.GPU, name="NVIDIA H100 80GB HBM3"),
                provenance=Provenance.MEASURED,
                method="test",
                period_s=0.1,
                shared=False,
            )
            for uid in watts
        ]

    def read(self) -> list[PowerSample]:
        return []

    def close(self) -> None:
        self.closed += 1


class Bench:
    """Makes runs by hand in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.hands, self.runs = folder, HandClock(unix_offset_s=1e9), list[ActiveRun]()
        self.seconds: list[float] = []

    def run(self, meter: Meter | None = None, place: Topology | None = None, **more: Any) -> ActiveRun:
        section = {"dir": str(self.folder), "report": False, "live": False} | more.pop("config", {})
        run = ActiveRun(
            config=GreenConfig.load({"run": section, "carbon": {"pue": 1.0}, **more.pop("sections", {})}),
            folder=Path(section["dir"]) / "r",
            topology=place or Topology(host="here"),
            meter=meter or Meter(a=200.0, b=50.0),
            signal=ConstantSignal(360.0, zone="test", source="test"),
            clock=self.hands,
            run_id="r",
            on_second=lambda run: self.seconds.append(self.hands.now_s),
            **more,
        )
        self.runs.append(run)
        return run

    def started(self, meter: Meter | None = None, **more: Any) -> ActiveRun:
        run = self.run(meter, **more)
        run.start()
        return run

    def passes(self, run: ActiveRun, until_s: float, every_s: float = 0.5) -> None:
        """Let time go on, with a pass of the bookkeeper now and then."""
        while self.hands.now_s < until_s - 1e-9:
            self.hands.now_s = min(self.hands.now_s + every_s, until_s)
            run._pass()

    def booked(self, run: ActiveRun, from_s: float) -> None:
        """Let time go on to the first booking after a time."""
        self.passes(run, from_s)
        before_s = run._books.t_s
        while run._books.t_s == before_s:
            self.passes(run, self.hands.now_s + 0.5)

    def records(self, run: ActiveRun, kind: str) -> list[dict[str, Any]]:
        run.save(WAIT_S)
        return [record for record in read_journal(run.folder / "rank-00000.jsonl") if record["kind"] == kind]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(active_run, "BackgroundWork", ByHand)
    monkeypatch.setattr(active_run, "Sampler", Readings)
    made = Bench(tmp_path)
    yield made
    for run in made.runs:
        run._books_thread.answers = True  # type: ignore[attr-defined]
        run.close("exit")


def test_a_kill_costs_ten_seconds_at_most_and_a_long_run_few_lines(bench: Bench) -> None:
    run = bench.started()
    ends = [1000.0]
    while bench.hands.now_s < 1300.0:
        bench.passes(run, bench.hands.now_s + 0.5)
        if run.last_entry is not None and run.last_entry.t1_unix_s - 1e9 > ends[-1]:
            ends.append(run.last_entry.t1_unix_s - 1e9)
    lengths_s = [end - start for start, end in itertools.pairwise(ends)]
    assert lengths_s[0] <= 1.5, "the first second of a run that dies at once is in its books"
    assert max(lengths_s) <= 10.0
    assert min(lengths_s[-10:]) >= 7.0 and len(lengths_s) < 60
    assert run.ledger.totals.energy_j == pytest.approx(250.0 * (ends[-1] - 1000.0))
    assert [entry["t0"] for entry in bench.records(run, "entry")] == pytest.approx([1e9 + t_s for t_s in ends[:-1]])


def test_what_readings_share_is_told_the_more_rarely_the_longer_a_run_goes_on(bench: Bench) -> None:
    run = bench.started()
    bench.passes(run, 1300.0)
    told = [record for record in bench.records(run, "event") if record["name"] == "shared" and record["device"] == "a"]
    after_s = [record["t"] - 1e9 - 1000.0 for record in told]
    assert 4 <= len(after_s) <= 10 and after_s[-1] >= 100.0
    assert all(later >= 1.8 * earlier for earlier, later in itertools.pairwise(after_s))


def test_short_intervals_that_the_user_wants_are_kept(bench: Bench) -> None:
    run = bench.started(config={"book_s": 0.5})
    bench.passes(run, 1003.0, 0.05)
    lengths_s = [record["t1"] - record["t0"] for record in bench.records(run, "entry")]
    assert max(lengths_s) <= 0.6 and len(lengths_s) >= 5


def test_a_device_that_falls_silent_holds_up_the_books_of_the_others_for_seconds_only(bench: Bench) -> None:
    meter = Meter(a=200.0, b=50.0)
    run = bench.started(meter)
    bench.passes(run, 1060.0)
    meter.silent = {"b"}
    with pytest.warns(GreenTrainWarning, match="no reading"):
        bench.passes(run, 1090.0)
    assert run.last_entry is not None and run.last_entry.t1_unix_s - 1e9 >= 1090.0 - 15.0
    booked_s = run.ledger.totals.duration_s
    totals = run.ledger.totals
    assert totals.by_device["a"] == pytest.approx(200.0 * booked_s)
    assert totals.by_device["b"] == pytest.approx(50.0 * 60.0)
    assert totals.missing_s == {"b": pytest.approx(booked_s - 60.0)}


def test_a_device_that_is_late_by_less_is_waited_for_and_nothing_of_it_is_missing(bench: Bench) -> None:
    meter = Meter(a=200.0, b=50.0)
    run = bench.started(meter)
    bench.passes(run, 1060.0)
    meter.silent = {"b"}
    bench.passes(run, 1064.5)
    meter.silent = set()
    bench.passes(run, 1090.0)
    assert run.ledger.totals.missing_s == {}
    assert run.ledger.totals.energy_j == pytest.approx(250.0 * run.ledger.totals.duration_s)


def test_what_runs_each_second_runs_each_second(bench: Bench) -> None:
    run = bench.started()
    bench.passes(run, 1010.0, 0.25)
    assert bench.seconds == [1001.0 + i for i in range(10)]


def test_free_devices_are_looked_for_every_three_seconds(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    run = bench.started()
    bench.passes(run, 1100.0)  # by now it books every ten seconds
    looks: list[float] = []
    found: list[bool] = [False]

    def look(booked_s: float, closing: bool, pids: object) -> bool:
        assert booked_s == run._books.t_s and not closing
        looks.append(bench.hands.now_s)
        return found[0]

    monkeypatch.setattr(run._devices, "claim_rest", look)
    bench.passes(run, 1130.0)
    assert max(b - a for a, b in itertools.pairwise(looks)) == 3.0 and 10 <= len(looks) <= 14
    lines = len(bench.records(run, "sensors"))
    found[0] = True
    bench.passes(run, 1133.5)
    assert run._sampler.selected[-1] == {"a", "b"} and len(bench.records(run, "sensors")) > lines  # type: ignore[attr-defined]


def test_the_other_ranks_are_looked_at_the_more_rarely_the_more_there_are(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for world_size, pause_s in ((2, 2.0), (1000, 100.0)):
        run = bench.run(place=Topology(world_size=world_size, host="here"))
        looks: list[float] = []
        monkeypatch.setattr(run, "look_at_others", lambda looks=looks: looks.append(bench.hands.now_s))
        run._beside()
        assert not looks, "before its start it has nothing to log"
        monkeypatch.setattr(run._journal, "_beside", lambda: None)  # the journal's thread calls it, too
        run.start()
        for _ in range(1000):
            bench.hands.now_s += 0.5
            run._beside()
        assert {b - a for a, b in itertools.pairwise(looks)} == {pause_s}
        run.close("finished")


def test_a_checkpoint_books_up_to_now_and_says_so_where_it_cannot(bench: Bench) -> None:
    run = bench.started()
    bench.booked(run, 1200.0)
    bench.hands.now_s += 4.25
    run.book_now()
    booked_s = run._books.t_s
    assert booked_s == bench.hands.now_s and run.ledger.totals.energy_j == pytest.approx(250.0 * (booked_s - 1000.0))
    bench.hands.now_s += 0.5
    run._pass()
    assert run._books.t_s == booked_s, "it was asked for once"
    run._books_thread.answers = False  # type: ignore[attr-defined]
    with pytest.warns(GreenTrainWarning, match="a checkpoint has what was booked before"):
        run.book_now(0.01)


def test_many_marks_are_booked_before_they_are_too_many(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(active_run, "MANY_MARKS", 100)
    run = bench.started()
    bench.booked(run, 1200.0)
    booked_s = run._books.t_s
    bench.hands.now_s += 1.0
    run.marks.extend((bench.hands.now_s, "step", "", n, 1, 0) for n in range(1, 52))
    run._pass()
    assert run._books.t_s == bench.hands.now_s > booked_s and run.ledger.totals.steps == 51
    run.marks.extend((bench.hands.now_s, "step", "", n, 1, 0) for n in range(52, 103))
    bench.hands.now_s += 0.5
    run._pass()
    assert run._books.t_s == bench.hands.now_s - 0.5, "not more often than once a second"


def test_marks_that_fit_into_an_interval_keep_their_phases(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(active_run, "MANY_MARKS", 6)
    run = bench.started()
    run.marks.extend((1000.0 + i / 4, kind, "x", i // 2 + 1) for i, kind in enumerate(("begin", "end") * 3))
    run._take_marks()
    assert run._books.timeline.waiting == 6
    run.marks.append((1002.0, "step", "", 1, 5, 0))
    with pytest.warns(GreenTrainWarning, match="more than 6 marks"):
        run._take_marks()
    bench.passes(run, 1003.0)
    assert run.ledger.totals.phase_s["x"] == pytest.approx(0.75) and run.ledger.totals.tokens == 5


def test_steps_that_fell_out_of_a_full_queue_are_counted_and_others_are_not(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(active_run, "MAX_MARKS", 4)
    run = bench.started()

    def take(*numbers: int) -> list[int]:
        run.marks.extend((bench.hands.now_s, "step", "", number, 1, 0) for number in numbers)
        run._take_marks()
        return [event["steps"] for event in bench.records(run, "event") if "steps" in event]

    assert take(1, 2) == [] and take(3) == []
    assert take(7, 8) == [], "no more waited than there is room for: it was begun anew, none fell out"
    with pytest.warns(GreenTrainWarning, match="5 steps, with their tokens"):
        assert take(14, 15, 16, 17) == [5]
    assert take(18, 19, 20, 21) == [5]


def test_what_is_used_now_is_known_before_it_is_booked(bench: Bench) -> None:
    run = bench.started(carried=Totals(energy_j=1000.0, by_device={"a": 1000.0}))
    bench.booked(run, 1100.0)
    bench.passes(run, bench.hands.now_s + 3.0)
    assert run._books.t_s == bench.hands.now_s - 3.0
    assert run.now() == pytest.approx((1000.0 + 250.0 * (bench.hands.now_s - 1000.0), 250.0))


def test_the_power_of_the_first_moments_is_not_that_of_a_whole_second(bench: Bench) -> None:
    run = bench.started()
    bench.hands.now_s = 1000.5
    run._pass()
    assert run.now() == pytest.approx((125.0, 250.0))


def test_a_window_is_known_once_all_devices_were_read_past_it(bench: Bench) -> None:
    meter = Meter(a=200.0, b=50.0)
    run = bench.started(meter)
    bench.passes(run, 1020.0)
    found = run.window(1005.0, 1015.0)
    assert found is not None and found.energy_j == pytest.approx(2500.0) and found.seconds == 10.0
    assert {uid: device.energy_j for uid, device in found.devices.items()} == pytest.approx({"a": 2000.0, "b": 500.0})
    assert run.window(1000.0, 1020.0) is not None
    assert run.window(999.0, 1010.0) is None and run.window(1010.0, 1021.0) is None
    meter.silent = {"b"}
    with pytest.warns(GreenTrainWarning, match="no reading"):
        bench.passes(run, 1060.0)
    found = run.window(1015.0, 1045.0)
    assert found is not None and found.missing_s == pytest.approx(25.0) and found.energy_j is None
    assert found.devices["b"].energy_j == pytest.approx(250.0)


def test_a_window_says_how_far_its_joules_may_be_off(bench: Bench) -> None:
    """Read every half second: of 0.6 s, readings tell 0.5 s for sure, and 1 s at the most."""
    run = bench.started(Meter(a=200.0))
    bench.passes(run, 1020.0)
    found = run.window(1004.9, 1005.5)
    assert found is not None and found.energy_j == pytest.approx(120.0) and found.provenance == "measured"
    assert found.interval_j == pytest.approx((100.0, 200.0))
    (curve,) = run._devices.curves.values()
    curve.sensor = dataclasses.replace(curve.sensor, uncertainty=0.1)
    within = run.window(1005.1, 1005.4)
    assert within is not None and within.interval_j == pytest.approx((0.0, 110.0)), "its maker states 10 %"


def test_sensors_are_read_where_power_changes_but_not_at_each_of_many_changes(bench: Bench) -> None:
    run = bench.started()
    asked: list[str] = []
    run._sampler.ask = lambda: asked.append("asked")  # type: ignore[method-assign]
    for t_s in (1001.0, 1001.3, 1001.9, 1002.1, 1003.5):
        run.changes(t_s)
    assert len(asked) == 3, "a policy that shifts at every step makes no more of them than one a second"
    run.read_now()
    assert len(asked) == 4, "who waits for it is not told to wait"


def test_a_window_waits_once_and_not_for_each_thing_that_hangs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    waited_s: list[float] = []
    run = bench.started()
    bench.passes(run, 1003.0)
    monkeypatch.setattr(run._books_thread, "ask", waited_s.append)  # the books hang for as long as they are waited for
    with ThreadPoolExecutor(1) as training:
        found = training.submit(run.window, 1000.0, 1000.1, wait_s=0.5)
        assert found.result() is None and waited_s == [0.5]
        monkeypatch.undo()
        run._pass()
        assert training.submit(run.window, 1000.0, 1000.1).result() is not None


def test_a_window_is_cut_by_all_marks_that_came_before_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or its phases below a counter's tick would be those of the second before."""
    run, waiting = bench.started(), list[int]()
    bench.passes(run, 1003.0)
    run.marks.append((1003.0, "begin", "forward", 1))
    monkeypatch.setattr(run, "_window", lambda *window: waiting.append(len(run.marks)))
    with ThreadPoolExecutor(1) as training:
        training.submit(run.window, 1000.0, 1002.0).result()
    assert waiting == [0]


def test_an_interrupt_of_who_waits_for_a_window_leaves_no_lock_behind(bench: Bench) -> None:
    """A Ctrl-C may come between any two lines: right after a lock was taken, nobody would give it back."""

    class Interrupted:
        def __init__(self) -> None:
            self.lock = threading.Lock()

        def acquire(self, timeout: float = -1.0) -> bool:
            self.lock.acquire(timeout=timeout)
            raise KeyboardInterrupt

        def __enter__(self) -> None:
            self.lock.acquire()

        def __exit__(self, *exc: object) -> None:
            self.lock.release()

    run = bench.started()
    bench.passes(run, 1003.0)
    lock = run._lock = Interrupted()  # type: ignore[assignment]
    with ThreadPoolExecutor(1) as training, contextlib.suppress(KeyboardInterrupt):
        assert training.submit(run.window, 1000.0, 1000.1).result() is not None
    assert not lock.lock.locked(), "the books would wait for it for good"
    run._lock = threading.Lock()


def test_the_end_is_told_with_its_time_and_the_totals(bench: Bench) -> None:
    meter = Meter(a=200.0)
    run = bench.started(meter)
    run.marks.append((1003.0, "step", "", 1, 7, 0))
    bench.passes(run, 1004.0)
    bench.hands.now_s = 1004.25
    run.close("left")
    bench.hands.now_s = 1009.0
    run.close("exit")
    (closed,) = bench.records(run, "close")
    assert (closed["t"], closed["reason"], run.closed) == (1e9 + 1004.25, "left", True)
    assert closed["totals"]["energy_j"] == pytest.approx(200.0 * 4.25) and closed["totals"]["tokens"] == 7
    assert run._sampler.stopped_s == 1004.25 and meter.closed == 1  # type: ignore[attr-defined]
    run._pass()
    assert run.ledger.totals.duration_s == 4.25, "after the end nothing is booked"


def test_the_meter_of_a_driver_that_hangs_is_left_alone(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    meter = Meter(a=200.0, b=1.0)
    run = bench.started(meter)
    bench.passes(run, 1002.0)
    meter.silent = {"b"}
    run.close("finished")
    assert meter.closed == 0 and not caplog.records
    other = bench.started(Meter(c=1.0))
    other._books_thread.answers = False  # type: ignore[attr-defined]
    with caplog.at_level(logging.WARNING):
        other.close("finished")
    assert "the last interval of" in caplog.text


def test_before_it_starts_a_run_books_nothing(bench: Bench) -> None:
    run = bench.run()
    bench.hands.now_s += 100.0
    run._pass()
    assert run.last_entry is None and bench.seconds == []
    run.start()
    bench.passes(run, 1102.0)
    assert bench.records(run, "entry")[0]["t0"] == 1e9 + 1100.0


def test_a_start_that_was_interrupted_books_nothing_and_says_nothing(bench: Bench) -> None:
    run = bench.run()
    bench.hands.now_s += 100.0
    run.close("exception")
    path = run.folder / "rank-00000.jsonl"
    assert not path.exists() or path.read_text(encoding="utf-8") == ""


def test_facts_that_are_learned_late_are_in_run_json_and_unknown_ones_are_not(bench: Bench) -> None:
    run = bench.started(parameters=7)
    path = run.folder / "run.json"

    def told() -> dict[str, Any]:
        run.save(WAIT_S)
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found

    assert told()["parameters"] == 7 and told()["carbon"]["zone"] == "test"
    run.know(parameters=8, layers=None)
    assert told()["parameters"] == 8 and "layers" not in told()
    before = path.stat().st_ino
    run.know(parameters=8)
    run.save(WAIT_S)
    assert path.stat().st_ino == before, "what is known is not written again"
    run.know(parameters=8, layers=12)
    assert told()["layers"] == 12, "one of several facts is new"


def test_what_the_probe_found_of_a_sensor_is_written_down_at_once(bench: Bench) -> None:
    run = bench.started()
    asked = run._books_thread.asked  # type: ignore[attr-defined]
    run._sampler.settings["on_probe"]()  # type: ignore[attr-defined]
    assert run._books_thread.asked == asked + 1  # type: ignore[attr-defined]
    sensors = len(bench.records(run, "sensors"))
    run._pass()
    run._pass()
    assert len(bench.records(run, "sensors")) == sensors + 1


def test_a_pass_without_a_new_reading_books_nothing(bench: Bench) -> None:
    run = bench.started(meter := Meter(a=200.0))
    bench.booked(run, 1003.0)
    run.book_now()
    entries = len(bench.records(run, "entry"))
    meter.silent.add("a")
    run.book_now()
    run.book_now()
    assert len(bench.records(run, "entry")) == entries


def test_a_warning_is_shown_once_and_an_event_that_is_no_json_is_logged(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    run = bench.run()
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        for name in ("gap", "warning", "resume"):
            run.event(name, f"{name} of a")
            run.event(name, f"{name} of a")
    assert [str(one.message) for one in shown] == [
        "GreenTrain: gap of a; training goes on",
        "GreenTrain: warning of a; training goes on",
    ]
    with caplog.at_level(logging.WARNING):
        run.event("plan", "x", figure=float("nan"))
    assert "'plan' is not in the journal" in caplog.text
    assert [event["name"] for event in bench.records(run, "event")] == ["gap"] * 2 + ["warning"] * 2 + ["resume"] * 2


def test_a_run_says_what_it_costs_and_what_its_devices_were_made_of(bench: Bench) -> None:
    run = bench.started(Meter(a=200.0, b=50.0))
    assert run.busy_s == 0.75 and [sensor.device.uid for sensor in run.sensors] == ["a", "b"]
    each = (164_000 + 712_000) / (4 * 8766 * 3600)  # card and server share over four years
    assert run.embodied_g_per_s == pytest.approx(2 * each)
    assert run.unix_s() == 1e9 + 1000.0
    (opened,) = bench.records(run, "open")
    assert (opened["pid"], opened["t"], opened["host"], opened["carried"]) == (os.getpid(), 1e9 + 1000.0, "here", None)


def test_a_second_process_goes_on_where_the_first_one_was_killed(bench: Bench) -> None:
    first = bench.started()
    first.marks.append((1000.5, "step", "", 1, 9, 0))
    bench.passes(first, 1005.0)
    first.close("sigterm")
    bench.hands.now_s = 1010.0
    second = bench.started(carried=Totals(energy_j=5.0, tokens=1))
    assert second.ledger.totals.tokens == 9 and second.ledger.totals.energy_j == pytest.approx(250.0 * 5.0)
    bench.passes(second, 1012.0)
    assert [opened["carried"] for opened in bench.records(second, "open")] == [None, None], "its lines are all there"
    assert {event["name"] for event in bench.records(second, "event")} == {"resume", "shared"}
    assert second.ledger.totals.energy_j == pytest.approx(250.0 * (5.0 + second._books.t_s - 1010.0))


def test_totals_of_a_run_whose_folder_is_gone_come_from_the_checkpoint(bench: Bench) -> None:
    run = bench.started(carried=Totals(energy_j=500.0, tokens=4, by_device={"a": 500.0}))
    bench.passes(run, 1003.0)
    (opened,) = bench.records(run, "open")
    assert opened["carried"]["energy_j"] == 500.0
    assert {event["name"] for event in bench.records(run, "event")} == {"shared"}, "nothing to warn of"
    assert run.ledger.totals.tokens == 4
    assert read_run(run.folder).totals.energy_j == pytest.approx(run.ledger.totals.energy_j)


def test_a_journal_that_cannot_be_read_is_gone_on_with_from_the_checkpoint(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    (bench.folder / "r").mkdir()
    (bench.folder / "r" / "rank-00000.jsonl").write_text('{"kind":"open","format":1}\n')
    with caplog.at_level(logging.WARNING):
        run = bench.run(carried=Totals(energy_j=5.0, tokens=3))
    assert "cannot read the earlier part of run r" in caplog.text and run.ledger.totals.tokens == 3


def test_a_lock_that_another_machine_left_keeps_nobody_out_and_is_told(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = bench.run(place=Topology(host="there"))
    first.start()
    first.close("sigterm")
    monkeypatch.setattr(journal, "_locked", lambda fd: False)
    with pytest.warns(GreenTrainWarning, match=r"is locked by there: if it goes on there, its steps count twice"):
        second = bench.run(place=Topology(host="here"))
    assert second.run_id == "r" and second.folder == first.folder


def test_rank_0_looks_at_the_journals_of_others_and_only_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    def sums(folder: Path, rank: int, world_size: int) -> OtherRanksTotals:
        asked.append((rank, world_size))
        return OtherRanksTotals(ranks=1, energy_j=7.0, power_w=70.0)

    monkeypatch.setattr(active_run, "sums_of_others", sums)
    bench.run(place=Topology(rank=1, world_size=2, host="here")).look_at_others()
    alone = bench.run(config={"dir": str(bench.folder / "x")})
    alone.look_at_others()
    assert asked == [], "whoever is alone has nobody to read"
    (alone.folder / "rank-00001.jsonl").touch()
    alone.look_at_others()  # it began with more ranks than it has now
    assert asked == [(0, 1)]
    alone.start()
    bench.passes(alone, bench.hands.now_s + 2.0)
    found = alone.job_sums()
    assert found.ranks == 2 and found.power_w == pytest.approx(320.0)
    assert found.energy_j == pytest.approx(alone.ledger.totals.energy_j + 7.0)


def _metrics(totals: Totals, sums: OtherRanksTotals, missing_s: tuple[float, ...] = (0.0,), ranks: int = 1) -> Any:
    devices = {str(i): types.SimpleNamespace(missing_s=seconds) for i, seconds in enumerate(missing_s)}
    entry: Any = types.SimpleNamespace(devices=devices)
    run: Any = types.SimpleNamespace(
        job_sums=lambda: sums,
        last_entry=entry,
        ledger=types.SimpleNamespace(totals=totals),
        topology=Topology(world_size=ranks),
    )
    return metrics_of(run)


def test_a_logger_gets_what_is_known_and_no_zero_for_what_is_not() -> None:
    known = Totals(by_device={"a": 0.0})
    sums = OtherRanksTotals(ranks=2, energy_j=500.0, emissions_g=2.0, power_w=90.0, tokens=1000)
    assert _metrics(known, sums, ranks=2) == {
        "green/energy_j": 500.0, "green/emissions_g": 2.0, "green/power_w": 90.0, "green/tokens_per_j": 2.0,
        "green/g_per_ktoken": 2.0, "green/ranks": 2.0,
    }  # fmt: skip
    by_samples = OtherRanksTotals(ranks=1, energy_j=500.0, unpriced_j=500.0, samples=50)
    assert _metrics(known, by_samples, (1.0, 0.0)) == {
        "green/energy_j": 500.0, "green/power_w": 0.0, "green/samples_per_j": 0.1
    }  # fmt: skip
    unpriced = OtherRanksTotals(ranks=1, energy_j=500.0, unpriced_j=500.0, tokens=50)
    assert _metrics(known, unpriced, (1.0,)) == {"green/energy_j": 500.0, "green/tokens_per_j": 0.1}
    assert _metrics(known, OtherRanksTotals(ranks=1, tokens=5, samples=5), (1.0,)) == {"green/energy_j": 0.0}
    assert _metrics(Totals(), OtherRanksTotals(ranks=1), ()) == {}
    assert _metrics(Totals(), sums, ()).keys() >= {"green/energy_j"}, "rank 0 has no device, but sees who has"


def test_before_the_first_entry_there_is_no_power(bench: Bench) -> None:
    run = bench.run()
    assert run.job_sums().power_w == 0.0 and "green/power_w" not in metrics_of(run)
    entry: LedgerEntry | None = run.last_entry
    assert entry is None


def test_a_fault_that_comes_again_and_again_is_one_warning_a_device_and_few_lines(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with _session(tmp_path) as green:
            run = green.active()
            assert run is not None
            for i in range(3 * active_run.MOST_ALIKE):
                for device in ("GPU-1", "GPU-2"):
                    run.event("gap", f"Fake GPU ({device}): no reading (reading was nan of {i + 0.5} s); it is missing")
                    run.event("gap", f"Fake GPU ({device}): the counter jumped by {1e9 + i:.3g} J; it is missing")
            for i in range(2 * active_run.MOST_ALIKE):
                run.event("checkpoint", f"checkpoint after {i} steps")
    assert len([one for one in said if issubclass(one.category, GreenTrainWarning)]) == 4
    names = [event["name"] for event in _rank(green).events]
    assert (names.count("gap"), names.count("checkpoint")) == (4 * active_run.MOST_ALIKE, 2 * active_run.MOST_ALIKE)


class Accelerated:
    """A run on a device that works behind the host, and draws what its kernels do."""

    def __init__(self, bench: Bench, monkeypatch: pytest.MonkeyPatch, **power: Any) -> None:
        gpu = self.gpu = FakeGpu(bench.hands)
        self.bench, self.torch = bench, fake_torch([gpu], monkeypatch)

        class Drawn(Readings):
            def settle(self) -> None:
                t_s = bench.hands.now_s
                edges_s = [edge_s for edge_s in gpu.edges_s() if self._curves["a"].frontier_s < edge_s < t_s]
                for at_s in [*edges_s, t_s]:
                    sample = PowerSample(device_uid="a", t_s=at_s, energy_j=float(gpu.energy_j(at_s)))
                    self._curves["a"].append(sample)

            def stop(self, t1_s: float | None = None) -> bool:
                self.settle()
                return super().stop(t1_s)

        def pass_time(seconds: float) -> None:
            bench.hands.now_s += seconds

        monkeypatch.setattr(active_run, "Sampler", Drawn)
        monkeypatch.setattr(device_clock, "time", types.SimpleNamespace(sleep=pass_time))
        self.meter = Meter(a=0.0)
        self.meter.sensors = [dataclasses.replace(sensor, shared=True) for sensor in self.meter.sensors]
        self.power = power

    def started(self) -> ActiveRun:
        run = self.bench.started(self.meter, sections={"power": self.power})
        self.mark = run.queue_stamped if run.has_device_clock else run.marks.append
        run._pass()
        return run

    def step(self, number: int, seconds: float = 0.1) -> None:
        hands = self.bench.hands
        self.mark((hands.now_s, "begin", "forward", number))
        hands.now_s += 0.001
        self.gpu.launch(seconds, 600.0)
        self.mark((hands.now_s, "end", "forward", number))
        self.mark((hands.now_s, "step", "", number, 1, 0))


def test_work_that_is_queued_at_the_end_is_waited_for_and_booked(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = Accelerated(bench, monkeypatch)
    run = fast.started()
    began_j = float(fast.gpu.energy_j(run.t0_s))
    for number in range(1, 21):
        fast.step(number)  # 2 s of work, in 20 ms
    run.close("finished")
    totals = run.ledger.totals
    assert totals.energy_j == pytest.approx(float(fast.gpu.energy_j(bench.hands.now_s)) - began_j, rel=1e-3)
    assert totals.by_phase["forward"] == pytest.approx(1200.0, rel=1e-3)
    assert totals.phase_s["forward"] == pytest.approx(0.02, abs=1e-3) and totals.steps == 20
    groups = [group for entry in bench.records(run, "entry") for group in entry["step_groups"]]
    assert sum(group[0] for group in groups) == 20 and sum(group[2] for group in groups) == pytest.approx(
        1200, rel=0.01
    )
    (told,) = [event for event in bench.records(run, "event") if event["name"] == journal.CLOCKS]
    assert told["phases"] == {"forward": "device"} and told["device"] == "a"


def test_a_device_that_does_not_end_holds_up_the_end_for_seconds_only(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = Accelerated(bench, monkeypatch)
    run = fast.started()
    fast.step(1, 1000.0)
    before_s = bench.hands.now_s
    run.close("finished")
    assert bench.hands.now_s - before_s == pytest.approx(active_run.QUEUED_S, abs=0.1)
    totals = run.ledger.totals
    assert totals.steps == 1 and totals.energy_j == pytest.approx(600.0 * active_run.QUEUED_S, rel=0.02)


@pytest.mark.parametrize(("queued_s", "waited_s"), [(0.5, 0.5), (5.0, active_run.START_S)])
def test_what_was_queued_before_the_start_is_waited_for_a_second(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, queued_s: float, waited_s: float
) -> None:
    fast = Accelerated(bench, monkeypatch)
    fast.gpu.launch(queued_s, 600.0)
    began_s = bench.hands.now_s
    assert fast.started().t0_s - began_s == pytest.approx(waited_s, abs=0.01)


def test_with_the_device_s_clock_off_nothing_is_recorded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = Accelerated(bench, monkeypatch, device_clock="off")
    run = fast.started()
    assert not run.has_device_clock
    fast.step(1)
    bench.passes(run, bench.hands.now_s + 5.0)
    run.close("finished")
    assert fast.gpu.made == 0 and run.ledger.totals.by_phase["forward"] < 0.05 * 60.0
    assert not [event for event in bench.records(run, "event") if event["name"] == journal.CLOCKS]


def test_of_too_many_marks_devices_count_the_steps_too(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(active_run, "MANY_MARKS", 20)
    fast = Accelerated(bench, monkeypatch)
    run = fast.started()
    with pytest.warns(GreenTrainWarning, match="more than 20 marks"):
        for number in range(1, 21):
            fast.step(number, 0.01)
        bench.passes(run, bench.hands.now_s + 2.0)
    for number in range(21, 25):
        fast.step(number, 0.01)
    run.close("finished")
    groups = [group for entry in bench.records(run, "entry") for group in entry["step_groups"]]
    assert run.ledger.totals.steps == sum(group[0] for group in groups) == 24


def test_what_drivers_tell_beside_power_is_in_the_journal_and_is_read_back(bench: Bench) -> None:
    run = bench.started()
    for i in range(60):
        run._sampler.states.append(DeviceState("a", 1000.5 + i, sm=0.5, memory=0.25, slowed=()))
        bench.passes(run, 1001.0 + i)
    run.close("finished")
    told = [record["devices"]["a"].get("states", {}) for record in bench.records(run, "entry")]
    (phase,) = {name for states in told for name in states}
    assert sum(states[phase]["util_s"] for states in told if states) == pytest.approx(59.5, abs=0.01)
    (rank,) = read_run(run.folder).ranks
    states = rank.sums.devices["a"].states[phase]
    assert states["sm_s"] / states["util_s"] == pytest.approx(0.5, abs=1e-3) and "thermal_s" not in states
    assert states["clocks_s"] == pytest.approx(states["util_s"]) and rank.sums.devices["b"].states == {}


def test_of_nested_meters_the_outermost_tells_what_is_unmetered(bench: Bench) -> None:
    meter = Meter(a=200.0, b=50.0)
    for uid, watts in (("redfish:n", 400.0), ("a:module", 230.0), ("b:module", 80.0)):
        whole = dataclasses.replace(meter.sensors[1], device=Device(uid=uid, kind=DeviceKind.NODE, name="n"))
        meter.watts[uid] = watts
        meter.sensors.append(dataclasses.replace(whole, reference=True, shared=True))
    run = bench.started(meter)
    bench.passes(run, 1060.0)
    run.close("finished")
    (host,) = summarize(read_run(run.folder))["hosts"]
    assert host["node_energy_j"] == pytest.approx(400.0 * 60.0, rel=0.03)
    assert host["unmetered_j"] == pytest.approx(150.0 * 60.0, rel=0.05)


def test_modules_of_a_node_are_summed_where_no_controller_tells(bench: Bench) -> None:
    meter = Meter(a=200.0, b=50.0)
    for uid, watts in (("a:module", 230.0), ("b:module", 80.0)):
        whole = dataclasses.replace(meter.sensors[1], device=Device(uid=uid, kind=DeviceKind.NODE, name="n"))
        meter.watts[uid] = watts
        meter.sensors.append(dataclasses.replace(whole, reference=True, shared=True))
    run = bench.started(meter)
    bench.passes(run, 1060.0)
    run.close("finished")
    (host,) = summarize(read_run(run.folder))["hosts"]
    assert host["node_energy_j"] == pytest.approx(310.0 * 60.0, rel=0.03)
    assert host["unmetered_j"] == pytest.approx(60.0 * 60.0, rel=0.1)


def test_a_node_s_meter_is_never_added_to_what_it_contains(bench: Bench) -> None:
    meter = Meter(a=200.0, b=50.0)
    whole = dataclasses.replace(meter.sensors[1], device=Device(uid="redfish:n", kind=DeviceKind.NODE, name="n"))
    meter.watts["redfish:n"] = 400.0
    meter.sensors.append(dataclasses.replace(whole, reference=True, shared=True))
    run = bench.started(meter)
    bench.passes(run, 1060.0)
    meter.silent = {"redfish:n"}
    with pytest.warns(GreenTrainWarning, match="no reading"):
        bench.passes(run, 1120.0)
        run.close("finished")
    assert run.ledger.totals.energy_j == pytest.approx(250.0 * 120.0)
    assert {uid for record in bench.records(run, "entry") for uid in record["devices"]} == {"a", "b"}
    for most in (None, 2):
        (host,) = summarize(read_run(run.folder, most=most))["hosts"]
        assert host["node_energy_j"] == pytest.approx(400.0 * 60.0, rel=0.03)
        assert host["unmetered_j"] == pytest.approx(150.0 * 60.0, rel=0.05)
        assert host["energy_j"] == pytest.approx(250.0 * 120.0)
    text = summarize(read_run(run.folder))["completeness"]["text"]
    assert "2.50 Wh is unmetered by components" in text.replace("\N{THIN SPACE}", " ") and "mainboard" in text
