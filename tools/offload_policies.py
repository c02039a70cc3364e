"""The placement policies by name, for what compares them, and how far one is from the best."""

from pathlib import Path
from typing import Final

from greentrain.policy.carl import Network
from greentrain.policy.offload.ppo import PpoPolicy
from greentrain.policy.offload.rule import EdiRule, OffloadOracle
from greentrain.policy.offload.stages import Hardware, Plan, Stage, Where, all_gpu, check, label, plans
from greentrain.policy.offload.timeline import Timeline
from greentrain.policy.offload.view import OffloadPolicy, OffloadView, compared
from greentrain.utils.validation import choice
from tools.networks import NormedNetwork


def regret(view: OffloadView, plan: Plan) -> float | None:
    """Return how much more a plan costs than the oracle's, as a share; None where joules are not known.

    A plan whose step is too long costs nothing less for it: the caller looks at ``objective.allows`` beside it.
    """
    cost_j = view.objective.cost_j(view.step(plan))
    best_j = view.objective.cost_j(view.step(OffloadOracle().choose(view)))
    return None if cost_j is None or not best_j else cost_j / best_j - 1


PUBLISHED: Final = (0.40, 0.40, 0.20)
"""Weights of throughput, energy and bubbles in EcoRL-Sched's reward (Eq. 7)."""


def published_reward(view: OffloadView, plan: Plan, weights: tuple[float, float, float] = PUBLISHED) -> float:
    """Return EcoRL-Sched's reward: 0.40 throughput - 0.40 energy - 0.20 bubbles, less what all on the GPU has of it.

    The three have no common unit in the text. Here throughput and energy are relative to all on the GPU, and bubbles
    are the share of the step in which the GPU waits.
    """
    check(plan, view.table)
    return published_of(view.step(plan), view.step(all_gpu(view.table)), weights)


def published_of(step: Timeline, on_gpu: Timeline, weights: tuple[float, float, float] = PUBLISHED) -> float:
    """Return :func:`published_reward` of two steps that are known."""
    energy_j, gpu_j = step.energy_j, on_gpu.energy_j
    assert energy_j is not None and gpu_j
    fast, lean, idle = weights
    return (
        fast * (on_gpu.step_s / step.step_s - 1) - lean * (energy_j / gpu_j - 1) - idle * (step.bubble - on_gpu.bubble)
    )


class PublishedReward:
    """The plan that EcoRL-Sched's reward rates highest: what a perfect learner of it would do, and no learner beats."""

    name = "reward-published"

    def choose(self, view: OffloadView) -> Plan:
        """Return the plan; all on the GPU where joules are not known."""
        gpu = all_gpu(view.table)
        if view.step(gpu).energy_j is None:
            return gpu
        known = [plan for plan in plans(view.table, view.wheres) if view.step(plan).energy_j is not None]
        return max((gpu, *known), key=lambda plan: published_reward(view, plan))

    def reason(self, view: OffloadView, plan: Plan) -> str:
        """Return the reward."""
        return f"{label(plan)}: a reward of {published_reward(view, plan):.4f} above all on the GPU"


class EdiPublished:
    """The published threshold (Proposition 1): each stage for itself, by active joules and a forward of the batch.

    It neither sees idle power nor that stages share a device.
    """

    name = "edi-published"

    def choose(self, view: OffloadView) -> Plan:
        """Return the plan that looks at each stage alone."""
        window_s = latency_budget_s(view)
        moved = {
            stage: view.away
            for stage in view.table.movable
            if view.known(stage)
            and _active_j(view, stage, Hardware.OFFLOAD) < _active_j(view, stage, Hardware.GPU)
            and view.table.cost(stage, view.away).duration_s <= window_s
        }
        return {**all_gpu(view.table), **moved}

    def reason(self, view: OffloadView, plan: Plan) -> str:
        """Return the figures."""
        return f"{label(plan)} by active joules alone: {compared(view, plan)}"


