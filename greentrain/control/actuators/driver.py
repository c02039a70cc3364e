"""The GPUs whose settings this process may change, and what can be read and set on each.

:func:`open_gpus` opens the driver, repairs what dead jobs left, finds this process's GPUs (those it trains on, whole,
and shared with nobody else's work) and takes part in a guardian. :class:`GpuSetting` is what power limits and clocks
share: one process changes a setting of its GPUs and puts it back at the end.

A power limit can be read back, so what an administrator has set is known before it is changed. Locked clocks cannot:
``nvmlDeviceSetGpuLockedClocks`` has no getter in nvml.h, and its reset goes back to no lock at all (NVML API reference,
device commands, read 2026-11-21). What gives an administrator's setting away is collected by
:meth:`GpuKnobs.clock_setting`; a lock that shows nowhere (the GPU idles, or runs below it anyway) would be lost.
"""

import contextlib
import ctypes
import functools
import importlib.util
import math
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from greentrain.control.actuators import guardian_main
from greentrain.control.actuators.guardian import Guardian, Refused
from greentrain.errors import ConfigError, MeterError, MissingExtraError
from greentrain.power.accelerators import words
from greentrain.power.claims import ENV_DIR, claims_dir, in_container, used_by_torch
from greentrain.power.daemon_client import DaemonClient, DaemonError, find_daemon
from greentrain.power.nvml import VARIABLE, NvmlGpu, list_gpus, open_nvml, visible_devices
from greentrain.types import Topology
from greentrain.utils import private_files
from greentrain.utils.background import BackgroundCall
from greentrain.utils.never_raise import once, warn_experimental

BUSY_SHARE: Final = 50
"""Utilisation from which on a GPU that nothing slows down is expected near its highest clock (%); an assumption."""
NEAR: Final = 0.9
"""A busy GPU that the driver says nothing limits, and whose clock is below this share of its maximum, has a lock that
no reason shows. nvmlClocksEventReasonNone: "Clocks are as high as possible". The margin is an assumption; a wrong guess
leaves clocks alone."""
CLOCK_BITS: Final = {0x2: "an applications clock", 0x100: "a display clock"}
"""nvmlClocksEventReasons of settings by people: ApplicationsClocksSetting, once UserDefinedClocks, which some boards
show for locked clocks too, and DisplayClockSetting (nvml.h of NVML 13)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitRange:
    """The power limits of a GPU (mW)."""

    min_mw: int
    max_mw: int
    default_mw: int
    found_mw: int
    """The limit that is set now: the administrator's."""
    enforced_mw: int
    """The lowest of all limits in force; below ``found_mw`` where something beside the driver limits too."""

    @property
    def base_mw(self) -> int:
        """What fractions are of: the limit found, or the lower one in force."""
        return min(self.found_mw, self.enforced_mw)


