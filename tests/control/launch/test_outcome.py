"""What follows from the end of an attempt."""

import math
import os
import signal
import stat
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greentrain.control.launch.outcome import (
    LEAVES,
    LONGEST_BACK_OFF_S,
    LONGEST_WAIT_S,
    JobFolder,
    JobState,
    Outcome,
    RetryRules,
    classify_exit,
    read_state,
)
from greentrain.control.launcher_protocol import EXIT_REQUEUE, Request
from greentrain.errors import ConfigError, RunFolderError

RULES = RetryRules(min_ranks=1, max_ranks=4, retries=3, back_off_s=10.0)
STATE = JobState(command=("x",), created_unix_s=0.0, phase="running", attempt=2, ranks=2)


def ask(ranks: int = 1, at_s: float | None = None, attempt: int = 2) -> Request:
    return Request(attempt=attempt, ranks=ranks, not_before_unix_s=at_s, reason="grid")


def verdict(
    code: int, request: Request | None = None, state: JobState = STATE, progressed: bool = False, chance: float = 0.5
) -> JobState:
    return classify_exit(
        state,
        Outcome(code=code),
        request,
        rules=RULES,
        progressed=progressed,
        has_checkpoint=None,
        unix_s=1000.0,
        chance=lambda: chance,
    )


def test_width_and_time_are_those_of_the_request() -> None:
    state = verdict(75, ask(3, 2000.0))
    assert (state.phase, state.ranks, state.not_before_unix_s) == ("waiting", 3, 2000.0)
    assert verdict(75).ranks == 2


@pytest.mark.parametrize(("asked", "granted"), [(0, 1), (9, 4), (-3, 1)])
def test_a_width_outside_the_bounds_is_cut_and_said(asked: int, granted: int) -> None:
    found = verdict(75, ask(asked))
    assert found.ranks == granted and f"asked for {asked} ranks, allowed are 1 to 4" in found.said


@pytest.mark.parametrize("at_s", [math.nan, math.inf, 1e12])
def test_a_time_that_cannot_be_meant_is_no_wait(at_s: float) -> None:
    found = verdict(75, ask(1, at_s))
    assert found.not_before_unix_s is None and "which is not done" in found.said


@given(failures=st.integers(0, 2), chance=st.floats(0.0, 1.0))
def test_the_back_off_doubles_within_its_jitter(failures: int, chance: float) -> None:
    state = verdict(1, state=replace(STATE, failures=failures), chance=chance)
    wait_s = (state.not_before_unix_s or 0.0) - 1000.0
    assert 0.5 <= wait_s / (10.0 * 2**failures) <= 1.5
    assert state.failures == failures + 1


def test_the_back_off_has_an_upper_bound() -> None:
    rules = replace(RULES, retries=1000)
    found = classify_exit(
        replace(STATE, failures=900), Outcome(code=1), None,
        rules=rules, progressed=False, has_checkpoint=None, unix_s=0.0, chance=lambda: 1.0,
    )  # fmt: skip
    assert found.not_before_unix_s == 1.5 * LONGEST_BACK_OFF_S


def test_progress_forgives_crashes_and_leaves() -> None:
    worn = replace(STATE, failures=3, leaves=LEAVES)
    assert verdict(1, state=worn).phase == "failed"
    assert verdict(1, state=worn, progressed=True).failures == 1
    assert verdict(75, ask(), worn).phase == "failed"
    assert verdict(75, ask(), worn, progressed=True).leaves == 1


def test_an_end_without_a_wish_is_what_its_code_says() -> None:
    done = verdict(0)
    assert (done.phase, done.said) == ("done", "finished in attempt 2")
    assert (done.failures, done.leaves, done.code) == (0, 0, 0)
    left = verdict(EXIT_REQUEUE)
    assert (left.phase, left.leaves, left.not_before_unix_s) == ("waiting", 1, None)
    assert left.said == "attempt 2 left: it asked to be started again"
    crashed = verdict(-9)
    assert (crashed.phase, crashed.failures, crashed.code) == ("waiting", 1, -9)
    assert crashed.said == "attempt 2 ended with signal SIGKILL after 0 s; try 1 of 3 in 10 s"


