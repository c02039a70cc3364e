"""How far estimates are from published training runs, whole families of models left out, beside every baseline.

    python benchmarks/estimator.py                       # five minutes
    python benchmarks/estimator.py --quick               # no pilots: seconds
    python benchmarks/estimator.py --write               # make greentrain/estimate/{mfu,optimum,blend}.toml again
    python benchmarks/estimator.py --into docs/estimate-benchmarks.md
    python benchmarks/estimator.py --regression --into docs/estimate-benchmarks.md     # that table alone, seconds

No GPU, no network.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import estimator_layouts as layouts
from benchmarks import estimator_predictors as predictors
from benchmarks.estimator_fit import toml
from benchmarks.estimator_pilot import PilotCase, published, real_case, real_markdown, stepped_cases
from benchmarks.estimator_roofline import FITTED, Optimum, StepTime, step_times
from benchmarks.estimator_runs import BENCH, RUNS_CSV, Run, read_runs, whole
from benchmarks.estimator_scores import Left, Train, gain, leave_one_family_out
from benchmarks.marks import facts, put
from benchmarks.metering import machine
from greentrain.estimate import hours
from greentrain.estimate.hours import by_auto

PACKAGE: Final = Path(__file__).resolve().parents[1] / "greentrain" / "estimate"
OURS: Final = "mfu"
ROOFLINE: Final = "roofline (M3)"
BLEND: Final = "blend"
METHODS: Final = (OURS, ROOFLINE, BLEND)
BASELINES: Final = (
    "B0 6ND / 0.40",
    "B1 one MFU",
    "B2 MFU by class x MoE",
    "LLMCarbon's regression",
    "LLMCarbon's, scaled to the peak",
)
REPEATS: Final = 20
SUBSETS: Final[Mapping[str, Callable[[Run], bool]]] = {
    "tier A": lambda run: run.tier == "A",
    "tier B": lambda run: run.tier == "B",
    "dense": lambda run: not run.shape.is_moe,
    "mixtures of experts": lambda run: run.shape.is_moe,
    "A100, A800": lambda run: run.accelerator.family == "a100",
    "H100, H800": lambda run: run.accelerator.family == "h100",
    "before 2023": lambda run: run.year < 2023,
    "10 B active and more": lambda run: run.shape.active_parameters >= 1e10,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A figure and what it is held to."""

    what: str
    value: float | None
    unit: str = "%"
    least: float | None = None
    most: float | None = None

    @property
    def verdict(self) -> str:
        """PASS or MISS; n/a where nothing was measured; empty without a bar."""
        if self.value is None:
            return "n/a"
        if self.least is None and self.most is None:
            return ""
        low = self.least is None or self.value >= self.least
        return "PASS" if low and (self.most is None or self.value <= self.most) else "MISS"

    @property
    def held_to(self) -> str:
        """The bounds, as people read them."""
        if self.least is not None and self.most is not None:
            return f"{self.least:g} to {self.most:g}"
        return f">= {self.least:g}" if self.least is not None else f"<= {self.most:g}" if self.most is not None else ""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=RUNS_CSV, help="published runs (CSV)")
    parser.add_argument("--quick", action="store_true", help="no pilots")
    parser.add_argument("--write", action="store_true", help="only make the package's tables again, from all the runs")
    parser.add_argument("--regression", action="store_true", help="only the regression on A100 and H100 runs")
    parser.add_argument("--into", type=Path, help="also put the tables into this text, between its two marks")
    args = parser.parse_args(argv)
    if args.into is not None and args.quick:
        parser.error("--into replaces the whole text between the marks, so it goes without --quick")
    if not args.runs.exists():
        parser.error(f"{args.runs} does not exist: give the table of published runs with --runs")
    every = read_runs(args.runs)
    runs = whole(every)
    if args.write:
        _write(runs)
        return 0
    if args.regression:
        text = regression_markdown(runs)
        print(text)
        if args.into is not None:
            put(text, args.into, "regression")
        return 0
    left = scored(runs)
    steps = step_times([run for run in every if run.tier == BENCH])
    pilots: list[PilotCase] = []
    if not args.quick:
        _log("pilots")
        real = real_case(3000)
        pilots = [*stepped_cases(REPEATS), real]
    about = machine("benchmarks/estimator.py") | {"load": f"{os.getloadavg()[0]:.1f}"}
    text = markdown(runs, left, steps, pilots, about)
    print(text)
    if args.into is not None:
        put(text, args.into)
    return 0