class GpuKnobs:
    """One whole GPU. Every method raises NVMLError where the driver refuses.

    Args:
        nvml: The initialised bindings.
        gpu: The GPU, as :mod:`greentrain.power.nvml` lists it.
    """

    daemon: DaemonClient | None = None
    """Sets what this process may not; None: it sets it itself."""

    def __init__(self, nvml: Any, gpu: NvmlGpu) -> None:
        self._nvml = nvml
        self._handle = gpu.handle
        self.uuid = gpu.uuid
        self.name = gpu.name
        self.slices = gpu.slices

    @property
    def label(self) -> str:
        """For people: name and UUID."""
        return f"{self.name} {self.uuid}"

    def limits(self) -> LimitRange:
        """Read the range and what is set now."""
        nvml, handle = self._nvml, self._handle
        low_mw, high_mw = nvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)
        found_mw = int(nvml.nvmlDeviceGetPowerManagementLimit(handle))
        allowed_w = self._allowed("power_w")
        return LimitRange(
            min_mw=round(max(low_mw, 1000 * allowed_w[0])),
            max_mw=round(min(high_mw, 1000 * allowed_w[1])),
            default_mw=self._or(found_mw, nvml.nvmlDeviceGetPowerManagementDefaultLimit),
            found_mw=found_mw,
            enforced_mw=self._or(found_mw, nvml.nvmlDeviceGetEnforcedPowerLimit),
        )

    def limit_mw(self) -> int:
        """Return the power limit that is set (mW)."""
        return int(self._nvml.nvmlDeviceGetPowerManagementLimit(self._handle))

    def set_limit_mw(self, limit_mw: int) -> None:
        """Set the power limit (mW)."""
        direct = functools.partial(self._nvml.nvmlDeviceSetPowerManagementLimit, self._handle, limit_mw)
        self._set(direct, "set_power_limit", power_limit_mw=limit_mw)

    def try_limit(self) -> None:
        """Set the limit that is set already, which changes nothing and shows whether this process may."""
        self.set_limit_mw(self.limit_mw())

    def may_set(self) -> None:
        """Raise if this process may not set limits; a card without settable limits is no reason."""
        try:
            self.try_limit()
        except self._nvml.NVMLError as error:
            if kind_of(error) != "NotSupported":
                raise

    def clocks_mhz(self) -> tuple[int, ...]:
        """Return the graphics clocks that the GPU supports at its highest memory clock, descending (MHz)."""
        nvml, handle = self._nvml, self._handle
        memory_mhz = max(nvml.nvmlDeviceGetSupportedMemoryClocks(handle))
        found = nvml.nvmlDeviceGetSupportedGraphicsClocks(handle, memory_mhz)
        low_mhz, high_mhz = self._allowed("graphics_mhz")
        return tuple(sorted({int(mhz) for mhz in found if low_mhz <= mhz <= high_mhz}, reverse=True))

    def lock_clocks(self, low_mhz: int, high_mhz: int) -> None:
        """Keep the graphics clock between two bounds (MHz)."""
        direct = functools.partial(self._nvml.nvmlDeviceSetGpuLockedClocks, self._handle, low_mhz, high_mhz)
        self._set(direct, "set_gpu_locked_clocks", min_clock_mhz=low_mhz, max_clock_mhz=high_mhz)

    def reset_clocks(self) -> None:
        """Let the graphics clock go where it wants."""
        direct = functools.partial(self._nvml.nvmlDeviceResetGpuLockedClocks, self._handle)
        self._set(direct, "reset_gpu_locked_clocks")

    def profiles(self, *, offered: bool = False) -> int:
        """Return the workload power profiles that are requested, or all that are ``offered``, as a mask."""
        if not offered:
            return self._library.profiles(self.uuid)
        info = self._nvml.c_nvmlWorkloadPowerProfileProfilesInfo_v1_t()
        self._nvml.nvmlDeviceWorkloadPowerProfileGetProfilesInfo(self._handle, ctypes.byref(info))
        return sum(word << 32 * i for i, word in enumerate(info.perfProfilesMask.mask))

    def request_profiles(self, mask: int) -> None:
        """Request these workload power profiles, and no others."""
        direct = functools.partial(self._library.request_profiles, self.uuid, mask)
        self._set(direct, "set_power_profiles", mask=f"{mask:x}")

    def memory_clocks_mhz(self) -> tuple[int, ...]:
        """Return the memory clocks that the GPU supports (MHz)."""
        low_mhz, high_mhz = self._allowed("memory_mhz")
        found = self._nvml.nvmlDeviceGetSupportedMemoryClocks(self._handle)
        return tuple(int(mhz) for mhz in found if low_mhz <= mhz <= high_mhz)

    def lock_memory(self, mhz: int | None) -> None:
        """Lock the memory clock (MHz); None: unlock it."""
        nvml = self._nvml
        if mhz is None:
            direct = functools.partial(nvml.nvmlDeviceResetMemoryLockedClocks, self._handle)
            self._set(direct, "reset_mem_locked_clocks")
            return
        direct = functools.partial(nvml.nvmlDeviceSetMemoryLockedClocks, self._handle, mhz, mhz)
        self._set(direct, "set_mem_locked_clocks", min_clock_mhz=mhz, max_clock_mhz=mhz)

    @property
    def _library(self) -> guardian_main.Library:
        return guardian_main.Library(self._nvml.nvmlLib._name, self._nvml.nvmlLib)

    def _set(self, direct: Callable[[], object], what: str, **values: object) -> None:
        """Set something, or let the daemon do it.

        Raises:
            Refused: The daemon does not.
        """
        if self.daemon is None:
            direct()
            return
        try:
            self.daemon.set(self.uuid, what, **values)
        except DaemonError as error:
            refused = Refused(str(error))
            refused.busy = error.status == 409
            raise refused from error

    def _allowed(self, name: str) -> tuple[float, float]:
        """Return the range in which the daemon sets something; any where it is not needed."""
        if self.daemon is None:
            return 0.0, math.inf
        low, high = self.daemon.gpus[self.uuid].get("granted", {}).get(name, (0.0, 0.0))
        return float(low), float(high)

    def clock_setting(self) -> str:
        """Return what shows that somebody has set clocks on this GPU; empty where nothing does."""
        nvml = self._nvml
        reasons = self._or(None, nvml.nvmlDeviceGetCurrentClocksEventReasons)
        for bit, name in CLOCK_BITS.items():
            if reasons is not None and reasons & bit:
                return f"{name} limits it now"
        target_mhz = self._or(None, nvml.nvmlDeviceGetApplicationsClock, nvml.NVML_CLOCK_GRAPHICS)
        usual_mhz = self._or(None, nvml.nvmlDeviceGetDefaultApplicationsClock, nvml.NVML_CLOCK_GRAPHICS)
        if target_mhz is not None and usual_mhz is not None and target_mhz != usual_mhz:
            return f"its applications clock is {target_mhz} MHz, by default {usual_mhz} MHz"
        if reasons == 0 and self._utilisation() >= BUSY_SHARE:
            now_mhz = self._or(None, nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_GRAPHICS)
            top_mhz = self._or(None, nvml.nvmlDeviceGetMaxClockInfo, nvml.NVML_CLOCK_GRAPHICS)
            if now_mhz is not None and top_mhz is not None and now_mhz < NEAR * top_mhz:
                return f"it is busy at {now_mhz} MHz of {top_mhz} MHz and the driver names no reason"
        return ""

    def pids(self) -> Sequence[int]:
        """Return the processes that compute on it, as far as the PID namespace shows them."""
        return [int(process.pid) for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)]

    def _utilisation(self) -> int:
        found = self._or(None, self._nvml.nvmlDeviceGetUtilizationRates)
        return 0 if found is None else int(found.gpu)

    def _or(self, otherwise: Any, function: Any, *args: Any) -> Any:
        try:
            return function(self._handle, *args)
        except self._nvml.NVMLError:
            return otherwise


