"""Predictors on the search's optimum, and the step times of layouts that are known."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from benchmarks.estimator_fit import INSIDE, family_quantile
from benchmarks.estimator_runs import Run
from benchmarks.estimator_scores import Predict
from greentrain.estimate.hardware import Accelerator
from greentrain.estimate.layouts import ParallelLayout, Recompute
from greentrain.estimate.search import cost, search
from greentrain.estimate.values import Range
from greentrain.utils.quantities import SourcedNumber, SourceKind

FITTED: Final = "mlm22"
"""Family of step times that the A100's share of peak was fitted to."""


class Optimum:
    """Device-hours of the best layout that the search finds, of each run once."""

    def __init__(self) -> None:
        self._hours: dict[str, float] = {}

    def __call__(self, run: Run) -> float:
        """Return device-hours in which nothing goes wrong."""
        if run.name not in self._hours:
            found = search(run.shape, run.workload, with_network(run), run.count)
            self._hours[run.name] = found.gpu_hours
        return self._hours[run.name]

    def alone(self, _: Sequence[Run]) -> Predict:
        """M0: the optimum itself."""
        return lambda run: Range.exactly(self(run))

    def one_derate(self, runs: Sequence[Run]) -> Predict:
        """M1: times the median of reported over optimum."""
        by = median(run.hours / self(run) for run in runs)
        return lambda run: Range.exactly(self(run) * by)

    def by_class(self, runs: Sequence[Run]) -> Predict:
        """M2: times that median by class of device and kind of model; of the class, then of all, where none is."""

        def predict(run: Run) -> Range:
            same = [r.hours / self(r) for r in runs if r.kind == run.kind]
            near = [r.hours / self(r) for r in runs if r.accelerator.family == run.accelerator.family]
            return Range.exactly(self(run) * median(same or near or [r.hours / self(r) for r in runs]))

        return predict

    def one_spread(self, runs: Sequence[Run]) -> Predict:
        """M1 with an interval: 10th, 50th and 90th percentile of reported over optimum, families alike."""
        ratios, families = [run.hours / self(run) for run in runs], [run.family for run in runs]
        low, mid, high = (
            family_quantile(ratios, families, share) for share in (0.5 - INSIDE / 2, 0.5, 0.5 + INSIDE / 2)
        )
        return lambda run: Range(low=low, mid=mid, high=high).times(self(run))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """A published step time and ours for the same layout."""

    name: str
    family: str
    published_s: float
    ours_s: float

    @property
    def error(self) -> float:
        """Ours over published, less 1."""
        return self.ours_s / self.published_s - 1


def step_times(runs: Sequence[Run]) -> list[StepTime]:
    """Return the benchmarks of steps, each with its layout as published."""
    return [
        StepTime(name=run.name, family=run.family, published_s=run.noted("step_s") or math.nan, ours_s=_step_s(run))
        for run in runs
    ]


def _step_s(run: Run) -> float:
    def noted(key: str) -> int:
        return int(run.noted(key) or 1)

    full = "recompute=full" in run.notes
    split = noted("tp") * noted("pp")
    layout = ParallelLayout(
        tensor=noted("tp"),
        pipeline=noted("pp"),
        data=run.count // split,
        micro=noted("mb"),
        recompute=Recompute.FULL if full else Recompute.SELECTIVE,
        interleave=noted("v"),
    )
    # the published runs fitted into memory; whether the model's memory agrees is another test
    roomy = with_network(run)
    roomy = dataclasses.replace(roomy, memory_bytes=dataclasses.replace(roomy.memory_bytes, value=1e13))
    return cost(run.shape, run.workload, roomy, layout).step_s


def with_network(run: Run) -> Accelerator:
    """Return the run's device with the network that was published."""
    if run.network_bytes_s is None:
        return run.accelerator
    network = SourcedNumber(unit="B/s", value=run.network_bytes_s, kind=SourceKind.GIVEN, source="as published")
    return dataclasses.replace(run.accelerator, network_bytes_s=network)
