"""The placement policies by name, for what compares them, and how far one is from the best."""

from typing import Final

from greentrain.policy.offload.ppo import PpoPolicy
from greentrain.policy.offload.rule import EdiPublished, EdiRule, OffloadOracle, StaticPlan
from greentrain.policy.offload.stages import Plan, Where
from greentrain.policy.offload.view import OffloadPolicy, OffloadView
from greentrain.utils.validation import choice


def regret(view: OffloadView, plan: Plan) -> float | None:
    """Return how much more a plan costs than the oracle's, as a share; None where joules are not known.

    A plan whose step is too long costs nothing less for it: the caller looks at ``objective.allows`` beside it.
    """
    cost_j = view.objective.cost_j(view.step(plan))
    best_j = view.objective.cost_j(view.step(OffloadOracle().choose(view)))
    return None if cost_j is None or not best_j else cost_j / best_j - 1


NAMES: Final = ("edi-rule", "oracle", "ppo", "edi-published", "all-gpu", "all-sequential", "all-concurrent")


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
    return StaticPlan(Where(name.removeprefix("all-")))
