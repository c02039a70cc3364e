"""Asked to leave: by a notice or a plan, with a checkpoint or without, alone or with other ranks."""

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
import torch.distributed
from torch.distributed import HashStore  # type: ignore[attr-defined]

from greentrain import GreenSession
from greentrain.control import coordination, preemption
from greentrain.control.coordination import RankZeroChannel, SyncSchedule
from greentrain.control.launcher_protocol import (
    ENV_DIR,
    EXIT_REQUEUE,
    LauncherFiles,
    Notice,
    Offer,
    Progress,
    Request,
)
from greentrain.control.preemption import Launcher, PreemptionHandler
from greentrain.errors import GreenTrainWarning
from greentrain.ledger.reader import read_run
from greentrain.types import Topology
from tests.helpers.fake_launcher import FakeLauncher
from tests.helpers.flat_meter import FlatMeter
from tests.helpers.hanging import Hanging

NOTICE = Notice(attempt=1, reason="the node is drained", ranks=2)


def session(tmp_path: Path, launcher: Launcher | None, place: Topology | None = None) -> GreenSession:
    config = {
        "run": {"dir": str(tmp_path / "runs"), "id": "one", "report": False, "live": True, "book_s": 0.2},
        "power": {"sample_s": 0.02},
    }
    return GreenSession(config, meter=FlatMeter(), launcher=launcher, topology=place)


def until_due(green: GreenSession, longest_s: float = 240.0) -> None:
    end_s = time.monotonic() + longest_s
    while not green.checkpoint_due:
        assert time.monotonic() < end_s
        time.sleep(0.01)
        green.step(samples=2)


def test_a_notice_is_obeyed_at_the_checkpoint(tmp_path: Path) -> None:
    launcher = FakeLauncher()
    with pytest.raises(SystemExit) as left, session(tmp_path, launcher) as green:
        green.step(samples=2)
        green.checkpoint()
        launcher.wanted = NOTICE
        until_due(green)
        steps = green.state_dict()["progress"]["steps"]
        green.checkpoint()
    assert left.value.code == EXIT_REQUEUE
    first, last, request = launcher.words
    assert isinstance(first, Progress) and isinstance(last, Progress) and isinstance(request, Request)
    assert (first.steps, first.tokens, last.steps, last.tokens) == (1, 2.0, steps, 2.0 * steps)
    assert (request.ranks, request.not_before_unix_s, request.reason) == (2, None, "the node is drained")


def test_without_a_checkpoint_the_run_stays_and_says_what_is_missing(tmp_path: Path) -> None:
    launcher = FakeLauncher(wanted=NOTICE)
    with session(tmp_path, launcher) as green:
        until_due(green)
        with pytest.warns(GreenTrainWarning, match=r"wrote no checkpoint.*call green\.checkpoint\(\) on every rank"):
            green.step()
        assert not green.checkpoint_due
        green.checkpoint()
        green.step()
    assert launcher.requests == []


def test_a_launcher_that_cannot_be_told_does_not_end_the_run_and_is_told_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preemption, "AGAIN_S", 3600.0)
    launcher = FakeLauncher(wanted=NOTICE)
    with pytest.raises(SystemExit), session(tmp_path, launcher) as green:
        until_due(green)
        launcher.broken = True
        with pytest.warns(GreenTrainWarning, match="could not be told"):
            green.checkpoint()
        assert green.running and not green.checkpoint_due
        green.step()
        launcher.broken = False
        asked = green._controller.preemption
        assert asked is not None and asked._again_s > time.monotonic() + 3000.0
        asked._again_s = time.monotonic()  # the rest is over
        until_due(green)
        green.checkpoint()
    assert [request.ranks for request in launcher.requests] == [2]


def test_a_launcher_that_ends_the_process_itself_is_only_told(tmp_path: Path) -> None:
    launcher = FakeLauncher(exits=False, wanted=NOTICE)
    with session(tmp_path, launcher) as green:
        until_due(green)
        green.checkpoint()
        assert green.running and not green.checkpoint_due
        green.step()
    assert [request.ranks for request in launcher.requests] == [2]


