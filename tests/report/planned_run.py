"""Builds run folders whose training followed a plan, by hand: one row of the menu an hour of the grid."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from greentrain.types import DeviceEnergy, Provenance
from tests.report.run_folders import CPU, GPU, T0_S, Folder, device, entry

OFF, BF16, FP8 = 0, 1, 2
NAMES = ("off", "bf16", "fp8")
TOKENS_PER_S = (0.0, 1000.0, 1500.0)
POWER_W = (0.0, 400.0, 450.0)
START_S = 1_655_035_200.0
"""2022-06-12T12:00:00Z, the grid's time when the run starts."""
GRID = [round(300.0 + 150.0 * math.cos((hour - 2) / 24 * 2 * math.pi), 1) for hour in range(48)]
"""g/kWh by hour from the start: dear at 14 h, clean at 2 h."""
DAY = (BF16, OFF, OFF, OFF, OFF, OFF, BF16, BF16, FP8, FP8, FP8, FP8, FP8, FP8, FP8, FP8, FP8, FP8, BF16, BF16, BF16)
"""A plan of 24 hours that is done after 21."""


def facts(**more: Any) -> dict[str, Any]:
    """Return what rank 0 writes into run.json: 24 hours of a grid, replayed in three minutes."""
    speed = float(more.get("grid", {}).get("speed", 480.0))
    rows = [
        {"name": name, "tokens_per_s": tokens / speed, "power_w": watt / speed, "width": int(name != "off")}
        for name, tokens, watt in zip(NAMES, TOKENS_PER_S, POWER_W, strict=True)
    ]
    return {
        "policy": "mpc",
        "tokens": 157_000.0,
        "start_s": START_S,
        "deadline_s": START_S + 24 * 3600.0,
        "grid": {"unix_s": T0_S, "grid_s": START_S, "speed": speed},
        "held": False,
        "provenance": "assumed",
        "rows": rows,
        "static": BF16,
        "tokens_done": 0.0,
        "speed_of_table": 1.0,
        "hourly_g_per_kwh": GRID[:24],
        **more,
    }


def planned(
    root: Path,
    chosen: Sequence[int] = DAY,
    *,
    hours: Sequence[float | None] = GRID,
    end: bool = True,
    shielded: Sequence[int] = (),
    energy: float = 1.0,
    modelled: float = 0.0,
    ranks: int = 1,
    pue: float = 1.2,
    reason: str | None = "finished",
    plan: Mapping[str, Any] | None = None,
    **run: Any,
) -> Path:
    """Return the folder of a run that was in a row of the menu in each hour of the grid.

    Args:
        root: Where.
        chosen: Rows by hour.
        hours: What the books know of the grid, by hour.
        end: Whether a last decision says that all tokens are done.
        shielded: Hours whose decision the deadline overruled.
        energy: What the run drew against its table.
        modelled: Share of it that comes from a model.
        ranks: Among which tokens and joules are shared evenly.
        pue: Of the books.
        reason: How it ended; None: killed.
        plan: Other facts than those of ``facts``.
        run: Other keys of run.json.
    """
    told = facts(**(plan or {}))
    hour_s = 3600.0 / told["grid"]["speed"]
    done = [0.0]
    for row in chosen:
        done.append(done[-1] + TOKENS_PER_S[row] * hour_s)
    told["tokens_done"] = told["tokens_done"] if "tokens_done" in (plan or {}) else done[-1]
    events = []
    for hour, row in enumerate([*chosen, OFF] if end else chosen):
        over = hour == len(chosen)
        text = "all tokens are done" if over else f"{GRID[hour]:.0f} <g/kWh> now: {NAMES[row]}"
        action = None if row == OFF else {"gear": NAMES[row], "cap": 1.0, "ranks": None}
        events.append(
            {
                "t": T0_S + hour * hour_s, "name": "decision", "text": f"{NAMES[row]}: {text}", "row": row,
                "action": action, "done": over, "reason": text, "grid_s": START_S + hour * 3600.0,
                "next_s": START_S + (hour + 1) * 3600.0, "g_per_kwh": GRID[hour], "shielded": hour in shielded,
                "step": hour, "tokens": done[hour],
            }
        )  # fmt: skip
    folder = Folder(root, "planned", world_size=ranks, plan=told, **run)
    for rank in range(ranks):
        entries = [
            entry(
                T0_S + hour * hour_s,
                T0_S + (hour + 1) * hour_s,
                _devices(rank, row, energy * POWER_W[row] * hour_s / ranks, modelled),
                g_per_kwh=hours[hour],
                pue=pue,
                tokens=round(TOKENS_PER_S[row] * hour_s / ranks),
                steps=0 if row == OFF else 10,
            )
            for hour, row in enumerate(chosen)
        ]
        sensors = [{**GPU, "uid": f"GPU-{rank}"}, *([CPU] if modelled else [])]
        folder.rank(rank, sensors, entries, events=events if rank == 0 else (), reason=reason)
    return folder.path


def _devices(rank: int, row: int, energy_j: float, modelled: float) -> dict[str, DeviceEnergy]:
    phases = {"paused" if row == OFF else "forward": 1.0}
    devices = {f"GPU-{rank}": device(energy_j * (1 - modelled), phases=phases)}
    if modelled:
        devices["cpu"] = device(energy_j * modelled, Provenance.MODELLED, phases=phases)
    return devices
