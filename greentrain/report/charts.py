"""The curves of a run as SVG paths on a 1000-unit wide plot, with ticks, gap bands and numbers for the tooltip.

Paths are drawn on a plot that is stretched to the page's width (``preserveAspectRatio="none"``); every text is
HTML beside it, so it keeps its size on a phone. Colours are CSS classes, so they follow the reader's theme.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from greentrain.report import svg
from greentrain.report.series import RunSeries
from greentrain.report.svg import time_ticks, value_ticks
from greentrain.utils.quantities import ENERGY, MASS, POWER, significant

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

MAX_DEVICES: Final = 12
"""Devices drawn one by one; beyond that they are drawn by kind and host."""
MAX_BANDS: Final = 60
SHADES: Final = 4
"""Shades of one hue; a fifth device of the kind starts over."""
KIND_ORDER: Final = ("node", "gpu", "fpga", "cpu", "dram", "other")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartPath:
    """One path."""

    d: str
    css: str
    label: str = ""
    hatch: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartBand:
    """A stretch of time that is marked over the whole height."""

    left: float
    """Percent of the width."""
    width: float
    css: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A plot and what stands around it."""

    key: str
    title: str
    text: str
    """What a reader who cannot see it should know."""
    height: int
    unit: str
    shapes: Sequence[ChartPath]
    y_ticks: Sequence[tuple[float, str]]
    """(percent from the bottom, label)."""
    x_ticks: Sequence[tuple[float, str]]
    y2_unit: str = ""
    y2_ticks: Sequence[tuple[float, str]] = ()
    bands: Sequence[ChartBand] = ()
    marks: Sequence[tuple[float, str]] = ()
    """(percent of the width, label) of events."""
    notes: Sequence[tuple[float, str]] = ()
    """Labels that are written beside their mark."""
    legend: Sequence[ChartPath] = ()
    tip: Mapping[str, Any] = field(default_factory=dict)
    """For the script: span_s and rows of name, unit, css, values."""


def power_chart(summary: Mapping[str, Any], series: RunSeries) -> Chart:
    """Return power over time, stacked by device; hatched where it is modelled."""
    import numpy as np

    groups = _groups(summary, series)
    unit_w, unit = svg.unit_of(float(np.nanmax(np.nan_to_num(series.total_w))), POWER)
    fine = None if series.fine_w is None else series.fine_w / unit_w
    ceiling = float(np.nanmax(np.nan_to_num(series.total_w))) / unit_w
    if fine is not None and np.any(np.isfinite(fine)):
        ceiling = max(ceiling, float(np.nanpercentile(fine, 99.5)))
    ticks = value_ticks(ceiling)
    height, top = 280, ticks[-1]
    base = np.zeros(len(series.booked))
    shapes, rows = [], []
    for group in groups:
        value = np.nan_to_num(group["power_w"]) / unit_w
        upper = base + value
        area = svg.area(series.booked, base / top * height, upper / top * height, height)
        shapes.append(ChartPath(d=area, css=group["css"], label=group["label"], hatch=group["modelled"]))
        known = np.where(np.isfinite(group["power_w"]), value, np.nan)
        rows.append({"name": group["label"], "unit": unit, "css": group["css"], "values": svg.numbers(known)})
        base = upper
    if len(groups) > 1:
        rows.append({"name": "All devices", "unit": unit, "css": "", "values": svg.numbers(series.total_w / unit_w)})
    legend = list(shapes)
    if fine is not None:
        line = svg.steps(np.minimum(fine, top) / top * height, height)
        shapes.append(ChartPath(d=line, css="fine", label="All devices, step by step"))
        legend.append(shapes[-1])
    return Chart(
        key="power",
        title="Power over time",
        text=f"Power of {len(groups)} device(s) or groups, stacked, in {unit}; the highest mean over"
        f" {significant(series.window_s)} s is {significant(ceiling)} {unit}.",
        height=height,
        unit=unit,
        shapes=shapes,
        y_ticks=svg.at_percent(ticks),
        x_ticks=_time_axis(series),
        bands=_bands(summary, series),
        marks=_marks(summary, series),
        legend=legend,
        tip={"span_s": _span_s(series), "rows": rows},
    )


