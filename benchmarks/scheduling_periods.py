"""What a decision every five minutes gains over one every hour, and what shifts that take time lose of savings.

The held grids are hourly, so their five minutes are interpolated (:func:`benchmarks.held_traces.interpolated`), which
has the slopes within an hour and none of its noise. A grid recorded every five minutes is taken as it is, where the
folder of ``--traces`` has one.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from benchmarks.held_traces import interpolated
from benchmarks.scheduling_common import HOURS, Array, Bench, Grid, menu, percent, score
from benchmarks.tables import Table
from greentrain.carbon.forecast import profile_forecast
from greentrain.policy.baselines import CarbonBlind, LowestWindow, Threshold
from greentrain.policy.carbongear import CarbonGear
from greentrain.policy.carl import Carl
from greentrain.policy.decision_kernel import DecisionKernel
from greentrain.policy.menu import Menu
from greentrain.policy.mpc import Mpc, MpcSwitching
from greentrain.policy.outlook import SchedulePolicy
from greentrain.simulator.grid_trace import GridTrace, Sight
from greentrain.simulator.jobs import Jobs
from greentrain.simulator.simulate import References, references
from greentrain.simulator.world import World
from greentrain.types import S_PER_HOUR
from tools.make_traces import MOER

STEP_S: Final = 300.0
SLACKS: Final = (1.25, 2.0)
EVERY: Final = 2
"""Every so many windows are simulated: twelve of 24."""
SHIFTS_S: Final = (0.0, 1.0, 10.0, 60.0)
SHIFT_SLACK: Final = (2.0,)
UNLIKE: Final = ("us_caiso_2022_eia", "us_pjm_2022_eia", MOER)
"""Grids on which changes take time: one of much sun, one that hardly changes, and one of recorded five minutes."""
FEWER: Final = 3
"""And of these every so many where changes take time, as plans that count them take longer."""


class FineGrid:
    """A grid in steps of five minutes, seen by the hour or by the five minutes.

    Args:
        grid: The grid; interpolated where it is coarser.
    """

    def __init__(self, grid: Grid) -> None:
        self._jobs = grid.some(EVERY)
        self.name = grid.name
        self.recorded = grid.trace.step_s <= STEP_S
        self.trace = grid.trace if self.recorded else interpolated(grid.trace, STEP_S)
        hourly = grid.trace if not self.recorded else _hourly(self.trace)
        self._hourly, self._fine = (Sight(t, profile_forecast, horizon_h=HOURS) for t in (hourly, self.trace))

    def some(self, every: int) -> "FineGrid":
        """Return the same grid with every so many of its windows."""
        other = copy.copy(self)
        other._jobs = self._jobs.some(every)
        return other

    @property
    def label(self) -> str:
        """Name, and whether anybody recorded these five minutes."""
        return f"{self.name} ({'recorded' if self.recorded else 'interpolated'})"

    def world(self, decide_s: float) -> World:
        """Return the grid for policies that decide so often: by the hour they see means of hours.

        Args:
            decide_s: Time between two decisions (s).
        """
        return World(self.trace, self._hourly if decide_s >= S_PER_HOUR else self._fine, decide_s)

    def jobs(self, choices: Menu, slacks: Sequence[float] = SLACKS) -> Jobs:
        """Return one job a slack and window, slack by slack."""
        return self._jobs.jobs(choices, slacks)

    def references(self, choices: Menu, slacks: Sequence[float] = SLACKS) -> References:
        """Return the references of all jobs; the oracle knows every five minutes."""
        return references(self.trace, self.jobs(choices, slacks), choices)


def _grids(bench: Bench) -> Sequence[Grid]:
    path = bench.folder / f"{MOER}.csv"  # of benchmarks/data/SOURCES.md, where the folder has it
    fine = [Grid(path, "marginal", len(bench.grids()[0].starts))] if path.exists() else []
    return [*bench.grids(), *fine]


def _hourly(trace: GridTrace) -> GridTrace:
    hours = int((trace.end_unix_s - trace.start_unix_s) // S_PER_HOUR)
    means = trace.g_per_kwh[: hours * 12].reshape(hours, 12).mean(axis=1)
    return replace(trace, step_s=S_PER_HOUR, g_per_kwh=means)


def periods(bench: Bench) -> list[Table]:
    """Every policy, deciding every hour and every five minutes."""
    full, fast = menu(), menu("T4")
    made: Mapping[str, tuple[Menu, Callable[[float], SchedulePolicy]]] = {
        "threshold, FP8": (fast, lambda _: Threshold(fast, fast.fastest)),
        "lowest_window, FP8": (fast, lambda _: LowestWindow(fast, row=fast.fastest)),
        "carbon-blind constant pace": (full, lambda _: CarbonBlind(full)),
        "carl": (full, lambda _: Carl(full)),
        "carbongear": (full, lambda decide_s: CarbonGear(full, epoch_s=decide_s)),
        "mpc": (full, lambda _: Mpc(full)),
    }
    rows: list[list[str]] = []
    misses = 0
    for grid in map(FineGrid, _grids(bench)):
        known = grid.references(full)
        for name, (choices, make) in made.items():
            found = []
            for decide_s in (S_PER_HOUR, STEP_S):
                kernel = DecisionKernel(make(decide_s), choices)
                track = grid.world(decide_s).run(kernel, grid.jobs(choices))
                found.append(score(track, known, SLACKS))
                misses += found[-1].misses
            by_hour, often = found
            cells = [
                f"{percent(a)} ({x:.1f}) to {percent(b)} ({y:.1f}): {_signed(b - a)}"
                for a, b, x, y in zip(by_hour.total, often.total, by_hour.switches, often.switches, strict=True)
            ]
            rows.append([grid.label, name, *cells])
        rows.append([grid.label, "oracle: no plan saves more", *_best(grid, full, known)])
        bench.say(f"periods: {grid.label}")
    notes = [
        "Saving against static BF16 in % with a decision an hour, then with one every 300 s, and the points between; in"
        " brackets changes of width a day of a running job, which cost nothing here. A decision an hour sees the mean"
        " of the running hour, one every 300 s the running five minutes; both have the hourly forecast. Oracle: the"
        " best plan that knows the means of all hours, then all five minutes.",
        "interpolated: five minutes of a smooth curve through recorded hourly means; nobody recorded them, and noise"
        " within an hour is not in them. recorded: as published, every five minutes.",
        f"{misses} misses in all. One window in {EVERY}.",
    ]
    head = ["grid", "policy", *(f"slack {slack:g}" for slack in SLACKS)]
    return [Table(case="periods", title="A decision every 300 s", head=head, rows=rows, notes=notes)]


def shifts(bench: Bench) -> list[Table]:
    """What is left of mpc's savings where every change of gear or width takes time, counted by the plan or not."""
    full = menu()
    rows: list[list[str]] = []
    misses = 0
    for fine in map(FineGrid, [grid for grid in _grids(bench) if grid.name in UNLIKE]):
        few = fine.some(FEWER)
        jobs, known = few.jobs(full, SHIFT_SLACK), few.references(full, SHIFT_SLACK)
        for decide_s, counted in ((S_PER_HOUR, True), (S_PER_HOUR, False), (STEP_S, False))[: bench.pick(3, 2)]:
            cells = []
            for lost_s in SHIFTS_S:
                policy = MpcSwitching(full, switch_s=lost_s, shift_s=lost_s) if counted and lost_s else Mpc(full)
                kernel = DecisionKernel(policy, full, switch_s=lost_s, shift_s=lost_s)
                found = score(few.world(decide_s).run(kernel, jobs), known, SHIFT_SLACK)
                misses += found.misses
                cells.append(f"{percent(found.total[0])} ({found.switches[0]:.1f})")
            rows.append([fine.label, f"{decide_s:g}", "planned" if counted else "not planned", *cells])
        bench.say(f"shifts: {fine.label}")
    notes = [
        f"mpc's saving against static BF16 in %, slack {SHIFT_SLACK[0]:g}; in brackets changes of width a day of a"
        " running job. The seconds are assumed: in them nothing is trained, at the power of the new action. Published"
        " for a change of gear are 0.0237 and 0.0884 s, for one of width 0.21 s.",
        "planned: mpc counts them, as with `policy.shift_s` and `policy.switch_s`; not planned: they cost as much, and"
        " come as if they were free, as with `policy.switching: myopic`.",
        f"One window in {EVERY * FEWER}. {misses} misses in all.",
    ]
    head = ["grid", "decides every, s", "changes", *(f"{lost_s:g} s each" for lost_s in SHIFTS_S)]
    return [Table(case="shifts", title="Changes of gear and width that take time", head=head, rows=rows, notes=notes)]


def _best(grid: FineGrid, choices: Menu, known: References) -> Sequence[str]:
    """Return what the best plans save, with one row or mixture for an hour, and with one for five minutes."""
    jobs = grid.jobs(choices)
    by_hour = references(_hourly(grid.trace), jobs, choices).oracle_g
    static = _sums(known.static_g)
    hour, often = (100 * (1 - _sums(grams) / static) for grams in (by_hour, known.oracle_g))
    return [f"{percent(a)} to {percent(b)}: {_signed(b - a)}" for a, b in zip(hour, often, strict=True)]


def _sums(grams: Array) -> Array:
    total: Array = grams.reshape(len(SLACKS), -1).sum(axis=1)
    return total


def _signed(points: float) -> str:
    return f"{np.round(points, 1) + 0.0:+.1f}"
