"""Advice as a picture: each zone's intensity, and below it when a plain run or the plan would train."""

from typing import TYPE_CHECKING, Final

import numpy as np

from greentrain.policy.outlook import Array
from greentrain.simulator.advice import Advice, PlainRun, ZoneAdvice
from greentrain.simulator.advice_text import clock
from greentrain.simulator.picture import (
    WIDTH_IN,
    action_legend,
    check_pictures,
    clean,
    dates,
    intensity,
    more,
    strips,
    when,
)
from greentrain.simulator.scene import NOTHING, Course
from greentrain.utils.quantities import count, mass

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ZONE_IN: Final = 2.6
"""Height of a zone (inch)."""


def draw_advice(advice: Advice) -> "Figure":
    """Return the picture.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    check_pictures()
    from matplotlib.figure import Figure

    zones = advice.zones
    figure = Figure(figsize=(WIDTH_IN, 1.6 + _ZONE_IN * len(zones)), layout="constrained")
    heights = [1.7, 0.9] * len(zones)
    rows = figure.subplots(2 * len(zones), 1, sharex=True, gridspec_kw={"height_ratios": heights}, squeeze=False)
    top = max(float(zone.grid.trace.g_per_kwh.max()) for zone in zones)
    used: set[int] = set()
    for zone, above, below in zip(zones, rows[::2, 0], rows[1::2, 0], strict=True):
        used |= _zone(above, below, advice, zone, top)
    action_legend(rows[0, 0], advice.menu, used)
    rows[0, 0].set_xlim(when(advice.start_s), when(advice.deadline_s))
    dates(rows[-1, 0])
    title = (
        f"{count(advice.tokens)} {advice.actions.unit} from {clock(advice.start_s)} to {clock(advice.deadline_s)} UTC"
    )
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    figure.supxlabel("\n".join(advice.notes()), x=0.01, ha="left", fontsize=7.5, color="#555555", wrap=True)
    return figure


def _zone(above: "Axes", below: "Axes", advice: Advice, zone: ZoneAdvice, top_g_per_kwh: float) -> set[int]:
    g_per_kwh = zone.grid.trace.g_per_kwh
    edges = np.minimum(advice.start_s + np.arange(len(g_per_kwh) + 1) * 3600.0, advice.deadline_s)
    intensity(above, edges, g_per_kwh, top_g_per_kwh)
    best = len(advice.zones) > 1 and zone is advice.best
    name = f"{zone.grid.zone}{', the cleanest plan' if best else ''}"
    above.set_title(name, loc="left", fontsize=10, fontweight="bold" if best else "normal")
    courses = [_plain("plain, at once", zone.now, advice), _plain("plain, best start", zone.best, advice), zone.plan]
    grams = [run.grams if run is not None else None for run in (zone.now, zone.best)] + [zone.plan_g]
    used = strips(below, courses, advice.menu)
    for i, value in enumerate(grams):
        text = "too slow" if value is None else mass(value)
        if i and value is not None and zone.now is not None:
            text += f" ({more(value / zone.now.grams - 1.0)})"
        below.annotate(
            text, (1.0, i), xycoords=("axes fraction", "data"), xytext=(5, 0), textcoords="offset points",
            va="center", fontsize=8.5, fontweight="bold" if i == 2 else "normal", annotation_clip=False,
        )  # fmt: skip
    for axes in (above, below):
        clean(axes)
    return used


def _plain(name: str, run: PlainRun | None, advice: Advice) -> Course:
    """Return a run without a pause as a course."""
    if run is None:
        return Course(name=name, edges_unix_s=_pair(advice.start_s, 1.0), rows=np.array([NOTHING]), grams=np.zeros(2))
    return Course(
        name=name,
        edges_unix_s=_pair(run.start_s, advice.static_s),
        rows=np.array([advice.menu.static]),
        grams=np.array([0.0, run.grams]),
    )


def _pair(start_s: float, length_s: float) -> Array:
    return np.array([start_s, start_s + length_s])
