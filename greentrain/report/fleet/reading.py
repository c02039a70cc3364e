"""Reads one run folder in one pass: its sums by UTC day, zone, kind of device and provenance, and its row.

The figures are those of ``greentrain report``; the whole summary is not built, as curves, phases and gaps of
thousands of runs would take minutes.
"""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from greentrain.errors import RunFolderError
from greentrain.ledger.journal import RUN_JSON, WRONG_DATA, check_format, lines_of, object_of
from greentrain.ledger.reader import RankBooks, read_books, read_ranks
from greentrain.ledger.totals import MISSING, EnergyPart, EntrySums, Totals
from greentrain.report.fleet.row import MOST_INT, RunRow, clean, make_row
from greentrain.types import FORMAT_VERSION, S_PER_DAY

Lines = Callable[[Path], Iterable[bytes]]
"""Opens a file and yields its lines."""
_DAYS: Final = (-719_162, 2_932_896)
"""Years 1 to 9999, as the calendar of Python has them (datetime, MINYEAR and MAXYEAR)."""
LAST_S: Final = _DAYS[1] * S_PER_DAY
"""End of that calendar (s since the epoch, UTC)."""
_MOST_DAYS: Final = 36_525
"""An interval of the ledger, 10 s as a rule, cannot be a century."""


@dataclass(frozen=True, slots=True)
class CellKey:
    """Where a sum belongs. None: nobody tells, as for parts of a run whose journals are in no folder."""

    day: int | None
    """Days since 1970-01-01 (UTC)."""
    zone: str | None
    kind: str | None
    """Of device, as ``gpu``."""
    provenance: str
    """``measured`` or ``modelled``; ``missing`` has seconds and no joules."""


@dataclass(slots=True, kw_only=True)
class WorkDone:
    """What was done on one UTC day in one zone."""

    rank_s: float = 0.0
    tokens: int = 0
    samples: int = 0


class RunCells:
    """All sums of one run: what totals by month, zone or device are made of."""

    def __init__(self) -> None:
        self.cells: dict[CellKey, EnergyPart] = {}
        self.work: dict[tuple[int | None, str | None], WorkDone] = {}

    def add(self, books: RankBooks) -> None:
        """Add a rank whose entries were split ``by_span_and_zone``."""
        for (day, zone), sums in books.groups.items():
            self._add(day, zone, sums, books.sensors)
            work = self._work((day, zone))
            work.rank_s += sums.duration_s
            work.tokens += sums.tokens
            work.samples += sums.samples

    def _add(self, day: int, zone: str | None, sums: EntrySums, sensors: Mapping[str, Mapping[str, Any]]) -> None:
        for uid, device in sums.devices.items():
            kind = str(sensors[uid]["kind"]) if uid in sensors else None
            for provenance, part in device.parts.items():
                self._cell(CellKey(day, zone, kind, provenance)).merge(part)
            if device.missing_s is not None:
                self._cell(CellKey(day, zone, kind, MISSING)).missing_s += device.missing_s
        if sums.embodied_of_none_g is not None:
            cell = self._cell(CellKey(day, zone, None, MISSING))
            cell.embodied_g, cell.embodied = cell.embodied_g + sums.embodied_of_none_g, True

    def carry(self, carried: Totals, pue: float) -> None:
        """Book an earlier part of the run, of which only totals are known: its day, zone and devices are not.

        Args:
            carried: The totals of that part.
            pue: The PUE for totals that do not tell their facility energy.
        """
        facility_j = carried.facility_j if carried.facility_j >= carried.energy_j else carried.energy_j * pue
        known_j = sum(carried.by_provenance.values())
        missing_s = sum(carried.missing_s.values())
        known_s = carried.device_s - missing_s
        for provenance, energy_j in carried.by_provenance.items():
            share = energy_j / known_j if known_j else 1.0 / len(carried.by_provenance)
            cell = self._cell(CellKey(None, None, None, provenance))
            cell.energy_j += energy_j
            cell.known_s += known_s * share
            cell.facility_j += facility_j * share
            cell.unpriced_j += carried.unpriced_j * share
            cell.operational_g += carried.operational_g * share
            cell.embodied_g += carried.embodied_g * share
            cell.embodied = cell.embodied or carried.embodied_g > 0
            cell.priced = cell.priced or carried.energy_j > carried.unpriced_j
        if carried.embodied_g > 0 and not carried.by_provenance:
            cell = self._cell(CellKey(None, None, None, MISSING))
            cell.embodied_g, cell.embodied = cell.embodied_g + carried.embodied_g, True
        if missing_s:
            self._cell(CellKey(None, None, None, MISSING)).missing_s += missing_s
        work = self._work((None, None))
        work.rank_s += carried.duration_s
        work.tokens += carried.tokens
        work.samples += carried.samples

    def by_provenance(self) -> dict[str, EnergyPart]:
        """Return the sums of the whole run by provenance."""
        out: dict[str, EnergyPart] = {}
        for key, cell in self.cells.items():
            out.setdefault(key.provenance, EnergyPart()).merge(cell)
        return out

    def _cell(self, key: CellKey) -> EnergyPart:
        return self.cells.setdefault(key, EnergyPart())

    def _work(self, key: tuple[int | None, str | None]) -> WorkDone:
        return self.work.setdefault(key, WorkDone())


