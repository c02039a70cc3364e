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


class Ranks:
    """Ranks of a job that take steps in the order that a test says; rank 0 wants one deed after another."""

    def __init__(self, world_size: int = 3, store: Any = None) -> None:
        self.unix_s, self.warnings = 0.0, [list[str]() for _ in range(world_size)]
        store = store or HashStore()
        self.agenda = [
            SyncSchedule(
                RankZeroChannel("a-run", place(rank, world_size), store),
                lambda: self.unix_s,
                self.warnings[rank].append,
            )
            for rank in range(world_size)
        ]
        self.wanted: list[str] = []
        self.done: list[list[tuple[int, str]]] = [[] for _ in range(world_size)]

    def say(self) -> tuple[dict[str, str] | None, int]:
        return {"deed": self.wanted[0]} if self.wanted else None, 1

    def step(self, *ranks: int) -> None:
        self.unix_s += 0.1
        for rank in ranks:
            said = self.agenda[rank].stepped(self.say)
            if said is not None:
                self.done[rank].append((self.agenda[rank].steps, said["deed"]))
                if rank == 0:
                    self.wanted.remove(said["deed"])


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_all_ranks_do_the_same_after_the_same_step(order: tuple[int, ...]) -> None:
    ranks = Ranks()
    ranks.step(*order)
    ranks.wanted = ["rest", "fp8"]
    for _ in range(12):
        ranks.step(*order)
    assert ranks.done[0] == ranks.done[1] == ranks.done[2]
    assert [deed for _, deed in ranks.done[0]] == ["rest", "fp8"]


def test_a_rank_that_is_far_ahead_or_behind_takes_part_in_all_or_nothing() -> None:
    for slow in range(3):
        ranks = Ranks()
        ranks.wanted = ["fp8"]
        for n in range(60):  # up to seven steps apart: the first leads are too short
            ranks.step(*(rank for rank in range(3) if rank != slow))
            if n >= 7:
                ranks.step(slow)
        ranks.step(*[slow] * 7)
        assert len(ranks.done[slow]) == 1 and ranks.done[0] == ranks.done[1] == ranks.done[2]


def test_where_a_rank_does_not_come_the_others_go_on_and_all_are_told_once() -> None:
    ranks = Ranks()
    ranks.wanted = ["fp8"]
    for _ in range(400):
        ranks.step(0, 1)
    assert ranks.done == [[], [], []] and ranks.wanted == ["fp8"]
    assert [len(told) for told in ranks.warnings] == [1, 1, 0]
    assert "not all of 3 ranks heard rank 0 in time: the run goes on, and is measured only" in ranks.warnings[1][0]
    assert ranks.agenda[0].over and ranks.agenda[1].over
    ranks.step(*[2] * 400)  # the one that was away
    assert ranks.done[2] == [] and ranks.agenda[2].over


def test_a_rank_0_that_never_speaks_is_not_waited_for_for_ever() -> None:
    ranks = Ranks()
    for _ in range(3):
        ranks.step(1)
    ranks.unix_s += coordination.SILENT_S
    ranks.step(1)
    ranks.step(1)
    assert ranks.warnings[1] == [
        "the ranks cannot agree any more, as rank 0 has said nothing for 600 s: the run goes on, and is measured only"
    ]


def test_a_store_that_is_gone_is_told_once_and_the_training_goes_on() -> None:
    class Gone(HashStore):
        gone = False

        def set(self, key: str, value: str) -> None:
            if self.gone:
                raise RuntimeError("Broken pipe")
            super().set(key, value)

    store = Gone()
    ranks = Ranks(store=store)
    store.gone = True
    ranks.step(0)
    ranks.step(0)
    assert len(ranks.warnings[0]) == 1 and "Broken pipe" in ranks.warnings[0][0]


def test_what_rank_0_cannot_decide_nobody_looks_for() -> None:
    ranks = Ranks()

    def broken() -> Any:
        raise ZeroDivisionError("a bug of ours")

    with pytest.raises(ZeroDivisionError):
        ranks.agenda[0].stepped(broken)
    ranks.step(1)
    assert ranks.agenda[0].over and ranks.agenda[1].over and ranks.warnings == [[], [], []]


def test_standing_still_all_ranks_hear_what_rank_0_says() -> None:
    ranks = Ranks()
    ranks.wanted = ["pause"]
    for _ in range(10):
        ranks.step(0, 1, 2)
    assert ranks.agenda[1].hear() is None
    ranks.agenda[0].say({"deed": "train"}, 1)
    assert [agenda.hear() for agenda in ranks.agenda] == [None, {"deed": "train"}, {"deed": "train"}]
    assert ranks.agenda[2].hear() is None
    ranks.wanted = ["fp8"]
    for _ in range(10):
        ranks.step(2, 0, 1)
    assert ranks.done[0] == ranks.done[1] == ranks.done[2] and ranks.done[0][-1][1] == "fp8"


