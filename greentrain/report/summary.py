"""A run in one dict: what it used, where that is known from, what it emitted, per token and by the standards.

Schema, ``"format": 1``. Keys are only ever added. Every quantity carries its unit in its name; a figure that is
not known is null, never 0. ``energy_j`` without another word is known IT energy, measured plus modelled, without
PUE; ``facility_`` means times PUE. Grams are operational (location-based, PUE included) unless the key says
otherwise.

======================  =================================================================================
run                     run_id, name, tags, command, versions, world_size, parameters
state                   word (finished, exception, sigterm, exit, killed, left, running), text, resumes
time                    start and end (unix s and UTC), wall_s booked, elapsed_s from start to end
energy                  energy_j, kWh, facility, PUE (mean by energy), by_provenance, shares, coverage, uncertainty
power                   mean_w, peak_w over peak_window_s
devices                 one a device: energy, provenance, sensor's figures, missing seconds, embodied rate
phases                  exclusive (sums to the whole) and inclusive energy, seconds, grams
hosts, ranks            the same energy by place
carbon                  operational (location, market), embodied low/mid/high, emissions_g, CUE, intensity, sources
gears                   one a precision gear: energy, time and work in it, and their ratios; empty without gears
layers                  which linear layers may run in FP8, on which backend, and why not the others; null: no FP8
action_table            speed, power and J/token of each gear side by side, where the run measured them; or null
gear_shifts             how many shifts there were; the first ones are among the events
plan                    where a policy planned against the grid: deadline met or missed, decisions, hours by row of
                        the menu, saving_vs_static, saving_vs_blind, regret, and where these are from; else null
work                    steps, tokens, samples and the ratios to joules, grams and seconds
sci, scope2             the standards' own fields
estimate                what was estimated before, beside what was measured, for the tokens trained; else null
equivalents             comparisons a person can feel, each with its factor and source
assumptions             every constant that went in: name, value, source
gaps, events            where knowledge is missing; what happened, the first decisions of a plan among it
headline                what dominates
======================  =================================================================================
"""

import json
import time
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from greentrain.errors import RunFolderError
from greentrain.ledger.reader import RankRecord, RunRecord
from greentrain.ledger.run_folder import ESTIMATE
from greentrain.ledger.totals import DeviceSums, EntrySums, Totals
from greentrain.report import figures
from greentrain.report.estimated import estimated
from greentrain.report.figures import (
    assumptions,
    carbon_figures,
    energy_figures,
    gear_rows,
    layer_figures,
    power_figures,
    work_figures,
)
from greentrain.report.plan import DECISION, plan_figures
from greentrain.report.series import RunSeries, build_series
from greentrain.types import S_PER_HOUR
from greentrain.utils.files import write_atomic
from greentrain.utils.version import __version__

SUMMARY_FORMAT: Final = 1
ALIVE_S: Final = 60.0
"""A rank without a last line counts as running while its last interval is younger than this (s)."""
MAX_EVENTS: Final = 500
MAX_SHIFTS: Final = 200
"""Shifts of gears, and decisions of a plan, among the events; they do not push out a warning."""
_STATE_TEXT: Final = {
    "finished": "The run finished.",
    "exception": "The run ended with an exception; everything up to it is booked.",
    "sigterm": "The run was ended by SIGTERM; everything up to it is booked.",
    "exit": "The process exited before the session was closed; everything up to it is booked.",
    "killed": "The run was killed: at most the last interval (10 s) before that is lost.",
    "left": "The run left, to be started again later; these are the figures so far.",
    "running": "The run is still going; these are the figures so far.",
}


def summarize(record: RunRecord, *, series: RunSeries | None = None, now_unix_s: float | None = None) -> dict[str, Any]:
    """Reduce a run to the documented dict.

    Args:
        record: From ``read_run``.
        series: Curves of the same run, if they exist already.
        now_unix_s: Present time (s), to tell a running process from a killed one.
    """
    sums, sensors = record.sums, record.sensors
    by_rank = [rank.totals for rank in record.ranks]
    totals = Totals.of_job(by_rank)
    wall_s = max((part.duration_s for part in by_rank), default=0.0)
    series = series if series is not None else build_series(record)
    now_s = time.time() if now_unix_s is None else now_unix_s
    energy = energy_figures(record, totals, sums)
    carbon = carbon_figures(record, totals, sums, energy)
    work = work_figures(wall_s, totals, energy, carbon)
    booked_by = _booked_by(record)
    devices = [
        _device(place, booked_by[place], sensors.get(place, {}), device, energy["energy_j"])
        for place, device in sums.devices.items()
    ]
    devices.sort(key=lambda device: -(device["energy_j"] or 0.0))
    phases = _phases(totals, sums, energy["energy_j"])
    events = _events(record)
    shifts, decisions = events["gear"], events[DECISION]
    state = _state(record, now_s)
    out: dict[str, Any] = {
        "format": SUMMARY_FORMAT,
        "greentrain_version": __version__,
        "run": _run(record),
        "state": state,
        "time": _time(record, sums, wall_s),
        "energy": energy,
        "power": power_figures(wall_s, energy, series),
        "devices": devices,
        "phases": phases,
        "hosts": _hosts(record, sums),
        "ranks": [_rank(rank, part, now_s) for rank, part in zip(record.ranks, by_rank, strict=True)],
        "carbon": carbon,
        "work": work,
        "gears": gear_rows(by_rank, totals, sums, energy["energy_j"]),
        "layers": layer_figures(record.run),
        "gear_shifts": len(shifts),
        "action_table": record.run.get("action_table"),
        "plan": None,
        "headline": {"device": _largest(devices, "name"), "phase": _largest(phases, "name")},
        "gaps": sums.gaps,
        "gap_count": sums.gap_count,
        "events": sorted([*events["other"][:MAX_EVENTS], *shifts[:MAX_SHIFTS], *decisions[:MAX_SHIFTS]], key=_when),
    }
    if record.run.get("plan"):
        out["plan"] = plan_figures(record, totals, energy=energy, carbon=carbon, devices=devices, word=state["word"])
    out["sci"] = figures.sci_fields(out)
    out["scope2"] = figures.scope2_fields(out)
    out["equivalents"] = figures.comparisons(out)
    out["assumptions"] = assumptions(out, record.run)
    out["estimate"] = estimated(record.folder, out) if (record.folder / ESTIMATE).exists() else None
    return out


