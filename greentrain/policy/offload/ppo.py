"""``ppo``: a perceptron of 256, 128 and 64 that was trained in the pipeline environment with Stable-Baselines3.

It sees the cost table as ratios, and gives three scores for each movable stage. Here it is four matrix products in
NumPy; ``tools.train_offload`` trains it. What it says of stages that cannot move is ignored.
"""

import math
from pathlib import Path
from typing import Final

import numpy as np

from greentrain.policy.carl import Network
from greentrain.policy.offload.stages import MOVABLE, Hardware, Plan, Stage, Where, all_gpu, label
from greentrain.policy.offload.timeline import Array, Late
from greentrain.policy.offload.view import OffloadView, compared

SHIPPED: Final = Path(__file__).with_name("ppo.npz")
HIDDEN: Final = (256, 128, 64)
"""Widths (published)."""
CHOICES: Final = (Where.GPU, Where.SEQUENTIAL, Where.CONCURRENT)
"""What the three scores of a stage stand for."""
LIMIT: Final = 5.0
"""Features are clipped to -LIMIT..LIMIT."""
OF_STAGE: Final = 8
"""Inputs for each movable stage; the last two say that it is on the device, in turn or beside."""
_OF_STEP: Final = 18
FEATURES: Final = OF_STAGE * len(MOVABLE) + _OF_STEP


def features(view: OffloadView) -> Array:
    """Return (FEATURES,): shares of the step, ratios of device to GPU, how the step is cut. Unknown joules are 0."""
    table, shape = view.table, view.shape
    on_gpu = [table.cost(stage) for stage in table.stages]
    step_s = sum(cost.duration_s for cost in on_gpu) or 1.0
    step_j = sum(cost.energy_j or 0.0 for cost in on_gpu) or 1.0
    mean_w = step_j / step_s
    found: list[float] = []
    for stage in MOVABLE:
        found += _of_stage(view, stage, step_s, step_j)
    late = [float(shape.late is each) for each in Late]
    found += [
        table.cost(Stage.GENERATE).duration_s / step_s,
        table.cost(Stage.TRAIN).duration_s / step_s,
        (table.gpu_idle_w or 0.0) / mean_w,
        (table.card_idle_w or 0.0) * shape.cards / mean_w,
        float(table.card_stays),
        float(shape.cards - 1),
        math.log2(shape.micro_batches) / 4,
        math.log2(shape.chunks) / 4,
        *late,
        shape.forward_share,
        shape.old_share,
        float(shape.off_policy),
        float(Stage.REFERENCE in shape.advantages_need),
        view.objective.time_w / mean_w,
        10 * (view.objective.max_slowdown - 1),
        float(Where.CONCURRENT in view.wheres),
    ]
    clipped: Array = np.clip(np.array(found), -LIMIT, LIMIT)
    return clipped


def plan_of(action: Array, view: OffloadView) -> Plan:
    """Return the plan of an index into CHOICES for each movable stage; what is not possible becomes GPU."""
    plan = dict(all_gpu(view.table))
    for stage, index in zip(MOVABLE, action, strict=True):
        where = CHOICES[int(index)]
        if stage in view.table.movable and where in view.wheres:
            plan[stage] = where
    return plan


class PpoPolicy:
    """Takes the most likely action, or leaves all on the GPU where the joules of either are not known.

    Args:
        network: Network of the policy; None: the shipped one.
    """

    name = "ppo"

    def __init__(self, network: Network | None = None) -> None:
        self._network = Network.load(SHIPPED) if network is None else network

    def choose(self, view: OffloadView) -> Plan:
        """Return the plan of the highest scores."""
        scores = self._network(features(view)[None]).reshape(len(MOVABLE), len(CHOICES))
        plan, gpu = plan_of(scores.argmax(axis=1), view), all_gpu(view.table)
        known = all(view.objective.cost_j(view.step(one)) is not None for one in (plan, gpu))
        return plan if known else gpu

    def reason(self, view: OffloadView, plan: Plan) -> str:
        """Return what the plan costs; why the network prefers it, nobody knows."""
        return f"{label(plan)} by the trained network: {compared(view, plan)}"


def _of_stage(view: OffloadView, stage: Stage, step_s: float, step_j: float) -> list[float]:
    table = view.table
    if stage not in table.movable:
        cost = table.costs.get((stage, Hardware.GPU))
        return [0.0, 0.0 if cost is None else cost.duration_s / step_s, *[0.0] * (OF_STAGE - 2)]
    here, there = table.cost(stage, Where.GPU), table.cost(stage, Where.CONCURRENT)
    now = view.kept[stage]
    return [
        1.0,
        here.duration_s / step_s,
        there.duration_s / step_s,
        math.log2(max(there.duration_s, 1e-9) / max(here.duration_s, 1e-9)) / 2,
        4 * ((here.energy_j or 0.0) - (there.energy_j or 0.0)) / step_j,
        _ratio(there.energy_j, here.energy_j),
        float(now is Where.SEQUENTIAL),
        float(now is Where.CONCURRENT),
    ]


def _ratio(there_j: float | None, here_j: float | None) -> float:
    return math.log2(there_j / here_j) / 2 if there_j and here_j else 0.0
