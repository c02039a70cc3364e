"""The reference benchmark of a fleet: grids x policies, held against a bound that no policy can pass.

    python benchmarks/fleet_bench.py --quick                     # a minute: to see that it runs
    python benchmarks/fleet_bench.py --into docs/cluster.md      # small: ten minutes on two idle cores
    python benchmarks/fleet_bench.py --size full --grid us_caiso_2022_eia   # 2,000 jobs, 10,000 GPUs: 20 minutes
    python benchmarks/fleet_bench.py --policy mine.py            # with a policy of your own, a file with policy()
    python benchmarks/fleet_bench.py --traces HIDDEN --seed 7    # on grids, a year and jobs that nobody has seen

A fleet is drawn for each grid (``Workload.drawn``), with a cap of 90 % of full power and a demand response: 30 % less
for four hours, from the hour in which it is announced. Each policy runs it once with the grid known and once with the
shipped forecast. ``bound`` is the dual bound of a plan that knows everything; grams of policies that miss deadlines
may be below it. What is compared stays the same for everybody: what is held out are grids of another year and another
seed, which ``--traces`` and ``--seed`` take.
"""

import argparse
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from benchmarks.held_traces import add_argument, folder_of
from benchmarks.metering import machine
from benchmarks.scheduling_common import TRACES
from benchmarks.tables import Cases, Table, log
from greentrain.carbon.forecast import profile_forecast
from greentrain.policy.cluster.problem import LINK_KWH_PER_GB, Plan
from greentrain.simulator.cluster.planned import Planned, hindsight
from greentrain.simulator.cluster.policies import POLICIES, open_policy
from greentrain.simulator.cluster.result import FleetScore, score
from greentrain.simulator.cluster.workload import Workload
from greentrain.simulator.cluster.world import Event, FleetPolicy, FleetPool, FleetSite, FleetWorld
from greentrain.simulator.grid_trace import Forecaster, GridTrace
from greentrain.types import G_PER_KG, S_PER_HOUR

