"""From step to step: a gear that is wanted, and what is allowed instead."""

from collections.abc import Mapping, Sequence

from greentrain.types import Decision, Gear, Observation, Policy

PRECISE_FIRST = (Gear.BF16, Gear.FP32, Gear.FP16)
"""What stands in for FP8 where it is not allowed: the gear around its products first."""


class GearLoop:
    """Asks a policy and keeps what it wants within what is allowed.

    Args:
        policy: The policy.
        gears: Gears of the run.
        fp8_max_share: Largest share of steps in FP8.
    """

    def __init__(self, policy: Policy, gears: Sequence[Gear], fp8_max_share: float = 1.0) -> None:
        self._policy = policy
        self._gears = tuple(gears)
        self._fp8_max_share = fp8_max_share

    def decide(self, seen: Observation, done: Mapping[Gear, int], vetoes: Mapping[Gear, str]) -> Decision:
        """Return the decision for the coming step.

        Args:
            seen: What the policy may know.
            done: Steps done by gear.
            vetoes: Gears that must not be used now, and why.
        """
        wanted = self._policy.decide(seen)
        spent = self._fp8_max_share < 1.0 and done.get(Gear.FP8, 0) + 1 > self._fp8_max_share * (sum(done.values()) + 1)
        why = vetoes.get(wanted.gear, "")
        if not why and wanted.gear is Gear.FP8 and spent:
            why = f"FP8 has had its share of {self._fp8_max_share:.0%} of the steps"
        if not why:
            return wanted
        allowed = [gear for gear in PRECISE_FIRST if gear in self._gears and gear not in vetoes]
        if not allowed and not spent and Gear.FP8 in self._gears and Gear.FP8 not in vetoes:
            allowed = [Gear.FP8]
        return Decision(gear=allowed[0], reason=why) if allowed else wanted
