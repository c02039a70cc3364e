"""How long plans of clusters take, how far from the best possible they are, and what HiGHS says of small ones.

    python benchmarks/cluster_plan.py --quick
    python benchmarks/cluster_plan.py --into docs/cluster-plan.md

Clusters are drawn by ``tests/helpers/cluster_cases.py``: grids with days and weather, jobs of four gears and two
widths, switching 5 minutes, a cap of 90 % of full power. Seconds are of one core; each size has its own process.
"""

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.marks import facts, put, table
from benchmarks.metering import machine
from greentrain.policy.check_plan import check
from greentrain.policy.cluster.planner import solve
from tests.helpers import cluster_milp
from tests.helpers.cluster_cases import cluster

SIZES = ((100, 63, 336), (500, 313, 336), (2000, 1250, 336))
"""Jobs, nodes of eight devices, hours."""
SMALL = ((5, 10, 10), (8, 12, 12), (12, 14, 12))


def one(jobs: int, nodes: int, h: int) -> list[str]:
    """Plan from nothing and again after a job has gone, and return the table's line."""
    problem = cluster(1, jobs=jobs, nodes=nodes, h=h)
    cold = solve(problem)
    later = replace(problem, jobs=problem.jobs[1:])
    warm = solve(later, cold)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return [
        f"{jobs:,}", f"{8 * nodes:,}", f"{h}", f"{cold.figures['cpu_s']:.1f}", f"{warm.figures['cpu_s']:.1f}",
        f"{cold.gap:.2%}", f"{warm.gap:.2%}", f"{len(cold.missed)}", f"{peak_mb:.0f}",
    ]  # fmt: skip


def small(jobs: int, nodes: int, h: int) -> list[str]:
    """Hold a small plan to HiGHS and the checker, and return the table's line."""
    plan = solve(cluster(3, jobs=jobs, nodes=nodes, h=h, mean_h=3, stay_s=7200.0))
    grams, bound = check(json.dumps(plan.to_dict()))
    found = cluster_milp.best(plan.problem, plan.missed, 30.0, 1e-3)
    best = "none" if found is None else f"{found[0] / 1e3:.2f}"
    return [f"{jobs}", f"{h}", f"{float(bound) / 1e3:.2f}", best, f"{float(grams) / 1e3:.2f}", f"{len(plan.missed)}"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the smallest of each")
    parser.add_argument("--into", type=Path, help="also put the tables into this text, between its two marks")
    parser.add_argument("--worker", nargs=3, type=int, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.worker:
        print(json.dumps(one(*args.worker)))
        return 0
    if args.into is not None and args.quick:
        parser.error("--into replaces the whole table, so it goes without --quick")
    lines = []
    for size in SIZES[:1] if args.quick else SIZES:
        command = [sys.executable, __file__, "--worker", *map(str, size)]
        lines.append(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    head = ("jobs", "devices", "hours", "cold s", "warm s", "gap cold", "gap warm", "missed", "peak MB")
    small_head = ("jobs", "hours", "bound kg", "HiGHS kg", "plan kg", "missed")
    smalls = [small(*size) for size in (SMALL[:1] if args.quick else SMALL)]
    text = "\n\n".join((facts(machine("benchmarks/cluster_plan.py")), table(head, lines), table(small_head, smalls)))
    print(text)
    if args.into is not None:
        put(text, args.into)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
