"""What a training process and its launcher tell each other: small files in a folder that both know.

::

    greentrain launch                                     training, rank 0
      offer.json    attempt, ranks, what is possible  ──►  the plan leaves out what nobody can do
      notice.json   leave, and by when                ──►  checkpoint at the next step, then exit 75
      request.json  ranks, not before, why            ◄──  written before an exit with 75
      progress.json steps and tokens in a checkpoint  ◄──  whether an attempt got anywhere
      timeline.jsonl moments of a resize              ◄─►  both: where its seconds went

Whole files are replaced at once, so a reader never sees half of one; one that is torn or foreign counts as none.
"""

import contextlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from greentrain.utils.files import replace_file

EXIT_REQUEUE: Final = 75
"""Exit code of a process that has written a checkpoint and is to be started again: EX_TEMPFAIL of sysexits.h."""
ENV_DIR: Final = "GREENTRAIN_LAUNCH_DIR"
"""Variable that names the folder to the training."""
ENV_CHECKPOINT: Final = "GREENTRAIN_CHECKPOINT"
"""Variable that names the newest whole checkpoint to the training; unset where there is none."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What the launcher can do for the attempt that it starts."""

    attempt: int
    """Counted from 1 over the whole job, restarts of the launcher included."""
    ranks: int
    """Of this attempt."""
    min_ranks: int
    max_ranks: int
    can_wait: bool
    """Whether it brings the training back at a later time."""
    resize_s: float | None = None
    """Mean seconds without training that a restart took here; None: not measured yet."""
    job_unix_s: float | None = None
    """When the job was started first (s since the epoch): its deadline and a replayed grid count from there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """The launcher, or whoever runs the machine, asks the training to leave."""

    attempt: int
    reason: str
    by_unix_s: float | None = None
    """After this it is ended (s since the epoch); None: nobody says."""
    ranks: int | None = None
    """Of the next attempt; None: as many as now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the training asks for when it leaves."""

    attempt: int
    ranks: int
    """Of the next attempt."""
    not_before_unix_s: float | None
    """When to start it (s since the epoch); None: at once."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far the newest checkpoint is."""

    attempt: int
    steps: int
    tokens: float
    unix_s: float


class LauncherFiles:
    """One folder of such files.

    Args:
        folder: The folder; it exists.
    """

    exits: Final = True
    """The training ends itself, with EXIT_REQUEUE."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> "LauncherFiles | None":
        """Return that of the launcher which started this process; None where there is none.

        The folder need not be visible on this node: only rank 0 reads and writes it, and the others hear from rank 0.
        """
        text = (os.environ if environ is None else environ).get(ENV_DIR)
        return cls(Path(text)) if text else None

    def offer(self) -> Offer | None:
        """Return what the launcher offers."""
        return self._read("offer.json", Offer)

    def notice(self) -> Notice | None:
        """Return the newest notice."""
        return self._read("notice.json", Notice)

    def request(self) -> Request | None:
        """Return the newest request."""
        return self._read("request.json", Request)

    def progress(self) -> Progress | None:
        """Return how far the newest checkpoint is."""
        return self._read("progress.json", Progress)

    def write(self, word: Offer | Notice | Request | Progress) -> None:
        """Replace the file of this kind of word.

        Raises:
            OSError: The folder cannot be written.
        """
        path = self.folder / f"{type(word).__name__.lower()}.json"
        replace_file(path, json.dumps(asdict(word)).encode(), durable=True)

    def mark(self, what: str, attempt: int, **more: Any) -> None:
        """Note a moment of a resize in ``timeline.jsonl``. Never raises.

        Args:
            what: ``request``, ``left`` (checkpoint written, about to exit), ``ended`` (all processes gone),
                ``start``, ``up`` (the script's first line), ``group`` (process group joined), ``ready`` (session
                started), ``step`` (first optimizer step done).
            attempt: Attempt that it belongs to.
            **more: Plain JSON values.
        """
        line = json.dumps({"t_unix_s": time.time(), "attempt": attempt, "what": what, **more})
        with contextlib.suppress(OSError), (self.folder / "timeline.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def _read(self, name: str, kind: type[T]) -> T | None:
        try:
            data = json.loads((self.folder / name).read_text(encoding="utf-8"))
            word, of = kind(**data), kind.__annotations__
        except (OSError, ValueError, TypeError):
            return None
        fits = (isinstance(v, of[key]) or (type(v) is int and isinstance(0.5, of[key])) for key, v in data.items())
        return word if all(fits) else None
