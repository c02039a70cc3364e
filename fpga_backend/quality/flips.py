"""Rank flips: how often another precision prefers the other item of a pair.

A pair counts 1 if the sign of its score difference is the other one, 1/2 if the candidate scores both the same (a coin
decides), 0 otherwise. Pairs that the reference scores the same have no order to lose, and are left out. One rate says
little, because pairs that lie close together flip first: so flips are reported by margin too. Pairs are of items of
which people, or a reference, prefer one.
"""

import math
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Decile:
    """Pairs between two margins of the reference."""

    low: float
    """Smallest margin, in standard deviations of the reference's scores."""
    high: float
    pairs: int
    rate: float
    """Flips a pair, 0 to 1."""


def flips(reference: npt.ArrayLike, candidate: npt.ArrayLike, pairs: Pairs) -> Floats:
    """Return what each pair counts: 0, 1/2 or 1; NaN where the reference has no order [pairs].

    Args:
        reference: Scores [items].
        candidate: Scores of the same items in another precision [items]; only their order matters.
        pairs: Pairs to compare.

    Raises:
        ValueError: Scores are not finite or not of the same items, or there are no pairs.
    """
    first = scored(reference, "reference")
    second = scored(candidate, "candidate", len(first))
    pairs.check(len(first))
    was, now = (np.sign(scores[pairs.better] - scores[pairs.worse]) for scores in (first, second))
    return np.where(was == 0, np.nan, np.abs(was - now) / 2)


def flip_rate(reference: npt.ArrayLike, candidate: npt.ArrayLike, pairs: Pairs | None = None) -> float:
    """Return flips a pair, 0 to 1; NaN where the reference orders no pair.

    Args:
        reference: Scores [items].
        candidate: Scores of the same items in another precision [items].
        pairs: Pairs to compare; None: all.

    Raises:
        ValueError: Scores are not finite or not of the same items, or there are no pairs.
    """
    items = len(scored(reference, "reference"))
    return _mean(flips(reference, candidate, every(items) if pairs is None else pairs))


def by_margin(
    reference: npt.ArrayLike, candidate: npt.ArrayLike, pairs: Pairs | None = None, *, parts: int = 10
) -> tuple[Decile, ...]:
    """Return the flip rate by margin of the reference, from the closest pairs to the widest, equally many in each.

    Args:
        reference: Scores [items].
        candidate: Scores of the same items in another precision [items].
        pairs: Pairs to compare; None: all. Those that the reference scores the same are left out.
        parts: Number of parts; with fewer pairs, as many parts as pairs.

    Raises:
        ValueError: Scores are not finite or not of the same items, or there are no pairs.
    """
    first = scored(reference, "reference")
    chosen = every(len(first)) if pairs is None else pairs
    counts = flips(first, candidate, chosen)
    ordered = ~np.isnan(counts)
    counts = counts[ordered]
    margins = np.abs(first[chosen.better] - first[chosen.worse])[ordered] / (float(first.std()) or 1.0)
    groups = np.array_split(np.argsort(margins, kind="stable"), parts)
    return tuple(
        Decile(
            low=float(margins[group[0]]), high=float(margins[group[-1]]), pairs=len(group), rate=_mean(counts[group])
        )
        for group in groups
        if len(group)
    )


def exact_interval(hits: float, trials: int) -> tuple[float, float]:
    """Return the 95 % interval of a binomial rate: Clopper and Pearson, Biometrika 26, 1934.

    Args:
        hits: Trials that count, 0 to ``trials``; with a half, both ends widen to the next whole number.
        trials: Independent trials; with none, the rate is anything from 0 to 1.
    """
    numbers = np.arange(trials)
    log_ways = np.concatenate([[0.0], np.cumsum(np.log((trials - numbers) / (numbers + 1)))])

    def rate(most: int, chance: float) -> float:
        """Return the rate at which at most so many hits have this chance."""
        some, low, high = np.arange(most + 1), 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            logs = log_ways[: most + 1] + some * math.log(middle) + (trials - some) * math.log1p(-middle)
            low, high = (middle, high) if np.exp(logs).sum() > chance else (low, middle)
        return low

    least, most = math.floor(hits), math.ceil(hits)
    return rate(least - 1, 0.975) if least else 0.0, rate(most, 0.025) if most < trials else 1.0


def rank_correlation(reference: npt.ArrayLike, candidate: npt.ArrayLike) -> float | None:
    """Return Spearman's correlation of the scores of the same items, ties with the mean rank; None where all are equal.

    Args:
        reference: Scores [items].
        candidate: Scores in another precision [items].
    """
    ranks = []
    for scores in (reference, candidate):
        _, place, count = np.unique(np.asarray(scores), return_inverse=True, return_counts=True)
        rank = (np.cumsum(count) - count / 2)[place]
        ranks.append(rank - rank.mean())
    spread = math.sqrt(float(ranks[0] @ ranks[0]) * float(ranks[1] @ ranks[1]))
    return float(ranks[0] @ ranks[1]) / spread if spread else None


def _mean(counts: Floats) -> float:
    known = counts[~np.isnan(counts)]
    return float(known.mean()) if len(known) else float("nan")
