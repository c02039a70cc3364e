"""A plan's figures for people: the three numbers with what they rest on, what happened, and one line for the log."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from greentrain.report.plan import END
from greentrain.utils import quantities

MAX_ROWS: Final = 8
"""Changes that are listed from either end; summary.json has more."""
_RESTS_ON: Final = {
    "measured": "watts measured",
    "modelled": "watts modelled",
    "mixed": "watts partly modelled",
    "assumed": "watts and speeds assumed (declared action table)",
}


def plan_line(summary: Mapping[str, Any]) -> str | None:
    """Return the plan's outcome in one line, for the log; None where the run had no plan."""
    plan = summary["plan"]
    if plan is None:
        return None
    rows = three_rows(plan)
    parts = [f"{row['value']} than {row['other']}" for row in rows if row["known"]]
    unknown: dict[str, list[str]] = {}
    for row in rows:
        if not row["known"]:
            unknown.setdefault(row["detail"], []).append(row["other"])
    parts += [f"against {' and '.join(others)} unknown: {reason}" for reason, others in unknown.items()]
    return f"{plan['policy']}: {outcome(plan)}. CO2e: {', '.join(parts)} ({rests_on(plan)})"


def outcome(plan: Mapping[str, Any]) -> str:
    """Return how far the job came, and whether in time."""
    return f"{progress(plan)}, {plan['deadline_text']}"


def progress(plan: Mapping[str, Any]) -> str:
    """Return how far the job came."""
    done, asked = quantities.count(plan["tokens_done"]), quantities.count(plan["tokens"])
    share = plan["tokens_done"] / plan["tokens"]
    if done == asked:
        return f"{done} {plan['unit']}" + (f" ({quantities.percent(share)})" if share < 1 else "")
    return f"{done} of {asked} {plan['unit']}"


def label(plan: Mapping[str, Any]) -> str:
    """Return where the numbers come from, in few words."""
    return str(plan["provenance"]) + (", replayed grid" if plan["replayed"] else "")


def rests_on(plan: Mapping[str, Any]) -> str:
    """Return where the numbers come from."""
    return _RESTS_ON[plan["provenance"]] + (", replayed grid" if plan["replayed"] else "")


def grams_of(plan: Mapping[str, Any]) -> str:
    """Return what the compared grams are of."""
    return "with the PUE of each hour, as the plan counted it" if plan["with_pue"] else "without PUE"


def three_rows(plan: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the three numbers as texts: title, value, the other plan, and the grams behind or why it is not known."""
    static = f"static {plan['static_name']}"
    rows = []
    for key, title, other, grams in (
        ("saving_vs_static", f"Against {static}", static, "static_g"),
        ("saving_vs_blind", "Against carbon-blind", "the best carbon-blind plan", "blind_g"),
        ("regret", "Regret", "the best plan in hindsight", "oracle_g"),
    ):
        value = plan[key]
        row = {"key": key, "title": title, "other": other, "known": value is not None}
        if value is None:
            rows.append({**row, "value": quantities.UNKNOWN, "detail": plan["unknown"].get(key, "it is not known")})
            continue
        more = value > 0 if key == "regret" else value < 0
        text = f"{quantities.percent(abs(value))} {'more' if more else 'less'}"
        detail = f"{quantities.mass(plan['actual_g'])}; {other}: {quantities.mass(plan[grams])}"
        if key == "regret" and value < 0:
            detail += ", by the table: the run drew less than that says"
        rows.append({**row, "value": text, "detail": detail})
    return rows


def plan_texts(summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what the page shows of a plan beside its chart; None where there is none."""
    plan = summary["plan"]
    if plan is None:
        return None
    first, last, between = changes(plan)
    met = {True: "met", False: "missed", None: "open"}[plan["met"]]
    return {
        "policy": plan["policy"],
        "deadline": met,
        "detail": plan["deadline_text"].partition(": ")[2] or plan["deadline_text"],
        "progress": progress(plan),
        "numbers": three_rows(plan),
        "provenance": plan["provenance"],
        "label": label(plan),
        "rests_on": rests_on(plan),
        "grams_of": grams_of(plan),
        "with_pue": plan["with_pue"],
        "span": span(plan),
        "facts": facts(plan),
        "forecast": plan["forecast"],
        "first": first,
        "last": last,
        "between": between,
    }


def facts(plan: Mapping[str, Any]) -> str:
    """Return in a sentence what was decided, and how long each row ran."""
    counts = [_count(plan["decisions"], "decision"), _count(plan["changes"], "change"), _count(plan["pauses"], "pause")]
    if plan["shielded"]:
        counts.append(f"{plan['shielded']} by the deadline's shield")
    used = [row for row in plan["rows"] if row["hours"] > 0]
    used.sort(key=lambda row: -float(row["hours"]))
    hours = [f"{row['name']} {quantities.duration(row['hours'] * 3600)}" for row in used[:6]]
    before_s = plan["stretches"][0][0] - plan["start_s"] if plan["stretches"] else 0.0
    if before_s > 0.02 * (plan["end_s"] - plan["start_s"]):
        hours.append(f"{quantities.duration(before_s)} before the first decision")
    return f"{', '.join(counts)}; {', '.join(hours)}" if hours else ", ".join(counts)


def changes(plan: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]], int]:
    """Return the first changes to list, the last ones, and how many are left out between them."""
    rows = [{**row, "when": _when(row["grid_s"])} for row in plan["changed"]]
    if len(rows) <= 2 * MAX_ROWS:
        return rows, [], 0
    total = plan["changes"] + 1 + sum(row["name"] == END for row in rows)
    return rows[:MAX_ROWS], rows[-MAX_ROWS:], total - 2 * MAX_ROWS


def span(plan: Mapping[str, Any]) -> str:
    """Return from when to when the plan goes, in the grid's time."""
    start = datetime.fromtimestamp(plan["start_s"], UTC).strftime("%d %b %Y %H:%M")
    text = f"{start} to {_when(plan['deadline_s'])} UTC"
    speed = plan["grid"]["speed"]
    return text + (f", replayed {speed:g} times as fast" if speed != 1 else ", replayed" if plan["replayed"] else "")


def _when(grid_s: float) -> str:
    return datetime.fromtimestamp(grid_s, UTC).strftime("%d %b %H:%M")


def _count(number: int, what: str) -> str:
    return f"{quantities.count(number)} {what}{'' if number == 1 else 's'}"
