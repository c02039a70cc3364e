"""What really ran: a run folder read for a replay, with or without a plan.

All times are the grid's (s since the epoch, UTC), and so are speeds and watts: where a recorded grid was replayed
faster, both are smaller by the factor, and joules a token are what they were.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from greentrain.carbon.replayed import GridTime
from greentrain.config.schema import PolicyConfig
from greentrain.ledger.reader import RunRecord, read_run
from greentrain.policy.action_sources import Actions, table_of_run
from greentrain.policy.menu import Menu, menu_of
from greentrain.policy.outlook import Array
from greentrain.report.plan import PlanRecord, mean_by_hour
from greentrain.report.summary import summarize
from greentrain.simulator.scene import NOTHING
from greentrain.types import S_PER_HOUR, Gear, LedgerEntry

_PARTS: Final = 200
"""Into so many parts a run is cut to be drawn, or into its hours where these are more."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordedRun:
    """A run as its folder tells it. What it does not tell is in ``missing``."""

    run_id: str
    policy: str
    """Who decided; ``the run`` where nobody planned."""
    start_s: float
    deadline_s: float | None
    """None where nobody set one."""
    end_s: float
    """When the job was over, or the run ended."""
    finished_s: float | None
    """When all tokens that were asked for were done; None where they were not."""
    changes: int | None
    """Of the plan's row; None where there was no plan."""
    tokens: float
    """Trained until then."""
    unit: str
    """``tokens``, or ``samples`` where steps told no tokens."""
    menu: Menu | None
    menu_from: str
    g_per_kwh: Array
    """(h,) by hour from the start, NaN where the folder does not know it."""
    basis: str
    accounting: str
    intensity_from: str
    carbon: Mapping[str, Any]
    """The run's own section ``carbon``."""
    policy_section: Mapping[str, Any]
    """The run's own section ``policy``."""
    grams: float | None
    """Emitted by IT power, without PUE but ``with_pue``; None where not known."""
    grams_of: str
    """``run`` (its joules), or ``table`` where that was declared: what was decided is then weighed with it."""
    why_unknown: str
    provenance: str
    """Of the grams."""
    edges_s: Array
    """(k + 1,) of the two series below."""
    emitted_g: Array
    """(k + 1,) until each edge, scaled to ``grams``."""
    rows: NDArray[np.int64]
    """(k,) of the menu; NOTHING where unknown."""
    past_g_per_kwh: Array = field(default_factory=lambda: np.zeros(0))
    """By hour before the start, oldest first, as the plan saw it; NaN where it did not know; empty: not told."""
    with_pue: bool = False
    """The plan counted the PUE of each hour: it is in intensities and grams."""
    missing: Sequence[str] = field(default=())
    """What a replay needs and the folder lacks, with the remedy."""


def read_happened(
    folder: Path | str, actions: Actions | None = None, policy: PolicyConfig | None = None
) -> RecordedRun:
    """Read a run folder.

    Args:
        folder: The run's folder.
        actions: A table in place of the run's own.
        policy: Settings in place of the run's own: deadline, whether ranks that do not work are released.

    Raises:
        RunFolderError: It is no run folder.
        ConfigError: Its table is of another format, or ranks are held and nobody says what that costs.
    """
    record = read_run(folder)
    summary = summarize(record)
    plan = PlanRecord.of(record)
    told = _planned(record, summary, plan) if plan is not None else _unplanned(record, summary, policy)
    if actions is not None:
        time = GridTime.from_dict(record.run["grid"]) if record.run.get("grid") else None
        menu = _slowed(_menu(actions, policy), 1.0 if time is None else time.speed)
        told = replace(told, menu=menu, menu_from=f"{menu.provenance}: {actions.source}", rows=_renamed(told, menu))
    elif told.menu is None:
        what = "an action table: it neither measured its gears (session.profile_gears) nor planned (--actions)"
        told = replace(told, missing=(*told.missing, what))
    if policy is not None and policy.deadline_h is not None:
        told = replace(told, deadline_s=told.start_s + policy.deadline_h * S_PER_HOUR)
    return told


