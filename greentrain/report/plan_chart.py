"""The plan over the grid: what ran at which intensity, and the grams so far beside those of the usual training."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from greentrain.carbon.replayed import GridTime
from greentrain.report import svg
from greentrain.report.charts import Chart, ChartBand, ChartPath, device_css
from greentrain.report.plan import span
from greentrain.report.series import BINS, RunSeries
from greentrain.report.svg import value_ticks
from greentrain.types import J_PER_KWH, S_PER_HOUR
from greentrain.utils.quantities import MASS, duration, significant

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Rows = npt.NDArray[np.int64]

HEIGHT: Final = 280
_HUES: Final = {"fp8": "gpu", "mxfp8": "gpu", "nvfp4": "gpu", "bf16": "fpga", "fp16": "dram", "fp32": "cpu"}
"""Gears share the hues of the device kinds: green for the one that needs least."""
_NONE: Final = -1
"""In place of a row: nothing of the plan ran."""
_TICKS_H: Final = (0.25, 0.5, 1, 2, 3, 6, 12, 24, 48, 96, 168, 336, 720, 1440)


def plan_chart(summary: Mapping[str, Any], series: RunSeries | None) -> Chart | None:
    """Return the chart; None where the run had no plan or no intensity is known.

    Args:
        summary: The summary of the run, from ``summarize``.
        series: The curves of the run, for its grams; None where there are none.
    """
    import numpy as np

    plan, word = summary["plan"], summary["state"]["word"]
    if plan is None:
        return None
    edges = _edges(plan)
    grid, rows = _intensity(plan, edges), _rows(plan, edges)
    if not np.isfinite(grid).any():  # nobody knows it, or only outside of the plan's hours
        return None
    ticks = value_ticks(float(np.nanmax(grid)) * 1.02)
    areas = _areas(plan, edges, grid, rows, ticks[-1])
    grams = {"static": _static_grams(plan, edges, grid), "run": _run_grams(summary, series, edges, grid)}
    known = {key: line for key, line in grams.items() if line is not None}
    top_g = max((float(np.nanmax(line)) for line in known.values()), default=0.0)
    unit_g, unit = svg.unit_of(top_g, MASS)
    y2 = value_ticks(top_g / unit_g) if top_g > 0 else ()
    names = {"static": f"static {plan['static_name']}", "run": "this run"}
    lines = {
        key: ChartPath(
            d=svg.line(line / unit_g / y2[-1] * HEIGHT, HEIGHT),
            css=f"{key}line",
            label=f"grams so far: {names[key]} (right axis)",
        )
        for key, line in known.items()
        if y2
    }
    marks = _marks(plan, edges, word)
    tip = [
        {"name": "Plan", "unit": "", "css": "", "values": _names(plan, edges, rows, word)},
        {"name": "Grid", "unit": "g/kWh", "css": "grid", "values": svg.numbers(grid)},
    ]
    for key, line in reversed(known.items()):
        name = names[key][0].upper() + names[key][1:]
        tip.append({"name": name, "unit": unit, "css": f"{key}line", "values": svg.numbers(line[1:] / unit_g)})
    return Chart(
        key="plan",
        title="The plan: decisions over the grid's intensity",
        text=_text(plan, grid, rows),
        height=HEIGHT,
        unit="grid x PUE, g/kWh" if plan["with_pue"] else "grid, g/kWh",
        shapes=[*areas, *(part for line in lines.values() for part in (replace(line, css="halo", label=""), line))],
        y_ticks=svg.at_percent(ticks),
        x_ticks=_clock(edges),
        y2_unit=f"{unit} CO\N{SUBSCRIPT TWO}e" if y2 else "",
        y2_ticks=svg.at_percent(y2) if y2 else (),
        bands=_bands(plan, edges, rows),
        marks=marks,
        notes=marks,
        legend=[*areas, *reversed(lines.values())],
        tip={"span_s": float(edges[-1] - edges[0]), "start_unix_s": float(edges[0]), "rows": tip},
    )


def _areas(plan: Mapping[str, Any], edges: "Floats", grid: "Floats", rows: "Rows", top: float) -> list[ChartPath]:
    """Return the area under the intensity, in the colours of what ran; the row with most time first."""
    import numpy as np

    colours = _css(plan)
    early = (edges[1:] + edges[:-1] <= 2 * _first_s(plan)) & (rows == _NONE)
    parts = [
        (rows == row, colours[row], plan["rows"][row]["name"])
        for row in sorted(range(len(colours)), key=lambda row: -float(plan["rows"][row]["hours"]))
    ]
    parts.append((early, "other-1", "before the first decision"))
    parts.append(((rows == _NONE) & ~early, "grid", "grid, job not at work"))
    known, heights = np.isfinite(grid), np.nan_to_num(grid) / top * HEIGHT
    shapes = [
        ChartPath(d=svg.area(known & mask, np.zeros_like(heights), heights, HEIGHT), css=css, label=label)
        for mask, css, label in parts
    ]
    return [shape for shape in shapes if shape.d]


def _first_s(plan: Mapping[str, Any]) -> float:
    """Return when something was decided first."""
    return float(plan["stretches"][0][0] if plan["stretches"] else plan["end_s"])


def _edges(plan: Mapping[str, Any]) -> "Floats":
    """Return edges of bins over the horizon: parts of an hour, or as many as a line has."""
    import numpy as np

    hours = len(plan["hourly_g_per_kwh"])
    end_s = max(plan["deadline_s"], plan["end_s"])
    a_bin_s = S_PER_HOUR / max(1, BINS // hours)
    bins = min(BINS, max(1, round((end_s - plan["start_s"]) / a_bin_s)))
    return np.linspace(plan["start_s"], end_s, bins + 1)


def _intensity(plan: Mapping[str, Any], edges: "Floats") -> "Floats":
    """Return (b,) the mean intensity of each bin; NaN where less than half of it is known."""
    import numpy as np

    hourly = np.array([np.nan if value is None else value for value in plan["hourly_g_per_kwh"]])
    hours = np.minimum(edges[0] + S_PER_HOUR * np.arange(len(hourly) + 1), edges[-1])
    length_s = np.diff(hours) * np.isfinite(hourly)
    known_s = np.diff(np.interp(edges, hours, np.concatenate([[0.0], np.cumsum(length_s)])))
    area = np.diff(np.interp(edges, hours, np.concatenate([[0.0], np.cumsum(length_s * np.nan_to_num(hourly))])))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(known_s >= 0.5 * np.diff(edges), area / known_s, np.nan)


def _covered(edges: "Floats", spans: Sequence[tuple[float, float]]) -> "Floats":
    """Return (b,) how much of each bin lies in spans that follow each other (s)."""
    import numpy as np

    if not spans:
        return np.zeros(len(edges) - 1)
    times = np.array(spans)
    until = np.cumsum(times[:, 1] - times[:, 0])
    knots = np.stack([np.concatenate([[0.0], until[:-1]]), until], axis=1)
    return np.asarray(np.diff(np.interp(edges, times.ravel(), knots.ravel())))


def _by_row(plan: Mapping[str, Any], edges: "Floats") -> "Floats":
    """Return (m, b) how long each row was in use in each bin (s)."""
    import numpy as np

    rows = range(len(plan["rows"]))
    return np.array([_covered(edges, [(t0, t1) for t0, t1, row in plan["stretches"] if row == k]) for k in rows])


def _rows(plan: Mapping[str, Any], edges: "Floats") -> "Rows":
    """Return (b,) the row that was in use for most of each bin."""
    import numpy as np

    seconds = _by_row(plan, edges)
    return np.where(seconds.sum(axis=0) >= 0.5 * np.diff(edges), seconds.argmax(axis=0), _NONE)


def _run_grams(
    summary: Mapping[str, Any], series: RunSeries | None, edges: "Floats", grid: "Floats"
) -> "Floats | None":
    """Return (b + 1,) what the run has emitted until each edge, as the plan counts; NaN in the future; or None."""
    import numpy as np

    plan = summary["plan"]
    if plan["actual_g"] is None or (plan["actual_of"] == "run" and series is None):
        return None
    if plan["actual_of"] == "run" and series is not None:
        time = GridTime.from_dict(plan["grid"])
        at_s = time.grid_s + time.speed * (series.edges_unix_s - time.unix_s)
        grams = np.concatenate([[0.0], series.operational_g if plan["with_pue"] else series.it_g])
        until = np.interp(np.minimum(edges, plan["end_s"]), at_s, grams)
    else:
        seconds = _by_row(plan, edges)
        seconds[plan["static"]] += _covered(edges, [(plan["start_s"], plan["stretches"][0][0])])
        power_w = np.array([float(row["power_w"]) for row in plan["rows"]])
        until = np.concatenate([[0.0], np.cumsum(power_w @ seconds * np.nan_to_num(grid))]) / J_PER_KWH
    if summary["state"]["word"] == "running":
        until = np.where(edges <= plan["end_s"], until, np.nan)
    return np.asarray(until)


def _static_grams(plan: Mapping[str, Any], edges: "Floats", grid: "Floats") -> "Floats | None":
    """Return (b + 1,) what the usual training would have emitted until each edge; None where that is not known."""
    import numpy as np

    row = plan["rows"][plan["static"]]
    if plan["static_g"] is None:
        return None
    needed_s = plan["tokens_done"] / (float(row["tokens_per_s"]) * plan["speed_of_table"])
    seconds = _covered(edges, [(plan["start_s"], plan["start_s"] + needed_s)])
    grams = float(row["power_w"]) * plan["power_of_table"] * seconds * np.nan_to_num(grid) / J_PER_KWH
    return np.concatenate([[0.0], np.cumsum(grams)])


def _css(plan: Mapping[str, Any]) -> list[str]:
    """Return the colour of each row: a hue a gear, a shade a row that was in use."""
    gears = [str(row["name"]).partition(" ")[0] for row in plan["rows"]]
    used = Counter(gear for gear, row in zip(gears, plan["rows"], strict=True) if row["hours"] > 0)
    seen: Counter[str] = Counter()
    out = []
    for gear, row in zip(gears, plan["rows"], strict=True):
        shade = 2 * seen[gear] if used[gear] == 2 else seen[gear]
        out.append(device_css(_HUES.get(gear), shade) if row["tokens_per_s"] > 0 else "off")
        seen[gear] += row["hours"] > 0
    return out


def _clock(edges: "Floats") -> list[tuple[float, str]]:
    """Return ticks at round hours of the grid's day, UTC; days where one begins."""
    start_s, span_s = float(edges[0]), float(edges[-1] - edges[0])
    step_s = next((h for h in _TICKS_H if span_s / S_PER_HOUR / h <= 8), _TICKS_H[-1]) * S_PER_HOUR
    first = math.ceil(start_s / step_s)
    out = []
    for k in range(first, math.floor(float(edges[-1]) / step_s) + 1):
        moment = datetime.fromtimestamp(k * step_s, UTC)
        day = moment.hour == moment.minute == 0
        out.append((round(100 * (k * step_s - start_s) / span_s, 2), moment.strftime("%d %b" if day else "%H:%M")))
    return out


