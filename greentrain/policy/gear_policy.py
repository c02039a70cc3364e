"""From step to step: a gear that is wanted, and what is allowed instead.

Policies that do not look: one gear for the whole run, or a list of steps and gears.
"""

import bisect
from collections.abc import Mapping, Sequence

from greentrain.config.schema import PolicyConfig, PrecisionConfig
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


class StaticPolicy:
    """One gear from the first step to the last.

    Args:
        gear: The gear.
        reason: Why.
    """

    def __init__(self, gear: Gear, reason: str = "static") -> None:
        self._decision = Decision(gear=gear, reason=reason)

    def decide(self, seen: Observation) -> Decision:
        """Return the gear."""
        return self._decision


class ScriptedPolicy:
    """Gears by a schedule.

    Args:
        schedule: Pairs of an optimizer step, counted from 0 and increasing, and the gear from there on.
    """

    def __init__(self, schedule: Sequence[tuple[int, Gear]]) -> None:
        self._steps = [step for step, _ in schedule]
        self._decisions = [Decision(gear=gear, reason="schedule") for _, gear in schedule]

    def decide(self, seen: Observation) -> Decision:
        """Return the gear of the last entry at or before the coming step."""
        return self._decisions[max(0, bisect.bisect_right(self._steps, seen.step) - 1)]


def open_policy(policy: PolicyConfig, precision: PrecisionConfig) -> Policy:
    """Return the policy that a configuration names."""
    if policy.name == "scripted":
        return ScriptedPolicy([(step, Gear(gear)) for step, gear in policy.schedule])
    return StaticPolicy(Gear(policy.gear or precision.gears[0]))
