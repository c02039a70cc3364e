"""Pairs of items of which people, or a reference, prefer one."""

from collections.abc import Sequence
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

    def at_least(self, margin: float) -> "Pairs":
        """Return the pairs of at least a margin."""
        kept = self.margin >= margin
        return Pairs(better=self.better[kept], worse=self.worse[kept], margin=self.margin[kept])

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


def preferences(ratings: Sequence[float], kinds: Sequence[str], *, least_margin: float) -> Pairs:
    """Return all pairs of items of one kind whose ratings differ enough, the better rated first.

    Args:
        ratings: Mean rating of each item [items].
        kinds: Source of each item [items]: only items of one source are comparable.
        least_margin: Smallest difference; above 0.

    Raises:
        ValueError: The lengths differ, or the margin is not above 0.
    """
    if len(ratings) != len(kinds):
        raise ValueError(f"{len(ratings)} ratings for {len(kinds)} kinds: give one of each an item")
    if not least_margin > 0:
        raise ValueError(f"least_margin is {least_margin}, must be above 0: equal ratings are no preference")
    values, kind = np.asarray(ratings, dtype=np.float64), np.asarray(kinds)
    better, worse = [], []
    for name in sorted(set(kinds)):
        own = np.flatnonzero(kind == name)
        first, second = np.triu_indices(len(own), 1)
        first, second = own[first], own[second]
        gap = values[first] - values[second]
        kept = np.abs(gap) >= least_margin
        swapped = gap < 0
        better.append(np.where(swapped, second, first)[kept])
        worse.append(np.where(swapped, first, second)[kept])
    a, b = (np.concatenate(part) if part else np.empty(0, dtype=np.intp) for part in (better, worse))
    return Pairs(better=a, worse=b, margin=values[a] - values[b])


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