def test_what_an_attempt_has_left_counts_whatever_its_code_and_that_of_another_does_not() -> None:
    for code in (0, 1, -15):
        assert verdict(code, ask(3, 2000.0)).ranks == 3
    old = ask(3, 2000.0, attempt=1)
    assert verdict(0, old).phase == "done" and verdict(1, old).failures == 1
    again = verdict(EXIT_REQUEUE, old)
    assert (again.phase, again.ranks, again.not_before_unix_s) == ("waiting", 2, None)


def test_the_next_attempt_waits_for_nothing_of_the_one_before_and_has_no_reaper_yet() -> None:
    state = replace(STATE, not_before_unix_s=9e9, keeper_pid=7, keeper_start_ticks=8, failures=2)
    for code, request in ((EXIT_REQUEUE, None), (0, None), (EXIT_REQUEUE, ask())):
        found = verdict(code, request, state)
        assert (found.not_before_unix_s, found.keeper_pid, found.keeper_start_ticks) == (None, None, None)
    assert verdict(EXIT_REQUEUE, None, state).failures == 0, "who leaves has not crashed"


def test_leaving_in_a_row_is_a_loop_after_its_bound() -> None:
    assert verdict(75, ask(), replace(STATE, leaves=LEAVES - 1)).phase == "waiting"
    found = verdict(75, ask(), replace(STATE, leaves=LEAVES))
    assert found.phase == "failed" and found.said.startswith("6 attempts in a row left") and "(grid)" in found.said


def test_a_wait_is_as_long_as_a_year_and_no_longer() -> None:
    assert verdict(75, ask(2, 1000.0 + LONGEST_WAIT_S)).not_before_unix_s == 1000.0 + LONGEST_WAIT_S
    late = verdict(75, ask(2, 1001.0 + LONGEST_WAIT_S))
    assert late.not_before_unix_s is None and "it asked to be started at 3.16" in late.said
    assert verdict(75, ask(2, 5.0)).said == "attempt 2 left: grid", "a time that has passed is now"


@pytest.mark.parametrize(("found", "phase"), [(None, "waiting"), (True, "waiting"), (False, "failed")])
def test_who_leaves_without_a_checkpoint_would_start_from_zero(found: bool | None, phase: str) -> None:
    rules = replace(RULES, checkpoint_folder="/ck")
    decided = classify_exit(
        STATE, Outcome(code=75), ask(), rules=rules, progressed=True, has_checkpoint=found, unix_s=1000.0
    )
    assert decided.phase == phase
    assert ("/ck holds no whole checkpoint" in decided.said) is (phase == "failed")


def crash(failures: int, retries: int, *lines: str) -> JobState:
    return classify_exit(
        replace(STATE, failures=failures),
        Outcome(code=3, last_lines=lines, lasted_s=61.6),
        None,
        rules=replace(RULES, retries=retries),
        progressed=False,
        has_checkpoint=None,
        unix_s=1000.0,
        chance=lambda: 0.0,
    )


def test_after_the_last_try_a_person_has_to_look() -> None:
    last = crash(2, 3)
    assert last.phase == "waiting" and last.not_before_unix_s == 1000.0 + 20.0
    assert last.said == "attempt 2 ended with exit code 3 after 62 s; try 3 of 3 in 20 s"
    over = crash(3, 3, "Trace", "Oops")
    assert over.phase == "failed" and over.not_before_unix_s is None
    assert "has now crashed 4 times without getting further" in over.said and "(--retries 3)" in over.said
    assert over.said.endswith("run the same command. Its last lines were:\n    Trace\n    Oops")
    once = crash(0, 0)
    assert "has now crashed once without" in once.said and once.said.endswith("mend it and run the same command")


def test_the_chance_spreads_jobs_that_crash_at_once() -> None:
    waits_s = {(verdict(1, chance=chance).not_before_unix_s or 0.0) - 1000.0 for chance in (0.0, 0.5, 1.0)}
    assert waits_s == {5.0, 10.0, 15.0}
    real = classify_exit(STATE, Outcome(code=1), None, rules=RULES, progressed=False, has_checkpoint=None, unix_s=0.0)
    assert 5.0 <= (real.not_before_unix_s or 0.0) <= 15.0


