"""The plan of a run: what was decided, whether the deadline was met, and how good it was in hindsight.

Three numbers compare the run with other plans for the tokens that it trained: static (the usual training, at once), the
best plan that does not look at the grid, and the best plan of all. All rest on grams of IT power: PUE is in none of
them, or, where the plan counted the recorded PUE of each hour, in all of them. The other plans have the run's action
table, but as fast and as hungry as the run was on average against it (``speed_of_table``, ``power_of_table``): a
machine that is warmer, or has other work, is so for any plan. Where somebody declared the table, the run's own joules
say nothing of it: what was decided is then weighed with the table, too, and every number is labelled ``assumed``.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from greentrain.ledger.reader import RunRecord
from greentrain.ledger.totals import Totals
from greentrain.report.facility import it_grams
from greentrain.report.plan_hindsight import Grams, three_numbers
from greentrain.report.plan_record import Decided, PlanRecord
from greentrain.types import S_PER_HOUR
from greentrain.utils import quantities

MAX_CHANGES: Final = 200
"""Changes that are listed, the first and the last ones; the number of all of them is always told."""
MOST_UNREAD: Final = 0.005
"""Share of the devices' time without a reading from which on the run's grams are too few to be compared: ten times less
than the error of the sensors themselves (NVML: 5 %)."""

END: Final = "end"
"""In place of a row's name, where all tokens are done."""


def plan_figures(
    record: RunRecord,
    totals: Totals,
    *,
    energy: Mapping[str, Any],
    carbon: Mapping[str, Any],
    devices: Sequence[Mapping[str, Any]],
    word: str,
) -> dict[str, Any] | None:
    """Return the figures of a run's plan; None where it had none.

    Times are the grid's (s since the epoch, UTC); ``late_s`` is below 0 where the job was done early. ``unknown`` says
    why a number is null. Rows keep the order of the menu: ``stretches`` and ``static`` count from 0.

    Args:
        record: The run.
        totals: Of the job.
        energy: Figures of the run.
        carbon: Figures of the run.
        devices: Figures of the run.
        word: Its state.
    """
    plan = PlanRecord.of(record)
    if plan is None:
        return None
    assumed = plan.facts["provenance"] == "assumed"
    decided = _decided_grams(plan, record)
    actual = decided if assumed else _run_grams(record, plan, energy, carbon, devices)
    changed = [d for i, d in enumerate(plan.decisions) if i == 0 or d.row != plan.decisions[i - 1].row or d.done]
    off = [float(row["tokens_per_s"]) == 0 for row in plan.facts["rows"]]
    return {
        "policy": plan.facts["policy"],
        "unit": "tokens" if totals.tokens or not totals.samples else "samples",
        "tokens": plan.tokens,
        "tokens_done": plan.tokens_done,
        "start_s": plan.start_s,
        "deadline_s": plan.deadline_s,
        "end_s": plan.end_s,
        "start_utc": _utc(plan.start_s),
        "deadline_utc": _utc(plan.deadline_s),
        **_deadline(plan, word),
        "grid": dict(plan.facts["grid"]),
        "replayed": not plan.time.is_real,
        "with_pue": plan.with_pue,
        "decisions": len(plan.decisions),
        "changes": max(0, sum(not d.done for d in changed) - 1),
        "pauses": sum(off[d.row] and not d.done for d in changed),
        "shielded": sum(d.shielded for d in plan.decisions),
        "rows": _rows(plan),
        "static": int(plan.facts["static"]),
        "held": bool(plan.facts["held"]),
        "speed_of_table": plan.speed_of_table,
        "power_of_table": plan.power_of_table,
        "forecast": plan.facts.get("forecast"),
        "hourly_g_per_kwh": list(plan.g_per_kwh),
        "stretches": [[stretch.t0_s, stretch.t1_s, stretch.row] for stretch in plan.stretches],
        "changed": [_change(plan, d) for d in _ends(changed)],
        "provenance": _provenance(plan, energy),
        "actual_of": "table" if assumed else "run",
        "actual_g": actual.grams,
        "decided_g": decided.grams,
        **three_numbers(plan, actual, word, _fp8_max_share(record)),
    }


def _deadline(plan: PlanRecord, word: str) -> dict[str, Any]:
    """Return whether the deadline was met, by how much, and both in words."""
    finished_s, left_s = plan.finished_s, plan.deadline_s - plan.end_s
    share = quantities.percent(plan.tokens_done / plan.tokens)
    if finished_s is not None:
        late_s = finished_s - plan.deadline_s
        what = "missed" if late_s > 0 else "met"
        when = "after" if late_s > 0 else "before"
        text = f"deadline {what}: done {quantities.duration(abs(late_s))} {when} it"
        return {"finished_s": finished_s, "met": late_s <= 0, "late_s": late_s, "deadline_text": text}
    met = False if left_s <= 0 else None
    if left_s <= 0:
        text = f"deadline missed: {share} done {quantities.duration(-left_s)} after it"
    elif word == "running":
        text = f"{share} done, {quantities.duration(left_s)} left until the deadline"
    else:
        text = f"stopped {quantities.duration(left_s)} before the deadline, {share} done"
    return {"finished_s": None, "met": met, "late_s": None, "deadline_text": text}


