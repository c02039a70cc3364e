"""A day of the grid, replayed in minutes."""

import statistics
import time
from dataclasses import replace
from typing import Final

import torch

from recipes.common.model import GPT, build_optimizer
from recipes.common.settings import Settings

START: Final = "2022-06-15T06:00Z"
"""23:00 in California: the night's plants run, and the sun is nine hours away."""
DAY_H: Final = 24.0
SHARE: Final = 0.5
"""Of the day that the training needs: the rest is what a plan has to choose from."""
MARGIN_S: Final = 5400.0
"""Of the day before the deadline (11 s of the clock): a machine may be slower later than when its steps were timed."""


def with_steps_that_fit(settings: Settings) -> Settings:
    """Return the settings with as many steps as this machine does in half of the day; --steps outranks it."""
    if settings.steps:
        return settings
    model = GPT(settings.size)
    optimizer, _ = build_optimizer(model, 1, settings.lr)
    batch = {
        key: torch.stack([settings.train[i][key] for i in range(settings.batch)]) for key in ("input_ids", "labels")
    }
    times_s = []
    for _ in range(5):
        start_s = time.perf_counter()
        model(**batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        times_s.append(time.perf_counter() - start_s)
    return replace(settings, steps=max(12, int(SHARE * settings.minutes * 60 / statistics.median(times_s[1:]))))


def day_config(settings: Settings) -> dict[str, dict[str, object]]:
    """Return the recipe's configuration, with a plan for one replayed day."""
    sections = settings.green
    speed = DAY_H * 60 / settings.minutes
    tokens = settings.steps * settings.batch * settings.size.context
    return sections | {
        "carbon": sections["carbon"] | {"replay_start": START, "speed": speed},
        "precision": {"gears": ["fp32", "bf16"]},
        "policy": {"name": "mpc", "tokens": tokens, "deadline_h": DAY_H, "decide_s": 1800.0, "margin_s": MARGIN_S},
        "actuators": {"checkpoint": False},
    }
