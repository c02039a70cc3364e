"""Batches on a card in virtual time: one queue, one copy engine each way, one engine that computes.

While a batch is computed, the next is copied in and the last copied out (PCIe and XDMA carry both ways at once: PG195,
H2C and C2H channels). There are two buffers, so a batch is copied in once the one before the last is computed.
"""

from collections import deque
from dataclasses import dataclass

from greentrain.fpga_backend.roofline.latency import CardService


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """When a batch passed."""

    queued_s: float
    """When the queue had room for it: at the submission, or later."""
    start_s: float
    """First byte in."""
    end_s: float
    """Last byte out."""


class Timeline:
    """Says when batches would be done.

    Args:
        depth: Batches that may wait for their copy to begin; at least 1.
    """

    def __init__(self, depth: int) -> None:
        if depth < 1:
            raise ValueError(f"depth={depth}: a queue has room for at least 1")
        self._starts: deque[float] = deque(maxlen=depth)
        self._submitted_s = 0.0
        self._in_s = 0.0
        self._engine_s = 0.0
        self._before_s = 0.0
        self._out_s = 0.0

    def submit(self, at_s: float, service: CardService) -> Slot:
        """Return when a batch passes that is submitted at ``at_s``, after all that were submitted before.

        Raises:
            ValueError: ``at_s`` is before the last submission.
        """
        if at_s < self._submitted_s:
            raise ValueError(f"submitted at {at_s} s, after one at {self._submitted_s} s: time goes forward")
        full = len(self._starts) == self._starts.maxlen
        queued_s = max(at_s, self._starts[0]) if full else at_s
        start_s = max(queued_s, self._in_s, self._before_s)
        self._submitted_s = at_s
        self._starts.append(start_s)
        self._in_s = start_s + service.in_s
        self._before_s = self._engine_s
        self._engine_s = max(self._in_s, self._engine_s) + service.engine_s
        self._out_s = max(self._engine_s, self._out_s) + service.out_s
        return Slot(queued_s=queued_s, start_s=start_s, end_s=self._out_s)
