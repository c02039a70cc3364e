"""A plan beside those that could have been: what ran in grams, the two savings and the regret."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from greentrain.action_table import Action
from greentrain.report.plan_record import PlanRecord
from greentrain.types import Gear

if TYPE_CHECKING:
    from greentrain.policy.menu import Menu

MOST_LEFT: Final = 0.05
"""A job that stops early with a larger share of its tokens left is not held against plans that had until the deadline.
Below that it is, for the tokens it did: those plans then have it easier, so the numbers are none too good."""
_NAME: Final = re.compile(r"(?P<gear>\w+)(?: at (?P<cap>\d+)%)?(?: on (?P<ranks>\d+))?")
"""What ``str`` of an action looks like."""


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


def menu_of(facts: Mapping[str, Any], speed: float = 1.0, power: float = 1.0) -> "Menu":
    """Return the choices of a job as it was, in the grid's time.

    Args:
        facts: Of run.json.
        speed: How fast the job was against its table.
        power: What it drew against its table.
    """
    import numpy as np

    from greentrain.policy.menu import OFF, Menu

    rows = facts["rows"]
    power_w = np.array([float(row["power_w"]) for row in rows]) * power
    if not facts.get("pausable", True):
        power_w[OFF] = power_w.max()  # never worth it: these plans could not pause either
    return Menu(
        actions=tuple(None if i == OFF else _action(row["name"]) for i, row in enumerate(rows)),
        tokens_per_s=np.array([float(row["tokens_per_s"]) for row in rows]) * speed,
        power_w=power_w,
        width=np.array([int(row["width"]) for row in rows]),
        provenance=str(facts["provenance"]),
    )


def _action(name: str) -> Action:
    found = _NAME.fullmatch(name)
    if found is None:
        raise ValueError(f"run.json: {name!r} is no name of an action, such as 'fp8 at 70% on 4'")
    cap, ranks = found["cap"], found["ranks"]
    return Action(
        gear=Gear(found["gear"]),
        cap=1.0 if cap is None else int(cap) / 100,
        ranks=None if ranks is None else int(ranks),
    )
