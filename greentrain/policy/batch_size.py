"""Which batch size to try next, where a training can be repeated and each costs what it costs.

A trial trains with one batch size until a target metric is reached, or until it is hopeless. Costs are of any unit:
joules, grams, money. What is told here is a function of the trials alone, so a search that was killed goes on.

Sizes are tried outwards from the usual one: cost over batch size falls and rises again (You et al., Zeus, NSDI 2023,
section 4.3), so a side is left where its end is NEAR times dearer than the best, or did not reach the target. Then the
best of draws from what is believed of each is trained with (Thompson sampling). All sizes share one relative spread, so
one trial of a size tells enough; Zeus learns a variance of each and tries all of them twice for that.
"""

import math
import random
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from greentrain.errors import ConfigError

HOPELESS: Final = 2.0
"""A trial is given up that has cost so many times the best: Zeus' beta (zeus 0.16.0, ``JobParams.beta_knob``)."""
NEAR: Final = 1.3
"""Cost over the best up to which the sizes behind it are tried; chosen on Zeus' traces of A40 and V100; those of RTX
6000 were not looked at, and some of P100 were (``benchmarks/tune_batch.py``)."""
SPREAD: Final = 0.1
"""Standard deviation of the logarithm of a cost that is believed at first, as strongly as WEIGHT trials. Assumed."""
WEIGHT: Final = 2
SETTLED: Final = 0.02
"""Expected loss of the best size, as a share of its cost, below which nothing is left to search."""
_DRAWS: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTrial:
    """What a training with one batch size cost."""

    batch: int
    cost: float
    """In the unit of the search, until the target was reached or the trial was given up."""
    reached: bool


class BatchSearch:
    """Chooses batch sizes by the trials so far.

    Args:
        batches: Sizes that may be tried.
        default: Size that is usual, tried first; the middle one if None.
        seed: Seed of the draws.

    Raises:
        ConfigError: There is no size, one is below 1, or the default is none of them.
    """

    def __init__(self, batches: Iterable[int], default: int | None = None, *, seed: int = 0) -> None:
        self.batches = sorted(set(batches))
        if not self.batches or self.batches[0] < 1:
            raise ConfigError(f"batches are {self.batches}: name at least one batch size, each from 1 on")
        self.default = self.batches[len(self.batches) // 2] if default is None else default
        if self.default not in self.batches:
            raise ConfigError(f"the default batch size {self.default} is none of {self.batches}: add it to batches")
        self.seed = seed

    def means(self, trials: Sequence[BatchTrial]) -> Mapping[int, float]:
        """Return what reaching the target costs by size, of those that did, trials that did not included."""
        reached = {b: sum(t.reached for t in trials if t.batch == b) for b in self.batches}
        return {b: sum(t.cost for t in trials if t.batch == b) / n for b, n in reached.items() if n}

    def best(self, trials: Sequence[BatchTrial]) -> int | None:
        """Return the size with the least mean cost; None where none reached the target."""
        means = self.means(trials)
        return min(means, key=lambda b: means[b], default=None)

    def most(self, trials: Sequence[BatchTrial]) -> float:
        """Return the cost at which the next trial is to be given up; infinite before one reached the target."""
        return HOPELESS * min((t.cost for t in trials if t.reached), default=math.inf)

    def untried(self, trials: Sequence[BatchTrial]) -> int | None:
        """Return the size that is to be tried as nothing is known of it; None where no such one is worth it."""
        tried, means, best = {t.batch for t in trials}, self.means(trials), self.best(trials)
        if best is None:
            left = [b for b in self.batches if b not in tried]
            return min(left, key=lambda b: abs(math.log(b / self.default)), default=None)
        for side in (-1, 1):
            i = self.batches.index(best) + side
            while 0 <= i < len(self.batches) and means.get(self.batches[i], math.inf) <= NEAR * means[best]:
                i += side
            if 0 <= i < len(self.batches) and self.batches[i] not in tried:
                return self.batches[i]
        return None

    def next(self, trials: Sequence[BatchTrial]) -> int:
        """Return the size of the next trial.

        Raises:
            ConfigError: Every size was tried, and none reached the target.
        """
        new = self.untried(trials)
        if new is not None:
            return new
        if self.best(trials) is None:
            raise ConfigError(
                f"none of the batch sizes {self.batches} reached the target: lower it, allow more epochs or name others"
            )
        rng = random.Random(f"{self.seed}/{len(trials)}")
        draws = {b: rng.gauss(*belief) for b, belief in self._beliefs(trials).items()}
        return min(draws, key=lambda b: draws[b])

    def loss(self, trials: Sequence[BatchTrial]) -> float:
        """Return what the best size is expected to cost above the cheapest, as a share; 1 while sizes are untried."""
        best = self.best(trials)
        if best is None or self.untried(trials) is not None:
            return 1.0
        rng, beliefs, lost = random.Random(self.seed), self._beliefs(trials), 0.0
        for _ in range(_DRAWS):
            draws = {b: rng.gauss(*belief) for b, belief in beliefs.items()}
            lost += 1.0 - math.exp(min(draws.values()) - draws[best])
        return lost / _DRAWS

    def _beliefs(self, trials: Sequence[BatchTrial]) -> dict[int, tuple[float, float]]:
        """Return mean and standard deviation of what is believed of the logarithm of each size's cost."""
        means = self.means(trials)
        logs = {b: [math.log(t.cost) for t in trials if t.reached and t.batch == b] for b in means}
        squares = SPREAD**2 * WEIGHT + sum(statistics.pvariance(found) * len(found) for found in logs.values())
        spread = math.sqrt(squares / (WEIGHT + sum(len(found) - 1 for found in logs.values())))
        return {b: (math.log(means[b]), spread / math.sqrt(len(logs[b]))) for b in means}
