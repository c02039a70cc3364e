"""Results as a person sees them: a line where they are printed, tables in a cell of a notebook."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unicodedata import category
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

STYLE: Final = (
    "div.greentrain table{border-collapse:collapse;margin:.3em 0 .6em;font-size:inherit;table-layout:auto}"
    "div.greentrain th,div.greentrain td{text-align:left;vertical-align:top;padding:.15em 1.2em .15em 0;border:0;"
    "color:inherit;font-weight:inherit;white-space:normal;max-width:48em}"
    "div.greentrain td.figure{font-weight:600;white-space:nowrap}"
    "div.greentrain thead th,div.greentrain p.note{opacity:.75}"
    "div.greentrain p{margin:.2em 0}div.greentrain summary{cursor:pointer}"
)
"""Of the class alone; colours are the notebook's, so it is readable on light and dark ones."""


_STEERING: Final = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Categories of what is no letter: controls, C1 too, format (which turns the direction of writing), halves of a
character, and ends of lines and paragraphs (Unicode Standard 16.0, table 4-4)."""


def plain(text: str) -> str:
    """Return anybody's text for a terminal or a log: what would steer one is replaced; line ends stay.

    Args:
        text: The text, as a name in a file of somebody else.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join("\N{REPLACEMENT CHARACTER}" if c != "\n" and category(c) in _STEERING else c for c in text)


def one_line(text: str) -> str:
    """Return the same in one line."""
    return plain(text).replace("\n", " ")


@dataclass(frozen=True, slots=True)
class Plain:
    """Something for a rich console whose words come from anybody: none of them steers the terminal."""

    renderable: "RenderableType"

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "Iterator[Segment]":
        from rich.segment import Segment

        for segment in console.render(self.renderable, options):
            yield segment if segment.control else Segment(plain(segment.text), segment.style)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table. The first column names, the second holds the figure."""

    rows: Sequence[Sequence[str]]
    head: Sequence[str] = ()
    title: str = ""
    folded: bool = False
    """Shown as its title, which opens it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What is shown of a result."""

    line: str
    """All of it in a line of plain text."""
    title: str
    grids: Sequence[Table] = ()
    notes: Sequence[str] = ()
    page: Path | None = None
    """A page with more, to which a link leads."""


_STYLES: Final = {"assumed": "yellow", "given": "green", "Note": "yellow", "Caveat": "yellow"}
"""In a terminal, of a cell that says where a figure is from, and of a note by its first word."""


class Displayable:
    """A result that notebooks show as tables, and ``print`` as a line."""

    __slots__ = ()

    @abstractmethod
    def _view(self) -> View:
        """Return what is shown."""

    def __str__(self) -> str:
        return plain(self._view().line)

    def __rich__(self) -> "RenderableType":
        from rich.console import Group
        from rich.table import Table as RichTable
        from rich.text import Text

        view = self._view()
        parts: list[RenderableType] = [Text(view.title, style="bold")]
        for grid in view.grids:
            if grid.title:
                parts.append(Text(f"\n{grid.title}", style="bold"))
            table = RichTable(box=None, pad_edge=False, show_header=bool(grid.head))
            for i, name in enumerate(grid.head):
                table.add_column(Text(name), justify="right" if i else "left")
            if not grid.head:
                table.add_column(style="dim", no_wrap=True)
                for _ in range(max(map(len, grid.rows), default=1) - 1):
                    table.add_column(overflow="fold")
            for row in grid.rows:
                table.add_row(*(Text(cell, _STYLES.get(cell, "")) for cell in row))  # no markup: words are anybody's
            parts.append(table)
        return Group(*parts, *(Text(note, _STYLES.get(note.partition(":")[0], "dim")) for note in view.notes))

    def _repr_html_(self) -> str:
        return to_html(self._view())

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        view = self._view()
        return {"text/plain": plain(view.line), "text/html": to_html(view)}


def to_html(view: View) -> str:
    """Return a view as HTML for a cell: every word escaped, no script, nothing loaded."""
    parts = [f"<p><b>{escape(view.title)}</b></p>", *(_table(grid) for grid in view.grids)]
    parts += [f'<p class="note">{escape(note)}</p>' for note in view.notes]
    if view.page is not None:
        href = escape(_from_here(view.page))
        parts.append(
            f'<p><a href="{href}" target="_blank" rel="noopener">Report</a> <small>{escape(str(view.page))}</small></p>'
        )
    return f'<div class="greentrain"><style>{STYLE}</style>{"".join(parts)}</div>'


def _from_here(page: Path) -> str:
    """Return a page's address as notebooks resolve it: from the kernel's folder, where it lies below that."""
    try:
        return quote(page.absolute().relative_to(Path.cwd()).as_posix())
    except (OSError, ValueError):
        return page.absolute().as_uri()


def _table(grid: Table) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in grid.head)
    rows = "".join(
        f'<tr><th scope="row">{escape(first)}</th>'
        + "".join(f"<td{_FIGURE if i == 0 else ''}>{escape(text)}</td>" for i, text in enumerate(rest))
        + "</tr>"
        for first, *rest in grid.rows
    )
    table = f"<table>{f'<thead><tr>{head}</tr></thead>' if head else ''}<tbody>{rows}</tbody></table>"
    if grid.folded:
        return f"<details><summary>{escape(grid.title)}</summary>{table}</details>"
    return (f"<p>{escape(grid.title)}</p>" if grid.title else "") + table


_FIGURE: Final = ' class="figure"'
