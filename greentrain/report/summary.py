"""A run in one dict: what it used, where that is known from, what it emitted, per token and by the standards.

Keys of schema 1 stand in docs/run-format.md, ``summary.json``, and are only ever added. ``energy_j`` without another
word is known IT energy, measured plus modelled, without PUE; ``facility_`` means times PUE. Grams are operational
(location-based, PUE included) unless the key says otherwise. A figure that is not known is None, never 0.
"""

import contextlib
import dataclasses
import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from greentrain.config.schema import NODE_METERS
from greentrain.errors import RunFolderError
from greentrain.ledger.bookkeeper import BLURRED, RESOLVED
from greentrain.ledger.journal import ATTRIBUTION, CLOCKS, SHARED, WRONG_DATA, add_states
from greentrain.ledger.reader import RankRecord, RunRecord
from greentrain.ledger.run_folder import ESTIMATE
from greentrain.ledger.sci import sci_scores
from greentrain.ledger.totals import DeviceSums, EntrySums, Totals, stage_uses
from greentrain.ledger.uncertainty import Interval, RunIntervals, intervals
from greentrain.ledger.water import water_figures
from greentrain.policy.action_table import ActionTable
from greentrain.report.estimated import estimated
from greentrain.report.plan import DECISION, plan_figures
from greentrain.report.series import RunSeries, build_series
from greentrain.types import G_PER_KG, IDLE_PHASES, J_PER_KWH, S_PER_HOUR, SLOWED, Attribution, PueSource, kwh_from_j
from greentrain.utils import quantities
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
    "failed": "The program failed; everything up to its end is booked.",
    "sigterm": "The run was ended by SIGTERM; everything up to it is booked.",
    "exit": "The process exited before the session was closed; everything up to it is booked.",
    "killed": "The run was killed: at most the last interval (10 s) before that is lost.",
    "left": "The run left, to be started again later; these are the figures so far.",
    "running": "The run is still going; these are the figures so far.",
}


