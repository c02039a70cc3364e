"""How far predictions are from published runs, with whole families left out."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from benchmarks.estimator_runs import Run
from greentrain.estimate.values import Range

Predict = Callable[[Run], Range]
"""Device-hours of a run; a range without width where a predictor gives no interval."""
Train = Callable[[Sequence[Run]], Predict]
"""A predictor: learns from runs and then predicts others. All that it chooses or fits, it chooses in here."""
RESAMPLES: Final = 4000
SEED: Final = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What a predictor said of each run, without having seen its family."""

    runs: Sequence[Run]
    said: Sequence[Range]

    @property
    def errors(self) -> Any:
        """Predicted over reported, less 1."""
        return np.exp(self.log_errors) - 1

    @property
    def log_errors(self) -> Any:
        """Log of predicted over reported."""
        return np.array([math.log(said.mid / run.hours) for run, said in zip(self.runs, self.said, strict=True)])

    @property
    def weights(self) -> Any:
        """One family weighs as much as another."""
        families = [run.family for run in self.runs]
        return np.array([1 / families.count(run.family) for run in self.runs])

    @property
    def median(self) -> float:
        """Median absolute error."""
        return float(np.median(np.abs(self.errors)))

    @property
    def mean(self) -> float:
        """Mean absolute error."""
        return float(np.mean(np.abs(self.errors)))

    @property
    def p90(self) -> float:
        """90th percentile of the absolute error."""
        return float(np.quantile(np.abs(self.errors), 0.9))

    @property
    def bias(self) -> float:
        """Geometric mean of predicted over reported, less 1."""
        return float(np.exp(np.mean(self.log_errors)) - 1)

    @property
    def _inside(self) -> Any:
        pairs = zip(self.runs, self.said, strict=True)
        return np.array([said.low <= run.hours <= said.high for run, said in pairs], dtype=float)

    @property
    def has_interval(self) -> bool:
        """False where all ranges are points."""
        return any(said.low < said.high for said in self.said)

    @property
    def coverage(self) -> float | None:
        """Share of runs inside their interval; None without intervals."""
        return float(np.mean(self._inside)) if self.has_interval else None

    @property
    def family_coverage(self) -> float | None:
        """The same, every family weighing the same."""
        return float(np.average(self._inside, weights=self.weights)) if self.has_interval else None

    @property
    def half_width(self) -> float | None:
        """Mean factor from the middle to an end of the interval; None without intervals."""
        if not self.has_interval:
            return None
        return math.exp(float(np.mean([math.log(said.high / said.low) / 2 for said in self.said])))

    def within(self, factor: float) -> int:
        """Return how many predictions are off by at most this factor."""
        return int(np.sum(np.abs(self.log_errors) <= math.log(factor) + 1e-12))

    def where(self, keep: Callable[[Run], bool]) -> "Left":
        """Return the part of some runs."""
        pairs = [(run, said) for run, said in zip(self.runs, self.said, strict=True) if keep(run)]
        return Left(runs=[run for run, _ in pairs], said=[said for _, said in pairs])


def leave_one_family_out(runs: Sequence[Run], train: Train) -> Left:
    """Return what a predictor says of each family, trained on all the others."""
    said: Mapping[str, Range] = {
        run.name: predict(run)
        for family in dict.fromkeys(run.family for run in runs)
        for predict in [train([run for run in runs if run.family != family])]
        for run in runs
        if run.family == family
    }
    return Left(runs=runs, said=[said[run.name] for run in runs])


def gain(ours: Left, theirs: Left) -> tuple[float, float, float]:
    """Return by how much our mean |log error| is less than theirs: mean and 95 % interval.

    Paired, and resampled by families: runs of one family are not independent.
    """
    better = np.abs(theirs.log_errors) - np.abs(ours.log_errors)
    families = np.array([run.family for run in ours.runs])
    sums = np.array([[better[families == f].sum(), (families == f).sum()] for f in np.unique(families)])
    drawn = np.random.default_rng(SEED).integers(0, len(sums), size=(RESAMPLES, len(sums)))
    totals = sums[drawn].sum(axis=1)
    low, high = np.quantile(totals[:, 0] / totals[:, 1], [0.025, 0.975])
    return float(better.mean()), float(low), float(high)
