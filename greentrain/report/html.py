"""report.html: one file that opens from disk, without network, with charts of its own."""

import functools
import re
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any, Final

from greentrain.ledger.water import water_text
from greentrain.report import charts, estimated, svg
from greentrain.report.plan import DECISION, plan_texts
from greentrain.report.plan_chart import plan_chart
from greentrain.report.series import RunSeries
from greentrain.report.summary import cost_text, gear_table, how_told, profiled, pue_text, stage_table, state_text
from greentrain.utils import quantities

KIND_NAMES: Final = {"gpu": "GPU", "cpu": "CPU", "dram": "memory", "fpga": "FPGA", "node": "whole node"}
MAX_EVENTS: Final = 24
MAX_SHIFTS: Final = 12
"""Events, and shifts of gears among them, that are listed; summary.json has more."""


def render_html(summary: Mapping[str, Any], series: RunSeries | None) -> str:
    """Return the page.

    Args:
        summary: The summary of the run, from ``summarize``.
        series: The curves of the same run; None draws no chart over time.
    """
    drawn = _charts(summary, series)
    return _page()(
        s=summary,
        charts={"plan": None, "power": None, "energy": None, "emissions": None} | {chart.key: chart for chart in drawn},
        tips={chart.key: chart.tip for chart in drawn},
        headline=headline(summary),
        pue=pue_text(summary["energy"]),
        likes=[(*likeness(item["amount"], item["unit"]), item["source"]) for item in summary["equivalents"]],
        rows=_bar_rows(summary),
        plan=plan_texts(summary),
        estimate=estimated.rows(summary),
        estimate_scope=estimated.scope(summary) if summary.get("estimate") else "",
        gears=gear_table(summary),
        stages=stage_table(summary),
        kind_names=KIND_NAMES,
        profiled=profiled(summary),
        events=_shown_events(summary),
        width=svg.WIDTH,
    )


@functools.cache
def _page() -> Callable[..., str]:
    """Return what fills the page in, with its style and script; it takes a tenth of a second to compile."""
    from jinja2 import Environment, StrictUndefined

    package = files("greentrain.report")
    text = {
        name: package.joinpath(name).read_text(encoding="utf-8") for name in ("report.html", "report.css", "report.js")
    }
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(
        energy=_unbroken(quantities.energy),
        joules=_unbroken(quantities.joules),
        mass=_unbroken(quantities.mass),
        joules_within=_unbroken(functools.partial(quantities.between, units=quantities.JOULE)),
        mass_within=_unbroken(functools.partial(quantities.between, units=quantities.MASS)),
        co2=_unbroken(quantities.carbon),
        power=_unbroken(quantities.power),
        cue=_unbroken(quantities.cue),
        intensity=_unbroken(quantities.intensity),
        percent=_unbroken(quantities.percent),
        duration=_unbroken(quantities.duration),
        count=_unbroken(quantities.count),
        number=_unbroken(quantities.significant),
        how_told=how_told,
        state_text=state_text,
        tied=_tied,
    )
    environment.globals.update(css=text["report.css"], js=text["report.js"])
    return environment.from_string(text["report.html"]).render


def _unbroken(text: Callable[..., str]) -> Callable[..., str]:
    """Keep a figure and its unit on one line."""
    return lambda *values: text(*values).replace(" ", "\N{NO-BREAK SPACE}")


def _tied(text: str) -> str:
    """Keep every figure of a sentence on one line with its unit."""
    return re.sub(r"(?<=\d) (?=\S)", "\N{NO-BREAK SPACE}", text)


