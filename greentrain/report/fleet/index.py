"""Many run folders as one table: kept, refreshed where files changed, added up and exported."""

import logging
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from greentrain.errors import GreenTrainWarning
from greentrain.report.fleet import tables
from greentrain.report.fleet import tables as export
from greentrain.report.fleet.find import CopyCandidate, FoundRun, below, copies, find_runs
from greentrain.report.fleet.reading import RunReading, read_folder
from greentrain.report.fleet.row import RunRow
from greentrain.report.fleet.tables import TablesFile, default_path
from greentrain.report.fleet.totals import NO_SELECTION, FleetTotal, RunSelection, run_condition, totals

log = logging.getLogger("greentrain")

_TOGETHER: Final = 256
"""Runs that are put into the tables at once: memory stays bounded, and 256 inserts cost as much as one."""
Progress = Callable[[int, int], None]
"""Called with the runs read so far and those to be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshOutcome:
    """What a refresh found."""

    added: int
    changed: int
    gone: int
    broken: int
    """Runs that cannot be read now, whether they changed or not."""
    unchanged: int = 0


class Index:
    """The runs under a root, as of the last refresh. Used from one thread or several.

    Args:
        root: Folder of run folders, at most three folders deep.
        cache: The file in which the tables are kept; in the user's cache folder by default.

    Raises:
        ConfigError: The cache is a file of somebody else.
        MissingExtraError: DuckDB is not installed.
    """

    def __init__(self, root: Path, cache: Path | None = None) -> None:
        self.root = Path(root)
        self._lock = threading.RLock()
        path = cache or default_path(self.root)
        self._connection = tables.connect()
        try:
            tables.create(self._connection)
            self._cache = None if path is None else TablesFile(path, self.root)
            why = None if self._cache is None else self._cache.load(self._connection)
        except BaseException:
            self._connection.close()
            raise
        self._saved = path is not None and path.exists() and why is None
        if why is not None:
            log.info("GreenTrain: the cache %s is read anew: %s", path, why)

    def refresh(self, progress: Progress | None = None) -> RefreshOutcome:
        """Read what is new or has changed; a run that cannot be read becomes a row that says why.

        Raises:
            RunFolderError: The root cannot be read.
        """
        with self._lock:
            known = dict(self._connection.execute("SELECT folder, fingerprint FROM runs").fetchall())
            found = {below(self.root, item.folder): item for item in find_runs(self.root)}
            stale = [
                name for name, item in found.items() if not item.fingerprint or item.fingerprint != known.get(name)
            ]
            gone = [name for name in known if name not in found]
            tables.delete(self._connection, gone)
            done = 0
            for first in range(0, len(stale), _TOGETHER):
                entries = []
                for name in stale[first : first + _TOGETHER]:
                    entries.append(_entry(name, found[name]))
                    done += 1
                    if progress is not None:
                        progress(done, len(stale))
                tables.insert(self._connection, entries)
            if stale or gone:
                self._mark_duplicates()
            if stale or gone or not self._saved:
                self._save()
            added = sum(name not in known for name in stale)
            return RefreshOutcome(
                added=added,
                changed=len(stale) - added,
                gone=len(gone),
                broken=self._count("error IS NOT NULL"),
                unchanged=len(found) - len(stale),
            )

    def runs(self, only: RunSelection = NO_SELECTION) -> list[RunRow]:
        """Return the runs, the newest first; with a selection those that have a part in it."""
        with self._lock:
            return tables.rows(self._connection, self.root, *run_condition(only))

    def totals(self, by: Sequence[str] = (), only: RunSelection = NO_SELECTION) -> list[FleetTotal]:
        """Return a total for each group: by month in its order, else the one with most energy first.

        Broken runs and duplicates are in none.

        Args:
            by: The keys of the groups: project, user, zone, month (UTC), device, provenance or tag:NAME; none: one
                total of all.
            only: The selection that is looked at.

        Raises:
            ConfigError: A key is not known.
        """
        with self._lock:
            return totals(self._connection, by, only)

    def export(self, path: Path, only: RunSelection = NO_SELECTION) -> None:
        """Write the runs, a line each and whole even if only a part is selected, as CSV or Parquet by suffix.

        Args:
            path: Path of the file.
            only: Selection of runs.

        Raises:
            ConfigError: Another suffix.
            RunFolderError: The file cannot be written.
        """
        with self._lock:
            export.write_runs(self._connection, path, *run_condition(only))

    def export_totals(self, path: Path, by: Sequence[str], only: RunSelection = NO_SELECTION) -> None:
        """Write the totals as CSV or Parquet by suffix.

        Raises:
            ConfigError: Another suffix, or a key is not known.
            RunFolderError: The file cannot be written.
        """
        with self._lock:
            export.write_totals(self._connection, path, by, totals(self._connection, by, only))

    def close(self) -> None:
        """Free the tables. Idempotent."""
        with self._lock:
            self._connection.close()

    def __enter__(self) -> "Index":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _count(self, where: str) -> int:
        found = self._connection.execute(f"SELECT count(*) FROM runs WHERE {where}").fetchone()
        return 0 if found is None else int(found[0])

    def _save(self) -> None:
        if self._cache is None:
            self._warn("this user has no cache folder; set GREENTRAIN_CACHE_DIR")
            return
        try:
            self._cache.save(self._connection)
            self._saved = True
        except OSError as error:
            self._warn(f"cannot write {self._cache.path}: {error.strerror or error}")

    def _warn(self, text: str) -> None:
        if not self._saved:
            warnings.warn(f"GreenTrain: {text}; all runs are read each time", GreenTrainWarning, stacklevel=4)
        self._saved = True  # said once

    def _mark_duplicates(self) -> None:
        self._connection.execute("UPDATE runs SET duplicate_of = NULL WHERE duplicate_of IS NOT NULL")
        many = "SELECT run_id FROM runs WHERE error IS NULL GROUP BY run_id HAVING count(*) > 1"
        lines = self._connection.execute(
            "SELECT folder, run_id, ranks, starts, carried, end_unix_s, energy_j FROM runs"
            f" WHERE error IS NULL AND run_id IN ({many})"
        ).fetchall()
        found = copies(
            CopyCandidate(
                folder=folder,
                run_id=run_id,
                ranks=frozenset(map(int, ranks.split(","))),
                starts=frozenset(starts.split(",")) - {""},
                carried=carried,
                end_unix_s=end_s,
                energy_j=energy_j,
            )
            for folder, run_id, ranks, starts, carried, end_s, energy_j in lines
        )
        for folder, other in found.items():
            self._connection.execute("UPDATE runs SET duplicate_of = $1 WHERE folder = $2", [other, folder])


def _entry(name: str, found: FoundRun) -> tables.IndexedRun:
    if found.error is not None:
        row = RunRow(run_id=found.folder.name, folder=found.folder, error=found.error)
        reading = RunReading(row=row)
    else:
        reading = read_folder(found.folder)
    return tables.IndexedRun(folder=name, fingerprint=found.fingerprint, reading=reading)