def test_a_checkpoint_after_a_crash_counts_the_steps_that_are_in_it(tmp_path: Path) -> None:
    with session(tmp_path, None) as green:
        for _ in range(3):
            green.step(samples=1)
        state = green.state_dict()
        for _ in range(5):
            green.step(samples=1)  # lost
    again = session(tmp_path, None)
    again.load_state_dict(state)
    with again:
        again.step(samples=1)
        again.checkpoint()
        assert again.folder is not None
        events = [event for rank in read_run(again.folder).ranks for event in rank.events]
    assert [event["steps"] for event in events if event["name"] == "checkpoint"] == [4]
    assert again.totals().steps == 9, "the books hold lost work too"


def test_a_notice_of_another_attempt_is_old_news(tmp_path: Path) -> None:
    launcher = FakeLauncher(wanted=Notice(attempt=7, reason="long ago"))
    with session(tmp_path, launcher) as green:
        end_s = time.monotonic() + 2.2
        while time.monotonic() < end_s:
            time.sleep(0.02)
            green.step()
            assert not green.checkpoint_due


def test_a_pause_that_begins_after_a_notice_is_ended_too(tmp_path: Path) -> None:
    with session(tmp_path, None) as green:
        run, woken = green.active(), []
        assert run is not None
        asked = PreemptionHandler(FakeLauncher(wanted=NOTICE), run, wake=lambda: woken.append(asked.due))
        asked.look()
        asked.look()  # a plan began to pause in between
        asked.stepped()
        asked.look()  # and once more in this step
        asked.close()
        assert woken == [False, False, True]


def test_a_store_that_is_gone_does_not_reach_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone:
        def add(self, *_: Any) -> int:
            return 1

        def set(self, *_: Any) -> None:
            raise RuntimeError("Broken pipe")

    monkeypatch.setattr(coordination, "job_store", Gone)
    launcher = FakeLauncher()
    with session(tmp_path, None, Topology(rank=0, world_size=2)) as green:
        run = green.active()
        assert run is not None
        asked = PreemptionHandler(launcher, run)
        with pytest.warns(GreenTrainWarning, match=r"cannot agree any more.*Broken pipe.*measured only"):
            asked.stepped()
        asked.ask(2, None, "the node is drained")
        assert asked.request_leave() and launcher.requests
        asked.close()


@pytest.mark.parametrize(("left_s", "waits_s"), [(None, 600.0), (120.0, 118.0), (1e5, 600.0), (-5.0, 1.0)], ids=str)
def test_a_rank_that_is_dead_is_waited_for_as_long_as_the_notice_leaves_time(
    left_s: float | None, waits_s: float, tmp_path: Path
) -> None:
    waited_s: list[float] = []

    class Dead:
        possible = True

        def broadcast(self, message: Any, wait_s: float) -> None:
            waited_s.append(wait_s)

        def everybody(self, value: Any, wait_s: float) -> None:
            waited_s.append(wait_s)
            raise TimeoutError(f"not every one of 2 ranks came within {wait_s:g} s")

    class Said(SyncSchedule):
        def stepped(self, say: Any) -> Any:
            return {"notice": ["the node is drained", None, None if left_s is None else 1000.0 + left_s]}

    with session(tmp_path, None, Topology(rank=1, world_size=2)) as green:
        run = green.active()
        assert run is not None
        asked = PreemptionHandler(FakeLauncher(), run, unix_s=lambda: 1000.0)
        asked._channel = cast(RankZeroChannel, Dead())
        asked._sync = Said(RankZeroChannel("leave", Topology()), lambda: 1000.0)
        asked.stepped()
        with pytest.warns(GreenTrainWarning, match=rf"rank 0 has not come to leave within {waits_s:g} s"):
            assert asked.request_leave()
        with pytest.warns(GreenTrainWarning, match=rf"leaves without the others: .* within {waits_s:g} s; the process"):
            asked.together()
    assert waited_s == [waits_s, waits_s]


def test_a_process_group_that_cannot_be_left_does_not_keep_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = Hanging()
    with hanging.seen_at_once(preemption), session(tmp_path, None) as green:
        run = green.active()
        assert run is not None
        asked = PreemptionHandler(FakeLauncher(), run)
        with monkeypatch.context() as joined:
            joined.setattr(torch.distributed, "is_initialized", lambda: True)
            joined.setattr(torch.distributed, "destroy_process_group", hanging.here)
            with pytest.warns(GreenTrainWarning, match="could not be left .*no answer within 10 s"):
                asked.together()
        asked.close()