def energy_chart(summary: Mapping[str, Any], series: RunSeries) -> Chart:
    """Return cumulative energy, measured and modelled, over the grid's intensity."""
    import numpy as np

    carried_j = summary["energy"]["carried_j"] or 0.0
    total = series.measured_j + series.modelled_j
    unit_j, unit = svg.unit_of(float(total[-1]), ENERGY)
    ticks = value_ticks(float(total[-1]) / unit_j)
    height, top = 220, ticks[-1]

    measured, both = series.measured_j / unit_j / top * height, total / unit_j / top * height
    parts = [
        ChartPath(d=svg.ramp(np.zeros_like(measured), measured, height), css="measured", label="Measured"),
        ChartPath(d=svg.ramp(measured, both, height), css="modelled", label="Modelled", hatch=True),
    ]
    used = [shape for shape, energy in zip(parts, (series.measured_j, series.modelled_j), strict=True) if energy[-1]]
    background, y2 = _intensity(series, height)
    line = ChartPath(d=svg.ramp_line(both, height), css="line", label="Energy")
    text = f"Energy adds up to {significant(float(total[-1]) / unit_j)} {unit}"
    return Chart(
        key="energy",
        title="Energy so far",
        text=text + (f", after {significant(carried_j / unit_j)} {unit} of earlier parts." if carried_j else "."),
        height=height,
        unit=unit,
        shapes=[*background, *used, line],
        y_ticks=svg.at_percent(ticks),
        x_ticks=_time_axis(series, most=5),
        y2_unit="g/kWh" if y2 else "",
        y2_ticks=y2,
        legend=[*used, *background],
        tip={
            "span_s": _span_s(series),
            "rows": [
                *(
                    {"name": name, "unit": unit, "css": name.lower(), "values": svg.numbers(values_j / unit_j)}
                    for name, values_j in (("Measured", series.measured_j), ("Modelled", series.modelled_j))
                ),
                _grid_row(series),
            ],
        },
    )


def emissions_chart(summary: Mapping[str, Any], series: RunSeries) -> Chart | None:
    """Return cumulative operational grams over the grid's intensity; None where no gram is known."""
    if summary["carbon"]["operational_location_g"] is None:
        return None
    grams = series.operational_g
    unit_g, unit = svg.unit_of(float(grams[-1]), MASS)
    ticks = value_ticks(float(grams[-1]) / unit_g)
    height, top = 220, ticks[-1]

    heights = grams / unit_g / top * height
    background, y2 = _intensity(series, height)
    line = ChartPath(d=svg.ramp_line(heights, height), css="gramline", label="Emissions of electricity")
    return Chart(
        key="emissions",
        title="Emissions of electricity so far",
        text=f"Operational emissions add up to {significant(float(grams[-1]) / unit_g)} {unit} of CO2e.",
        height=height,
        unit=f"{unit} CO\N{SUBSCRIPT TWO}e",
        shapes=[*background, line],
        y_ticks=svg.at_percent(ticks),
        x_ticks=_time_axis(series, most=5),
        y2_unit="g/kWh" if y2 else "",
        y2_ticks=y2,
        legend=[line, *background],
        tip={
            "span_s": _span_s(series),
            "rows": [
                {"name": "Emissions", "unit": unit, "css": "carbon", "values": svg.numbers(grams / unit_g)},
                _grid_row(series),
            ],
        },
    )


def device_css(kind: str | None, nth: int) -> str:
    """Return the CSS class of the nth device of a kind: one hue a kind, shades within."""
    return f"{kind if kind in KIND_ORDER else 'other'}-{nth % SHADES}"