def open_driver() -> Any:
    """Initialise the first driver that answers, NVIDIA's before others; return its bindings or what stands for them.

    Raises:
        MeterError: There is none; what NVML says.
    """
    try:
        return open_nvml()
    except MeterError:
        for name, bindings in (("amd", "amdsmi"), ("intel", "pyzes")):
            if bindings in sys.modules or importlib.util.find_spec(bindings) is not None:
                from greentrain.control.actuators.vendors import Vendor

                with contextlib.suppress(MeterError, MissingExtraError):
                    return Vendor(name)
        raise


def all_knobs(nvml: Any) -> Sequence[GpuKnobs]:
    """Return the GPUs of the node that can be opened; of other vendors than NVIDIA those that this process sees."""
    if hasattr(nvml, "knobs"):
        found: Sequence[GpuKnobs] = nvml.knobs()
        return found
    return [GpuKnobs(nvml, gpu) for gpu in list_gpus(nvml) if gpu.handle is not None]


def visible_knobs(nvml: Any, environ: Mapping[str, str] | None = None) -> Sequence[GpuKnobs]:
    """Return the GPUs that a process sees, in torch's order.

    Args:
        nvml: What :func:`open_driver` has returned.
        environ: Environment variables; None: those of the process.
    """
    if hasattr(nvml, "knobs"):
        return all_knobs(nvml)
    found = [gpu for gpu in list_gpus(nvml) if not gpu.hidden]
    entries = visible_devices(os.environ if environ is None else environ, [(gpu.uuid, gpu.slices) for gpu in found])
    return [GpuKnobs(nvml, found[position]) for position in dict.fromkeys(entry.position for entry in entries)]


