"""Clusters of any size, drawn from a seed: grids with a noon, jobs of gears, caps and widths, at a given load."""

import math

import numpy as np

from greentrain.policy.cluster.problem import ClusterJob, Pool, Problem, Row, Site

GEARS = (
    ("bf16", 1.0, 1.0, 1.0),
    ("bf16 at 70%", 0.7, 0.9, 0.72),
    ("fp8", 1.0, 1.3, 0.97),
    ("fp8 at 70%", 0.7, 1.16, 0.7),
)
"""Name, cap, and speed and power against BF16 without a cap."""


def grid(rng: np.random.Generator, h: int, step_s: float, mean: float = 300.0) -> np.ndarray:
    """Return intensities with days, a week and weather (g/kWh)."""
    t_h = (np.arange(h) + 0.5) * step_s / 3600
    noise = np.cumsum(rng.normal(0, 0.03, h) * math.sqrt(step_s / 3600))
    noise -= np.linspace(0, noise[-1], h)
    shape = 1 - 0.35 * np.exp(-(((t_h % 24) - 13) ** 2) / 18) + 0.08 * np.cos(2 * np.pi * t_h / 168) + noise
    return np.round(mean * np.clip(shape, 0.15, None), 2)


def cluster(
    seed: int,
    *,
    jobs: int,
    nodes: int,
    h: int,
    step_s: float = 3600.0,
    load: float = 0.7,
    pools: int = 1,
    sites: int = 1,
    cap: float | None = 0.9,
    stay_s: float = 0.0,
    switch_s: float = 300.0,
    running: float = 0.0,
    mean_h: float = 10.0,
) -> Problem:
    """Return a problem in which jobs would keep a share of the node hours busy at full speed.

    Args:
        seed: Seed; the same gives the same problem.
        jobs: Number of jobs.
        nodes: Nodes of all pools.
        h: Steps.
        step_s: Length of each (s).
        load: Node hours that jobs need at full width in BF16, over those there are.
        pools: Pools, on the sites in turn.
        sites: Sites.
        cap: Facility power over that of all nodes at full power; None: no cap.
        stay_s: Shortest stay in a form (s).
        switch_s: Work lost at a start (s).
        running: Share of the jobs that run already.
        mean_h: Median length of a job at its largest width (h).
    """
    rng = np.random.default_rng(seed)
    node_w = 5000.0
    each = np.full(pools, nodes // pools) + (np.arange(pools) < nodes % pools)
    site_names = [f"site{i}" for i in range(sites)]
    of_site = [float(each[i::sites].sum()) for i in range(sites)]
    made_sites = tuple(
        Site(
            name=name,
            g_per_kwh=grid(rng, h, step_s, 300.0 + 60.0 * i),
            power_cap_w=np.full(h, math.inf if cap is None else round(cap * of_site[i] * node_w * 1.2)),
            pue=np.full(h, 1.2),
        )
        for i, name in enumerate(site_names)
    )
    made_pools = tuple(
        Pool(name=f"pool{i}", site=site_names[i % sites], nodes=np.full(h, float(each[i])), device="h100")
        for i in range(pools)
    )
    horizon_s = h * step_s
    lengths_h = rng.lognormal(math.log(mean_h), 0.8, jobs)
    widths = np.minimum(2 ** rng.integers(0, 4, jobs), max(1, int(each.min())))
    want = load * nodes * horizon_s / 3600
    lengths_h *= want / (lengths_h * widths).sum()
    lengths_h = np.clip(lengths_h, step_s / 3600, 0.6 * horizon_s / 3600)
    made, busy = [], [0] * pools
    for j in range(jobs):
        length_s, width = float(lengths_h[j]) * 3600, int(widths[j])
        slack = rng.uniform(1.15, 4.0)
        span_s = min(horizon_s, max(length_s * slack, 2 * step_s))
        start_s = float(np.round(rng.uniform(0, horizon_s - span_s) if span_s < horizon_s else 0.0))
        runs = bool(rng.random() < running)
        start_s = 0.0 if runs else start_s
        home = int(rng.integers(pools))
        rows = []
        for p in sorted({home, int(rng.integers(pools))}):
            for w in sorted({width, max(1, width // 2)}):
                scale = (w / width) ** 0.9 * (1.0 if p == home else 0.92)
                for name, _, speed, power in GEARS:
                    rows.append(
                        Row(
                            name=f"{name} on {w} of pool{p}",
                            pool=f"pool{p}",
                            nodes=w,
                            tokens_per_s=round(1000.0 * width * scale * speed, 3),
                            power_w=round(node_w * w * power, 1),
                        )
                    )
        current = int(rng.integers(len(rows)))
        pool, w = int(rows[current].pool[4:]), rows[current].nodes
        runs = runs and busy[pool] + w <= 0.6 * each[pool]
        busy[pool] += w * runs
        made.append(
            ClusterJob(
                name=f"job{j}",
                release_s=start_s,
                deadline_s=start_s + span_s,
                tokens=round(1000.0 * width * length_s, 1),
                rows=tuple(rows),
                priority=float(rng.integers(1, 4)),
                switch_s=switch_s,
                switch_g=2.0 * width,
                move_s=switch_s / 2,
                move_g=5.0,
                min_run_s=stay_s,
                current=current if runs else None,
                held_s=float(rng.integers(0, 3)) * 1800.0 if runs else math.inf,
            )
        )
    return Problem(
        edges_s=np.arange(h + 1, dtype=np.float64) * step_s, sites=made_sites, pools=made_pools, jobs=tuple(made)
    )
