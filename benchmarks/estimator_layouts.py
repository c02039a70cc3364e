"""The package's methods on the layout search, with tables that some of the published runs give."""

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from benchmarks.estimator_fit import FEATURES, INSIDE, family_quantile, fit_table, half_width
from benchmarks.estimator_roofline import Optimum, with_network
from benchmarks.estimator_runs import Run
from benchmarks.estimator_scores import Predict, Train
from greentrain.estimate import hours
from greentrain.estimate.cluster import Cluster
from greentrain.estimate.hours import Blend, Hours
from greentrain.estimate.mfu import estimate_mfu
from greentrain.estimate.values import Range
from greentrain.estimate.workload import Workload


class Layouts:
    """Methods ``roofline`` and ``blend``, and what they learn."""

    def __init__(self, optimum: Optimum) -> None:
        self._optimum = optimum

    def roofline(self, runs: Sequence[Run]) -> Predict:
        """M3: method ``roofline`` of the package."""
        of = fit_table(runs, FEATURES, self._optimum)
        return lambda run: (
            hours.by_roofline(run.shape, run.workload, _cluster(run), with_network(run), year=run.year, of=of).gpu_hours
        )

    def blend(self, runs: Sequence[Run]) -> Predict:
        """Method ``blend`` of the package."""
        of = self.fit_blend(runs)
        return lambda run: (
            hours.by_blend(run.shape, run.workload, _cluster(run), with_network(run), year=run.year, of=of).gpu_hours
        )

    def untold(self, by: Callable[..., Hours]) -> Train:
        """Return a method of the package that is told neither batch nor sequence, and takes the defaults."""

        def train(runs: Sequence[Run]) -> Predict:
            of = self.fit_blend(runs)

            def predict(run: Run) -> Range:
                work = Workload(tokens=run.workload.tokens, precision=run.workload.precision)
                return by(run.shape, work, _cluster(run), with_network(run), year=run.year, of=of).gpu_hours

            return predict

        return train

    def fit_blend(self, runs: Sequence[Run]) -> Blend:
        """Return what the blend learns from these runs, its width from each family left out in turn."""
        scores: dict[str, float] = {}
        for family in {run.family for run in runs}:
            others = [run for run in runs if run.family != family]
            of = Blend(
                peak=fit_table(others, half=1.0),
                optimum=fit_table(others, FEATURES, self._optimum, half=1.0),
                width=1.0,
            )
            scores |= {run.name: self._sds_off(of, run) for run in runs if run.family == family}
        sds = family_quantile([scores[run.name] for run in runs], [run.family for run in runs], INSIDE)
        half = half_width(runs)
        return Blend(
            peak=fit_table(runs, half=half), optimum=fit_table(runs, FEATURES, self._optimum), width=sds / half
        )

    def _sds_off(self, of: Blend, run: Run) -> float:
        """Return the error of a run's log hours over the table's standard deviation, which ``of`` has as its width."""
        by_table = estimate_mfu(run.shape, run.workload, run.accelerator, year=run.year, of=of.peak).gpu_hours
        family, shape = run.accelerator.family, run.shape
        share = of.optimum.mfu(family, shape.is_moe, shape.active_parameters, run.year)
        said = of.hours(by_table, self._optimum(run), share.mid)
        end = said.high if run.hours > said.mid else said.low
        return math.log(run.hours / said.mid) / math.log(end / said.mid)


def toml(found: Blend) -> str:
    """Return what ``blend.toml`` has."""
    lines = [
        "# Made by `python benchmarks/estimator.py --write` from published runs; do not edit.",
        "# width: of the blend's 80 % interval (log), over that of mfu.toml; holds 80 % of families left out.",
        f'made = "{datetime.now(UTC).date().isoformat()}"',
        f"runs = {found.peak.runs}",
        f"families = {found.peak.families}",
        f"width = {found.width:.4f}",
    ]
    return "\n".join(lines) + "\n"


def _cluster(run: Run) -> Cluster:
    return Cluster(device=run.accelerator.name, count=run.count, g_per_kwh=0.0)