@dataclass
class OnDisk(FakeLauncher):
    """A launcher whose disk hangs when it is told to, and which knows who wrote to it."""

    writers: set[threading.Thread] = field(default_factory=set)
    hangs: threading.Event = field(default_factory=threading.Event)
    let_go: threading.Event = field(default_factory=threading.Event)

    def write(self, word: Request | Progress) -> None:
        self.writers.add(threading.current_thread())
        if self.hangs.is_set():
            self.let_go.wait()
        super().write(word)

    def mark(self, what: str, attempt: int, **more: Any) -> None:
        self.writers.add(threading.current_thread())
        super().mark(what, attempt, **more)


def test_nothing_is_written_to_the_launcher_on_the_training_thread(tmp_path: Path) -> None:
    launcher = OnDisk()
    with pytest.raises(SystemExit), session(tmp_path, launcher) as green:
        green.step(samples=2)
        green.checkpoint()
        launcher.wanted = NOTICE
        until_due(green)
        green.checkpoint()
    assert {thread.name for thread in launcher.writers} == {"greentrain-launcher"}
    assert [type(word) for word in launcher.words] == [Progress, Progress, Request]
    assert launcher.marks == ["ready", "step", "request", "left"]


def test_a_launcher_whose_disk_hangs_holds_up_no_checkpoint_and_the_run_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CLOSE_S", "SAVE_S"):
        monkeypatch.setattr(preemption, name, 0.05)
    launcher = OnDisk()
    with pytest.warns(GreenTrainWarning) as told, session(tmp_path, launcher) as green:
        green.step(samples=2)
        launcher.hangs.set()
        green.checkpoint()
        launcher.wanted = NOTICE
        until_due(green)
        green.checkpoint()
        assert green.running and not green.checkpoint_due
    texts = " ".join(str(warning.message) for warning in told)
    assert "the launcher could not be told request, as its disk hangs" in texts
    assert "may not know how far the last checkpoint is" in texts
    launcher.let_go.set()
    for thread in launcher.writers:
        thread.join()
    assert [type(word) for word in launcher.words] == [Progress, Progress], "the run stayed: it asks for nothing"


@pytest.mark.sweep
@pytest.mark.parametrize("blind", [False, True], ids=["both see the folder", "another node does not"])
def test_two_ranks_leave_after_the_same_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blind: bool) -> None:
    store = HashStore()
    monkeypatch.setattr(coordination, "job_store", lambda: store)
    launchers = [FakeLauncher(), FakeLauncher(blind=blind)]
    asked_after: list[int] = [0, 0]
    codes: list[Any] = [None, None]
    in_step = threading.Barrier(2)  # as a collective keeps ranks in step

    def train(rank: int) -> None:
        place = Topology(rank=rank, world_size=2, local_rank=rank, local_world_size=2)
        try:
            with session(tmp_path, launchers[rank], place) as green:
                for step in range(1, 2000):
                    in_step.wait(240)
                    time.sleep(0.002)
                    green.step(samples=1)
                    if step == 50:
                        launchers[0].wanted = NOTICE
                    if green.checkpoint_due:
                        asked_after[rank] = step
                        time.sleep(0.3 * rank)  # a slow disk
                        green.checkpoint()
                        break
        except SystemExit as left:
            codes[rank] = left.code

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(400)
    assert codes == [EXIT_REQUEUE, EXIT_REQUEUE]
    assert asked_after[0] == asked_after[1] > 50
    assert len(launchers[0].requests) == 1 and launchers[1].words == [], "rank 0 speaks for all"


@pytest.mark.filterwarnings("ignore:GreenTrain. the launcher could not be told")
def test_no_rank_leaves_alone_when_the_launcher_cannot_be_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = HashStore()
    monkeypatch.setattr(coordination, "job_store", lambda: store)
    launchers = [FakeLauncher(), FakeLauncher()]
    in_step = threading.Barrier(2)
    stayed = [False, False]

    def train(rank: int) -> None:
        place = Topology(rank=rank, world_size=2, local_rank=rank, local_world_size=2)
        with session(tmp_path, launchers[rank], place) as green:
            for step in range(2000):
                in_step.wait(240)
                time.sleep(0.002)
                green.step(samples=1)
                if step == 50:
                    launchers[0].wanted, launchers[0].broken = NOTICE, True
                if green.checkpoint_due:
                    green.checkpoint()
                    stayed[rank] = green.running
                    break

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(400)
    assert stayed == [True, True]