def _rows(plan: PlanRecord) -> list[dict[str, Any]]:
    seconds = [0.0] * len(plan.facts["rows"])
    for stretch in plan.stretches:
        seconds[stretch.row] += stretch.length_s
    return [{**row, "hours": length_s / S_PER_HOUR} for row, length_s in zip(plan.facts["rows"], seconds, strict=True)]


def _change(plan: PlanRecord, decided: Decided) -> dict[str, Any]:
    return {
        "grid_s": decided.grid_s,
        "grid_utc": _utc(decided.grid_s),
        "row": decided.row,
        "name": END if decided.done else plan.facts["rows"][decided.row]["name"],
        "g_per_kwh": decided.g_per_kwh,
        "tokens": decided.tokens,
        "shielded": decided.shielded,
        "reason": decided.reason,
    }


def _ends(changed: Sequence[Decided]) -> Sequence[Decided]:
    if len(changed) <= MAX_CHANGES:
        return changed
    return [*changed[: MAX_CHANGES // 2], *changed[-MAX_CHANGES // 2 :]]


# -- grams -----------------------------------------------------------------------------------------------------------


def _decided_grams(plan: PlanRecord, record: RunRecord) -> Grams:
    """Return what the table says of what was decided; before the first decision the usual training ran."""
    if not plan.stretches:
        return Grams(reason="nothing was decided")
    if any(rank.carried.duration_s > 0 for rank in record.ranks):
        return Grams(reason="what was decided in earlier parts of the run is not in this folder")
    rows = plan.facts["rows"]
    parts = [(int(plan.facts["static"]), plan.start_s, plan.stretches[0].t0_s)]
    parts += [(stretch.row, stretch.t0_s, stretch.t1_s) for stretch in plan.stretches]
    total = 0.0
    for row, t0_s, t1_s in parts:
        grams = plan.grams(float(rows[row]["power_w"]), t0_s, t1_s)
        if grams is None:
            return Grams(reason=plan.unknown(plan.end_s))
        total += grams
    return Grams(grams=total)


def _run_grams(
    record: RunRecord,
    plan: PlanRecord,
    energy: Mapping[str, Any],
    carbon: Mapping[str, Any],
    devices: Sequence[Mapping[str, Any]],
) -> Grams:
    """Return what the run itself emitted until the plan was over, of all ranks, with PUE if the plan counted it."""
    read = [device for device in devices if device["energy_j"] is not None]
    unread_s = sum(device["missing_s"] for device in read)
    if energy["energy_j"] is None:
        return Grams(reason="no energy of this run is known")
    if not carbon["complete"]:
        blind = quantities.energy(carbon["unpriced_j"])
        return Grams(reason=f"the carbon intensity of {blind} of the run's energy is unknown")
    if len(record.ranks) < (record.run.get("world_size") or 1):
        return Grams(reason="the files of some ranks are not in this folder")
    if unread_s > MOST_UNREAD * sum(device["booked_s"] for device in read):
        return Grams(reason=f"for {quantities.duration(unread_s)} of device time there is no reading")
    until_s = plan.time.real(plan.end_s)
    pue = energy["pue"]
    total = sum(c.operational_g if plan.with_pue else it_grams(c, pue) for c in (rank.carried for rank in record.ranks))
    for rank in record.ranks:
        for entry in rank.entries:
            length_s = entry.t1_unix_s - entry.t0_unix_s
            share = 1.0 if entry.t1_unix_s <= until_s else (until_s - entry.t0_unix_s) / length_s
            total += max(0.0, share) * ((entry.operational_g if plan.with_pue else entry.it_g) or 0.0)
    return Grams(grams=total)


def _provenance(plan: PlanRecord, energy: Mapping[str, Any]) -> str:
    """Return where the grams that are compared come from: the table's, and the run's where it is no declared one."""
    of_table = str(plan.facts["provenance"])
    share = energy["measured_share"]
    if of_table == "assumed" or share is None:
        return of_table
    of_run = {1.0: "measured", 0.0: "modelled"}.get(share, "mixed")
    return of_run if of_run == of_table else "mixed"


def _fp8_max_share(record: RunRecord) -> float:
    precision = (record.run.get("config") or {}).get("precision") or {}
    return float(precision.get("fp8_max_share", 1.0))


def _utc(grid_s: float) -> str:
    return datetime.fromtimestamp(grid_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