def put_right(folder: Path, nvml: Any) -> list[str]:
    """Put back what processes left behind that died together with their guardian; return a sentence a GPU.

    Args:
        folder: Folder of the records.
        nvml: The initialised bindings.
    """
    return guardian_main.repair(str(folder), guardian_main.library_of(nvml.nvmlLib._name, nvml.nvmlLib))


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
        topology: Place of this process among the ranks.
        key: Configuration key of ``named``, for the error.
        environ: Environment variables; None: those of the process.

    Raises:
        ConfigError: A named GPU is not visible to this process.
        NVMLError: The GPUs cannot be listed.
    """
    visible = visible_knobs(nvml, environ)
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
        reason = unfit(gpu, topology)
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
    kind = "xpu" if visible and visible[0].uuid.startswith("intel:") else "cuda"
    used = used_by_torch(kind)
    if used is not None:
        used = used or {getattr(sys.modules["torch"], kind).current_device()}
    return [gpu for position, gpu in enumerate(visible) if used is None or position in used]


def strangers(gpu: GpuKnobs, ranks: int = 1) -> Sequence[int]:
    """Return the processes on a GPU that are not of this job.

    A number that this PID namespace does not know says little: drivers show numbers of the host to a container. So
    many as the node has ranks of this job are taken for these.

    Args:
        gpu: GPU whose processes are looked at.
        ranks: Number of ranks of this job on the node.
    """
    try:
        pids = gpu.pids()
    except Exception:
        return ()  # not supported: nothing is known
    unknown = [pid for pid in pids if not psutil.pid_exists(pid)]
    known = [pid for pid in pids if pid not in unknown and not _of_this_job(pid)]
    translated = len(unknown) < len(pids)
    return [*known, *(unknown if translated or len(unknown) > ranks else ())]


def unfit(gpu: GpuKnobs, topology: Topology) -> str:
    """Return why a GPU must not be changed, in words; empty if it may.

    Args:
        gpu: The GPU.
        topology: Place of this process among the ranks.
    """
    if gpu.slices:
        return "MIG is on and its settings are those of the whole card, of other slices too"
    others = strangers(gpu, topology.local_world_size)
    if others:
        return f"a process that is not of this job computes on it (pid {', '.join(map(str, others))})"
    return ""


def _of_this_job(pid: int) -> bool:
    own = os.getpid()
    if pid == own or in_container():
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


def writable(folder: Path) -> str:
    """Return why records cannot be kept in a folder; empty if they can."""
    try:
        private_files.make_folder(str(folder))
    except OSError as error:
        return f"cannot use {folder} ({error.strerror})"
    return "" if os.access(folder, os.W_OK) else f"cannot write {folder}"


@dataclass(slots=True, kw_only=True)
class Opened:
    """NVML, the GPUs that may be changed, and a part in the guardian."""

    nvml: Any
    """The initialised bindings; released by :meth:`close`."""
    gpus: Sequence[GpuKnobs]
    """Those that may be changed."""
    visible: Sequence[GpuKnobs]
    """All that the process sees."""
    topology: Topology
    guardian: Guardian
    """Joined here, left by :meth:`close`."""
    named: bool
    """Whether the configuration names the GPUs."""
    closed: bool = False
    """True once :meth:`close` was called."""

    def __post_init__(self) -> None:
        self.guardian.join()

    def now_own(self) -> set[str]:
        """Return the UUIDs of those of the GPUs that the process trains on, as is known by now."""
        own = self.gpus if self.named else own_of(self.visible, self.topology)
        return {gpu.uuid for gpu in own}

    def close(self) -> None:
        """Leave the guardian and release NVML. Idempotent; never raises."""
        if not self.closed:
            self.closed = True
            self.guardian.leave()
            with contextlib.suppress(Exception):
                self.nvml.nvmlShutdown()


def open_gpus(
    named: Sequence[str],
    topology: Topology,
    warn: Callable[[str], None],
    *,
    key: str,
    what: str,
    guardian: Guardian | None,
    check: Callable[[GpuKnobs], object],
) -> Opened | None:
    """Return the GPUs that may be changed; None, and one sentence to ``warn``, where there are none.

    Args:
        named: UUIDs from the configuration; empty: those the process trains on.
        topology: Place of this process among the ranks.
        warn: Called with each sentence that the user should read.
        key: Configuration key of ``named``.
        what: ``power limits`` or ``clocks``, for the sentences.
        guardian: Guardian to take part in; None: a new one.
        check: Raises where a GPU does not do what is asked for, or this process may not change it.

    Raises:
        ConfigError: A named GPU is not visible to this process, or ``check`` says so.
    """
    try:
        nvml = open_driver()
    except MeterError as error:
        warn(f"{what} are left alone: {error}")
        return None
    opened = None
    library = getattr(getattr(nvml, "nvmlLib", None), "_name", None)
    guardian = guardian or (Guardian(library=library) if library else Guardian())
    try:
        chosen = choose(nvml, named, topology, key)
        problem = writable(guardian.folder)
        if problem:
            warn(
                f"{what} are left alone: {problem}, where what was found is recorded; {ENV_DIR} names a folder of this"
                " node"
            )
            return None
        for sentence in put_right(guardian.folder, nvml):
            warn(sentence)
        free, left = [], list(chosen.left)
        for gpu in chosen.gpus:
            holder = holder_of(gpu.uuid, guardian)
            if holder:
                left.append(f"{gpu.label} is left alone: {holder}")
            else:
                free.append(gpu)
        if not free:
            warn(f"{what} are left alone: {'; '.join(left) or 'this process has no GPU'}")
            return None
        if left:
            warn("; ".join(left))
        _ask_daemon(nvml, free, guardian)
        opened = Opened(
            nvml=nvml,
            gpus=free,
            visible=chosen.visible,
            topology=topology,
            guardian=guardian,
            named=bool(named),
        )
    except nvml.NVMLError as error:
        warn(f"{what} are left alone: NVML cannot list the GPUs ({error})")
        return None
    finally:
        if opened is None:
            nvml.nvmlShutdown()
    if os.getpid() == 1:
        warn(
            "this process is PID 1 of its container, and a kill of it ends its guardian too: what is set then stays"
            f" until the next start with this {ENV_DIR}. Run it under an init (docker run --init; Kubernetes:"
            " shareProcessNamespace)"
        )
    if not any(
        hasattr(nvml.nvmlLib, name) for name in ("fake_nvml_configure", "fake_configure")
    ):  # of greentrain.testing.fake_nvml
        warn_experimental("changing power limits and clocks of GPUs", "it ran on a fake driver, never on a card")
    try:
        for gpu in free:
            check(gpu)
    except Exception as error:
        opened.close()
        if isinstance(error, ConfigError):
            raise
        warn(refusal(what, error))
        return None
    return opened


def _ask_daemon(nvml: Any, gpus: Sequence[GpuKnobs], guardian: Guardian) -> None:
    """Let ``greentrain daemon`` set what this process may not, where it does; it puts back what it has set itself."""
    daemon = find_daemon() if guardian.ask_daemon else None
    if daemon is None or not all(daemon.gpus.get(gpu.uuid, {}).get("granted") for gpu in gpus):
        return
    try:
        for gpu in gpus:
            gpu.may_set()
    except nvml.NVMLError_NoPermission:
        guardian.daemon = daemon
        for gpu in gpus:
            gpu.daemon = daemon


_CODES: Final = {10: "NoPermission", 0x70010000: "NoPermission", 2: "NotSupported", 0x78000003: "NotSupported"}
"""AMDSMI_STATUS_NO_PERM and NOT_SUPPORTED (amdsmi.h); ZE_RESULT_ERROR_INSUFFICIENT_PERMISSIONS and UNSUPPORTED_FEATURE
(ze_api.h)."""


def kind_of(error: Exception) -> str:
    """Return the name that NVML has for what a driver's error means, or nothing."""
    codes = (getattr(error, name, None) for name in ("err_code", "code", "errno"))
    return type(error).__name__.partition("NVMLError_")[2] or next((_CODES[c] for c in codes if c in _CODES), "")


