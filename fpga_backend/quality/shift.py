"""How far scores move, and whether they move with the batch's other sequences."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from greentrain.fpga_backend.quality.pairs import Floats, scored


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """Absolute differences between two scores of each item."""

    mean: float
    p99: float
    most: float
    unit: float
    """What they are divided by: the standard deviation of the reference's scores."""


def shift(reference: npt.ArrayLike, candidate: npt.ArrayLike) -> Shift:
    """Return the shift of scores in standard deviations of the reference.

    Args:
        reference: Scores [items].
        candidate: Scores of the same items in another precision [items].

    Raises:
        ValueError: Scores are not finite, not of the same items, or the reference scores everything the same.
    """
    first = scored(reference, "reference")
    second = scored(candidate, "candidate", len(first))
    unit = float(first.std()) if len(first) else 0.0
    if not unit > 0:
        raise ValueError(f"the reference scores {len(first)} items the same: there is no spread to compare shifts with")
    moved = np.abs(second - first) / unit
    return Shift(mean=float(moved.mean()), p99=float(np.quantile(moved, 0.99)), most=float(moved.max()), unit=unit)


def company_shift(score: Callable[[Sequence[int]], npt.ArrayLike], items: int, sizes: Sequence[int]) -> float:
    """Return by how much a score depends on which items it is computed with: the largest difference from alone.

    Each item is scored alone, and then in batches of every size.

    Args:
        score: Takes indices of items, returns their scores, computed as one batch.
        items: Number of items.
        sizes: Sizes of the batches, as (7, 32).

    Returns:
        In units of the score; 0.0 only if every score is the same bit for bit.

    Raises:
        ValueError: A score is not finite, or a size is below 1.
    """
    if not sizes or min(sizes) < 1:
        raise ValueError(f"sizes are {list(sizes)}: give at least one, each at least 1")
    alone = np.concatenate([scored(score([i]), "alone", 1) for i in range(items)])
    largest = 0.0
    for size in sizes:
        together = _in_batches(score, items, size)
        largest = max(largest, float(np.abs(together - alone).max()))
    return largest


def _in_batches(score: Callable[[Sequence[int]], npt.ArrayLike], items: int, size: int) -> Floats:
    batches = [range(start, min(start + size, items)) for start in range(0, items, size)]
    return np.concatenate([scored(score(list(batch)), "batch", len(batch)) for batch in batches])
