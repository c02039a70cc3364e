"""Two or more runs side by side: what each used relative to the first, and what makes that unfair."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table as RichTable
from rich.text import Text

from greentrain.errors import GreenTrainError
from greentrain.report.summary import pue_text
from greentrain.types import Attribution
from greentrain.utils import quantities
from greentrain.utils.display import Displayable, Table, View

_FIGURES = (
    ("energy", "energy", "energy_j", quantities.energy),
    ("emissions", "carbon", "emissions_g", quantities.carbon),
    ("electricity's emissions", "carbon", "operational_location_g", quantities.carbon),
    ("CUE (per IT energy)", "carbon", "cue_kg_per_kwh", quantities.cue),
    ("energy per token", "work", "j_per_token", quantities.joules),
    ("emissions per 1\N{THIN SPACE}000 tokens", "work", "g_per_ktoken", quantities.carbon),
    ("energy per sample", "work", "j_per_sample", quantities.joules),
    ("energy per step", "work", "j_per_step", quantities.joules),
    ("tokens", "work", "tokens", quantities.count),
    ("time", "time", "wall_s", quantities.duration),
    ("mean power", "power", "mean_w", quantities.power),
)
_INTERVALS: Final = {
    "energy": ("energy", "interval_j", quantities.ENERGY),
    "emissions": ("carbon", "emissions_interval_g", quantities.MASS),
    "electricity's emissions": ("carbon", "operational_interval_g", quantities.MASS),
}
_HEADS = {"gear": "energy per token by gear"}
_FAR = 0.02
"""Relative difference from which a share or factor is worth a caveat."""


class Comparison(Displayable, dict[str, Any]):
    """Runs side by side: the dict of ``compare``, shown as a table."""

    def _view(self) -> View:
        return comparison_view(self)


def compare(summaries: Sequence[Mapping[str, Any]]) -> Comparison:
    """Compare runs with the first one.

    Args:
        summaries: Two or more summaries, from ``summarize``.

    Returns:
        ``names``; ``sentences``, the relation of each later run to the first in words; ``rows``, of name, section
        (total, phase, device kind, or gear, whose values are J/token), values, texts and ratios to the first (null
        where unknown), and of some the 90 % ``intervals``; ``caveats``, why a ratio may not mean what it seems to.

    Raises:
        GreenTrainError: Fewer than two runs.
    """
    if len(summaries) < 2:
        raise GreenTrainError(f"comparing takes two runs or more, {len(summaries)} given: greentrain report A B")
    rows = [
        _row("total", name, [summary[group][key] for summary in summaries], text) for name, group, key, text in _FIGURES
    ]
    for row in rows:
        if row["name"] in _INTERVALS:
            group, key, units = _INTERVALS[row["name"]]
            row["intervals"] = [summary[group].get(key) for summary in summaries]
            shown = zip(row["values"], row["intervals"], strict=True)
            row["texts"] = [quantities.between(value, interval, units) for value, interval in shown]
    rows += _by(summaries, "phase", "phases", "name")
    rows += _by(summaries, "device kind", "devices", "kind")
    rows += _by_gear(summaries)
    return Comparison(
        {
            "names": [chr(ord("A") + i) if i < 26 else str(i + 1) for i in range(len(summaries))],
            "runs": [summary["run"]["run_id"] for summary in summaries],
            "sentences": [_sentence(summaries, i) for i in range(1, len(summaries))],
            "rows": [row for row in rows if any(value is not None for value in row["values"])],
            "caveats": [text for i in range(1, len(summaries)) for text in _caveats(summaries, i)],
        }
    )


def comparison_view(comparison: Mapping[str, Any]) -> View:
    """Return what is shown of a comparison."""
    names = comparison["names"]
    several = [*names, *(f"{name} / {names[0]}" for name in names[1:])]
    rows = [
        (
            row["name"] if row["section"] == "total" else f"{row['section']}: {row['name']}",
            *row["texts"],
            *(_times(ratio) for ratio in row["ratios"][1:]),
        )
        for row in comparison["rows"]
    ]
    return View(
        line=" ".join(comparison["sentences"]),
        title=" ".join(comparison["sentences"]),
        grids=[
            Table(rows=list(zip(names, comparison["runs"], strict=True))),
            Table(rows=rows, head=["", *several]),
        ],
        notes=[f"Caveat: {text}" for text in comparison["caveats"]],
    )


def render(comparison: Mapping[str, Any]) -> RenderableType:
    """Return a rich renderable: the relation first, then the table, then caveats."""
    names = comparison["names"]
    parts: list[Any] = [Text(text, style="bold") for text in comparison["sentences"]]
    parts += [Text(f"{name} = {run}", style="dim") for name, run in zip(names, comparison["runs"], strict=True)]
    table = RichTable(box=None, pad_edge=False)
    table.add_column("")
    for name in names:
        table.add_column(name, justify="right")
    for name in names[1:]:
        table.add_column(f"{name} / {names[0]}", justify="right", style="bold")
    section = ""
    for row in comparison["rows"]:
        if row["section"] != section and row["section"] != "total":
            table.add_row(f"[dim]{_HEADS.get(row['section'], 'energy by ' + row['section'])}[/]")
        section = row["section"]
        table.add_row(escape(row["name"]), *row["texts"], *[_times(ratio) for ratio in row["ratios"][1:]])
    parts.append(table)
    parts += [Text(f"Caveat: {text}", style="yellow") for text in comparison["caveats"]]
    return Group(*parts)


def _row(section: str, name: str, values: Sequence[float | None], text: Any) -> dict[str, Any]:
    first = values[0]
    ratios = [value / first if value is not None and first else None for value in values]
    return {
        "section": section,
        "name": name,
        "values": list(values),
        "texts": [text(value) for value in values],
        "ratios": ratios,
    }


def _by(summaries: Sequence[Mapping[str, Any]], section: str, group: str, key: str) -> list[dict[str, Any]]:
    sums: list[dict[str, float]] = []
    for summary in summaries:
        found: dict[str, float] = {}
        for item in summary[group]:
            if item["energy_j"] is not None:
                name = str(item[key] or "other")
                found[name] = found.get(name, 0.0) + item["energy_j"]
        sums.append(found)
    names = sorted({name for found in sums for name in found}, key=lambda name: -max(f.get(name, 0.0) for f in sums))
    return [_row(section, name, [found.get(name) for found in sums], _energy_or_none) for name in names]


def _by_gear(summaries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    found = [{row["gear"]: row["j_per_token"] for row in summary["gears"]} for summary in summaries]
    rows = []
    for name in sorted({name for gears in found for name in gears}):
        row = _row("gear", name, [gears.get(name) for gears in found], quantities.joules)
        row["texts"] = [text if name in gears else "not used" for text, gears in zip(row["texts"], found, strict=True)]
        rows.append(row)
    return rows


def _energy_or_none(energy_j: float | None) -> str:
    return "none" if energy_j is None else quantities.energy(energy_j)


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{quantities.significant(ratio)}x"


def _sentence(summaries: Sequence[Mapping[str, Any]], i: int) -> str:
    first, other = summaries[0], summaries[i]
    names = "A", chr(ord("A") + i)
    for group, key, what in (
        ("work", "j_per_token", "energy per token"),
        ("work", "j_per_sample", "energy per sample"),
        ("energy", "energy_j", "energy"),
    ):
        a, b = first[group][key], other[group][key]
        if a and b is not None:
            text = f"{names[1]} used {_times(b / a)} {names[0]}'s {what}"
            grams = _grams(first, other, key)
            return text + (f" and emitted {_times(grams)} the grams" if grams is not None else "") + "."
    return f"{names[1]} and {names[0]} cannot be compared: the energy of one of them is unknown."


def _grams(first: Mapping[str, Any], other: Mapping[str, Any], key: str) -> float | None:
    group, name = {
        "j_per_token": ("work", "g_per_ktoken"),
        "j_per_sample": ("work", "g_per_ksample"),
        "energy_j": ("carbon", "emissions_g"),
    }[key]
    a, b = first[group][name], other[group][name]
    return b / a if a and b is not None else None


def _caveats(summaries: Sequence[Mapping[str, Any]], i: int) -> list[str]:
    first, other, name = summaries[0], summaries[i], chr(ord("A") + i)
    out = []
    a, b = first["energy"]["modelled_share"], other["energy"]["modelled_share"]
    if a is not None and b is not None and abs(a - b) > _FAR:
        out.append(
            f"{quantities.percent(b)} of {name}'s energy is modelled, {quantities.percent(a)} of A's: a model's error"
            " is in the ratio"
        )
    mine, theirs = (summary["energy"].get("interval_j") or {"low": None, "high": None} for summary in (first, other))
    known = None not in (mine["low"], mine["high"], theirs["low"], theirs["high"])
    sensors = [{(device["host"], device["uid"]) for device in summary["devices"]} for summary in (first, other)]
    if known and sensors[0] != sensors[1] and mine["low"] <= theirs["high"] and theirs["low"] <= mine["high"]:
        out.append(f"intervals of A's and {name}'s energy overlap, and other sensors read them: no difference is sure")
    ways = [_ways(first), _ways(other)]
    if ways[0] != ways[1]:
        out.append(f"A and {name} do not read the same devices in the same way: {ways[0]} against {ways[1]}")
    pues = [pue_text(summary["energy"]) for summary in (first, other)]
    if pues[0] != pues[1]:
        out.append(f"PUE is {pues[0]} in A and {pues[1]} in {name}: grams differ by it")
    zones = [sorted({source["zone"] for source in s["carbon"]["sources"]}) for s in (first, other)]
    if zones[0] != zones[1]:
        texts = [", ".join(zone) or "unknown" for zone in zones]
        out.append(f"the grid is {texts[0]} in A and {texts[1]} in {name}: compare joules, not grams")
    a, b = (s["energy"]["missing_share_of_device_time"] for s in (first, other))
    if a is not None and b is not None and abs(a - b) > _FAR:
        out.append(
            f"{quantities.percent(a)} of A's and {quantities.percent(b)} of {name}'s device time has no reading: the"
            " energy of the one with more is too low"
        )
    if (first["carbon"]["embodied_g"]["mid"] is None) != (other["carbon"]["embodied_g"]["mid"] is None):
        out.append(f"only one of A and {name} has an embodied figure: compare electricity's emissions")
    for letter, summary in (("A", first), (name, other)):
        if not summary["carbon"]["complete"] and summary["energy"]["energy_j"] is not None:
            out.append(f"part of {letter}'s energy has no carbon intensity: its grams are a lower bound")
        rows = [row for row in (*summary["phases"], *summary["gears"]) if row.get("attribution") == Attribution.BLURRED]
        if rows:
            names = ", ".join(row.get("name") or row["gear"] for row in rows)
            out.append(f"the sensors of {letter} do not tell {names} from what runs beside")
        if not summary["state"]["finished"]:
            out.append(f"{letter} did not finish ({summary['state']['word']})")
    return out


def _ways(summary: Mapping[str, Any]) -> str:
    ways = sorted({f"{d['kind']} {d['provenance']} ({d['method']})" for d in summary["devices"]})
    return ", ".join(ways) or "no device"