def test_the_folder_of_the_environment_is_the_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = LauncherFiles(tmp_path)
    desk.write(Offer(attempt=3, ranks=1, min_ranks=1, max_ranks=1, can_wait=False))
    monkeypatch.setenv(ENV_DIR, str(tmp_path))
    with pytest.raises(SystemExit), session(tmp_path, None) as green:
        desk.write(Notice(attempt=3, reason="maintenance"))
        until_due(green)
        green.checkpoint()
    request = desk.request()
    assert request == Request(attempt=3, ranks=1, not_before_unix_s=None, reason="maintenance")


def test_torn_and_foreign_words_count_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = LauncherFiles(tmp_path)
    assert desk.offer() is None and desk.request() is None
    (tmp_path / "offer.json").write_text('{"attempt": 1, "ran')
    (tmp_path / "request.json").write_text('{"attempt": 1, "colour": "red"}')
    (tmp_path / "notice.json").write_text("[]")
    assert desk.offer() is None and desk.request() is None and desk.notice() is None


def test_a_folder_that_is_gone_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_DIR, str(tmp_path / "gone"))
    with session(tmp_path, None) as green:
        for _ in range(3):
            green.step()
            green.checkpoint()
    assert green.totals().steps == 3


# -- one rank, whose run and clock are a test's ----------------------------------------------------------------------


class Run:
    """What leaving needs of a run, and what it has told it."""

    def __init__(self, rank: int = 0, world_size: int = 1) -> None:
        self.run_id, self.topology = "a-run", Topology(rank=rank, world_size=world_size)
        self.warnings: list[str] = []
        self.events: list[tuple[str, dict[str, Any]]] = []

    def warn(self, text: str, then: str = "") -> None:
        self.warnings.append(text)

    def event(self, name: str, text: str, **more: Any) -> None:
        self.events.append((text, more))


class Rank:
    """A rank that may be asked to leave, on a clock that a test moves."""

    def __init__(self, launcher: FakeLauncher, run: Run | None = None) -> None:
        self.s, self.back_s, self.woken = 1000.0, 0.0, 0
        self.run, self.launcher = run or Run(), launcher
        self.asked = PreemptionHandler(
            launcher,
            cast(Any, self.run),
            wake=self._wake,
            unix_s=lambda: self.s - self.back_s,
            clock_s=lambda: self.s,
        )

    def _wake(self) -> None:
        self.woken += 1

    def __enter__(self) -> Any:
        return self.asked

    def __exit__(self, *_: object) -> None:
        self.asked.close()


def test_a_notice_is_looked_for_until_it_is_there_and_once_obeyed_not_again() -> None:
    launcher = FakeLauncher()
    rank = Rank(launcher)
    with rank as asked:
        asked.look()
        asked.stepped()
        assert not asked.due and rank.woken == 0
        launcher.wanted = Notice(attempt=2, reason="of another attempt")
        asked.look()
        assert rank.woken == 0
        launcher.wanted = NOTICE
        asked.look()
        launcher.wanted = Notice(attempt=1, reason="later")  # the first counts
        asked.look()
        assert rank.woken == 2 and not asked.due
        asked.stepped()
        assert asked.due and asked.request == Request(attempt=1, ranks=2, not_before_unix_s=None, reason=NOTICE.reason)
        asked.stepped()  # without a checkpoint
        assert not asked.due and len(rank.run.warnings) == 1
        launcher.wanted = NOTICE
        asked.look()
        asked.stepped()
        assert not asked.due, "it was obeyed, and the script did not save"
        launcher.wanted = Notice(attempt=1, reason="another one")
        asked.look()
        asked.stepped()
        assert asked.due and asked.request is not None and asked.request.ranks == 1, "as many as now"
    assert launcher.marks == ["ready", "step", "request", "request"]
    assert rank.run.events[0] == (NOTICE.reason, {"ranks": 2, "not_before_unix_s": None})


