"""The placement policies by name, for what compares them, and how far one is from the best."""

from typing import Final

from greentrain.policy.offload.ppo import PpoPolicy
from greentrain.policy.offload.rule import EdiPublished, EdiRule, OffloadOracle, StaticPlan
from greentrain.policy.offload.stages import Plan, Where, all_gpu, check, label, plans
from greentrain.policy.offload.view import OffloadPolicy, OffloadView
from greentrain.utils.validation import choice


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
    step, on_gpu = view.step(plan), view.step(all_gpu(view.table))
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


NAMES: Final = (
    "edi-rule",
    "oracle",
    "ppo",
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
        case "edi-published":
            return EdiPublished()
        case "reward-published":
            return PublishedReward()
    return StaticPlan(Where(name.removeprefix("all-")))
