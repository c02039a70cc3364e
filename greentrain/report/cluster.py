"""What is known of a cluster of jobs: its plan by time, and what each job does now or waits for."""

import json
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from greentrain.errors import RunFolderError
from greentrain.ledger.journal import RUN_JSON
from greentrain.policy.cluster.planner import ended
from greentrain.policy.cluster.problem import FORMAT, KIND, OFF, Array, Plan
from greentrain.types import J_PER_KWH, S_PER_HOUR

PLAN: Final = "plan.json"
"""In the folder of a cluster, as in that of a run, whose plan is of one job."""
MOST_BYTES: Final = 256 * 2**20
"""Of a plan that is read: one of 2,000 jobs in 336 hours has about 10 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobNow:
    """What a job does at a time, by the plan."""

    state: str
    """running, waiting, planned (it is not released yet), done, late (it misses its deadline), or left out."""
    waits_for: str | None = None
    """In words; None: it waits for nothing."""
    until_s: float | None = None
    """Until when it waits, or stays in its row (s since the epoch, UTC)."""
    row: str | None = None
    """Row in use."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ClusterNow:
    """A plan, looked at from a time."""

    plan: Plan
    t_s: float
    """Within the plan (s since the epoch, UTC)."""
    is_present: bool = True
    """False: the plan is of another time, and is looked at from its start."""

    @classmethod
    def at(cls, plan: Plan, now_s: float) -> "ClusterNow":
        """Return the plan at a time, or at its start where it is of another time.

        Args:
            plan: The plan.
            now_s: Present time (s since the epoch, UTC).
        """
        start_s, end_s = float(plan.problem.edges_s[0]), float(plan.problem.edges_s[-1])
        present = start_s <= now_s < end_s
        return cls(plan=plan, t_s=now_s if present else start_s, is_present=present)

    @cached_property
    def step(self) -> int:
        """Step of the plan at this time."""
        edges = self.plan.problem.edges_s
        return int(np.clip(np.searchsorted(edges, self.t_s, side="right") - 1, 0, len(edges) - 2))

    @cached_property
    def power_w(self) -> Array:
        """(s, h) facility watts of all jobs at each site: modelled, and above those of idle nodes."""
        pue: Array = np.array([site.pue for site in self.plan.problem.sites]).reshape(-1, self.steps)
        return self.plan.used_w() * pue

    @property
    def steps(self) -> int:
        """Number of steps."""
        return self.plan.problem.steps

    @cached_property
    def grams(self) -> Array:
        """(h,) emitted in each step, modelled: their sum is what the plan says."""
        problem = self.plan.problem
        total = (self.plan.used_w() * problem.g_per_w).sum(axis=0) if problem.sites else np.zeros(self.steps)
        for job, rows in zip(problem.jobs, self.plan.rows, strict=True):
            on = np.flatnonzero(rows != OFF)
            if on.size:
                site = [problem.site_index[problem.pools[problem.pool_index[row.pool]].site] for row in job.rows]
                watts = np.array([row.power_w for row in job.rows])[rows[on]]
                plain = (watts * problem.g_per_w[np.array(site)[rows[on]], on]).sum()
                total[on[-1]] += ended(problem, job, rows)[1] - plain  # what a last step leaves, and starts
        return np.maximum(total, 0.0)

    @cached_property
    def watt_price(self) -> Array:
        """(s, h) what scarce watts add to a kWh of IT (g/kWh)."""
        return self.plan.prices.watts / self.plan.problem.length_s * J_PER_KWH

    @cached_property
    def node_price(self) -> Array:
        """(p, h) what a node is worth for an hour (g)."""
        return self.plan.prices.nodes / self.plan.problem.length_s * S_PER_HOUR

    def job(self, index: int) -> JobNow:
        """Return what a job does now, or what it waits for.

        Args:
            index: Index of the job in the problem.
        """
        plan, now = self.plan, self.step
        job, rows, edges = plan.problem.jobs[index], plan.rows[index], plan.problem.edges_s
        late = job.name in plan.missed
        later = np.flatnonzero(rows[now:] != OFF) + now
        if not later.size:
            if (rows != OFF).any():
                return JobNow(state="done")
            return JobNow(state="left out", waits_for="a place: none is left before its deadline, or in the budget")
        at = int(later[0])
        if at == now:
            stay = np.flatnonzero(rows[now:] != rows[now])
            until = now + int(stay[0]) if stay.size else self.steps
            return JobNow(
                state="late" if late else "running", until_s=float(edges[until]), row=job.rows[rows[now]].name
            )
        if job.release_s > self.t_s:
            return JobNow(state="planned", waits_for="its release", until_s=job.release_s)
        return JobNow(state="late" if late else "waiting", waits_for=self._why(index, at), until_s=float(edges[at]))

    def _why(self, index: int, at: int) -> str:
        """Return in words what is dearer now than in the step in which a job begins, at the plan's prices."""
        plan, now = self.plan, self.step
        problem = plan.problem
        row = problem.jobs[index].rows[plan.rows[index, at]]
        pool = problem.pool_index[row.pool]
        site = problem.site_index[problem.pools[pool].site]
        clean = problem.sites[site].g_per_kwh
        kw = row.power_w / 1000
        saved = {
            f"nodes of {row.pool}": row.nodes * (self.node_price[pool, now] - self.node_price[pool, at]),
            f"watts of {problem.sites[site].name}": kw * (self.watt_price[site, now] - self.watt_price[site, at]),
            f"a cleaner grid, {clean[at]:.0f} g/kWh in place of {clean[now]:.0f}": kw
            * (clean[now] * problem.sites[site].pue[now] - clean[at] * problem.sites[site].pue[at]),
        }
        best = max(saved, key=lambda what: float(saved[what]))
        return best if saved[best] > 0 else "its turn: others come first in the plan"

    def to_dict(self) -> dict[str, Any]:
        """Return it in plain JSON types; what is not limited is null."""
        plan, problem = self.plan, self.plan.problem
        used = plan.used_nodes()
        return {
            "t_unix_s": self.t_s,
            "is_present": self.is_present,
            "edges_s": problem.edges_s.tolist(),
            "provenance": "modelled",
            "grams": plan.grams,
            "late_g": plan.late_g,
            "bound_g": plan.bound_g,
            "gap": _finite(plan.gap),
            "budget_g": _finite(problem.budget_g),
            "step_g": self.grams.tolist(),
            "sites": [
                {
                    "name": site.name,
                    "power_w": self.power_w[i].tolist(),
                    "cap_w": [_finite(cap) for cap in site.power_cap_w.tolist()],
                    "g_per_kwh": (site.g_per_kwh * site.pue).tolist(),
                    "watt_price": self.watt_price[i].tolist(),
                }
                for i, site in enumerate(problem.sites)
            ],
            "pools": [
                {
                    "name": pool.name,
                    "site": pool.site,
                    "device": pool.device,
                    "nodes": pool.nodes.tolist(),
                    "used": used[i].tolist(),
                    "node_price": self.node_price[i].tolist(),
                }
                for i, pool in enumerate(problem.pools)
            ],
            "jobs": [self._line(i) for i in range(len(problem.jobs))],
        }

    def _line(self, index: int) -> dict[str, Any]:
        job, now, edges = self.plan.problem.jobs[index], self.job(index), self.plan.problem.edges_s
        stays = [
            [float(edges[a]), float(edges[b]), job.rows[row].name, job.rows[row].nodes, job.rows[row].pool]
            for a, b, row in self.plan.runs(index)
        ]
        return {
            "name": job.name,
            "user": job.user,
            "release_s": _finite(job.release_s),
            "deadline_s": _finite(job.deadline_s),
            "priority": job.priority,
            "is_late": job.name in self.plan.missed,
            "state": now.state,
            "waits_for": now.waits_for,
            "until_s": now.until_s,
            "row": now.row,
            "stays": stays,
        }


