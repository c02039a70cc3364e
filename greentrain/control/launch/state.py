"""What a job's supervisor must know after its own end: one file, replaced at once, under a lock."""

import contextlib
import fcntl
import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from greentrain.errors import ConfigError, RunFolderError
from greentrain.utils.files import write_json

FORMAT: Final = 1
STATE: Final = "state.json"
LOCK: Final = "lock"
PHASES: Final = ("new", "running", "waiting", "stopped", "failed", "done")


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A job between two attempts, or in one."""

    command: tuple[str, ...]
    """As it was typed."""
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
    def from_dict(cls, data: Mapping[str, Any]) -> "State":
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

    def load(self) -> tuple[State | None, str]:
        """Return the state and why there is none; a file that cannot be read is set aside."""
        path = self.path / STATE
        try:
            return State.from_dict(json.loads(path.read_text(encoding="utf-8"))), ""
        except FileNotFoundError:
            return None, ""
        except (OSError, ValueError) as error:
            aside = path.with_suffix(".torn.json")
            with contextlib.suppress(OSError):
                path.replace(aside)
            return None, f"{path} cannot be read ({error}); it is kept as {aside.name}, and attempts are counted anew"

    def save(self, state: State) -> str:
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


def read_state(folder: Path) -> State:
    """Return the state of a job, held by somebody or not.

    Raises:
        ConfigError: There is none.
    """
    try:
        return State.from_dict(json.loads((folder / STATE).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder} holds no job of greentrain launch ({error}); name its --dir") from error