def regression_markdown(runs: Sequence[Run]) -> str:
    """Return what a regression fitted to A100 and H100 runs says of their unseen families, and ours beside it."""
    runs = [run for run in runs if run.accelerator.family in predictors.REGRESSED]
    trains = {
        "regression on A100, H100": predictors.regression,
        "one MFU of these": predictors.one_mfu,
        "LLMCarbon's on these": predictors.llmcarbon(scaled=False),
        "mfu of these": predictors.table,
    }
    left = {name: leave_one_family_out(runs, train) for name, train in trains.items()}
    about = facts(machine("benchmarks/estimator.py") | {"runs": f"{len(runs)} on A100, A800, H100 and H800"})
    lines = [
        about,
        "",
        *_score_rows(left),
        "",
        f"| less mean log error than the regression, by | {OURS} |",
        "|---|---|",
    ]
    mean, low, high = gain(left["mfu of these"], left["regression on A100, H100"])
    return "\n".join([*lines, f"| mean, 95 % interval | {mean:+.3f} ({low:+.3f} to {high:+.3f}) |"])


def scored(runs: Sequence[Run]) -> dict[str, Left]:
    """Return what each predictor says of families that it has not seen."""
    optimum = Optimum()
    ours = layouts.Layouts(optimum)
    b0, b1, b2, regression, scaled = BASELINES
    trains: Mapping[str, Train] = {
        b0: predictors.flat(0.40),
        b1: predictors.one_mfu,
        b2: predictors.by_class,
        regression: predictors.llmcarbon(scaled=False),
        scaled: predictors.llmcarbon(scaled=True),
        OURS: predictors.table,
        "mfu, features chosen in the fold": predictors.chosen_table,
        "M0 optimum": optimum.alone,
        "M1 optimum x one derate": optimum.one_derate,
        "M1, families alike": optimum.one_spread,
        "M2 optimum x derate by class x MoE": predictors.with_interval(optimum.by_class),
        "blend of M2 and B2": predictors.with_interval(
            predictors.geometric_mean({optimum.by_class: 1.0, predictors.by_class: 1.0})
        ),
        ROOFLINE: ours.roofline,
        BLEND: ours.blend,
        "blend, batch and sequence not told": ours.untold(hours.by_blend),
        "auto, batch and sequence not told": ours.untold(by_auto),
    }
    left = {}
    for name, train in trains.items():
        began_s = time.monotonic()
        left[name] = leave_one_family_out(runs, train)
        _log(f"{name}: {time.monotonic() - began_s:.1f} s")
    return left


def markdown(
    runs: Sequence[Run],
    left: Mapping[str, Left],
    steps: Sequence[StepTime],
    pilots: Sequence[PilotCase],
    about: Mapping[str, str],
) -> str:
    """Return all tables, and where they were made."""
    families = len({run.family for run in runs})
    parts = [
        [facts({**about, "runs": f"{len(runs)} of {families} families"})],
        ["### Bars", "", *_bar_rows(bars(left, steps, pilots))],
        ["### Unseen families", "", *_score_rows(left)],
        ["### Against the baselines", "", *_gain_rows(left)],
        ["### Parts of the runs", "", *_subset_rows(left)],
        ["### Pilots of our own", "", *_pilot_rows(pilots)],
        ["### Published speeds", "", *_published_rows(runs)],
        ["### Run by run", "", *_run_rows(left)],
    ]
    return "\n\n".join("\n".join(lines) for lines in parts)


def bars(left: Mapping[str, Left], steps: Sequence[StepTime], pilots: Sequence[PilotCase]) -> list[Bar]:
    """Return the figures that this benchmark is held to."""
    found: list[Bar] = []
    for name in (BLEND, OURS):
        one = left[name]
        found.append(Bar(what=f"{name}: median error", value=100 * one.median, most=20.0))
        found.append(Bar(what=f"{name}: median error, the goal", value=100 * one.median, most=18.0))
    for name in METHODS:
        one = left[name]
        for what, share in (("runs", one.coverage), ("runs, families weighing the same", one.family_coverage)):
            value = None if share is None else 100 * share
            found.append(Bar(what=f"{name}: {what} inside the 80 % interval", value=value, least=75.0, most=90.0))
    for base in BASELINES:
        for name in (OURS, BLEND):
            low = gain(left[name], left[base])[1]
            found.append(Bar(what=f"{name} over {base}: 95 % sure gain in mean log error", value=100 * low, least=0.0))
    fitted = [abs(step.error) for step in steps if step.family == FITTED]
    others = [abs(step.error) for step in steps if step.family != FITTED]
    found.append(Bar(what="step times, those of the fit: mean error", value=_mean(fitted), most=5.0))
    found.append(Bar(what="step times, others: mean error", value=_mean(others)))
    stepped, real = pilots[:-1], pilots[-1:]
    even = [pilot.worst for pilot in stepped if pilot.held]
    found.append(Bar(what="pilot of 50 steps, even noise: worst", value=100 * max(even) if even else None, most=2.0))
    medians = [pilot.median for pilot in stepped if pilot.held or "checkpoint" not in pilot.name]
    value = 100 * max(medians) if medians else None
    found.append(Bar(what="pilot of 50 steps, any noise: largest median", value=value, most=2.0))
    measured = bool(real) and not real[0].refused
    value = 100 * real[0].worst if measured else None
    found.append(Bar(what="pilot of a real training: hours and energy, worst of 5", value=value, most=2.0))
    value = 100 * max(abs(e) for pair in real[0].steady for e in pair) if measured else None
    found.append(Bar(what="the same, the machine's own change of speed taken out", value=value, most=2.0))
    return found