def summarize(record: RunRecord, *, series: RunSeries | None = None, now_unix_s: float | None = None) -> dict[str, Any]:
    """Reduce a run to the documented dict.

    Args:
        record: The run, from ``read_run``.
        series: The curves of the same run, if they exist already.
        now_unix_s: The present time (s), to tell a running process from a killed one.
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
    gears = gear_rows(by_rank, totals, sums, energy["energy_j"])
    within = intervals(record.ranks)
    stages = _stages(record, within, sums)
    work["mixed"] = _is_mixed(record, by_rank)
    for figures in [work, *gears, *stages] if work["mixed"] else ():
        figures.update(dict.fromkeys([key for key in figures if "token" in key or "sample" in key]))
    booked_by = _booked_by(record)
    told = {(rank.rank, uid): event for rank in record.ranks for uid, event in rank.told.items()}
    energy |= {"interval_j": _bounds(within.total[0]), "interval_notes": list(within.notes)}
    carbon["operational_interval_g"] = _bounds(within.total[1])
    carbon["emissions_interval_g"] = _bounds(within.emissions_g)
    devices = [
        _device(place, booked_by[place], sensors.get(place, {}), device, energy["energy_j"], told)
        | _pair(within.devices.get(place))
        for place, device in sums.devices.items()
    ]
    devices.sort(key=lambda device: -(device["energy_j"] or 0.0))
    clocks = _clocks(record)
    gpus = [clocks.get((row["rank"], row["uid"]), {}) for row in devices if row["kind"] == "gpu" and row["energy_j"]]
    phases = _phases(totals, sums, energy["energy_j"], told, gpus)
    phases = [row | _pair(within.phases.get(row["name"])) for row in phases]
    average_s = max((float(sensor.get("averaging_s") or 0.0) for sensor in sensors.values()), default=0.0)
    most_s = RESOLVED * average_s * sum(part.steps for part in by_rank)
    for row in phases if average_s else ():
        # A mean over a second cannot be undone below it: phases that come with each step are in those around them.
        if row["name"] not in IDLE_PHASES and 0 < (row["rank_seconds"] or 0.0) < most_s:
            row["attribution"] = Attribution.BLURRED
    events, hosts = _events(record), _hosts(record, sums)
    shifts, decisions = events["gear"], events[DECISION]
    state, water = _state(record, now_s), (record.run.get("config") or {}).get("water")
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
        "stages": stages,
        "completeness": completeness(devices, energy, hosts),
        "hosts": hosts,
        "ranks": [_rank(rank, part, now_s) for rank, part in zip(record.ranks, by_rank, strict=True)],
        "carbon": carbon,
        "cost": cost_figures(record, totals, sums),
        "water": water and water_figures(water, energy),
        "work": work,
        "gears": gears,
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
    out["sci"] = sci_fields(out)
    out["scope2"] = scope2_fields(out)
    out["equivalents"] = comparisons(out)
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
    worst = next((word for word in ("exception", "failed", "sigterm", "killed", "exit", "left") if word in words), None)
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
        "exit_code": record.run.get("exit_code"),
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
    place: tuple[str, str],
    rank: int,
    sensor: Mapping[str, Any],
    device: DeviceSums,
    total_j: float | None,
    told: Mapping[tuple[int, str], Mapping[str, Any]],
) -> dict[str, Any]:
    host, uid = place
    seen = told.get((rank, uid), {})
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
        "sees_s": seen.get("sees_s"),
        "late_s": seen.get("late_s"),
        "averaging_s": sensor.get("averaging_s"),
        "read_cost_s": sensor.get("read_cost_s"),
        "note": sensor.get("note") or "",
        "embodied_g": {k: rate[k] * hours for k in ("low", "mid", "high")} if rate else None,
        "embodied_g_per_h": dict(rate) if rate else None,
        "embodied_note": sensor.get("embodied_note") or "",
        **state_figures(device.states.values()),
    }


def state_figures(states: Iterable[Mapping[str, float]]) -> dict[str, Any]:
    """Return what drivers told beside power of some phases, or of one on some devices; None where they did not.

    Args:
        states: Sums of each, with the keys of ``greentrain.ledger.journal.STATE_KEYS``.
    """
    found: dict[str, dict[str, float]] = {}
    for one in states:
        add_states(found, {"": one})
    sums = found.get("", {})

    def mean(key: str, known: str) -> float | None:
        return sums.get(key, 0.0) / sums[known] if sums.get(known, 0.0) > 0 else None

    return {
        "sm_utilisation": mean("sm_s", "util_s"),
        "memory_utilisation": mean("memory_s", "util_s"),
        "utilisation_resolved": mean("whole_s", "util_s"),
        "temperature_c": mean("c_s", "temp_s"),
        "max_temperature_c": sums.get("max_c"),
        "slowed": {why: mean(f"{why}_s", "clocks_s") for why in SLOWED} if sums.get("clocks_s", 0.0) > 0 else None,
    }


def state_text(row: Mapping[str, Any]) -> str:
    """Return for people what ``state_figures`` found: kernels and memory by time, temperature, and what slows."""
    parts = []
    if not row:
        return ""
    if row["sm_utilisation"] is not None:
        blurred = "" if (row["utilisation_resolved"] or 0.0) >= 0.5 else " (blurred)"
        kernels, memory = (quantities.percent(row[f"{name}_utilisation"]) for name in ("sm", "memory"))
        parts.append(f"kernels {kernels}, memory {memory} of the time{blurred}")
    if row["temperature_c"] is not None:
        parts.append(f"{row['temperature_c']:.0f} \N{DEGREE SIGN}C")
    slowed = {why: share for why, share in (row["slowed"] or {}).items() if share}
    if slowed:
        parts.append("slowed by " + ", ".join(f"{why} {quantities.percent(share)}" for why, share in slowed.items()))
    return ", ".join(parts)


def _bounds(interval: Interval | None) -> dict[str, Any] | None:
    return None if interval is None else dataclasses.asdict(interval)


def _pair(found: tuple[Interval | None, Interval | None] | None) -> dict[str, Any]:
    energy_j, operational_g = found or (None, None)
    return {"interval_j": _bounds(energy_j), "interval_g": _bounds(operational_g)}


_PARTS: Final = {
    "accelerators": ("gpu", "fpga"), "processors": ("cpu",), "memory": ("dram",), "disks": (), "mainboard": (),
    "fans": (), "power supply": (), "network between machines": (),
}  # fmt: skip
"""What MLPerf measures of a node and between nodes, and the kinds of device that stand for it
(https://github.com/mlcommons/training_policies/blob/master/power_measurement.adoc and arXiv 2410.12032, read
2026-11-23). A node that is metered as a whole has all but the network."""


def completeness(
    devices: Sequence[Mapping[str, Any]], energy: Mapping[str, Any], hosts: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Return which parts of the machines were metered, modelled, not read, or are in no figure, and that in words.

    Args:
        devices: Rows of the devices.
        energy: Figures of the energy.
        hosts: Rows of the hosts.
    """
    found: dict[str, list[str]] = {"metered": [], "modelled": [], "not read": [], "in no figure": []}
    whole = any(device["kind"] == "node" and device["energy_j"] is not None for device in devices)
    for part, kinds in _PARTS.items():
        ways = {device["provenance"] for device in devices if device["kind"] in kinds}
        if whole and not part.startswith("network"):
            ways = {"measured"}
        for way, name in (("measured", "metered"), ("modelled", "modelled"), ("missing", "not read")):
            if way in ways or ("mixed" in ways and way != "missing"):
                found[name].append(part)
        if not ways and not (part == "accelerators" and devices):
            found["in no figure"].append(part)
    if energy["pue_min"] == energy["pue_max"] == 1:
        found["in no figure"].append("the building's cooling and power conversion (PUE 1)")
    texts = [f"{name.capitalize()}: {', '.join(parts)}." for name, parts in found.items() if parts]
    for row in hosts:
        if row["unmetered_j"] is not None:
            node, rest = (quantities.energy(row[key]) for key in ("node_energy_j", "unmetered_j"))
            texts.append(f"As a whole, {row['host']} used {node}; {rest} is unmetered by components.")
    return {**{name.replace(" ", "_"): parts for name, parts in found.items()}, "text": " ".join(texts)}


def _clocks(record: RunRecord) -> dict[tuple[int, str], Mapping[str, str]]:
    """Return by whose times the joules of devices are cut in each phase, by rank and uid, as far as it makes sense."""
    found: dict[tuple[int, str], Mapping[str, str]] = {}
    for rank in record.ranks:
        for event in rank.events:
            if event["name"] == CLOCKS:
                with contextlib.suppress(*WRONG_DATA):
                    if set(event["phases"].values()) <= {"device", "host", "mixed"}:
                        found[rank.rank, event["device"]] = event["phases"]
    return found


def _clock(name: str, gpus: Sequence[Mapping[str, str]]) -> str | None:
    """Return by whose times GPUs' joules are cut in a phase; one without marks of its own is what others leave."""
    whose: set[str] = set()
    for phases in gpus:
        whose |= {phases[name]} if name in phases else set(phases.values()) or {"host"}
    return (whose.pop() if len(whose) == 1 else "mixed") if whose else None


def _told(name: str, told: Mapping[tuple[int, str], Mapping[str, Any]]) -> dict[str, Any]:
    """Return how a phase is told on the devices whose counters tick, by the worst of them, and its standard error."""
    rows = [event["phases"][name] for event in told.values() if name in event["phases"]]
    watts = sum(row["w"] for row in rows)
    worst = max((row["how"] for row in rows), key=list(Attribution).index, default=None)
    return {
        "attribution": worst,
        "relative_error": sum(row["error"] * row["w"] for row in rows) / watts if watts > 0 else None,
    }


