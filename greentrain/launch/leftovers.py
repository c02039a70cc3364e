"""Processes of a job that outlived their supervisor: found by what they were started with, and ended."""

import os
from pathlib import Path

from greentrain.handover import ENV_DIR
from greentrain.launch import keeper


def leftovers(folder: str) -> list[int]:
    """Return all processes of this user that were started for a launch folder, but this one and its parents.

    Args:
        folder: As in their variable GREENTRAIN_LAUNCH_DIR.
    """
    if not folder:
        return []
    wanted = f"{ENV_DIR}={folder}".encode()
    above = _above(os.getpid())
    out = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in above:
            try:
                environ = Path(f"/proc/{name}/environ").read_bytes()
            except OSError:
                continue  # ended, or somebody else's
            if wanted in environ.split(b"\0"):
                out.append(int(name))
    return keeper.living(out)


def end_leftovers(folder: str, grace_s: float) -> int:
    """End them, and all below them; return how many there were.

    A keeper among them ends its command by itself, so it is given the time for that before anything is killed.

    Args:
        folder: As of :func:`leftovers`.
        grace_s: From SIGTERM to SIGKILL (s).
    """
    seen: set[int] = set()

    def find() -> list[int]:
        pids = leftovers(folder)
        found = [*pids, *(child for pid in pids for child in keeper.below(pid))]
        seen.update(found)
        return list(dict.fromkeys(found))

    keeper.end_all(find, grace_s)
    return len(seen)


def _above(pid: int) -> set[int]:
    out = set()
    while pid > 0 and pid not in out:
        out.add(pid)
        found = keeper.stat(pid)
        pid = 0 if found is None else found[1]
    return out
