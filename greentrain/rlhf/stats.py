"""How much a device did for the training, and how long the training waited for it."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
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
    """Time that devices computed what was then used (s): a part that failed and was redone counts once."""
    wait_s: float = 0.0
    """Time that the training stood at the barrier, or in ``submit`` (s); where two threads stand, it counts once."""
    redone: int = 0
    """Parts that failed at one place and were given to the other."""
    at_home: int = 0
    """Parts whose results came from home, redone or kept there."""

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
        self._standing: dict[PassKind, int] = {}
        self._since_s: dict[PassKind, float] = {}

    def add(self, kind: PassKind, what: PassStats) -> None:
        """Add to one kind."""
        with self._lock:
            self._add(kind, what)

    @contextmanager
    def waiting(self, kind: PassKind) -> Iterator[None]:
        """Count the time inside as waited; a second one at the same time adds nothing to it."""
        with self._lock:
            if not self._standing.get(kind):
                self._since_s[kind] = time.perf_counter()
            self._standing[kind] = self._standing.get(kind, 0) + 1
        try:
            yield
        finally:
            with self._lock:
                self._standing[kind] -= 1
                if not self._standing[kind]:
                    self._add(kind, PassStats(wait_s=time.perf_counter() - self._since_s[kind]))

    def all(self) -> dict[PassKind, PassStats]:
        """Return the sums so far."""
        with self._lock:
            return dict(self._sums)

    def _add(self, kind: PassKind, what: PassStats) -> None:
        self._sums[kind] = self._sums.get(kind, PassStats()) + what
