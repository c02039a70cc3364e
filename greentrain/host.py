"""What those who act on a training need of its session."""

from collections.abc import Mapping
from typing import Any, Protocol

from greentrain.runtime import ActiveRun


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
