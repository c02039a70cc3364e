"""Menus and jobs that several tests of policies share."""

import numpy as np
from numpy.typing import NDArray

from greentrain.policy.action_table import Action, ActionCost, ActionTable, MeanWithCI
from greentrain.policy.menu import Menu
from greentrain.types import Gear

Array = NDArray[np.float64]

CAPS = ((1.0, 1.0), (0.8, 0.95), (0.6, 0.82))
"""Power cap and the share of speed that it leaves, as in the bars' action table."""


def action_table(nodes: int = 8, fp8: float = 1.35) -> ActionTable:
    """Return the bars' action table: 1 to ``nodes`` nodes of eight GPUs, BF16 and FP8, three caps."""
    costs = [
        ActionCost(
            action=Action(gear=gear, cap=cap, ranks=n),
            steps_per_s=MeanWithCI(mean=1.0),
            tokens_per_s=MeanWithCI(mean=1e5 * n / (1 + 0.02 * (n - 1)) * left * (fp8 if gear is Gear.FP8 else 1.0)),
            power_w=MeanWithCI(mean=n * (2200.0 + 5600.0 * cap)),
            provenance="assumed",
        )
        for n in range(1, nodes + 1)
        for gear in (Gear.BF16, Gear.FP8)
        for cap, left in CAPS
    ]
    return ActionTable(costs=costs, device="8 x H100", world_size=nodes, created_unix_s=0.0)


def small_menu(rng: np.random.Generator, actions: int, *, idle_w: float | None = None) -> Menu:
    """Return a menu of random speeds and powers, about half of it in FP8."""
    costs = [
        ActionCost(
            action=Action(gear=Gear.FP8 if rng.random() < 0.5 else Gear.BF16, cap=float(rng.uniform(0.3, 1)), ranks=n),
            steps_per_s=MeanWithCI(mean=1.0),
            tokens_per_s=MeanWithCI(mean=float(rng.uniform(1.0, 100.0)) * n),
            power_w=MeanWithCI(mean=float(rng.uniform(50.0, 500.0)) * n),
            provenance="assumed",
        )
        for n in range(1, actions + 1)
    ]
    table = ActionTable(costs=costs, device="a device", world_size=actions, created_unix_s=0.0)
    return Menu.of(table, released=idle_w is None, idle_w=idle_w)


def grid(rng: np.random.Generator, *shape: int) -> Array:
    """Return intensities (g/kWh) that wander, with a day in them."""
    day = 80.0 * np.sin(np.arange(shape[-1]) * 2 * np.pi / 24)
    walk = rng.standard_normal(shape).cumsum(axis=-1) * 8.0
    return np.asarray(np.maximum(300.0 + day + walk, 5.0))