def _phases(
    totals: Totals,
    sums: EntrySums,
    total_j: float | None,
    told: Mapping[tuple[int, str], Mapping[str, Any]],
    gpus: Sequence[Mapping[str, str]],
) -> list[dict[str, Any]]:
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
                **_told(name, told),
                "clock": _clock(name, gpus),
                **state_figures(device.states[name] for device in sums.devices.values() if name in device.states),
            }
        )
    return sorted(rows, key=lambda row: -(row["energy_j"] or 0.0))


def _stages(record: RunRecord, within: RunIntervals, sums: EntrySums) -> list[dict[str, Any]]:
    rows = []
    steps = max((rank.sums.steps for rank in record.ranks), default=0)
    for use in stage_uses((rank.sums, rank.sensors) for rank in record.ranks):
        interval = within.stages.get((use.stage, use.kind))
        low, high = (None, None) if interval is None or use.j_per_token is None else (interval.low, interval.high)
        rows.append(
            {
                "stage": use.stage,
                "kind": use.kind,
                "energy_j": use.energy_j,
                "interval_j": _bounds(interval),
                "provenance": use.provenance,
                "missing_share": use.missing_share,
                "seconds": use.seconds,
                "mean_power_w": use.mean_power_w,
                "j_per_token": use.j_per_token,
                "j_per_token_interval": {"low": ratio(low, use.tokens), "high": ratio(high, use.tokens)},
                "j_per_sample": ratio(use.told_j, sums.samples),
                "j_per_step": ratio(use.told_j, steps),
            }
        )
    return rows


