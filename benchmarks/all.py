"""Every table that README and docs quote, made again by one command, with machine, versions and date.

    python benchmarks/all.py --quick          # all of them, small: to see that each runs; into build/benchmarks
    python benchmarks/all.py                  # an hour and a half on two idle cores; into the documents themselves
    python benchmarks/all.py --only gears --only metering
    python benchmarks/all.py --list

Quick tables are made from few repeats, so they never go into a document. A benchmark that cannot run here (no compiler,
say) is listed with the reason, and the command ends with 1, as where one fails.
"""

import argparse
import importlib.metadata
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.marks import facts
from benchmarks.metering import machine

ROOT: Final = Path(__file__).resolve().parents[1]
OUT: Final = ROOT / "build" / "benchmarks"
VERSIONS: Final = ("torch", "numpy", "codecarbon", "zeus", "torchao", "lightning", "transformers", "accelerate", "trl")
_BARS: Final = re.compile(r"^(\d+) bars reached, (\d+) missed", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """A script and the document that its tables stand in."""

    name: str
    document: str
    """Below ``docs``."""
    minutes: float
    """About what the whole takes on two idle cores."""
    quick: Sequence[str] = ("--quick",)

    @property
    def script(self) -> str:
        """Path from the root."""
        return f"benchmarks/{self.name}.py"

    def command(self, *, quick: bool) -> list[str]:
        """Return the arguments of Python."""
        if quick:
            return [self.script, *self.quick]
        return [self.script, "--into", f"docs/{self.document}"]


BENCHMARKS: Final = (
    Benchmark(name="metering", document="benchmarks.md", minutes=15),
    Benchmark(name="intervals", document="benchmarks.md", minutes=6),
    Benchmark(name="compare_groups", document="compare-runs.md", minutes=0.3),
    Benchmark(name="gears", document="gears-benchmarks.md", minutes=8),
    Benchmark(name="gears_architectures", document="gears.md", minutes=5, quick=("--only", "Llama")),
    Benchmark(name="gears_optimizer_ablation", document="gears-benchmarks.md", minutes=6),
    Benchmark(name="carbon_quality", document="gears-benchmarks.md", minutes=8),
    Benchmark(name="fleet", document="fleet.md", minutes=2),
    Benchmark(name="fleet_bench", document="cluster.md", minutes=10),
    Benchmark(name="cluster_plan", document="cluster-plan.md", minutes=4),
    Benchmark(name="export_cost", document="monitoring.md", minutes=2.5),
    Benchmark(name="forecasting", document="scheduling-benchmarks.md", minutes=1),
    Benchmark(name="scheduling", document="scheduling-benchmarks.md", minutes=12),
    Benchmark(name="actuation", document="actuation-benchmarks.md", minutes=6),
    Benchmark(name="tune_batch", document="tune.md", minutes=3),
    Benchmark(name="pipeline_frontier", document="tune.md", minutes=3),
    Benchmark(name="fpga_emulator", document="fpga-benchmarks.md", minutes=6),
    Benchmark(name="fpga_quality", document="fpga-quality.md", minutes=20),
    Benchmark(name="fpga_figures", document="fpga-explore.md", minutes=0.1, quick=("--model", "minilm")),
    Benchmark(name="fpga_kernel", document="fpga-explore.md", minutes=10),
    Benchmark(name="rlhf_overlap", document="rlhf.md", minutes=5),
    Benchmark(name="rlhf_async", document="rlhf.md", minutes=12),
    Benchmark(name="rlhf_server", document="serve.md", minutes=2),
    Benchmark(name="rlhf_pipeline", document="rlhf-pipeline.md", minutes=2),
    Benchmark(name="rlhf_figures", document="rlhf-pipeline.md", minutes=0.1, quick=("--figure", "pareto")),
    Benchmark(name="rlhf_algorithms", document="rlhf-pipeline.md", minutes=6),
    Benchmark(name="rlhf_policies", document="rlhf-scheduler.md", minutes=2),
    Benchmark(name="rlhf_training", document="rlhf-scheduler.md", minutes=9),
    Benchmark(name="estimator", document="estimate-benchmarks.md", minutes=6),
    Benchmark(name="estimator_search", document="estimate-benchmarks.md", minutes=0.2, quick=("--repeats", "3")),
    Benchmark(name="estimator_steps", document="estimate-benchmarks.md", minutes=0.1, quick=()),
    Benchmark(name="carbonscaling", document="estimate-benchmarks.md", minutes=0.1, quick=("--figure", "bits")),
    Benchmark(name="papers_coverage", document="papers-coverage.md", minutes=0.01, quick=()),
)
"""``forecasting_fit`` and ``gears --only quality`` made constants and one table once; ``gears --only gpu`` and
``silicon`` want a GPU; ``rlhf_frameworks`` wants checkouts of the frameworks, and ``rlhf_kills`` has no table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one benchmark ended."""

    benchmark: Benchmark
    seconds: float
    code: int
    text: str
    """What it printed on standard output: its tables."""
    error: str
    """Last line of standard error where it failed."""

    @property
    def bars(self) -> str:
        """``reached/missed``, where it has bars."""
        found = _BARS.findall(self.text)
        if not found:
            return ""
        return f"{sum(int(reached) for reached, _ in found)}/{sum(int(missed) for _, missed in found)}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [each.name for each in BENCHMARKS]
    parser.add_argument("--quick", action="store_true", help="small ones, into --out instead of the documents")
    parser.add_argument("--only", action="append", choices=names, help="run this one (may be repeated)")
    parser.add_argument("--out", type=Path, default=OUT, help=f"folder of printed tables (default {OUT.name})")
    parser.add_argument("--list", action="store_true", help="say what there is, and run nothing")
    args = parser.parse_args(argv)
    chosen = [each for each in BENCHMARKS if not args.only or each.name in args.only]
    if args.list:
        for each in chosen:
            print(f"{shlex.join(['python', *each.command(quick=args.quick)]):70s} docs/{each.document}")
        return 0
    args.out.mkdir(parents=True, exist_ok=True)
    outcomes = []
    for each in chosen:
        print(f"{each.name} ...", file=sys.stderr, flush=True)
        outcome = run(each, quick=args.quick)
        (args.out / f"{each.name}.md").write_text(outcome.text, encoding="utf-8")
        outcomes.append(outcome)
    page = index(outcomes)
    (args.out / "index.md").write_text(page + "\n", encoding="utf-8")
    print(page)
    return int(any(each.code for each in outcomes))


def run(benchmark: Benchmark, *, quick: bool) -> Outcome:
    """Run one in a process of its own."""
    began_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, *benchmark.command(quick=quick)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    lines = done.stderr.strip().splitlines()
    return Outcome(
        benchmark=benchmark,
        seconds=time.monotonic() - began_s,
        code=done.returncode,
        text=done.stdout,
        error=lines[-1] if done.returncode and lines else "",
    )


def index(outcomes: Sequence[Outcome]) -> str:
    """Return the page over all tables."""
    versions = [f"{name} {importlib.metadata.version(name)}" for name in VERSIONS if _installed(name)]
    about = {
        **machine("benchmarks/all.py"),
        "load": f"{os.getloadavg()[0]:.1f}",
        "versions": ", ".join(versions),
    }
    lines = [
        "# Benchmarks",
        "",
        facts(about),
        "",
        "| benchmark | document | seconds | bars reached/missed | ended |",
        "|---|---|---|---|---|",
    ]
    for each in outcomes:
        ended = "fine" if each.code == 0 else f"exit {each.code}: {each.error.replace('|', '/')[:120]}"
        lines.append(
            f"| [{each.benchmark.name}]({each.benchmark.name}.md) | docs/{each.benchmark.document} | {each.seconds:.0f}"
            f" | {each.bars} | {ended} |"
        )
    return "\n".join(lines)


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


if __name__ == "__main__":
    raise SystemExit(main())
