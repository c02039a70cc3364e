"""Keeps the rows of an index fresh in a thread while somebody looks, and says as JSON what has changed since."""

import contextlib
import hashlib
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from greentrain.errors import RunFolderError
from greentrain.report.fleet.find import below
from greentrain.report.fleet.index import Index
from greentrain.report.fleet.row import RunRow
from greentrain.report.fleet.totals import FleetTotal, RunSelection, finite


def key_of(row: RunRow, root: Path) -> str:
    """Return what a run is called in addresses: 16 hexadecimal digits that follow from its folder, and no path."""
    return hashlib.blake2b(below(root, row.folder).encode("utf-8"), digest_size=8).hexdigest()


def row_json(row: RunRow, root: Path, now_unix_s: float) -> dict[str, Any]:
    """Return a row for JSON; folders are relative to the root, unknown figures null.

    Args:
        row: The run.
        root: Root of the index.
        now_unix_s: Present time (s since the epoch).
    """
    return {
        **{item.name: finite(getattr(row, item.name)) for item in fields(row)},
        "id": key_of(row, root),
        "folder": below(root, row.folder),
        "state": row.state(now_unix_s),
        "duplicate_of": None if row.duplicate_of is None else below(root, row.duplicate_of),
        "gears": {gear: finite(share) for gear, share in row.gears.items()},
    }


UNWATCHED: Final = 5
"""Rounds without a question after which the folders are left alone."""
CLOSING_S: Final = 3.0
"""Time that a reading under way gets at the end (s): one that waits for a disk, or for a pipe, may never end."""


class _ClosedError(Exception):
    """Ends a refresh."""


class Watching:
    """The runs under a root, for many askers.

    Args:
        root: Folder of run folders.
        cache: File of the index; None: in the user's cache folder.
        every_s: Time between two refreshes while somebody asks (s).

    Raises:
        ConfigError: The cache is a file of somebody else.
        MissingExtraError: DuckDB is not installed.
    """

    def __init__(self, root: Path, cache: Path | None = None, every_s: float = 3.0) -> None:
        self.root = root
        self.every_s = every_s
        self.epoch = secrets.token_hex(8)
        """Versions of another one mean nothing here."""
        self._index = Index(root, cache)
        self._wake = threading.Condition()
        self._rows: dict[str, RunRow] = {}
        self._shown: dict[str, tuple[int, dict[str, Any]]] = {}
        self._gone: dict[str, int] = {}
        self._version = 0
        self._reading: tuple[int, int] | None = (0, 0)
        self._trouble: str | None = None
        self._asked_s = time.monotonic()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="greentrain-ui-index", daemon=True)
        self._thread.start()

    def changes(self, after: int | None = None) -> dict[str, Any]:
        """Return as JSON what has changed after a version; all runs without one, or with one that never was.

        ``whole``: all runs are here. ``reading``: runs read and to be read, during a refresh that has anything to read.
        ``trouble``: why the rows are old.
        """
        with self._wake:
            self._asked_s = time.monotonic()
            self._wake.notify_all()
            whole = after is None or not 0 <= after <= self._version
            first = 0 if after is None or whole else after
            return {
                "epoch": self.epoch,
                "version": self._version,
                "root": self.root.name or str(self.root),
                "every_s": self.every_s,
                "whole": whole,
                "reading": None if self._reading is None else {"done": self._reading[0], "of": self._reading[1]},
                "trouble": self._trouble,
                "runs": [row for version, row in self._shown.values() if version > first],
                "gone": [] if whole else [key for key, version in self._gone.items() if version > first],
            }

    def run(self, key: str) -> RunRow | None:
        """Return a run by its key."""
        with self._wake:
            return self._rows.get(key)

    def totals(self, by: Sequence[str], only: RunSelection) -> list[FleetTotal]:
        """Return totals, as :meth:`Index.totals`; waits while the index is refreshed.

        Raises:
            ConfigError: A key is not known.
        """
        return self._index.totals(by, only)

    def close(self) -> None:
        """End the thread; one that waits for a disk is left to end later, or with the process. Idempotent."""
        with self._wake:
            self._closed = True
            self._wake.notify_all()
        self._thread.join(CLOSING_S)

    def _run(self) -> None:
        try:
            with contextlib.suppress(Exception):  # the refresh tries again, and says why
                self._publish()  # of the cache, before anything is read
            while True:
                self._refresh()
                with self._wake:
                    self._wake.wait_for(lambda: self._closed, timeout=self.every_s)
                    self._wake.wait_for(lambda: self._closed or self._is_watched())
                    if self._closed:
                        return
        except _ClosedError:
            pass
        finally:
            self._index.close()

    def _is_watched(self) -> bool:
        return time.monotonic() - self._asked_s < UNWATCHED * self.every_s

    def _refresh(self) -> None:
        trouble = None
        try:
            found = self._index.refresh(self._progress)
            if found.added or found.changed or found.gone or self._trouble or not self._version:
                self._publish()
            else:
                self._show(self._rows)  # who books nothing is no longer running
        except RunFolderError as error:
            trouble = str(error)
        except _ClosedError:
            raise
        except Exception as error:  # the page goes on with what it has
            trouble = f"the runs cannot be read: {type(error).__name__}: {error}"
        with self._wake:
            self._reading, self._trouble = None, trouble

    def _progress(self, done: int, of: int) -> None:
        with self._wake:
            self._reading = (done, of)
            if self._closed:
                raise _ClosedError

    def _publish(self) -> None:
        self._show({key_of(row, self.root): row for row in self._index.runs()})

    def _show(self, rows: Mapping[str, RunRow]) -> None:
        now_s = time.time()
        new = {key: row_json(row, self.root, now_s) for key, row in rows.items()}
        with self._wake:
            old = self._shown
            changed = {key for key, row in new.items() if key not in old or old[key][1] != row}
            gone = old.keys() - new.keys()
            if changed or gone:
                self._version += 1
            self._gone = {key: version for key, version in self._gone.items() if key not in new}
            self._gone |= dict.fromkeys(gone, self._version)
            self._shown = {key: (self._version, row) if key in changed else old[key] for key, row in new.items()}
            self._rows = dict(rows)
