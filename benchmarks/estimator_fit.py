"""Fits tables of what devices reach: a mixed model with families of models as random effects.

    log share = base + class of device + mixture + size x log10(active / 1e10) + age + family + run

The share is that of the 16-bit peak (MFU), or the modelled optimum's hours over the hours reported.
Effects are shrunk to 0 by priors that were set before the fit, so a class with few families stays near the mean of all.
How far families and runs scatter is averaged over a grid, by its likelihood. The width comes from families left out
(conformal prediction, a family at a time), not from the model's own variance.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np

from benchmarks.estimator_runs import Run
from greentrain.estimate.mfu import NEW_SOFTWARE_YEAR, OTHER, REFERENCE_PARAMETERS, MfuRow, MfuTable
from greentrain.estimate.values import Range

Base = Callable[[Run], float]
"""Hours that a run would take at a share of 1."""
SPREADS: Final = tuple(itertools.product((0.15, 0.2, 0.25, 0.3, 0.35), (0.1, 0.13, 0.16, 0.2, 0.25)))
"""By how much families of models differ (log), and by how much runs of one family."""
PRIORS: Final = {"moe": 0.3, "old": 0.3, "size": 0.15}
CLASS_SD: Final = 0.3
BASE_SD: Final = 30.0
INSIDE: Final = 0.8
"""Share of unseen families that the interval is to hold."""
FEATURES: Final = ("class", "moe", "size", "old")


def at_peak(run: Run) -> float:
    """Return hours at the 16-bit peak, less the gain by FP8."""
    return run.peak_hours / run.fp8_gain


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Effects on the log of the share."""

    names: Sequence[str]
    effects: Any
    """Shape (names,): one a column."""
    covariance: Any
    features: Sequence[str]
    scatter: float
    """Variance of a run of a new family around its prediction, the effects taken as known."""

    def predict(self, run: Run) -> float:
        """Return the log of the share."""
        return float(_columns(run, self.names) @ self.effects)

    def sd(self, family: str, is_moe: bool) -> float:
        """Return the standard deviation of a new family's log share in a class, at the reference size."""
        columns = np.array([_class_column(name, family, is_moe) for name in self.names])
        known = f"class {family}" in self.names or "class" not in self.features
        variance = columns @ self.covariance @ columns + self.scatter
        return math.sqrt(variance + (0.0 if known else CLASS_SD**2))

    def effect(self, name: str) -> float:
        """Return one effect; 0 for one that is not in the fit."""
        return float(self.effects[list(self.names).index(name)]) if name in self.names else 0.0


def fit(runs: Sequence[Run], features: Sequence[str] = FEATURES, base: Base = at_peak) -> Fit:
    """Return the posterior mean of the effects.

    Args:
        runs: To learn from.
        features: Which effects there are.
        base: What the share is of.
    """
    return _fit(tuple(runs), tuple(features), base)


@functools.lru_cache(maxsize=4096)
def _fit(runs: tuple[Run, ...], features: tuple[str, ...], base: Base) -> Fit:
    """Fit once: families left out in pairs come in both orders."""
    classes = sorted({run.accelerator.family for run in runs}) if "class" in features else []
    names = ["base", *(f"class {each}" for each in classes), *(f for f in features if f != "class")]
    sds = [BASE_SD, *(CLASS_SD for _ in classes), *(PRIORS[f] for f in features if f != "class")]
    columns = np.array([_columns(run, names) for run in runs])
    families = np.array([run.family for run in runs])
    same = families[:, None] == families[None, :]
    values = np.array([_log_share(run, base) for run in runs])
    believed = columns * np.square(sds) @ columns.T
    noise = np.array([same * a**2 + np.eye(len(runs)) * b**2 for a, b in SPREADS])
    root = np.linalg.cholesky(noise + believed)
    white = np.linalg.solve(root, np.broadcast_to(values[:, None], (len(SPREADS), len(runs), 1)))[..., 0]
    likelihoods = -np.square(white).sum(-1) / 2 - np.log(np.diagonal(root, axis1=1, axis2=2)).sum(-1)
    weighted = np.swapaxes(np.linalg.solve(noise, np.broadcast_to(columns, (len(SPREADS), *columns.shape))), 1, 2)
    covariances = np.linalg.inv(weighted @ columns + np.diag(1 / np.square(sds)))
    means = (covariances @ (weighted @ values)[..., None])[..., 0]
    weights = np.exp(likelihoods - likelihoods.max())
    weights /= weights.sum()
    effects = weights @ means
    apart = means - effects
    return Fit(
        names=names,
        effects=effects,
        covariance=np.einsum("s,sij->ij", weights, covariances) + np.einsum("s,si,sj->ij", weights, apart, apart),
        features=features,
        scatter=float(weights @ [a**2 + b**2 for a, b in SPREADS]),
    )


def half_width(runs: Sequence[Run], features: Sequence[str] = FEATURES, base: Base = at_peak) -> float:
    """Return how many standard deviations hold 80 % of families, each left out in turn."""
    scores = [abs(error / sd) for error, sd in left_out(runs, features, base)]
    return family_quantile(scores, [run.family for run in runs], INSIDE)


