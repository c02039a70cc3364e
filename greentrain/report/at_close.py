"""The report at the end of a run."""

import json
import logging
from pathlib import Path
from typing import Final

from greentrain.ledger.active_run import ActiveRun, wait_for_ranks

log = logging.getLogger(__name__)

CLOSE_WAIT_S: Final = 5.0
"""How long rank 0 waits for the others' closing lines (s)."""


def report_at_close(run: ActiveRun, *, wait: bool) -> Path | None:
    """Write the report of a run that is closed, and log what its plan saved. Never raises.

    Args:
        run: The run, on rank 0.
        wait: Wait for the other ranks to close.

    Returns:
        report.html; None where it could not be written, which is a warning.
    """
    from greentrain.report import write_report
    from greentrain.report.plan_text import plan_line

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
