"""Which folder a run is written to, and its run.json."""

import hashlib
import json
import os
import platform
import secrets
import sys
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from greentrain._version import __version__
from greentrain.config import GreenConfig
from greentrain.journal import rank_path
from greentrain.types import FORMAT_VERSION, Topology

ENV_RUN_ID = "GREENTRAIN_RUN_ID"
_PACKAGES = ("torch", "lightning", "accelerate", "transformers", "deepspeed", "numpy", "nvidia-ml-py", "codecarbon")
_LAUNCH = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID")


def new_run_id(name: str, unix_s: float) -> str:
    """Return a run id of name, UTC time and four random digits, which sorts by time within a name."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(unix_s))
    return f"{name}-{stamp}-{secrets.token_hex(2)}"


def launch_run_id(name: str, topology: Topology, nth: int, environ: Mapping[str, str] | None = None) -> str:
    """Return an id that all ranks of one launch find without talking to one another.

    It is made of what the launcher set for all of them; on a single node also of the common parent process, so
    that two launches with the same port differ. A worker group that an elastic agent restarts gets the same id
    and so continues its run.

    Args:
        name: Name of the run.
        topology: Place of this rank.
        nth: The how-manieth run of this process it is, from 1.
        environ: Environment, os.environ by default.
    """
    env = os.environ if environ is None else environ
    parts = [env.get(key, "") for key in _LAUNCH]
    if topology.local_world_size == topology.world_size and "RANK" in env:
        # Not for Lightning's own launcher: its rank 0 is the parent of the others, and it sets no RANK.
        parts.append(f"{topology.host}:{os.getppid()}")
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:10]
    return f"{name}-{digest}" + (f"-{nth}" if nth > 1 else "")


def free_run_id(folder: Path, name: str, topology: Topology, nth: int, environ: Mapping[str, str] | None = None) -> str:
    """Return the first id of a launch whose run this rank has not finished: launches may look the same.

    Args:
        folder: Parent of the run folders.
        name: Name of the run.
        topology: Place of this rank.
        nth: The how-manieth run of this process it is, from 1.
        environ: Environment, os.environ by default.
    """
    while True:
        run_id = launch_run_id(name, topology, nth, environ)
        if not is_finished(rank_path(folder / run_id, topology.rank)):
            return run_id
        nth += 1


def is_finished(journal: Path) -> bool:
    """Return True if the last line of a rank's journal says that its run came to its end."""
    try:
        with journal.open("rb") as file:
            file.seek(max(0, journal.stat().st_size - 65536))
            last = file.read().rstrip(b"\n").rpartition(b"\n")[2]
        record = json.loads(last)
    except (OSError, ValueError):
        return False
    return isinstance(record, dict) and record.get("kind") == "close" and record.get("reason") == "finished"


def run_json(
    *,
    run_id: str,
    config: GreenConfig,
    topology: Topology,
    created_unix_s: float,
    carbon: Mapping[str, str],
    parameters: int | None,
) -> dict[str, Any]:
    """Return the content of run.json: what ran, where, with which versions and settings."""
    return {
        "format": FORMAT_VERSION,
        "run_id": run_id,
        "created_unix_s": created_unix_s,
        "name": config.run.name,
        "tags": dict(config.run.tags),
        "config": config.to_dict(),
        "greentrain_version": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": _versions(),
        "world_size": topology.world_size,
        "command": sys.argv,
        "carbon": dict(carbon),
        "parameters": parameters,
    }


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write JSON so that a reader sees the old file or the new one, never half of one.

    Raises:
        OSError: The file cannot be written.
    """
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        part.write_text(json.dumps(data, indent=1, sort_keys=True, default=str) + "\n", encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
