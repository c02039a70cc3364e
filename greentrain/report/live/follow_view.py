"""A run that goes on, for people: a frame of the terminal, or a line where there is none."""

import time
from collections.abc import Iterator
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from greentrain.report.live.follow import RunNow
from greentrain.report.summary import state_text
from greentrain.utils import quantities
from greentrain.utils.display import Plain, one_line

MOST_DEVICES: Final = 24
"""Rows of devices; of more, those of the first ranks are shown, and how many are not."""
LABEL: Final = 8
"""Characters of the names of figures."""
_STYLES: Final = {
    "running": "bold green",
    "finished": "bold green",
    "killed": "bold red",
    "exception": "bold red",
    "failed": "bold red",
}


def line(now: RunNow) -> str:
    """Return the run in one line; what nobody knows is left out."""
    parts = [now.name or now.run_id, now.status, quantities.joules(now.total_j) + _label(now)]
    if now.power_w is not None:
        parts.append(quantities.power(now.power_w))
    if now.operational_g is not None:
        parts.append(quantities.carbon(now.operational_g))
    if now.g_per_kwh is not None:
        parts.append(f"grid {quantities.intensity(now.g_per_kwh)} ({now.zone or ''})")
    if now.gears:
        parts.append("+".join(now.gears))
    parts.append(f"step {quantities.count(now.steps)}")
    if now.tokens_per_s is not None:
        parts.append(f"{quantities.significant(now.tokens_per_s)} tokens/s")
    if now.eta_s is not None:
        parts.append(f"{quantities.duration(now.eta_s)} left")
    return one_line(", ".join(parts))


def final_line(now: RunNow) -> str:
    """Return how a run ended, in one line."""
    return f"{one_line(now.run_id)} {one_line(_ended(now))} after {quantities.duration(now.duration_s)}: {line(now)}"


def frame(now: RunNow) -> RenderableType:
    """Return the whole picture; it is cut to the width of the console."""
    parts: list[RenderableType] = [_title(now), _figures(now), _devices(now)]
    if any(use.j_per_token is not None for use in now.stages):
        parts.append(_stages(now))
    if now.events:
        parts.append(_events(now))
    return Plain(Group(*parts))


def show(now: RunNow, console: Console) -> None:
    """Print one frame, or one line where the console is no terminal."""
    if console.is_terminal:
        console.print(frame(now))
    else:
        print(line(now), file=console.file, flush=True)


def _ended(now: RunNow) -> str:
    return {"finished": "finished", "killed": "was killed"}.get(now.status, f"ended ({now.status})")


def _title(now: RunNow) -> Text:
    title = Text(no_wrap=True, overflow="ellipsis")
    title.append(one_line(now.name or now.run_id), style="bold")
    title.append(one_line(f"  {now.run_id}  "), style="dim")
    title.append(now.status, style=_STYLES.get(now.status, "bold yellow"))
    seen = sum(rank.rank < now.world_size for rank in now.ranks)
    if now.world_size > 1:
        title.append(f"  {seen} of {now.world_size} ranks")
    title.append(f"  {quantities.duration(now.duration_s)}")
    return title


def _figures(now: RunNow) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True, min_width=LABEL)
    table.add_column(no_wrap=True, overflow="ellipsis")
    for name, text in _rows(now):
        table.add_row(name, Text(one_line(text), overflow="ellipsis", no_wrap=True))
    return table


