"""Rank 0's word reaches every rank at the step on which all have agreed."""

import threading
from typing import Any

import pytest
import torch.distributed as dist
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


def test_a_deed_comes_a_lead_after_it_was_said_and_rank_0_is_asked_again_when_it_wished() -> None:
    ranks, asked = Ranks(), list[int]()

    def say() -> tuple[dict[str, str] | None, int]:
        asked.append(ranks.agenda[0].steps)
        return ({"deed": "fp8"} if len(asked) in (1, 2) else None), (1 if len(asked) == 1 else 50)

    done = [[rank for rank in range(3) if ranks.agenda[rank].stepped(say)] for _ in range(120)]
    first = 1 + coordination.LEAD
    assert {step: who for step, who in enumerate(done, 1) if who} == {
        first: [0, 1, 2],
        first + 1 + coordination.LEAD: [0, 1, 2],
    }
    assert asked == [1, first + 1, first + 51, first + 101], "never in between: a look costs"


def test_ranks_read_the_store_only_when_rank_0_looks_again() -> None:
    class Counting(HashStore):
        reads = 0

        def check(self, keys: list[str]) -> bool:
            self.reads += 1
            return super().check(keys)

    store = Counting()
    ranks = Ranks(world_size=2, store=store)
    for _ in range(1000):
        for agenda in ranks.agenda:
            agenda.stepped(lambda: (None, 100))
    assert store.reads < 50, "a thousand steps, a look every hundred"


def test_refusals_count_in_a_row_only() -> None:
    """A job whose ranks are 90 steps apart needs all tries but one for each deed; the next one has them all again."""
    ranks, behind = Ranks(world_size=2), 90
    ranks.wanted = ["fp8", "bf16", "fp8 again"]
    for n in range(1200):
        ranks.step(0)
        if n >= behind:
            ranks.step(1)
    ranks.step(*[1] * behind)
    assert ranks.done[0] == ranks.done[1] and [deed for _, deed in ranks.done[0]] == ["fp8", "bf16", "fp8 again"]
    assert ranks.warnings == [[], []] and not ranks.agenda[0].over


def test_deeds_that_follow_one_another_reach_a_rank_that_is_a_step_behind() -> None:
    for slow in range(3):
        ranks = Ranks()
        ranks.wanted = [str(n) for n in range(20)]
        for n in range(200):
            ranks.step(*(rank for rank in range(3) if rank != slow))
            if n >= 1:
                ranks.step(slow)
        ranks.step(slow)
        assert len(ranks.done[0]) == 20 and ranks.done[0] == ranks.done[1] == ranks.done[2]


def test_a_rank_that_leaves_does_not_end_the_agreement_but_rank_0_does() -> None:
    ranks = Ranks()
    ranks.agenda[1].close()
    for _ in range(3):
        ranks.step(0, 1, 2)
    assert [agenda.over for agenda in ranks.agenda] == [False, True, False]
    ranks = Ranks()
    ranks.wanted = ["fp8"]
    for _ in range(2):
        ranks.step(0, 1, 2)  # all have heard of it when rank 0 ends
    ranks.agenda[0].close()
    for _ in range(2 * coordination.LEAD):
        ranks.step(1, 2)
    assert all(agenda.over for agenda in ranks.agenda) and ranks.warnings == [[], [], []]


def test_where_a_rank_does_not_come_the_others_go_on_and_all_are_told_once() -> None:
    ranks = Ranks()
    ranks.wanted = ["fp8"]
    for _ in range(400):
        ranks.step(0, 1)
        if not ranks.warnings[0]:
            gave_up = ranks.agenda[0].steps + 1
    leads = [coordination.LEAD << n for n in range(coordination.TRIES)]
    assert gave_up == sum(leads) + len(leads), "the last lead is 32 times the first"
    assert ranks.done == [[], [], []] and ranks.wanted == ["fp8"]
    assert [len(told) for told in ranks.warnings] == [1, 1, 0]
    assert "not all of 3 ranks heard rank 0 in time: the run goes on, and is measured only" in ranks.warnings[1][0]
    assert ranks.agenda[0].over and ranks.agenda[1].over
    ranks.step(*[2] * 400)  # the one that was away
    assert ranks.done[2] == [] and ranks.agenda[2].over


def test_a_rank_0_that_never_speaks_is_not_waited_for_for_ever() -> None:
    ranks = Ranks()
    ranks.agenda[1].stepped(ranks.say)
    ranks.unix_s += coordination.SILENT_S  # as long as NCCL itself waits
    ranks.agenda[1].stepped(ranks.say)
    assert ranks.warnings[1] == []
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


