"""What policies save if a change of width costs ten minutes: who looks ahead, who has learned, and who does neither."""

from typing import Final

import numpy as np

from benchmarks.scheduling_common import HOURS, Array, Bench, Grid, known, menu, percent, score, tried
from benchmarks.tables import Table
from greentrain.policy.baselines import CarbonBlind
from greentrain.policy.carbongear import CarbonGear
from greentrain.policy.menu import Menu
from greentrain.policy.mpc import Mpc, MpcSwitching
from greentrain.policy.outlook import SchedulePolicy
from greentrain.policy.switching import Switching
from greentrain.types import S_PER_HOUR

SWITCH_S: Final = 600.0
SLACKS: Final = (1.25, 2.0)
NOISE: Final = 0.05
"""Points that are none."""


def switching(bench: Bench) -> list[Table]:
    """Carbongear, myopic mpc, and mpc under the dynamic programme."""
    full = menu()
    made: dict[str, SchedulePolicy] = {
        "carbon-blind constant pace": CarbonBlind(full),
        "mpc, myopic": Mpc(full),
        "carbongear": CarbonGear(full, switch_s=SWITCH_S),
        "mpc, dynamic programme": MpcSwitching(full, switch_s=SWITCH_S),
    }
    rows: list[list[str]] = []
    good: list[bool] = []
    better = 0
    for grid in bench.grids():
        reference = known(grid, full, SLACKS)
        static = reference.static_g.reshape(len(SLACKS), -1).sum(axis=1)
        found: dict[str, Array] = {}
        for name, policy in made.items():
            made_of_it = score(tried(grid, policy, full, SLACKS, SWITCH_S), reference, SLACKS)
            found[name] = made_of_it.total
            cells = [f"{percent(a)} ({b:.1f})" for a, b in zip(made_of_it.total, made_of_it.switches, strict=True)]
            verdict = ""
            if name == "carbongear":
                good += [bool((found[name] >= found["mpc, myopic"] - NOISE).all())]
                verdict = "PASS" if good[-1] else "MISS"
            rows.append([grid.name, name, *cells, str(made_of_it.misses), verdict])
        better += int((found["mpc, dynamic programme"] >= found["carbongear"] - NOISE).sum())
        bound = 100 * (1 - _bound_g(grid, full) / static)
        rows.append([grid.name, "no plan saves more, ten minutes a change", *map(percent, bound), "", ""])
        bench.say(f"switching: {grid.name}")
    head = ["grid", "policy", *(f"slack {slack:g}" for slack in SLACKS), "misses", "carbongear >= myopic mpc"]
    notes = [
        "Saving against static BF16 in %, of all windows together; in brackets changes of width a day of a running job."
        " A change trains nothing for ten minutes, at the power of the new width; static has none.",
        f"mpc under the dynamic programme saves as much as carbongear, or more, in {better} of"
        f" {len(SLACKS) * len(bench.grids())} cases.",
    ]
    title = "A change of width costs ten minutes"
    passed = sum(good)
    return [
        Table(
            case="switching", title=title, head=head, rows=rows, notes=notes, passed=passed, missed=len(good) - passed
        )
    ]


def _bound_g(grid: Grid, full: Menu) -> Array:
    """Return (s,) grams of all windows together below which no plan gets, by the dual of the dynamic programme."""
    jobs = grid.jobs(full, SLACKS)
    n = len(jobs.tokens)
    ahead = np.stack([grid.trace.window(start, HOURS * S_PER_HOUR)[0] for start in jobs.start_unix_s.tolist()])
    plan = Switching(full, step_s=S_PER_HOUR, switch_s=SWITCH_S)
    first = plan.first(
        ahead, np.full(ahead.shape, S_PER_HOUR), jobs.tokens, np.full(n, full.static), np.full(n, np.inf), within=1e-3
    )
    total: Array = first.bound_g.reshape(len(SLACKS), -1).sum(axis=1)
    return total
