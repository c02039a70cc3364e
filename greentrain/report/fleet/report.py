"""``greentrain report --all``: the totals of many runs as a table, as JSON and as files."""

import json
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from greentrain.report.fleet.index import Index
from greentrain.report.fleet.row import RunRow
from greentrain.report.fleet.tables import check_path
from greentrain.report.fleet.totals import NO_SELECTION, FleetTotal, RunSelection, check_keys
from greentrain.utils import quantities
from greentrain.utils.display import one_line, plain

FORMAT: Final = 1
"""Of the JSON document."""
DEFAULT_BY: Final = ("project",)
_LISTED: Final = 10
"""Broken runs and copies that the terminal lists; JSON and export have all."""
_ENDED: Final = "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetReportRequest:
    """What a fleet report is asked for.

    Raises:
        ConfigError: A key is not known, or a file has another suffix than ``.csv`` and ``.parquet``.
    """

    root: Path
    by: Sequence[str] = DEFAULT_BY
    only: RunSelection = NO_SELECTION
    runs_file: Path | None = None
    totals_file: Path | None = None
    cache: Path | None = None

    def __post_init__(self) -> None:
        check_keys(self.by)
        for option, path in (("--export", self.runs_file), ("--export-totals", self.totals_file)):
            if path is not None:
                check_path(option, path)


def report(asked: FleetReportRequest, console: Console, *, as_json: bool) -> None:
    """Refresh the index, print the totals and write the files that are asked for.

    Raises:
        RunFolderError: The root cannot be read, or a file not be written.
    """
    with Index(asked.root, asked.cache) as index:
        _refresh(index, quiet=as_json)
        by, only = list(asked.by), asked.only
        totals, whole, rows = index.totals(by, only), index.totals([], only)[0:1], index.runs(only)
        others = rows if only == NO_SELECTION else [row for row in index.runs() if row.error is not None]
        if asked.runs_file is not None:
            index.export(asked.runs_file, only)
        if asked.totals_file is not None:
            index.export_totals(asked.totals_file, by, only)
    if as_json:
        text = json.dumps(_document(asked, totals, whole, rows, others), indent=1, ensure_ascii=False) + "\n"
        console.file.write(plain(text) if console.is_terminal else text)
        return
    console.print(render(by, totals, whole, rows, others))
    for path in (asked.runs_file, asked.totals_file):
        if path is not None:
            console.print(f"Written: {path}", highlight=False, soft_wrap=True, markup=False)


def render(
    by: Sequence[str],
    totals: Sequence[FleetTotal],
    whole: Sequence[FleetTotal],
    rows: Sequence[RunRow],
    others: Sequence[RunRow],
) -> RenderableType:
    """Return the table, where the joules are from, and what did not go well.

    Args:
        by: Keys of the totals.
        totals: Totals of the groups, one each.
        whole: The sum of all, or nothing.
        rows: Rows of the runs behind the totals.
        others: Runs among which the broken ones are told; a selection does not hide them.
    """
    work = any(total.tokens for total in totals)
    table = Table(box=None, pad_edge=False)
    for key in by:
        table.add_column(key, overflow="fold")
    for name in ("runs", "energy", "measured", "no reading", "CO\N{SUBSCRIPT TWO}e", *(("tokens",) if work else ())):
        table.add_column(name, justify="right")
    for total in totals:
        names = (Text("\N{EN DASH}" if name is None else one_line(name)) for name in total.key.values())
        table.add_row(*names, *_figures(total, work=work))
    if by and len(totals) > 1:
        for total in whole:
            table.add_section()
            table.add_row(*(["all"] + [""] * (len(by) - 1)), *_figures(total, work=work), style="bold")
    parts: list[Any] = [table]
    parts += [Text(_provenance(total), style="dim") for total in whole]
    parts.append(Text(_states(rows), style="dim"))
    parts += [Text(text, style="yellow") for text in _troubles(others)]
    return Group(*parts)