def fit_table(
    runs: Sequence[Run], features: Sequence[str] = FEATURES, base: Base = at_peak, half: float | None = None
) -> MfuTable:
    """Return the table that these runs give.

    Args:
        runs: To learn from.
        features: Which effects there are.
        base: What the share is of.
        half: Half width of the interval in standard deviations; None: what holds 80 % of families left out.
    """
    whole = fit(runs, features, base)
    half = half_width(runs, features, base) if half is None else half
    classes = sorted({run.accelerator.family for run in runs})
    rows = {
        (family, is_moe): _row(whole, runs, family, is_moe, half)
        for family in (*classes, OTHER)
        for is_moe in (False, True)
    }
    sizes = [run.shape.active_parameters for run in runs]
    return MfuTable(
        made=datetime.now(UTC).date().isoformat(),
        runs=len(runs),
        families=len({run.family for run in runs}),
        per_decade=math.exp(whole.effect("size")),
        old_software=math.exp(whole.effect("old")),
        smallest=min(sizes),
        largest=max(sizes),
        rows=rows,
    )


def choose_features(runs: Sequence[Run], pool: Sequence[Sequence[str]]) -> Sequence[str]:
    """Return the set of features with the least mean error on families left out of these runs."""

    def error(features: Sequence[str]) -> float:
        return float(np.mean([abs(error) for error, _ in left_out(runs, features, at_peak)]))

    return min(pool, key=error)


def left_out(runs: Sequence[Run], features: Sequence[str], base: Base) -> list[tuple[float, float]]:
    """Return by run the error of its log share, predicted without its family, and the deviation expected there."""
    found = {}
    for family in {run.family for run in runs}:
        others = fit([run for run in runs if run.family != family], features, base)
        for run in runs:
            if run.family == family:
                sd = others.sd(run.accelerator.family, run.shape.is_moe)
                found[run.name] = (_log_share(run, base) - others.predict(run), sd)
    return [found[run.name] for run in runs]


def family_quantile(values: Sequence[float], families: Sequence[str], share: float) -> float:
    """Return a quantile in which every family weighs the same, however many runs it has."""
    order = np.argsort(values)
    weights = np.array([1 / families.count(family) for family in families])[order]
    middle = (np.cumsum(weights) - weights / 2) / weights.sum()
    return float(np.interp(share, middle, np.asarray(values)[order]))


def toml(table: MfuTable, what: str) -> str:
    """Return a table as ``mfu.toml`` has it.

    Args:
        table: What was fitted.
        what: Its shares are of this.
    """
    lines = [
        "# Made by `python benchmarks/estimator.py --write` from published runs; do not edit.",
        f"# mfu: 10th, 50th and 90th percentile over families of models of the share of {what}, for 1e10",
        "# active parameters and software of 2023 or later. runs: those of the row; 0: it follows from the others.",
        f'made = "{table.made}"',
        f"runs = {table.runs}",
        f"families = {table.families}",
        f"per_decade = {table.per_decade:.4f}",
        f"old_software = {table.old_software:.4f}",
        f"smallest = {table.smallest:.9g}",
        f"largest = {table.largest:.9g}",
    ]
    for (family, is_moe), row in sorted(table.rows.items()):
        mfu = ", ".join(f"{value:.4f}" for value in (row.mfu.low, row.mfu.mid, row.mfu.high))
        lines += ["", f"[class.{family}.{'moe' if is_moe else 'dense'}]", f"mfu = [{mfu}]"]
        lines += [f"runs = {row.runs}", f"families = {row.families}"]
    return "\n".join(lines) + "\n"


def _log_share(run: Run, base: Base) -> float:
    return math.log(base(run) / run.hours)


def _row(found: Fit, runs: Sequence[Run], family: str, is_moe: bool, half: float) -> MfuRow:
    mine = [run for run in runs if run.accelerator.family == family and run.shape.is_moe is is_moe]
    mid = math.exp(sum(_class_column(name, family, is_moe) * found.effect(name) for name in found.names))
    by = math.exp(half * found.sd(family, is_moe))
    return MfuRow(
        mfu=Range(low=mid / by, mid=mid, high=min(1.0, mid * by)),
        runs=len(mine),
        families=len({run.family for run in mine}),
    )


def _columns(run: Run, names: Sequence[str]) -> Any:
    shifts = {
        "size": math.log10(run.shape.active_parameters / REFERENCE_PARAMETERS),
        "old": float(run.year < NEW_SOFTWARE_YEAR),
    }
    family, is_moe = run.accelerator.family, run.shape.is_moe
    return np.array([shifts[name] if name in shifts else _class_column(name, family, is_moe) for name in names])


def _class_column(name: str, family: str, is_moe: bool) -> float:
    if name == "base":
        return 1.0
    return float(is_moe if name == "moe" else name == f"class {family}")