class ClusterFolder:
    """The plan in a folder, read again when it has changed. For many threads.

    Args:
        root: The folder.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._seen: Sequence[int] | None = None
        self._plan: Plan | None = None

    def version(self) -> str | None:
        """Return a word that changes with the plan; None where the folder is that of no cluster."""
        seen = self._stat()
        return None if seen is None else "-".join(str(one) for one in seen)

    def now(self, now_s: float) -> ClusterNow | None:
        """Return the plan at a time; None where there is none.

        Args:
            now_s: Present time (s since the epoch, UTC).

        Raises:
            RunFolderError: The plan cannot be read.
        """
        with self._lock:
            seen = self._stat()
            if seen != self._seen:
                self._plan = None if seen is None else read_plan(self._root / PLAN)
                self._seen = seen
            return None if self._plan is None else ClusterNow.at(self._plan, now_s)

    def _stat(self) -> Sequence[int] | None:
        try:
            if (self._root / RUN_JSON).exists():  # a run's plan is of one job
                return None
            status = os.stat(self._root / PLAN)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino


def read_plan(path: Path) -> Plan:
    """Return the plan in a file.

    Raises:
        RunFolderError: It cannot be read, or is no plan.
    """
    try:
        with path.open("rb") as file:
            found: Mapping[str, Any] = json.loads(file.read(MOST_BYTES))
        if (found["kind"], found["format"]) != (KIND, FORMAT):
            raise ValueError(f"it is no {KIND!r} of format {FORMAT}")
        plan = Plan.from_dict(found)
        if any(rows.max(initial=OFF) >= len(job.rows) for job, rows in zip(plan.problem.jobs, plan.rows, strict=True)):
            raise ValueError("a job is in a row that it has not")
    except OSError as error:
        raise RunFolderError(f"{path.name} cannot be read: {error.strerror}") from error
    except Exception as error:  # a file of anybody
        raise RunFolderError(f"{path.name} is no plan of a cluster: {type(error).__name__}: {error}") from error
    return plan


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