def refusal(what: str, error: Exception) -> str:
    """Return the sentence about a right that is missing, or another reason of the driver or the daemon.

    Args:
        what: ``power limits`` or ``clocks``.
        error: Error that the driver raised.
    """
    kind, is_nvidia = kind_of(error), type(error).__name__.startswith("NVMLError")
    if kind == "NoPermission" and not is_nvidia:
        return (
            f"{what} are left alone: this process may not set them ({words(error)}): it takes root, or an administrator"
            " who sets one limit (amd-smi set --power-cap, xpu-smi config --powerlimit)"
        )
    if kind == "NoPermission":
        return (
            f"{what} are left alone: this process may not set them (NVML: {error}). It takes root with CAP_SYS_ADMIN:"
            " give it to the container (docker run --cap-add SYS_ADMIN; Kubernetes: securityContext, capabilities, add"
            " SYS_ADMIN), let an administrator start greentrain daemon, which sets them for jobs without root"
            " (docs/actuation.md), or set one limit: sudo nvidia-smi -i <uuid> -pl <watts>"
        )
    if kind == "NotSupported":
        return f"{what} are left alone: this card has none that can be set ({'NVML: ' if is_nvidia else ''}{error})"
    return f"{what} are left alone: the driver does not answer as it should ({error})"


