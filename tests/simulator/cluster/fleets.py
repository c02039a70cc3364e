"""Small fleets for tests."""

from typing import Any

import numpy as np

from greentrain.simulator.cluster.workload import Workload, menu_of_width
from greentrain.simulator.cluster.world import FleetPool, FleetSite, FleetWorld
from tests.simulator.grids import HOUR, START, daily, trace, wandering


def jobs(*rows: tuple[float, float, int, float], users: tuple[int, ...] = ()) -> Workload:
    """Return jobs of (release h, deadline h, GPUs, hours at the fastest)."""
    table = np.array(rows, dtype=np.float64).reshape(-1, 4)
    speed = []
    for width in table[:, 2].astype(int).tolist():
        menu = menu_of_width(width)
        speed.append(menu.tokens_per_s[menu.fastest])
    tokens = table[:, 3] * HOUR * np.array(speed)
    return Workload(
        release_s=table[:, 0] * HOUR,
        deadline_s=table[:, 1] * HOUR,
        tokens=tokens,
        expected_tokens=tokens,
        gpus=table[:, 2].astype(np.int64),
        user=np.array(users or [0] * len(table)),
    )


def fleet(work: Workload, *, gpus: int = 64, cap_w: float = np.inf, **more: Any) -> FleetWorld:
    """Return a cluster of one pool on a wandering grid."""
    grid = more.pop("grid", None)
    grid = trace(wandering(120 * 24)) if grid is None else grid
    return FleetWorld(
        sites=(FleetSite(grid=grid, cap_w=cap_w, price_per_kwh=0.1),),
        pools=(FleetPool(name="one", site=0, gpus=gpus),),
        work=work,
        start_unix_s=START + 30 * 24 * HOUR,
        **{"forecaster": daily, **more},
    )


def drawn(count: int = 40, *, days: float = 3.0, gpus: int = 128, load: float = 0.7, seed: int = 0) -> Workload:
    """Return jobs of the generator for a small cluster."""
    return Workload.drawn(count=count, days=days, gpus=gpus, load=load, seed=seed, widest=gpus // 8)