def _rows(now: RunNow) -> Iterator[tuple[str, str]]:
    yield "energy", quantities.joules(now.total_j) + _label(now)
    if now.missing_s > 0:
        yield "missing", f"{quantities.duration(now.missing_s)} of device time without a reading"
    if not now.over:
        yield "power", quantities.power(now.power_w)
    yield "CO2e", _grams(now)
    if now.g_per_kwh is not None:
        kind = f", {now.kind}" if now.kind else ""
        pue = "" if now.pue in (None, 1.0) else f", PUE {now.pue:g}"
        yield "grid", f"{quantities.intensity(now.g_per_kwh)} in {now.zone or '?'}{kind}{pue}"
    else:
        yield "grid", "intensity unknown"
    if now.gears or now.cap is not None:
        cap = "" if now.cap is None else f" at {now.cap:.0%} of the power limit"
        yield "gear", "+".join(now.gears) + cap
    yield "steps", quantities.count(now.steps) + _speed(now.steps_per_s, "steps/s")
    for name, count, speed in (
        ("tokens", now.tokens, now.tokens_per_s),
        ("samples", now.samples, now.samples_per_s),
    ):
        if count:
            asked = f" of {quantities.count(now.tokens_asked)}" if now.tokens_asked and name == "tokens" else ""
            yield name, quantities.count(count) + asked + _speed(speed, f"{name}/s")
    if now.tokens_per_j is not None:
        yield "tokens/J", quantities.significant(now.tokens_per_j)
    if now.eta_s is not None:
        yield "left", quantities.duration(now.eta_s)
    if now.plan is not None:
        yield "plan", f"{now.plan.action}: {now.plan.reason}"
        if now.plan.paused and now.plan.resume_unix_s is not None:
            yield "", f"would go on in {quantities.duration(max(0.0, now.plan.resume_unix_s - now.t_unix_s))}"
    if now.saved is not None:
        what = "saved" if now.saved.grams >= 0 else "more"
        text = f"{quantities.mass(abs(now.saved.grams))} CO2e against {now.saved.against} at once"
        yield what, f"{text} ({now.saved.provenance})"


def _devices(now: RunNow) -> Table:
    rows = [(rank, device) for rank in now.ranks for device in rank.devices]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in [*(["rank"] if now.world_size > 1 else []), "device", "power", "energy", ""]:
        right = column not in ("device", "")
        table.add_column(column, no_wrap=True, overflow="ellipsis", justify="right" if right else "left")
    for rank, device in rows[:MOST_DEVICES]:
        missing = f", {quantities.duration(device.missing_s)} missing" if device.missing_s > 0 else ""
        cells = [
            *([str(rank.rank)] if now.world_size > 1 else []),
            one_line(device.name or device.uid),
            "" if device.power_w is None else quantities.power(device.power_w),
            quantities.joules(device.energy_j),
            ", ".join(filter(None, (device.provenance + missing, state_text(device.states.get("", {}))))),
        ]
        table.add_row(*map(Text, cells))
    if len(rows) > MOST_DEVICES:
        table.add_row(*([""] if now.world_size > 1 else []), f"and {len(rows) - MOST_DEVICES} more")
    return table


def _stages(now: RunNow) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("stage", "on", "power", "J/token", ""):
        right = column in ("power", "J/token")
        table.add_column(column, no_wrap=True, overflow="ellipsis", justify="right" if right else "left")
    for use in now.stages[:MOST_DEVICES]:
        cells = use.stage, use.kind, quantities.power(use.mean_power_w), quantities.joules(use.j_per_token)
        table.add_row(*(Text(one_line(text)) for text in (*cells, use.provenance)))
    return table


def _events(now: RunNow) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(no_wrap=True, overflow="ellipsis")
    for event in now.events:
        when = time.strftime("%H:%M:%S", time.localtime(event.t_unix_s))
        rank = f"rank {event.rank}: " if now.world_size > 1 else ""
        table.add_row(when, Text(one_line(f"{rank}{event.name}: {event.text}"), overflow="ellipsis", no_wrap=True))
    return table


def _grams(now: RunNow) -> str:
    if now.operational_g is None and now.embodied_g is None:
        return quantities.UNKNOWN
    parts = [f"{quantities.mass(now.operational_g)} operational", f"{quantities.mass(now.embodied_g)} embodied"]
    if now.market_g is not None:
        parts.append(f"{quantities.mass(now.market_g)} market-based")
    if now.unpriced_j:
        parts.append(f"{quantities.joules(now.unpriced_j)} without an intensity")
    return ", ".join(parts)


def _label(now: RunNow) -> str:
    """Return where the joules come from, in brackets."""
    total = now.total_j
    if not total:
        return ""
    if len(now.energy_j) == 1:
        return f" ({next(iter(now.energy_j))})"
    shares = sorted(now.energy_j.items(), key=lambda item: -item[1])
    return " (" + ", ".join(f"{joules / total:.0%} {name}" for name, joules in shares) + ")"


def _speed(value: float | None, unit: str) -> str:
    return "" if value is None else f", {quantities.significant(value)} {unit}"