@pytest.mark.parametrize(
    ("code", "text"), [(0, "exit code 0"), (3, "exit code 3"), (-11, "signal SIGSEGV"), (-99, "signal 99")]
)
def test_how_an_attempt_ended_is_told_in_words(code: int, text: str) -> None:
    assert str(Outcome(code=code)) == text


# -- on disk -----------------------------------------------------------------------------------------------------

WHOLE = replace(STATE, phase="waiting", not_before_unix_s=5.0, steps=7, checkpoint="/ck@1", said="it left", code=-9)


def test_a_state_comes_back_as_it_was_and_nobody_else_reads_it(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path / "a" / "job")
    assert folder.load() == (None, "")
    assert folder.save(WHOLE) == "" and folder.load() == (WHOLE, "") and read_state(folder.path) == WHOLE
    assert stat.S_IMODE((folder.path / "state.json").stat().st_mode) == 0o600, "the command may hold a key"
    folder.close()
    folder.close()


@pytest.mark.parametrize(
    "changed",
    [
        {"format": 2},
        {"phase": "asleep"},
        {"attempt": -1},
        {"attempt": "two"},
        {"ranks": 0},
        {"created_unix_s": math.inf},
        {"created_unix_s": None},
        {"not_before_unix_s": math.nan},
        {"command": None},
    ],
)
def test_a_state_that_cannot_be_is_none(changed: dict[str, Any]) -> None:
    data = {**WHOLE.to_dict(), **changed}
    with pytest.raises(ValueError, match=r"format is not 1|phase|not finite|lacks something"):
        JobState.from_dict(data)


def test_a_state_of_a_later_version_with_more_in_it_is_read() -> None:
    assert JobState.from_dict({**WHOLE.to_dict(), "colour": "red"}) == WHOLE
    least = {"format": 1, "command": ["x"], "created_unix_s": 0.0}
    assert JobState.from_dict(least) == JobState(command=("x",), created_unix_s=0.0)
    assert JobState.from_dict({**least, "attempt": 0, "ranks": 1}).ranks == 1
    with pytest.raises(ValueError, match="lacks something"):
        JobState.from_dict({"format": 1})
    with pytest.raises(ValueError, match="format"):
        JobState.from_dict([])  # type: ignore[arg-type]
    assert {**asdict(WHOLE), "format": 1} == WHOLE.to_dict()


def test_a_torn_state_is_kept_aside_and_named(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path)
    (tmp_path / "state.json").write_text("{torn")
    state, why = folder.load()
    assert state is None and "it is kept as state.torn.json, and attempts are counted anew" in why
    assert (tmp_path / "state.torn.json").read_text() == "{torn" and not (tmp_path / "state.json").exists()
    with pytest.raises(ConfigError, match=r"holds no job of greentrain launch .*name its --dir"):
        read_state(tmp_path)
    (tmp_path / "state.json").mkdir()
    assert "cannot be written" in folder.save(WHOLE)
    folder.close()


def test_one_supervisor_holds_a_folder(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("123456789012\n")  # of one that has ended
    folder = JobFolder(tmp_path)
    assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
    with pytest.raises(RunFolderError, match=rf"in use by another greentrain launch \(process {os.getpid()}\): wait"):
        JobFolder(tmp_path)
    folder.close()
    before = len(os.listdir("/proc/self/fd"))
    again = JobFolder(tmp_path)
    for _ in range(3):
        with pytest.raises(RunFolderError):
            JobFolder(tmp_path)
    again.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_folder_that_cannot_be_made_is_said_with_its_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match=r"cannot write to the launch folder .*file/job.*--dir"):
        JobFolder(tmp_path / "file" / "job")


def test_a_relative_folder_is_the_same_after_a_change_of_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = JobFolder(Path("job"))
    assert folder.path == tmp_path / "job"
    folder.close()


def test_signals_have_names_everywhere() -> None:
    assert str(Outcome(code=-int(signal.SIGTERM))) == "signal SIGTERM"
