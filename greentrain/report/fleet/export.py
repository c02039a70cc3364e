"""Writes runs and totals as CSV or Parquet. Units stand in the column names; an unknown figure is an empty cell.

A cell of a CSV file that begins with ``=``, ``+``, ``-``, ``@``, a tab or a line end is a formula to spreadsheets,
and names and tags are anybody's: such a text gets an apostrophe before it (OWASP, CSV injection,
https://owasp.org/www-community/attacks/CSV_Injection, read 2026-11-22). Numbers stay numbers. Parquet has no formulas.
"""

import os
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from greentrain.errors import ConfigError, RunFolderError
from greentrain.report.fleet.cache import quoted
from greentrain.report.fleet.row import RunRow
from greentrain.report.fleet.totals import Total

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_FORMATS: Final = {".csv": "FORMAT csv, HEADER", ".parquet": "FORMAT parquet, COMPRESSION zstd"}
_TIMES: Final = {"created_unix_s": "created_utc", "end_unix_s": "end_utc"}
_TOTALS: Final = tuple(item.name for item in fields(Total) if item.name != "key")
_COUNTS: Final = ("runs", "tokens", "samples")


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
        connection: To the tables.
        path: The file.
        where: A condition on ``runs``, empty for all.
        values: Of its parameters.

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


def write_totals(connection: "DuckDBPyConnection", path: Path, by: Sequence[str], totals: Sequence[Total]) -> None:
    """Write totals, a line each: the keys by name, the figures, and ``missing_share``.

    Raises:
        ConfigError: Another suffix than ``.csv`` and ``.parquet``.
        RunFolderError: The file cannot be written.
    """
    lines = [
        [*total.key.values(), *(getattr(total, name) for name in _TOTALS), total.missing_share] for total in totals
    ]
    names = [*by, *_TOTALS, "missing_share"]
    kinds = ["VARCHAR"] * len(by) + ["BIGINT" if name in _COUNTS else "DOUBLE" for name in names[len(by) :]]
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
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
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