def _bar_rows(found: Sequence[Bar]) -> list[str]:
    lines = ["| figure | value | unit | held to | verdict |", "|---|---|---|---|---|"]
    for bar in found:
        value = "n/a" if bar.value is None else f"{bar.value:.1f}"
        lines.append(f"| {bar.what} | {value} | {bar.unit} | {bar.held_to} | {bar.verdict} |")
    counts = {verdict: sum(bar.verdict == verdict for bar in found) for verdict in ("PASS", "MISS", "n/a")}
    return [*lines, "", f"{counts['PASS']} bars reached, {counts['MISS']} missed, {counts['n/a']} not measured"]


def _score_rows(left: Mapping[str, Left]) -> list[str]:
    lines = [
        "| predictor | median error | mean | P90 | bias | within 20 % | within 2 x | inside 80 % | families | x/÷ |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, one in left.items():
        cells = [_percent(one.median), _percent(one.mean), _percent(one.p90), f"{one.bias:+.1%}"]
        cells += [f"{one.within(1.2)}/{len(one.runs)}", f"{one.within(2.0)}/{len(one.runs)}"]
        cells += ["" if share is None else _percent(share) for share in (one.coverage, one.family_coverage)]
        cells.append("" if one.half_width is None else f"{one.half_width:.2f}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _gain_rows(left: Mapping[str, Left]) -> list[str]:
    lines = [f"| less mean log error than | {OURS} | {BLEND} |", "|---|---|---|"]
    for base in (*BASELINES, "M2 optimum x derate by class x MoE", OURS):
        cells = []
        for ours in (OURS, BLEND):
            mean, low, high = gain(left[ours], left[base])
            cells.append("" if ours == base else f"{mean:+.3f} ({low:+.3f} to {high:+.3f})")
        lines.append(f"| {base} | {' | '.join(cells)} |")
    return lines


def _subset_rows(left: Mapping[str, Left]) -> list[str]:
    lines = ["| runs | number | mfu: median error | bias | inside 80 % | blend: median error | bias | inside 80 % |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for name, keep in SUBSETS.items():
        ours, blend = left[OURS].where(keep), left[BLEND].where(keep)
        cells = [str(len(ours.runs))]
        for one in (ours, blend):
            cells += [_percent(one.median), f"{one.bias:+.1%}", _percent(one.coverage or 0.0)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _pilot_rows(pilots: Sequence[PilotCase]) -> list[str]:
    lines = ["| run | hours: median error | worst, hours or energy | inside 80 % |", "|---|---|---|---|"]
    for one in pilots:
        if one.refused:
            lines.append(f"| {one.name} | {one.refused} | | |")
            continue
        inside = f"{one.inside}/{len(one.hours)}"
        lines.append(f"| {one.name} | {one.median:.2%} | {one.worst:.2%} | {inside} |")
    real = [real_markdown(one) for one in pilots[-1:] if one.hours]
    return [*lines, *(line for text in real for line in ("", text))] if pilots else ["not measured"]


def _published_rows(runs: Sequence[Run]) -> list[str]:
    lines = ["| run | published speed | error of the hours |", "|---|---|---|"]
    rows = published(runs)
    lines += [f"| {run.name} | {speed} | {error:+.1%} |" for run, speed, error in rows]
    median = statistics.median(abs(error) for _, _, error in rows)
    return [*lines, "", f"Median {median:.1%}; what lies below 0 is time that made no progress."]


def _run_rows(left: Mapping[str, Left]) -> list[str]:
    lines = ["| run | device | reported h | MFU | mfu: said h (80 %) | error | blend: said h (80 %) | error |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for i, run in enumerate(left[OURS].runs):
        cells = [run.name, run.accelerator.name, f"{run.hours:,.0f}", f"{run.mfu:.3f}"]
        for one in (left[OURS], left[BLEND]):
            said = one.said[i]
            cells += [f"{said.mid:,.0f} ({said.low:,.0f} to {said.high:,.0f})", f"{one.errors[i]:+.0%}"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _write(runs: Sequence[Run]) -> None:
    found = layouts.Layouts(Optimum()).fit_blend(runs)
    texts = {
        "mfu.toml": toml(found.peak, "the dense 16-bit peak"),
        "optimum.toml": toml(found.optimum, "real hours that the search's optimum is"),
        "blend.toml": layouts.toml(found),
    }
    for name, text in texts.items():
        (PACKAGE / name).write_text(text, encoding="utf-8")
        _log(f"{PACKAGE / name}: {len(runs)} runs of {found.peak.families} families")


def _mean(values: Sequence[float]) -> float | None:
    return 100 * statistics.fmean(values) if values else None


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _log(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