GPU_W: Final = 975.0
"""A GPU and its share of a node at full power (W), as of the reference table."""
CAP: Final = 0.9
LOAD: Final = 0.7
FIRST_DAY: Final = 120
"""Day of the grid's year on which the first job comes."""
WITHIN: Final = 0.03
FAIR: Final = 2.0
KNOWN: Final = "known grid"
SHIPPED: Final = "shipped forecast"
FORECASTS: Final[Mapping[str, Forecaster | None]] = {KNOWN: None, SHIPPED: profile_forecast}
PAPERS: Final = ("suspend_resume", "gaia_like", "carbonflex_like", "pcaps_like")
LONGEST_S: Final = 600.0
"""A simulated fortnight takes at most, of one core."""
LARGEST_MB: Final = 4000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large a fleet is."""

    jobs: int
    gpus: int
    days: float
    longest_h: float
    grids: Sequence[str]
    every_h: float
    """Hours between two plans where nothing but the forecast changed."""


_PAIR: Final = ("us_caiso_2022_eia", "us_bpat_2022_eia")
"""Two grids of one accounting, which an owner in the west of the USA may have."""
_LINKS: Final = {
    "0.6 kWh/GB": 10 * LINK_KWH_PER_GB,
    "0.06 kWh/GB (2015)": LINK_KWH_PER_GB,
    "0.006 kWh/GB": LINK_KWH_PER_GB / 10,
    "none": 0.0,
}
EGRESS: Final = 0.02
"""USD a GB between regions of one cloud in the USA: assumed, as price lists of 2024 have it."""
SIZES: Final = {
    "quick": Size(jobs=16, gpus=64, days=1, longest_h=12, grids=_PAIR[:1], every_h=6),
    "small": Size(jobs=30, gpus=128, days=2, longest_h=24, grids=tuple(TRACES), every_h=3),
    "full": Size(jobs=2000, gpus=10_000, days=14, longest_h=120, grids=tuple(TRACES), every_h=1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What the case gets."""

    size: Size
    folder: Path
    seed: int
    own: Sequence[str] = ()
    """Files of policies."""
    only: Sequence[str] = ()
    """Names of grids; none: all of the size."""
    bounds: dict[str, Plan] = field(default_factory=dict)
    """The plans in hindsight, by grid."""

    def policies(self, forecast: str) -> list[tuple[str, Callable[[], FleetPolicy]]]:
        """Return the makers of the policies, the first is what the others are compared with."""
        found: list[tuple[str, Callable[[], FleetPolicy]]] = list(POLICIES.items())
        found.append(("planned", lambda: Planned(every_h=self.size.every_h)))
        if forecast == SHIPPED:
            found.append(("planned_2x", lambda: Planned(slowdown=FAIR, every_h=self.size.every_h)))
        found += [(Path(text).stem, lambda text=text: open_policy(text)) for text in self.own]  # type: ignore[misc]
        return found

    def world(self, grid: GridTrace, forecaster: Forecaster | None) -> FleetWorld:
        """Return the fleet on a grid."""
        size = self.size
        work = Workload.drawn(
            count=size.jobs, days=size.days, gpus=size.gpus, load=LOAD, seed=self.seed, widest=min(512, size.gpus // 4),
            longest_h=size.longest_h,
        )  # fmt: skip
        from_s = (size.days // 2 * 24 + 18) * S_PER_HOUR
        return FleetWorld(
            sites=(FleetSite(grid=grid, cap_w=CAP * size.gpus * GPU_W),),
            pools=(FleetPool(name="gpus", site=0, gpus=size.gpus),),
            work=work,
            start_unix_s=grid.start_unix_s + FIRST_DAY * 24 * S_PER_HOUR,
            forecaster=forecaster,
            events=[Event(from_s=from_s, until_s=from_s + 4 * S_PER_HOUR, cap_share=0.7)],
        )


def fleet(bench: Fleet, case: str = "fleet", forecasts: Sequence[str] = (KNOWN, SHIPPED)) -> list[Table]:
    """Run all policies on all grids with either knowledge, or one."""
    grids = [
        GridTrace.read(bench.folder / f"{name}.csv", accounting=TRACES.get(name, "unspecified"))
        for name in bench.only or bench.size.grids
        if (bench.folder / f"{name}.csv").exists()
    ] or [GridTrace.read(path) for path in sorted(bench.folder.glob("*.csv"))]
    for grid in grids:
        if grid.name not in bench.bounds:
            bench.bounds[grid.name] = plan = hindsight(bench.world(grid, None))
            told = f"bound {plan.bound_g / 1000:.0f} kg, {len(plan.missed)} late, {plan.figures['cpu_s']:.0f} s"
            log(f"{grid.name}, in hindsight: {told}")
    tables = []
    for forecast in forecasts:
        scores: dict[str, list[FleetScore]] = {}
        avoidable, slowest_s = 0, 0.0
        for grid in grids:
            world, plan = bench.world(grid, FORECASTS[forecast]), bench.bounds[grid.name]
            first = None
            for name, make in bench.policies(forecast):
                began_s = time.process_time()
                run = world.run(make())
                took_s = time.process_time() - began_s
                first = first or run
                scores.setdefault(name, []).append(score(run, first, plan.bound_g if not plan.missed else None))
                log(f"{forecast}, {grid.name}, {name}: {scores[name][-1].kg:.0f} kg, {took_s:.0f} s of CPU")
                if name == "planned":
                    late = np.flatnonzero(run.end_s > run.work.deadline_s + 1e-6).tolist()
                    avoidable += sum(str(job) not in plan.missed for job in late)
                    slowest_s = max(slowest_s, took_s)
        tables.append(_table(bench, case, forecast, [grid.name for grid in grids], scores, avoidable, slowest_s))
    return tables


def sites(bench: Fleet) -> list[Table]:
    """Run the plan on two grids at once, at several prices of a move in grams."""
    grids = [
        GridTrace.read(bench.folder / f"{name}.csv", accounting=TRACES[name])
        for name in _PAIR
        if (bench.folder / f"{name}.csv").exists()
    ]
    if len(grids) < len(_PAIR):
        return []
    one, rows, held = bench.world(grids[0], None), [], []
    half = bench.size.gpus // 2
    for text, kwh_per_gb in _LINKS.items():
        world = replace(
            one,
            sites=tuple(FleetSite(grid=grid, cap_w=CAP * half * GPU_W, egress_per_gb=EGRESS) for grid in grids),
            pools=tuple(FleetPool(name=grid.name, site=i, gpus=half) for i, grid in enumerate(grids)),
            events=(),
            link_kwh_per_gb=kwh_per_gb,
        )
        run = world.run(Planned(every_h=bench.size.every_h))
        got = score(run, run)
        log(f"two sites, {text}: {got.kg:.0f} kg, {got.moves} moves")
        transfer_kg = float(run.transfer_g.sum()) / G_PER_KG
        held.append((got.kg, got.moves, got.missed))
        money = f"{EGRESS * float((world.move_gb * run.moves).sum()):.0f}"
        rows.append((text, f"{got.kg:.1f}", str(got.moves), f"{transfer_kg:.2f}", money, str(got.missed)))
    bars = {
        "the more a transfer emits, the fewer moves": all(a <= b for (_, a, _), (_, b, _) in pairwise(held)),
        "moves that emit nothing save grams": held[-1][0] < held[0][0],
        "nobody is late": not any(missed for *_, missed in held),
    }
    size = bench.size
    return [
        Table(
            case="sites",
            title=f"{size.jobs} jobs on {half:,} GPUs at {_PAIR[0]} and as many at {_PAIR[1]}, known grids",
            head=("energy of a transfer", "kg CO2e", "moves", "of transfers, kg", "egress, USD", "late"),
            rows=rows,
            notes=[f"{'reached' if fine else 'MISSED'}: {text}" for text, fine in bars.items()],
            passed=sum(bars.values()),
            missed=len(bars) - sum(bars.values()),
        )
    ]


def _table(
    bench: Fleet,
    case: str,
    forecast: str,
    grids: Sequence[str],
    scores: dict[str, list[FleetScore]],
    avoidable: int,
    slowest_s: float,
) -> Table:
    first = scores["fcfs"]
    rows = []
    for name, found in scores.items():
        saved = [f"{round(100 * (1 - a.kg / b.kg), 1) + 0.0:.1f} %" for a, b in zip(found, first, strict=True)]
        regrets = [each.regret for each in found]
        rows.append(
            (
                name,
                *saved,
                str(sum(each.missed for each in found)),
                f"{sum(each.wait_h for each in found) / len(found):.1f} h",
                f"{max(each.worst_to_first for each in found):.2f}",
                f"{max(each.peak_to_cap for each in found):.2f}",
                str(sum(each.over_cap for each in found)),
                "late" if None in regrets else f"{100 * max(r for r in regrets if r is not None):.1f} %",
                f"{max(each.slowest_s for each in found):.2g} s",
            )
        )
    ours, others = scores["planned"], [each for name, each in scores.items() if not name.startswith("planned")]
    bars = {
        "no deadline is missed that the plan in hindsight meets": not avoidable,
        "no cap is passed, lowered in the same hour or not": not any(each.over_cap for each in ours),
    }
    if forecast == KNOWN:
        near = [each.regret is not None and each.regret <= WITHIN for each in ours]
        bars[f"grams within {WITHIN:.0%} of the bound on {sum(near)} of {len(near)} grids"] = all(near)
        direction = [sum(a.kg for a in scores[name]) < sum(b.kg for b in first) for name in PAPERS]
        bars[f"{sum(direction)} of {len(PAPERS)} papers' rules save grams over fcfs, as they say"] = all(direction)
    else:
        below = [sum(ours[i].kg <= other[i].kg for other in others) for i in range(len(ours))]
        bars[f"fewer grams than {min(below)} of {len(others)} other policies on each grid"] = min(below) == len(others)
        worst = max(each.worst_to_first for each in scores["planned_2x"])
        bars[f"planned_2x: no user's slowdown is above {FAIR:g} times that of fcfs ({worst:.2f})"] = worst <= FAIR
    size = bench.size
    if case != "fleet":
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
        bars[f"planned takes {LONGEST_S:.0f} s of one core at most ({slowest_s:.0f})"] = slowest_s <= LONGEST_S
        bars[f"all takes {LARGEST_MB:,.0f} MB at most ({peak_mb:.0f})"] = peak_mb <= LARGEST_MB
    return Table(
        case=case,
        title=f"{size.jobs} jobs, {size.gpus:,} GPUs, {size.days:g} days at {LOAD:.0%} load: {forecast}",
        head=(
            "policy", *(f"saved, {name}" for name in grids), "late", "wait", "worst user", "peak/cap", "hours over",
            "over bound", "slowest step",
        ),
        rows=rows,
        notes=[f"{'reached' if held else 'MISSED'}: {text}" for text, held in bars.items()],
        passed=sum(bars.values()),
        missed=len(bars) - sum(bars.values()),
    )  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the same as --size quick")
    parser.add_argument("--size", choices=list(SIZES), default="small", help="how large a fleet (default small)")
    makers: dict[str, Callable[[Fleet], list[Table]]] = {
        "fleet": fleet,
        "sites": sites,
        "full_known": partial(fleet, case="full_known", forecasts=(KNOWN,)),
        "full_shipped": partial(fleet, case="full_shipped", forecasts=(SHIPPED,)),
    }
    parser.add_argument(
        "--only",
        action="append",
        choices=list(makers),
        help="this case alone (may be repeated; default: fleet and sites, or those of the full size)",
    )
    parser.add_argument("--grid", action="append", default=[], help="this grid alone (may be repeated)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the jobs; another one is held out")
    parser.add_argument("--policy", action="append", default=[], help="file of a policy of your own (may be repeated)")
    parser.add_argument("--into", type=Path, help="document that the tables go into")
    parser.add_argument("--json", type=Path, help="file that the tables go into as JSON")
    add_argument(parser)
    args = parser.parse_args(argv)
    size = SIZES["quick" if args.quick else args.size]
    bench = Fleet(size=size, folder=folder_of(parser, args.traces), seed=args.seed, own=args.policy, only=args.grid)
    cases = ["full_known", "full_shipped"] if size is SIZES["full"] else ["fleet", "sites"]
    Cases(makers=makers, about=machine("benchmarks/fleet_bench.py")).run(
        args.only or cases, bench, into=args.into, as_json=args.json
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
