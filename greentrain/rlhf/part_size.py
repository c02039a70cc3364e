"""How many sequences a device takes best at a time, found while it works.

Parts change when a result is there and what it costs, not what it is: an exact device gives a sequence the same bits
in any part. A device that is not exact is as far off between two sizes as between two batches (docs/fpga.md).
"""

import statistics
import threading
from typing import Final, Protocol, runtime_checkable

from greentrain.errors import ConfigError
from greentrain.utils.validation import bound

SAMPLES: Final = 3
"""Parts of a size before it is judged, by their median."""
MARGIN: Final = 0.05
"""A size must be so much faster to take the place of another: less is noise."""
AGAIN: Final = 512
"""Parts after which the neighbours are tried again: sequences grow while a policy learns."""


@runtime_checkable
class PartSize(Protocol):
    """Decides how a pass's batches are cut. Called from any thread."""

    def next(self, left: int) -> int:
        """Return how many of the sequences that are left go into the next part."""
        ...

    def ran(self, sequences: int, tokens: int, run_s: float) -> None:
        """Hear how long the device computed for a part."""
        ...

    def failed(self, sequences: int) -> None:
        """Hear of a part that failed on the device."""
        ...


class BestPartSize:
    """Climbs over powers of two to the size of most tokens a second, and stays. The same measurements, the same sizes.

    Args:
        start: First size; a power of two.
        smallest: Bound; a power of two.
        largest: Bound; a power of two.
        samples: Parts of a size before it is judged.
        margin: By how much a size must be faster than the best one so far.
        again: Parts after which its neighbours are tried again.

    Raises:
        ConfigError: A size is no power of two, or a bound.
    """

    def __init__(
        self,
        *,
        start: int = 8,
        smallest: int = 1,
        largest: int = 1024,
        samples: int = SAMPLES,
        margin: float = MARGIN,
        again: int = AGAIN,
    ) -> None:
        for name, size in (("smallest", smallest), ("start", start), ("largest", largest)):
            if size < 1 or size & (size - 1):
                raise ConfigError(f"{name}={size}: sizes are powers of two, such as {1 << max(size, 1).bit_length()}")
        if not smallest <= start <= largest:
            raise ConfigError(f"start={start} is not between smallest={smallest} and largest={largest}")
        bound("samples", samples, 1, 1000)
        bound("margin", margin, 0.0, 10.0)
        bound("again", again, 1, 1e9)
        self._smallest, self._largest = smallest, largest
        self._samples, self._margin, self._again = samples, margin, again
        self._lock = threading.Lock()
        self._best = self._trial = start
        self._best_rate = 0.0
        self._rates: list[float] = []
        self._ways: list[int] = [+1, -1]  # which are still to be tried: larger, smaller
        self._since = 0
        self._most = 1

    @property
    def best(self) -> int:
        """The best size so far (sequences)."""
        return self._best

    @property
    def settled(self) -> bool:
        """True while no other size is tried."""
        return self._best_rate > 0 and not self._ways

    def next(self, left: int) -> int:
        """Return the size on trial, or the best one."""
        with self._lock:
            self._most = max(self._most, left)
            return min(self._trial, left)

    def ran(self, sequences: int, tokens: int, run_s: float) -> None:
        """Take a measurement, if it is of the size on trial: the rest of a batch says nothing."""
        if run_s <= 0:
            return
        with self._lock:
            if self.settled:
                self._since += 1
                if self._since >= self._again:
                    self._since, self._ways, self._rates, self._best_rate = 0, [+1, -1], [], 0.0
                return
            if sequences != min(self._trial, self._most):
                return
            self._rates.append(tokens / run_s)
            if len(self._rates) >= self._samples:
                self._judge(statistics.median(self._rates))

    def failed(self, sequences: int) -> None:
        """A size that the device cannot take is as bad as one on which it is slow; one that is tried out, only."""
        with self._lock:
            if sequences == self._trial != self._best:
                self._judge(0.0)

    def _judge(self, rate: float) -> None:
        if self._trial == self._best:
            self._best_rate = rate
        elif rate > self._best_rate * (1 + self._margin):
            self._best, self._best_rate = self._trial, rate
            self._ways = self._ways[:1]  # it came from the other side
        else:
            self._ways = self._ways[1:]
        self._rates = []
        while self._ways:
            trial = self._best * 2 if self._ways[0] > 0 else self._best // 2
            if self._smallest <= trial <= self._largest and trial <= self._most:
                self._trial = trial
                return
            self._ways = self._ways[1:]
        self._trial = self._best
