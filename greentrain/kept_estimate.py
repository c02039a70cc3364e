"""The estimate that ``run.estimate`` names: checked before the run, and kept in its folder for the report."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from greentrain.config import RunConfig
from greentrain.runfolder import ESTIMATE, write_json
from greentrain.runtime import ActiveRun


def read_estimate(config: RunConfig) -> Mapping[str, Any] | None:
    """Return the document that ``run.estimate`` names, checked; None where it names none."""
    if config.estimate is None:
        return None
    from greentrain.report.estimated import document

    return document(Path(config.estimate))


def keep_estimate(document: Mapping[str, Any] | None, run: ActiveRun) -> None:
    """Write it into the run's folder, on rank 0; a disk that refuses is a warning."""
    if document is None or run.topology.rank != 0:
        return
    path = run.folder / ESTIMATE
    try:
        write_json(path, document)
    except OSError as error:
        run.event("warning", f"cannot write {path} ({error.strerror}): the report will show no estimate")
