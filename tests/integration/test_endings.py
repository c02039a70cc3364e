"""However a training process ends, what it used is booked, and it ends as it would have without us."""

import math
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from greentrain.ledger.journal import rank_path, read_journal
from greentrain.ledger.reader import RankRecord, read_run
from greentrain.testing.fake_nvml import FakeGpu, Wave

if TYPE_CHECKING:
    from tests.integration.conftest import Lab

pytestmark = pytest.mark.slow
POWER_W = 250.0
TICK_J = POWER_W * 0.1
"""What a counter hides between two ticks; on a crowded machine a run's first tick may be off by one."""


def _one_gpu(lab: "Lab") -> None:
    lab.gpus(FakeGpu(power=(Wave(low_w=POWER_W),)))


def _whole(lab: "Lab", reason: str) -> RankRecord:
    """Check that the only rank's books are right and closed once; return them."""
    rank = lab.record().ranks[0]
    assert rank.close is not None and rank.close["reason"] == reason
    records = list(read_journal(rank_path(next(lab.runs.iterdir()), 0)))
    assert [record["kind"] for record in records].count("close") == 1
    assert rank.totals.energy_j == pytest.approx(lab.truth_j(rank, 0), rel=0.01, abs=1.1 * TICK_J)
    assert rank.totals.energy_j == pytest.approx(rank.close["totals"]["energy_j"])
    return rank


def _ends_at(rank: RankRecord) -> float:
    return rank.entries[-1].t1_unix_s


def test_sigterm_books_everything_and_still_kills(lab: "Lab") -> None:
    _one_gpu(lab)
    script = lab.start("ends", how="wait")
    script.wait_for("t_s")
    sent_s = time.time()
    script.process.terminate()
    assert script.end() == -signal.SIGTERM
    rank = _whole(lab, "sigterm")
    assert sent_s - 0.3 < _ends_at(rank) < time.time() + 0.3, "from the signal to the end of the process"


def test_a_program_that_catches_sigterm_is_measured_to_its_end(lab: "Lab") -> None:
    _one_gpu(lab)
    script = lab.start("ends", how="handler before")
    script.wait_for("running")
    time.sleep(0.3)
    script.process.terminate()
    assert script.wait_for("handler") == {"handler": "user", "running": True}
    journal = list(read_journal(rank_path(next(lab.runs.iterdir()), 0)))
    assert [record["name"] for record in journal if record["kind"] == "event"] == ["sigterm"]
    ended_s = script.wait_for("t_s")["t_s"]
    assert script.end() == 0
    assert _ends_at(_whole(lab, "exit")) > ended_s - 0.2


def test_a_handler_that_the_user_installs_later_is_the_one_that_runs(lab: "Lab") -> None:
    _one_gpu(lab)
    script = lab.start("ends", how="handler after")
    script.wait_for("running")
    time.sleep(0.2)
    script.process.terminate()
    assert script.wait_for("handler") == {"handler": "user", "running": True}
    assert script.end() == 0
    _whole(lab, "exit")


@pytest.mark.parametrize(
    ("how", "code", "reason"), [("sys.exit", 3, "exit"), ("exception", 1, "exception"), ("return", 0, "exit")]
)
def test_the_interpreters_end_closes_an_open_session(lab: "Lab", how: str, code: int, reason: str) -> None:
    _one_gpu(lab)
    script = lab.start("ends", how=how)
    assert script.end() == code
    assert ("RuntimeError: training failed" in script.errors()) == (how == "exception")
    _whole(lab, reason)


def test_os_exit_loses_no_more_than_an_interval(lab: "Lab") -> None:
    _one_gpu(lab)
    script = lab.start("ends", how="os._exit")
    ended_s = script.wait_for("t_s")["t_s"]
    assert script.end() == 4
    rank = lab.record().ranks[0] if _has_entries(lab) else None
    assert rank is None or (rank.close is None and ended_s - _ends_at(rank) < 30.0)


def _has_entries(lab: "Lab") -> bool:
    return bool(read_run(next(lab.runs.iterdir())).ranks[0].entries)


