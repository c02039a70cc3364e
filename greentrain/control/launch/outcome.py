"""What follows from the end of an attempt: done, again, or a person has to look.

What a job's supervisor must know after its own end is one file, replaced at once, under a lock (:class:`JobFolder`).
"""

import contextlib
import fcntl
import json
import math
import os
import random
import signal
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from greentrain.control.launcher_protocol import EXIT_REQUEUE, Request
from greentrain.errors import ConfigError, RunFolderError
from greentrain.utils.files import write_json

FORMAT: Final = 1
STATE: Final = "state.json"
LOCK: Final = "lock"
PHASES: Final = ("new", "running", "waiting", "stopped", "failed", "done")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """A job between two attempts, or in one."""

    command: tuple[str, ...]
    """As it was typed, the program as it was found."""
    created_unix_s: float
    """First start of the job (s since the epoch): its deadline counts from there."""
    phase: str = "new"
    """``new``, ``running``, ``waiting``, ``stopped`` (by a signal), ``failed`` (needs a person) or ``done``."""
    attempt: int = 0
    """The running or last one, from 1 on."""
    ranks: int = 1
    """Of the running attempt, or of the next one."""
    not_before_unix_s: float | None = None
    """When the next attempt may start (s since the epoch); None: at once."""
    failures: int = 0
    """Crashes since the last progress."""
    leaves: int = 0
    """Exits with 75 since the last progress."""
    steps: int = -1
    """Of the newest progress.json; -1: there was none."""
    checkpoint: str | None = None
    """Newest whole one, with its time, after the last attempt: another one is progress."""
    resize_s: float | None = None
    """Mean seconds without training that a restart took; None: not measured."""
    keeper_pid: int | None = None
    keeper_start_ticks: int | None = None
    """Of the running attempt; together they name one process."""
    said: str = ""
    """How the last attempt ended, for people."""
    code: int | None = None
    """Of the last attempt, below 0 for a signal."""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "JobState":
        """Return what :meth:`to_dict` wrote.

        Raises:
            ValueError: It is no state of this version.
        """
        if not isinstance(data, Mapping) or data.get("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT}")
        names = {field.name for field in fields(cls)}
        values = {key: value for key, value in data.items() if key in names}
        try:
            state = cls(**{**values, "command": tuple(map(str, values["command"]))})
            if state.phase not in PHASES or state.attempt < 0 or state.ranks < 1:
                raise ValueError(f"phase {state.phase!r}, attempt {state.attempt}, ranks {state.ranks}")
            if not all(math.isfinite(t) for t in (state.created_unix_s, state.not_before_unix_s or 0.0)):
                raise ValueError("a time in it is not finite")
        except (KeyError, TypeError) as error:
            raise ValueError(f"it lacks something: {error}") from error
        return state

    def to_dict(self) -> dict[str, Any]:
        """Return the state in plain JSON types."""
        return {"format": FORMAT, **asdict(self)}


class JobFolder:
    """The folder of one job, held by one supervisor at a time.

    Args:
        path: The folder; it is made where it is not.

    Raises:
        RunFolderError: It cannot be made or written to, or another supervisor holds it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise RunFolderError(
                f"cannot write to the launch folder {self.path}: {error.strerror}; name another one with --dir"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(self._lock, 32).decode(errors="replace").strip()
            os.close(self._lock)
            raise RunFolderError(
                f"{self.path} is in use by another greentrain launch{f' (process {holder})' if holder else ''}:"
                " wait for its end, or name another folder with --dir"
            ) from error
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def load(self) -> tuple[JobState | None, str]:
        """Return the state and why there is none; a file that cannot be read is set aside."""
        path = self.path / STATE
        try:
            return JobState.from_dict(json.loads(path.read_text(encoding="utf-8"))), ""
        except FileNotFoundError:
            return None, ""
        except (OSError, ValueError) as error:
            aside = path.with_suffix(".torn.json")
            with contextlib.suppress(OSError):
                path.replace(aside)
            return None, f"{path} cannot be read ({error}); it is kept as {aside.name}, and attempts are counted anew"

    def save(self, state: JobState) -> str:
        """Write the state; return what went wrong, empty for nothing."""
        try:
            write_json(self.path / STATE, state.to_dict(), private=True)  # the command may hold a key
        except OSError as error:
            return f"{self.path / STATE} cannot be written ({error.strerror}): a restart of the launcher would not know"
        return ""

    def close(self) -> None:
        """Let another supervisor have it. Idempotent."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def read_state(folder: Path) -> JobState:
    """Return the state of a job, held by somebody or not.

    Raises:
        ConfigError: There is none.
    """
    try:
        return JobState.from_dict(json.loads((folder / STATE).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder} holds no job of greentrain launch ({error}); name its --dir") from error


def is_held(folder: Path) -> bool:
    """Return whether a supervisor holds the folder of a job."""
    try:
        with (folder / LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # none was ever made here
        pass
    return False


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
class RetryRules:
    """What the user allows."""

    min_ranks: int
    max_ranks: int
    retries: int = 3
    """Crashes in a row without progress that are answered with another attempt."""
    back_off_s: float = 10.0
    """Wait after the first crash (s); doubled with each one, up to LONGEST_BACK_OFF_S."""
    checkpoint_folder: str | None = None
    """Where checkpoints must be found; None: the training knows."""


def classify_exit(
    state: JobState,
    outcome: Outcome,
    request: Request | None,
    *,
    rules: RetryRules,
    progressed: bool,
    has_checkpoint: bool | None,
    unix_s: float,
    chance: Callable[[], float] = random.random,
) -> JobState:
    """Return what follows: a state with phase ``waiting``, ``failed`` or ``done``, and with the reason for people.

    Args:
        state: State of the job in the attempt that has ended.
        outcome: Outcome of that attempt: exit code, last lines, duration.
        request: Request that the training left; that of another attempt counts as none.
        rules: Rules of what the user allows.
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


def _left(
    state: JobState, request: Request | None, rules: RetryRules, has_checkpoint: bool | None, unix_s: float
) -> JobState:
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


def _crashed(
    state: JobState, outcome: Outcome, rules: RetryRules, unix_s: float, chance: Callable[[], float]
) -> JobState:
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


def _verdict(state: JobState, phase: str, said: str) -> JobState:
    return replace(state, phase=phase, said=said)
