"""Pairs of items of which people, or a reference, prefer one."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pairs:
    """Preferences between items that are scored, by index."""

    better: Indices
    """[pairs]"""
    worse: Indices
    """[pairs]"""
    margin: Floats
    """By how much people rated one over the other [pairs]; NaN where nobody said which is better."""

    def __len__(self) -> int:
        return len(self.better)

    def check(self, items: int) -> None:
        """Raise if there are no pairs, or one names an item that is not there.

        Raises:
            ValueError: Says which.
        """
        if not len(self):
            raise ValueError("there are no pairs: give more items, or a smaller margin")
        highest, lowest = (edge(np.stack([self.better, self.worse])) for edge in (np.max, np.min))
        if lowest < 0 or highest >= items:
            raise ValueError(f"a pair names item {lowest if lowest < 0 else highest}; {items} items were scored")


def every(items: int) -> Pairs:
    """Return all pairs of so many items, of no known margin."""
    first, second = np.triu_indices(items, 1)
    return Pairs(better=first, worse=second, margin=np.full(len(first), np.nan))


def scored(scores: npt.ArrayLike, name: str, items: int | None = None) -> Floats:
    """Return scores as binary64 [items].

    Args:
        scores: One number an item: [items] or [items, 1].
        name: Name of the scores in error messages.
        items: Number of scores that there must be; None: any number.

    Raises:
        ValueError: Another shape or number, or a score is NaN or infinite.
    """
    array = np.asarray(scores, dtype=np.float64)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise ValueError(f"{name} has shape {list(array.shape)}; one score an item is expected")
    if items is not None and len(array) != items:
        raise ValueError(f"{name} has {len(array)} scores, the reference has {items}: score the same items")
    if not np.isfinite(array).all():
        at = int(np.flatnonzero(~np.isfinite(array))[0])
        raise ValueError(f"{name}[{at}] is {array[at]}: a rank needs finite scores")
    return array
