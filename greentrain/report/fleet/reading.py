"""Reads one run folder in one pass: its row and its sums by day, zone, device and provenance.

The figures are those of ``greentrain report``; the whole summary is not built, as curves, phases and gaps of
thousands of runs would take minutes.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from greentrain.errors import RunFolderError
from greentrain.ledger.journal import parse_line
from greentrain.ledger.totals import Totals
from greentrain.report.fleet.cells import LAST_S, Cells
from greentrain.report.fleet.make_row import MOST_INT, WRONG_DATA, RankFacts, clean, make_row
from greentrain.report.fleet.row import RunRow
from greentrain.types import Provenance

RUN_JSON: Final = "run.json"
Lines = Callable[[Path], Iterable[bytes]]
"""Opens a file and yields its lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A run folder, read."""

    row: RunRow
    cells: Cells
    market_g_per_kwh: float | None = None
    ranks: frozenset[int] = frozenset()
    starts: frozenset[str] = frozenset()
    """``rank@unix_s`` of each process."""
    carried: bool = False
    """It went on from a checkpoint, the journals before which are not here."""


def lines_of(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file.

    Raises:
        RunFolderError: It is a pipe or another thing that may never end.
        OSError: It cannot be read.
    """
    if not path.is_file() and path.exists():
        raise RunFolderError(f"{path.name} is no regular file")
    with path.open("rb") as file:
        yield from file


def read_folder(folder: Path, lines: Lines = lines_of) -> Reading:
    """Read a run folder. What is wrong with it stands in ``row.error``; nothing is raised.

    Args:
        folder: The folder.
        lines: Opens run.json and the journals.
    """
    run: Mapping[str, Any] = {}
    try:
        run = _run_json(folder, lines)
        return _read(folder, run, lines)
    except RunFolderError as error:
        text = str(error)
    except OSError as error:
        text = f"{Path(str(error.filename or folder)).name} cannot be read: {error.strerror or error}"
    except WRONG_DATA as error:
        text = f"a record makes no sense: {type(error).__name__}: {error}"
    run_id = run.get("run_id")
    name = run_id if isinstance(run_id, str) and run_id else folder.name
    return Reading(row=RunRow(run_id=clean(name), folder=folder, error=clean(text)[:500]), cells=Cells())


def _run_json(folder: Path, lines: Lines) -> Mapping[str, Any]:
    path = folder / RUN_JSON
    if not path.exists():
        return {}
    try:
        found = json.loads(b"".join(lines(path)))
    except (ValueError, RecursionError) as error:
        raise RunFolderError(f"{RUN_JSON} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise RunFolderError(f"{RUN_JSON} holds a {type(found).__name__}, not an object")
    return found


def _read(folder: Path, run: Mapping[str, Any], lines: Lines) -> Reading:
    paths = sorted(folder.glob("rank-*.jsonl"))
    if not paths:
        raise RunFolderError("there is no rank-*.jsonl file; the run died before it booked anything, or was not copied")
    cells = Cells()
    ranks: dict[int, RankFacts] = {}
    for path in paths:
        rank = RankFacts()
        for line in lines(path):
            record = parse_line(line, short=True)  # step groups are in no sum
            if record is None:
                continue
            try:
                rank.take(record, cells)
            except RunFolderError as error:
                raise RunFolderError(f"{path.name} has {error}") from error
        if rank.opens:
            number = int(rank.opens[0]["rank"])
            if number in ranks:
                raise RunFolderError(f"{path.name} is a second file of rank {number}; move it out of the folder")
            ranks[number] = rank
    if not ranks:
        raise RunFolderError("no rank file has a complete line; the run died before it booked anything")
    run_id = _same_run(run, ranks)
    for rank in ranks.values():
        rank.carry(cells, _mean_pue(cells, run))
    _check_figures(cells)
    market = ((run.get("config") or {}).get("carbon") or {}).get("market_g_per_kwh")
    market = None if market is None else float(market)
    row = make_row(folder, run, run_id, list(ranks.values()), cells, market)
    _check_row(row)
    return Reading(
        row=row,
        cells=cells,
        market_g_per_kwh=market,
        ranks=frozenset(ranks),
        starts=frozenset(f"{n}@{opened['t']}" for n, rank in ranks.items() for opened in rank.opens if "t" in opened),
        carried=any(rank.carried != Totals() for rank in ranks.values()),
    )


def _same_run(run: Mapping[str, Any], ranks: Mapping[int, RankFacts]) -> str:
    expected = run.get("run_id") or next(iter(ranks.values())).opens[0]["run_id"]
    for number, rank in ranks.items():
        for opened in rank.opens:
            if opened["run_id"] != expected:
                raise RunFolderError(
                    f"the file of rank {number} belongs to run {opened['run_id']!r}, the folder to {expected!r}; move"
                    " it to its own folder"
                )
    return clean(expected)


def _mean_pue(cells: Cells, run: Mapping[str, Any]) -> float:
    energy_j = sum(cell.energy_j for cell in cells.cells.values())
    if energy_j > 0:
        return sum(cell.facility_j for cell in cells.cells.values()) / energy_j
    return float(((run.get("config") or {}).get("carbon") or {}).get("pue") or 1.0)


def _check_row(row: RunRow) -> None:
    """Refuse what neither a table nor JSON can hold.

    Raises:
        RunFolderError: A figure is not finite, absurdly large, or a date in no calendar.
    """
    for item in fields(row):
        value = getattr(row, item.name)
        most = LAST_S if item.name in ("created_unix_s", "end_unix_s") else MOST_INT
        if isinstance(value, int | float) and not abs(value) < most:
            raise RunFolderError(f"its {item.name} is {value:g}, which cannot be")


def _check_figures(cells: Cells) -> None:
    """Refuse what a table cannot hold, before one run's figures spoil the totals of all.

    Raises:
        RunFolderError: A figure is not finite, or absurdly large.
    """
    for key, cell in cells.cells.items():
        figures = (cell.energy_j, cell.facility_j, cell.unpriced_j, cell.device_s, cell.missing_s)
        if not all(map(math.isfinite, (*figures, cell.operational_g, cell.embodied_g))):
            raise RunFolderError("a figure of its ledger is not finite")
        if key.provenance not in (*Provenance,):
            raise RunFolderError(f"its ledger has the provenance {key.provenance!r}, which nobody knows")
    for work in cells.work.values():
        if not math.isfinite(work.rank_s) or max(work.tokens, work.samples) >= MOST_INT:
            raise RunFolderError("a count of its ledger is absurdly large")