def _bands(plan: Mapping[str, Any], edges: "Floats", rows: "Rows") -> list[ChartBand]:
    """Return when no process was there, between the first decision and the end."""
    if not plan["stretches"]:
        return []
    middle = (edges[1:] + edges[:-1]) / 2
    idle = (rows == _NONE) & (middle > plan["stretches"][0][0]) & (middle < plan["end_s"])
    count = len(rows)
    return [
        ChartBand(left=100 * a / count, width=100 * (b - a) / count, css="paused", label="not running")
        for a, b in svg.runs(idle)
    ]


def _marks(plan: Mapping[str, Any], edges: "Floats", word: str) -> list[tuple[float, str]]:
    """Return where the job ended, or is now, and the deadline where that is not the right edge."""
    ended_s = plan["finished_s"] if plan["finished_s"] is not None else plan["end_s"]
    what = "all tokens done" if plan["finished_s"] is not None else "now" if word == "running" else "the run ended"
    marks = [(ended_s, what)] + ([(plan["deadline_s"], "deadline")] if plan["deadline_s"] < edges[-1] else [])
    return [(round(100 * float((t_s - edges[0]) / (edges[-1] - edges[0])), 2), label) for t_s, label in marks]


def _names(plan: Mapping[str, Any], edges: "Floats", rows: "Rows", word: str) -> list[str]:
    """Return what ran in each bin, in words."""
    first_s, before = _first_s(plan), "before the first decision"
    after = "done" if plan["finished_s"] is not None else "ahead" if word == "running" else "ended"
    out = []
    for t_s, row in zip(((edges[1:] + edges[:-1]) / 2).tolist(), rows.tolist(), strict=True):
        if row != _NONE:
            out.append(str(plan["rows"][row]["name"]))
        else:
            out.append(before if t_s < first_s else after if t_s >= plan["end_s"] else "not running")
    return out


def _text(plan: Mapping[str, Any], grid: "Floats", rows: "Rows") -> str:
    import numpy as np

    parts = []
    for k, row in enumerate(plan["rows"]):
        mean = grid[(rows == k) & np.isfinite(grid)]
        if mean.size:
            at = f"at {significant(float(mean.mean()))} g/kWh on average"
            parts.append(f"{row['name']} for {duration(row['hours'] * S_PER_HOUR)} {at}")
    low, high = significant(float(np.nanmin(grid))), significant(float(np.nanmax(grid)))
    return f"{span(plan)}: the grid is between {low} and {high} g/kWh. In use: {'; '.join(parts) or 'nothing'}."