def test_a_wish_that_could_not_be_told_rests_before_it_is_asked_for_again() -> None:
    launcher = FakeLauncher(wanted=NOTICE, broken=True)
    rank = Rank(launcher)
    with rank as asked:
        asked.look()
        asked.stepped()
        assert asked.request_leave() is False and not asked.due and launcher.marks[-1] == "request"
        assert rank.run.warnings == ["the launcher could not be told request (OSError('the disk is full'))"]
        rank.s += preemption.AGAIN_S - 0.5
        asked.look()
        asked.stepped()
        assert not asked.due
        rank.s += 0.5
        asked.look()
        asked.stepped()
        assert asked.due, "the notice still stands"
        launcher.broken = False
        assert asked.request_leave() is True and asked.due
    assert launcher.requests == [Request(attempt=1, ranks=2, not_before_unix_s=None, reason=NOTICE.reason)]
    assert launcher.marks == ["ready", "step", "request", "request", "left"]


def test_a_clock_that_is_set_back_hides_no_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the node is drained, and what was trained since the last checkpoint with it."""
    store = HashStore()
    monkeypatch.setattr(coordination, "job_store", lambda: store)
    launchers = [FakeLauncher(broken=True), FakeLauncher(blind=True)]
    ranks = [Rank(launchers[n], Run(n, 2)) for n in range(2)]

    def trains(first: Any, second: Any) -> int:
        """Return after how many steps of a second the ranks are asked to leave."""
        for step in range(1, 120):
            for rank in ranks:
                rank.s += 1.0
            first.look()
            first.stepped()
            second.stepped()
            if first.due:
                return step
        return 120

    with ranks[0] as first, ranks[1] as second:
        trains(first, second)
        for rank in ranks:
            rank.back_s = 3600.0
        launchers[0].wanted = NOTICE
        assert trains(first, second) <= preemption.NOTICE_S + coordination.LEAD + 2
        assert [first.request_leave(), second.request_leave()] == [False, False], "its launcher cannot be told"
        for rank in ranks:
            rank.back_s = 7200.0
        assert trains(first, second) <= preemption.AGAIN_S + preemption.NOTICE_S + coordination.LEAD + 2


def test_a_plan_that_asks_first_is_not_overruled_by_a_notice_but_hurried() -> None:
    rank = Rank(FakeLauncher(wanted=Notice(attempt=1, reason="the end", by_unix_s=1100.0, ranks=1)))
    with rank as asked:
        asked.stepped()
        asked.look()
        asked.ask(2, 5000.0, "grid")
        assert asked._patience_s() == preemption.TOGETHER_S
        asked._obey("the end", 1, 1100.0)
        assert asked.request == Request(attempt=1, ranks=2, not_before_unix_s=5000.0, reason="grid")
        assert asked._patience_s() == 1100.0 - preemption.EXIT_S - 1000.0
        asked.ask(2, None, "grid")
        assert asked._patience_s() == preemption.TOGETHER_S, "who asks by itself is in no hurry"


def test_a_launcher_that_nobody_sees_counts_no_attempts_and_is_told_no_progress() -> None:
    blind, seeing = FakeLauncher(blind=True), FakeLauncher()
    for launcher, told in ((blind, []), (seeing, [Progress(attempt=1, steps=7, tokens=70.0, unix_s=1000.0)])):
        with Rank(launcher) as asked:
            assert asked.attempt == (0 if launcher is blind else 1)
            asked.progress(7, 70.0)
        assert launcher.words == told
    with Rank(FakeLauncher(blind=True, wanted=Notice(attempt=0, reason="by hand"))) as asked:
        asked.look()
        asked.stepped()
        assert asked.due


def test_ranks_but_the_first_tell_the_launcher_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    store = HashStore()
    monkeypatch.setattr(coordination, "job_store", lambda: store)
    launcher = FakeLauncher(wanted=NOTICE)
    rank = Rank(launcher, Run(1, 2))
    with rank as asked:
        asked.look()
        asked.stepped()
        asked.ask(2, None, "grid")
        asked.progress(1, 1.0)
    assert not (launcher.marks or launcher.words or rank.run.events or rank.woken)


@pytest.mark.parametrize("told", [True, False])
def test_ranks_leave_after_the_same_step_as_rank_0_was_heard(monkeypatch: pytest.MonkeyPatch, told: bool) -> None:
    store = HashStore()
    monkeypatch.setattr(coordination, "job_store", lambda: store)
    launchers = [FakeLauncher(broken=not told), FakeLauncher(blind=True)]
    ranks = [Rank(launchers[n], Run(n, 2)) for n in range(2)]
    due: list[list[bool]] = []
    with ranks[0] as first, ranks[1] as second:
        for step in range(40):
            for rank in ranks:
                rank.s += 1.0
            if step == 12:
                launchers[0].wanted = NOTICE
            first.look()
            first.stepped()
            second.stepped()
            due.append([first.due, second.due])
            if first.due:
                break
        assert due[-1] == [True, True] and 13 <= len(due) <= 12 + preemption.NOTICE_S + coordination.LEAD + 2
        assert [False, True] not in due and [True, False] not in due
        assert [first.request_leave(), second.request_leave()] == [told, told]
        assert [first.due, second.due] == [told, told]
        assert not ranks[1].run.warnings
    assert len(launchers[0].requests) == told and launchers[1].words == []


def test_a_notice_is_told_the_other_ranks_seldom_enough_not_to_cost_a_look_a_step() -> None:
    looks: list[int] = []

    class Counting(HashStore):
        def set(self, key: str, value: str) -> None:
            looks.append(1)
            super().set(key, value)

    store = Counting()
    rank = Rank(FakeLauncher(), Run(0, 2))
    with rank as asked, pytest.MonkeyPatch.context() as patch:
        patch.setattr(coordination, "job_store", lambda: store)
        for _ in range(600):
            rank.s += 0.1
            asked.stepped()
        assert 5 <= len(looks) <= 80, "every ten seconds, and half way there"
        for _ in range(200):  # then longer sequences, as a curriculum has them
            rank.s += 1.0
            asked.stepped()
        late = len(looks)
        for _ in range(100):
            rank.s += 1.0
            asked.stepped()
    assert len(looks) - late >= 10, "as often where steps become slow: a notice leaves a minute"


def test_it_leaves_alone_where_rank_0_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    class Deaf(HashStore):
        def wait(self, keys: Any, timeout: Any = None) -> None:
            raise RuntimeError("timed out")

    monkeypatch.setattr(coordination, "job_store", Deaf)
    rank = Rank(FakeLauncher(), Run(1, 2))
    with rank as asked:
        asked.stepped()
        asked.ask(2, None, "grid")
        assert asked.request_leave() is True
        asked.together()
    assert rank.run.warnings == [
        "rank 0 has not come to leave within 600 s",
        "this rank leaves without the others: not every one of 2 ranks came within 600 s",
    ]


def test_a_process_group_that_is_there_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[str] = []
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: left.append("left"))
    with Rank(FakeLauncher()) as asked:
        for there, known in ((True, False), (False, True), (False, False)):
            monkeypatch.setattr(torch.distributed, "is_available", lambda there=there: there)
            monkeypatch.setattr(torch.distributed, "is_initialized", lambda known=known: known)
            asked.together()
        assert left == []
        monkeypatch.setattr(torch.distributed, "is_available", lambda: True)
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        asked.together()
    assert left == ["left"]


def test_what_is_told_last_is_written_before_the_end() -> None:
    launcher = FakeLauncher()
    with Rank(launcher) as asked:
        for n in range(20):
            asked.progress(n, float(n))
    assert [word.steps for word in launcher.words if isinstance(word, Progress)] == list(range(20))
    asked.close()


def test_how_far_a_checkpoint_is_is_written_at_once() -> None:
    """Not at the next word or the end, which a crash does not reach: the next attempt would think it has none."""
    written = threading.Event()

    class Told(FakeLauncher):
        def mark(self, what: str, attempt: int, **more: Any) -> None:
            written.set()

        def write(self, word: Request | Progress) -> None:
            super().write(word)
            written.set()

    launcher = Told()
    with Rank(launcher) as asked:
        assert written.wait(240.0)  # that it is ready: its thread has nothing left to do
        written.clear()
        asked.progress(3, 7.0)
        assert written.wait(240.0) and launcher.words == [Progress(attempt=1, steps=3, tokens=7.0, unix_s=1000.0)]