def latency_budget_s(view: OffloadView) -> float:
    """Return the published latency budget of a pass: a forward of the batch (s)."""
    forward_share = (1 - view.shape.old_share) * view.shape.forward_share
    return view.table.cost(Stage.TRAIN).duration_s * forward_share


def _active_j(view: OffloadView, stage: Stage, hardware: Hardware) -> float:
    """Return the active joules a token of a stage that is known."""
    active = view.edi[stage, hardware].active_j_per_token
    assert active is not None
    return active


class StaticPlan:
    """Moves everything that can be moved, or nothing.

    Args:
        where: Place where movable stages run.
    """

    def __init__(self, where: Where = Where.GPU) -> None:
        self._where = where

    @property
    def name(self) -> str:
        """``all-gpu``, ``all-sequential`` or ``all-concurrent``."""
        return f"all-{self._where}"

    def choose(self, view: OffloadView) -> Plan:
        """Return the plan."""
        where = self._where if self._where in view.wheres else Where.GPU
        return {**all_gpu(view.table), **dict.fromkeys(view.table.movable, where)}

    def reason(self, view: OffloadView, plan: Plan) -> str:
        """Return what it costs."""
        return f"always {self._where}: {compared(view, plan)}"


PPO_PUBLISHED: Final = Path(__file__).with_name("ppo_published.npz")
"""EcoRL-Sched's network, trained on its reward by ``tools.train_offload``."""
QUEUE_MAX: Final = 64
"""Parts that an offload engine has under way by default; what Algorithm 1 allows is not known to us."""


class PpoPublished(PpoPolicy):
    """The learned placement with the published network and reward: ReLU behind LayerNorm, 0.4/0.4/0.2."""

    name = "ppo-published"

    def __init__(self, network: Network | None = None) -> None:
        super().__init__(NormedNetwork.load(PPO_PUBLISHED) if network is None else network)


class Algorithm1(PpoPublished):
    """EcoRL-Sched's Algorithm 1: what the network says, stage by stage, behind a guard on queue and one on length.

    A stage leaves the GPU while the parts of those before it leave room in the queue, and while it takes no longer
    than its latency budget: a forward of the batch, as for ``edi-published``. Else it falls through to the GPU.

    Args:
        network: Network of the policy; None: the one that comes with the tools.
        queue_max: Parts that may wait.
    """

    name = "algorithm-1"

    def __init__(self, network: Network | None = None, queue_max: int = QUEUE_MAX) -> None:
        super().__init__(network)
        self._queue_max = queue_max

    def choose(self, view: OffloadView) -> Plan:
        """Return what passes both guards."""
        plan, queued = dict(all_gpu(view.table)), 0
        for stage, where in super().choose(view).items():
            if where is Where.GPU:
                continue
            if queued < self._queue_max and view.table.cost(stage, where).duration_s <= latency_budget_s(view):
                plan[stage] = where
                queued += view.shape.chunks if where is Where.CONCURRENT else 0
        return plan


NAMES: Final = (
    "edi-rule",
    "oracle",
    "ppo",
    "ppo-published",
    "algorithm-1",
    "edi-published",
    "reward-published",
    "all-gpu",
    "all-sequential",
    "all-concurrent",
)


def open_offload_policy(name: str) -> OffloadPolicy:
    """Return the policy of a name.

    Raises:
        ConfigError: There is none of it.
    """
    choice("offload policy", name, NAMES)
    match name:
        case "edi-rule":
            return EdiRule()
        case "oracle":
            return OffloadOracle()
        case "ppo":
            return PpoPolicy()
        case "ppo-published":
            return PpoPublished()
        case "algorithm-1":
            return Algorithm1()
        case "edi-published":
            return EdiPublished()
        case "reward-published":
            return PublishedReward()
    return StaticPlan(Where(name.removeprefix("all-")))
