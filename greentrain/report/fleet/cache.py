"""The tables on disk. Nobody holds the file open: it is copied into memory, and replaced as a whole.

So two processes never wait for one another, and one that is killed leaves the old file. Who replaces it last wins;
what the other one had read is read again at its next refresh.
"""

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from greentrain.errors import ConfigError
from greentrain.report.fleet import tables
from greentrain.utils.files import cache_folder
from greentrain.utils.version import __version__

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

FORMAT: Final = 2
"""Of the tables; another one is read again from the runs."""
_MAGIC: Final = b"DUCK"
_MAGIC_AT: Final = 8
"""Of a DuckDB file (https://duckdb.org/docs/stable/internals/storage, read 2026-11-22)."""
_TABLES: Final = "SELECT table_name FROM duckdb_tables() WHERE database_name = 'cache'"


def default_path(root: Path) -> Path | None:
    """Return where the tables of a root are kept; None where this user has no folder for it."""
    name = hashlib.sha256(os.fsencode(os.path.realpath(root))).hexdigest()[:24]
    try:
        return cache_folder() / "fleet" / f"{name}.duckdb"
    except RuntimeError:
        return None


class Cache:
    """One file.

    Args:
        path: The file.
        root: Of the runs in it.

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
                for name in tables.NAMES:
                    connection.execute(f"INSERT INTO {name} BY NAME SELECT * FROM cache.main.{name}")
        except duckdb.Error as error:
            tables.create(connection)
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
        part = self.path.with_name(f".{self.path.name}.{os.getpid()}.part")
        try:
            part.unlink(missing_ok=True)
            try:
                connection.execute(f"ATTACH {quoted(part)} AS part")
                try:
                    for name in tables.NAMES:
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
