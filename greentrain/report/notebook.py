"""Totals, sessions and comparisons in the cell of a notebook."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from greentrain.ledger.totals import Totals, books_view
from greentrain.utils import quantities
from greentrain.utils.display import Displayable, Table, View


class Comparison(Displayable, dict[str, Any]):
    """Runs side by side: the dict of ``greentrain.report.compare``, shown as a table."""

    def _view(self) -> View:
        return comparison_view(self)


def session_view(totals: Totals, *, state: str, folder: Path | None, page: Path | None) -> View:
    """Return what is shown of a session.

    Args:
        totals: Of this rank, as of now.
        state: ``not started``, ``running`` or ``closed``.
        folder: Of its run; None before the first start.
        page: The run's report; None where there is none.
    """
    if folder is None:
        title = f"GreenSession, {state}"
        return View(line=title, title=title, notes=["start() or a with block begins to measure."])
    note = "" if state == "closed" else "As of the last booking, a few seconds ago; close() makes them final."
    return books_view(f"{folder.name}, {state}", totals, note, page)


def cell_view(name: str, totals: Totals | None) -> View:
    """Return what is shown of a cell that was measured within a run that goes on.

    Args:
        name: Name of the run.
        totals: Of the cell; None where a reading is missing in it.
    """
    if totals is None:
        line = "unknown: a reading is missing in this time or is late, or the run ended in it"
        return View(
            line=line, title=f"Cell of {name}", notes=[line.capitalize() + ". The run's books have what is known."]
        )
    return books_view(f"Cell of {name}", totals, "It is part of that run, and in its books.")


def comparison_view(comparison: Mapping[str, Any]) -> View:
    """Return what is shown of a comparison."""
    names = comparison["names"]
    several = [*names, *(f"{name} / {names[0]}" for name in names[1:])]
    rows = [
        (
            row["name"] if row["section"] == "total" else f"{row['section']}: {row['name']}",
            *row["texts"],
            *("" if ratio is None else f"{quantities.significant(ratio)}x" for ratio in row["ratios"][1:]),
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
