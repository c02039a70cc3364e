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


def until_due(green: GreenSession, longest_s: float = 8.0) -> None:
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
    monkeypatch.setattr(preemption, "AGAIN_S", 1.0)
    launcher = FakeLauncher(wanted=NOTICE)
    with pytest.raises(SystemExit), session(tmp_path, launcher) as green:
        until_due(green)
        launcher.broken = True
        with pytest.warns(GreenTrainWarning, match="could not be told"):
            green.checkpoint()
        assert green.running and not green.checkpoint_due
        green.step()
        launcher.broken = False
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
                    in_step.wait(10)
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
        thread.join(30)
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
                in_step.wait(10)
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
        thread.join(30)
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
