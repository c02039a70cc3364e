"""The time-energy frontier of a pipeline beside one clock for all, Perseus' published one and an exhaustive search.

    python benchmarks/pipeline_frontier.py             # five minutes
    python benchmarks/pipeline_frontier.py --quick     # to see that it runs

Stages of GPT-3 175B and BLOOM on A100s, each pass at 38 clocks, as the authors of Perseus profiled them
(``benchmarks/data/perseus_sosp24``), 8 stages, 12 micro-batches, 1F1B; a GPU that waits for another stage draws
83.64 W, as in their script. Small pipelines of three clocks are compared with all choices.
"""

import argparse
import itertools
import lzma
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.metering import machine
from benchmarks.tables import Cases, Table
from greentrain.policy.pipeline import FrontierPoint, PassOption, Pipeline, pareto, read_profile

DATA: Final = Path(__file__).parent / "data" / "perseus_sosp24"
WAITING_W: Final = 83.64
PUBLISHED: Final = {
    "gpt3-175b": ((2.818, 6212.8), (3.456, 5736.4)),
    "bloom": ((2.797, 6558.8), (3.436, 5475.0)),
}
"""Fastest and slowest point (s, J) of the authors' own frontier (``sosp24_data/emulation/iteration_time_energy``), by
fitted curves and times rounded down to a millisecond, where ours are sums of recorded passes."""
SPEEDS: Final = (1.0, 1.02, 1.05, 1.1, 1.15)


def recorded(model: str) -> Pipeline:
    """Return a recorded pipeline."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{model}.csv"
        path.write_bytes(lzma.decompress((DATA / f"{model}.csv.xz").read_bytes()))
        (profile,) = read_profile(path).values()
    return Pipeline(profile, 12, waiting_w=WAITING_W)


def least(points: Sequence[FrontierPoint], step_s: float) -> float:
    """Return the least energy of a step within a time (J)."""
    return min(point.energy_j for point in points if point.step_s <= step_s * (1 + 1e-9))


def table_of_models(models: Sequence[str]) -> Table:
    """Return the frontier beside one clock for all."""
    rows, reached, missed = [], 0, 0
    for model in models:
        pipe = recorded(model)
        knobs = sorted({option.knob for option in pipe.profile[0, False]}, reverse=True)
        alike = pareto([pipe.step({k: _at(pipe, k[:2], knob) for k in pipe.order}) for knob in knobs])
        found = pipe.frontier()
        for share in SPEEDS:
            step_s = share * alike[0].step_s
            ours, one = least(found, step_s), least(alike, step_s)
            reached, missed = reached + (ours <= one), missed + (ours > one)
            rows.append([model, f"{step_s:.3f}", f"{ours:.0f}", f"{one:.0f}", f"{one / ours:.3f}"])
        (fast_s, fast_j), (slow_s, slow_j) = PUBLISHED[model]
        rows.append(
            [f"{model}, Perseus' own", f"{fast_s:.3f} to {slow_s:.3f}", f"{fast_j:.0f} to {slow_j:.0f}", "", ""]
        )
    return Table(
        case="pipeline",
        title="Energy of a step within a time",
        head=["pipeline", "step (s)", "frontier (J)", "one clock for all (J)", "ratio"],
        rows=rows,
        notes=[
            "Bar: never more than one clock for all. Perseus' own: ends of its published frontier, by fitted curves."
        ],
        passed=reached,
        missed=missed,
    )


def _at(pipe: Pipeline, key: tuple[int, bool], knob: float) -> PassOption:
    return next(option for option in pipe.profile[key] if option.knob == knob)


def table_of_small(seeds: int) -> Table:
    """Return the frontier of small pipelines beside all choices."""
    rows, worst_of_all = [], 1.0
    for seed in range(seeds):
        dice, profile = random.Random(seed), {}
        for key in itertools.product(range(2), (False, True)):
            time_s = dice.uniform(0.8, 1.4) * (2 if key[1] else 1)
            profile[key] = [
                PassOption(knob=f, time_s=time_s / f**0.8, energy_j=200 * time_s * (0.3 / f**0.8 + 0.7 * f**2))
                for f in (1.0, 0.8, 0.6)
            ]
        pipe = Pipeline(profile, 2, waiting_w=60.0)
        options = [profile[key[:2]] for key in pipe.order]
        plans = [dict(zip(pipe.order, chosen, strict=True)) for chosen in itertools.product(*options)]
        best, found = pareto([pipe.step(plan) for plan in plans]), pipe.frontier()
        ratios = [point.energy_j / least(best, point.step_s) for point in found]
        worst_of_all, mean = max(worst_of_all, *ratios), f"{sum(ratios) / len(ratios):.4f}"
        rows.append([str(seed), str(len(plans)), str(len(best)), str(len(found)), mean, f"{max(ratios):.4f}"])
    good = worst_of_all <= 1.05
    return Table(
        case="pipeline",
        title="Small pipelines beside all choices",
        head=["seed", "choices", "best points", "found points", "mean ratio", "worst ratio"],
        rows=rows,
        notes=["Ratio: energy of a found point over the least of all choices within its time. Bar: 1.05."],
        passed=int(good),
        missed=int(not good),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small pipelines alone")
    parser.add_argument("--into", type=Path, help="document with the marks")
    parser.add_argument("--json", type=Path, help="file of the figures")
    args = parser.parse_args(argv)
    makers: dict[str, Callable[[bool], list[Table]]] = {
        "pipeline": lambda quick: [
            *([] if quick else [table_of_models(list(PUBLISHED))]),
            table_of_small(1 if quick else 6),
        ]
    }
    Cases(makers=makers, about=machine("benchmarks/pipeline_frontier.py")).run(
        list(makers), args.quick, into=args.into, as_json=args.json
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
