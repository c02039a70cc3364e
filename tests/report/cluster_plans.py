"""Plans of small clusters as files, made without a planner: what a page and metrics are held to is known by hand."""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from greentrain.ledger.fleet_state import FleetJob, FleetSample, FleetState
from greentrain.policy.cluster.paths import Layout
from greentrain.policy.cluster.planner import ended
from greentrain.policy.cluster.problem import OFF, ClusterJob, Plan, Pool, Prices, Problem, Row, Site
from tests.helpers.hand_clock import HandClock

HOUR_S = 3600.0
START_S = 1_767_225_600.0
"""2026-01-01 00:00 UTC."""


def small(start_s: float = START_S, *, name: str = "llama") -> Plan:
    """Return a plan of six hours: four nodes under a cap of 6 kW, a clean noon in hours 3 and 4.

    ``llama`` runs now and has nodes until hour 2, ``vision`` waits for the nodes, ``night`` for the clean hours,
    ``later`` is not released, ``rest`` is left out, ``done`` has ended.

    Args:
        start_s: When it begins (s since the epoch, UTC).
        name: Of the first job, its user, pool and gear.
    """
    rows = (
        Row(name="fp8 on 4", pool="gpu", nodes=4, tokens_per_s=100.0, power_w=4000.0),
        Row(name="bf16 at 70% on 2", pool="gpu", nodes=2, tokens_per_s=40.0, power_w=1500.0),
    )
    job = ClusterJob(
        name="", release_s=start_s, deadline_s=start_s + 6 * HOUR_S, tokens=150_000.0, rows=rows, user="ann"
    )
    jobs = (
        replace(job, name=name, tokens=2 * 360_000.0, current=0, user=name),
        replace(job, name="vision", tokens=144_000.0),
        replace(job, name="night"),
        replace(job, name="later", release_s=start_s + 4 * HOUR_S),
        replace(job, name="rest", tokens=1e9),
        replace(job, name="done", tokens=1000.0, current=1),
    )
    h = 6
    problem = Problem(
        edges_s=start_s + HOUR_S * np.arange(h + 1, dtype=np.float64),
        sites=(
            Site(
                name="oslo",
                g_per_kwh=np.array([400.0, 400.0, 400.0, 100.0, 100.0, 400.0]),
                power_cap_w=np.full(h, 6000.0),
                pue=np.full(h, 1.25),
            ),
        ),
        pools=(Pool(name="gpu", site="oslo", nodes=np.full(h, 4.0), device="h100"),),
        jobs=jobs,
        budget_g=20_000.0,
    )
    table = np.full((len(jobs), h), OFF)
    table[0, :2] = 0
    table[1, 2] = 1
    table[2, 3:4] = 0
    table[3, 4] = 1
    prices = Prices.zero(problem)
    prices.nodes[0, :2] = 250.0
    prices.watts[0, :2] = 0.05
    layout = Layout(problem)
    grams = float(ended(layout, np.arange(len(jobs)), table)[1].sum())
    return Plan(
        problem=problem, rows=table, prices=prices, bound_g=grams / 1.04, grams=grams, missed=("rest",), late_g=0.0
    )


def written(root: Path, plan: Plan) -> Path:
    """Write a plan into a folder, and return the folder."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "plan.json").write_text(json.dumps(plan.to_dict(), allow_nan=False))
    return root


@contextmanager
def controlled(place: Path, clock: HandClock, *, name: str = "llama", plan: Plan | None = None) -> Iterator[FleetState]:
    """Write the state of a controller: a plan that began now, two hours of samples before it, two actions; held open.

    Args:
        place: File.
        clock: Time of the fleet; the plan begins at it.
        name: Of its first job, and in the words of the other texts.
        plan: The plan; None: the small one.
    """
    now_s = clock.unix_s()
    state = FleetState(place, clock=clock.unix_s)
    state.take("green", holder="host:7")
    seq = state.intend("night", "hold", t_s=now_s - 60, what=name, reason="cleaner hours", dry_run=False)
    state.conclude(seq, "done")
    state.intend(name, "release", t_s=now_s - 30, reason=name)
    jobs = [
        FleetJob(name=name, state="running", row="fp8 on 4", since_s=now_s - HOUR_S, power_w=4000.0, basis="measured"),
        FleetJob(name="vision", state="held", waits_for="nodes: ann is first", until_s=now_s + 2 * HOUR_S),
        FleetJob(name="gone", state="gone"),
    ]
    watts = ((4000.0, "modelled", 1000.0), (4500.0, "measured", 3000.0), (4500.0, "measured", None))
    samples = [
        FleetSample(
            t_s=now_s + (i - 2) * HOUR_S,
            site="oslo",
            power_w=power_w,
            basis=basis,
            cap_w=6000.0,
            g_per_kwh=390.0,
            grams=grams,
        )
        for i, (power_w, basis, grams) in enumerate(watts)
    ]
    made = small(now_s, name=name) if plan is None else plan
    state.write(jobs=jobs, plan=("an arrival", made.to_dict()), samples=samples)
    try:
        yield state
    finally:
        state.close()


def uncapped(plan: Plan) -> Plan:
    """Return the plan without caps and without a budget."""
    sites = [replace(site, power_cap_w=np.full(plan.problem.steps, math.inf)) for site in plan.problem.sites]
    return replace(plan, problem=replace(plan.problem, sites=tuple(sites), budget_g=math.inf))
