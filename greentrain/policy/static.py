"""Policies that do not look: one gear for the whole run, or a list of steps and gears."""

import bisect
from collections.abc import Sequence

from greentrain.config import PolicyConfig, PrecisionConfig
from greentrain.types import Decision, Gear, Observation, Policy


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
