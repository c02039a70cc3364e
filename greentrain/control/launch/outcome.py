"""What follows from the end of an attempt: done, again, or a person has to look."""

import math
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from greentrain.control.launch.state import State
from greentrain.control.launcher_protocol import EXIT_REQUEUE, Request

LEAVES: Final = 5
"""Exits with 75 in a row, none with a step more, after which a job is called a loop. One without progress is usual: a
resize that the grid called back."""
LONGEST_BACK_OFF_S: Final = 600.0
LONGEST_WAIT_S: Final = 366 * 86_400.0
"""A request for later than this is a mistake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How an attempt ended."""

    code: int
    """Exit code, below 0 for a signal."""
    last_lines: tuple[str, ...] = ()
    """Of what it said on standard error; empty where nobody listened."""
    lasted_s: float = 0.0

    def __str__(self) -> str:
        if self.code >= 0:
            return f"exit code {self.code}"
        try:
            return f"signal {signal.Signals(-self.code).name}"
        except ValueError:
            return f"signal {-self.code}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the user allows."""

    min_ranks: int
    max_ranks: int
    retries: int = 3
    """Crashes in a row without progress that are answered with another attempt."""
    back_off_s: float = 10.0
    """Wait after the first crash (s); doubled with each one, up to LONGEST_BACK_OFF_S."""
    checkpoint_folder: str | None = None
    """Where checkpoints must be found; None: the training knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is done."""

    state: State
    """With phase ``waiting``, ``failed`` or ``done``."""
    said: str
    """For people."""


def classify_exit(
    state: State,
    outcome: Outcome,
    request: Request | None,
    *,
    rules: Rules,
    progressed: bool,
    has_checkpoint: bool | None,
    unix_s: float,
    chance: Callable[[], float] = random.random,
) -> Verdict:
    """Return what follows.

    Args:
        state: Of the attempt that has ended.
        outcome: How.
        request: What the training asked for; that of another attempt counts as none.
        rules: What is allowed.
        progressed: Whether it left more than it found.
        has_checkpoint: Whether a whole checkpoint is there; None: nobody looked.
        unix_s: Now (s since the epoch).
        chance: Returns a number in 0..1, for the back-off: many jobs on a node must not come back at once.
    """
    if request is not None and request.attempt != state.attempt:
        request = None
    if progressed:
        state = replace(state, failures=0, leaves=0)
    state = replace(state, code=outcome.code, not_before_unix_s=None, keeper_pid=None, keeper_start_ticks=None)
    if request is not None or outcome.code == EXIT_REQUEUE:
        return _left(state, request, rules, has_checkpoint, unix_s)
    if outcome.code == 0:
        return _verdict(state, "done", f"finished in attempt {state.attempt}")
    return _crashed(state, outcome, rules, unix_s, chance)


def _left(state: State, request: Request | None, rules: Rules, has_checkpoint: bool | None, unix_s: float) -> Verdict:
    state = replace(state, leaves=state.leaves + 1, failures=0)
    reason = "it asked to be started again" if request is None else request.reason
    if has_checkpoint is False:
        return _verdict(
            state,
            "failed",
            f"attempt {state.attempt} left to be started again ({reason}), but {rules.checkpoint_folder} holds no whole"
            " checkpoint, so it would start from zero: let the script save there where green.checkpoint_due is true, or"
            " name the folder that it saves to with --checkpoints",
        )
    if state.leaves > LEAVES:
        return _verdict(
            state,
            "failed",
            f"{state.leaves} attempts in a row left to be started again ({reason}) and none got further than the one"
            " before: check that the script loads GREENTRAIN_CHECKPOINT and calls green.checkpoint() after saving",
        )
    ranks, note = state.ranks, ""
    not_before = None
    if request is not None:
        ranks = min(max(request.ranks, rules.min_ranks), rules.max_ranks)
        if ranks != request.ranks:
            note = f"; it asked for {request.ranks} ranks, allowed are {rules.min_ranks} to {rules.max_ranks}"
        not_before = request.not_before_unix_s
        if not_before is not None and (not math.isfinite(not_before) or not_before > unix_s + LONGEST_WAIT_S):
            note += f"; it asked to be started at {not_before:g} (s since the epoch), which is not done"
            not_before = None
    state = replace(state, ranks=ranks, not_before_unix_s=not_before)
    return _verdict(state, "waiting", f"attempt {state.attempt} left: {reason}{note}")


def _crashed(state: State, outcome: Outcome, rules: Rules, unix_s: float, chance: Callable[[], float]) -> Verdict:
    state = replace(state, failures=state.failures + 1)
    ended = f"attempt {state.attempt} ended with {outcome} after {outcome.lasted_s:.0f} s"
    if state.failures > rules.retries:
        last = "".join(f"\n    {line}" for line in outcome.last_lines)
        count = f"{state.failures} times" if state.failures > 1 else "once"
        return _verdict(
            state,
            "failed",
            f"{ended}; the job has now crashed {count} without getting further, so it is not started again (--retries"
            f" {rules.retries}): mend it and run the same command" + (f". Its last lines were:{last}" if last else ""),
        )
    wait_s = min(LONGEST_BACK_OFF_S, rules.back_off_s * 2.0 ** (state.failures - 1)) * (0.5 + chance())
    state = replace(state, not_before_unix_s=unix_s + wait_s)
    return _verdict(state, "waiting", f"{ended}; try {state.failures} of {rules.retries} in {wait_s:.0f} s")


def _verdict(state: State, phase: str, said: str) -> Verdict:
    return Verdict(state=replace(state, phase=phase, said=said), said=said)
