"""A plan as run.json holds it: what a reader of the run folder needs to judge it."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from greentrain.grid_outlook import GridOutlook
from greentrain.planner import Planner
from greentrain.policy.menu import OFF
from greentrain.policy.outlook import Array
from greentrain.units import S_PER_HOUR


def plan_document(
    planner: Planner,
    *,
    policy: str,
    grid: GridOutlook,
    past: Sequence[float | None],
    tokens: float,
) -> dict[str, Any]:
    """Return the plan in plain JSON types.

    Args:
        planner: Who decides.
        policy: Its name in the configuration.
        grid: What is known of the grid.
        past: Intensities before the job (g/kWh), by the hour.
        tokens: That all ranks have trained.
    """
    menu = planner.menu
    hours = math.ceil((planner.job.deadline_s - planner.job.start_s) / S_PER_HOUR)
    edges_s = np.minimum(planner.job.start_s + np.arange(hours + 1) * S_PER_HOUR, planner.job.deadline_s)
    return {
        "policy": policy,
        **asdict(planner.job),
        "grid": asdict(planner.time),
        "pausable": planner.pausable,
        "held": bool(menu.power_w[OFF] > 0),
        "provenance": menu.provenance,
        "rows": [
            {"name": name, "tokens_per_s": float(speed), "power_w": float(power), "width": int(width)}
            for name, speed, power, width in zip(menu.names(), menu.tokens_per_s, menu.power_w, menu.width, strict=True)
        ],
        "static": menu.static,
        "tokens_done": tokens,
        "forecast": grid.basis,
        "with_pue": grid.with_pue,
        "speed_of_table": planner.scale,
        "hourly_g_per_kwh": or_none(grid.means(edges_s)),
        "past_hourly_g_per_kwh": past,
    }


def or_none(values: Array) -> list[float | None]:
    """Return numbers as JSON has them: None for what nobody knows."""
    return [None if math.isnan(value) else value for value in values.tolist()]
