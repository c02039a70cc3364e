"""What a plan acts through.

What those who act on a training need of its session.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from greentrain.control.launcher_protocol import Offer
from greentrain.ledger.active_run import ActiveRun
from greentrain.policy.action_table import Action
from greentrain.types import Gear


class Actors(Protocol):
    """What the plan acts through."""

    def follow(self, action: Action, reason: str) -> None:
        """Use gear and power limit of an action from now on."""
        ...

    def can(self, action: Action) -> bool:
        """Return whether this process can use gear and power limit of an action."""
        ...

    @property
    def offer(self) -> Offer | None:
        """What the launcher can do; None: nothing."""
        ...

    def leave(self, ranks: int, not_before_unix_s: float | None, reason: str) -> None:
        """Ask for a checkpoint after this step, and leave when it is written."""
        ...

    def vetoes(self) -> Mapping[Gear, str]:
        """Return the gears that must not be used now, and why."""
        ...

    def measure(self, steps: float) -> None:
        """Measure what every action costs in the coming ones of the job's steps; ``Schedule.use`` gets the table."""
        ...

    def begin(self, name: str) -> int:
        """Enter a phase."""
        ...

    def end(self, name: str, token: int = 0) -> None:
        """Leave a phase."""
        ...

    def energy(self, t0_s: float, t1_s: float, wait_s: float = 0.0) -> Mapping[str, float] | None:
        """Return joules by device between two times."""
        ...


class Host(Protocol):
    """The part of a session that acting needs."""

    def active(self) -> ActiveRun | None:
        """Return the run, None where there is none in this process."""
        ...

    def mark(self, name: str, *what: Any) -> float:
        """Queue a mark of this moment and return its time (s)."""
        ...

    def begin(self, name: str) -> int:
        """Enter a phase."""
        ...

    def end(self, name: str, token: int = 0) -> None:
        """Leave a phase."""
        ...

    def energy(self, t0_s: float, t1_s: float, wait_s: float = 0.0) -> Mapping[str, float] | None:
        """Return joules by device between two times."""
        ...


def is_engine(model: Any) -> bool:
    """Return whether this is a DeepSpeed engine."""
    # DeepSpeedEngine (deepspeed/runtime/engine.py): counts micro batches and calls its optimizer inside step().
    return all(hasattr(model, name) for name in ("micro_steps", "global_steps", "backward", "step"))
