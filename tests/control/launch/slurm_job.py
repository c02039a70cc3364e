"""What a batch script of the tests runs in the place of ``greentrain launch``: waits as the words say, then ends.

Usage: slurm_job.py FOLDER MIN_AWAY_S WAIT...; a wait is ``SECONDS:RANKS``, or ``notice:RANKS`` for one that begins with
the SIGUSR1 of the scheduler.
"""

import os
import signal
import sys
import time
from pathlib import Path

from greentrain.control.launch.slurm import Scontrol, SlurmWaiting
from greentrain.control.launch.supervisor import LocalWaiting
from greentrain.control.launcher_protocol import LauncherFiles, Notice


def sleep_until(unix_s: float) -> bool:
    """Sleep; nobody is to be heard."""
    time.sleep(max(0.0, unix_s - time.time()))
    return False


def main(folder: str, min_away_s: str, *waits: str) -> None:
    """Run the waits that are not done yet."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    signal.signal(signal.SIGTERM, lambda *_: None)  # as in the supervisor's inbox
    handover = LauncherFiles(Path(folder))
    count = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    waiting = SlurmWaiting(
        Scontrol.find(os.environ),
        os.environ["SLURM_JOB_ID"],
        handover,
        LocalWaiting(sleep_until),
        ranks=int(os.environ.get("RANKS", "1")),
        by_node="SLURM_NTASKS_PER_NODE" in os.environ,
        min_away_s=float(min_away_s),
        soon_s=2.0,
        warn=lambda text: say("warn", text),
    )
    say("start", time.time(), count, waiting.ranks, os.environ["SLURM_JOB_NUM_NODES"])
    for i, wait in enumerate(waits[count:], count):
        what, _, ranks = wait.partition(":")
        if what == "notice":
            signal.sigwait({signal.SIGUSR1})
            handover.write(Notice(attempt=i, reason="SIGUSR1"))
        until = time.time() + float(what) if what != "notice" else None
        say("until", until)
        away = waiting.away(until, int(ranks))
        say("away", away)
        if away:
            return
    say("done", time.time())


def say(*words: object) -> None:
    """Print at once."""
    print(*words, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
