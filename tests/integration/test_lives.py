"""Sessions as they are used by hand: again, side by side, from threads, in a notebook."""

import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest

from greentrain import GreenSession
from greentrain.errors import GreenTrainWarning, SessionError
from greentrain.ledger.reader import read_run
from greentrain.testing.fake_nvml import FakeGpu, Wave

if TYPE_CHECKING:
    from tests.integration.conftest import Lab

POWER_W = 250.0
TICK_J = POWER_W * 0.1
"""What a counter hides between two ticks; on a crowded machine a run's first tick may be off by one."""
GPU = FakeGpu(power=(Wave(low_w=POWER_W),))


def _config(lab: "Lab") -> dict[str, object]:
    return lab.config(run={"live": False, "book_s": 0.5})


def test_a_session_used_again_and_again_gives_runs_of_their_own(lab: "Lab") -> None:
    driver, before = lab.gpus(GPU), signal.getsignal(signal.SIGTERM)
    with driver.installed():
        green = GreenSession(_config(lab))
        for _ in range(3):
            with green:
                time.sleep(0.5)
                green.step(tokens=10)
            assert green.totals().tokens == 10
        assert driver.init_depth == 0
    assert signal.getsignal(signal.SIGTERM) is before
    folders = list(lab.runs.iterdir())
    assert len(folders) == 3
    for folder in folders:
        rank = read_run(folder).ranks[0]
        assert rank.totals.energy_j == pytest.approx(lab.truth_j(rank, 0), rel=0.02, abs=1.1 * TICK_J)


def test_two_sessions_at_once_share_the_gpus_without_counting_one_twice(lab: "Lab") -> None:
    driver = lab.gpus(GPU)
    with driver.installed():
        outer, inner = GreenSession(_config(lab)), GreenSession(_config(lab))
        with outer:
            time.sleep(0.3)
            with pytest.warns(GreenTrainWarning, match="booked by another run"), inner:
                time.sleep(0.8)
            time.sleep(0.3)
    assert driver.uuid(0) not in inner.totals().by_device
    assert outer.folder is not None
    booked = read_run(outer.folder).ranks[0]
    assert outer.totals().energy_j == pytest.approx(booked.totals.energy_j)
    assert outer.totals().energy_j == pytest.approx(lab.truth_j(booked, 0), rel=0.02, abs=1.1 * TICK_J)
    assert sum(entry.t1_unix_s - entry.t0_unix_s for entry in booked.entries) >= 1.4, "while the inner one ran, too"


def test_the_inner_session_may_outlive_the_outer(lab: "Lab") -> None:
    driver, before = lab.gpus(GPU), signal.getsignal(signal.SIGTERM)
    with driver.installed():
        began_s = time.monotonic()
        outer, inner = GreenSession(_config(lab)).start(), GreenSession(_config(lab))
        with pytest.warns(GreenTrainWarning, match="booked by another run"):
            inner.start()
            time.sleep(1.2)
            outer.close()
            given_s = time.monotonic()
            while inner.totals().energy_j <= 0.3 * POWER_W:
                assert time.monotonic() < given_s + 60.0, "the GPU of the outer one is not taken over"
                time.sleep(0.02)
            inner.close()
    assert signal.getsignal(signal.SIGTERM) is before
    both_j = outer.totals().energy_j + inner.totals().energy_j
    used_j = driver.true_energy_j(0, began_s, time.monotonic())
    assert 0.3 * POWER_W < inner.totals().energy_j < both_j <= 1.02 * used_j


def test_a_notebook_cell_that_is_run_again_without_close_says_so(lab: "Lab") -> None:
    driver = lab.gpus(GPU)
    with driver.installed():
        green = GreenSession(_config(lab)).start()
        with pytest.raises(SessionError, match="close"):
            green.start()
        green.close()
        green.close()
        with green:
            pass


def test_close_may_come_from_another_thread(lab: "Lab") -> None:
    driver, before = lab.gpus(GPU), signal.getsignal(signal.SIGTERM)
    with driver.installed():
        green = GreenSession(_config(lab)).start()
        time.sleep(0.6)
        thread = threading.Thread(target=green.close)
        thread.start()
        thread.join()
        assert not green.running
        assert green.folder is not None
        truth_j = lab.truth_j(read_run(green.folder).ranks[0], 0)
        assert green.totals().energy_j == pytest.approx(truth_j, rel=0.02, abs=1.1 * TICK_J) and truth_j > 0.5 * POWER_W
        with green:  # and the handler that the thread could not take off is skipped
            pass
    signal.signal(signal.SIGTERM, before)


def test_marks_from_many_threads_are_all_counted(lab: "Lab") -> None:
    driver = lab.gpus(GPU)

    def work(green: GreenSession) -> None:
        for _ in range(200):
            with green.phase("forward"):
                pass
            green.step(tokens=1)

    with driver.installed(), GreenSession(_config(lab)) as green:
        threads = [threading.Thread(target=work, args=(green,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    totals = green.totals()
    assert (totals.steps, totals.tokens) == (800, 800)
    assert sum(totals.by_phase.values()) == pytest.approx(totals.energy_j)


def test_a_session_started_in_a_thread_touches_no_signal(lab: "Lab") -> None:
    driver, before = lab.gpus(GPU), signal.getsignal(signal.SIGTERM)
    with driver.installed():
        green = GreenSession(_config(lab))
        thread = threading.Thread(target=green.start)
        thread.start()
        thread.join()
        assert signal.getsignal(signal.SIGTERM) is before
        time.sleep(0.3)
        green.close()
    assert green.totals().energy_j > 0
