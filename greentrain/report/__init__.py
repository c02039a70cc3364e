"""Reports from run folders: summary.json, emissions.csv, model_card.yaml, boamps.json and report.html."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from greentrain.errors import RunFolderError
from greentrain.ledger.journal import WRONG_DATA
from greentrain.ledger.reader import RunRecord, read_run, wait_for_ranks
from greentrain.utils.files import write_atomic

if TYPE_CHECKING:
    from greentrain.ledger.active_run import ActiveRun
    from greentrain.report.series import RunSeries

log = logging.getLogger(__name__)

MOST_ENTRIES: Final = 4000
"""Entries a rank that are kept apart: 11 hours of 10 s intervals; longer runs are merged while they are read."""
_MOST_OF_ALL: Final = 32_000
"""Entries of all ranks that are kept apart, at about 3 kB each, so that 1,024 ranks need no more memory than 8."""
_LEAST: Final = 32
"""Entries a rank that are kept apart however many ranks there are, for the curves."""

_MOST_NAMES: Final = 1 << 16
"""Rows of phases and devices on a page: 1,024 nodes of eight GPUs have 10,240 devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """A run folder, read once, and what is said of it: the table, the JSON and all report files are of one reading."""

    record: RunRecord
    series: "RunSeries | None"
    summary: dict[str, Any]
    """As ``summarize`` documents it."""

    @classmethod
    def read(cls, folder: Path | str) -> "RunReport":
        """Read a run folder; the journals are only read. A run that is still going gets the figures so far.

        Args:
            folder: The run's folder, from whomever.

        Raises:
            RunFolderError: The folder is no run folder, or what it holds makes no sense.
        """
        from greentrain.report.series import build_series
        from greentrain.report.summary import summarize

        folder = Path(folder)
        ranks = sum(1 for _ in folder.glob("rank-*.jsonl"))
        record = read_run(folder, most=max(_LEAST, min(MOST_ENTRIES, _MOST_OF_ALL // max(ranks, 1))))
        with _sense_of(folder):
            series = build_series(record)
            summary = summarize(record, series=series)
            if len(summary["phases"]) + len(summary["devices"]) > _MOST_NAMES:
                raise RunFolderError(f"{folder} names more than {_MOST_NAMES} phases and devices: no training did")
            json.dumps(summary, allow_nan=False)  # which has no word for a figure that is not finite
            return cls(record=record, series=series, summary=summary)

    def page(self) -> str:
        """Return report.html.

        Raises:
            RunFolderError: What the folder holds makes no sense.
        """
        from greentrain.report.html import render_html

        with _sense_of(self.record.folder):
            return render_html(self.summary, self.series)

    def write(self) -> Path:
        """Write all report files into the run's folder and return the path of report.html.

        Raises:
            RunFolderError: The folder cannot be written, or what it holds makes no sense.
        """
        from greentrain.report.exports import write_boamps, write_emissions_csv, write_model_card
        from greentrain.report.summary import write_summary

        folder = self.record.folder
        with _sense_of(folder):
            write_summary(self.summary, folder)
            write_emissions_csv(self.summary, self.record.run, folder)
            write_model_card(self.summary, folder / "model_card.yaml")
            write_boamps(self.summary, folder)
        return write_atomic(folder / "report.html", self.page())


@contextmanager
def _sense_of(folder: Path) -> "Iterator[None]":
    """Name the folder where its facts make no report."""
    import numpy as np

    try:
        with np.errstate(all="ignore"):  # of figures near the largest; what comes of them is checked
            yield
    except WRONG_DATA as error:
        raise RunFolderError(
            f"{folder} holds a run.json or a record that makes no sense ({error!r:.200}): it was damaged, or changed by"
            " hand"
        ) from error


CLOSE_WAIT_S: Final = 5.0
"""How long rank 0 waits for the others' closing lines (s)."""


def report_at_close(run: "ActiveRun", *, wait: bool) -> Path | None:
    """Write the report of a run that is closed, and log what its plan saved. Never raises.

    Args:
        run: The run, on rank 0.
        wait: Wait for the other ranks to close.

    Returns:
        report.html; None where it could not be written, which is a warning.
    """
    from greentrain.report.plan import plan_line

    if run.topology.world_size > 1 and wait:
        wait_for_ranks(run.folder, run.topology.world_size, CLOSE_WAIT_S)
        run.look_at_others()
    page = None
    try:
        report = RunReport.read(run.folder)
        page = report.write()
        line = plan_line(report.summary)
        if line is not None:
            log.info(line)
    except Exception as error:
        if run.folder.is_dir():  # where it is deleted, its journal has said so
            run.warn(f"the report could not be written ({error}); try: greentrain report {run.folder}")
    return page