def test_messages_of_months_do_not_stay_in_the_store() -> None:
    store = HashStore()
    ranks = Ranks(store=store)
    for n in range(50):
        ranks.wanted.append(str(n))
        for _ in range(10):
            ranks.step(0, 1, 2)
    assert len(ranks.done[2]) == 50
    assert store.num_keys() < 20


def test_a_value_of_every_rank_is_known_to_all_or_said_to_be_missing() -> None:
    store = HashStore()
    received: dict[int, Any] = {}

    def run(rank: int) -> None:
        channel = RankZeroChannel("a-run", place(rank), store)
        received[rank] = channel.everybody([rank, "x"], 5.0)
        if rank < 2:
            try:
                channel.everybody(rank, 0.1)
            except TimeoutError as error:
                received[rank + 10] = str(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in (2, 1, 0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert received == {
        **{rank: [[0, "x"], [1, "x"], [2, "x"]] for rank in range(3)},
        **{rank: "not every one of 3 ranks came within 0.1 s" for rank in (10, 11)},
    }


def test_runs_of_one_job_do_not_hear_one_another() -> None:
    store = HashStore()
    RankZeroChannel("a-run", place(0), store).post(1, {"row": 1})
    assert RankZeroChannel("another-run", place(1), store).heard(1) is None


def test_a_run_that_goes_on_does_not_hear_its_first_part() -> None:
    store = HashStore()
    for row in (1, 2):  # as two fits in one process group, the second from a checkpoint of the first
        second, first = RankZeroChannel("a-run", place(1), store), RankZeroChannel("a-run", place(0), store)
        assert second.heard(1) is None
        first.post(1, {"row": row})
        assert second.heard(1) == {"row": row}


def test_a_word_that_does_not_come_is_none() -> None:
    assert RankZeroChannel("a-run", place(1), HashStore()).broadcast(None, 0.1) is None


def test_alone_it_needs_no_store() -> None:
    channel = RankZeroChannel("a-run", place(0, world_size=1))
    assert channel.possible
    assert channel.broadcast({"row": 1}) == {"row": 1}
    assert channel.everybody(2) == [2]
    agenda = SyncSchedule(channel, lambda: 0.0)
    assert agenda.stepped(lambda: ({"row": 1}, 3)) == {"row": 1}, "at once"
    assert [agenda.stepped(lambda: ({"row": 2}, 1)) for _ in range(3)] == [None, None, {"row": 2}]


def test_several_ranks_without_a_process_group_cannot_agree_and_say_so() -> None:
    channel = RankZeroChannel("a-run", place(1))
    told: list[str] = []
    agenda = SyncSchedule(channel, lambda: 0.0, told.append)
    assert not channel.possible and agenda.over and agenda.stepped(lambda: ({}, 1)) is None
    assert len(told) == 1 and told[0].startswith("3 ranks have no process group, so they cannot agree")


@pytest.mark.parametrize("step_s", [0.01, 1.0, 700.0])
def test_ranks_meet_about_when_they_should_and_seldom_before(step_s: float) -> None:
    now = [0.0]
    agenda = SyncSchedule(RankZeroChannel("a-run", place(0, world_size=1)), lambda: now[0])
    met: list[float] = []

    def look() -> tuple[None, int]:
        met.append(now[0])
        return None, agenda.steps_until(3600.0)

    while not met or not agenda.is_due(3600.0):
        now[0] += step_s * (0.5 if agenda.steps < 3 else 1.0)  # the first steps mislead
        agenda.stepped(look)
    assert met[-1] == pytest.approx(3600.0, abs=max(step_s, 36.0))
    assert len(met) < 40


def test_a_time_is_due_to_the_nearest_step_and_pauses_are_no_steps() -> None:
    now = [0.0]
    agenda = SyncSchedule(RankZeroChannel("a-run", place(0, world_size=1)), lambda: now[0])
    for _ in range(10):
        now[0] += 1.0
        agenda.stepped(lambda: (None, 1))
    assert agenda.step_s == pytest.approx(1.0)
    assert not agenda.is_due(10.6) and agenda.is_due(10.4)
    now[0] += 50.0  # a pause
    agenda.restart()
    assert agenda.step_s == pytest.approx(6.0)
    now[0] += 1.0
    agenda.stepped(lambda: (None, 1))
    assert agenda.step_s == pytest.approx(1.0)
