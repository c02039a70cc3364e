"""Reports from run folders: summary.json, emissions.csv, model_card.yaml, boamps.json and report.html."""

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final

from greentrain.errors import RunFolderError
from greentrain.ledger.journal import WRONG_DATA
from greentrain.ledger.reader import read_run, wait_for_ranks

if TYPE_CHECKING:
    from greentrain.ledger.active_run import ActiveRun

log = logging.getLogger(__name__)

MOST_ENTRIES: Final = 4000
"""Entries a rank that are kept apart: 11 hours of 10 s intervals; longer runs are merged while they are read."""


def write_report(folder: Path | str) -> Path:
    """Read a run folder, write all report files into it and return the path of report.html.

    The journals are only read. A run that is still going gets the figures so far.

    Raises:
        RunFolderError: The folder is no run folder, or cannot be written.
    """
    from greentrain.report.exports import write_boamps, write_emissions_csv, write_model_card
    from greentrain.report.html import write_html
    from greentrain.report.series import build_series
    from greentrain.report.summary import summarize, write_summary

    folder = Path(folder)
    record = read_run(folder, most=MOST_ENTRIES)
    try:
        series = build_series(record)
        summary = summarize(record, series=series)
        write_summary(summary, folder)
        write_emissions_csv(summary, record.run, folder)
        write_model_card(summary, folder)
        write_boamps(summary, folder)
        return write_html(summary, series, folder)
    except WRONG_DATA as error:
        raise RunFolderError(
            f"{folder} holds a run.json or a record that makes no sense ({error!r}): it was damaged, or changed by hand"
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
        page = write_report(run.folder)
        line = plan_line(json.loads((run.folder / "summary.json").read_text(encoding="utf-8")))
        if line is not None:
            log.info(line)
    except Exception as error:
        run.warn(f"the report could not be written ({error}); try: greentrain report {run.folder}")
    return page
