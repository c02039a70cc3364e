"""The columnar tables of many runs: in memory, on disk, and as CSV or Parquet.

Rows, sums by day, zone, device and provenance, and tags are a table each. Nobody holds their file on disk open: it is
copied into memory, and replaced as a whole. So two processes never wait for one another, and one that is killed leaves
the old file. Who replaces it last wins; what the other one had read is read again at its next refresh.

In exports units stand in the column names, and an unknown figure is an empty cell. A cell of a CSV file that begins
with ``=``, ``+``, ``-``, ``@``, a tab or a line end is a formula to spreadsheets, and names and tags are anybody's:
such a text gets an apostrophe before it (OWASP, CSV injection,
https://owasp.org/www-community/attacks/CSV_Injection, read 2026-11-22). Numbers stay numbers. Parquet has no formulas.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_type_hints

from greentrain.errors import ConfigError, RunFolderError
from greentrain.report.fleet.reading import RunReading
from greentrain.report.fleet.row import RunRow, clean
from greentrain.report.fleet.totals import FleetTotal
from greentrain.types import Provenance, kwh_from_j
from greentrain.utils.files import cache_folder
from greentrain.utils.imports import try_import
from greentrain.utils.private_files import part_name
from greentrain.utils.version import __version__

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


NAMES: Final = ("runs", "tags", "cells", "work")
"""Of the tables. Each has ``folder``, the path of the run relative to the root."""
_TEXT, _REAL, _COUNT = "VARCHAR", "DOUBLE", "BIGINT"
_MAPS: Final = ("tags", "gears")
_LISTS: Final = ("devices", "frameworks")
_KINDS: Final = {"int": _COUNT, "int | None": _COUNT, "float | None": _REAL}
_ROW: Final = {
    name: _KINDS.get(getattr(kind, "__name__", None) or str(kind), _TEXT)
    for name, kind in get_type_hints(RunRow).items()
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
class IndexedRun:
    """A run folder as the tables hold it."""

    folder: str
    """Relative to the root."""
    fingerprint: str
    reading: RunReading


def insert(connection: "DuckDBPyConnection", entries: Iterable[IndexedRun]) -> None:
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
        connection: The connection to the tables.
        root: The folder under which the run folders lie.
        where: A condition on ``runs``, empty for all.
        values: The values of its parameters.
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


def _cells(entry: IndexedRun) -> list[tuple[Any, ...]]:
    out: list[tuple[Any, ...]] = []
    market = entry.reading.market_g_per_kwh
    for key, cell in entry.reading.cells.cells.items():
        known = key.provenance != Provenance.MISSING
        zone, kind = (None if text is None else clean(text) for text in (key.zone, key.kind))
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


FORMAT: Final = 3
"""Of the tables; another one is read again from the runs."""
_MAGIC: Final = b"DUCK"
_MAGIC_AT: Final = 8
"""Of a DuckDB file (https://duckdb.org/docs/stable/internals/storage, read 2026-11-22)."""
_TABLES: Final = "SELECT table_name FROM duckdb_tables() WHERE database_name = 'cache'"


def default_path(root: Path) -> Path | None:
    """Return where the tables of a root are kept; None where this user has no folder for it."""
    name = hashlib.sha256(os.fsencode(os.path.realpath(root))).hexdigest()[:24]
    try:
        return cache_folder(part="fleet") / f"{name}.duckdb"
    except RuntimeError:
        return None


class TablesFile:
    """One file.

    Args:
        path: The path of the file.
        root: The root of the runs in it.

    Raises:
        ConfigError: The file is somebody else's: it would be overwritten.
    """

    def __init__(self, path: Path, root: Path) -> None:
        self.path = path
        self._is = {"format": str(FORMAT), "greentrain": __version__, "root": os.fsencode(os.path.realpath(root)).hex()}
        self._check_ours()

    def load(self, connection: "DuckDBPyConnection") -> str | None:
        """Copy the file into empty tables.

        Returns:
            Why it cannot be used, for people; None if it can, or is not there, or is of another version or root.

        Raises:
            ConfigError: It is somebody else's database: it would be overwritten.
        """
        import duckdb

        if not self.path.exists():
            return None
        try:
            connection.execute(f"ATTACH {quoted(self.path)} AS cache (READ_ONLY)")
        except duckdb.Error as error:
            return str(error).splitlines()[0]
        try:
            self._check_tables({name for (name,) in connection.execute(_TABLES).fetchall()})
            if dict(connection.execute("SELECT key, value FROM cache.main.meta").fetchall()) == self._is:
                for name in NAMES:
                    connection.execute(f"INSERT INTO {name} BY NAME SELECT * FROM cache.main.{name}")
        except duckdb.Error as error:
            create(connection)
            return str(error).splitlines()[0]
        finally:
            connection.execute("DETACH cache")
        return None

    def save(self, connection: "DuckDBPyConnection") -> None:
        """Replace the file by the tables.

        Raises:
            OSError: It cannot be written.
        """
        import duckdb

        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_name(part_name())
        try:
            try:
                connection.execute(f"ATTACH {quoted(part)} AS part")
                try:
                    for name in NAMES:
                        connection.execute(f"CREATE TABLE part.main.{name} AS SELECT * FROM {name}")
                    keys, values = list(self._is), list(self._is.values())
                    connection.execute(
                        "CREATE TABLE part.main.meta AS SELECT unnest($1::VARCHAR[]) AS key, unnest($2::VARCHAR[]) AS"
                        " value",
                        [keys, values],
                    )
                finally:
                    connection.execute("DETACH part")
            except duckdb.Error as error:
                raise OSError(str(error).splitlines()[0]) from error
            part.replace(self.path)
        finally:
            part.unlink(missing_ok=True)
            part.with_name(part.name + ".wal").unlink(missing_ok=True)

    def _check_tables(self, names: set[str]) -> None:
        if names and "meta" not in names:
            raise ConfigError(
                f"--cache is {str(self.path)!r}, a database with the table {min(names)!r}, which is not GreenTrain's:"
                " it would be overwritten; name a new file, for example fleet.duckdb"
            )

    def _check_ours(self) -> None:
        try:
            with self.path.open("rb") as file:
                head = file.read(_MAGIC_AT + len(_MAGIC))
        except OSError:
            return
        if head and head[_MAGIC_AT:] != _MAGIC and self.path.suffix != ".duckdb":
            raise ConfigError(
                f"--cache is {str(self.path)!r}, which exists and is no DuckDB file: it would be overwritten; name a"
                " new file, for example fleet.duckdb"
            )


def quoted(path: Path) -> str:
    """Return a path as a literal of SQL."""
    return "'" + str(path).replace("'", "''") + "'"


_FORMATS: Final = {".csv": "FORMAT csv, HEADER", ".parquet": "FORMAT parquet, COMPRESSION zstd"}
_TIMES: Final = {"created_unix_s": "created_utc", "end_unix_s": "end_utc"}
_TOTALS: Final = tuple(item.name for item in fields(FleetTotal) if item.name != "key")


def check_path(option: str, path: Path) -> None:
    """Check that a file can be written in a known format.

    Raises:
        ConfigError: Its suffix is another one.
    """
    if path.suffix.lower() not in _FORMATS:
        raise ConfigError(f"{option} is {str(path)!r}; end it with {' or '.join(_FORMATS)}")


def write_runs(connection: "DuckDBPyConnection", path: Path, where: str, values: Sequence[Any]) -> None:
    """Write the table of runs.

    Args:
        connection: The connection to the tables.
        path: The path of the file.
        where: A condition on ``runs``, empty for all.
        values: The values of its parameters.

    Raises:
        ConfigError: Another suffix than ``.csv`` and ``.parquet``.
        RunFolderError: The file cannot be written.
    """
    columns = []
    for item in fields(RunRow):
        columns.append(item.name)
        if item.name in _TIMES:
            columns.append(f"make_timestamp((round({item.name}) * 1e6)::BIGINT) AS {_TIMES[item.name]}")
    sql = f"SELECT {', '.join(columns)} FROM runs {'WHERE ' + where if where else ''}"
    connection.execute(f"CREATE OR REPLACE TEMP TABLE out AS {sql} ORDER BY created_unix_s NULLS LAST, folder", values)
    _write(connection, path)


def write_totals(connection: "DuckDBPyConnection", path: Path, by: Sequence[str], totals: Sequence[FleetTotal]) -> None:
    """Write totals, a line each: the keys by name, the figures, and ``missing_share``.

    Raises:
        ConfigError: Another suffix than ``.csv`` and ``.parquet``.
        RunFolderError: The file cannot be written.
    """
    lines = [
        [*total.key.values(), *(getattr(total, name) for name in _TOTALS), total.missing_share] for total in totals
    ]
    names = [*by, *_TOTALS, "missing_share"]
    kinds = ["VARCHAR"] * len(by) + [
        "BIGINT" if name in ("runs", "tokens", "samples") else "DOUBLE" for name in names[len(by) :]
    ]
    quoted_names = ['"' + name.replace('"', '""') + '"' for name in names]
    text = ", ".join(f"{name} {kind}" for name, kind in zip(quoted_names, kinds, strict=True))
    connection.execute(f"CREATE OR REPLACE TEMP TABLE out ({text})")
    if lines:
        lists = ", ".join(f"unnest(${i}::{kind}[])" for i, kind in enumerate(kinds, 1))
        columns = [list(column) for column in zip(*lines, strict=True)]
        connection.execute(f"INSERT INTO out SELECT {lists}", columns)
    _write(connection, path)


def _write(connection: "DuckDBPyConnection", path: Path) -> None:
    """Write the table ``out`` through a temporary file, so that a reader sees the old file or the new one."""
    import duckdb

    check_path("the file", path)
    part = path.with_name(part_name())
    source = _harmless(connection) if path.suffix.lower() == ".csv" else "SELECT * FROM out"
    try:
        try:
            connection.execute(f"COPY ({source}) TO {quoted(part)} ({_FORMATS[path.suffix.lower()]})")
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
            connection.execute("DROP TABLE out")
    except (OSError, duckdb.IOException) as error:
        raise RunFolderError(
            f"cannot write {path}: {str(error).splitlines()[0]}; name a file in a writable folder"
        ) from error


def _harmless(connection: "DuckDBPyConnection") -> str:
    """Return a query of the table ``out`` without formulas."""
    out = []
    for name, kind in connection.execute(
        "SELECT column_name, data_type FROM duckdb_columns() WHERE table_name = 'out'"
    ).fetchall():
        column = '"' + name.replace('"', '""') + '"'
        formula = f"regexp_matches({column}, '^[=+\\-@\\t\\r\\n]')"
        out.append(
            f"CASE WHEN {formula} THEN '''' || {column} ELSE {column} END AS {column}" if kind == "VARCHAR" else column
        )
    return f"SELECT {', '.join(out)} FROM out"
