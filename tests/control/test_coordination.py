"""Rank 0's word reaches every rank at the step on which all have agreed."""

import threading
from typing import Any

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from greentrain.control import coordination
from greentrain.control.coordination import RankZeroChannel, SyncSchedule
from greentrain.types import Topology


def place(rank: int, world_size: int = 3) -> Topology:
    return Topology(rank=rank, world_size=world_size)


def test_all_ranks_hear_the_same_words_in_the_same_order() -> None:
    store = HashStore()
    messages = [{"row": i, "reason": f"the grid is at {i}"} for i in range(5)]
    received: dict[int, list[Any]] = {}

    def run(rank: int) -> None:
        channel = RankZeroChannel("a-run", place(rank), store)
        received[rank] = [channel.broadcast(message if rank == 0 else None) for message in messages]

    threads = [threading.Thread(target=run, args=(rank,)) for rank in (2, 1, 0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert received == {rank: messages for rank in range(3)}


def test_a_waiting_rank_sees_that_a_word_is_there() -> None:
    store = HashStore()
    first, second = RankZeroChannel("a-run", place(0), store), RankZeroChannel("a-run", place(1), store)
    assert not second.pending()
    first.broadcast({"row": 1})
    assert second.pending()
    assert second.broadcast(None) == {"row": 1}
    assert not second.pending()
    assert not first.pending()


def test_runs_of_one_job_do_not_hear_one_another() -> None:
    store = HashStore()
    RankZeroChannel("a-run", place(0), store).broadcast({"row": 1})
    assert not RankZeroChannel("another-run", place(1), store).pending()


def test_a_run_that_goes_on_does_not_hear_its_first_part() -> None:
    store = HashStore()
    for row in (1, 2):  # as two fits in one process group, the second from a checkpoint of the first
        second, first = RankZeroChannel("a-run", place(1), store), RankZeroChannel("a-run", place(0), store)
        assert not second.pending()
        first.broadcast({"row": row})
        assert second.broadcast(None) == {"row": row}
        assert not first.gather(0, 2, wait_s=0.1)
        assert second.gather(1, 2, wait_s=0.1)


def test_a_word_that_does_not_come_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordination, "WAIT_S", 0.1)
    assert RankZeroChannel("a-run", place(1), HashStore()).broadcast(None) is None


def test_alone_it_needs_no_store() -> None:
    channel = RankZeroChannel("a-run", place(0, world_size=1))
    assert channel.possible
    assert channel.broadcast({"row": 1}) == {"row": 1}
    assert not channel.pending()


def test_several_ranks_without_a_process_group_cannot_agree() -> None:
    assert not RankZeroChannel("a-run", place(1)).possible


@pytest.mark.parametrize("step_s", [0.01, 1.0, 700.0])
def test_ranks_meet_about_when_they_should_and_seldom_before(step_s: float) -> None:
    now = [0.0]
    agenda = SyncSchedule(lambda: now[0])
    met: list[float] = []
    due = False
    while not due:
        now[0] += step_s * (0.5 if agenda.steps < 3 else 1.0)  # the first steps mislead
        if agenda.step():
            met.append(now[0])
            due = agenda.is_due(3600.0)
            agenda.meet_after(agenda.steps_until(3600.0))
    assert met[-1] == pytest.approx(3600.0, abs=max(step_s, 36.0))
    assert len(met) < 40


def test_a_time_is_due_to_the_nearest_step_and_pauses_are_no_steps() -> None:
    now = [0.0]
    agenda = SyncSchedule(lambda: now[0])
    for _ in range(10):
        now[0] += 1.0
        agenda.step()
    assert agenda.step_s == pytest.approx(1.0)
    assert not agenda.is_due(10.6) and agenda.is_due(10.4)
    now[0] += 50.0  # a pause
    agenda.restart()
    assert agenda.step_s == pytest.approx(6.0)
    now[0] += 1.0
    agenda.step()
    assert agenda.step_s == pytest.approx(1.0)