@pytest.mark.parametrize("rank", [0, 1])
def test_a_store_that_is_gone_while_all_stand_still_ends_the_agreement_not_the_training(rank: int) -> None:
    class Gone(HashStore):
        gone = False

        def check(self, keys: list[str]) -> bool:
            if self.gone:
                raise RuntimeError("Broken pipe")
            return super().check(keys)

    store = Gone()
    ranks = Ranks(store=store)
    ranks.step(0, 1, 2)
    store.gone = True
    assert ranks.agenda[rank].hear() is None
    assert ranks.agenda[rank].over is (rank != 0), "rank 0 hears nobody"
    assert [len(told) for told in ranks.warnings] == [0, rank, 0]
    assert ranks.agenda[rank].hear() is None and len(ranks.warnings[1]) == rank


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


def test_what_all_ranks_say_takes_no_collective_so_nccl_needs_no_device_of_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("all_gather", "all_gather_object", "all_reduce", "barrier", "broadcast", "broadcast_object_list"):
        monkeypatch.setattr(dist, name, lambda *_, name=name, **__: pytest.fail(f"{name} would want a device"))
    store, received = HashStore(), dict[int, Any]()

    def run(rank: int) -> None:
        channel = RankZeroChannel("a-run", place(rank), store)
        received[rank] = channel.everybody(rank, 5.0), channel.broadcast({"gear": "fp8"}, 5.0)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in (2, 1, 0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert received == dict.fromkeys(range(3), ([0, 1, 2], {"gear": "fp8"}))


def test_what_ranks_hand_in_is_whole_or_not_there() -> None:
    store = HashStore()
    channels = [RankZeroChannel("a-run", place(rank), store) for rank in range(3)]
    for rank in (2, 0):
        channels[rank].hand_in("watts", 100 * rank)
        assert channels[0].handed_in("watts") is None
    channels[1].hand_in("watts", 100)
    assert channels[0].handed_in("watts") == [0, 100, 200]
    assert channels[0].handed_in("joules") is None
    without = RankZeroChannel("a-run", place(1))  # no process group: it knows its own
    without.hand_in("watts", 7)
    assert without.handed_in("watts") == [7] and without.everybody(8) == [8]


def test_a_message_may_be_waited_for_longer_than_usual_and_never_longer_than_said() -> None:
    class Store(HashStore):
        waits: list[float]

        def wait(self, keys: list[str], timeout: Any = None) -> None:
            self.waits.append(timeout.total_seconds())
            raise RuntimeError("timed out")

    store = Store()
    store.waits = []
    channel = RankZeroChannel("a-run", place(1), store)
    assert channel.broadcast(None) is None and channel.broadcast(None, 0.25) is None
    with pytest.raises(TimeoutError, match=r"not every one of 3 ranks came within 1 s"):
        channel.everybody("here")
    first = RankZeroChannel("a-run", place(0), store, wait_s=2.0)
    with pytest.raises(TimeoutError, match=r"not every one of 3 ranks came within 2 s"):
        first.everybody("here")
    with pytest.raises(TimeoutError, match=r"within 0\.5 s"):
        first.everybody("here", 0.5)
    assert store.waits == [coordination.WAIT_S, 0.25, coordination.WAIT_S, 2.0, 0.5]
    assert coordination.WAIT_S <= 1.0, "what GreenTrain may cost a step"


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
    agenda.say({"row": 3}, 2)  # at the end of a pause: to itself
    assert [agenda.stepped(lambda: ({"row": 4}, 1)) for _ in range(2)] == [None, {"row": 4}]
    agenda.close()
    assert agenda.over and agenda.stepped(lambda: ({"row": 5}, 1)) is None


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


def test_how_far_it_looks_ahead() -> None:
    """A time from a few steps is not trusted for many, nor one far away beyond half the way; the last steps count."""
    now = [0.0]
    agenda = SyncSchedule(RankZeroChannel("a-run", place(0, world_size=1)), lambda: now[0])
    assert agenda.step_s == 0.0 and agenda.steps_until(1e9) == 1, "nobody knows how long a step takes"
    for _ in range(10):
        now[0] += 2.0
        agenda.stepped(lambda: (None, 1))
    assert [agenda.steps_until(now[0] + after_s) for after_s in (-100.0, 0.0, 2.0, 7.0, 8.0, 40.0, 1e6)] == [
        1, 1, 1, 4, 2, 10, 21,
    ]  # fmt: skip
    assert agenda.is_due(now[0] + 1.0) and not agenda.is_due(now[0] + 1.01)
    agenda.restart()  # after a pause only the steps since then tell
    for _ in range(2):
        now[0] += 2.0
        agenda.stepped(lambda: (None, 1))
    assert agenda.steps_until(now[0] + 1e6) == 5
