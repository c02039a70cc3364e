"""What is known of a cluster of jobs: its plan by time, what each job does now or waits for, what its controller did.

A controller's state (``greentrain fleet run``) is read where there is one, and never written; else a plan alone.
"""

import contextlib
import json
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from greentrain.errors import RunFolderError
from greentrain.ledger.fleet_state import FleetAction, FleetJob, FleetNow, FleetSample, FleetState, FleetStay
from greentrain.ledger.journal import RUN_JSON
from greentrain.policy.cluster.explain import why
from greentrain.policy.cluster.paths import Layout
from greentrain.policy.cluster.planner import ended
from greentrain.policy.cluster.problem import FORMAT, KIND, OFF, Array, Plan
from greentrain.report.fleet.totals import finite
from greentrain.types import J_PER_KWH, S_PER_HOUR

PLAN: Final = "plan.json"
STATE: Final = "fleet.db"
"""Of a controller, as ``state`` of fleet.yaml is called by default."""
PAST_S: Final = 24 * S_PER_HOUR
"""How far back samples are shown (s)."""
MOST_SAMPLES: Final = 400
"""Of a site that are shown; of more, every second or third."""
GAP: Final = 10.0
"""Samples that are further apart than so many of their usual distances leave a gap: nobody knows what was between."""
MOST_ACTIONS: Final = 50
_NOTHING: Final = {
    **dict.fromkeys(("release_s", "deadline_s", "waits_for", "until_s", "row", "power_w")),
    **{"is_late": False, "basis": "missing"},
}