def by_span_and_zone(
    entry: Mapping[str, Any], span_s: int = S_PER_DAY
) -> Iterator[tuple[tuple[int, str | None], Mapping[str, Any]]]:
    """Yield an entry with its UTC day (or hour) and zone; of one over midnight, the parts by the time on each side.

    Steps and gears, which are whole, stay with the first part, and tokens and samples are rounded so that they add up.

    Args:
        entry: The record as the journal has it.
        span_s: Length of a span, of which the n-th starts n times as long after 1970-01-01: a day's or an hour's (s).

    Raises:
        ValueError: Its interval is in no calendar, or longer than a century.
    """
    zone = entry["carbon"]["zone"] or None
    days = list(_spans(entry["t0"], entry["t1"], span_s))
    if len(days) == 1:
        yield (days[0][0], zone), entry
        return
    long_s, whole = entry["t1"] - entry["t0"], {name: entry[name] for name in ("tokens", "samples")}
    upto, told = 0.0, dict.fromkeys(whole, 0)
    for place, (day, share) in enumerate(days):
        t0_s = entry["t0"] + long_s * upto
        upto = 1.0 if place == len(days) - 1 else min(upto + share, 1.0)
        counts = {name: round(upto * count) - told[name] for name, count in whole.items()}
        told = {name: told[name] + count for name, count in counts.items()}
        part = {
            **entry,
            **counts,
            "t0": t0_s,
            "t1": t0_s + long_s * share,
            "devices": {
                uid: {**device, "j": device["j"] * share, "missing_s": device["missing_s"] * share, "phases": {}}
                for uid, device in entry["devices"].items()
            },
            "phase_s": {},
            "phase_incl_j": {},
            **{name: None if entry[name] is None else entry[name] * share for name in ("op_g", "emb_g")},
        }
        yield (day, zone), part if place == 0 else {**part, "steps": 0, "gears": {}}


