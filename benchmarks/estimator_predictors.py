"""The baselines, and ours: each learns from some runs and predicts others.

LLMCarbon (Faiz et al., ICLR 2024) gives the throughput of a device as a square polynomial of the parameters, one where
a model fits into a node (tensor parallel) and one where it does not (pipeline), both from runs on A100-80GB. The six
coefficients and the rule of 0.03 billion parameters per gigabyte are those of its repository (github.com/SotaroKaneda/
MLCarbon, README and model.py at dbd96b7, Apache-2.0).
"""

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

import numpy as np

from benchmarks.estimator_fit import FEATURES, INSIDE, choose_features, family_quantile, fit_table
from benchmarks.estimator_runs import Run
from benchmarks.estimator_scores import Predict, Train, leave_one_family_out
from greentrain.estimate.mfu import estimate_mfu
from greentrain.estimate.values import Range
from greentrain.types import S_PER_HOUR, Gear

LLMCARBON_TENSOR: Final = (-8.82079068e-20, 1.68591116e-09, 1.33954735e02)
"""TFLOP/s of a device over parameters: square, linear, constant."""
LLMCARBON_PIPELINE: Final = (-5.60233749e-23, 8.45435587e-11, 1.34546129e02)
LLMCARBON_PER_BYTE: Final = 0.03
"""Parameters that a byte of device memory holds."""
LLMCARBON_NODE: Final = 8
_A100_PEAK: Final = 312e12

POOL: Final[Sequence[Sequence[str]]] = (
    (),
    ("class",),
    ("class", "moe"),
    ("class", "moe", "old"),
    ("class", "moe", "size"),
    ("class", "moe", "size", "old"),
)


def flat(mfu: float) -> Train:
    """Return 6ND at one given MFU."""
    return lambda _: lambda run: Range.exactly(run.peak_hours / mfu)


def one_mfu(runs: Sequence[Run]) -> Predict:
    """Return 6ND at the median MFU of the runs."""
    mfu = median(run.mfu for run in runs)
    return lambda run: Range.exactly(run.peak_hours / mfu)


def by_class(runs: Sequence[Run]) -> Predict:
    """Return 6ND at the median MFU of runs of the same class and kind; of the class, then of all, where none is."""

    def predict(run: Run) -> Range:
        device = run.accelerator.family
        same = [r.mfu for r in runs if r.kind == run.kind]
        near = [r.mfu for r in runs if r.accelerator.family == device]
        return Range.exactly(run.peak_hours / median(same or near or [r.mfu for r in runs]))

    return predict


def llmcarbon(*, scaled: bool) -> Train:
    """Return LLMCarbon's regression of throughput.

    Args:
        scaled: True: the polynomial over the A100's peak is taken as a share of any device's peak, which its authors
            do not do but for the V100; False: the figure itself.
    """

    def predict(run: Run) -> Range:
        parameters = run.shape.active_parameters
        held = LLMCARBON_PER_BYTE * run.accelerator.memory_bytes.value
        a, b, c = LLMCARBON_TENSOR if parameters < LLMCARBON_NODE * held else LLMCARBON_PIPELINE
        flop_s = 1e12 * (a * parameters**2 + b * parameters + c)
        if scaled:
            flop_s *= run.accelerator.peak_flop_s[Gear.BF16].value / _A100_PEAK
        return Range.exactly(run.flop / flop_s / S_PER_HOUR)

    return lambda _: predict


REGRESSED: Final = ("a100", "h100")
"""Classes of device of the regression that CarbonScaling sets beside its own estimates (section 4.1)."""


def regression(runs: Sequence[Run]) -> Predict:
    """Return LLMCarbon's form fitted to the A100 and H100 runs: the share of the peak as a square of log parameters.

    The paper names a regression on those devices and prints neither its form nor its coefficients. A square in
    parameters themselves is fixed by the largest model alone. Outside what the runs reached, the nearest share holds.
    """
    rows = [run for run in runs if run.accelerator.family in REGRESSED]
    x, y = np.log([run.shape.active_parameters for run in rows]), np.array([run.mfu for run in rows])
    fitted = np.polynomial.Polynomial.fit(x, y, 2)

    def predict(run: Run) -> Range:
        share = np.clip(fitted(math.log(run.shape.active_parameters)), y.min(), y.max())
        return Range.exactly(run.peak_hours / float(share))

    return predict


def table(runs: Sequence[Run]) -> Predict:
    """Return method ``mfu`` of the package, with the table that these runs give."""
    return _with_table(runs, FEATURES)


def chosen_table(runs: Sequence[Run]) -> Predict:
    """Return the same, but the features too are chosen on these runs alone."""
    return _with_table(runs, choose_features(runs, POOL))


def geometric_mean(parts: Mapping[Train, float]) -> Train:
    """Return a weighted geometric mean of predictors."""

    def train(runs: Sequence[Run]) -> Predict:
        trained = {part(runs): weight for part, weight in parts.items()}
        total = sum(trained.values())

        def mid(run: Run) -> float:
            return math.exp(sum(w * math.log(part(run).mid) for part, w in trained.items()) / total)

        return lambda run: Range.exactly(mid(run))

    return train


def with_interval(point: Train) -> Train:
    """Return a predictor with an 80 % interval, from each family of the runs left out in turn."""

    def train(runs: Sequence[Run]) -> Predict:
        inner = leave_one_family_out(runs, point)
        errors = [abs(error) for error in inner.log_errors]
        by = math.exp(family_quantile(errors, [run.family for run in runs], INSIDE))
        trained = point(runs)

        def predict(run: Run) -> Range:
            mid = trained(run).mid
            return Range(low=mid / by, mid=mid, high=mid * by)

        return predict

    return train


def _with_table(runs: Sequence[Run], features: Sequence[str]) -> Predict:
    found = fit_table(runs, features)

    def predict(run: Run) -> Range:
        return estimate_mfu(run.shape, run.workload, run.accelerator, year=run.year, of=found).gpu_hours

    return predict
