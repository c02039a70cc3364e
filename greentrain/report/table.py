"""A summary as a table for the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from greentrain.report import estimated
from greentrain.report.charts import short_name
from greentrain.report.html import KIND_NAMES, headline
from greentrain.report.plan import plan_texts
from greentrain.report.summary import gear_table, how_told, pue_text, stage_table, state_text
from greentrain.utils import quantities


def render(summary: Mapping[str, Any]) -> RenderableType:
    """Return a rich renderable: headline, the plan, devices, phases and gears, where the run had any."""
    head = headline(summary)
    state = summary["state"]
    run = summary["run"]
    title = Text.assemble(
        (str(run["name"]), "bold"), f"  {run['run_id']}  ", (state["word"], "green" if state["finished"] else "yellow")
    )
    parts: list[Any] = [title, _headline(summary, head), Text(head["provenance"], style="dim")]
    parts.append(Text(head["interval"], style="dim"))
    if not state["finished"] or state["ranks_without_file"]:
        parts.append(Text(state["text"], style="yellow"))
    plan = plan_texts(summary)
    if plan is not None:
        parts += [
            _plan(plan),
            Text(f"{plan['facts']}. CO2e of IT power, {plan['grams_of']}; {plan['rests_on']}.", style="dim"),
        ]
    if summary.get("estimate"):
        parts += [_estimated(summary), Text(estimated.scope(summary), style="dim")]
    parts += [_devices(summary), _phases(summary)]
    if (stages := stage_table(summary)) is not None:
        table = _table(f"Energy per {stages['unit']} by stage and device", "Stage", left=("Stage",))
        for kind, provenance in stages["kinds"]:
            table.add_column(f"{escape(KIND_NAMES.get(kind, kind))}, {provenance}", justify="right")
        for stage, texts in stages["rows"]:
            table.add_row(escape(stage), *texts)
        parts.append(table)
    gears = gear_table(summary)
    return Group(*parts) if gears is None else Group(*parts, _gears(gears))


def _headline(summary: Mapping[str, Any], head: Mapping[str, Any]) -> Table:
    energy, carbon = summary["energy"], summary["carbon"]
    embodied, location_g = carbon["embodied_g"], carbon["operational_location_g"]
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column(style="bold")
    table.add_column()
    joules = quantities.between(energy["energy_j"], energy["interval_j"], quantities.JOULE)
    cue = "" if carbon["cue_kg_per_kwh"] is None else f", CUE {quantities.cue(carbon['cue_kg_per_kwh'])}"
    facility = quantities.energy(energy["facility_energy_j"])
    table.add_row("Energy", head["energy"], f"{joules}; {facility} with PUE {pue_text(energy)}")
    table.add_row(
        "Emissions",
        head["emissions"],
        f"electricity {quantities.between(location_g, carbon['operational_interval_g'], quantities.MASS)} at"
        f" {quantities.intensity(carbon['intensity_g_per_kwh'])}{cue};"
        f" beside it embodied {quantities.mass(embodied['mid'])}"
        + (
            ""
            if embodied["low"] is None
            else f" ({quantities.mass(embodied['low'])} to {quantities.mass(embodied['high'])})"
        ),
    )
    if head["cost"]:
        table.add_row("Electricity", head["cost"], _price(summary["cost"]))
    if head["water"]:
        table.add_row("Water", head["water"], "site and generation of electricity")
    per = head["per"]
    table.add_row(per["title"], per["value"], "; ".join(text for text in (per["detail"], per["grams"]) if text))
    wall = quantities.duration(summary["time"]["wall_s"])
    table.add_row("Time", wall, f"mean power {quantities.power(summary['power']['mean_w'])}")
    return table


def _price(cost: Mapping[str, Any]) -> str:
    left = "" if not cost["uncosted_j"] else f"the price of {quantities.energy(cost['uncosted_j'])} is not known"
    low, high = cost["per_kwh_min"], cost["per_kwh_max"]
    if low is None or cost["currency"] is None:
        return left
    shown = f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
    return "; ".join(filter(None, (f"at {shown} {cost['currency']}/kWh", left)))


def _table(title: str, *columns: str, left: Sequence[str] = (), **more: Any) -> Table:
    """Return an empty table under a title; its columns but those of ``left`` are aligned to the right."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, **more)
    for name in columns:
        table.add_column(name, justify="left" if name in left else "right")
    return table