class _BoundedSplit:
    """``by_span_and_zone`` for one run: its long intervals have no more days together than one may have alone."""

    def __init__(self) -> None:
        self._whole_days = 0

    def __call__(self, entry: Mapping[str, Any]) -> Iterator[tuple[tuple[int, str | None], Mapping[str, Any]]]:
        self._whole_days += max(int(entry["t1"] // S_PER_DAY) - int(entry["t0"] // S_PER_DAY) - 1, 0)
        if self._whole_days > _MOST_DAYS:
            raise ValueError("its intervals are longer than a century together")
        return by_span_and_zone(entry)


def _spans(t0_unix_s: float, t1_unix_s: float, each_s: int) -> Iterator[tuple[int, float]]:
    """Yield the UTC days, or hours, of an interval with its share on each; the shares add up to 1.

    Raises:
        ValueError: It is in no calendar, or longer than a century.
    """
    first, last = int(t0_unix_s // each_s), int(t1_unix_s // each_s)
    if not _DAYS[0] * S_PER_DAY <= first * each_s <= (last + 1) * each_s <= LAST_S or last - first > _MOST_DAYS:
        raise ValueError(f"an interval from {t0_unix_s:g} to {t1_unix_s:g} s after 1970-01-01 cannot be")
    if t1_unix_s <= t0_unix_s or last == first or t1_unix_s == last * each_s == (first + 1) * each_s:
        yield first, 1.0
        return
    begin_s, span_s = t0_unix_s, t1_unix_s - t0_unix_s
    for day in range(first, last + 1):
        end_s = min((day + 1) * each_s, t1_unix_s)
        if end_s > begin_s:
            yield day, (end_s - begin_s) / span_s
        begin_s = end_s


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReading:
    """A run folder, read."""

    row: RunRow
    cells: RunCells = field(default_factory=RunCells)
    market_g_per_kwh: float | None = None
    ranks: frozenset[int] = frozenset()
    starts: frozenset[str] = frozenset()
    """``rank@unix_s`` of each process."""
    carried: bool = False
    """It went on from a checkpoint, the journals before which are not here."""


def read_folder(folder: Path, lines: Lines = lines_of) -> RunReading:
    """Read a run folder. What is wrong with it stands in ``row.error``; nothing is raised.

    Args:
        folder: The folder.
        lines: Function that opens run.json and the journals, and yields their lines.
    """
    run: Mapping[str, Any] = {}
    try:
        path = folder / RUN_JSON
        if path.exists():
            run = object_of(lines(path), path)
            check_format(run.get("format", FORMAT_VERSION), path)
        return _read(folder, run, lines)
    except RunFolderError as error:
        text = str(error).replace(f"{folder}{os.sep}", "").removeprefix(f"{folder}: ").removeprefix(f"{folder} ")
    except OSError as error:
        text = f"{Path(str(error.filename or folder)).name} cannot be read: {error.strerror or error}"
    except WRONG_DATA as error:
        text = f"a record makes no sense: {type(error).__name__}: {error}"
    run_id = run.get("run_id")
    name = run_id if isinstance(run_id, str) and run_id else folder.name
    return RunReading(row=RunRow(run_id=clean(name), folder=folder, error=clean(text)[:500]))


def _read(folder: Path, run: Mapping[str, Any], lines: Lines) -> RunReading:
    if not any(folder.glob("rank-*.jsonl")):
        raise RunFolderError("there is no rank-*.jsonl file; the run died before it booked anything, or was not copied")
    split = _BoundedSplit()
    ranks = read_ranks(folder, run, lambda path: read_books(path, RankBooks(split), lines))
    cells = RunCells()
    for books in ranks.values():
        cells.add(books)
    for books in ranks.values():
        if books.carried != Totals():
            cells.carry(books.carried, _mean_pue(cells, run))
    _check_figures(cells)
    market = ((run.get("config") or {}).get("carbon") or {}).get("market_g_per_kwh")
    market = None if market is None else float(market)
    by_zone: dict[str, float] = {}
    for key, cell in cells.cells.items():
        if key.zone is not None:
            by_zone[key.zone] = by_zone.get(key.zone, 0.0) + cell.energy_j
    zone = max(by_zone, key=lambda zone: by_zone[zone], default=None)
    row = make_row(folder, run, list(ranks.values()), cells.by_provenance(), zone=zone, market_g_per_kwh=market)
    _check_row(row)
    return RunReading(
        row=row,
        cells=cells,
        market_g_per_kwh=market,
        ranks=frozenset(map(int, ranks)),
        starts=frozenset(f"{n}@{opened['t']}" for n, rank in ranks.items() for opened in rank.opens if "t" in opened),
        carried=any(rank.carried != Totals() for rank in ranks.values()),
    )


def _mean_pue(cells: RunCells, run: Mapping[str, Any]) -> float:
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


def _check_figures(cells: RunCells) -> None:
    """Refuse what a table cannot hold, before one run's figures spoil the totals of all.

    Raises:
        RunFolderError: A figure is not finite, or absurdly large.
    """
    for cell in cells.cells.values():
        if not all(math.isfinite(getattr(cell, item.name)) for item in fields(cell)):
            raise RunFolderError("a figure of its ledger is not finite")
    for work in cells.work.values():
        if not math.isfinite(work.rank_s) or max(work.tokens, work.samples) >= MOST_INT:
            raise RunFolderError("a count of its ledger is absurdly large")
