"""Confidence sequences: intervals of the difference between two groups of runs that hold at all looks together.

A likelihood ratio is a mixture over the effect, delta / sigma ~ N(0, SCALE), with the right Haar prior on all else. As
one of scale-invariant statistics it is a martingale under the null, so it ever exceeds 1 / alpha with probability alpha
at most (Ville's inequality). The interval holds what is not rejected so. With t, nu degrees of freedom, and n pairs, or
n = n_a n_b / (n_a + n_b) of two groups, the ratio is

    (1 + n SCALE)^(-1/2) ((1 + t^2 / nu) / (1 + t^2 / (nu (1 + n SCALE))))^((nu + 1) / 2)

It holds at any number of runs if values are normal, those of two groups with one variance. Where these are estimated to
differ, the same with Welch's error and degrees of freedom is taken if it is wider, which is no theorem;
benchmarks/compare_groups.py shows how far both hold. Asymptotic sequences (I. Waudby-Smith et al., arXiv:2103.06476) do
not at so few runs. Sources: M. F. Perez-Ortiz et al., "E-statistics, group invariance and anytime-valid testing",
arXiv:2208.07610; H. Wang, A. Ramdas, "Anytime-valid t-tests and confidence sequences for Gaussian means with unknown
variance", arXiv:2310.03722; the ratio: M. Goenen et al., The American Statistician 59 (2005) 252-257.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

SCALE: Final = 10.0
"""Variance of the effect over that of a run: of 1 to 300, that whose intervals are narrowest at five runs a group."""
MOST_RUNS: Final = 10_000
"""Runs a group that are looked ahead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDifference:
    """What two groups of runs tell of the difference of their means, B less A, in the unit of the values."""

    mean: float
    variances: tuple[float, ...]
    """Of the runs of A and of B, or of the differences of pairs; NaN: of one run."""
    runs: tuple[int, ...]
    """Runs of A and of B, or pairs."""

    @classmethod
    def of(cls, a: Sequence[float], b: Sequence[float], *, paired: bool = False) -> "GroupDifference":
        """Return the difference of two groups of one run at least; of pairs, in the same order, where ``paired``."""
        parts = [np.subtract(b, a)] if paired else [np.asarray(a), np.asarray(b)]
        variances = tuple(float(part.var(ddof=1)) * bool(np.ptp(part)) if len(part) > 1 else math.nan for part in parts)
        return cls(mean=float(np.mean(b) - np.mean(a)), variances=variances, runs=tuple(map(len, parts)))

    def interval(self, alpha: float) -> tuple[float, float]:
        """Return bounds that hold the true difference at all looks together with probability 1 - alpha.

        They are infinite where so few runs bound nothing, or all are the same to the last digit.
        """
        half = float(self._half(alpha, np.zeros(1))[0])
        return self.mean - half, self.mean + half

    def runs_needed(self, alpha: float, margin: float) -> int | None:
        """Return how many more runs a group decide, if mean and variances stay as they are.

        Args:
            alpha: Probability of error, 0 to 1.
            margin: Decided is also an interval within so much on both sides of 0.

        Returns:
            Runs a group, 0 where it is decided; None: more than MOST_RUNS, or a variance is not known.
        """
        half = self._half(alpha, np.arange(MOST_RUNS, dtype=np.float64))
        decided = half < max(abs(self.mean), margin - abs(self.mean))
        return int(decided.argmax()) if decided.any() else None

    def _half(self, alpha: float, more: Floats) -> Floats:
        """Return half of the interval after so many more runs a group."""
        if not sum(self.variances) > 0:
            return np.full(more.shape, np.inf)
        counts = [n + more for n in self.runs]
        if len(counts) == 1:
            return np.sqrt(self.variances[0] / counts[0]) * t_bound(counts[0] - 1, counts[0], alpha)
        return group_half_width(self.variances, counts, alpha)


def group_half_width(variances: Sequence[npt.ArrayLike], counts: Sequence[npt.ArrayLike], alpha: float) -> Floats:
    """Return half of the interval of two groups that are not paired, by the wider of two errors.

    Args:
        variances: Sample variances of A and of B, of any shape.
        counts: Runs of A and of B, two at least.
        alpha: Probability of error, 0 to 1.
    """
    (var_a, var_b), (a, b) = (map(np.asarray, pair) for pair in (variances, counts))
    n, freedom = a * b / (a + b), a + b - 2
    pooled = np.sqrt(((a - 1) * var_a + (b - 1) * var_b) / freedom / n)
    squares = var_a / a + var_b / b
    welch = squares**2 / ((var_a / a) ** 2 / (a - 1) + (var_b / b) ** 2 / (b - 1))
    wider: Floats = np.maximum(pooled * t_bound(freedom, n, alpha), np.sqrt(squares) * t_bound(welch, n, alpha))
    return wider


def t_bound(freedom: npt.ArrayLike, n: npt.ArrayLike, alpha: float) -> Floats:
    """Return the largest t whose ratio is below 1 / alpha; infinite where that of every t is.

    Args:
        freedom: Degrees of freedom nu, above 0.
        n: Pairs, or n_a n_b / (n_a + n_b).
        alpha: Probability of error, 0 to 1.
    """
    nu, spread = np.asarray(freedom, dtype=np.float64), 1 + np.asarray(n, dtype=np.float64) * SCALE
    limit = (np.sqrt(spread) / alpha) ** (2 / (nu + 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        bound: Floats = np.sqrt(nu * (limit - 1) / (1 - limit / spread))
    return np.where(limit < spread, bound, np.inf)
