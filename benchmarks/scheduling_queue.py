"""Many jobs on one pool of nodes, first come, first served with backfill, each under a policy that knows only itself.

Every hour each job that has come and is not done asks its policy for a row. Nodes are given in order of arrival; a job
whose row does not fit waits for that hour, and jobs behind it that fit go on (backfill). The order is that of arrival
in every hour, so a job never waits for one that came after it. Jobs that are past their deadline run at full speed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.scheduling_common import Array, Bench, Grid, menu, percent
from benchmarks.tables import Table
from greentrain.carbon.forecast import profile_forecast
from greentrain.policy.baselines import CarbonBlind, LowestWindow, StaticSchedule, Threshold
from greentrain.policy.carl import Carl
from greentrain.policy.decision_kernel import DecisionKernel
from greentrain.policy.menu import OFF, Menu
from greentrain.policy.mpc import Mpc
from greentrain.policy.outlook import Outlook, SchedulePolicy
from greentrain.simulator.grid_trace import Sight
from greentrain.types import J_PER_KWH, S_PER_HOUR

POOL: Final = 32
"""Nodes."""
SIZES: Final = (2, 4, 8)
"""Nodes that a job may use at most; usual training uses all of them."""
LOAD: Final = 0.6
"""Share of the pool's hours that usual training would need: assumed."""
ARRIVALS_H: Final = 14 * 24
SLACK: Final = 2.0
"""Hours from arrival to deadline, over those of the usual training."""
FIRST_H: Final = 21 * 24 + 120 * 24
"""Where the jobs begin to arrive: behind the history, in May."""
LONGEST_H: Final = 8 * 14 * 24


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arrivals:
    """n jobs in order of arrival."""

    at_h: Array
    """(n,) full hours after the first."""
    size: NDArray[np.int64]
    """(n,) nodes."""
    static_h: Array
    """(n,) hours of the usual training, alone."""

    @classmethod
    def drawn(cls, seed: int = 0) -> "Arrivals":
        """Return jobs of a log-normal length (median of 12 h, at most four days) that arrive at random over 14 days."""
        rng = np.random.default_rng(seed)
        size, static_h, total = [], [], 0.0
        while total < LOAD * POOL * ARRIVALS_H:
            size.append(int(rng.choice(SIZES)))
            static_h.append(float(np.clip(rng.lognormal(np.log(12.0), 1.0), 1.0, 96.0)))
            total += size[-1] * static_h[-1]
        at_h = np.sort(np.floor(rng.uniform(0, ARRIVALS_H, len(size))))
        return cls(at_h=at_h, size=np.array(size), static_h=np.array(static_h))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ran:
    """What became of n jobs."""

    grams: Array
    """(n,)"""
    end_h: Array
    """(n,) hours from arrival to the end."""
    asked: Array
    """(k,) nodes that all jobs together asked for, by hour."""
    power_w: Array
    """(k,)"""


