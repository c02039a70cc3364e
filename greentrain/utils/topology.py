"""Where this process stands in a job, read from the variables that launchers set."""

import os
import socket
import sys
from collections.abc import Mapping
from typing import Final

from greentrain.types import Topology

_RANK = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_WORLD = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_LOCAL_RANK = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
_LOCAL_WORLD = ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
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
    one_node = env.get("MASTER_ADDR", "") in _LOOPBACK
    local_world = _first(env, _LOCAL_WORLD) or (world if one_node else 1)
    local_rank = _first(env, _LOCAL_RANK)
    local_rank = rank % local_world if local_rank is None else local_rank
    local_world = max(local_world, local_rank + 1)
    return Topology(rank=rank, world_size=world, local_rank=local_rank, local_world_size=local_world, host=host)


def topology_from_process_group(environ: Mapping[str, str] | None = None) -> Topology | None:
    """Return what torch.distributed knows, for scripts that pass rank and world size as arguments.

    Where no variable says how many ranks a node has, all are taken to be on this one: devices are claimed anyway,
    and a modelled idle power is then shared out too thinly rather than counted twice.

    Returns:
        None if no process group is initialised.
    """
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    env = os.environ if environ is None else environ
    rank, world = int(dist.get_rank()), int(dist.get_world_size())
    local_world = min(_first(env, _LOCAL_WORLD) or world, world)
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
