"""Where this process stands in a job, read from the variables that launchers set."""

import os
import re
import socket
import sys
from collections.abc import Mapping
from typing import Any, Final

from greentrain.types import Topology

_RANK = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_WORLD = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_LOCAL_RANK = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
_LOCAL_WORLD = ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
_NODE_TASKS = ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
"""Tasks of every node in order, ``4(x2),3``; srun sets them whether or not it was told the tasks a node."""
# torchrun: https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables; srun(1); mpirun(1) of
# Open MPI 4 and Intel MPI. Read 2026-11-21.

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def topology_from_env(environ: Mapping[str, str] | None = None) -> Topology:
    """Return the topology that the launcher's environment variables state.

    A launcher must set both a rank and a world size to count: SLURM variables of an interactive allocation
    without ``srun`` (SLURM_NTASKS but no SLURM_PROCID) describe no rank.
    """
    env = os.environ if environ is None else environ
    rank, world = _first(env, _RANK), _first(env, _WORLD)
    host = socket.gethostname()
    if rank is None or world is None or not 0 <= rank < world:
        return Topology(host=host)
    local_rank = _first(env, _LOCAL_RANK)
    local_world = local_size(rank, world, local_rank, env)
    local_rank = rank % local_world if local_rank is None else local_rank
    return Topology(rank=rank, world_size=world, local_rank=local_rank, local_world_size=local_world, host=host)


def local_size(rank: int, world: int, local_rank: int | None, environ: Mapping[str, str] | None = None) -> int:
    """Return how many ranks of a job are on this node, as its launcher says, else as many as there may be.

    A modelled idle power is then shared out too thinly rather than counted twice; devices are claimed anyway.

    Args:
        rank: Of this process.
        world: Ranks of the job.
        local_rank: Rank of this process on its node; None: nobody says.
        environ: Environment variables; None: those of the process.
    """
    env = os.environ if environ is None else environ
    found = _first(env, _LOCAL_WORLD) or _slurm_tasks(env, world)
    if found is None and env.get("MASTER_ADDR", "") in _LOOPBACK:
        found = world
    if found is None and local_rank is not None:
        before = max(0, rank - local_rank)  # ranks of earlier nodes, which have as many or more
        found = min(world - before, before or world)
    return max(found or 1, (local_rank or 0) + 1)


def _slurm_tasks(env: Mapping[str, str], world: int) -> int | None:
    for name in _NODE_TASKS:
        if not re.fullmatch(r"\d+(\(x\d+\))?(,\d+(\(x\d+\))?)*", env.get(name, "")):
            continue
        groups = re.findall(r"(\d+)(?:\(x(\d+)\))?", env[name])
        nodes = [(int(tasks), int(times or 1)) for tasks, times in groups]
        if sum(tasks * times for tasks, times in nodes) != world:
            continue  # of other tasks than these ranks: of torchrun's one a node, or of another step
        node = _first(env, ("SLURM_NODEID",)) or 0
        for tasks, times in nodes:
            node -= times
            if node < 0:
                return tasks
    return None


def topology_from_process_group(environ: Mapping[str, str] | None = None) -> Topology | None:
    """Return what torch.distributed knows, for scripts that pass rank and world size as arguments.

    Where no variable says how many ranks a node has, all are taken to be on this one: see :func:`local_size`.

    Returns:
        None if no process group is initialised.
    """
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    env = os.environ if environ is None else environ
    rank, world = int(dist.get_rank()), int(dist.get_world_size())
    local_world = min(_first(env, _LOCAL_WORLD) or _slurm_tasks(env, world) or world, world)
    local_rank = _first(env, _LOCAL_RANK)
    if local_rank is None or local_rank >= local_world:
        local_rank = rank % local_world
    return Topology(
        rank=rank,
        world_size=world,
        local_rank=local_rank,
        local_world_size=local_world,
        host=socket.gethostname(),
    )


def job_store() -> Any:
    """Return the key-value store of torch.distributed through which the ranks of this job met.

    Returns:
        None if no process group is initialised.
    """
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    try:
        return sys.modules["torch.distributed.distributed_c10d"]._get_default_store()
    except Exception:  # a private name, and a group need not have one
        return None


def current_topology() -> Topology:
    """Return the topology of the launcher's variables, or of the process group where they describe one process."""
    place = topology_from_env()
    return (topology_from_process_group() or place) if place.world_size == 1 else place


def _first(env: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    for name in names:
        text = env.get(name, "")
        if text.isdigit():
            return int(text)
    return None


ENV_JOB: Final = "GREENTRAIN_JOB"
"""Variable that is the same in all attempts of a job: an attempt without a checkpoint continues the run of the last."""
