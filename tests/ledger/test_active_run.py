"""One run while it is measured: nothing of it makes the training wait, die, or lose a step without a word."""

import itertools
import os
import shutil
import signal
import threading
import time
import warnings
from pathlib import Path

import pytest

from greentrain import GreenSession
from greentrain.errors import GreenTrainWarning
from greentrain.ledger import active_run, journal
from greentrain.ledger.reader import RankRecord, read_run
from greentrain.power.sampler import Sampler
from tests.helpers.child import in_a_child
from tests.helpers.flat_meter import FlatMeter

WAIT_S = 10.0
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


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_disk_that_hangs_holds_up_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    monkeypatch.setattr(journal, "os", disk := _HungOs(call))
    for name in ("book_now", "save"):
        monkeypatch.setattr(getattr(active_run.ActiveRun, name), "__defaults__", (0.01,))
    monkeypatch.setattr(active_run, "SAVE_S", 0.01)
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
