"""Which run a session writes and from what it goes on: the run's id, run.json, and what a checkpoint carries.

All ranks come to the same id without a collective: a rank without a session must not hang the job.
"""

import contextlib
import hashlib
import math
import os
import platform
import secrets
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from greentrain.carbon.replayed import GridTime
from greentrain.config.schema import GreenConfig, RunConfig
from greentrain.errors import ConfigError, RunFolderError
from greentrain.ledger.journal import RUN_JSON, WRONG_DATA, last_record, rank_path, read_object
from greentrain.ledger.totals import Totals
from greentrain.types import FORMAT_VERSION, Topology
from greentrain.utils import redact
from greentrain.utils.never_raise import warn
from greentrain.utils.topology import ENV_JOB, job_store
from greentrain.utils.validation import folder_name, shown
from greentrain.utils.version import __version__

ENV_RUN_ID = "GREENTRAIN_RUN_ID"
_LAUNCH = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID")
_RESTARTS: Final = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
"""How often the launcher has started this job's processes anew (torchrun, Environment Variables,
https://docs.pytorch.org/docs/stable/elastic/run.html; sbatch(1), OUTPUT ENVIRONMENT VARIABLES; read 2026-11-22)."""


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
    agreed = agreed_run_id(config.name, place, unix_s)
    if agreed is not None:
        return agreed
    if place.local_world_size < place.world_size and not any(map(_names_a_launch, _LAUNCH[2:])):
        warn(
            "nothing tells this launch from an earlier one on all nodes, so ranks may write into several run folders:"
            f" start GreenTrain after torch.distributed.init_process_group, or set run.id or ${ENV_RUN_ID}"
        )
    return free_run_id(Path(config.dir), config.name, place, nth)


def _names_a_launch(variable: str) -> bool:
    return os.environ.get(variable, "none") not in ("", "none")  # "none" is torchrun's default


def agreed_run_id(name: str, place: Topology, unix_s: float, store: Any = None) -> str | None:
    """Return the id that the first rank to come has put into torch.distributed's store; None where there is none.

    Nobody waits: whoever comes first decides, and who comes an hour later finds it. Ranks come to the same start if
    they come to it after as many collectives, which is the same point of one program; a session on one rank alone thus
    shifts no later start of all, unless no collective lies between the two: give it ``topology=Topology()`` then.

    Args:
        name: The name of the run.
        place: The place of this rank in the job.
        unix_s: The present time (s since the epoch).
        store: The store; None: that of the process group, if there is one.
    """
    store = job_store() if store is None else store
    if store is None:
        return None
    try:
        point = _collectives()
        nth = store.add(f"greentrain/starts/{point}/{place.rank}", 1)  # of all sessions that this rank starts there
        chosen = store.compare_set(f"greentrain/run_id/{point}/{nth}", "", new_run_id(name, unix_s))
        return str(chosen.decode())
    except Exception as error:
        warn(f"the ranks cannot agree on a run id through the job's store ({error!r}): its environment names the run")
        return None


def _collectives() -> int:
    """Return how many collectives the default process group has begun; 0 where it does not count them."""
    try:
        group = sys.modules["torch.distributed.distributed_c10d"]._get_default_group()
        return int(group._get_sequence_number_for_group())
    except Exception:  # a backend without numbers: the order of starts has to do
        return 0


def new_run_id(name: str, unix_s: float) -> str:
    """Return a run id of name, UTC time and eight random digits, which sorts by time within a name.

    With four, every other time two of 300 jobs of an array that start in the same second would be one run.
    """
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(unix_s))
    return f"{name}-{stamp}-{secrets.token_hex(4)}"


def launch_run_id(name: str, topology: Topology, nth: int, environ: Mapping[str, str] | None = None) -> str:
    """Return an id that all ranks of one launch find without talking to one another.

    It is made of what the launcher set for all of them; on a single node also of the common parent process, so
    that two launches with the same port differ.

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
    """Return the first id of a launch that is this rank's to write: launches may look the same.

    A run that this rank has finished is not continued, nor one that an earlier process of it has left behind, unless
    the launcher says that it has started the processes of the same job anew.

    Args:
        folder: The parent of the run folders.
        name: The name of the run.
        topology: The place of this rank in the job.
        nth: The how-manieth run of this process it is, from 1.
        environ: The environment variables; os.environ by default.
    """
    env = os.environ if environ is None else environ
    restarted = any(env.get(key, "0") not in ("", "0") for key in _RESTARTS)

    def journal(run: int) -> Path:
        return rank_path(folder / launch_run_id(name, topology, run, environ), topology.rank)

    while journal(nth).exists():
        if restarted and not is_finished(journal(nth)) and not journal(nth + 1).exists():
            break
        nth += 1
    return launch_run_id(name, topology, nth, environ)


def run_of_session(folder: Path, session: str, since_unix_s: float) -> Path | None:
    """Return the folder of the last run that other processes made with a session that they were given; None: of none.

    Args:
        folder: The parent of the run folders.
        session: The session's name, which they note in run.json.
        since_unix_s: When the session was made (s since the epoch).
    """
    found: dict[float, Path] = {}
    for path in folder.glob(f"*/{RUN_JSON}"):
        with contextlib.suppress(OSError, RunFolderError):
            at_s = path.stat().st_mtime
            if at_s > since_unix_s - _CLOCKS_S and read_object(path).get("session") == session:
                found[at_s] = path.parent
    return found[max(found)] if found else None


def is_finished(journal: Path) -> bool:
    """Return True if the last line of a rank's journal says that its run came to its end."""
    record = last_record(journal) or {}
    return record.get("kind") == "close" and record.get("reason") == "finished"


_CLOCKS_S: Final = 3600.0
"""Most by which the clock of a file server may be behind (s): older runs are not even opened."""
PLAN: Final = "plan.json"
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
            ConfigError: The state is of a newer format, names a run as no run is named, or holds what are no totals.
        """
        if not state or state.get("run_id") is None:
            return None
        where, told = "the checkpoint's GreenTrain state", state.get("format", 0)
        if type(told) is not int or told > STATE_FORMAT:
            raise ConfigError(
                f"{where} has format {shown(told)}, this version reads up to {STATE_FORMAT}: upgrade greentrain-torch"
            )
        folder_name(f"the run id in {where}", str(state["run_id"]))
        try:
            totals = dict(state["totals"])
            odd = _odd_figure(totals)
            if odd is None:
                _ = Totals() + Totals.from_dict(totals)
        except WRONG_DATA as error:
            odd = f"totals that cannot be read ({type(error).__name__})"
        if odd is not None:
            raise ConfigError(f"{where} holds {odd}: it is damaged. Load the checkpoint without it to begin a new run")
        return cls(run_id=str(state["run_id"]), totals=totals, rank=state.get("rank"))

    def carried(self, place: Topology) -> Totals | None:
        """Return the totals to go on from; None where another rank wrote them."""
        return Totals.from_dict(self.totals) if self.rank in (None, place.rank) else None


def _odd_figure(figures: Mapping[str, Any], name: str = "") -> str | None:
    """Return name and value of a figure that is no number; None where all are."""
    for key, value in figures.items():
        if isinstance(value, Mapping):
            odd = _odd_figure(value, f"{name}{key}.")
            if odd is not None:
                return odd
        elif isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            return f"{name}{key} = {shown(value)}"
    return None


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