class JobNow(NamedTuple):
    """What a job does at a time, by the plan: state, what it waits for, until when (s since the epoch), row in use."""

    state: str
    waits_for: str | None = None
    until_s: float | None = None
    row: str | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class ClusterNow:
    """A plan, looked at from a time, with what its controller knows."""

    plan: Plan
    t_s: float
    """Within the plan (s since the epoch, UTC)."""
    is_present: bool = True
    """False: the plan is of another time, and is looked at from its start."""
    reason: str = ""
    """Why it was made."""
    fleet: FleetNow | None = None
    """Controller and jobs; None: there is only a plan."""
    samples: Sequence[FleetSample] = ()
    actions: Sequence[FleetAction] = ()
    stays: Sequence[FleetStay] = ()
    """What jobs did before, and how they ended."""

    @classmethod
    def at(cls, plan: Plan, now_s: float, **more: Any) -> "ClusterNow":
        """Return the plan at a time, or, where it is of another time, at that of the last sample, or at its start.

        Args:
            plan: The plan.
            now_s: Present time (s since the epoch, UTC).
            more: Other fields.
        """
        start_s, end_s = float(plan.problem.edges_s[0]), float(plan.problem.edges_s[-1])
        times = [now_s, *(sample.t_s for sample in more.get("samples", ())[-1:])]  # a replay has a time of its own
        found = next((t for t in times if start_s <= t < end_s), None)
        return cls(plan=plan, t_s=start_s if found is None else found, is_present=found is not None, **more)

    @cached_property
    def step(self) -> int:
        """Step of the plan at this time."""
        return max(0, int(np.searchsorted(self.plan.problem.edges_s, self.t_s, side="right")) - 1)

    @cached_property
    def power_w(self) -> Array:
        """(s, h) facility watts of all jobs at each site: modelled, and above those of idle nodes."""
        pue: Array = np.array([site.pue for site in self.plan.problem.sites]).reshape(-1, self.plan.problem.steps)
        return self.plan.used_w() * pue

    @cached_property
    def grams(self) -> Array:
        """(h,) emitted in each step, modelled: their sum is what the plan says."""
        problem, rows, layout = self.plan.problem, self.plan.rows, Layout(self.plan.problem)
        (job, step), plain = np.nonzero(rows != OFF), np.zeros(rows.shape)
        _, _, site, power_w = layout.of(job, rows[job, step])
        plain[job, step] = power_w * problem.g_per_w[site, step]
        total: Array = plain.sum(axis=0)
        last = problem.steps - 1 - (rows != OFF)[:, ::-1].argmax(axis=1)
        rest = ended(layout, np.arange(len(rows)), rows)[1] - plain.sum(axis=1)  # what a last step leaves, and starts
        np.add.at(total, last, rest)
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
        """Return what a job does now, or what it waits for, by its index in the problem."""
        plan, rows = self.plan, self.plan.rows[index]
        job, found = plan.problem.jobs[index], why(plan, plan.problem.jobs[index].name, self.t_s)
        if found.row:
            until = next(b for a, b, _ in plan.runs(index) if a <= self.step < b)
            return JobNow("late" if found.missed else "running", None, float(plan.problem.edges_s[until]), found.row)
        if found.starts_s is None:
            return JobNow("done") if (rows != OFF).any() else JobNow("left out", found.reason())
        if job.release_s > self.t_s:
            return JobNow("planned", "its release", job.release_s)
        return JobNow("late" if found.missed else "waiting", found.reason(), found.starts_s)

    def to_dict(self) -> dict[str, Any]:
        """Return it in plain JSON types; what is not limited, or not known, is null."""
        plan, problem, used = self.plan, self.plan.problem, self.plan.used_nodes()
        return {
            **{"t_unix_s": self.t_s, "is_present": self.is_present, "reason": self.reason},
            "fleet": None if self.fleet is None else {"name": self.fleet.name, **asdict(self.fleet.controller)},
            "past": self._past(),
            "actions": [asdict(action) for action in reversed(self.actions)],
            "edges_s": problem.edges_s.tolist(),
            "provenance": "modelled",
            **{"grams": plan.grams, "late_g": plan.late_g, "bound_g": plan.bound_g},
            **{"gap": finite(plan.gap), "budget_g": finite(problem.budget_g)},
            "step_g": self.grams.tolist(),
            "sites": [
                {
                    **{"name": site.name, "cap_w": [finite(cap) for cap in site.power_cap_w.tolist()]},
                    **{"power_w": self.power_w[i].tolist(), "watt_price": self.watt_price[i].tolist()},
                    "g_per_kwh": (site.g_per_kwh * site.pue).tolist(),
                }
                for i, site in enumerate(problem.sites)
            ],
            "pools": [
                {
                    **{"name": pool.name, "site": pool.site, "device": pool.device, "nodes": pool.nodes.tolist()},
                    **{"used": used[i].tolist(), "node_price": self.node_price[i].tolist()},
                }
                for i, pool in enumerate(problem.pools)
            ],
            "jobs": self._lines(),
        }

    def _lines(self) -> list[dict[str, Any]]:
        """Return all jobs: what the controller says goes before what the plan says; what it does not name has ended."""
        jobs, start_s = self.plan.problem.jobs, float(self.plan.problem.edges_s[0])
        if self.fleet is None:
            return [{**self._line(i), **self.job(i)._asdict()} for i in range(len(jobs))]
        lines = {job.name: {**self._line(i), **JobNow("gone")._asdict()} for i, job in enumerate(jobs)}
        for stay in self.stays:
            if stay.end:
                known = {"user": stay.user, "state": stay.end, "since_s": stay.until_s}
                lines[stay.job] = {**_NOTHING, "name": stay.job, **lines.get(stay.job, {}), **known, "stays": []}
        for told in self.fleet.jobs:
            lines[told.name] = {"release_s": None, "stays": [], **lines.get(told.name, {}), **_told(told)}
        past: dict[str, list[Any]] = {name: [] for name in lines}
        for stay in self.stays:
            past.get(stay.job, []).append([stay.from_s, stay.until_s, stay.row, stay.nodes, stay.pool])
        for told in self.fleet.jobs:
            if told.stay_s is not None and told.stay_s < start_s:
                past[told.name].append([told.stay_s, start_s, told.row, told.nodes, told.pool])
        return [{**line, "past": [stay for stay in past[name] if stay[2]]} for name, line in lines.items()]

    def _line(self, index: int) -> dict[str, Any]:
        job, edges = self.plan.problem.jobs[index], self.plan.problem.edges_s
        stays = [
            [float(edges[a]), float(edges[b]), job.rows[row].name, job.rows[row].nodes, job.rows[row].pool]
            for a, b, row in self.plan.runs(index)
        ]
        times = {"release_s": finite(job.release_s), "deadline_s": finite(job.deadline_s), "since_s": None}
        late = {"is_late": job.name in self.plan.missed, "power_w": None, "basis": "modelled"}
        return {"name": job.name, "user": job.user, **times, **late, "stays": stays}

    def _past(self) -> dict[str, Any]:
        """Return edges of time until now, and for each site what was between them; null is unknown."""
        cut_s = max(float(self.plan.problem.edges_s[0]), self.t_s if self.samples else 0.0)
        before = [sample for sample in self.samples if sample.t_s < cut_s]
        times = sorted({sample.t_s for sample in before})
        times = times[:: -(-len(times) // MOST_SAMPLES) or 1]
        edges = np.array([*times, cut_s])
        seen = np.diff(edges) <= GAP * (np.median(np.diff(edges)) if times else 0.0)
        sites: dict[str, Any] = {}
        for name in {sample.site: None for sample in before}:
            last = next(sample for sample in reversed(self.samples) if sample.site == name)
            found: list[list[FleetSample]] = [[] for _ in times]
            for sample in before:
                if sample.site == name:
                    found[int(np.searchsorted(edges, sample.t_s, side="right")) - 1].append(sample)
            watts = [
                _mean([one.power_w for one in some]) if fine else None for some, fine in zip(found, seen, strict=True)
            ]
            measured = [{one.basis for one in some} == {"measured"} for some in found]
            sites[name] = {
                **{"now_w": last.power_w, "now_basis": last.basis},
                "measured": [w if is_so else None for w, is_so in zip(watts, measured, strict=True)],
                "modelled": [None if is_so else w for w, is_so in zip(watts, measured, strict=True)],
                "grams": [_sum([one.grams for one in some]) for some in found],
                "cap_w": [some[-1].cap_w if some else None for some in found],
            }
        return {"edges_s": edges.tolist(), "sites": sites}


class Cluster:
    """The plan and the controller's state in a folder, read again when they have changed. For many threads.

    Args:
        root: The folder, with ``fleet.db`` or ``plan.json``.
        state: State of a controller elsewhere: a file, or ``postgresql://...``; None: that in the folder.
    """

    def __init__(self, root: Path, state: str | None = None) -> None:
        self._plan_path, self._run_json = root / PLAN, root / RUN_JSON
        self._is_named = state is not None
        self._place = str(root / STATE) if state is None else state
        self._is_remote = self._place.startswith(("postgresql://", "postgres://"))
        self._lock = threading.RLock()
        self._store: FleetState | None = None
        self._seen: object = None
        self._plan: Plan | None = None
        self._made: tuple[float, str] = (-1.0, "")

    def version(self, now_s: float) -> str | None:
        """Return a word that changes with what is known; None where the folder is that of no cluster."""
        if self._is_remote:
            return f"{now_s:.0f}"
        if self._has_state:
            return f"{_stat(self._place)}{_stat(f'{self._place}-wal')}"
        return None if self._plan_stat() is None else str(self._plan_stat())

    def now(self, now_s: float) -> ClusterNow | None:
        """Return what is known at a time (s since the epoch, UTC); None where there is no plan.

        Raises:
            FleetStateError: The state cannot be read.
            RunFolderError: The plan cannot be read, or is none.
        """
        with self._lock:
            if self._has_state:
                return self._of_state(self.store(), now_s)
            seen = self._plan_stat()
            if seen != self._seen:
                self._plan = None if seen is None else _plan_of(lambda: json.loads(self._plan_path.read_bytes()), PLAN)
                self._seen = seen
            return None if self._plan is None else ClusterNow.at(self._plan, now_s)

    def store(self) -> FleetState:
        """Return the state, open for reading: a new one where the file is another, as a damaged one is set aside.

        Raises:
            FleetStateError: It cannot be opened.
        """
        with self._lock:
            seen = None if self._is_remote else (_stat(self._place) or (0,))[-1]
            if self._store is None or seen != self._seen:
                self.close()
                self._store, self._seen = FleetState(self._place, read_only=True), seen
            return self._store

    def close(self) -> None:
        """Close the state. Idempotent."""
        with self._lock:
            if self._store is not None:
                self._store.close()
            self._store, self._plan, self._made = None, None, (-1.0, "")

    @property
    def _has_state(self) -> bool:
        return self._is_named or os.path.isfile(self._place)

    def _of_state(self, store: FleetState, now_s: float) -> ClusterNow | None:
        found = store.plan(self._made[0])
        if found is not None:
            self._plan = _plan_of(lambda: found["plan"], "the newest plan of the fleet")
            self._made = found["t_s"], found["reason"]
        if self._plan is None:
            return None
        samples = store.samples(since_s=float(self._plan.problem.edges_s[0]) - PAST_S)
        more = {"fleet": store.now(), "samples": samples, "actions": store.actions(most=MOST_ACTIONS)}
        stays = store.stays(float(self._plan.problem.edges_s[0]) - PAST_S)
        return ClusterNow.at(self._plan, now_s, reason=self._made[1], stays=stays, **more)

    def _plan_stat(self) -> object:
        return None if self._run_json.exists() else _stat(str(self._plan_path))  # the plan of a run is of one job


def _plan_of(read: Callable[[], Any], where: str) -> Plan:
    """Return a plan of what ``Plan.to_dict`` wrote.

    Args:
        read: Returns it in plain JSON types.
        where: Place of it, for the error.
    """
    try:
        document = read()
        if (document["kind"], document["format"]) != (KIND, FORMAT):
            raise ValueError(f"it is no {KIND!r} of format {FORMAT}")
        plan = Plan.from_dict(document)
        if any(rows.max(initial=OFF) >= len(job.rows) for job, rows in zip(plan.problem.jobs, plan.rows, strict=True)):
            raise ValueError("a job is in a row that it has not")
    except Exception as error:  # a file of anybody
        raise RunFolderError(f"{where} is no plan of a cluster: {type(error).__name__}: {error}") from error
    return plan


def _told(job: FleetJob) -> dict[str, Any]:
    """Return what a controller says of a job, where it says something."""
    names = ("name", "user", "state", "power_w", "basis", "since_s", "until_s", "release_s", "deadline_s")
    found = {name: value for name in names if (value := getattr(job, name)) is not None}
    return {"until_s": None, **found, "waits_for": job.waits_for or None, "row": job.row or None, "is_late": job.late}


def _mean(values: Sequence[float | None]) -> float | None:
    total = _sum(known := [value for value in values if value is not None])
    return None if total is None else total / len(known)


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _stat(path: str) -> tuple[int, ...] | None:
    with contextlib.suppress(OSError):
        status = os.stat(path)
        return status.st_mtime_ns, status.st_size, status.st_ino
    return None
