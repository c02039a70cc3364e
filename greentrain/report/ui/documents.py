"""A run's summary and report, read or made in memory: nothing is written into a run folder."""

import contextlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from greentrain.errors import RunFolderError
from greentrain.ledger.journal import WRONG_DATA
from greentrain.ledger.reader import read_run
from greentrain.ledger.run_folder import ESTIMATE
from greentrain.report import MOST_ENTRIES
from greentrain.report.fleet.find import is_raw
from greentrain.report.html import render_html
from greentrain.report.series import build_series
from greentrain.report.summary import summarize

REPORT: Final = "report.html"
MOST_BYTES: Final = 32 * 2**20
"""Of a report that is passed on: GreenTrain's own have less than 1 MB."""
_GUARDED: Final = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC"))
"""Flags of ``open`` that Windows lacks."""


def summary_of(folder: Path) -> dict[str, Any]:
    """Return the summary of a run.

    Raises:
        RunFolderError: It cannot be read.
    """
    with _told(folder):
        found = summarize(read_run(folder, most=MOST_ENTRIES))
        json.dumps(found, allow_nan=False)  # JSON has no word for a figure that is not finite
        return found


def report_of(folder: Path) -> bytes:
    """Return report.html: the folder's, if no book and no estimate is newer, else one that is made.

    Raises:
        RunFolderError: The run cannot be read.
    """
    found = _existing(folder)
    if found is not None:
        return found
    with _told(folder):
        record = read_run(folder, most=MOST_ENTRIES)
        series = build_series(record)
        return render_html(summarize(record, series=series), series).encode("utf-8", "replace")


@contextlib.contextmanager
def _told(folder: Path) -> Iterator[None]:
    """Raise RunFolderError for what a folder does that is not a run's."""
    try:
        yield
    except OSError as error:
        raise RunFolderError(f"{folder.name} cannot be read: {error.strerror or error}") from error
    except WRONG_DATA as error:
        raise RunFolderError(f"a record of {folder.name} makes no sense: {type(error).__name__}: {error}") from error


def _existing(folder: Path) -> bytes | None:
    """Return the report in a folder; None if it is older than its sources, too large, a link or no file."""
    try:
        with os.scandir(folder) as listing:
            sources = [entry for entry in listing if is_raw(entry.name) or entry.name == ESTIMATE]
        newest_ns = max(entry.stat().st_mtime_ns for entry in sources)
        handle = os.open(folder / REPORT, os.O_RDONLY | _GUARDED)
    except (OSError, ValueError):
        return None
    status = os.fstat(handle)
    if not (stat.S_ISREG(status.st_mode) and status.st_mtime_ns >= newest_ns and status.st_size <= MOST_BYTES):
        os.close(handle)
        return None
    with os.fdopen(handle, "rb") as file:
        return file.read(MOST_BYTES)
