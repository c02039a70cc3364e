"""A day of the grid, replayed in minutes."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from greentrain.ledger import read_run
from greentrain.report.plan_text import plan_line
from recipes.common.settings import Settings

START: Final = "2022-06-15T06:00Z"
"""23:00 in California: the night's plants run, and the sun is nine hours away."""
DAY_H: Final = 24.0
MINUTES: Final = 3.0
"""In which the day passes."""


def day_config(settings: Settings) -> dict[str, dict[str, object]]:
    """Return the recipe's configuration, with a plan for one replayed day."""
    sections = settings.green
    speed = DAY_H * 60 / MINUTES
    tokens = settings.steps * settings.batch * settings.size.context
    return sections | {
        "carbon": sections["carbon"] | {"replay_start": START, "speed": speed},
        "precision": {"gears": ["fp32", "bf16"]},
        "policy": {"name": "mpc", "tokens": tokens, "deadline_h": DAY_H, "decide_s": 1800.0},
        "actuators": {"checkpoint": False},
    }


def decision_lines(folder: Path) -> list[str]:
    """Return the plan of a run: a line where it changed, with the time of the grid, and how good it was."""
    lines, last = [], ""
    for rank in read_run(folder).ranks[:1]:
        for event in rank.events:
            if event["name"] != "decision":
                continue
            name, _, why = event["text"].partition(": ")
            if name != last:
                moment = datetime.fromtimestamp(event["grid_s"], UTC)
                lines.append(f"{moment:%H:%M} UTC  {name:5} {why}")
            last = name
    line = plan_line(json.loads((folder / "summary.json").read_text(encoding="utf-8")))
    return lines if line is None else [*lines, line]
