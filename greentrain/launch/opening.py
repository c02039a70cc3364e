"""Where this job waits: in Slurm's queue inside a job of Slurm, otherwise here."""

import os
from collections.abc import Mapping

from greentrain.handover import Handover
from greentrain.launch.inbox import Inbox
from greentrain.launch.slurm import open_slurm
from greentrain.launch.waiting import LocalWaiting, Waiting


def open_waiting(
    inbox: Inbox, handover: Handover, ranks: int, environ: Mapping[str, str] | None = None
) -> tuple[Waiting, int | None]:
    """Return the waiting room of this process, for ``Supervisor(waiting=...)``.

    Args:
        inbox: Ends a wait here when a signal comes.
        handover: Where the launcher and the training talk.
        ranks: Of the next attempt.
        environ: Environment; None: ours.

    Returns:
        The room, and how many ranks fit where we are (None: as many as one likes).

    Raises:
        ConfigError: This is a job of Slurm that cannot be asked about.
    """
    local = LocalWaiting(inbox.sleep_until)
    slurm = open_slurm(os.environ if environ is None else environ, handover, local, ranks=ranks)
    return (local, None) if slurm is None else (slurm, slurm.ranks)