def holder_of(uuid: str, guardian: Guardian) -> str:
    """Return who has changed a GPU's settings now; empty if nobody but this guardian has.

    Args:
        uuid: UUID of the GPU.
        guardian: Guardian of this process, whose own records do not count.
    """
    path = guardian_main.record_path(str(guardian.folder), uuid)
    if uuid in guardian.held:
        return ""
    record = guardian_main.read(path)
    try:
        lock = guardian_main.take_lock(path)
    except OSError as error:
        return f"its lock cannot be opened ({error.strerror})"
    if lock is not None:
        guardian_main.let_go(lock)
        if record is None or not guardian_main.owner_lives(record):
            return ""
    pid = f"process {record.owner[1]}" if record is not None else "another job"
    return f"{pid} has set its power limit or clocks with GreenTrain, so what it shows is not the administrator's"


def repair(folder: Path | None = None) -> list[str]:
    """Put right what dead jobs left on the GPUs of this node, without opening anything where there is nothing to do.

    Args:
        folder: Folder of the records; None: that of the device claims.

    Returns:
        What was done, one sentence a GPU. Never raises.
    """
    place = claims_dir() if folder is None else folder
    if not guardian_main.records(str(place)):
        return []
    try:
        nvml = open_driver()
    except MeterError as error:
        return [
            f"a dead job may have left a power limit or clocks changed ({place}), and NVML cannot be opened: {error}"
        ]
    try:
        return put_right(place, nvml)
    finally:
        with contextlib.suppress(Exception):
            nvml.nvmlShutdown()


CHANGE_S: Final = 1.0
"""Longest time in which a change holds up its caller, which may be the training (s)."""
CLOSE_S: Final = 5.0
"""Longest wait for settings to be put back (s): what is not by then, the guardian puts back when the process ends."""