def run(grid: Grid, jobs: Arrivals, menus: Mapping[int, Menu], make: Callable[[Menu], SchedulePolicy]) -> Ran:
    """Run all jobs to their end.

    Args:
        grid: The grid.
        jobs: The jobs.
        menus: What a job of each size may do.
        make: Makes the policy of a menu.
    """
    n = len(jobs.size)
    sight = Sight(grid.trace, profile_forecast, horizon_h=200)
    kernels = {size: DecisionKernel(make(choices), choices) for size, choices in menus.items()}
    speed = np.array([menus[size].tokens_per_s[menus[size].static] for size in jobs.size.tolist()])
    tokens = speed * jobs.static_h * S_PER_HOUR
    left, row = tokens.copy(), np.array([menus[size].static for size in jobs.size.tolist()])
    grams, end_h, held_s = np.zeros(n), np.zeros(n), np.full(n, np.inf)
    asked, power_w = [], []
    for hour in range(LONGEST_H):
        came = jobs.at_h <= hour
        if came.all() and not left.any():
            break
        now_s = grid.trace.start_unix_s + (FIRST_H + hour) * S_PER_HOUR
        want, width = np.full(n, OFF), np.zeros(n, np.int64)
        for size, kernel in kernels.items():
            mine = np.flatnonzero(came & (left > 0) & (jobs.size == size))
            if not mine.size:
                continue
            left_s = np.maximum(jobs.at_h[mine] + SLACK * jobs.static_h[mine] - hour, 1.0) * S_PER_HOUR
            t_unix_s = np.full(mine.size, now_s)
            ahead_h = int(np.ceil(left_s.max() / S_PER_HOUR))
            seen = Outlook(
                epoch_s=S_PER_HOUR,
                step_s=S_PER_HOUR,
                t_unix_s=t_unix_s,
                left_s=left_s,
                total_s=SLACK * jobs.static_h[mine] * S_PER_HOUR,
                tokens_left=left[mine],
                tokens=tokens[mine],
                current=row[mine],
                held_s=held_s[mine],
                past_g_per_kwh=sight.past(t_unix_s, 7 * 24),
                forecast_g_per_kwh=sight.ahead(t_unix_s, ahead_h),
                job=mine,
            )
            want[mine] = kernel.decide(seen).rows
            width[mine] = menus[size].width[want[mine]]
        asked.append(float(width.sum()))
        free, drawn_w = POOL, 0.0
        g = float(grid.trace.at(np.array([now_s]))[0])
        for job in np.flatnonzero(width).tolist():
            if width[job] > free:
                want[job] = OFF
                continue
            free -= int(width[job])
            choices = menus[int(jobs.size[job])]
            pace, watts = float(choices.tokens_per_s[want[job]]), float(choices.power_w[want[job]])
            used_s = min(S_PER_HOUR, left[job] / pace)
            grams[job] += g * watts * used_s / J_PER_KWH
            left[job] = 0.0 if used_s < S_PER_HOUR else max(left[job] - pace * used_s, 0.0)
            drawn_w += watts * used_s / S_PER_HOUR
            if not left[job]:
                end_h[job] = hour + used_s / S_PER_HOUR - jobs.at_h[job]
        row = want
        power_w.append(drawn_w)
    assert not left.any(), "jobs were not done within the longest time"
    return Ran(grams=grams, end_h=end_h, asked=np.array(asked), power_w=np.array(power_w))


def queue(bench: Bench) -> list[Table]:
    """What becomes of the same jobs under each policy."""
    jobs, full, on_off = Arrivals.drawn(), menu(), menu("T2")
    wide = {size: full.only(np.flatnonzero(full.width <= size)) for size in SIZES}
    plain = {size: on_off.only(np.flatnonzero(np.isin(on_off.width, (0, size)))) for size in SIZES}
    made: Mapping[str, tuple[Mapping[int, Menu], Callable[[Menu], SchedulePolicy]]] = {
        "static, BF16": (plain, StaticSchedule),
        "threshold, BF16": (plain, Threshold),
        "lowest_window, BF16": (plain, LowestWindow),
        "carl": (wide, Carl),
        "carbon-blind constant pace": (wide, CarbonBlind),
        "mpc": (wide, Mpc),
    }
    rows: list[list[str]] = []
    for grid in [grid for grid in bench.grids() if grid.name.endswith("_eia")]:
        static_g = 0.0
        for name, (menus, make) in made.items():
            ran = run(grid, jobs, menus, make)
            static_g = static_g or float(ran.grams.sum())
            late = (ran.end_h > SLACK * jobs.static_h + 1.0).sum()
            slow = ran.end_h / jobs.static_h
            cells = [percent(100 * (1 - ran.grams.sum() / static_g)), str(int(late)), f"{np.median(slow):.2f}"]
            rows.append(
                [
                    grid.name,
                    name,
                    *cells,
                    f"{slow.max():.1f}",
                    f"{ran.asked.max():.0f}",
                    f"{ran.power_w.max() / 1e3:.0f}",
                ]
            )
        bench.say(f"queue: {grid.name}")
    share = float((jobs.size * jobs.static_h).sum()) / (POOL * ARRIVALS_H)
    notes = [
        f"{len(jobs.size)} jobs of {', '.join(map(str, SIZES))} nodes at most arrive over 14 days on {POOL} nodes; the"
        f" usual training would need {share:.0%} of their hours. Lengths and times of arrival are drawn (seed 0)"
        ": assumed.",
        "Saving of all jobs together against static, BF16 in the same queue. Late: more than an hour past the deadline,"
        f" {SLACK:g} times the usual training's hours behind arrival. Slowdown: hours from arrival to end, over those"
        " of the usual training alone. Asked: most nodes that all jobs together wanted in one hour.",
    ]
    head = [
        "grid",
        "policy of each job",
        "saving, %",
        "late",
        "median slowdown",
        "worst",
        "most nodes asked",
        "peak, kW",
    ]
    return [Table(case="queue", title="First come, first served", head=head, rows=rows, notes=notes)]
