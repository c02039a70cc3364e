"""Totals, sessions and comparisons in the cell of a notebook."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from greentrain.ledger import Totals
from greentrain.report import units_text
from greentrain.shown import Grid, Shown, View


class Comparison(Shown, dict[str, Any]):
    """Runs side by side: the dict of ``greentrain.report.compare``, shown as a table."""

    def _view(self) -> View:
        return comparison_view(self)


def totals_view(totals: Totals) -> View:
    """Return what is shown of totals."""
    return _view("Totals", totals)


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
    return _view(f"{folder.name}, {state}", totals, note, page)


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
    return _view(f"Cell of {name}", totals, "It is part of that run, and in its books.")


def comparison_view(comparison: Mapping[str, Any]) -> View:
    """Return what is shown of a comparison."""
    names = comparison["names"]
    several = [*names, *(f"{name} / {names[0]}" for name in names[1:])]
    rows = [
        (
            row["name"] if row["section"] == "total" else f"{row['section']}: {row['name']}",
            *row["texts"],
            *("" if ratio is None else f"{units_text.significant(ratio)}x" for ratio in row["ratios"][1:]),
        )
        for row in comparison["rows"]
    ]
    return View(
        line=" ".join(comparison["sentences"]),
        title=" ".join(comparison["sentences"]),
        grids=[
            Grid(rows=list(zip(names, comparison["runs"], strict=True))),
            Grid(rows=rows, head=["", *several]),
        ],
        notes=[f"Caveat: {text}" for text in comparison["caveats"]],
    )


def _view(title: str, totals: Totals, note: str = "", page: Path | None = None) -> View:
    known = bool(totals.by_device) or totals.energy_j > 0
    if not known and totals.duration_s <= 0:
        return View(line="nothing is booked yet", title=title, notes=["Nothing is booked yet."], page=page)
    energy_j = totals.energy_j if known else None
    grams = totals.emissions_g if known and (totals.unpriced_j <= 0 or totals.energy_j > totals.unpriced_j) else None
    from_, missing = _provenance(totals), _missing(totals)
    emissions = ("at least " if grams is not None and totals.unpriced_j > 0 else "") + units_text.carbon(grams)
    rows = [
        ("Energy", units_text.joules(energy_j), f"{units_text.energy(energy_j)}; {from_}" if known else from_),
        ("Emissions", emissions, _emissions(totals, known, grams)),
        ("Time", units_text.duration(totals.duration_s), f"mean power {units_text.power(_power(totals, known))}"),
    ]
    work = _work(totals, energy_j)
    if work:
        rows.append(("Work", *work))
    if missing:
        rows.append(("Missing", "", missing))
    grids = [Grid(rows=rows)]
    if totals.by_device:
        grids.append(_of_whole("Device", "Energy by device", totals.by_device))
    if totals.by_phase:
        grids.append(_of_whole("Phase", "Energy by phase", totals.by_phase))
    shown = [f"{units_text.joules(energy_j)} ({from_})", emissions, units_text.duration(totals.duration_s)]
    shown += [": ".join(text for text in work if text)] if work else []
    line = ", ".join(shown) + (f"; missing: {missing}" if missing else "")
    return View(line=line, title=title, grids=grids, notes=[note] if note else [], page=page)


def _power(totals: Totals, known: bool) -> float | None:
    return totals.mean_power_w if known else None


def _provenance(totals: Totals) -> str:
    """Return where the energy is known from, as ``modelled`` or ``60.0 % measured, 40.0 % modelled``."""
    parts = {name: energy_j for name, energy_j in totals.by_provenance.items() if energy_j > 0}
    if len(parts) < 2 or totals.energy_j <= 0:
        return next(iter(parts or totals.by_provenance), "missing: no device could be read or modelled")
    return ", ".join(f"{units_text.percent(parts[name] / totals.energy_j)} {name}" for name in sorted(parts))


def _missing(totals: Totals) -> str:
    return ", ".join(
        f"{uid} for {units_text.duration(seconds)}" for uid, seconds in totals.missing_s.items() if seconds > 0
    )


def _emissions(totals: Totals, known: bool, grams: float | None) -> str:
    if grams is None:
        return "the grid's intensity is not known" if known else "the energy is not known"
    made = f"embodied {units_text.mass(totals.embodied_g)}" if totals.embodied_g > 0 else "embodied unknown"
    return f"electricity {units_text.mass(totals.operational_g)}, {made}"


def _work(totals: Totals, energy_j: float | None) -> tuple[str, str] | None:
    for one, count in (("token", totals.tokens), ("sample", totals.samples), ("step", totals.steps)):
        if count:
            steps = f"{_counted(totals.steps, 'step')}, " if totals.steps and one != "step" else ""
            each = "" if energy_j is None else f"{units_text.joules(energy_j / count)}/{one}"
            return f"{steps}{_counted(count, one)}", each
    return None


def _counted(count: int, one: str) -> str:
    return f"{units_text.count(count)} {one}" + ("" if count == 1 else "s")


def _of_whole(what: str, title: str, energy_j: Mapping[str, float]) -> Grid:
    whole_j = sum(energy_j.values())
    rows = [
        (name, units_text.joules(value), units_text.percent(value / whole_j) if whole_j > 0 else "")
        for name, value in sorted(energy_j.items(), key=lambda item: -item[1])
    ]
    return Grid(rows=rows, head=(what, "Energy", "Share"), title=title, folded=True)
