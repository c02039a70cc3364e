"""From a name to the policy."""

from typing import Final

from greentrain.policy.offload.oracle import OffloadOracle
from greentrain.policy.offload.ppo import PpoPolicy
from greentrain.policy.offload.rule import EdiPublished, EdiRule
from greentrain.policy.offload.stages import Where
from greentrain.policy.offload.static import StaticPlan
from greentrain.policy.offload.view import OffloadPolicy
from greentrain.utils.validation import choice

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
