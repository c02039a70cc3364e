"""Advice as a table and a sentence."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from greentrain.simulator.advice import Advice, ZoneAdvice
from greentrain.simulator.study_text import signed
from greentrain.utils import quantities

if TYPE_CHECKING:
    from rich.console import RenderableType

_HEAD: Final = ("Zone", "g/kWh", "Plain, now", "Plain, best start", "Planned", "Saved", "vs blind")


def render(advice: Advice) -> "RenderableType":
    """Return a rich renderable: the zones, one sentence of advice, and what it rests on."""
    from rich.console import Group
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    title = f"{quantities.count(advice.tokens)} {advice.actions.unit} from {clock(advice.start_s)} to"
    table = Table(
        title=f"{title} {clock(advice.deadline_s)} UTC",
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
    )
    for name in _HEAD:
        table.add_column(name, justify="left" if name == "Zone" else "right", no_wrap=name != "Zone", overflow="fold")
    for zone in advice.zones:
        share = zone.saving()
        table.add_row(
            escape(zone.grid.zone),
            f"{zone.grid.trace.g_per_kwh.mean():.0f}",
            "too slow" if zone.now is None else quantities.mass(zone.now.grams),
            "" if zone.best is None else f"{quantities.mass(zone.best.grams)}, {clock(zone.best.start_s)}",
            quantities.mass(zone.plan_g),
            "" if share is None else signed(share),
            signed(zone.saving(zone.blind_g) or 0.0),
            style="bold" if zone is advice.best else "",
        )
    return Group(table, Text(sentence(advice)), *(Text(f"{note}.", style="dim") for note in advice.notes()))


def sentence(advice: Advice) -> str:
    """Return in one sentence what to do."""
    best, static = advice.best, advice.menu.names()[advice.menu.static]
    where = f"Train in {best.grid.zone}" if len(advice.zones) > 1 else "Train"
    pauses = {0: "without a pause", 1: "with one pause"}.get(best.pauses, f"with {best.pauses} pauses")
    text = f"{where}, planned by {advice.policy.name} from {clock(best.first_s)} to {clock(best.end_s)} UTC {pauses}:"
    text += f" {quantities.carbon(best.plan_g)} expected"
    if best.now is not None:
        text += f", {_than(best.plan_g, best.now.grams)} than {static} at once there"
    other = min((zone for zone in advice.zones if zone is not best), key=lambda zone: zone.plan_g, default=None)
    if other is not None:
        text += f" and {_than(best.plan_g, other.plan_g)} than the plan in {other.grid.zone}"
    return f"{text}; {_plainly(advice, best, static)}."


def clock(unix_s: float) -> str:
    """Return a time in UTC for people."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%d %b %H:%M")


def _plainly(advice: Advice, zone: ZoneAdvice, static: str) -> str:
    """Return when a plain run is best begun."""
    needs = f"a plain run ({static}, {quantities.duration(advice.static_s)})"
    if zone.now is None or zone.best is None:
        return f"{needs} would miss the deadline"
    if zone.best.start_s == zone.now.start_s:
        return f"{needs} is best begun at once"
    than = _than(zone.best.grams, zone.now.grams)
    return f"{needs} is best begun at {clock(zone.best.start_s)} UTC, for {than} than at once"


def _than(grams: float, other: float) -> str:
    share = 1.0 - grams / other if other > 0 else 0.0
    if abs(share) < 0.0005:
        return "no less"
    return f"{quantities.percent(abs(share))} {'less' if share > 0 else 'more'}"
