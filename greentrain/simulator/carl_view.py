"""The environment as CARL sees it: three actions, ten numbers, and a deadline that is only soft."""

from collections.abc import Sequence
from typing import Any, Final

import gymnasium
import numpy as np
from gymnasium import spaces

from greentrain.policy.carl import FEATURES, LIMIT, features, rows_of
from greentrain.policy.menu import Menu
from greentrain.simulator.env import CarbonTrainEnv, Observed
from greentrain.simulator.grid_trace import GridTrace

SLACK: Final = (1.0, 2.2)
"""Deadline / time of the usual training of the jobs that it is trained on."""
LATE: Final = 2.0
"""A token that is late costs as much as this many tokens of the usual training: the soft deadline."""


class CarlView(gymnasium.Wrapper[Observed, np.int64, Observed, np.int64]):
    """Jobs that are passed through, throttled or deferred, without a shield.

    Args:
        traces: Grids; each episode draws one.
        menu: What a job can do.
        more: Further arguments of ``CarbonTrainEnv``.
    """

    def __init__(self, traces: Sequence[GridTrace], menu: Menu, **more: Any) -> None:
        given: dict[str, Any] = {"slack": SLACK, "late": LATE, "shield": False} | more
        self._job = CarbonTrainEnv(traces, menu, rows=rows_of(menu).tolist(), **given)
        super().__init__(self._job)
        self._menu = menu
        self.observation_space = spaces.Box(-LIMIT, LIMIT, (FEATURES,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observed, dict[str, Any]]:
        """Start a job."""
        _, info = self._job.reset(seed=seed, options=options)
        return self._look(), info

    def step(self, action: np.int64) -> tuple[Observed, float, bool, bool, dict[str, Any]]:
        """Pass through (0), throttle (1) or defer (2) for one epoch."""
        _, reward, terminated, truncated, info = self._job.step(action)
        return self._look(), reward, terminated, truncated, info

    def _look(self) -> Observed:
        seen: Observed = features(self._job.seen, self._menu)[0].astype(np.float32)
        return seen
