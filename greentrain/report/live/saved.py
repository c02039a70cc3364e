"""Grams that a plan has saved so far against the usual training begun at once, both by the plan's own table."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from greentrain.ledger.reader import RunRecord
from greentrain.report.live.rank_state import RankState
from greentrain.report.plan_record import PlanRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """What a plan has saved."""

    grams: float
    """Below 0 where more was emitted."""
    provenance: str
    """Of the table's watts: ``measured``, ``modelled``, ``mixed`` or ``assumed``."""
    against: str
    """What is compared with: the usual training's gear, as ``bf16``."""


def saved_so_far(run: Mapping[str, Any], rank: RankState) -> Saved | None:
    """Return what the plan has saved until now; None without a plan, or where an hour's intensity is not known.

    Both sides rest on the action table, for the tokens trained until now, with the usual training as fast against the
    table as the run was: what was decided, hour by hour, and the usual gear at full speed from the start. The report of
    the ended run weighs the run's own joules in place of the table's. Grams have no PUE, unless the plan counted it.

    Args:
        run: Content of run.json.
        rank: Of rank 0, which decides.
    """
    if not run.get("plan") or not any(event["name"] == "decision" for event in rank.decisions):
        return None
    own = rank.record()
    world = int(run.get("world_size") or 1)
    entries = [replace(entry, tokens=entry.tokens * world, samples=entry.samples * world) for entry in own.entries]
    plan = PlanRecord.of(RunRecord(folder=Path(), run=run, ranks=[replace(own, entries=entries)]))
    if plan is None or not plan.stretches:
        return None
    rows, usual = plan.facts["rows"], int(plan.facts["static"])
    parts = [(usual, plan.start_s, plan.stretches[0].t0_s)]
    parts += [(stretch.row, stretch.t0_s, stretch.t1_s) for stretch in plan.stretches]
    total_g = 0.0
    for row, t0_s, t1_s in parts:
        grams = plan.grams(float(rows[row]["power_w"]), t0_s, t1_s)
        if grams is None:
            return None
        total_g += grams
    speed = float(rows[usual]["tokens_per_s"]) * plan.speed_of_table
    static_g = plan.grams(float(rows[usual]["power_w"]), plan.start_s, plan.start_s + plan.tokens_done / speed)
    if static_g is None:
        return None
    return Saved(grams=static_g - total_g, provenance=str(plan.facts["provenance"]), against=str(rows[usual]["name"]))
