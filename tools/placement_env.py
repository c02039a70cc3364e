"""Placements as a gymnasium environment: a run of one task, a decision at a time.

Each episode draws a task of the mix, a GPU and a device. Sequences grow and shrink during the run, and the policy sees
costs as a running mean of noisy steps would show them, not as they are. Rewarded is what a plan truly saves against
everything on the GPU, in tenths of its cost; a step beyond the bound costs as much again as it is late.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from greentrain.policy.offload.ppo import CHOICES, FEATURES, LIMIT, features, plan_of
from greentrain.policy.offload.stages import MOVABLE, CostTable, Plan, Stage, StageCost, all_gpu, check
from greentrain.policy.offload.timeline import Timeline
from greentrain.policy.offload.view import Objective, OffloadView
from greentrain.utils.imports import try_import
from tools.placement_tasks import Task, draw_task

with try_import("rl") as _imports:
    import gymnasium
    from gymnasium import spaces

Seen = NDArray[np.float32]
Action = NDArray[np.int64]
Rewarded = Callable[[OffloadView, Plan], float]

DECISIONS: Final = 8
"""Of an episode."""
DRIFT: Final = 0.10
"""Standard deviation of how much longer or shorter sequences become between two decisions, as a share."""
NOISE: Final = 0.02
"""Standard deviation of each cost as it is seen, as a share."""
SCALE: Final = 10.0
"""Reward of saving everything."""
PASSES: Final = 1.2
"""Exponent with which passes and training grow with the sequences, generation being 1: attention is quadratic."""
SWITCH: Final = 0.01
"""Reward lost for each stage that is moved."""
WORST: Final = -3.0
"""Reward is not below this."""


class PlacementEnv(gymnasium.Env[Seen, Action]):
    """A run of one task.

    Args:
        task: Always this one; None: one of the mix each time.
        decisions: How many an episode has.
        rewarded: What a plan is worth; None: ``gain``, the joules saved. ``published_reward`` is EcoRL-Sched's.
    """

    def __init__(self, task: Task | None = None, decisions: int = DECISIONS, rewarded: Rewarded | None = None) -> None:
        self.observation_space = spaces.Box(-LIMIT, LIMIT, (FEATURES,), np.float32)
        self.action_space = spaces.MultiDiscrete([len(CHOICES)] * len(MOVABLE))
        self._task = task
        self._decisions = decisions
        self._rewarded: Rewarded = gain if rewarded is None else rewarded
        self._left = 0
        self._true: OffloadView | None = None
        self._seen: OffloadView | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Seen, dict[str, Any]]:
        """Begin a run with everything on the GPU."""
        super().reset(seed=seed)
        task = self._task or draw_task(self.np_random)
        table, shape = task.draw(self.np_random)
        self._true = OffloadView.of(table, shape, objective=Objective())
        self._left = self._decisions
        return self._look(all_gpu(table)), {"task": task.name}

    def step(self, action: Action) -> tuple[Seen, float, bool, bool, dict[str, Any]]:
        """Place the stages until the next decision."""
        true, seen = self._views()
        plan = plan_of(action.astype(np.float64), seen)
        moved = sum(plan[stage] is not true.kept[stage] for stage in plan)
        reward = max(WORST, self._rewarded(true, plan) * SCALE - SWITCH * moved)
        self._left -= 1
        factor = float(np.exp(self.np_random.normal(0.0, DRIFT)))
        self._true = replace(true, table=stretched(true.table, factor))
        return self._look(plan), reward, self._left <= 0, False, {"plan": plan}

    @property
    def seen(self) -> OffloadView:
        """What a policy sees now."""
        return self._views()[1]

    @property
    def true(self) -> OffloadView:
        """What is so."""
        return self._views()[0]

    def _look(self, plan: Plan) -> Seen:
        assert self._true is not None
        self._true = replace(self._true, current=plan)
        self._seen = replace(self._true, table=noisy(self._true.table, self.np_random))
        found: Seen = features(self._seen).astype(np.float32)
        return found

    def _views(self) -> tuple[OffloadView, OffloadView]:
        if self._true is None or self._seen is None:
            raise RuntimeError("call reset() before step()")
        return self._true, self._seen


def gain(view: OffloadView, plan: Plan) -> float:
    """Return what a plan saves against everything on the GPU, as a share, less what its step is too long."""
    check(plan, view.table)
    return gain_of(view, view.step(plan), view.step(all_gpu(view.table)))


def gain_of(view: OffloadView, step: Timeline, on_gpu: Timeline) -> float:
    """Return :func:`gain` of two steps that are known."""
    cost_j, gpu_j = view.objective.cost_j(step), view.objective.cost_j(on_gpu)
    assert cost_j is not None and gpu_j
    late = max(0.0, step.step_s / (on_gpu.step_s * view.objective.max_slowdown) - 1)
    return 1 - cost_j / gpu_j - late


def stretched(table: CostTable, factor: float) -> CostTable:
    """Return the step with sequences so many times as long."""
    grown = {
        key: _scaled(cost, factor if key[0] is Stage.GENERATE else factor**PASSES) for key, cost in table.costs.items()
    }
    return replace(table, costs=grown, tokens=table.tokens * factor)


def noisy(table: CostTable, rng: np.random.Generator) -> CostTable:
    """Return the costs as they are seen."""
    return replace(
        table, costs={key: _scaled(cost, float(np.exp(rng.normal(0, NOISE)))) for key, cost in table.costs.items()}
    )


def _scaled(cost: StageCost, factor: float) -> StageCost:
    joules = None if cost.energy_j is None else cost.energy_j * factor
    return replace(cost, duration_s=cost.duration_s * factor, energy_j=joules)
