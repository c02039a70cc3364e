"""What policies made of a fleet, side by side: grams, energy, money, misses, waiting, fairness, power and regret."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from greentrain.simulator.cluster.workload import Array
from greentrain.simulator.cluster.world import FleetRun, FleetWorld
from greentrain.types import G_PER_KG, J_PER_KWH, S_PER_HOUR, iso
from greentrain.utils.version import __version__

if TYPE_CHECKING:
    from rich.table import Table

FORMAT: Final = 1
"""Version of :meth:`FleetResult.to_dict`; keys are only ever added."""
SHORT_S: Final = 600.0
"""A job counts as this long at least in its slowdown, so that the shortest do not decide (bounded slowdown, Feitelson
et al., JSSPP 1997)."""
_NEAR: Final = 1e-6


def slowdown_by_user(run: FleetRun) -> Array:
    """Return (u,) the mean bounded slowdown of each user's jobs: time until the end over the shortest possible.

    A job that never ended counts as if it had when the simulation did.
    """
    until_s = run.facility_w.shape[1] * run.step_s
    shortest_s = np.maximum(run.work.shortest_s, SHORT_S)
    each = np.maximum(1.0, (np.minimum(run.end_s, until_s) - run.work.release_s) / shortest_s)
    users = np.unique(run.work.user, return_inverse=True)[1]
    return np.asarray(np.bincount(users, each) / np.bincount(users))


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetScore:
    """One policy on one fleet."""

    policy: str
    kg: float
    """CO2e at the meter of the facility."""
    kwh: float
    money: float | None
    """For electricity; None: the price of a site is not known."""
    missed: int
    """Jobs that were not done by their deadlines."""
    unfinished: int
    """Of these, those that were not done when the simulation ended."""
    wait_h: float
    """Mean time from release to first start; of a job that never ran, until the simulation's end."""
    slowdown: float
    """Mean over users of their mean bounded slowdown."""
    worst_to_first: float
    """Largest ratio of a user's slowdown to that under the first policy."""
    peak_w: float
    """Highest facility power of a site in a step."""
    peak_to_cap: float
    """Highest ratio of facility power to the cap of that step; 0 where there is none."""
    over_cap: int
    """Steps beyond a cap."""
    starts: float
    """Starts and changes of width by job."""
    moves: int
    failures: int
    regret: float | None
    """Grams over the bound less 1; None where no bound was made, or a job was late, as a bound is of punctual plans."""
    slowest_s: float
    """Longest time to think about a step (s)."""
    thought_s: float


def score(run: FleetRun, first: FleetRun, bound_g: float | None = None) -> FleetScore:
    """Return what a policy made of a fleet.

    Args:
        run: What became of the jobs.
        first: The same under the policy that users are compared with.
        bound_g: No punctual plan emits less (g).
    """
    until_s = run.facility_w.shape[1] * run.step_s
    missed = int(np.sum(run.end_s > run.work.deadline_s + 1.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        to_cap = np.where(run.facility_w > 0, run.facility_w / run.cap_w, 0.0)
    grams, money = float(run.grams.sum()), float(run.money.sum())
    return FleetScore(
        policy=run.policy,
        kg=grams / G_PER_KG,
        kwh=float(run.joules.sum()) / J_PER_KWH,
        money=None if math.isnan(money) else money,
        missed=missed,
        unfinished=int(np.sum(~np.isfinite(run.end_s))),
        wait_h=float(np.mean(np.minimum(run.first_s, until_s) - run.work.release_s)) / S_PER_HOUR,
        slowdown=float(slowdown_by_user(run).mean()),
        worst_to_first=float((slowdown_by_user(run) / slowdown_by_user(first)).max()),
        peak_w=float(run.facility_w.max()),
        peak_to_cap=float(to_cap.max()),
        over_cap=int(np.sum(to_cap > 1 + _NEAR)),
        starts=float(run.starts.mean()),
        moves=int(run.moves.sum()),
        failures=int(run.failures.sum()),
        regret=None if bound_g is None or missed else grams / bound_g - 1.0,
        slowest_s=run.slowest_s,
        thought_s=run.thought_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FleetResult:
    """Policies on one fleet; the first is what the others are compared with."""

    world: FleetWorld
    runs: Sequence[FleetRun]
    bound_g: float | None = None

    @property
    def scores(self) -> list[FleetScore]:
        """One a policy."""
        return [score(run, self.runs[0], self.bound_g) for run in self.runs]

    def notes(self) -> list[str]:
        """Return what the numbers rest on."""
        world, work = self.world, self.world.work
        sites = ", ".join(f"{site.grid.name} ({site.grid.source})" for site in world.sites)
        seen = "known to policies" if world.forecaster is None else "forecast from their past"
        return [
            f"{len(work)} jobs of {len(np.unique(work.user))} users on {sum(pool.gpus for pool in world.pools)} GPUs,"
            f" from {iso(world.start_unix_s)}, steps of {world.step_s:g} s",
            f"Grids {sites}: {seen}",
            "Watts and speeds assumed (reference table); CO2e at the meter of the facility; idle GPUs draw nothing",
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the result in plain JSON types."""
        caps = [None if np.isinf(site.cap_w) else site.cap_w for site in self.world.sites]
        return {
            "format": FORMAT,
            "greentrain_version": __version__,
            "kind": "fleet simulation",
            "jobs": len(self.world.work),
            "gpus": sum(pool.gpus for pool in self.world.pools),
            "start": iso(self.world.start_unix_s),
            "step_s": self.world.step_s,
            "sites": [
                {"name": site.grid.name, "source": site.grid.source, "cap_w": cap, "pue": site.pue}
                for site, cap in zip(self.world.sites, caps, strict=True)
            ],
            "bound_kg": None if self.bound_g is None else self.bound_g / G_PER_KG,
            "policies": [asdict(each) for each in self.scores],
            "notes": self.notes(),
        }


HEAD: Final = (
    "policy",
    "kg CO2e",
    "saved",
    "kWh",
    "late",
    "wait",
    "slowdown",
    "worst user",
    "peak/cap",
    "regret",
    "s/step",
)


def cells(each: FleetScore, first: FleetScore) -> tuple[str, ...]:
    """Return the cells of a row under HEAD.

    Args:
        each: What a policy made of the fleet.
        first: The same of the policy that it is compared with.
    """
    return (
        each.policy,
        f"{each.kg:,.0f}",
        f"{round(100 * (1 - each.kg / first.kg), 1) + 0.0:.1f} %",
        f"{each.kwh:,.0f}",
        str(each.missed),
        f"{each.wait_h:.1f} h",
        f"{each.slowdown:.2f}",
        f"{each.worst_to_first:.2f}",
        f"{each.peak_to_cap:.2f}" + (f" ({each.over_cap} steps over)" if each.over_cap else ""),
        "" if each.regret is None else f"{100 * each.regret:.1f} %",
        f"{each.slowest_s:.2g}",
    )


def render(result: FleetResult) -> "Table":
    """Return the table for a terminal."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(caption="\n".join(map(escape, result.notes())), caption_justify="left")
    for i, name in enumerate(HEAD):
        table.add_column(name, justify="left" if i == 0 else "right")
    scores = result.scores
    for each in scores:
        table.add_row(*map(escape, cells(each, scores[0])))
    return table