def _plan(plan: Mapping[str, Any]) -> Table:
    style = {"measured": "green", "modelled": "yellow", "mixed": "yellow"}.get(plan["provenance"], "red")
    title = f"Plan: {escape(plan['policy'])}, deadline {plan['deadline']} ([{style}]{plan['label']}[/])"
    table = _table(title, show_header=False)
    table.add_column(style="dim")
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    table.add_row("Trained", plan["progress"], plan["detail"])
    for row in plan["numbers"]:
        table.add_row(escape(row["title"]), row["value"], escape(row["detail"]))
    return table


def _estimated(summary: Mapping[str, Any]) -> Table:
    columns = ("", "Estimated", "Measured", "")
    table = _table("Estimated before", *columns, left=columns)
    for row in estimated.rows(summary):
        table.add_row(*row)
    return table


def _devices(summary: Mapping[str, Any]) -> Table:
    columns = ("Device", "Source", "Energy", "Share", "Mean", "Missing")
    told = any(map(state_text, summary["devices"]))
    table = _table("Energy by device", *columns, *(["Driver"] if told else []), left=(*columns[:2], "Driver"))
    for device in summary["devices"]:
        provenance = device["provenance"]
        style = {"measured": "green", "modelled": "yellow", "mixed": "yellow"}.get(provenance, "red")
        table.add_row(
            escape(short_name(device, summary["devices"])),
            f"[{style}]{escape(provenance)}[/] {escape(device['method'] or '')}",
            quantities.energy(device["energy_j"]),
            quantities.percent(device["share"]) if device["share"] is not None else "",
            quantities.power(device["mean_power_w"]) if device["mean_power_w"] is not None else "",
            "all" if device["energy_j"] is None else quantities.duration(device["missing_s"] or 0.0),
            *([state_text(device)] if told else []),
        )
    return table


def _phases(summary: Mapping[str, Any]) -> Table:
    columns = ["Phase", "Exclusive", "Share", "Inclusive"]
    more = {"Told": how_told, "Driver": state_text}
    more = {name: text for name, text in more.items() if any(map(text, summary["phases"]))}
    table = _table("Energy by phase", *columns, *more, left=("Phase", *more))
    for phase in summary["phases"]:
        table.add_row(
            escape(phase["name"]),
            quantities.energy(phase["energy_j"]),
            quantities.percent(phase["share"]) if phase["share"] is not None else "",
            quantities.energy(phase["inclusive_j"]),
            *(text(phase) for text in more.values()),
        )
    return table


def _gears(gears: Mapping[str, Any]) -> Table:
    unit = gears["unit"]
    columns = ("Gear", f"Per {unit}", "", f"{unit.capitalize()}s/s", "Energy", "Time", "Steps", "Source")
    table = _table("Precision gears", *columns, left=("Gear", "", "Source"))
    for column in table.columns[:-1]:
        column.no_wrap = True
    for row in gears["rows"]:
        style = {"measured": "green", "modelled": "yellow"}.get(row["provenance"], "red")
        table.add_row(
            escape(row["gear"]),
            quantities.joules(row["j_per_one"]),
            escape(row["relative"]),
            quantities.UNKNOWN if row["rate_per_s"] is None else quantities.significant(row["rate_per_s"]),
            quantities.energy(row["energy_j"]),
            quantities.duration(row["seconds"]),
            quantities.count(row["steps"] or 0),
            f"[{style}]{row['source']}[/]",
        )
    return table