def write_summary(summary: Mapping[str, Any], folder: Path) -> Path:
    """Write summary.json into a run folder, atomically, and return its path.

    Raises:
        RunFolderError: The folder cannot be written, or its records hold a number that JSON has no word for.
    """
    try:
        text = json.dumps(summary, indent=1, allow_nan=False, ensure_ascii=False)
    except ValueError as error:
        raise RunFolderError(f"{folder}: run.json or a journal holds NaN or an infinity: {error}") from error
    return write_atomic(folder / "summary.json", text + "\n")


def _run(record: RunRecord) -> dict[str, Any]:
    run = record.run
    first = record.ranks[0].opens[0]
    return {
        "run_id": record.run_id,
        "name": run.get("name") or record.run_id,
        "tags": dict(run.get("tags") or {}),
        "created_unix_s": run.get("created_unix_s"),
        "command": list(run.get("command") or []),
        "python": run.get("python"),
        "platform": run.get("platform"),
        "packages": dict(run.get("packages") or {}),
        "greentrain_version": run.get("greentrain_version"),
        "world_size": run.get("world_size") or first.get("world_size"),
        "ranks_read": len(record.ranks),
        "parameters": run.get("parameters"),
    }


def _rank_state(rank: RankRecord, now_s: float) -> str:
    if rank.close is not None:
        return str(rank.close.get("reason") or "finished")
    last_s = max([rank.opens[-1].get("t", 0.0), *(entry.t1_unix_s for entry in rank.entries[-1:])])
    return "running" if now_s - last_s < ALIVE_S else "killed"


def _state(record: RunRecord, now_s: float) -> dict[str, Any]:
    words = [_rank_state(rank, now_s) for rank in record.ranks]
    worst = next((word for word in ("exception", "sigterm", "killed", "exit", "left") if word in words), None)
    word = worst or ("running" if set(words) == {"running"} else "finished")
    missing = (record.run.get("world_size") or len(words)) - len(words)
    text = _STATE_TEXT.get(word, f"The run ended: {word}.")
    if missing > 0:
        text += f" The files of {missing} rank(s) are not in the folder: their energy is not in these figures."
    return {
        "word": word,
        "text": text,
        "finished": word == "finished",
        "resumes": max(len(rank.opens) for rank in record.ranks) - 1,
        "ranks_without_file": max(missing, 0),
    }


def _time(record: RunRecord, sums: EntrySums, wall_s: float) -> dict[str, Any]:
    opens = [opened["t"] for rank in record.ranks for opened in rank.opens[:1] if "t" in opened]
    start_s, end_s = sums.span_s or (min(opens, default=None),) * 2
    return {
        "start_unix_s": start_s,
        "end_unix_s": end_s,
        "start_utc": _utc(start_s),
        "end_utc": _utc(end_s),
        "wall_s": wall_s or None,
        "elapsed_s": end_s - start_s if start_s is not None and end_s is not None else None,
    }


def _utc(unix_s: float | None) -> str | None:
    return None if unix_s is None else datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _booked_by(record: RunRecord) -> dict[tuple[str, str], int]:
    """Return the first rank that knew a device, by host and device uid."""
    found: dict[tuple[str, str], int] = {}
    for rank in record.ranks:
        for uid in (*rank.sensors, *rank.sums.devices):
            found.setdefault((rank.host, uid), rank.rank)
    return found