def test_ctrl_c_is_an_exception(lab: "Lab") -> None:
    _one_gpu(lab)
    script = lab.start("interrupted")
    script.wait_for("running")
    script.process.send_signal(signal.SIGINT)
    assert script.end() in (-signal.SIGINT, 130)
    assert "KeyboardInterrupt" in script.errors()
    _whole(lab, "exception")


def test_a_fork_that_leaves_the_with_block_closes_nothing(lab: "Lab") -> None:
    _one_gpu(lab)
    script = lab.start("forked")
    assert script.end() == 0, script.errors()
    rank = _whole(lab, "finished")
    totals = script.said[-1]["totals"]
    assert totals["steps"] == script.said[-1]["steps"]  # not those of the child
    others = ("gap", "recovered", "warning", "shared")  # of the sensor, on a crowded machine
    assert [event["name"] for event in rank.events if event["name"] not in others] == ["checkpoint"]
    assert totals["energy_j"] == pytest.approx(rank.totals.energy_j)


@pytest.mark.parametrize(("method", "epochs"), [("fork", 2), pytest.param("spawn", 1, marks=pytest.mark.long)])
def test_data_loader_workers_neither_close_nor_repeat_the_session(lab: "Lab", method: str, epochs: int) -> None:
    _one_gpu(lab)
    script = lab.start("loaders", method=method, epochs=epochs)
    assert script.end() == 0, script.errors()
    rank = _whole(lab, "finished")
    assert (rank.totals.steps, rank.totals.samples) == (10 * epochs, 40 * epochs)
    assert len(rank.opens) == 1


@pytest.mark.alone
def test_a_killed_run_resumed_from_its_checkpoint_equals_an_uninterrupted_one(lab: "Lab") -> None:
    _one_gpu(lab)
    config = lab.config(run={"book_s": 0.5})
    script = lab.start("checkpointed", config=config, before_s=1.5, after_s=60.0)
    state: dict[str, Any] = script.wait_for("state")["state"]
    time.sleep(1.0)
    killed_s = time.time()
    os.kill(script.process.pid, signal.SIGKILL)
    script.end()
    path = rank_path(next(lab.runs.iterdir()), 0)
    first = lab.record().ranks[0]
    lost_s = killed_s - _ends_at(first)
    assert lost_s < 2.0
    with path.open("ab") as file:
        file.write(b'{"kind":"entry","t0":17')  # torn by the kill
    again = lab.start("plain", config=config, state=state, seconds=1.0)
    assert again.end() == 0, again.errors()
    rank = lab.record().ranks[0]
    assert rank.close is not None and rank.close["reason"] == "finished"
    assert len(rank.opens) == 2 and "resume" in [event["name"] for event in rank.events]
    assert rank.totals.energy_j == pytest.approx(lab.truth_j(rank, 0), rel=0.01, abs=TICK_J), "half a tick a life"
    assert again.said[-1]["totals"]["energy_j"] == pytest.approx(rank.totals.energy_j)
    assert rank.totals.steps == sum(e.steps for e in first.entries) + again.said[-1]["steps"]
    assert rank.totals.tokens == 10 * rank.totals.steps
    alive_s = (killed_s - first.entries[0].t0_unix_s) + (_ends_at(rank) - rank.opens[1]["t"])
    truth_j = POWER_W * alive_s
    assert truth_j - POWER_W * (lost_s + 0.2) <= rank.totals.energy_j <= 1.01 * truth_j


def test_sigterm_while_closing_loses_nothing(lab: "Lab") -> None:
    _one_gpu(lab)
    script = lab.start("plain", seconds=0.8)
    script.wait_for("running")
    closing_s = _started_s(lab) + 0.8 + 0.03
    while script.process.poll() is None and time.time() < closing_s:
        time.sleep(0.002)
    script.process.terminate()  # which does nothing where the process has ended
    code = script.end()
    assert code in (0, -signal.SIGTERM)
    rank = lab.record().ranks[0]
    assert rank.close is not None
    assert rank.totals.energy_j == pytest.approx(lab.truth_j(rank, 0), rel=0.01, abs=1.1 * TICK_J)
    assert math.isclose(sum(e.energy_j for e in rank.entries), rank.totals.energy_j)


def _started_s(lab: "Lab") -> float:
    folder = next(lab.runs.iterdir())
    return float(read_run(folder).ranks[0].opens[0]["t"])
