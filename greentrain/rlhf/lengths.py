"""How long a pass takes by the length of its sequences: attention makes long ones cost more a token."""

from collections.abc import Sequence
from typing import Final

from greentrain.fpga_backend.batch import Batch, Ids

ALPHA: Final = 0.2
"""Weight of the newest batch."""


class LengthTimes:
    """Seconds a token of one pass at one place, by powers of two of the longest sequence of a batch."""

    def __init__(self) -> None:
        self._s_per_token: dict[int, float] = {}

    def add(self, batch: Batch, run_s: float) -> None:
        """Take a batch that ran."""
        if batch.tokens and run_s > 0:
            size, new = _size(batch.ids), run_s / batch.tokens
            old = self._s_per_token.get(size, new)
            self._s_per_token[size] = old + ALPHA * (new - old)

    def s_per_token(self, batch: Batch) -> float | None:
        """Return what is expected of a batch; None before any ran.

        Of lengths that were never seen: as short ones as the shortest, and beyond the longest in proportion to length,
        which is the most that attention can do.
        """
        if not self._s_per_token or not batch.tokens:
            return None
        size = _size(batch.ids)
        below = [known for known in self._s_per_token if known <= size]
        if not below:
            return self._s_per_token[min(self._s_per_token)]
        nearest = max(below)
        if nearest == size or any(known > size for known in self._s_per_token):
            return self._s_per_token[nearest]
        return self._s_per_token[nearest] * size / nearest


def _size(rows: Sequence[Ids]) -> int:
    longest = max(len(row) for row in rows)
    return 1 << (longest - 1).bit_length()