class GpuSetting(ABC):
    """A setting of one process's GPUs. A forked child inherits the object, not the right to change anything.

    A change is made in a thread of its own and holds its caller up for a bounded time: a driver may hang.

    Args:
        opened: The GPUs, NVML and the guardian; closed with it.
        warn: Called with one sentence where something cannot be done; once a sentence.
    """

    what: str
    """``power limits`` or ``clocks``, for sentences."""
    kind: str
    """``cap`` or ``clock``, for marks."""

    def __init__(self, opened: Opened, warn: Callable[[str], None]) -> None:
        self.mark: Callable[[str, str], object] = lambda kind, name: None
        """Called with the kind and what is set, in any thread, where that changes: devices draw another power then."""
        self._opened = opened
        self._say = once(warn)
        self._started = self._over = self._closed = False
        self._owner_pid = os.getpid()
        self._lock = opened.guardian.lock
        self._last: BackgroundCall[bool] | None = None

    @property
    def guardian(self) -> Guardian:
        """Restores what was found if this process dies; shared by power limits and clocks."""
        return self._opened.guardian

    def reset(self) -> None:
        """Put every GPU's setting back, unless somebody has set another. Idempotent; never raises."""
        if not self._closed and self._is_owner:
            self._beside(self._reset, CLOSE_S)

    def close(self) -> None:
        """Reset, let the guardian go and release the driver. Idempotent; never raises.

        What an interrupt has cut short, another call does.
        """
        if self._opened.closed or not self._is_owner:
            return
        self._closed = True  # a change that is under way sets nothing any more
        self._beside(lambda: self._reset(last=True), CLOSE_S)

    def _reset(self, *, last: bool = False) -> bool:
        if left := self._put_back():
            self._say(left)
        if last:
            self._opened.close()
        return True

    def _change(self, change: Callable[[], bool]) -> bool:
        """Make a change, unless one is still under way; False where it is not made, or not soon enough. Never raises.

        A refusal of the guardian is tried again later, unless another job holds the GPU.
        """

        def attempt() -> bool:
            try:
                return self._may_change and change()
            except Refused as refused:
                self._put_back()
                self._say(f"{self.what} stay as they are: {refused}")
                self._over, self._started = refused.busy, not refused.stale
            except Exception as error:
                self._failed(error)
            return False

        if not self._may_change or self._is_changing:
            return False
        return self._beside(attempt, CHANGE_S)

    def _beside(self, work: Callable[[], bool], wait_s: float) -> bool:
        """Do it in a thread of its own, as the driver or the guardian may hang; False where it takes too long."""

        def alone() -> bool:
            with self._lock:
                before = self._level()
                done = work()
                if self._level() != before:
                    self.mark(self.kind, f"{self._level():g}")
                return done

        self._last = BackgroundCall("greentrain-gpu-setting", alone)
        try:
            return self._last.result(wait_s)
        except TimeoutError:
            self._say(
                f"the driver or the guardian has not answered within {wait_s:g} s: training goes on, and {self.what}"
                " are set late or not at all"
            )
            return False

    def _failed(self, error: Exception) -> None:
        """Put back what can be after a change that went wrong, and say why."""
        left = self._put_back()
        self._say(f"{refusal(self.what, error)}{'; ' if left else ''}{left}")
        self._over = True

    def _repair(self) -> set[str]:
        """Put right what dead jobs have left, just before the first change; return the UUIDs of this process's GPUs."""
        for sentence in put_right(self.guardian.folder, self._opened.nvml):
            self._say(sentence)
        return self._opened.now_own()

    @abstractmethod
    def _level(self) -> float:
        """Return what is set."""

    @abstractmethod
    def _put_back(self) -> str:
        """Put back what can be; return what cannot, in words. Never raises."""

    @property
    def _is_owner(self) -> bool:
        return os.getpid() == self._owner_pid

    @property
    def _is_changing(self) -> bool:
        return self._last is not None and not self._last.has_ended

    @property
    def _may_change(self) -> bool:
        return not self._closed and not self._over and self._is_owner

    def _was_closed(self) -> bool:
        return self._closed