def _device(
    place: tuple[str, str], rank: int, sensor: Mapping[str, Any], device: DeviceSums, total_j: float | None
) -> dict[str, Any]:
    host, uid = place
    energy_j = device.energy_j
    by_provenance = {name: part.energy_j for name, part in device.known.items()}
    rate = sensor.get("embodied_g_per_h")
    hours = device.booked_s / S_PER_HOUR
    provenances = [name for name, value in by_provenance.items() if value > 0]
    provenance = provenances[0] if len(provenances) == 1 else "mixed" if provenances else sensor.get("provenance")
    return {
        "host": host,
        "uid": uid,
        "rank": rank,
        "name": sensor.get("name") or uid,
        "kind": sensor.get("kind"),
        "provenance": "missing" if energy_j is None else provenance,
        "energy_j": energy_j,
        "facility_energy_j": None if energy_j is None else sum(part.facility_j for part in device.known.values()),
        "by_provenance_j": by_provenance,
        "share": energy_j / total_j if energy_j is not None and total_j else None,
        "operational_g": sum(part.operational_g for part in device.known.values()) or None,
        "booked_s": device.booked_s,
        "missing_s": max(device.missing_s or 0.0, 0.0),
        "coverage": device.known_s / device.booked_s if device.booked_s > 0 and energy_j is not None else 0.0,
        "mean_power_w": energy_j / device.known_s if energy_j is not None and device.known_s > 0 else None,
        "peak_power_w": device.peak_w if energy_j is not None else None,
        "method": sensor.get("method"),
        "uncertainty": sensor.get("uncertainty"),
        "period_s": sensor.get("period_s"),
        "tick_s": sensor.get("tick_s"),
        "averaging_s": sensor.get("averaging_s"),
        "read_cost_s": sensor.get("read_cost_s"),
        "note": sensor.get("note") or "",
        "embodied_g": {k: rate[k] * hours for k in ("low", "mid", "high")} if rate else None,
        "embodied_g_per_h": dict(rate) if rate else None,
        "embodied_note": sensor.get("embodied_note") or "",
    }


def _phases(totals: Totals, sums: EntrySums, total_j: float | None) -> list[dict[str, Any]]:
    names = sorted(set(totals.phase_s) | set(totals.by_phase) | set(totals.by_phase_inclusive))
    rows = []
    for name in names:
        energy_j = totals.by_phase.get(name, 0.0) if total_j is not None else None
        seconds = totals.phase_s.get(name)
        rows.append(
            {
                "name": name,
                "energy_j": energy_j,
                "share": energy_j / total_j if energy_j is not None and total_j else None,
                "inclusive_j": totals.by_phase_inclusive.get(name, energy_j) if total_j is not None else None,
                "rank_seconds": seconds,
                "operational_g": sums.phase_g.get(name),
            }
        )
    return sorted(rows, key=lambda row: -(row["energy_j"] or 0.0))


def _hosts(record: RunRecord, sums: EntrySums) -> list[dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for rank in record.ranks:
        row = rows.setdefault(rank.host, {"host": rank.host, "energy_j": None, "ranks": []})
        row["ranks"].append(rank.rank)
    for (host, _), device in sums.devices.items():
        if (energy_j := device.energy_j) is not None:
            rows[host]["energy_j"] = (rows[host]["energy_j"] or 0.0) + energy_j
    return list(rows.values())


def _rank(rank: RankRecord, totals: Totals, now_s: float) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "host": rank.host,
        "state": _rank_state(rank, now_s),
        "starts": len(rank.opens),
        "energy_j": totals.energy_j if totals.by_provenance else None,
        "devices": sorted(totals.by_device),
        "steps": totals.steps,
        "tokens": totals.tokens or None,
        "samples": totals.samples or None,
        "wall_s": totals.duration_s,
        "excluded": [dict(item) for item in rank.excluded],
    }


def _largest(rows: list[dict[str, Any]], key: str) -> dict[str, Any] | None:
    rows = [row for row in rows if row["share"] is not None]
    if not rows:
        return None
    return {"name": rows[0][key], "share": rows[0]["share"], "energy_j": rows[0]["energy_j"]}


def _events(record: RunRecord) -> dict[str, list[dict[str, Any]]]:
    """Return shifts of gears ("gear"), decisions of a plan and all "other" events, each by time.

    A shift that all ranks do together is there once.
    """
    rows: list[dict[str, Any]] = []
    decisions: list[dict[str, Any]] = []
    shifts: dict[tuple[Any, Any], dict[str, Any]] = {}
    for rank in record.ranks:
        times: Counter[Any] = Counter()
        for event in rank.events:
            row = {"rank": rank.rank, **{k: v for k, v in event.items() if k != "kind"}}
            if event["name"] == "gear":
                times[event.get("text")] += 1
                shifts.setdefault((event.get("text"), times[event.get("text")]), row)
            else:
                (decisions if event["name"] == DECISION else rows).append(row)
        for opened in rank.opens[1:]:
            if "t" in opened:
                rows.append(
                    {"rank": rank.rank, "t": opened["t"], "name": "start", "text": "The process started again."}
                )
    return {
        "gear": sorted(shifts.values(), key=_when),
        DECISION: sorted(decisions, key=_when),
        "other": sorted(rows, key=_when),
    }


def _when(event: Mapping[str, Any]) -> float:
    return float(event.get("t", 0.0))