def stage_table(summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what tables show of the stages: kinds of device, and a row for each stage with a text for each kind.

    None where nothing is known by token, sample or step, or there is one stage on one kind of device alone.
    """
    found = {(row["stage"], row["kind"]): row for row in summary.get("stages") or ()}
    one = next((one for one in ("token", "sample", "step") if any(row[f"j_per_{one}"] for row in found.values())), None)
    if one is None or len(found) < 2:
        return None
    stages, kinds = (list(dict.fromkeys(key[i] for key in found)) for i in (0, 1))

    def text(stage: str, kind: str) -> str:
        row = found.get((stage, kind))
        if row is None:
            return ""
        if row[f"j_per_{one}"] is None:
            return row["provenance"] if row["energy_j"] is None else "partly missing"
        within = row["j_per_token_interval"] if one == "token" else None
        return quantities.between(row[f"j_per_{one}"], within, quantities.JOULE)

    return {
        "unit": one,
        "kinds": [
            (kind, ", ".join({found[s, k]["provenance"]: None for s, k in found if k == kind})) for kind in kinds
        ],
        "rows": [(stage, [text(stage, kind) for kind in kinds]) for stage in stages],
    }


def _hosts(record: RunRecord, sums: EntrySums) -> list[dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for rank in record.ranks:
        row = rows.setdefault(rank.host, {"host": rank.host, "energy_j": None, "ranks": []})
        row["ranks"].append(rank.rank)
    for (host, _), device in sums.devices.items():
        if (energy_j := device.energy_j) is not None:
            rows[host]["energy_j"] = (rows[host]["energy_j"] or 0.0) + energy_j
    for host, row in rows.items():
        ranks = [rank.sums for rank in record.ranks if rank.host == host]
        told = _outermost(pair for sums in ranks for pair in sums.references.items())
        wall_s, seconds = max(sums.duration_s for sums in ranks), max((one["s"] for one in told), default=0.0)
        row["node_energy_j"] = sum(one["j"] for one in told) if seconds > 0 else None
        row["unmetered_j"] = None
        if seconds > 0 and wall_s > 0 and row["energy_j"] is not None:
            row["unmetered_j"] = row["node_energy_j"] - row["energy_j"] * min(seconds / wall_s, 1.0)
    return list(rows.values())


def _outermost(references: Iterable[tuple[str, Mapping[str, float]]]) -> list[Mapping[str, float]]:
    """Return those that no other contains: one controller of the node, else all modules of it."""
    found: dict[str, Counter[str]] = {}
    for uid, told in references:
        found.setdefault(uid, Counter()).update(told)
    controllers = [uid for uid, told in found.items() if uid.partition(":")[0] in NODE_METERS and told["s"] > 0]
    return [found[uid] for uid in controllers[:1] or found]


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

    A shift that all ranks do together is there once, and of attributions the last of each device.
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
            elif event["name"] not in (ATTRIBUTION, CLOCKS, SHARED) or event in rank.told.values():
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


CUE_SOURCE: Final = (
    "The Green Grid, white paper 32 (2010), ISO/IEC 30134-8: emissions of the facility's energy / IT energy; here of"
    " this run's electricity, location-based"
)


def facility_figures(record: RunRecord, sums: EntrySums, energy_j: float | None) -> dict[str, Any]:
    """Return facility energy, PUE (its mean by energy), its range, and the energy by source of PUE.

    Args:
        record: The run.
        sums: Sums over the entries of all ranks.
        energy_j: The IT energy of the run (J), None where nothing is known.
    """
    pue = _mean(record, sums)
    facility_j = None
    if energy_j is not None:
        facility_j = sums.facility_j + sum(_carried_j(rank.carried, pue) for rank in record.ranks)
        pue = round(facility_j / energy_j, 9) if energy_j > 0 else pue
    known_j = sum(sums.pue_j.values())
    return {
        "facility_energy_j": facility_j,
        "facility_energy_kwh": None if facility_j is None else kwh_from_j(facility_j),
        "pue": pue,
        "pue_min": (sums.pue or (pue,))[0],
        "pue_max": (sums.pue or (pue,))[-1],
        "pue_by_source_j": dict(sums.pue_j),
        "pue_fallback_share": sums.pue_j.get(PueSource.FALLBACK, 0.0) / known_j if known_j > 0 else None,
    }


def told_of(rank: RankRecord) -> dict[str, Any]:
    """Return what a summary says of one rank's books beside their totals: how phases are told, and intervals.

    Returns:
        ``interval_j`` of the energy, and by device uid and by phase, ``devices`` and ``phases``, its interval with how
        the joules are told in the words of people.
    """
    summary = summarize(RunRecord(folder=Path(), run={}, ranks=[rank]))
    return {
        "interval_j": summary["energy"]["interval_j"],
        "devices": {row["uid"]: (row["interval_j"], "") for row in summary["devices"]},
        "phases": {row["name"]: (row["interval_j"], how_told(row)) for row in summary["phases"]},
    }


def how_told(phase: Mapping[str, Any]) -> str:
    """Return for people how a phase's joules are told from others': with an interval that holds in 95 of 100 cases."""
    how, error = phase.get("attribution") or "", phase.get("relative_error")
    if how == Attribution.REGRESSED and error is not None:
        how = f"{how}, \N{PLUS-MINUS SIGN} {quantities.percent(1.96 * error)}"
    return ", ".join(
        filter(None, (how, {"host": "host time", "mixed": "partly host time"}.get(phase.get("clock") or "")))
    )


def pue_text(energy: Mapping[str, Any]) -> str:
    """Return the PUE for people: its mean, and between what it changed."""
    mean, low, high = (f"{energy[key]:.4g}" for key in ("pue", "pue_min", "pue_max"))
    return mean if low == high else f"{mean} (mean by energy; {low} to {high})"


def facility_rows(summary: Mapping[str, Any], carbon_config: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return what is to be said of PUE and CUE among the assumptions: name, value, source.

    Args:
        summary: The summary so far.
        carbon_config: Section ``carbon`` of the run's configuration.
    """
    energy, cue = summary["energy"], summary["carbon"]["cue_kg_per_kwh"]
    by_source = energy["pue_by_source_j"]
    constant = float(carbon_config.get("pue") or 1.0)
    told = not energy["pue_min"] == energy["pue_max"] == constant
    recorded = _recorded(carbon_config, by_source, told=told)
    rows = [("PUE (facility energy / IT energy)", pue_text(energy), recorded or _assumed(energy["pue"]))]
    if energy["pue_fallback_share"] and recorded:
        share = quantities.percent(energy["pue_fallback_share"])
        rows.append(
            (f"PUE of {share} of the energy", f"{constant:g}", f"assumed where nobody told: {_assumed(constant)}")
        )
    if cue is not None:
        rows.append(("CUE (carbon usage effectiveness)", quantities.cue(cue), CUE_SOURCE))
    return rows


def _mean(record: RunRecord, sums: EntrySums) -> float:
    if sums.energy_j > 0:
        return round(sums.facility_j / sums.energy_j, 9)
    for rank in record.ranks:
        for entry in rank.entries:
            return entry.pue
    return float((record.run.get("config") or {}).get("carbon", {}).get("pue") or 1.0)


def _carried_j(carried: Totals, pue: float) -> float:
    """Return the facility energy of totals; by the mean PUE where they do not tell."""
    return carried.facility_j if carried.facility_j >= carried.energy_j else carried.energy_j * pue


def _recorded(carbon_config: Mapping[str, Any], by_source: Mapping[str, float], *, told: bool) -> str:
    """Return who told the PUE, or was to tell it, if it was not the configuration.

    Args:
        carbon_config: Section ``carbon`` of the run's configuration.
        by_source: Energy by source of PUE (J).
        told: False: all of it is the configured number, which a fall-back of a whole run is.
    """
    sources = set(by_source) - {PueSource.CONSTANT}
    if not sources:
        return ""
    silent = sources == {PueSource.FALLBACK} and not told
    if carbon_config.get("pue_csv"):
        verb = "not in the facility's records" if silent else "recorded by the facility"
        return f"{verb}: carbon.pue_csv, {carbon_config['pue_csv']}"
    query, url = carbon_config.get("pue_prometheus_query"), carbon_config.get("pue_prometheus_url")
    host = urlsplit(url).hostname if url else "a server that the configuration no longer names"
    verb = "not told by the facility" if silent else "measured by the facility"
    return f"{verb}: {query} of Prometheus at {host}"


def _assumed(pue: float) -> str:
    if pue != 1.0:
        return "carbon.pue in the configuration"
    return "default 1: cooling and power conversion of the building are not counted"


def energy_figures(record: RunRecord, totals: Totals, sums: EntrySums) -> dict[str, Any]:
    """Return joules and kWh, PUE, provenance shares, coverage and uncertainty; earlier parts of the run count."""
    known = any(device.energy_j is not None for device in sums.devices.values())
    carried_j = sum(rank.carried.energy_j for rank in record.ranks)
    energy_j = totals.energy_j if known or carried_j > 0 else None
    booked_s = sum(device.booked_s for device in sums.devices.values())
    booked_s += sum(rank.carried.device_s for rank in record.ranks)
    missing_s = max(sum(totals.missing_s.values()), 0.0)
    shares = {name: totals.by_provenance.get(name, 0.0) for name in ("measured", "modelled")}
    return {
        "energy_j": energy_j,
        "energy_kwh": None if energy_j is None else kwh_from_j(energy_j),
        **facility_figures(record, sums, energy_j),
        "carried_j": carried_j,
        "by_provenance_j": {name: None if energy_j is None else value for name, value in shares.items()},
        "measured_share": shares["measured"] / energy_j if energy_j else None,
        "modelled_share": shares["modelled"] / energy_j if energy_j else None,
        "device_s": booked_s,
        "missing_device_s": missing_s,
        "carried_missing_device_s": max(sum(sum(rank.carried.missing_s.values()) for rank in record.ranks), 0.0),
        "missing_share_of_device_time": missing_s / booked_s if booked_s > 0 else None,
        "uncertainty": _uncertainty(record, sums, energy_j),
    }


def _uncertainty(record: RunRecord, sums: EntrySums, energy_j: float | None) -> float | None:
    """Worst case: relative uncertainties of all devices in the same direction; None if one states none."""
    if not energy_j:
        return None
    total = known_j = 0.0
    sensors = record.sensors
    for place, device in sums.devices.items():
        if energy_of_device_j := device.energy_j:
            stated = sensors.get(place, {}).get("uncertainty")
            if stated is None:
                return None
            total += stated * energy_of_device_j
            known_j += energy_of_device_j
    return total / known_j if known_j > 0 else None


def power_figures(wall_s: float, energy: Mapping[str, Any], series: RunSeries | None) -> dict[str, Any]:
    """Return mean power and the peak over a stated window."""
    return {
        "mean_w": energy["energy_j"] / wall_s if energy["energy_j"] is not None and wall_s > 0 else None,
        "peak_w": series.peak_w if series is not None and energy["energy_j"] is not None else None,
        "peak_window_s": series.window_s if series is not None else None,
    }


def carbon_figures(record: RunRecord, totals: Totals, sums: EntrySums, energy: Mapping[str, Any]) -> dict[str, Any]:
    """Return grams (operational, embodied, both), CUE, intensity and who states it."""
    energy_j = energy["energy_j"]
    priced_j = totals.energy_j - totals.unpriced_j
    operational_g = totals.operational_g if energy_j is not None and (priced_j > 0 or energy_j == 0) else None
    carried = any(rank.carried.embodied_g > 0 for rank in record.ranks)
    mid = totals.embodied_g if sums.embodied or carried else None
    spread = _embodied_ratio(record, sums)
    embodied = {
        "low": None if mid is None or spread is None else mid * spread[0],
        "mid": mid,
        "high": None if mid is None or spread is None else mid * spread[1],
    }
    market = ((record.run.get("config") or {}).get("carbon") or {}).get("market_g_per_kwh")
    facility_kwh = energy["facility_energy_kwh"]
    carried_g = sum(rank.carried.operational_g for rank in record.ranks)
    priced_facility_j = sums.priced_facility_j
    grams_here = totals.operational_g - carried_g
    return {
        "operational_location_g": operational_g,
        "operational_market_g": None if market is None or facility_kwh is None else market * facility_kwh,
        "market_g_per_kwh": market,
        "embodied_g": embodied,
        "devices_without_embodied": sum(
            1 for place in sums.devices if not record.sensors.get(place, {}).get("embodied_g_per_h")
        ),
        "emissions_g": None if operational_g is None else operational_g + (mid or 0.0),
        "emissions_include": ["operational"] + (["embodied (mid)"] if mid is not None else []),
        "complete": energy_j is not None and totals.unpriced_j == 0,
        "unpriced_j": totals.unpriced_j if energy_j is not None else None,
        "cue_kg_per_kwh": (
            None if operational_g is None or priced_j <= 0 else operational_g / G_PER_KG / kwh_from_j(priced_j)
        ),
        "intensity_g_per_kwh": grams_here / priced_facility_j * J_PER_KWH if priced_facility_j > 0 else None,
        "intensity_min_g_per_kwh": sums.g_per_kwh and sums.g_per_kwh[0],
        "intensity_max_g_per_kwh": sums.g_per_kwh and sums.g_per_kwh[1],
        "sources": [
            {"zone": z, "source": s, "kind": k, "basis": b, "accounting": a, "energy_j": joules}
            for (z, s, k, b, a), joules in sorted(sums.zone_j.items(), key=lambda item: -item[1])
        ],
        "signal": dict(record.run.get("carbon") or {}),
    }


def _embodied_ratio(record: RunRecord, sums: EntrySums) -> tuple[float, float] | None:
    """Return low / mid and high / mid of the embodied share, weighted by device-hours; None if unknown."""
    low = mid = high = 0.0
    for place, sensor in record.sensors.items():
        rate = sensor.get("embodied_g_per_h")
        if rate:
            hours = sums.devices[place].booked_s / S_PER_HOUR
            low, mid, high = low + rate["low"] * hours, mid + rate["mid"] * hours, high + rate["high"] * hours
    return (low / mid, high / mid) if mid > 0 else None


def cost_figures(record: RunRecord, totals: Totals, sums: EntrySums) -> dict[str, Any] | None:
    """Return what the electricity cost, PUE included, each interval by its own price; None where nobody was asked.

    Args:
        record: The run.
        totals: Totals of the job, earlier parts included.
        sums: Sums over the entries of all ranks.
    """
    if not (totals.cost or totals.uncosted_j or (record.run.get("config") or {}).get("price")):
        return None
    one = next(iter(totals.cost.items())) if len(totals.cost) == 1 else (None, None)
    low, high = sums.per_kwh or (None, None)
    return {
        "currency": one[0],
        "amount": one[1],
        "amounts": dict(totals.cost),
        "complete": bool(totals.cost) and totals.uncosted_j == 0,
        "uncosted_j": totals.uncosted_j,
        "per_kwh_min": low,
        "per_kwh_max": high,
        "per_mtoken": ratio(one[1], totals.tokens / 1e6 if totals.tokens else None),
        "sources": [
            {"currency": c, "source": s, "kind": k, "energy_j": joules} for (c, s, k), joules in sums.price_j.items()
        ],
    }


def cost_text(cost: Mapping[str, Any] | None) -> str:
    """Return the money of a run for people; empty where nobody was asked what a kWh costs."""
    if cost is None:
        return ""
    amounts = ", ".join(quantities.money(amount, currency) for currency, amount in cost["amounts"].items())
    return ("at least " if amounts and cost["uncosted_j"] else "") + (amounts or "unknown")


def work_figures(wall_s: float, totals: Totals, energy: Mapping[str, Any], carbon: Mapping[str, Any]) -> dict[str, Any]:
    """Return steps, tokens, samples and their ratios to joules, grams and seconds."""
    tokens, samples = totals.tokens or None, totals.samples or None
    energy_j, emissions_g = energy["energy_j"], carbon["emissions_g"]
    return {
        "steps": totals.steps or None,
        "tokens": tokens,
        "samples": samples,
        "tokens_per_j": ratio(tokens, energy_j),
        "samples_per_j": ratio(samples, energy_j),
        "j_per_token": ratio(energy_j, tokens),
        "j_per_sample": ratio(energy_j, samples),
        "j_per_step": ratio(energy_j, totals.steps or None),
        "g_per_ktoken": ratio(emissions_g, tokens / 1000 if tokens else None),
        "g_per_ksample": ratio(emissions_g, samples / 1000 if samples else None),
        "tokens_per_s": ratio(tokens, wall_s),
        "samples_per_s": ratio(samples, wall_s),
    }


def _is_mixed(record: RunRecord, by_rank: Sequence[Totals]) -> bool:
    units = {"tokens" if part.tokens else "samples" for part in by_rank if part.tokens or part.samples}
    return len(units) > 1 or any(event.get("mixed") for rank in record.ranks for event in rank.events)


def ratio(a: float | None, b: float | None) -> float | None:
    """Return a quotient; None where either is not known, or there is nothing to divide by."""
    return None if a is None or not b else a / b


NAMES: Final = 3
"""Layers named as examples in a group."""


def gear_rows(
    by_rank: Sequence[Totals], totals: Totals, sums: EntrySums, total_j: float | None
) -> list[dict[str, Any]]:
    """Return a row for each gear that ran, the one with most energy first; none where the run had no gears.

    A gear has all time from the shift to it up to the shift away from it, but for evaluations, checkpoints and pauses.
    Energy and work are sums over ranks, ``seconds`` and ``steps`` those of the rank with most. ``g_per_ktoken`` is of
    the intervals in this folder whose carbon intensity is known, embodied share included. Where too much of a gear lies
    in readings with other time, ``attribution`` is "blurred", and no figure compares it with others; nor where too much
    is missing.

    Args:
        by_rank: Totals of each rank.
        totals: Totals of the job.
        sums: Sums over the entries of all ranks, for the grams.
        total_j: Known energy of the whole run (J), or None.
    """
    rows = []
    for gear, use in totals.by_gear.items():
        seconds = max(part.by_gear[gear].seconds for part in by_rank if gear in part.by_gear)
        energy_j = use.energy_j if use.is_known else None
        blurred = use.shared_s > BLURRED * use.device_s
        told = not blurred and use.missing_s <= BLURRED * use.device_s
        told_j, grams = (energy_j, sums.gear_g.get(gear)) if told else (None, None)
        row: dict[str, Any] = {
            "gear": gear,
            "energy_j": energy_j,
            "share": ratio(energy_j, total_j),
            "modelled_share": ratio(use.modelled_j, energy_j),
            "seconds": seconds,
            "steps": use.steps or None,
            "tokens": use.tokens or None,
            "samples": use.samples or None,
            "mean_power_w": ratio(told_j, seconds),
            "attribution": Attribution.BLURRED if blurred else Attribution.RESOLVED,
            "operational_g": grams["operational_g"] if grams else None,
            "g_per_ktoken": ratio(1000 * grams["emissions_g"], grams["tokens"]) if grams else None,
            "device_s": use.device_s,
            "missing_device_s": use.missing_s,
            "coverage": 0.0 if energy_j is None else max(1.0 - max(use.missing_s, 0.0) / (use.device_s or 1.0), 0.0),
        }
        for one, done in (("token", use.tokens), ("sample", use.samples), ("step", use.steps)):
            row[f"j_per_{one}"] = ratio(told_j, done)
            row[f"{one}s_per_s"] = ratio(done or None, seconds)
        rows.append(row)
    return sorted(rows, key=lambda row: -(row["energy_j"] or 0.0))


def profiled(summary: Mapping[str, Any]) -> str | None:
    """Return the gears side by side as ``profile_gears()`` has measured them, as text; None where it has not."""
    table = summary["action_table"]
    return None if table is None else str(ActionTable.from_dict(table))


def gear_table(summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what tables show of the gears: the rows, per token, sample or step, and where their energy is from.

    None where the run had no gears.
    """
    rows = summary["gears"]
    if not rows:
        return None
    one = next((one for one in ("token", "sample") if any(row[f"{one}s"] for row in rows)), "step")
    base = max(rows, key=lambda row: float(row[f"j_per_{one}"] or 0.0))  # the dearest: the others show what they save
    shown = []
    for row in rows:
        relative = ratio(row[f"j_per_{one}"], base[f"j_per_{one}"]) if row is not base else None
        shown.append(
            {
                **row,
                "rate_per_s": row[f"{one}s_per_s"],
                "j_per_one": row[f"j_per_{one}"],
                "relative": "" if relative is None else f"{quantities.significant(relative)}x {base['gear']}",
                "provenance": _provenance(row),
                "source": _source(row),
            }
        )
    return {
        "unit": one,
        "rows": shown,
        "modelled": any(row["modelled_share"] for row in rows),
        "whole": sum(row["seconds"] for row in rows) >= 0.995 * (summary["time"]["wall_s"] or 0.0),
    }


def _provenance(row: Mapping[str, Any]) -> str:
    if row["energy_j"] is None:
        return "missing"
    return "modelled" if row["modelled_share"] else "measured"


def _source(row: Mapping[str, Any]) -> str:
    """Say how much of a gear's energy is modelled, and of how much device time nothing is known."""
    if row["energy_j"] is None:
        return "no reading"
    share = row["modelled_share"]
    text = f"{quantities.percent(share)} modelled" if share else "measured"
    if row["attribution"] == Attribution.BLURRED:
        return f"{text}, too short to be told from others"
    if row["coverage"] < 0.9995:
        text += f", {quantities.percent(row['coverage'])} of device time"
    elif row["missing_device_s"] < 0:
        text += ", with energy of a gap in another gear"
    return text


def layer_figures(run: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return how much of a model may run in FP8, on which backend, and the rest by reason; None without a plan.

    Args:
        run: run.json; ``layers`` and ``gear_backend`` are read.
    """
    layers = run.get("layers")
    if not layers:
        return None
    whole = all("parameters" in layer for layer in layers)  # an older run lists its linear layers alone
    groups: dict[tuple[bool, str], dict[str, Any]] = {}
    for layer in layers:
        chosen, reason = bool(layer["chosen"]), str(layer["reason"])
        group = groups.setdefault(
            (chosen, reason), {"chosen": chosen, "reason": reason, "count": 0, "weights": 0, "names": []}
        )
        group["count"] += 1
        group["weights"] += layer["parameters"] if whole else layer["in_features"] * layer["out_features"]
        if len(group["names"]) < NAMES:
            group["names"].append(layer["name"])
    ordered = sorted(groups.values(), key=lambda group: (not group["chosen"], -group["weights"]))
    weights = sum(group["weights"] for group in ordered)
    for group in ordered:
        group["share"] = ratio(group["weights"], weights)
    return {
        "backend": run.get("gear_backend") or None,
        "count": sum(not whole or layer["in_features"] is not None for layer in layers),
        "chosen": sum(group["count"] for group in ordered if group["chosen"]),
        "weight_share": ratio(sum(group["weights"] for group in ordered if group["chosen"]), weights),
        "of": "the model's parameters" if whole else "their weights",
        "groups": ordered,
    }


def assumptions(summary: Mapping[str, Any], run: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the assumptions behind a summary, each with value and source.

    Args:
        summary: The summary so far.
        run: The content of run.json, for the settings.
    """
    config = run.get("config") or {}
    carbon_config = config.get("carbon") or {}
    rows = [*facility_rows(summary, carbon_config), *_intensity(summary["carbon"])]
    for key, name in (("relative_error", "carbon intensity"), ("pue_relative_error", "PUE")):
        if (error := carbon_config.get(key)) is not None:
            rows.append(
                (f"Standard error of the {name}", quantities.percent(error), f"carbon.{key} in the configuration")
            )
    market = carbon_config.get("market_g_per_kwh")
    if market is not None:
        source = "carbon.market_g_per_kwh in the configuration; GHG Protocol scope 2, market-based"
        rows.append(("Contracted carbon intensity", f"{market:g} g/kWh", source))
    if summary["carbon"]["embodied_g"]["mid"] is not None and "lifetime_years" in carbon_config:
        source = "carbon.lifetime_years; low and high estimates use 6 and 3 years"
        rows.append(("Life of a device", f"{carbon_config['lifetime_years']:g} years", source))
    rows += [*_devices(summary), *_plan(summary["plan"])]
    if summary["cost"] is not None:
        low, high = summary["cost"]["per_kwh_min"], summary["cost"]["per_kwh_max"]
        for source in summary["cost"]["sources"]:
            value = f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
            rows.append(("Price of electricity", f"{value} {source['currency']}/kWh", source["source"]))
        if summary["cost"]["uncosted_j"]:
            joules = f"{summary['cost']['uncosted_j']:.4g} J"
            rows.append(("Energy without a price", joules, "in no figure of money"))
    if summary["water"] is not None:
        rows += [(row["name"], row["value"], row["source"]) for row in summary["water"]["assumptions"]]
    left_out = [item for rank in summary["ranks"] for item in rank["excluded"]]
    rows += [(f"Left out: {item['name']}", "not counted", item["reason"]) for item in left_out]
    different = dict.fromkeys((str(name), str(value), str(source)) for name, value, source in rows)
    return [{"name": name, "value": value, "source": source} for name, value, source in different]


def _intensity(carbon: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    value = _range(carbon) if len(carbon["sources"]) == 1 else "by interval"
    for source in carbon["sources"]:
        who = f"{source['source']} ({source['kind']}, {source['basis']}, {source['accounting']})"
        yield f"Carbon intensity of {source['zone']}", value, who
    signal = carbon["signal"]
    if signal.get("resolution"):
        yield "Time resolution of the intensity", signal["resolution"], signal.get("source", "")
    if carbon["unpriced_j"]:
        yield "Energy without a carbon intensity", f"{carbon['unpriced_j']:.4g} J", "in no figure of grams"


def _range(carbon: Mapping[str, Any]) -> str:
    low, high = carbon["intensity_min_g_per_kwh"], carbon["intensity_max_g_per_kwh"]
    if low is None:
        return "unknown"
    return f"{low:.4g} g/kWh" if high - low < 1e-3 * max(high, 1e-9) else f"{low:.4g} to {high:.4g} g/kWh"


def _plan(plan: Mapping[str, Any] | None) -> Iterator[tuple[str, str, str]]:
    if plan is not None and plan["provenance"] == "assumed":
        count = len(plan["rows"]) - 1
        source = "policy.actions in the configuration; nobody measured it on these devices"
        yield "Action table of the plan", f"speed and watts of {count} action{'s' * (count > 1)}", source
    if plan is not None and plan["replayed"]:
        speed = plan["grid"]["speed"]
        value = f"from {plan['start_utc']} on" + ("" if speed == 1 else f", {speed:g} times as fast")
        yield "Time of the grid", value, "carbon.replay_start and carbon.speed in the configuration"


def _devices(summary: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    for device in summary["devices"]:
        if device["provenance"] in ("modelled", "mixed"):
            yield f"Power model of {device['name']}", device["method"] or "model", device["note"] or "not measured"
        rate, name = device["embodied_g_per_h"], f"Embodied carbon of {device['name']}"
        if rate:
            yield name, f"{rate['mid']:.3g} g/h ({rate['low']:.3g} to {rate['high']:.3g})", rate.get("source", "")
        elif device["embodied_note"]:
            yield name, "no figure of its own", device["embodied_note"]


M_PER_MILE: Final = 1609.344
"""Metres in an international mile, exact."""

CAR_G_PER_KM: Final = 393.0 / (M_PER_MILE / 1000)
"""Average US passenger vehicle on petrol: 3.93e-4 tCO2e per mile = 244 g/km (US EPA, Greenhouse Gas Equivalencies
Calculator, Calculations and References, as quoted 2026-08). New cars in the EU: 107 g/km in 2023 (WLTP, EEA)."""

PHONE_CHARGE_J: Final = (14.46 - 0.13 * 22) * S_PER_HOUR
"""One full charge of a smartphone: 11.6 Wh = 14.46 Wh in 24 h less 22 h of maintenance at 0.13 W (US DOE 2020, in
US EPA, Greenhouse Gases Equivalencies Calculator, page of 2021)."""

KETTLE_CUP_J: Final = 0.25 * 4186.0 * (100.0 - 15.0) / 0.85
"""Boiling 0.25 l of water from 15 C: m c dT with c = 4186 J/(kg K), at 85 % efficiency of an electric kettle
(usual range 80 to 90 %)."""

LAPTOP_W: Final = 50.0
"""A laptop in use, upper end of the 20 to 50 W of smarterbusiness.co.uk's table of appliances (read 2026-11)."""


def equivalents(*, emissions_g: float | None, energy_j: float) -> list[dict[str, Any]]:
    """Return comparisons for a run: amount, unit (what it counts, to be printed after it), source, and both as text.

    Args:
        emissions_g: Emissions (gCO2e); None leaves the car out.
        energy_j: Energy at the socket, facility overhead included (J).
    """
    likes = [
        (energy_j / PHONE_CHARGE_J, "smartphone charges", "US DOE 2020, in US EPA equivalencies: 11.6 Wh each"),
        (
            energy_j / KETTLE_CUP_J,
            "cups of water boiled in a kettle",
            "0.25 l from 15 C at 85 % efficiency: 105 kJ each",
        ),
        (
            energy_j / (LAPTOP_W * S_PER_HOUR),
            "hours of a laptop in use",
            "50 W, upper end of 20 to 50 W (smarterbusiness.co.uk)",
        ),
    ]
    if emissions_g is not None:
        source = "US EPA equivalencies: 393 gCO2e per mile"
        likes.insert(0, (emissions_g / CAR_G_PER_KM, "km in an average US petrol car", source))
    shown = [f"{amount:,.0f}" if amount >= 100 else f"{amount:.2g}" for amount, _, _ in likes]
    return [
        {"amount": amount, "unit": unit, "source": source, "text": f"{text} {unit}"}
        for (amount, unit, source), text in zip(likes, shown, strict=True)
    ]


PROCEDURE: Final = (
    "provider boundary, this training run only: data preparation, other experiments, inference and retirement are"
    " not in it"
)


def sci_fields(summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the Software Carbon Intensity: boundary, method and a score for each known functional unit.

    ``value_g``, ``unit`` and ``complete`` repeat the first score (per training token where tokens were counted).
    None where the operational emissions are not known.
    """
    carbon, energy, work = summary["carbon"], summary["energy"], summary["work"]
    if carbon["operational_location_g"] is None:
        return None
    scores = sci_scores(
        operational_g=carbon["operational_location_g"],
        embodied_g=carbon["embodied_g"]["mid"],
        tokens=work["tokens"] or 0,
        parameters=summary["run"]["parameters"],
        unpriced_j=carbon["unpriced_j"] or 0.0,
        missing_s=energy["missing_device_s"],
    )
    first = scores[0] if scores else None
    devices = ", ".join(dict.fromkeys(device["name"] for device in summary["devices"]))
    return {
        "value_g": first.g_per_unit if first else None,
        "unit": first.unit if first else None,
        "complete": first.complete if first else None,
        "operational_g": carbon["operational_location_g"],
        "embodied_g": carbon["embodied_g"]["mid"],
        "boundary": f"{PROCEDURE}. Hardware: {devices or 'none'}",
        "method": "SCI = (E x I + M) per R, ISO/IEC 21031:2024; E includes PUE, I location-based",
        "scores": [score.to_dict() for score in scores],
    }


def scope2_fields(summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return purchased electricity by both methods of the GHG Protocol (Scope 2 Guidance, 2015); None without energy.

    They are for whoever runs the hardware; to a tenant of a cloud the same grams are scope 3. ``scope2_location_g`` is
    by the grid's factor, which is to be an average, as booked, interval by interval; None where no intensity was known.
    ``scope2_market_g`` is by the contracted factor, which is one for the whole run; None without a contract. Offsets
    never count.
    """
    carbon, energy = summary["carbon"], summary["energy"]
    if energy["energy_j"] is None:
        return None
    sources = carbon["sources"]
    return {
        "scope2_location_g": carbon["operational_location_g"],
        "scope2_market_g": carbon["operational_market_g"],
        "factor_source": "; ".join(dict.fromkeys(f"{s['zone']}: {s['source']}" for s in sources)) or "unknown",
        "factor_kind": ", ".join(dict.fromkeys(s["basis"] for s in sources)) or "unknown",
        "time_resolution": carbon["signal"].get("resolution") or "not stated",
    }


def comparisons(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return comparisons a person can feel; none where the energy is not known."""
    facility_j = summary["energy"]["facility_energy_j"]
    if not facility_j:
        return []
    return equivalents(emissions_g=summary["carbon"]["emissions_g"], energy_j=facility_j)
