"""Figures of the papers as files: a picture and every value that it shows, drawn in one way.

A CSV begins with what its values rest on, in lines that start with ``#``; the column ``provenance`` says of each row
whether it is measured, modelled, assumed or published.
"""

import argparse
import csv
import io
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.marks import put, table
from greentrain.simulator.picture import LINES, clean, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PROVENANCES: Final = ("measured", "modelled", "assumed", "published")
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a panel, or points, or bars where x are names."""

    name: str
    x: Sequence[float] | Sequence[str]
    y: Sequence[float]
    low: Sequence[float] = ()
    """Lower ends of a band, or none."""
    high: Sequence[float] = ()
    dashed: bool = False
    points: bool = False
    """Marks alone, no line between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Axes with their lines."""

    title: str
    x: str
    y: str
    lines: Sequence[Line]
    log: str = ""
    """Which axes are logarithmic: "", "x", "y" or "xy"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """A figure of a paper, made again."""

    name: str
    """Of its files."""
    title: str
    panels: Sequence[Panel]
    rows: Sequence[Row]
    """With ``provenance``, one of PROVENANCES."""
    notes: Sequence[str]
    """What it rests on, and the published value; also below the picture."""


def as_csv(sheet: Sheet) -> str:
    """Return the values of a figure: notes, one head, all rows; a column that a row lacks is empty."""
    bad = {str(row.get("provenance")) for row in sheet.rows} - set(PROVENANCES)
    if bad:
        raise ValueError(f"{sheet.name}: provenance is {sorted(bad)}, but has to be one of {', '.join(PROVENANCES)}")
    text = io.StringIO()
    for note in sheet.notes:
        text.write(f"# {note}\n")
    writer = csv.DictWriter(text, list(dict.fromkeys(key for row in sheet.rows for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {key: f"{value:.6g}" if isinstance(value, float) else value for key, value in row.items()} for row in sheet.rows
    )
    return text.getvalue()


def tables(sheets: Sequence[Sheet]) -> str:
    """Return every sheet's values as Markdown tables with its notes."""
    parts = []
    for sheet in sheets:
        head = [key for key in sheet.rows[0] if key != "note"]
        cells = [[_cell(row.get(key, "")) for key in head] for row in sheet.rows]
        notes = "\n".join(f"- {note}" for note in sheet.notes)
        parts.append(f"### {sheet.title}\n\n{table(head, cells)}\n\n{notes}")
    return "\n\n".join(parts)


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def write(sheet: Sheet, out: Path) -> tuple[Path, Path]:
    """Write ``NAME.png`` and ``NAME.csv`` into a folder and return them.

    Raises:
        RunFolderError: A file cannot be written.
    """
    import textwrap

    from matplotlib.figure import Figure

    text = as_csv(sheet)
    figure = Figure(figsize=(5.2 * len(sheet.panels), 4.6), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(sheet.panels), squeeze=False)[0], sheet.panels, strict=True):
        _panel(axes, panel)
    figure.suptitle(_plain(sheet.title), x=0.01, ha="left", fontsize=11, fontweight="bold")
    said = "\n".join(textwrap.fill(note, 88 * len(sheet.panels)) for note in sheet.notes)
    figure.supxlabel(_plain(said), x=0.01, ha="left", fontsize=7, color="#555555")
    png = save(figure, out / f"{sheet.name}.png")
    values = out / f"{sheet.name}.csv"
    values.write_text(text, encoding="utf-8")
    return png, values


def _plain(text: str) -> str:
    """Return a text in which matplotlib sees no formula between two dollars."""
    return text.replace("$", r"\$")


def _panel(axes: "Axes", panel: Panel) -> None:
    for line, colour in zip(panel.lines, LINES * 3, strict=False):
        if line.x and isinstance(line.x[0], str):
            _bars(axes, panel.lines.index(line), len(panel.lines), line, colour)
            continue
        axes.plot(
            line.x, line.y, color=colour, linewidth=1.6, linestyle="" if line.points else "--" if line.dashed else "-",
            label=_plain(line.name),
            marker="o" if line.points or len(line.x) < 12 else None,
            markersize=5 if line.points else 3,
        )  # fmt: skip
        if line.low and line.high:
            axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.13, linewidth=0)
    if "x" in panel.log:
        axes.set_xscale("log")
    if "y" in panel.log:
        axes.set_yscale("log")
    axes.set_xlabel(_plain(panel.x), fontsize=9)
    axes.set_ylabel(_plain(panel.y), fontsize=9)
    axes.set_title(_plain(panel.title), fontsize=9, loc="left")
    if len(panel.lines) > 1:
        axes.legend(fontsize=7, frameon=False)
    clean(axes)


def _bars(axes: "Axes", place: int, of: int, line: Line, colour: str) -> None:
    width = 0.8 / of
    at = [i + (place - (of - 1) / 2) * width for i in range(len(line.x))]
    axes.bar(at, line.y, width=width, color=colour, label=_plain(line.name))
    if line.low and line.high:
        ends = [
            [y - low for y, low in zip(line.y, line.low, strict=True)],
            [h - y for y, h in zip(line.y, line.high, strict=True)],
        ]
        axes.errorbar(at, line.y, yerr=ends, fmt="none", ecolor="#333333", elinewidth=0.8, capsize=2)
    axes.set_xticks(range(len(line.x)), [str(x) for x in line.x], rotation=30, ha="right")


def arguments(parser: argparse.ArgumentParser, names: Iterable[str], argv: Sequence[str] | None) -> argparse.Namespace:
    """Return what a script of figures is asked for, with ``--figure``, ``--out`` and ``--into`` among its options."""
    parser.add_argument("--figure", action="append", choices=list(names), help="only this one (may be repeated)")
    parser.add_argument("--out", type=Path, help="folder for a PNG and a CSV of each figure")
    parser.add_argument("--into", type=Path, help="also put the tables into this text, between its two marks")
    args = parser.parse_args(argv)
    if args.into is not None and args.figure:
        parser.error("--into replaces all tables, so it goes without --figure")
    return args


def make(figures: Mapping[str, Callable[[], Sheet]], args: argparse.Namespace, mark: str) -> int:
    """Print the tables of the figures that were asked for, and write what else was.

    Args:
        figures: By name, what makes each.
        args: From :func:`arguments`.
        mark: Name of the marks between which the tables stand in a text.

    Returns:
        0.
    """
    sheets = [figures[name]() for name in args.figure or figures]
    print(tables(sheets))
    if args.out is not None:
        for sheet in sheets:
            print(*write(sheet, args.out), sep="\n", file=sys.stderr)
    if args.into is not None:
        put(tables(sheets), args.into, mark)
    return 0
