"""How much a device did for the training, and how long the training waited for it."""

import threading
from dataclasses import dataclass, fields

from greentrain.rlhf.kinds import PassKind


@dataclass(frozen=True, slots=True, kw_only=True)
class PassStats:
    """Sums of one kind of pass. ``a + b`` adds two parts."""

    calls: int = 0
    """Tickets."""
    sequences: int = 0
    tokens: int = 0
    busy_s: float = 0.0
    """Time that devices computed (s)."""
    wait_s: float = 0.0
    """Time that the training stood at the barrier, or in ``submit`` (s)."""
    redone: int = 0
    """Parts that were redone at home."""

    def __add__(self, other: "PassStats") -> "PassStats":
        return PassStats(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    @property
    def hidden_s(self) -> float:
        """Computing time for which nobody waited (s)."""
        return max(0.0, self.busy_s - self.wait_s)

    @property
    def hidden_fraction(self) -> float | None:
        """``hidden_s`` as a share of ``busy_s``; None before anything ran."""
        return self.hidden_s / self.busy_s if self.busy_s else None


class Counts:
    """Adds up, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[PassKind, PassStats] = {}

    def add(self, kind: PassKind, what: PassStats) -> None:
        """Add to one kind."""
        with self._lock:
            self._sums[kind] = self._sums.get(kind, PassStats()) + what

    def all(self) -> dict[PassKind, PassStats]:
        """Return the sums so far."""
        with self._lock:
            return dict(self._sums)
