"""A study as a table for the terminal and for other programs.

The folder of a study or a replay: a table for people's tools, everything for programs, and pictures.
"""

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from greentrain.errors import RunFolderError
from greentrain.simulator.picture import draw_scene, save
from greentrain.simulator.scene import ORACLE, Scene
from greentrain.simulator.study import STATIC, StudyRow, StudyResult
from greentrain.utils import quantities

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


_HEAD: Final = ("Policy", "CO2e", "Saved", "vs blind", "Over best", "Missed", "Changes/d")


def render(result: StudyResult) -> "RenderableType":
    """Return a rich renderable: one table a grid and slack, and what the numbers rest on."""
    from rich.console import Group
    from rich.text import Text

    rows = result.rows()
    parts: list[RenderableType] = []
    for case in result.cases:
        for grid in result.study.grids:
            mine = [row for row in rows if (row.trace, row.slack) == (grid.trace.name, case.slack)]
            title = f"{grid.trace.name}, {_jobs(mine[0].jobs)} of {quantities.count(case.tokens)}"
            title += f" {result.study.actions.unit} in {case.deadline_h:.4g} h (slack {case.slack:.3g})"
            parts.append(_table(title, mine))
    parts.append(Text("Saved: against static; vs blind: against the constant pace of least energy.", style="dim"))
    parts += [Text(f"{note}.", style="dim") for note in result.notes()]
    return Group(*parts)


def to_csv(result: StudyResult) -> str:
    """Return the rows as CSV text, shares as fractions; empty where nothing is known."""
    rows = [row.to_dict() for row in result.rows()]
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def signed(share: float) -> str:
    """Return a share as a percentage with one digit, and no -0.0."""
    return f"{round(share * 100, 1) + 0.0:.1f} %"


def _table(title: str, rows: Sequence[StudyRow]) -> "Table":
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title), title_justify="left", title_style="bold", box=None, pad_edge=False)
    for name in _HEAD:
        table.add_column(name, justify="left" if name == "Policy" else "right", no_wrap=True)
    best = min((row for row in rows if row.policy != ORACLE), key=lambda row: (row.misses > 0, row.grams))
    for row in rows:
        style = "bold" if row is best else "dim" if row.policy == ORACLE else ""
        table.add_row(
            escape(row.policy),
            quantities.mass(row.grams),
            "" if row.policy == STATIC else signed(row.saving),
            signed(row.over_blind),
            "" if row.policy == ORACLE else signed(row.excess),
            "" if row.policy == ORACLE else f"[red]{row.misses}[/]" if row.misses else "0",
            "" if row.switches_per_day is None else f"{row.switches_per_day:.1f}",
            style=style,
        )
    return table


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"


def write_results(
    folder: Path, result: Mapping[str, Any], table_csv: str, scenes: Sequence[tuple[str, Scene]], suffix: str = ".png"
) -> list[Path]:
    """Write ``table.csv``, ``result.json`` and one picture a scene, and return their paths.

    Args:
        folder: Made where there is none.
        result: In plain JSON types.
        table_csv: The table.
        scenes: Names of pictures and what is on them; none: no picture.
        suffix: Format of the pictures.

    Raises:
        RunFolderError: The folder cannot be written.
        MissingExtraError: There are pictures to draw, and matplotlib is not installed.
    """
    texts = {"table.csv": table_csv, "result.json": json.dumps(result, indent=1, allow_nan=False) + "\n"}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunFolderError(
            f"cannot write to {folder}: {error.strerror or error}; choose another with --out"
        ) from error
    written = [folder / name for name in texts]
    for name, scene in scenes:
        written.append(save(draw_scene(scene), folder / f"{safe(name)}{suffix}"))
    return written


def safe(name: str) -> str:
    """Return a name as that of a file."""
    return re.sub(r"[^\w.-]+", "-", name).strip(".-") or "picture"
