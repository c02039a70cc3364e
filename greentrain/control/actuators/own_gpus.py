"""Which GPUs this process may change: those it trains on, whole, and shared with nobody else's work."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from greentrain.control.actuators.gpu_knobs import GpuKnobs
from greentrain.errors import ConfigError
from greentrain.power.nvml_devices import list_gpus
from greentrain.power.visible import VARIABLE, visible_devices
from greentrain.types import Topology

FIRST_PID_NAMESPACE: Final = 0xEFFFFFFC
"""Inode of the machine's first PID namespace, PROC_PID_INIT_INO in Linux' include/linux/proc_ns.h (6.18). A process in
another one is in a container, where every process that it sees is of the same job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The GPUs that may be changed, and why others are left alone."""

    gpus: Sequence[GpuKnobs]
    visible: Sequence[GpuKnobs]
    """All that the process sees, in CUDA's order."""
    left: Sequence[str] = ()
    """One reason a GPU."""


def choose(
    nvml: Any, named: Sequence[str], topology: Topology, key: str, environ: Mapping[str, str] | None = None
) -> Chosen:
    """Return the GPUs of this process that may be changed.

    Args:
        nvml: The initialised bindings.
        named: UUIDs to take; empty: those the process trains on.
        topology: Where this process stands among the ranks.
        key: Configuration key of ``named``, for the error.
        environ: Environment variables; None: those of the process.

    Raises:
        ConfigError: A named GPU is not visible to this process.
        NVMLError: The GPUs cannot be listed.
    """
    found = [gpu for gpu in list_gpus(nvml) if not gpu.hidden]
    entries = visible_devices(os.environ if environ is None else environ, [(gpu.uuid, gpu.slices) for gpu in found])
    positions = list(dict.fromkeys(entry.position for entry in entries))
    visible = [GpuKnobs(nvml, found[position]) for position in positions]
    shown = {gpu.uuid for gpu in visible}
    foreign = [uuid for uuid in named if uuid not in shown]
    elsewhere = topology.local_world_size > len(visible) and len(foreign) < len(named)
    if foreign and not elsewhere:  # else: other ranks see the other named ones
        raise ConfigError(
            f"{key} names {', '.join(foreign)}, a foreign GPU: this process sees {', '.join(sorted(shown)) or 'none'}"
            f" ({VARIABLE}). Name one of those, or nothing for those that it trains on"
        )
    own = [gpu for gpu in own_of(visible, topology) if not named or gpu.uuid in named]
    usable, left = [], []
    for gpu in own:
        reason = _unfit(gpu, topology)
        if reason:
            left.append(f"{gpu.label} is left alone: {reason}")
        else:
            usable.append(gpu)
    return Chosen(gpus=usable, visible=visible, left=left)


def own_of(visible: Sequence[GpuKnobs], topology: Topology) -> Sequence[GpuKnobs]:
    """Return those of the visible GPUs that this process trains on, as far as it is known by now."""
    if topology.local_world_size > 1:
        if len(visible) == 1:
            return visible
        return visible[topology.local_rank : topology.local_rank + 1]
    used = _used_by_torch()
    return [gpu for position, gpu in enumerate(visible) if used is None or position in used]


def strangers(gpu: GpuKnobs, ranks: int = 1) -> Sequence[int]:
    """Return the processes on a GPU that are not of this job.

    A number that this PID namespace does not know says little: drivers show numbers of the host to a container. So
    many as the node has ranks of this job are taken for these.

    Args:
        gpu: Which one.
        ranks: Of this job on the node.
    """
    try:
        pids = gpu.pids()
    except Exception:
        return ()  # not supported: nothing is known
    unknown = [pid for pid in pids if not psutil.pid_exists(pid)]
    known = [pid for pid in pids if pid not in unknown and not _of_this_job(pid)]
    translated = len(unknown) < len(pids)
    return [*known, *(unknown if translated or len(unknown) > ranks else ())]


def _unfit(gpu: GpuKnobs, topology: Topology) -> str:
    if gpu.slices:
        return "MIG is on and its settings are those of the whole card, of other slices too"
    others = strangers(gpu, topology.local_world_size)
    if others:
        return f"a process that is not of this job computes on it (pid {', '.join(map(str, others))})"
    return ""


def _used_by_torch() -> set[int] | None:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None
    used = {i for i in range(torch.cuda.device_count()) if torch.cuda.memory_reserved(i) > 0}
    return used or {torch.cuda.current_device()}


def _of_this_job(pid: int) -> bool:
    own = os.getpid()
    if pid == own or _in_container():
        return True
    try:
        if os.getsid(pid) == os.getsid(0):
            return True
        ancestors = [process.pid for process in psutil.Process(own).parents() if process.pid > 1]
        other = psutil.Process(pid)
        theirs = [process.pid for process in other.parents() if process.pid > 1]
    except (OSError, psutil.Error):
        return False
    siblings = bool(ancestors and theirs) and ancestors[0] == theirs[0]  # ranks of one launcher, each its own session
    return pid in ancestors or own in theirs or siblings


def _in_container() -> bool:
    try:
        return os.stat("/proc/self/ns/pid").st_ino != FIRST_PID_NAMESPACE
    except OSError:
        return False


def writable(folder: Path) -> str:
    """Return why records cannot be written into a folder; empty if they can."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return f"cannot make {folder} ({error.strerror})"
    return "" if os.access(folder, os.W_OK) else f"cannot write {folder}"


Warn = Callable[[str], None]
