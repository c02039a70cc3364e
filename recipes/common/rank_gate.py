"""May a model be scored in another precision? Only if it flips ranks little more often than BF16 does."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from greentrain.fpga_backend.quality.flips import Pairs, every, flips, scored


@dataclass(frozen=True, slots=True, kw_only=True)
class GateVerdict:
    """Whether to offload, and why."""

    offload: bool
    reason: str
    rate: float | None
    """Flips a pair of the candidate; None: its scores cannot be ranked."""
    floor: float
    """The same of BF16."""
    limit: float
    """Largest rate allowed."""
    pairs: int
    """That the reference orders."""


def gate(
    reference: npt.ArrayLike,
    floor: npt.ArrayLike,
    candidate: npt.ArrayLike,
    pairs: Pairs | None = None,
    *,
    k: float,
) -> GateVerdict:
    """Decide on scores of a calibration set: offload if the candidate flips at most k times as often as BF16.

    A set can resolve one pair. Where BF16 flips none, one is taken instead, so that a small set is not a strict one.

    Args:
        reference: Scores in FP32 [items].
        floor: Scores of the same items in BF16 [items].
        candidate: Scores of the same items by the device [items].
        pairs: Preferences that count; None: all pairs.
        k: Multiple of the floor that passes; at least 1.

    Raises:
        ValueError: k is below 1, reference or floor are not finite or not of the same items, or no pair has an order.
            What the candidate scored is no error: the verdict says so.
    """
    if not k >= 1:
        raise ValueError(f"k is {k}, must be at least 1: no precision is asked to be better than BF16")
    first = scored(reference, "reference")
    chosen = every(len(first)) if pairs is None else pairs
    counts = flips(first, floor, chosen)
    ordered = int(np.count_nonzero(~np.isnan(counts)))
    if not ordered:
        raise ValueError(f"the reference scores both items of all {len(chosen)} pairs the same: it has no order")
    lost = float(np.nansum(counts))  # multiples of 1/2, so sums are exact
    allowed = k * max(lost, 1.0)
    least, limit = lost / ordered, allowed / ordered
    try:
        own = float(np.nansum(flips(first, candidate, chosen)))
    except ValueError as error:
        return GateVerdict(offload=False, reason=str(error), rate=None, floor=least, limit=limit, pairs=ordered)
    base = "that" if lost >= 1 else "the one pair that the set can resolve"
    reason = f"{own / ordered:.3%} of {ordered:,} pairs flip, BF16 flips {least:.3%}; {k:g} times {base} is {limit:.3%}"
    return GateVerdict(
        offload=own <= allowed, reason=reason, rate=own / ordered, floor=least, limit=limit, pairs=ordered
    )