def headline(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the texts of the first screen; the same figures as summary.json, with units."""
    energy, carbon, work = summary["energy"], summary["carbon"], summary["work"]
    return {
        "energy": quantities.energy(energy["energy_j"]),
        "cost": cost_text(summary.get("cost")),
        "water": water_text(summary.get("water")),
        "emissions": ("at least " if not carbon["complete"] and carbon["operational_location_g"] is not None else "")
        + quantities.carbon(carbon["operational_location_g"]),
        "per": _per(work, " with embodied" if len(carbon["emissions_include"]) > 1 else ""),
        "provenance": provenance_sentence(summary),
        "interval": interval_sentence(summary),
        "dominates": _dominates(summary),
    }


def provenance_sentence(summary: Mapping[str, Any]) -> str:
    """Say how much of the energy is measured and modelled, and how much device time is unknown."""
    energy = summary["energy"]
    if energy["energy_j"] is None:
        return "No energy is known: no device of this run could be read or modelled."
    text = (
        f"{quantities.percent(energy['measured_share'])} of this energy was read from hardware,"
        f" {quantities.percent(energy['modelled_share'])} is modelled."
        if energy["energy_j"]
        else "The known energy is zero."
    )
    if energy["missing_device_s"] <= 0:
        return text + " No reading is missing."
    blind = [d for d in summary["devices"] if d["missing_s"] > 0]
    names = [
        f"{charts.short_name(d, summary['devices'])}"
        f" ({'all' if d['energy_j'] is None else quantities.duration(d['missing_s'])})"
        for d in blind[:3]
    ]
    more = f" and {len(blind) - 3} more" if len(blind) > 3 else ""
    where = [", ".join(names) + more] if names else []
    if energy["carried_missing_device_s"] > 0:
        where.append(f"earlier parts of the run ({quantities.duration(energy['carried_missing_device_s'])})")
    share = quantities.percent(energy["missing_share_of_device_time"])
    return f"{text} For {share} of device time nothing is known and nothing is counted: {', '.join(where)}."


def interval_sentence(summary: Mapping[str, Any]) -> str:
    """Say what the interval of the energy is, what widens it most, and what is in no figure."""
    energy, text = summary["energy"], summary["completeness"]["text"]
    interval = energy["interval_j"]
    if interval is not None and interval["parts"] and (interval["low"], interval["high"]) != (None, None):
        widest = [f"{name} ({quantities.percent(share)})" for name, share in list(interval["parts"].items())[:2]]
        text = f"Ranges hold in 90 of 100 cases; that of the energy is wide by {' and '.join(widest)}. {text}"
    return " ".join([*energy["interval_notes"], text])


def likeness(amount: float, unit: str) -> tuple[str, str]:
    """Return a comparison's number and unit, in metres or seconds where kilometres or hours are too large."""
    if unit.startswith("km ") and amount < 0.1:
        size, name = (1e-3, "m") if amount >= 1e-3 else (1e-5, "cm") if amount >= 1e-5 else (1e-6, "mm")
        return quantities.significant(amount / size, 2), name + unit[2:]
    if unit.startswith("hours ") and amount < 0.1:
        size, name = (1 / 60, "minutes") if amount >= 1 / 60 else (1 / 3600, "seconds")
        return quantities.significant(amount / size, 2), name + unit[5:]
    return quantities.significant(amount, 2), unit


def _per(work: Mapping[str, Any], grams_of: str) -> dict[str, str]:
    for one, many, key in (("token", "tokens", "tokens"), ("sample", "samples", "samples")):
        if work[f"j_per_{one}"] is not None:
            grams, rate = work[f"g_per_k{one}"], work[f"{key}_per_j"]  # of 0 J there is no rate
            return {
                "title": f"Per {one}",
                "value": f"{quantities.joules(work[f'j_per_{one}'])}/{one}",
                "detail": "no energy was drawn" if rate is None else f"{quantities.significant(rate)} {many}/J",
                "grams": "" if grams is None else f"{quantities.carbon(grams)} per 1\N{THIN SPACE}000 {many}{grams_of}",
            }
    if work["j_per_step"] is not None:
        value = f"{quantities.joules(work['j_per_step'])}/step"
        detail = (
            "some steps told tokens, others samples alone" if work["mixed"] else "tokens and samples were not counted"
        )
        return {"title": "Per step", "value": value, "detail": detail, "grams": ""}
    return {"title": "Per token", "value": quantities.UNKNOWN, "detail": "no energy or no tokens counted", "grams": ""}


def _dominates(summary: Mapping[str, Any]) -> dict[str, str]:
    total_j = summary["energy"]["energy_j"]
    phase = summary["headline"]["phase"]
    if not total_j or phase is None:
        return {"phase": quantities.UNKNOWN, "phase_share": "", "kinds": ""}
    kinds: dict[str, float] = {}
    for device in summary["devices"]:
        if device["energy_j"]:
            name = KIND_NAMES.get(device["kind"], device["kind"] or "other")
            kinds[name] = kinds.get(name, 0.0) + device["energy_j"]
    ordered = sorted(kinds.items(), key=lambda item: -item[1])
    return {
        "phase": str(phase["name"]),
        "phase_share": f"{quantities.percent(phase['share'])} of the energy",
        "kinds": ", ".join(
            f"{name} {quantities.percent(value / total_j)}".replace(" ", "\N{NO-BREAK SPACE}")
            for name, value in ordered[:4]
        ),
    }


def _charts(summary: Mapping[str, Any], series: RunSeries | None) -> list[charts.Chart]:
    drawn = [plan_chart(summary, series)]
    if series is not None and summary["energy"]["energy_j"] is not None:
        drawn += [
            charts.power_chart(summary, series),
            charts.energy_chart(summary, series),
            charts.emissions_chart(summary, series),
        ]
    return [chart for chart in drawn if chart is not None]


def _shown_events(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the events to list, shifts of gears and others each up to a number, and how many are left out.

    Decisions of a plan have a table of their own.
    """
    shifts = [event for event in summary["events"] if event["name"] == "gear"]
    others = [event for event in summary["events"] if event["name"] not in ("gear", DECISION)]
    shown = sorted([*shifts[:MAX_SHIFTS], *others[:MAX_EVENTS]], key=lambda event: float(event.get("t", 0.0)))
    more = len(others) - len(others[:MAX_EVENTS])
    return {"shown": shown, "more": more, "more_shifts": summary["gear_shifts"] - len(shifts[:MAX_SHIFTS])}


def _bar_rows(summary: Mapping[str, Any]) -> dict[str, Any]:
    phases = summary["phases"]
    top_phase = max([row["inclusive_j"] or 0.0 for row in phases] + [row["energy_j"] or 0.0 for row in phases] + [0.0])
    devices = summary["devices"]
    top_device = max([max(d["energy_j"] or 0.0, (d["interval_j"] or {}).get("high") or 0.0) for d in devices] + [0.0])
    hosts = {device["host"] for device in devices}
    colours = charts.device_colours(summary)
    rows = []
    for device in devices:
        within = device["interval_j"] or {"low": None, "high": None}
        rows.append(
            {
                **device,
                "label": charts.short_name(device, devices) + (f" on {device['host']}" if len(hosts) > 1 else ""),
                "css": colours[(device["host"], device["uid"])],
                "bar": _share(device["energy_j"], top_device),
                "energy": quantities.between(device["energy_j"], within, quantities.ENERGY),
                "low": None if within["high"] is None else _share(within["low"], top_device),
                "high": _share(within["high"], top_device),
            }
        )
    embodied = summary["carbon"]["embodied_g"]
    grams = [summary["carbon"]["operational_location_g"], summary["carbon"]["operational_market_g"], *embodied.values()]
    top_g = max([g for g in grams if g is not None] + [0.0])
    return {
        "phases": [
            {
                **row,
                "energy": quantities.between(row["energy_j"], row["interval_j"], quantities.ENERGY),
                "bar": _share(row["energy_j"], top_phase),
                "inclusive": _share(row["inclusive_j"], top_phase),
            }
            for row in phases
        ],
        "devices": rows,
        "carbon": {
            "location": _share(grams[0], top_g),
            "market": _share(grams[1], top_g),
            **{name: _share(value, top_g) for name, value in embodied.items()},
        },
    }


def _share(value: float | None, top: float) -> float:
    return round(100 * max(value or 0.0, 0.0) / top, 2) if top > 0 else 0.0
