"""Why a job of a plan runs, or does not: in words, with the prices of the hour and what would change it."""

from dataclasses import dataclass

import numpy as np

from greentrain.policy.cluster.problem import OFF, Plan, Row
from greentrain.types import J_PER_KWH, S_PER_HOUR, iso


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """What a plan says of one job at one time."""

    job: str
    row: str
    """What it runs in now; empty: it is off."""
    starts_s: float | None
    """When it is on next (s since the epoch, UTC); None: it is on, or never will be."""
    ends_s: float | None
    """When the plan has done its tokens; None: never."""
    g_per_kwh: float
    """Of the step of now."""
    starts_g_per_kwh: float | None
    """Of the step in which it is on next."""
    below_g_per_kwh: float | None
    """Below this intensity it would run now at the prices of now; None: it runs, or nothing would change it."""
    node_g: float
    """Price of a node for an hour (g)."""
    kw_g: float
    """Price of a kW for an hour, beyond what it emits (g)."""
    missed: bool

    def reason(self) -> str:
        """Return one line: what it waits for."""
        if self.row:
            return f"the plan runs it in {self.row} at {self.g_per_kwh:.0f} g/kWh"
        if self.starts_s is None:
            return "the plan has no room for it before its deadline" if self.missed else "the plan is done with it"
        when = f"the plan starts it at {iso(self.starts_s)}"
        if self.starts_g_per_kwh is not None and self.starts_g_per_kwh < 0.98 * self.g_per_kwh:
            return f"{when}, at {self.starts_g_per_kwh:.0f} g/kWh in place of {self.g_per_kwh:.0f} now"
        if self.node_g > 0 or self.kw_g > 0:
            return f"{when}: until then {'nodes' if self.node_g > 0 else 'watts'} are worth more to others"
        return f"{when}, at {self.starts_g_per_kwh or 0.0:.0f} g/kWh"

    def told(self) -> list[str]:
        """Return whole sentences for people."""
        lines = [f"{self.job}: {self.reason()}."]
        if self.ends_s is not None:
            lines.append(f"It is done by {iso(self.ends_s)}" + (", after its deadline." if self.missed else "."))
        lines.append(
            f"Now a node costs {self.node_g:.0f} g an hour, and a kW {self.kw_g:.0f} g an hour beyond the"
            f" {self.g_per_kwh:.0f} g that it emits at the meter; 0 is a price, too: nobody else wants it."
        )
        if self.below_g_per_kwh is not None:
            lines.append(f"It would run now below {self.below_g_per_kwh:.0f} g/kWh, or with a nearer deadline.")
        elif not self.row:
            lines.append("No intensity would start it now: others pay more for its nodes, or a cap leaves no watts.")
        return lines


def why(plan: Plan, job: str, t_s: float) -> Why:
    """Return what a plan says of a job.

    Args:
        plan: The plan.
        job: Name of the job, which is of the plan.
        t_s: Now (s since the epoch, UTC), within the plan.
    """
    problem = plan.problem
    index = problem.job_index[job]
    edges_s, rows = problem.edges_s, plan.rows[index]
    step = min(max(0, int(np.searchsorted(edges_s, t_s, side="right")) - 1), problem.steps - 1)
    later = np.flatnonzero(rows[step:] != OFF) + step
    on = bool(len(later)) and later[0] == step
    one = problem.jobs[index]
    row = one.rows[rows[later[0]]] if len(later) else max(one.rows, key=lambda r: r.tokens_per_s)
    hours, prices = problem.length_s / S_PER_HOUR, plan.prices
    site = problem.site_index[problem.pools[problem.pool_index[row.pool]].site]
    node_g = float(prices.nodes[problem.pool_index[row.pool], step] / hours[step])
    return Why(
        job=job,
        row=row.name if on else "",
        starts_s=None if on or not len(later) else float(edges_s[later[0]]),
        ends_s=float(edges_s[later[-1] + 1]) if len(later) else None,
        g_per_kwh=float(problem.sites[site].g_per_kwh[step]),
        starts_g_per_kwh=None if not len(later) else float(problem.sites[site].g_per_kwh[later[0]]),
        below_g_per_kwh=None
        if on
        else max((b for r in one.rows if (b := _below(plan, index, r, step)) > 0), default=None),
        node_g=node_g,
        kw_g=float(prices.watts[site, step] / hours[step]) * 1000,
        missed=job in plan.missed,
    )


def _below(plan: Plan, index: int, row: Row, step: int) -> float:
    """Return the intensity at which a row pays for itself in a step, at the prices of nodes, watts and tokens."""
    problem, prices = plan.problem, plan.prices
    pool = problem.pool_index[row.pool]
    site = problem.site_index[problem.pools[pool].site]
    length_s = float(problem.length_s[step])
    worth = float(prices.tokens[index]) * row.tokens_per_s * length_s - float(prices.nodes[pool, step]) * row.nodes
    worth -= float(prices.watts[site, step]) * row.power_w
    kwh = row.power_w * length_s * float(problem.sites[site].pue[step]) / J_PER_KWH
    return worth / kwh if kwh > 0 else 0.0


def words(plan: Plan) -> list[str]:
    """Return a plan in lines for people: how good it is, then each job with its stays in a row.

    Args:
        plan: The plan.
    """
    problem = plan.problem
    gap = f"within {plan.gap:.1%} of the best possible" if plan.bound_g > 0 else "with no bound"
    lines = [f"{len(problem.jobs)} jobs, {(plan.grams + plan.late_g) / 1000:.1f} kg, {gap}, {len(plan.missed)} late"]
    for i, job in enumerate(problem.jobs):
        stays = []
        for a, b, index in plan.runs(i):
            row, times = job.rows[index], f"{iso(problem.edges_s[a])} to {iso(problem.edges_s[b])}"
            stays.append(f"{times} {row.name}, {row.nodes} nodes of {row.pool}")
        late = f" (late: due {iso(job.deadline_s)})" if job.name in plan.missed else ""
        lines.append(f"{job.name}{late}: {'; '.join(stays) or 'never'}")
    return lines
