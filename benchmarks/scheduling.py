"""What the policies save on recorded grids, against their bars: 24 windows of 14 days a grid.

    python benchmarks/scheduling.py                       # all cases
    python benchmarks/scheduling.py --only bars           # a minute
    python benchmarks/scheduling.py --into docs/scheduling-benchmarks.md

The grids are recorded; the action table is assumed (``greentrain.policy.action_sources``). One thread.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import (
    scheduling_periods,
    scheduling_queue,
    scheduling_regions,
    scheduling_savings,
    scheduling_speed,
    scheduling_switching,
)
from benchmarks.held_traces import add_argument, folder_of
from benchmarks.metering import machine
from benchmarks.scheduling_common import Bench
from benchmarks.tables import Cases, Table, log

CASES: Mapping[str, Callable[[Bench], list[Table]]] = {
    "bars": scheduling_savings.bars,
    "policies": scheduling_savings.policies,
    "ablation": scheduling_savings.ablation,
    "switching": scheduling_switching.switching,
    "periods": scheduling_periods.periods,
    "shifts": scheduling_periods.shifts,
    "regions": scheduling_regions.regions,
    "queue": scheduling_queue.queue,
    "speed": scheduling_speed.speed,
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two grids and four windows: to see that it runs")
    parser.add_argument("--only", action="append", choices=list(CASES), help="run this case (may be repeated)")
    add_argument(parser)
    parser.add_argument("--json", type=Path, help="also write the tables here")
    parser.add_argument("--into", type=Path, help="also put the tables into this text, each between its two marks")
    args = parser.parse_args(argv)
    bench = Bench(quick=args.quick, folder=folder_of(parser, args.traces), say=log)
    about = machine("benchmarks/scheduling.py")
    cases = Cases(makers=CASES, about=about)
    cases.run(args.only or list(CASES), bench, into=args.into, as_json=args.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