def _planned(record: RunRecord, summary: Mapping[str, Any], plan: PlanRecord) -> RecordedRun:
    figures = summary["plan"]
    menu = menu_of(plan.facts, plan.speed_of_table, plan.power_of_table)
    changes = [t_s for stretch in plan.stretches for t_s in (stretch.t0_s, stretch.t1_s)]
    edges_s = np.union1d(_edges(plan.start_s, plan.end_s), np.clip(changes, plan.start_s, plan.end_s))
    middles = (edges_s[:-1] + edges_s[1:]) / 2
    rows = np.full(len(middles), NOTHING)
    for stretch in plan.stretches:
        rows[(middles >= stretch.t0_s) & (middles < stretch.t1_s)] = stretch.row
    known = _floats(plan.g_per_kwh)
    if figures["actual_of"] == "table":
        hour = np.clip(((middles - plan.start_s) // S_PER_HOUR).astype(np.int64), 0, len(known) - 1)
        rate = np.nan_to_num(known[hour]) * menu.power_w[np.where(rows == NOTHING, menu.static, rows)]
        emitted = np.concatenate([[0.0], np.cumsum(rate * np.diff(edges_s))])
    else:
        emitted = _emitted(record, plan.time, edges_s, with_pue=plan.with_pue)
    return RecordedRun(
        run_id=record.run_id,
        policy=str(plan.facts["policy"]),
        start_s=plan.start_s,
        deadline_s=plan.deadline_s,
        end_s=plan.end_s,
        finished_s=plan.finished_s,
        changes=int(figures["changes"]),
        tokens=plan.tokens_done,
        unit=str(figures["unit"]),
        menu=menu,
        menu_from=f"{menu.provenance}: the plan of the run",
        g_per_kwh=known,
        **_signal(record),
        grams=figures["actual_g"],
        grams_of=str(figures["actual_of"]),
        why_unknown=str(figures["unknown"].get("saving_vs_static", "what the run emitted is not known")),
        provenance=str(figures["provenance"]),
        edges_s=edges_s,
        emitted_g=_scaled(emitted, figures["actual_g"]),
        rows=rows,
        with_pue=plan.with_pue,
        past_g_per_kwh=_floats(plan.facts.get("past_hourly_g_per_kwh") or ()),
        missing=() if plan.tokens_done > 0 else ("tokens: none were trained",),
    )


def _unplanned(record: RunRecord, summary: Mapping[str, Any], policy: PolicyConfig | None) -> RecordedRun:
    time = GridTime.from_dict(record.run["grid"]) if record.run.get("grid") else GridTime(unix_s=0.0, grid_s=0.0)
    table = table_of_run(record.run, str(record.folder / "run.json"))
    entries = sorted((e for rank in record.ranks for e in rank.entries), key=lambda entry: entry.t0_unix_s)
    missing = [] if entries else ["entries: its ranks booked nothing"]
    start_s = time.at(entries[0].t0_unix_s) if entries else time.at(float(summary["time"]["start_unix_s"] or 0.0))
    end_s = max((time.at(entry.t1_unix_s) for entry in entries), default=start_s)
    totals = record.totals
    unit = "tokens" if totals.tokens or not totals.samples else "samples"
    tokens = float(totals.tokens if unit == "tokens" else totals.samples)
    if not tokens > 0:
        missing.append("tokens: its steps told none (step(tokens=...))")
    menu = None
    if table is not None:
        actions = Actions(table=table, source=f"run {record.run_id}")
        if actions.unit != unit:
            missing.append(f"an action table in {unit}: its own counts {actions.unit} (--actions)")
        share = ((record.run.get("config") or {}).get("precision") or {}).get("fp8_max_share", 1.0)
        menu = _slowed(_menu(actions, policy).with_fp8_share(float(share)), time.speed)
    edges_s = _edges(start_s, end_s)
    energy, carbon = summary["energy"], summary["carbon"]
    complete = energy["energy_j"] is not None and carbon["complete"]
    emitted = _emitted(record, time, edges_s)
    share = energy["measured_share"]
    first = min(record.ranks, key=lambda rank: rank.rank)
    return RecordedRun(
        run_id=record.run_id,
        policy="the run",
        start_s=start_s,
        deadline_s=None,
        end_s=end_s,
        finished_s=end_s,
        changes=None,
        tokens=tokens,
        unit=unit,
        menu=menu,
        menu_from="" if menu is None else f"{menu.provenance}: the action table of the run",
        g_per_kwh=_floats(mean_by_hour(first.entries, time, start_s, end_s)),
        **_signal(record),
        grams=float(emitted[-1]) if complete else None,
        grams_of="run",
        why_unknown="the energy, or the carbon intensity, of a part of the run is not known",
        provenance="unknown" if share is None else {1.0: "measured", 0.0: "modelled"}.get(share, "mixed"),
        edges_s=edges_s,
        emitted_g=emitted,
        rows=_gear_rows(first.entries, time, edges_s, menu),
        missing=missing,
    )


def _menu(actions: Actions, policy: PolicyConfig | None) -> Menu:
    released = policy is None or policy.released is not False
    return Menu.of(actions.table, released=released, idle_w=None if policy is None else policy.idle_w)


def _slowed(menu: Menu, speed: float) -> Menu:
    """Return a menu in the time of a grid that is replayed ``speed`` times as fast."""
    return replace(menu, tokens_per_s=menu.tokens_per_s / speed, power_w=menu.power_w / speed)


def _renamed(told: RecordedRun, menu: Menu) -> NDArray[np.int64]:
    """Return what ran as rows of another menu."""
    if told.menu is None:
        return np.full(len(told.rows), NOTHING)
    names = list(menu.names())
    other = [names.index(name) if name in names else NOTHING for name in told.menu.names()]
    return np.where(told.rows == NOTHING, NOTHING, np.array(other)[told.rows])


def _signal(record: RunRecord) -> dict[str, Any]:
    """Return what the run says of its grid."""
    facts = record.run.get("carbon") or {}
    config = record.run.get("config") or {}
    return {
        "basis": str(facts.get("basis", "average")),
        "accounting": str(facts.get("accounting", "unspecified")),
        "intensity_from": f"as the run saw it: {facts.get('source', 'source not stated')}"
        + (f", replayed: {facts['replayed']}" if facts.get("replayed") else ""),
        "carbon": config.get("carbon") or {},
        "policy_section": config.get("policy") or {},
    }


def _floats(values: Sequence[float | None]) -> Array:
    return np.array([math.nan if value is None else value for value in values], dtype=np.float64)


def _edges(start_s: float, end_s: float) -> Array:
    """Return edges fine enough to draw, those of each hour from the start among them."""
    span_s = max(end_s - start_s, 1.0)
    parts = max(1, math.ceil(_PARTS * S_PER_HOUR / span_s))
    count = math.ceil(span_s / S_PER_HOUR * parts - 1e-9)
    edges: Array = start_s + np.minimum(np.arange(count + 1) * (S_PER_HOUR / parts), span_s)
    return edges


def _emitted(record: RunRecord, time: GridTime, edges_s: Array, *, with_pue: bool = False) -> Array:
    """Return the grams of IT power of all ranks until each edge; those of energy without an intensity are left out."""
    total = np.zeros(len(edges_s))
    for rank in record.ranks:
        for entry in rank.entries:
            grams = (entry.operational_g if with_pue else entry.it_g) or 0.0
            t0_s, t1_s = time.at(entry.t0_unix_s), time.at(entry.t1_unix_s)
            total += grams * np.clip((edges_s - t0_s) / max(t1_s - t0_s, 1e-9), 0.0, 1.0)
    return total


def _scaled(emitted_g: Array, total_g: float | None) -> Array:
    last = float(emitted_g[-1])
    return emitted_g if total_g is None or last <= 0 else emitted_g * (total_g / last)


def _gear_rows(entries: Sequence[LedgerEntry], time: GridTime, edges_s: Array, menu: Menu | None) -> NDArray[np.int64]:
    """Return the row of the gear that each part of a run was in for longest."""
    rows = np.full(len(edges_s) - 1, NOTHING)
    if menu is None:
        return rows
    gears = {action.gear for action in menu.actions if action is not None}
    middles = (edges_s[:-1] + edges_s[1:]) / 2
    for entry in entries:
        used = {name: use.seconds for name, use in entry.gears.items()}
        gear = Gear(max(used, key=lambda name: used[name])) if used else next(iter(gears)) if len(gears) == 1 else None
        row = None if gear is None else menu.find(lambda action, gear=gear: action.gear is gear and action.cap == 1.0)  # type: ignore[misc]
        if row is not None:
            rows[(middles >= time.at(entry.t0_unix_s)) & (middles < time.at(entry.t1_unix_s))] = row
    return rows
