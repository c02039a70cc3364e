"""What the cases of scheduling.py share: grids, jobs, and tables with their verdicts."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from greentrain.carbon.forecast import profile_forecast
from greentrain.policy.action_sources import reference_table
from greentrain.policy.decision_kernel import DecisionKernel
from greentrain.policy.menu import Menu
from greentrain.policy.outlook import SchedulePolicy
from greentrain.simulator.grid_trace import GridTrace, Sight
from greentrain.simulator.jobs import Jobs, windows
from greentrain.simulator.simulate import References, references
from greentrain.simulator.world import Track, World
from greentrain.types import S_PER_HOUR

Array = NDArray[np.float64]

TRACES: Final[Mapping[str, str]] = {
    "us_caiso_2022_eia": "production",
    "us_pjm_2022_eia": "production",
    "us_miso_2022_eia": "production",
    "us_ercot_2022_eia": "production",
    "us_nyiso_2022_eia": "production",
    "us_soco_2022_eia": "production",
    "us_bpat_2022_eia": "production",
    "us_caiso_2023_em": "consumption, life cycle",
    "de_2023_em": "consumption, life cycle",
    "gb_2023_em": "consumption, life cycle",
}
"""Recorded grids and their accounting; all are averages, none is mixed with another."""
SLACKS: Final = (1.0, 1.25, 1.5, 2.0)
"""Time to the deadline over the time of the usual training."""
HOURS: Final = 14 * 24
WINDOWS: Final = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What a case gets."""

    quick: bool
    folder: Path
    """Of the traces."""
    say: Callable[[str], None]
    kept: dict[str, "Grid"] = field(default_factory=dict)
    """Grids that were read, with the forecasts of their hours."""

    def grids(self) -> Sequence["Grid"]:
        """Return all grids whose trace is there; two where it has to be quick."""
        names = [name for name in TRACES if (self.folder / f"{name}.csv").exists()][: 2 if self.quick else None]
        for name in names:
            if name not in self.kept:
                self.kept[name] = Grid(self.folder / f"{name}.csv", TRACES[name], 4 if self.quick else WINDOWS)
        return [self.kept[name] for name in names]

    def pick(self, full: int, quick: int) -> int:
        """Return one of two numbers."""
        return quick if self.quick else full


class Grid:
    """A trace, its windows of 14 days after 21 days of history, one behind the other, and jobs of every slack."""

    def __init__(self, path: Path, accounting: str, count: int) -> None:
        self.trace = GridTrace.read(path, accounting=accounting)
        self.name = self.trace.name
        self.starts = windows(self.trace, count, length_s=HOURS * S_PER_HOUR)

    def some(self, every: int) -> "Grid":
        """Return the same grid with every so many windows."""
        other = copy.copy(self)
        other.starts = self.starts[::every]
        return other

    @cached_property
    def world(self) -> World:
        """The grid as policies see it in training: hourly decisions, the shipped forecast."""
        return World(self.trace, Sight(self.trace, profile_forecast, horizon_h=HOURS))

    def jobs(self, menu: Menu, slacks: Sequence[float] = SLACKS) -> Jobs:
        """Return one job a slack and window, slack by slack."""
        tokens = float(menu.tokens_per_s[menu.static]) * HOURS * S_PER_HOUR / np.repeat(slacks, len(self.starts))
        starts = np.tile(self.starts, len(slacks))
        return Jobs(start_unix_s=starts, deadline_s=np.full(len(starts), HOURS * S_PER_HOUR), tokens=tokens)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Score:
    """What a policy made of one grid, by slack."""

    mean: Array
    """(s,) mean over windows of the share of static's grams that was saved (%)."""
    total: Array
    """(s,) the same of all windows' grams together (%)."""
    excess: Array
    """(s,) grams beyond those of the oracle, of all windows together (%)."""
    misses: int
    switches: Array
    """(s,) changes of width a day of a running job."""


def score(track: Track, known: References, slacks: Sequence[float] = SLACKS) -> Score:
    """Return savings and the like of jobs that :meth:`Grid.jobs` made."""
    grams, static, oracle = (
        values.reshape(len(slacks), -1) for values in (track.grams, known.static_g, known.oracle_g)
    )
    days = track.end_s.reshape(len(slacks), -1).sum(axis=1) / (24 * S_PER_HOUR)
    return Score(
        mean=100 * (1 - grams / static).mean(axis=1),
        total=100 * (1 - grams.sum(axis=1) / static.sum(axis=1)),
        excess=100 * (grams.sum(axis=1) / oracle.sum(axis=1) - 1),
        misses=int(track.missed.sum()),
        switches=track.switches.reshape(len(slacks), -1).sum(axis=1) / days,
    )


def tried(
    grid: Grid, policy: SchedulePolicy, menu: Menu, slacks: Sequence[float] = SLACKS, switch_s: float = 0.0
) -> Track:
    """Return what becomes of all jobs of a grid."""
    return grid.world.run(DecisionKernel(policy, menu, switch_s=switch_s), grid.jobs(menu, slacks))


def known(grid: Grid, menu: Menu, slacks: Sequence[float] = SLACKS) -> References:
    """Return static, the constant pace and the optimum of all jobs of a grid."""
    return references(grid.trace, grid.jobs(menu, slacks), menu)


def menu(actions: str = "T6") -> Menu:
    """Return one of the assumed sets of actions."""
    return Menu.of(reference_table(actions))


def percent(value: float) -> str:
    """Return a percentage for a cell: one digit, and no -0.0."""
    return f"{round(float(value), 1) + 0.0:.1f}"
