"""What a supervisor does before, in and after an attempt, with a runner and a clock that a test moves."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from greentrain.control import launcher_protocol
from greentrain.control.launch import reaper, supervisor
from greentrain.control.launch.commands import Command
from greentrain.control.launch.outcome import LEAVES, JobFolder, JobState, Outcome, RetryRules
from greentrain.control.launch.runners import Attempt, AttemptRunner, Guide, LaunchError, SignalQueue
from greentrain.control.launch.supervisor import NOT_STARTED, REST_S, TOO_SHORT_S, LocalWaiting, Supervisor
from greentrain.control.launcher_protocol import (
    ENV_CHECKPOINT,
    ENV_DIR,
    EXIT_REQUEUE,
    LauncherFiles,
    Notice,
    Offer,
    Progress,
    Request,
)
from greentrain.utils.topology import ENV_JOB

NOW_S = 1_700_000_000.0
TERM, USR1 = signal.SIGTERM, signal.SIGUSR1


class Clock:
    """Time that stands still but for who sleeps."""

    strftime, gmtime = staticmethod(time.strftime), staticmethod(time.gmtime)

    def __init__(self) -> None:
        self.s = NOW_S

    def time(self) -> float:
        return self.s

    def monotonic(self) -> float:
        return self.s - NOW_S


class Job(AttemptRunner):
    """A supervised job whose attempts are functions of a test.

    Each is called with this job and its attempt, and returns an exit code or an outcome; without one it ends well.
    """

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.path, self.clock = folder / "job", clock
        self.said: list[str] = []
        self.attempts: list[Attempt] = []
        self.forwarded: list[int] = []
        self.rested: list[float] = []
        self.closed = 0
        self.signals: list[int] = []
        """To be taken where nothing runs, and in a sleep."""
        self.slept: list[float] = []
        """Until when it slept (s since NOW_S)."""
        self.meanwhile: Callable[[], object] = lambda: None
        """Called in each sleep."""
        self.script: list[Callable[[Job, Attempt], int | Outcome]] = []
        self.guide: Guide | None = None
        self.supervisor: Supervisor | None = None

    # -- what a supervisor needs

    def run(self, attempt: Attempt, signals: SignalQueue, guide: Guide) -> Outcome:
        self.attempts.append(attempt)
        self.guide = guide
        guide.started(os.getpid())
        end = self.script.pop(0)(self, attempt) if self.script else 0
        return end if isinstance(end, Outcome) else Outcome(code=end)

    def forward(self, signum: int) -> None:
        self.forwarded.append(signum)

    def rest(self) -> None:
        self.rested.append(self.clock.s - NOW_S)

    def close(self) -> None:
        self.closed += 1

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def take(self) -> int | None:
        return self.signals.pop(0) if self.signals else None

    def sleep_until(self, unix_s: float) -> bool:
        self.slept.append(unix_s - NOW_S)
        self.clock.s = unix_s
        self.meanwhile()
        return bool(self.signals)

    # -- what a test needs

    def start(
        self,
        *script: Callable[["Job", Attempt], int | Outcome],
        command: Command | None = None,
        window: Any = None,
        rules: RetryRules | None = None,
        **more: Any,
    ) -> int:
        """Return the exit code of a supervisor, which has ended."""
        self.script = list(script)
        folder = JobFolder(self.path)
        try:
            found = Supervisor(
                command or Command(words=("train",), kind="other"),
                folder,
                self,
                rules or RetryRules(min_ranks=1, max_ranks=1, back_off_s=8.0),
                **{"tell": self.said.append, **more},
            )
            self.supervisor, found.opens = found, window and window.opens
            return found.run()
        finally:
            folder.close()

    @property
    def hand(self) -> LauncherFiles:
        return LauncherFiles(self.path)

    @property
    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.path / "state.json").read_text(encoding="utf-8"))
        return found

    def keep(self, **state: Any) -> None:
        """Leave a state behind, as an earlier supervisor did."""
        self.path.mkdir(exist_ok=True)
        kept = JobState(**{"command": ("train",), "created_unix_s": NOW_S - 500.0, "attempt": 1, **state})
        (self.path / "state.json").write_text(json.dumps(kept.to_dict()))

    def ask(self, attempt: int, in_s: float | None = None, ranks: int = 1, steps: int | None = None) -> int:
        """Leave a request, as a training does."""
        not_before = None if in_s is None else self.clock.s + in_s
        self.hand.write(Request(attempt=attempt, ranks=ranks, not_before_unix_s=not_before, reason="grid"))
        if steps is not None:
            self.hand.write(Progress(attempt=attempt, steps=steps, tokens=10.0 * steps, unix_s=self.clock.s))
        return EXIT_REQUEUE


def leaves(in_s: float | None = None, **more: Any) -> Callable[[Job, Attempt], int]:
    """Return an attempt that asks to be started again."""
    return lambda job, attempt: job.ask(attempt.number, in_s, **{"steps": attempt.number, **more})


def told(signum: int, code: int | Outcome) -> Callable[[Job, Attempt], int | Outcome]:
    """Return an attempt in which a signal reaches the launcher, and that ends with a code."""

    def run(job: Job, attempt: Attempt) -> int | Outcome:
        assert job.guide is not None
        job.guide.heed(signum)
        return code

    return run


def looks(seen: list[dict[str, Any]]) -> Callable[[Job, Attempt], int]:
    """Return an attempt that keeps the state that is on disk, and ends well."""

    def run(job: Job, attempt: Attempt) -> int:
        seen.append(job.state)
        return 0

    return run


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    clock = Clock()
    job = Job(tmp_path, clock)
    monkeypatch.setattr(supervisor, "time", clock)
    monkeypatch.setattr(launcher_protocol, "time", clock)
    monkeypatch.setattr(supervisor, "SignalQueue", lambda: job)
    monkeypatch.setattr(supervisor, "end_orphans", lambda folder, grace_s: 0)
    monkeypatch.setattr(os, "fsync", lambda fd: None)  # a busy disk is not what is looked at
    for name in ("SLURM_JOB_END_TIME", ENV_CHECKPOINT, ENV_DIR, ENV_JOB, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"):
        monkeypatch.delenv(name, raising=False)
    yield job


# -- before an attempt -------------------------------------------------------------------------------------------


def test_a_job_that_is_done_is_not_run_again_and_says_how_to(job: Job) -> None:
    assert job.start() == 0 and job.closed == 1
    assert job.start() == 0 and len(job.attempts) == 1
    assert job.said[-1] == f"this job is finished in attempt 1; to run it again remove {job.path} or name another --dir"


def test_what_an_earlier_launcher_left_is_ended_first(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, float]] = []

    def end(folder: str, grace_s: float) -> int:
        asked.append((folder, grace_s))
        assert not job.attempts
        return 3 * len(asked) - 3

    monkeypatch.setattr(supervisor, "end_orphans", end)
    assert job.start(leaves(), told(TERM, 1), grace_s=7.0) == 1
    assert not [text for text in job.said if "processes" in text]
    job.attempts.clear()
    job.start()
    assert asked == [(str(job.path), 7.0), (str(job.path), reaper.GRACE_S)]
    assert "ended 3 processes that an earlier launcher of this job left behind" in job.said


def test_the_first_attempt_starts_at_once_and_others_when_they_asked_to(job: Job) -> None:
    wide = RetryRules(min_ranks=1, max_ranks=4)
    assert job.start(leaves(100.0, ranks=3), leaves(), rules=wide) == 0
    assert job.slept == [100.0] and job.rested == []
    assert [(a.number, a.ranks) for a in job.attempts] == [(1, 4), (2, 3), (3, 1)]
    assert [text for text in job.said if "waiting" in text] == ["waiting until 2023-11-14T22:15Z (100 s)"]


@pytest.mark.parametrize(("in_s", "rests"), [(REST_S, False), (REST_S + 1.0, True)])
def test_a_long_wait_gives_back_what_a_quick_restart_keeps(job: Job, in_s: float, rests: bool) -> None:
    assert job.start(leaves(in_s)) == 0
    assert job.rested == [0.0] * rests


def test_what_it_waits_for_is_on_disk_before_it_waits(job: Job) -> None:
    seen: list[dict[str, Any]] = []
    job.meanwhile = lambda: seen.append(job.state)
    job.start(leaves(50.0))
    assert [(s["phase"], s["not_before_unix_s"], s["attempt"]) for s in seen] == [("waiting", NOW_S + 50.0, 1)]
    assert job.state["not_before_unix_s"] is None


@pytest.mark.parametrize(("in_s", "text"), [(119.0, "119 s"), (120.0, "2 min"), (7199.0, "120 min"), (7200.0, "2.0 h")])
def test_waits_are_told_in_a_unit_that_people_read(job: Job, in_s: float, text: str) -> None:
    job.start(leaves(in_s))
    assert any(said.endswith(f"Z ({text})") for said in job.said)


class Room:
    """Takes the time between two attempts outside, as a scheduler does, where a test says so."""

    def __init__(self, *away: bool) -> None:
        self.answers = list(away)
        self.asked: list[tuple[float | None, int]] = []

    def away(self, until_unix_s: float | None, ranks: int) -> bool:
        self.asked.append((None if until_unix_s is None else until_unix_s - NOW_S, ranks))
        return self.answers.pop(0) if self.answers else False


def test_a_scheduler_that_starts_the_job_again_ends_this_process(job: Job) -> None:
    room, wide = Room(False, True), RetryRules(min_ranks=1, max_ranks=4)
    code = job.start(leaves(0.0, ranks=2), leaves(3600.0), rules=wide, waiting=lambda *_: (room, None))
    assert code == EXIT_REQUEUE and len(job.attempts) == 2
    assert room.asked == [(None, 2), (3600.0, 1)], "also where there is no wait: the width may be another one"
    assert job.state["phase"] == "waiting" and job.state["not_before_unix_s"] == NOW_S + 3600.0
    assert job.said[-1] == "somebody else starts this job again then"


def test_a_wait_of_less_than_a_moment_is_none(job: Job) -> None:
    room = Room()
    job.clock.s = 1000.0  # so small that a fraction of a millisecond is seen
    job.start(leaves(TOO_SHORT_S / 2), waiting=lambda *_: (room, None))
    assert [until for until, _ in room.asked] == [None] and not any("waiting" in text for text in job.said)


@pytest.mark.parametrize(("fits", "ranks"), [(None, 4), (3, 3), (9, 4), (1, 2)])
def test_the_width_of_an_allocation_is_that_of_its_attempt(job: Job, fits: int | None, ranks: int) -> None:
    asked: list[tuple[Any, ...]] = []

    def waiting(signals: Any, hand: LauncherFiles, width: int) -> tuple[Any, int | None]:
        asked.append((signals, hand.folder, width))
        return Room(), fits

    job.start(rules=RetryRules(min_ranks=2, max_ranks=4), waiting=waiting)
    assert [a.ranks for a in job.attempts] == [ranks] and asked == [(job, job.path, 4)]


def test_waiting_here_is_sleeping() -> None:
    until: list[float] = []

    def sleep(unix_s: float) -> bool:
        until.append(unix_s)
        return True

    assert LocalWaiting(sleep).away(5.0, 1) is False and LocalWaiting(sleep).away(None, 1) is False
    assert until == [5.0]


class Window:
    """Opens when a test says, and keeps what it was asked."""

    def __init__(self, *opens: float | None) -> None:
        self.answers = list(opens)
        self.asked: list[tuple[float, float]] = []

    def opens(self, unix_s: float, tokens_done: float) -> float | None:
        self.asked.append((unix_s - NOW_S, tokens_done))
        found = self.answers.pop(0) if self.answers else None
        return None if found is None else NOW_S + found


def test_a_green_start_waits_for_its_window_and_asks_again_then(job: Job) -> None:
    window = Window(100.0, 250.0, 250.0)
    assert job.start(window=window, green_start=True) == 0
    assert job.slept == [100.0, 250.0], "the forecast of then is better than that of now"
    assert window.asked == [(0.0, 0.0), (100.0, 0.0), (250.0, 0.0)]


def test_a_start_at_once_asks_for_the_window_from_the_second_attempt_on(job: Job) -> None:
    window = Window(90.0, None)
    assert job.start(leaves(steps=7), window=window) == 0
    assert window.asked == [(0.0, 70.0), (90.0, 70.0)] and job.slept == [90.0]


def test_a_time_that_was_asked_for_comes_before_the_window(job: Job) -> None:
    window = Window(None)
    job.start(leaves(60.0, steps=1), window=window)
    assert window.asked == [(60.0, 10.0)] and job.slept == [60.0]


# -- signals while nothing runs --------------------------------------------------------------------------------


def test_a_signal_in_a_wait_ends_it_and_the_job_goes_on_later(job: Job) -> None:
    job.meanwhile = lambda: job.signals.extend([signal.SIGUSR2, TERM])
    assert job.start(leaves(50.0)) == 128 + TERM
    assert job.state["phase"] == "waiting" and job.said[-1] == "ended by SIGTERM; the same command goes on"
    job.meanwhile = lambda: None
    assert job.start() == 0 and "goes on after attempt 1: attempt 1 left: grid" in job.said


def test_a_signal_before_the_first_attempt_starts_none(job: Job) -> None:
    job.signals = [signal.SIGHUP]
    assert job.start() == 128 + signal.SIGHUP and not job.attempts


def test_a_notice_in_a_wait_here_leaves_and_elsewhere_is_for_the_scheduler(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_END_TIME", "1700000300")
    job.signals = [USR1]
    assert job.start() == EXIT_REQUEUE and not job.attempts
    assert job.hand.notice() == Notice(attempt=0, reason="SIGUSR1 to the launcher", by_unix_s=NOW_S + 300.0)
    room = Room()
    job.signals = [USR1]
    assert job.start(waiting=lambda *_: (room, None)) == 0 and len(job.attempts) == 1
    assert job.hand.notice() is None, "a new attempt is not the one that was to leave"


# -- an attempt --------------------------------------------------------------------------------------------------


def test_an_attempt_is_on_disk_while_it_runs_and_its_moments_are_noted(job: Job) -> None:
    seen: list[dict[str, Any]] = []
    job.start(leaves(), looks(seen))
    ticks = reaper.stat(os.getpid())
    assert ticks is not None
    (state,) = seen
    assert (state["phase"], state["attempt"], state["steps"]) == ("running", 2, 1)
    assert (state["keeper_pid"], state["keeper_start_ticks"]) == (os.getpid(), ticks[2])
    assert job.state["phase"] == "done" and job.state["keeper_pid"] is None
    lines = [json.loads(line) for line in (job.path / "timeline.jsonl").read_text().splitlines()]
    assert [(m["what"], m["attempt"], m.get("ranks"), m.get("code")) for m in lines] == [
        ("start", 1, 1, None), ("ended", 1, None, 75), ("start", 2, 1, None), ("ended", 2, None, 0),
    ]  # fmt: skip


def test_a_reaper_that_is_gone_already_has_no_start(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaper, "stat", lambda pid: None)
    seen: list[dict[str, Any]] = []
    job.start(looks(seen))
    assert [state["keeper_start_ticks"] for state in seen] == [None]


def test_the_training_finds_what_its_launcher_can_do(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_CHECKPOINT, "/of/another/job")
    rules = RetryRules(min_ranks=2, max_ranks=8)
    found: list[Any] = []

    def look(job: Job, attempt: Attempt) -> int:
        found.append((job.hand.offer(), job.hand.notice(), job.hand.request(), attempt))
        job.hand.write(Notice(attempt=attempt.number, reason="old"))
        return job.ask(attempt.number, ranks=4, steps=attempt.number) if attempt.number == 1 else 0

    job.start(look, look, rules=rules, command=Command(words=("torchrun",), kind="torchrun", ranks=8))
    for n, (offer, notice, request, attempt) in enumerate(found, 1):
        ranks = (8, 4)[n - 1]
        assert offer == Offer(attempt=n, ranks=ranks, min_ranks=2, max_ranks=8, can_wait=True, job_unix_s=NOW_S)
        assert notice is None and request is None, "those of the attempt before are old"
        assert attempt.environ[ENV_DIR] == str(job.path) and ENV_CHECKPOINT not in attempt.environ
        assert attempt.environ["PATH"] == os.environ["PATH"] and not attempt.as_typed and attempt.checkpoint is None
    assert [text for text in job.said if text.startswith("attempt") and " left" not in text] == [
        "attempt 1 on 8 ranks", "attempt 2 on 4 ranks",
    ]  # fmt: skip
    names = {attempt.environ[ENV_JOB] for *_, attempt in found}
    assert len(names) == 1 and next(iter(names)).startswith("20231114-221320-"), "one name over all attempts"


def test_two_jobs_of_a_second_have_two_names(job: Job, tmp_path: Path) -> None:
    job.start()
    job.path = tmp_path / "other"
    job.start()
    first, second = (attempt.environ[ENV_JOB] for attempt in job.attempts)
    assert first[:16] == second[:16] and first != second


def test_a_command_on_several_nodes_is_told_what_its_rendezvous_needs(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
    several = Command(words=("torchrun",), kind="torchrun", ranks=2, several_nodes=True)
    rules = RetryRules(min_ranks=2, max_ranks=2)

    def environ(command: Command | None) -> str | None:
        job.path = job.path.with_name(f"job{len(job.attempts)}")
        job.start(command=command, rules=rules)
        offer = job.hand.offer()
        assert offer is not None and offer.can_wait is (command is None)
        return job.attempts[-1].environ.get(name)

    assert environ(several) == "1" and environ(None) is None
    monkeypatch.setenv(name, "0")
    assert environ(several) == "0", "what the user says counts"


@pytest.mark.parametrize(
    ("command", "low", "high", "as_typed"),
    [
        ({}, 1, 1, True),
        ({}, 2, 2, False),
        ({"ranks": 4}, 4, 4, True),
        ({"ranks": 4}, 1, 4, False),
        ({"ranks": 4}, 2, 2, False),
        ({"has_placeholder": True}, 1, 1, False),
    ],
)
def test_a_command_whose_width_is_its_own_is_run_as_it_was_typed(
    job: Job, command: Mapping[str, Any], low: int, high: int, as_typed: bool
) -> None:
    job.start(command=Command(words=("x",), kind="other", **command), rules=RetryRules(min_ranks=low, max_ranks=high))
    assert job.attempts[0].as_typed is as_typed
    assert (job.said[0] == "attempt 1") is (high == 1)


def test_the_newest_checkpoint_is_handed_over_and_torn_ones_are_named_once(job: Job, tmp_path: Path) -> None:
    folder = tmp_path / "ck"
    folder.mkdir()

    def save(job: Job, attempt: Attempt) -> int:
        path = folder / f"step_{attempt.number}"
        path.mkdir()
        (path / "a.json").write_text("{}")
        torn = folder / "step_9.pt"
        torn.touch()
        os.utime(torn, (4e9, 4e9))
        return job.ask(attempt.number)

    rules = RetryRules(min_ranks=1, max_ranks=1, checkpoint_folder=str(folder))
    assert job.start(*[save] * (LEAVES + 2), rules=rules) == 0, "a new checkpoint is progress"
    paths = [None, *(str(folder / f"step_{n}") for n in range(1, LEAVES + 3))]
    assert [attempt.checkpoint for attempt in job.attempts] == paths
    assert [attempt.environ.get(ENV_CHECKPOINT) for attempt in job.attempts] == paths
    assert len([text for text in job.said if text.startswith("checkpoint skipped: ") and "step_9.pt" in text]) == 1
    assert f"attempt 2 from {paths[1]}" in job.said


def test_a_folder_that_cannot_be_written_is_a_crash_and_tried_again(job: Job) -> None:
    (job.path / "offer.json").mkdir(parents=True)
    job.meanwhile = lambda: (job.path / "offer.json").rmdir()
    assert job.start() == 0
    assert [attempt.number for attempt in job.attempts] == [2] and 4.0 <= job.slept[0] <= 12.0
    assert any("exit code 74" in text and "try 1 of 3" in text for text in job.said)


def test_a_command_that_cannot_be_started_is_not_tried_again(job: Job) -> None:
    def fail(job: Job, attempt: Attempt) -> int:
        raise LaunchError("cannot start 'x': Exec format error")

    assert job.start(fail) == NOT_STARTED == 127
    assert job.state["phase"] == "failed" and job.state["keeper_pid"] is None and job.closed == 1
    assert job.said[-1] == job.state["said"] == "cannot start 'x': Exec format error"


# -- after an attempt ----------------------------------------------------------------------------------------------


def test_what_is_no_request_of_this_attempt_is_a_crash(job: Job) -> None:
    code = job.start(lambda job, attempt: job.ask(7) and 4, rules=RetryRules(min_ranks=1, max_ranks=1, retries=0))
    assert code == 4 and job.state["phase"] == "failed" and job.state["code"] == 4


def test_progress_is_a_step_more_than_ever_before(job: Job) -> None:
    steps = [5, 4, 5, 6, 6, 6, 6]

    def crash(job: Job, attempt: Attempt) -> int:
        number = attempt.number
        job.hand.write(Progress(attempt=number, steps=steps[number - 1], tokens=1.0, unix_s=0.0))
        return 1

    rules = RetryRules(min_ranks=1, max_ranks=1, retries=3, back_off_s=1.0)
    assert job.start(*[crash] * 7, rules=rules) == 1
    assert len(job.attempts) == 7 and job.state["failures"] == 4 and job.state["steps"] == 6


def test_a_failed_job_never_ends_with_0(job: Job) -> None:
    rules = RetryRules(min_ranks=1, max_ranks=1, checkpoint_folder=str(job.path / "none"))
    assert job.start(lambda job, attempt: job.ask(1) and 0, rules=rules) == 1 and job.state["phase"] == "failed"
    assert job.start(lambda job, attempt: Outcome(code=-9), rules=replace(rules, retries=0)) == 128 + 9
    assert "tried again after: attempt 1 left to be started again" in job.said[-3][:60]


def test_what_restarts_took_is_told_the_next_attempt(job: Job) -> None:
    def leave(job: Job, attempt: Attempt) -> int:
        job.clock.s += 3.0  # until the first step
        job.hand.mark("step", attempt.number)
        job.hand.mark("request", attempt.number)
        job.clock.s += 1.0
        offers.append(job.hand.offer())
        return job.ask(attempt.number, steps=attempt.number) if attempt.number < 3 else 0

    offers: list[Offer | None] = []
    job.start(leave, leave, leave)
    assert [None if offer is None else offer.resize_s for offer in offers] == [None, None, 4.0]
    assert job.state["resize_s"] == 4.0


# -- signals in an attempt ---------------------------------------------------------------------------------------


def test_a_signal_is_passed_on_with_a_grace_and_the_second_ends_it_now(job: Job) -> None:
    kill_s: list[float | None] = []

    def run(job: Job, attempt: Attempt) -> int:
        guide = job.guide
        assert guide is not None
        kill_s.append(guide.kill_s)
        for signum in (signal.SIGINT, signal.SIGTERM):
            guide.heed(signum)
            kill_s.append(guide.kill_s)
            job.clock.s += 2.0
        return -9

    assert job.start(run, grace_s=30.0) == 128 + 9
    assert kill_s == [None, 30.0, 2.0] and job.forwarded == [signal.SIGINT], "it was asked once"
    assert (job.state["phase"], job.state["failures"], job.state["code"]) == ("stopped", 0, -9)
    assert job.said[1:] == [
        "SIGINT: the training is asked to end, and killed if it has not after 30 s",
        "attempt 1 was ended (signal SIGKILL); the same command goes on",
    ]
    job.said.clear()
    assert job.start() == 0 and job.attempts[-1].number == 2


def test_a_training_that_leaves_at_a_signal_keeps_its_wish(job: Job) -> None:
    def run(job: Job, attempt: Attempt) -> int:
        told(TERM, 0)(job, attempt)
        return job.ask(1, in_s=500.0, steps=3)

    assert job.start(run) == EXIT_REQUEUE and len(job.attempts) == 1
    assert (job.state["phase"], job.state["not_before_unix_s"], job.state["steps"]) == ("stopped", NOW_S + 500.0, 3)
    assert job.start() == 0 and job.slept == [500.0]


def test_a_training_that_exits_to_be_started_again_at_a_signal_is_no_crash(job: Job) -> None:
    assert job.start(told(TERM, EXIT_REQUEUE)) == EXIT_REQUEUE
    assert job.state["phase"] == "stopped" and job.state["leaves"] == 1


def test_progress_of_an_attempt_that_was_ended_counts(job: Job) -> None:
    def run(job: Job, attempt: Attempt) -> int:
        job.hand.write(Progress(attempt=1, steps=9, tokens=1.0, unix_s=0.0))
        told(TERM, 1)(job, attempt)
        return 1

    job.start(run)
    assert job.state["steps"] == 9 and job.state["keeper_pid"] is None
    job.start(told(TERM, 1))
    assert job.state["steps"] == 9


def test_a_notice_is_handed_to_the_training_and_others_are_passed_on(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(job: Job, attempt: Attempt) -> int:
        assert job.guide is not None
        for signum in (USR1, signal.SIGUSR2):
            job.guide.heed(signum)
        assert job.guide.kill_s is None
        notices.append(job.hand.notice())
        return job.ask(attempt.number, steps=attempt.number)

    notices: list[Notice | None] = []
    assert job.start(run) == EXIT_REQUEUE, "here somebody ends this program, too"
    assert job.forwarded == [signal.SIGUSR2]
    assert "SIGUSR1: the training is asked to save and leave" in job.said
    monkeypatch.setenv("SLURM_JOB_END_TIME", "soon")
    job.start(run)
    monkeypatch.setenv("SLURM_JOB_END_TIME", "1700000300.5")
    job.start(run)
    reason = "SIGUSR1 to the launcher"
    assert notices == [
        Notice(attempt=n, reason=reason, by_unix_s=t) for n, t in ((1, None), (2, None), (3, 17e8 + 300.5))
    ]


def test_a_notice_that_is_obeyed_in_a_batch_system_waits_there(job: Job) -> None:
    room = Room(True)
    code = job.start(lambda job, attempt: told(USR1, 0)(job, attempt) or job.ask(1), waiting=lambda *_: (room, None))
    assert code == EXIT_REQUEUE and room.asked == [(None, 1)]


def test_a_notice_that_cannot_be_written_is_said(job: Job) -> None:
    def run(job: Job, attempt: Attempt) -> int:
        (job.path / "notice.json").mkdir()
        told(USR1, 0)(job, attempt)
        return 0

    assert job.start(run) == 0
    assert any(text.startswith("but the notice cannot be written: ") for text in job.said)


# -- a supervisor after another one -----------------------------------------------------------------------------


def test_a_job_goes_on_where_a_killed_launcher_was(job: Job) -> None:
    job.keep(phase="running", attempt=3, ranks=1, keeper_pid=7)
    job.hand.write(Offer(attempt=3, ranks=1, min_ranks=1, max_ranks=1, can_wait=True))
    seen: list[dict[str, Any]] = []
    assert job.start(looks(seen)) == 0
    assert job.attempts[0].number == 4 and job.slept == []
    assert job.said[0] == "takes up attempt 3, whose launcher was killed"
    assert seen[0]["said"] == "the launcher was killed during this attempt"
    ended = json.loads((job.path / "timeline.jsonl").read_text().splitlines()[0])
    assert (ended["what"], ended["attempt"]) == ("ended", 3)


@pytest.mark.parametrize(("of", "waits"), [(3, [200.0]), (2, [])])
def test_what_the_last_attempt_of_a_killed_launcher_asked_for_still_holds(
    job: Job, of: int, waits: list[float]
) -> None:
    job.keep(phase="running", attempt=3)
    job.ask(of, in_s=200.0)
    assert job.start() == 0 and job.slept == waits
    assert "takes up attempt 3, whose launcher was killed" in job.said


def test_a_killed_launchers_last_attempt_does_not_start_from_zero_either(job: Job) -> None:
    """It left to be started again, and left no checkpoint: whoever restarts the launcher is no person who looked."""
    rules = RetryRules(min_ranks=1, max_ranks=1, checkpoint_folder=str(job.path / "none"))
    job.keep(phase="running", attempt=3)
    job.ask(3)
    assert job.start(rules=rules) == EXIT_REQUEUE and not job.attempts
    assert job.state["phase"] == "failed" and "would start from zero" in job.state["said"]
    assert job.start(rules=rules) == 0 and len(job.attempts) == 1, "now somebody did"


def test_a_failed_job_that_a_person_starts_has_all_its_tries_again(job: Job) -> None:
    job.keep(phase="failed", attempt=4, failures=4, leaves=5, not_before_unix_s=NOW_S + 99.0, said="it broke")
    seen: list[dict[str, Any]] = []
    assert job.start(looks(seen)) == 0
    assert (seen[0]["failures"], seen[0]["leaves"], seen[0]["attempt"]) == (0, 0, 5) and job.slept == []
    assert job.said[0] == "tried again after: it broke"


def test_a_new_job_says_nothing_of_one_before(job: Job) -> None:
    job.start()
    assert job.said == ["attempt 1", "finished in attempt 1"]


@pytest.mark.parametrize(
    ("command", "kept", "ranks"), [(None, None, 4), (3, None, 3), (3, 2, 2), (None, 9, 4), (1, None, 2)]
)
def test_a_job_begins_at_the_width_of_its_command_and_within_its_bounds(
    job: Job, command: int | None, kept: int | None, ranks: int
) -> None:
    if kept is not None:
        job.keep(phase="waiting", ranks=kept)
    job.start(
        command=Command(words=("torchrun",), kind="torchrun", ranks=command),
        rules=RetryRules(min_ranks=2, max_ranks=4),
    )
    assert job.attempts[0].ranks == ranks


def test_a_torn_state_is_told_and_the_offer_says_where_the_job_was(job: Job) -> None:
    job.path.mkdir()
    (job.path / "state.json").write_text("{torn")
    job.hand.write(Offer(attempt=6, ranks=3, min_ranks=1, max_ranks=8, can_wait=True, job_unix_s=NOW_S - 99.0))
    job.start(rules=RetryRules(min_ranks=1, max_ranks=8))
    assert "cannot be read" in job.said[0]
    assert (job.attempts[0].number, job.attempts[0].ranks) == (7, 3)
    assert job.state["created_unix_s"] == NOW_S - 99.0 and job.state["command"] == ["train"]
    (job.path / "state.json").write_text("{torn")
    job.hand.write(Offer(attempt=7, ranks=3, min_ranks=1, max_ranks=8, can_wait=True))
    job.start(rules=RetryRules(min_ranks=1, max_ranks=8))
    assert job.state["created_unix_s"] == NOW_S, "nobody knows better"


def test_a_state_that_cannot_be_written_is_said_and_training_goes_on(job: Job) -> None:
    (job.path / "state.json" / "x").mkdir(parents=True)
    (job.path / "state.torn.json" / "y").mkdir(parents=True)
    assert job.start() == 0
    assert len([text for text in job.said if "a restart of the launcher would not know" in text]) >= 3


@pytest.mark.parametrize(("typed", "other"), [(["train", "-x"], False), (["train", "-y"], True)])
def test_a_job_that_goes_on_is_called_another_one_only_where_its_command_is(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    typed: list[str], other: bool,
) -> None:  # fmt: skip
    """The command is kept with its program as it was found on PATH."""
    from greentrain.cli.app import app

    program = tmp_path / "train"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(Supervisor, "run", lambda self: 0)
    job.keep(phase="failed", command=(str(program), "-x"), said="it broke")
    with pytest.raises(SystemExit) as end:
        app(["launch", "--dir", str(job.path), "--", *typed])
    out = "".join(capsys.readouterr())
    assert end.value.code == 0 and (f"holds the job of {program} -x: it goes on with this command" in out) is other
