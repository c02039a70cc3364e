"""What the tests of studies, replays and advice share."""

from pathlib import Path

import numpy as np

from greentrain.policy.action_sources import Actions
from greentrain.policy.action_table import ActionTable
from greentrain.simulator.grid_trace import Array, GridTrace
from greentrain.simulator.grids import Grid
from greentrain.types import iso
from tests.simulator.grids import HOUR, START, trace, wandering

TABLE = ActionTable.declare(
    [
        {"gear": "bf16", "tokens_per_s": 1000.0, "power_w": 400.0},
        {"gear": "fp8", "tokens_per_s": 1500.0, "power_w": 450.0},
    ],
    device="a made-up machine",
)
ACTIONS = Actions(table=TABLE, source="declared in a test")
YAML = """
device: a made-up machine
actions:
  - {gear: bf16, tokens_per_s: 1000, power_w: 400}
  - {gear: fp8, tokens_per_s: 1500, power_w: 450}
"""


def grid(hours: int = 40 * 24, name: str = "made up", seed: int = 0) -> Grid:
    return Grid(trace=trace(wandering(hours, seed), name=name), recorded=True)


def write_csv(path: Path, g_per_kwh: Array, start_s: float = START) -> Path:
    """Write a trace file of hours."""
    rows = [f"{iso(start_s + i * HOUR)},{value:.4f}" for i, value in enumerate(g_per_kwh.tolist())]
    path.write_text("\n".join(["timestamp_utc,g_per_kwh", *rows]) + "\n", encoding="utf-8")
    return path


def integral(grid: GridTrace, start_s: float, length_s: float) -> float:
    """Return g/kWh x h between two times, second by second where it is not even."""
    edges = np.arange(start_s, start_s + length_s + 1, 60.0)
    return float(grid.at(edges[:-1]) @ np.diff(edges)) / HOUR