def _refresh(index: Index, *, quiet: bool) -> None:
    if quiet or not sys.stderr.isatty():
        index.refresh()
        return
    with Console(stderr=True).status("Looking for runs") as status:
        index.refresh(lambda done, of: status.update(f"Reading runs: {done} of {of}"))


def _figures(total: FleetTotal, *, work: bool) -> list[str]:
    share = (total.measured_j or 0.0) / total.energy_j if total.energy_j else None
    grams = quantities.mass(total.total_g)
    if total.total_g is not None and total.unpriced_j:
        grams = f"\N{GREATER-THAN OR EQUAL TO} {grams}"
    figures = [
        str(total.runs), quantities.energy(total.energy_j), quantities.percent(share),
        quantities.percent(total.missing_share), grams,
    ]  # fmt: skip
    return figures + ([quantities.count(total.tokens)] if work else [])


def _provenance(total: FleetTotal) -> str:
    if not total.energy_j:
        return "No energy is known."
    measured, modelled = ((part or 0.0) / total.energy_j for part in (total.measured_j, total.modelled_j))
    text = f"Joules: {quantities.percent(measured)} measured, {quantities.percent(modelled)} modelled;"
    text += f" missing: {quantities.percent(total.missing_share)} of the device time has no reading."
    if total.energy_low_j is not None or total.energy_high_j is not None:
        interval = {"low": total.energy_low_j, "high": total.energy_high_j}
        text += f" With its errors it is {quantities.between(total.energy_j, interval, quantities.ENERGY)}."
    if total.unpriced_j:
        text += f" {quantities.energy(total.unpriced_j)} have no carbon intensity and are in no gram."
    return text


def _states(rows: Sequence[RunRow]) -> str:
    now_s = time.time()
    states = Counter(row.state(now_s) for row in rows if row.error is None)
    rest = [f"{count} {state}" for state, count in sorted(states.items()) if state != _ENDED]
    return f"Runs: {', '.join([f'{states[_ENDED]} {_ENDED}', *rest])}."


def _troubles(rows: Sequence[RunRow]) -> list[str]:
    broken = [f"{one_line(str(row.folder))}: {one_line(row.error)}" for row in rows if row.error is not None]
    copies = [
        f"{one_line(str(row.folder))}: a copy of {one_line(str(row.duplicate_of))}, not counted"
        for row in rows
        if row.duplicate_of is not None
    ]
    partial = sum(row.missing_ranks > 0 for row in rows)
    lines = []
    for name, texts in (("Broken", broken), ("Copy", copies)):
        lines += [f"{name}: {text}" for text in texts[:_LISTED]]
        if len(texts) > _LISTED:
            lines.append(f"{name}: {len(texts) - _LISTED} more; --json and --export have all.")
    if partial:
        lines.append(f"Of {partial} runs the files of some ranks are not here: their energy is in no figure.")
    return lines


def _document(
    asked: FleetReportRequest,
    totals: Sequence[FleetTotal],
    whole: Sequence[FleetTotal],
    rows: Sequence[RunRow],
    others: Sequence[RunRow],
) -> Mapping[str, Any]:
    now_s = time.time()
    states = Counter(row.state(now_s) for row in rows)
    return {
        "format": FORMAT,
        "root": str(asked.root),
        "by": list(asked.by),
        "since": asked.only.since,
        "until": asked.only.until,
        "where": dict(asked.only.where),
        "totals": [total.to_dict() for total in totals],
        "all": whole[0].to_dict() if whole else None,
        "states": dict(states),
        "unfinished": [_place(row, now_s) for row in rows if row.reason != _ENDED and row.error is None],
        "broken": [{**_place(row, now_s), "error": row.error} for row in others if row.error is not None],
        "duplicates": [
            {**_place(row, now_s), "duplicate_of": str(row.duplicate_of)}
            for row in rows
            if row.duplicate_of is not None
        ],
        "missing_ranks": [{**_place(row, now_s), "ranks": row.missing_ranks} for row in rows if row.missing_ranks],
    }


def _place(row: RunRow, now_s: float) -> dict[str, Any]:
    return {"run_id": row.run_id, "folder": str(row.folder), "state": row.state(now_s)}