def device_colours(summary: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """Return the CSS class of every device, the same in all charts."""
    devices = sorted(summary["devices"], key=lambda d: (d["host"], str(d["name"]), str(d["uid"])))
    seen: dict[str, int] = {}
    out = {}
    for device in devices:
        kind = device["kind"] or "other"
        out[(device["host"], device["uid"])] = device_css(kind, seen.get(kind, 0))
        seen[kind] = seen.get(kind, 0) + 1
    return out


def _groups(summary: Mapping[str, Any], series: RunSeries) -> list[dict[str, Any]]:
    import numpy as np

    known = {(d["host"], d["uid"]): d for d in summary["devices"] if d["energy_j"] is not None}
    drawn = [s for s in series.devices if (s.host, s.uid) in known]
    hosts = {s.host for s in drawn}
    colours = device_colours(summary)
    each = len(drawn) <= MAX_DEVICES
    groups: dict[tuple[str, str, bool], dict[str, Any]] = {}
    for item in drawn:
        device = known[(item.host, item.uid)]
        kind = device["kind"] or "other"
        at = f" on {item.host}" if len(hosts) > 1 else ""
        key = (item.host, item.uid if each else kind, item.modelled)
        group = groups.setdefault(
            key,
            {
                "label": short_name(device, summary["devices"]) + at if each else f"{kind.upper()}{at}",
                "kind": kind,
                "css": colours[(item.host, item.uid)] if each else "",
                "modelled": item.modelled,
                "power_w": np.full(len(series.booked), np.nan),
            },
        )
        both = np.isfinite(group["power_w"]) | np.isfinite(item.power_w)
        total = np.nan_to_num(group["power_w"]) + np.nan_to_num(item.power_w)
        group["power_w"] = np.where(both, total, np.nan)
    order = {kind: i for i, kind in enumerate(KIND_ORDER)}
    out = sorted(groups.values(), key=lambda g: (order.get(g["kind"], 9), g["label"]))
    seen: dict[str, int] = {}
    for group in out:
        nth = seen.get(group["kind"], 0)
        seen[group["kind"]] = nth + 1
        group["css"] = group["css"] or device_css(group["kind"], nth)
    return out


def short_name(device: Mapping[str, Any], devices: Sequence[Mapping[str, Any]]) -> str:
    """Return a device's name, with its uid's end where another device on the host has the same name."""
    same = [d for d in devices if d["name"] == device["name"] and d["host"] == device["host"]]
    if len(same) < 2:
        return str(device["name"])
    uid = str(device["uid"])
    return f"{device['name']} \N{MIDDLE DOT} {uid if len(uid) <= 12 else uid[:8] + chr(0x2026) + uid[-4:]}"


def _span_s(series: RunSeries) -> float:
    return float(series.edges_unix_s[-1] - series.edges_unix_s[0])


def _time_axis(series: RunSeries, most: int = 8) -> list[tuple[float, str]]:
    span_s = _span_s(series)
    return [(round(100 * t / span_s, 2), label) for t, label in time_ticks(span_s, most)]


def _grid_row(series: RunSeries) -> dict[str, Any]:
    return {"name": "Grid", "unit": "g/kWh", "css": "grid", "values": svg.numbers(series.intensity_g_per_kwh)}


def _intensity(series: RunSeries, height: int) -> tuple[list[ChartPath], list[tuple[float, str]]]:
    import numpy as np

    values = series.intensity_g_per_kwh
    known = np.isfinite(values)
    if not np.any(known):
        return [], []
    ticks = value_ticks(float(np.nanmax(values)) * 1.05, most=3)
    area = svg.area(known, np.zeros_like(values), np.nan_to_num(values) / ticks[-1] * height, height)
    return [ChartPath(d=area, css="grid", label="Grid intensity (right axis)")], svg.at_percent(ticks)


def _bands(summary: Mapping[str, Any], series: RunSeries) -> list[ChartBand]:
    start_s, span_s = float(series.edges_unix_s[0]), _span_s(series)
    names = {(d["host"], d["uid"]): d for d in summary["devices"]}
    bands = []
    for first, last in svg.runs(~series.booked):
        count = len(series.booked)
        bands.append(
            ChartBand(left=100 * first / count, width=100 * (last - first) / count, css="paused", label="not running")
        )
    for gap in summary["gaps"][:MAX_BANDS]:
        device = names.get((gap["host"], gap["uid"]))
        if device is None or device["energy_j"] is None:
            continue
        left = 100 * (gap["start_unix_s"] - start_s) / span_s
        width = max(100 * (gap["end_unix_s"] - gap["start_unix_s"]) / span_s, 0.2)
        name = short_name(device, summary["devices"])
        bands.append(ChartBand(left=left, width=width, css="missing", label=f"no reading: {name}"))
    return bands


def _marks(summary: Mapping[str, Any], series: RunSeries) -> list[tuple[float, str]]:
    start_s, span_s = float(series.edges_unix_s[0]), _span_s(series)
    marks: list[tuple[float, str]] = []
    shifts: list[tuple[float, str]] = []
    for event in summary["events"]:
        at = 100 * (float(event.get("t", 0.0)) - start_s) / span_s
        if event["name"] in ("checkpoint", "warning", "start", "resume", "gap", "gear") and 0 <= at <= 100:
            chosen = shifts if event["name"] == "gear" else marks
            chosen.append((round(at, 2), f"{event['name']}: {event.get('text', '')}"))
    return [*marks[:MAX_BANDS], *shifts[:MAX_BANDS]]
