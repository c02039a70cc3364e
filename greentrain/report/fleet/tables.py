"""The columnar tables of many runs, in memory: rows, sums by day, zone, device and provenance, tags."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from greentrain.report.fleet.reading import RunReading
from greentrain.report.fleet.row import RunRow
from greentrain.types import Provenance, kwh_from_j
from greentrain.utils.imports import try_import

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

NAMES: Final = ("runs", "tags", "cells", "work")
"""Of the tables. Each has ``folder``, the path of the run relative to the root."""
_TEXT, _REAL, _COUNT = "VARCHAR", "DOUBLE", "BIGINT"
_MAPS: Final = ("tags", "gears")
_LISTS: Final = ("devices", "frameworks")
_COUNTS: Final = ("world_size", "missing_ranks", "steps", "tokens", "samples")
_REALS: Final = (
    "created_unix_s", "end_unix_s", "wall_s", "energy_j", "measured_j", "modelled_j", "missing_s", "device_s",
    "facility_j", "unpriced_j", "operational_g", "market_g", "embodied_g", "total_g", "saved_g", "g_per_token",
    "j_per_token", "tokens_per_s", "estimate_ratio",
)  # fmt: skip
_ROW: Final = {
    item.name: _COUNT if item.name in _COUNTS else _REAL if item.name in _REALS else _TEXT for item in fields(RunRow)
}
_COLUMNS: Final[Mapping[str, Mapping[str, str]]] = {
    "runs": {**_ROW, "fingerprint": _TEXT, "ranks": _TEXT, "starts": _TEXT, "carried": "BOOLEAN"},
    "tags": {"folder": _TEXT, "tag": _TEXT, "value": _TEXT},
    "cells": {
        "folder": _TEXT, "day": "INTEGER", "zone": _TEXT, "device": _TEXT, "provenance": _TEXT, "energy_j": _REAL,
        "facility_j": _REAL, "unpriced_j": _REAL, "device_s": _REAL, "missing_s": _REAL, "operational_g": _REAL,
        "market_g": _REAL, "embodied_g": _REAL,
    },
    "work": {
        "folder": _TEXT, "day": "INTEGER", "zone": _TEXT, "rank_s": _REAL, "tokens": _COUNT, "samples": _COUNT,
    },
}  # fmt: skip


def connect() -> "DuckDBPyConnection":
    """Return an empty database in memory that fetches nothing from a network.

    Raises:
        MissingExtraError: DuckDB is not installed.
    """
    with try_import("fleet") as imports:
        import duckdb
    imports.check()
    return duckdb.connect(
        ":memory:", config={"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
    )


def create(connection: "DuckDBPyConnection") -> None:
    """Make the tables, empty."""
    for name, columns in _COLUMNS.items():
        text = ", ".join(f"{column} {kind}" for column, kind in columns.items())
        connection.execute(f"CREATE OR REPLACE TABLE {name} ({text})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A run folder as the tables hold it."""

    folder: str
    """Relative to the root."""
    fingerprint: str
    reading: RunReading


def insert(connection: "DuckDBPyConnection", entries: Iterable[Entry]) -> None:
    """Add run folders, in place of what the tables had of them."""
    entries = list(entries)
    delete(connection, [entry.folder for entry in entries])
    lines: dict[str, list[tuple[Any, ...]]] = {name: [] for name in NAMES}
    for entry in entries:
        row = entry.reading.row
        ranks, starts = ",".join(map(str, sorted(entry.reading.ranks))), ",".join(sorted(entry.reading.starts))
        lines["runs"].append(
            (
                *(_encoded(row, name, entry.folder) for name in _ROW),
                entry.fingerprint,
                ranks,
                starts,
                entry.reading.carried,
            )
        )
        lines["tags"] += [(entry.folder, tag, value) for tag, value in row.tags.items()]
        lines["cells"] += _cells(entry)
        lines["work"] += [
            (entry.folder, day, zone, work.rank_s, work.tokens, work.samples)
            for (day, zone), work in entry.reading.cells.work.items()
        ]
    for name, rows in lines.items():
        _insert(connection, name, rows)


def delete(connection: "DuckDBPyConnection", folders: Sequence[str]) -> None:
    """Forget run folders."""
    if folders:
        for name in NAMES:
            connection.execute(f"DELETE FROM {name} WHERE folder IN (SELECT unnest($1::VARCHAR[]))", [list(folders)])


def rows(connection: "DuckDBPyConnection", root: Path, where: str = "", values: Sequence[Any] = ()) -> list[RunRow]:
    """Return rows, the newest first.

    Args:
        connection: To the tables.
        root: Under which the folders lie.
        where: A condition on ``runs``, empty for all.
        values: Of its parameters.
    """
    sql = f"SELECT {', '.join(_ROW)} FROM runs {'WHERE ' + where if where else ''}"
    found = connection.execute(f"{sql} ORDER BY created_unix_s DESC NULLS LAST, folder", list(values)).fetchall()
    decoders = [_decoder(name, root) for name in _ROW]
    return [
        RunRow(**{name: decode(value) for name, decode, value in zip(_ROW, decoders, line, strict=True)})
        for line in found
    ]


def _insert(connection: "DuckDBPyConnection", name: str, rows: list[tuple[Any, ...]]) -> None:
    if rows:
        kinds = _COLUMNS[name].values()
        lists = ", ".join(f"unnest(${i}::{kind}[])" for i, kind in enumerate(kinds, 1))  # 30 times as fast as rows
        connection.execute(f"INSERT INTO {name} SELECT {lists}", [list(column) for column in zip(*rows, strict=True)])


def _cells(entry: Entry) -> list[tuple[Any, ...]]:
    out: list[tuple[Any, ...]] = []
    market = entry.reading.market_g_per_kwh
    for key, cell in entry.reading.cells.cells.items():
        known = key.provenance != Provenance.MISSING
        zone, kind = (None if text is None else _utf8(text) for text in (key.zone, key.kind))
        out.append(
            (
                entry.folder, key.day, zone, kind, key.provenance,
                cell.energy_j if known else None,
                cell.facility_j if known else None,
                cell.unpriced_j if known else None,
                cell.known_s,
                cell.missing_s,
                cell.operational_g if cell.priced else None,
                market * kwh_from_j(cell.facility_j) if known and market is not None else None,
                cell.embodied_g if cell.embodied else None,
            )
        )  # fmt: skip
    return out


def _utf8(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")


def _encoded(row: RunRow, name: str, folder: str) -> Any:
    if name == "folder":
        return folder
    value = getattr(row, name)
    if name in _MAPS:
        return json.dumps(dict(value), ensure_ascii=False)
    return json.dumps(value, ensure_ascii=False) if name in _LISTS else value


def _decoder(name: str, root: Path) -> Callable[[Any], Any]:
    if name in ("folder", "duplicate_of"):
        return lambda value: None if value is None else root / value
    if name in _MAPS:
        return json.loads
    return (lambda value: tuple(json.loads(value))) if name in _LISTS else lambda value: value
