"""A plan beside those that could have been: what ran in grams, the two savings and the regret."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from greentrain.policy.menu import menu_of
from greentrain.report.plan_record import PlanRecord

if TYPE_CHECKING:
    pass

MOST_LEFT: Final = 0.05
"""A job that stops early with a larger share of its tokens left is not held against plans that had until the deadline.
Below that it is, for the tokens it did: those plans then have it easier, so the numbers are none too good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grams:
    """Grams of what ran, or why nobody knows them."""

    grams: float | None = None
    reason: str = ""


def three_numbers(plan: PlanRecord, actual: Grams, word: str, fp8_max_share: float) -> dict[str, Any]:
    """Return the saving against static and against carbon-blind, the regret, and the grams of those plans.

    Args:
        plan: The plan.
        actual: What ran.
        word: State of the run.
        fp8_max_share: Largest share of the time in FP8.
    """
    import numpy as np

    from greentrain.policy.hindsight import BLIND, REGRET, judge

    if word == "running":
        actual = Grams(reason="the run is still going")
    hours = plan.hours(plan.horizon_s)
    verdict = judge(
        np.array([math.nan if value is None else value for value, _ in hours]),
        np.array([length_s for _, length_s in hours]),
        menu_of(plan.facts, plan.speed_of_table, plan.power_of_table),
        plan.tokens_done,
        actual.grams,
        intensity_from="the run",
        fp8_max_share=fp8_max_share,
        why_unknown=actual.reason,
    )
    unknown = dict(verdict.unknown)
    left = 1 - plan.tokens_done / plan.tokens
    whole = plan.end_s >= plan.deadline_s or left <= MOST_LEFT
    if not whole:
        for name in (BLIND, REGRET):
            unknown.setdefault(name, f"the job was stopped early, with {left:.0%} of it left to do")
    return {
        "saving_vs_static": verdict.saving_vs_static,
        "saving_vs_blind": verdict.saving_vs_blind if whole else None,
        "regret": verdict.regret if whole else None,
        "static_name": verdict.static_name,
        "static_g": verdict.static_g,
        "blind_g": verdict.blind_g if whole else None,
        "oracle_g": verdict.oracle_g if whole else None,
        "unknown": unknown,
    }
