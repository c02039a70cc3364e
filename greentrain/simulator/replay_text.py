"""A replay as a table for the terminal and for other programs."""

import csv
import io
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from greentrain.simulator.replay import Line, RunReplay, less
from greentrain.simulator.scene import ORACLE, RAN
from greentrain.simulator.study_text import signed
from greentrain.utils import quantities

if TYPE_CHECKING:
    from rich.console import RenderableType

_HEAD: Final = ("Policy", "CO2e", "vs static", "vs the run", "Done (UTC)", "Changes")


def render(result: RunReplay) -> "RenderableType":
    """Return a rich renderable: what ran, what others would have done, and what the numbers rest on."""
    from rich.console import Group
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    told = result.happened
    title = f"{told.run_id}: {quantities.count(told.tokens)} {told.unit} under {told.policy}, replayed"
    table = Table(title=escape(title), title_justify="left", title_style="bold", box=None, pad_edge=False)
    for name in _HEAD:
        table.add_column(name, justify="left" if name == "Policy" else "right", no_wrap=True)
    for line in result.lines:
        style = "bold" if line.name == RAN else "dim" if line.name == ORACLE else ""
        table.add_row(
            escape(line.name),
            quantities.mass(line.grams),
            _share(less(line.grams, result.verdict.static_g)),
            "" if line.name == RAN else _share(less(line.grams, told.grams)),
            _done(line),
            "" if line.changes is None else str(line.changes),
            style=style,
        )
    return Group(
        table,
        Text("Shares are of grams not emitted; below 0: more was.", style="dim"),
        *(Text(f"{note}.", style="dim") for note in result.notes),
    )


def to_csv(result: RunReplay) -> str:
    """Return the rows as CSV text, shares as fractions; empty where nothing is known."""
    rows = result.rows()
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _share(share: float | None) -> str:
    return quantities.UNKNOWN if share is None else signed(share)


def _done(line: Line) -> str:
    if line.name == ORACLE:
        return ""
    if line.done_s is None:
        return f"late, {quantities.count(line.tokens_left)} left" if line.tokens_left else "not all"
    return datetime.fromtimestamp(line.done_s, UTC).strftime("%d %b %H:%M")
