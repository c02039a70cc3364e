"""Reports from run folders: summary.json, emissions.csv, model_card.yaml, boamps.json and report.html."""

from pathlib import Path
from typing import Final

from greentrain.ledger.reader import read_run

MOST_ENTRIES: Final = 4000
"""Entries a rank that are kept apart: 11 hours of 10 s intervals; longer runs are merged while they are read."""


def write_report(folder: Path | str) -> Path:
    """Read a run folder, write all report files into it and return the path of report.html.

    The journals are only read. A run that is still going gets the figures so far.

    Raises:
        RunFolderError: The folder is no run folder, or cannot be written.
    """
    from greentrain.report.boamps import write_boamps
    from greentrain.report.emissions_csv import write_emissions_csv
    from greentrain.report.html import write_html
    from greentrain.report.model_card import write_model_card
    from greentrain.report.series import build_series
    from greentrain.report.summary import summarize, write_summary

    folder = Path(folder)
    record = read_run(folder, most=MOST_ENTRIES)
    series = build_series(record)
    summary = summarize(record, series=series)
    write_summary(summary, folder)
    write_emissions_csv(summary, record.run, folder)
    write_model_card(summary, folder)
    write_boamps(summary, folder)
    return write_html(summary, series, folder)
