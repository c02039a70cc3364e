"""Which run a session writes and from what it goes on: the run's id, run.json, and what a checkpoint carries.

All ranks come to the same id without a collective: a rank without a session must not hang the job.
"""

import contextlib
import hashlib
import os
import platform
import secrets
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from greentrain.carbon.replayed import GridTime
from greentrain.config.schema import GreenConfig, RunConfig
from greentrain.errors import ConfigError, RunFolderError
from greentrain.ledger.journal import RUN_JSON, last_record, rank_path, read_object
from greentrain.ledger.totals import Totals
from greentrain.types import FORMAT_VERSION, Topology
from greentrain.utils import redact
from greentrain.utils.topology import ENV_JOB
from greentrain.utils.validation import folder_name
from greentrain.utils.version import __version__

ENV_RUN_ID = "GREENTRAIN_RUN_ID"
_LAUNCH = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID")


def choose_run_id(config: RunConfig, place: Topology, unix_s: float, nth: int, carried: str | None = None) -> str:
    """Return the id of the run that starts now.

    Args:
        config: The section ``run`` of the configuration.
        place: The place of this rank in the job.
        unix_s: The present time (s since the epoch).
        nth: The how-manieth run of this process it is, from 1.
        carried: The id in a checkpoint that is resumed; it wins, then ``run.id``, then $GREENTRAIN_RUN_ID, then what
            the launcher calls the job: an attempt that was killed before its first checkpoint is continued.

    Raises:
        ConfigError: $GREENTRAIN_RUN_ID is no name of a folder.
    """
    if carried or config.id:
        return str(carried or config.id)
    if given := os.environ.get(ENV_RUN_ID):
        folder_name(f"${ENV_RUN_ID}", given)
        return given
    job = os.environ.pop(ENV_JOB, None)  # for one session: processes that the script starts later are no attempts
    if job is not None:
        run_id = f"{config.name}-{job}"
        if not is_finished(rank_path(Path(config.dir) / run_id, 0)):  # rank 0's, so that all come to the same answer
            return run_id
    if place.world_size == 1:
        return new_run_id(config.name, unix_s)
    return agreed_run_id(config.name, place, unix_s) or free_run_id(Path(config.dir), config.name, place, nth)


def agreed_run_id(name: str, place: Topology, unix_s: float) -> str | None:
    """Ask torch.distributed's key-value store, if it is up, so that all ranks get rank 0's id. No collective."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    try:
        store = sys.modules["torch.distributed.distributed_c10d"]._get_default_store()
        nth = store.add(f"greentrain/starts/{place.rank}", 1)  # of all sessions of this rank
        key = f"greentrain/run_id/{nth}"
        if place.rank == 0:
            store.set(key, new_run_id(name, unix_s))
        store.wait([key], timedelta(seconds=10))
        return str(store.get(key).decode())
    except Exception:
        return None


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
        name: The name of the run.
        topology: The place of this rank in the job.
        nth: The how-manieth run of this process it is, from 1.
        environ: The environment variables; os.environ by default.
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
        folder: The parent of the run folders.
        name: The name of the run.
        topology: The place of this rank in the job.
        nth: The how-manieth run of this process it is, from 1.
        environ: The environment variables; os.environ by default.
    """
    while True:
        run_id = launch_run_id(name, topology, nth, environ)
        if not is_finished(rank_path(folder / run_id, topology.rank)):
            return run_id
        nth += 1


def is_finished(journal: Path) -> bool:
    """Return True if the last line of a rank's journal says that its run came to its end."""
    record = last_record(journal) or {}
    return record.get("kind") == "close" and record.get("reason") == "finished"


ESTIMATE: Final = "estimate.json"
"""What was estimated before the run: copied from ``run.estimate``, or by ``greentrain estimate --into RUN``."""
_KERNELS: Final = ("ipykernel_launcher.py", "colab_kernel_launcher.py")
"""Programs that run notebooks; behind them stands a connection file, which says nothing."""
_NOTEBOOK: Final = "JPY_SESSION_NAME"
"""Path of the notebook, as Jupyter Server tells its kernels
(https://github.com/jupyter-server/jupyter_server, services/sessions/sessionmanager.py, read 2026-11-22)."""
_PACKAGES = ("torch", "lightning", "accelerate", "transformers", "deepspeed", "numpy", "nvidia-ml-py", "codecarbon")


def run_json(
    *,
    run_id: str,
    config: GreenConfig,
    topology: Topology,
    created_unix_s: float,
    carbon: Mapping[str, str],
    parameters: int | None,
) -> dict[str, Any]:
    """Return the content of run.json: what ran, where, with which versions and settings, and no secrets."""
    return {
        "format": FORMAT_VERSION,
        "run_id": run_id,
        "created_unix_s": created_unix_s,
        "name": config.run.name,
        "tags": redact.settings(dict(config.run.tags)),
        "config": redact.settings(config.to_dict()),
        "greentrain_version": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": _versions(),
        "world_size": topology.world_size,
        "command": redact.arguments(command()),
        "carbon": dict(carbon),
        "parameters": parameters,
    }


def command() -> list[str]:
    """Return the words that started the program; of a kernel, the notebook's name where the server tells it."""
    if Path(sys.argv[0]).name in _KERNELS:
        return [Path(os.environ.get(_NOTEBOOK) or "notebook").name]
    return list(sys.argv)


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


STATE_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeState:
    """The run that a checkpoint was written in."""

    run_id: str
    totals: Mapping[str, Any]
    """Of the rank that wrote it, as ``Totals.to_dict`` returns them."""
    rank: int | None
    """Who wrote it; None: not told."""

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> "ResumeState | None":
        """Return what ``GreenSession.state_dict`` told; None where it was before the first start.

        Raises:
            ConfigError: The state is of a newer format, or names a run as no run is named.
        """
        if not state or state.get("run_id") is None:
            return None
        if int(state.get("format", 0)) > STATE_FORMAT:
            raise ConfigError(
                f"the checkpoint's GreenTrain state has format {state['format']}, this version reads up to"
                f" {STATE_FORMAT}: upgrade greentrain-torch"
            )
        folder_name("the run id in the checkpoint's GreenTrain state", str(state["run_id"]))
        return cls(run_id=str(state["run_id"]), totals=dict(state["totals"]), rank=state.get("rank"))

    def carried(self, place: Topology) -> Totals | None:
        """Return the totals to go on from; None where another rank wrote them."""
        return Totals.from_dict(self.totals) if self.rank in (None, place.rank) else None


def grid_time_of(config: GreenConfig, run_id: str, unix_s: float) -> GridTime:
    """Return the grid's time: a run that goes on keeps the one with which it began.

    Args:
        config: The checked configuration.
        run_id: The id of the run.
        unix_s: The time when the job began (s since the epoch).
    """
    time = GridTime.of(config.carbon, unix_s)
    if time.is_real:
        return time
    with contextlib.suppress(OSError, RunFolderError, ValueError, KeyError, TypeError):
        return GridTime.from_dict(read_object(Path(config.run.dir) / run_id / RUN_JSON)["grid"])
    return time
