"""How often `greentrain compare` tells a difference where there is none, and after how many runs it decides.

    python benchmarks/compare_groups.py                                   # a minute
    python benchmarks/compare_groups.py --out build/compare               # also a picture, and the figures as CSV
    python benchmarks/compare_groups.py --into docs/compare-runs.md

Groups get a run each in turn, up to 20 a group; all methods see the same numbers after every run. Simulated: no run is
measured here, and the spread between runs (2 % where nothing else is said) is assumed. Methods, at 5 %:

* ours        the intervals of greentrain/report/confidence_sequence.py
* Welch       Welch's t-test at each look, as people who look early and often do
* Bonferroni  the same at 5 % over the number of looks, which has to be known before
* asymptotic  the normal mixture with the estimated deviation (Waudby-Smith et al., arXiv:2103.06476, 2.2)
* limit       Welch's test at one look, at the number of runs that was planned from the true spread and difference: half
              of its runs find it
"""

import argparse
import csv
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from benchmarks.marks import facts, put
from benchmarks.metering import machine
from benchmarks.tables import Table
from greentrain.report.confidence_sequence import group_half_width, t_bound

Floats = npt.NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, int]], Floats]

ALPHA: Final = 0.05
MOST: Final = 20
"""Runs a group at the last look of a null."""
SPREAD: Final = 0.02
"""Standard deviation of a run's logarithm; assumed."""
METHODS: Final = ("ours", "Welch", "Bonferroni", "asymptotic")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="500 of each in place of 10,000: to see that it runs")
    parser.add_argument("--out", type=Path, help="also write false_alarms.png and two CSV files into this folder")
    parser.add_argument("--into", type=Path, help="also put the tables into this text, between its two marks")
    args = parser.parse_args(argv)
    trials = 500 if args.quick else 10_000
    alarms = {null.name: false_alarms(null, trials) for null in NULLS}
    decisions = [
        (spread, difference, runs_to_decision(spread, difference, trials // 10))
        for spread in (0.01, 0.03)
        for difference in (0.0, 0.01, 0.03, 0.1)
    ]
    tables = [alarm_table(alarms, trials), decision_table(decisions, trials // 10)]
    text = "\n\n".join(table.markdown() for table in tables)
    print(text)
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        for table in tables:
            with (args.out / f"{table.case}.csv").open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows([table.head, *table.rows])
        draw(args.out / "false_alarms.png", alarms[NULLS[0].name], trials)
    if args.into is not None:
        put(f"{facts(machine('benchmarks/compare_groups.py'))}\n\n{text}", args.into)
    return 0


def _normal(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    return rng.normal(0.0, SPREAD, shape)


def _heavy(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    return SPREAD / math.sqrt(3) * rng.standard_t(3, shape)


def _slow(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    return _normal(rng, shape) + np.where(rng.random(shape) < 0.1, 0.2, 0.0)


def _joules(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    return np.log(np.maximum(rng.normal(1.0, 0.2, shape), 0.05))


@dataclass(frozen=True, slots=True, kw_only=True)
class Null:
    """Runs of two groups that do not differ in their mean."""

    name: str
    a: Draw = _normal
    b: Draw = _normal
    head_start: int = 0
    """Runs of A before the first of B."""
    paired: bool = False


def _times(factor: float) -> Draw:
    return lambda rng, shape: factor * _normal(rng, shape)


NULLS: Final = (
    Null(name="log-normal, as assumed"),
    Null(name="the same, a look after each pair of runs", paired=True),
    Null(name="normal in joules, spread 20 %", a=_joules, b=_joules),
    Null(name="heavy tails (t, 3 degrees of freedom)", a=_heavy, b=_heavy),
    Null(name="every tenth run 20 % worse", a=_slow, b=_slow),
    Null(name="B spreads 3 times as much", b=_times(3.0)),
    Null(name="the same, a look after each pair of runs", b=_times(3.0), paired=True),
    Null(name="A is 10 runs ahead", head_start=10),
    Null(name="the same, B spreads 1.5 times as much", b=_times(1.5), head_start=10),
    Null(name="A is 10 runs ahead, B spreads 3 times as much", b=_times(3.0), head_start=10),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Looks:
    """What each method's statistic says at every look, of many repetitions at once."""

    runs: list[tuple[int, int]]
    """Runs of A and of B at each look."""
    mean: Floats
    """B less A [trials, looks]."""
    halves: Mapping[str, Floats]
    """Half of each method's interval [trials, looks]."""


def looks_at(a: Floats, b: Floats, *, head_start: int = 0, paired: bool = False) -> Looks:
    """Look after every run of groups that get one in turn.

    Args:
        a: Values of A [trials, runs].
        b: Those of B.
        head_start: Runs of A before the first of B.
        paired: Whether the n-th run of A and of B are a pair; a look then comes after each pair.
    """
    runs = [(n, n) for n in range(2, b.shape[1] + 1)]
    if not paired:
        runs = [(n + head_start, m) for n in range(1, b.shape[1] + 1) for m in (n - 1, n) if m and n + m > 2]
    na, nb = np.array(runs).T
    mean_a, var_a = _running(a)
    mean_b, var_b = _running(b)
    mean, var_a, var_b = mean_b[:, nb - 1] - mean_a[:, na - 1], var_a[:, na - 1], var_b[:, nb - 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        ours = group_half_width((var_a, var_b), (na, nb), ALPHA)
    if paired:
        variance, weight = _running(b - a)[1][:, nb - 1], nb.astype(float)
        error, freedom = np.sqrt(variance / weight), np.broadcast_to(nb - 1.0, mean.shape)
        ours = error * t_bound(nb - 1, nb, ALPHA)
    else:
        variance = ((na - 1) * var_a + (nb - 1) * var_b) / (na + nb - 2)
        weight = na * nb / (na + nb)
        part_a, part_b = var_a / na, var_b / nb
        error = np.sqrt(part_a + part_b)
        freedom = (part_a + part_b) ** 2 / (part_a**2 / np.maximum(na - 1, 1) + part_b**2 / np.maximum(nb - 1, 1))
    rho_2 = 1 / 10  # a mixture as wide as ours has its least width at some ten runs
    mixture = np.sqrt(2 * (weight * rho_2 + 1) / (weight**2 * rho_2) * np.log(np.sqrt(weight * rho_2 + 1) / ALPHA))
    both = (na > 1) & (nb > 1)
    halves = {
        "ours": np.where(both, ours, math.inf),
        "Welch": np.where(both, error * stdtrit(freedom, 1 - ALPHA / 2), math.inf),
        "Bonferroni": np.where(both, error * stdtrit(freedom, 1 - ALPHA / 2 / both.sum()), math.inf),
        "asymptotic": np.sqrt(variance) * mixture,
    }
    return Looks(runs=runs, mean=mean, halves=halves)


def _running(values: Floats) -> tuple[Floats, Floats]:
    """Return mean and variance of the first 1, 2, ... values of each row; the variance of one is 0."""
    n = np.arange(1, values.shape[1] + 1)
    mean = np.cumsum(values, axis=1) / n
    squares = np.cumsum(values**2, axis=1) - n * mean**2
    return mean, np.maximum(squares, 0.0) / np.maximum(n - 1, 1)


def false_alarms(null: Null, trials: int) -> dict[str, Floats]:
    """Return the share of repetitions in which a method has told a difference by each look."""
    rng = np.random.default_rng(20)
    a = null.a(rng, (trials, MOST + null.head_start))
    b = null.b(rng, (trials, MOST))
    looks = looks_at(a, b, head_start=null.head_start, paired=null.paired)
    truth = _expected(null.b) - _expected(null.a)
    found = {}
    for name, half in looks.halves.items():
        alarm = np.logical_or.accumulate(np.abs(looks.mean - truth) > half, axis=1)
        found[name] = alarm.mean(axis=0)
    return found


def _expected(draw_one: Draw) -> float:
    return float(draw_one(np.random.default_rng(0), (1, 10**6)).mean())


def runs_to_decision(spread: float, difference: float, trials: int) -> dict[str, Floats]:
    """Return the runs a group after which a difference, or none above 1 %, is told (NaN: not in time), and if wrongly.

    Args:
        spread: Standard deviation of a run's logarithm.
        difference: True relative difference.
        trials: Repetitions.
    """
    margin, most = math.log(1.01), 200
    rng = np.random.default_rng(21)
    a = rng.normal(0.0, spread, (trials, most))
    b = rng.normal(math.log1p(difference), spread, (trials, most))
    looks = looks_at(a, b)
    pairs = np.array([n + m for n, m in looks.runs]) / 2
    half, away = looks.halves["ours"], np.abs(looks.mean)
    decided = (away > half) | (away + half < margin)
    ever, first = decided.any(axis=1), decided.argmax(axis=1)
    told, error = looks.mean[np.arange(trials), first], half[np.arange(trials), first]
    apart = np.abs(told) > error
    wrong = np.where(apart, told * difference <= 0, math.log1p(difference) > margin)
    return {"runs": np.where(ever, pairs[first], math.nan), "wrong": (ever & wrong).astype(float)}


def planned_runs(spread: float, difference: float) -> int | None:
    """Return the runs a group of which a t-test at one look finds the difference in every other case."""
    effect = math.log1p(difference) / spread
    for n in range(2, 10**6):
        if effect * math.sqrt(n / 2) >= stdtrit(2 * n - 2, 1 - ALPHA / 2):
            return n
        if not effect:
            break
    return None


def alarm_table(alarms: Mapping[str, Mapping[str, Floats]], trials: int) -> Table:
    """Return the table of false alarms by the last look."""
    rows = [[name, *(f"{100 * of[method][-1]:.1f} %" for method in METHODS)] for name, of in alarms.items()]
    error = 100 * math.sqrt(ALPHA * (1 - ALPHA) / trials)
    notes = (
        f"Simulated {trials:,} times each, a look after every run up to {MOST} a group: share of repetitions that told"
        f" a difference at any look, at {ALPHA:.0%}. The standard error of a rate of 5 % is {error:.1f} points.",
        "Differences are of logarithms of runs; each against its true mean. Spread 2 % (assumed) where none is named.",
    )
    return Table(case="false_alarms", title="False alarms", head=["", *METHODS], rows=rows, notes=notes)


def decision_table(decisions: Sequence[tuple[float, float, Mapping[str, Floats]]], trials: int) -> Table:
    """Return the table of runs until a decision."""
    rows = []
    for spread, difference, found in decisions:
        runs, limit = found["runs"], planned_runs(spread, difference)
        late = float(np.isnan(runs).mean())
        finite = np.where(np.isnan(runs), math.inf, runs)
        tenth, half, most = np.quantile(finite, [0.1, 0.5, 0.9], method="higher")
        rows.append(
            [
                f"{100 * spread:g} %", f"{100 * difference:g} %", _runs(half), f"{_runs(tenth)} to {_runs(most)}",
                f"{100 * late:.1f} %", f"{100 * found['wrong'].mean():.1f} %", "" if limit is None else str(limit),
            ]
        )  # fmt: skip
    head = ["spread of runs", "true difference", "runs a group", "80 % of cases", "not by 200", "wrong", "limit"]
    notes = (
        f"Simulated {trials:,} times each: runs a group (median) when ours tells which is better, or no difference"
        " above 1 %. Wrong: the other way round, a difference where there is none, or none where it is above 1 %.",
        "Limit: runs a group of a t-test at one look, planned from the true spread and difference, that finds it in"
        " half of all cases.",
    )
    return Table(case="decisions", title="Runs until a decision", head=head, rows=rows, notes=notes)


def _runs(number: float) -> str:
    return f"{number:g}" if math.isfinite(number) else "over 200"


def draw(path: Path, alarms: Mapping[str, Floats], trials: int) -> None:
    """Draw the share of false alarms so far against the number of runs."""
    from matplotlib.figure import Figure

    from greentrain.simulator.picture import LINES

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axis = figure.subplots()
    for (name, share), colour in zip(alarms.items(), LINES, strict=False):
        axis.plot(np.arange(3, 3 + len(share)), 100 * share, color=colour, label=name)
    axis.axhline(100 * ALPHA, color="#64748b", linestyle="--", linewidth=1)
    axis.set_xlabel("runs of both groups, a look after each")
    axis.set_ylabel("false alarms so far (%)")
    axis.set_title(f"Two groups without a difference, simulated {trials:,} times")
    axis.legend()
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    raise SystemExit(main())
