"""What follows from the end of an attempt."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greentrain.control.launch.outcome import (
    LEAVES,
    LONGEST_BACK_OFF_S,
    ExitDecision,
    JobState,
    Outcome,
    RetryRules,
    classify_exit,
)
from greentrain.control.launcher_protocol import Request

RULES = RetryRules(min_ranks=1, max_ranks=4, retries=3, back_off_s=10.0)
STATE = JobState(command=("x",), created_unix_s=0.0, phase="running", attempt=2, ranks=2)


def ask(ranks: int = 1, at_s: float | None = None, attempt: int = 2) -> Request:
    return Request(attempt=attempt, ranks=ranks, not_before_unix_s=at_s, reason="grid")


def verdict(
    code: int, request: Request | None = None, state: JobState = STATE, progressed: bool = False, chance: float = 0.5
) -> ExitDecision:
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
    state = verdict(75, ask(3, 2000.0)).state
    assert (state.phase, state.ranks, state.not_before_unix_s) == ("waiting", 3, 2000.0)
    assert verdict(75).state.ranks == 2


@pytest.mark.parametrize(("asked", "granted"), [(0, 1), (9, 4), (-3, 1)])
def test_a_width_outside_the_bounds_is_cut_and_said(asked: int, granted: int) -> None:
    found = verdict(75, ask(asked))
    assert found.state.ranks == granted and f"asked for {asked} ranks, allowed are 1 to 4" in found.said


@pytest.mark.parametrize("at_s", [math.nan, math.inf, 1e12])
def test_a_time_that_cannot_be_meant_is_no_wait(at_s: float) -> None:
    found = verdict(75, ask(1, at_s))
    assert found.state.not_before_unix_s is None and "which is not done" in found.said


@given(failures=st.integers(0, 2), chance=st.floats(0.0, 1.0))
def test_the_back_off_doubles_within_its_jitter(failures: int, chance: float) -> None:
    from dataclasses import replace

    state = verdict(1, state=replace(STATE, failures=failures), chance=chance).state
    wait_s = (state.not_before_unix_s or 0.0) - 1000.0
    assert 0.5 <= wait_s / (10.0 * 2**failures) <= 1.5
    assert state.failures == failures + 1


def test_the_back_off_has_an_upper_bound() -> None:
    from dataclasses import replace

    rules = replace(RULES, retries=1000)
    found = classify_exit(
        replace(STATE, failures=900), Outcome(code=1), None,
        rules=rules, progressed=False, has_checkpoint=None, unix_s=0.0, chance=lambda: 1.0,
    )  # fmt: skip
    assert found.state.not_before_unix_s == 1.5 * LONGEST_BACK_OFF_S


def test_progress_forgives_crashes_and_leaves() -> None:
    from dataclasses import replace

    worn = replace(STATE, failures=3, leaves=LEAVES)
    assert verdict(1, state=worn).state.phase == "failed"
    assert verdict(1, state=worn, progressed=True).state.failures == 1
    assert verdict(75, ask(), worn).state.phase == "failed"
    assert verdict(75, ask(), worn, progressed=True).state.leaves == 1
