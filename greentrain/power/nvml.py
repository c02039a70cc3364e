"""Energy of NVIDIA GPUs through NVML, with NVIDIA's own bindings; no ``nvidia-smi`` binary is needed.

Each GPU that is visible to the process is read by the best method that answers: the energy counter, else the
instant power field, else average power. API: https://docs.nvidia.com/deploy/nvml-api (read 2026-11-21).

How fast a counter ticks and what reading it costs is found by polling for a fraction of a second (:func:`poll`). Call
costs depend on card and driver (0.5 us to several ms in public measurements), so they are measured, never assumed. CPU
time of the thread is what a read takes from the training; wall time also holds what the driver waits.

Which GPUs of the node ``CUDA_VISIBLE_DEVICES`` leaves to this process (:func:`visible_devices`) follows the CUDA C++
Programming Guide (appendix "CUDA Environment Variables") and the MIG User Guide (docs.nvidia.com, read 2026-11-21);
where they are silent, PyTorch's ``torch.cuda._parse_visible_devices`` and ``_transform_uuid_to_ordinals`` (2.13)
decide: the kind of the first entry rules the list, an entry of another kind or without a device ends it, a duplicate
leaves no device at all. An index counts in CUDA's order. NVML's order is that of the PCI bus, which is also CUDA's
unless the GPUs differ in speed and ``CUDA_DEVICE_ORDER`` is not ``PCI_BUS_ID``: see :func:`index_order_is_sure`.
"""

import contextlib
import ctypes
import dataclasses
import functools
import itertools
import math
import os
import re
import statistics
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import psutil

from greentrain.errors import ConfigError, MeterError
from greentrain.power.accelerators import STUCK_S, DeviceReader, Method
from greentrain.power.claims import is_of_this_job
from greentrain.types import Counter, Device, DeviceKind, DeviceState, PowerMeter, PowerSample, Provenance, Sensor
from greentrain.utils.background import BackgroundCall
from greentrain.utils.clock import Clock, SystemClock
from greentrain.utils.never_raise import warn

T = TypeVar("T")
OPEN_S = 30.0
"""Longest that a driver is waited for when it is opened (s): without its persistence daemon a GPU takes 1 to 3 s to be
initialised (NVIDIA, Driver Persistence, https://docs.nvidia.com/deploy/driver-persistence/, 2026-11-23), one of eight
after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlGpu:
    """One GPU as NVML shows it."""

    index: int
    uuid: str
    name: str
    slices: Sequence[str] = ()
    """UUIDs of its MIG devices."""
    part: tuple[str, int, int] | None = None
    """Of this GPU, one MIG device alone: its UUID, its multiprocessors, and those of all MIG devices."""
    handle: Any = None
    problem: str = ""
    """Why it cannot even be opened; empty if it can."""
    hidden: bool = False
    """The operating system keeps this process from it, and CUDA too."""

    @property
    def uid(self) -> str:
        """The UUID, or a stand-in where the GPU does not even tell that."""
        if self.part is not None:
            return self.part[0]
        return self.uuid or f"nvml:{self.index}"


def open_nvml() -> Any:
    """Initialise NVML and return the bindings.

    Raises:
        MeterError: Says what is missing, and the remedy.
    """
    try:
        import pynvml
    except ImportError as error:
        raise MeterError(f"NVIDIA's bindings are not installed ({error}): pip install nvidia-ml-py") from error
    try:
        BackgroundCall("greentrain-nvml", pynvml.nvmlInit).result(OPEN_S)
    except TimeoutError as error:
        raise MeterError(
            f"the NVIDIA driver has not answered within {OPEN_S:g} s: see whether nvidia-smi works and what dmesg says"
        ) from error
    except pynvml.NVMLError as error:
        remedies = {
            pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "libnvidia-ml.so.1 is not found: install the NVIDIA driver, or start"
            " the container with the NVIDIA runtime and the driver capability 'utility'",
            pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA kernel module is not loaded: sudo modprobe nvidia, then"
            " see dmesg",
            pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "driver library and kernel module have different versions, as"
            " after an update: reboot, or give the container the host's library",
            pynvml.NVML_ERROR_NO_PERMISSION: "/dev/nvidiactl or /dev/nvidia* may not be opened: add the user to the"
            " devices' group, or give the job its GPUs",
        }
        remedy = remedies.get(getattr(error, "value", 0), "see whether nvidia-smi works and what dmesg says")
        raise MeterError(f"NVML cannot be initialised ({error}): {remedy}") from error
    return pynvml


def list_gpus(nvml: Any) -> list[NvmlGpu]:
    """Return every GPU that NVML counts, also those that cannot be opened.

    Raises:
        NVMLError: The GPUs cannot be counted.
    """
    count = nvml.nvmlDeviceGetCount()
    found = _side_by_side([functools.partial(_identify, nvml, index) for index in range(count)])
    return [
        NvmlGpu(index=index, uuid="", name=f"NVIDIA GPU {index}", problem=_unanswered(index)) if gpu is None else gpu
        for index, gpu in enumerate(found)
    ]


def _side_by_side(calls: Sequence[Callable[[], T]]) -> list[T | None]:
    """Return what calls of the driver return, each of which may hang alone; None where one does."""
    begun = [BackgroundCall("greentrain-nvml", call) for call in calls]
    end_s = time.monotonic() + OPEN_S
    found: list[T | None] = []
    for call in begun:
        try:
            found.append(call.result(end_s - time.monotonic()))
        except TimeoutError:
            found.append(None)
    return found


def _unanswered(gpu: object) -> str:
    """Warn of a GPU that hangs, and return the reason for its sensor."""
    why = f"its driver has not answered within {OPEN_S:g} s, see dmesg"
    warn(f"GPU {gpu} is not measured: {why}")
    return why


def _identify(nvml: Any, index: int) -> NvmlGpu:
    uuid, name = "", f"NVIDIA GPU {index}"
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid = nvml.nvmlDeviceGetUUID(handle)
        name = nvml.nvmlDeviceGetName(handle)
    except nvml.NVMLError as error:
        hidden = getattr(error, "value", None) == nvml.NVML_ERROR_NO_PERMISSION and not uuid
        return NvmlGpu(index=index, uuid=uuid, name=name, problem=str(error), hidden=hidden)
    return NvmlGpu(index=index, uuid=uuid, name=name, slices=_slices(nvml, handle), handle=handle)


def _slices(nvml: Any, handle: Any) -> tuple[str, ...]:
    try:
        if nvml.nvmlDeviceGetMigMode(handle)[0] != nvml.NVML_DEVICE_MIG_ENABLE:
            return ()
        count = nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    except nvml.NVMLError:
        return ()
    found = []
    for index in range(count):
        with contextlib.suppress(nvml.NVMLError):
            found.append(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)))
    return tuple(found)


SPAN_S: Final = 0.38
"""Longest probe (s); three ticks of 100 ms fit."""
PAUSE_S: Final = 0.002
"""Shortest pause between polls (s): a tick is dated to 2 ms."""
MAX_SHARE: Final = 0.1
"""Highest share of one core that polling takes; slow reads are polled less often."""
EDGES: Final = 3
"""Ticks to see before the probe may stop early."""
USUAL_TICK_S: Final = 0.1
"""Taken where the measurement allows it (ML.ENERGY blog, thermally stable profiling, read 2026-11-21)."""
SNAP_ERROR: Final = 0.2
"""A measurement worse than this (relative) allows nothing."""
MOST_OFF: Final = 0.4
"""How far off a gap may be (ticks) whose ticks are counted."""
MAX_ERROR: Final = 0.05
"""A tick known less well than this (relative) is not stated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Polled:
    """What polling one counter or power reading showed. None: could not be seen."""

    tick_s: float | None = None
    """Time between two changes of the value (s)."""
    edge_s: float | None = None
    """Monotonic time of one change (s)."""
    cpu_s: float | None = None
    """Median CPU time of one read (s)."""
    wall_s: float | None = None
    """Median wall time of one read (s)."""
    span_s: float = 0.0
    """How long was polled (s)."""


class _Watch:
    """Polls one value and keeps when it changed and what a read cost."""

    def __init__(self, value: Callable[[], float], clock: Clock) -> None:
        self._value = value
        self._clock = clock
        self._last: float | None = None
        self._last_s = math.nan
        self.edges: list[tuple[float, float]] = []
        self.cpu_s: list[float] = []
        self.wall_s: list[float] = []

    def poll(self) -> None:
        before_s, before_cpu_s = self._clock.monotonic_s(), time.thread_time()
        try:
            value = self._value()
        except Exception:
            self._last = None
            return
        after_cpu_s, after_s = time.thread_time(), self._clock.monotonic_s()
        self.cpu_s.append(after_cpu_s - before_cpu_s)
        self.wall_s.append(after_s - before_s)
        if self._last is not None and value != self._last:
            self.edges.append(((self._last_s + after_s) / 2, (after_s - self._last_s) / 2))
        self._last, self._last_s = value, before_s

    @property
    def is_sure(self) -> bool:
        return len(self.edges) >= EDGES and tick_of(self.edges)[0] is not None

    def result(self, span_s: float) -> Polled:
        if not self.cpu_s:
            return Polled(span_s=span_s)
        tick_s, edge_s = tick_of(self.edges)
        return Polled(
            tick_s=tick_s,
            edge_s=edge_s,
            cpu_s=statistics.median(self.cpu_s),
            wall_s=statistics.median(self.wall_s),
            span_s=span_s,
        )


def poll(values: Sequence[Callable[[], float]], clock: Clock, span_s: float = SPAN_S) -> list[Polled]:
    """Poll several readings side by side for at most ``span_s`` seconds. Never raises.

    Args:
        values: Calls that return a number; an exception counts as no reading.
        clock: Time; its monotonic scale must run.
        span_s: Longest duration (s).
    """
    watches = [_Watch(value, clock) for value in values]
    start_s = clock.monotonic_s()
    while (now_s := clock.monotonic_s()) - start_s < span_s:
        cpu_s = -time.thread_time()
        for watch in watches:
            watch.poll()
        cpu_s += time.thread_time()
        if all(watch.is_sure for watch in watches):
            break
        time.sleep(max(PAUSE_S, clock.monotonic_s() - now_s, cpu_s / MAX_SHARE))
    spent_s = clock.monotonic_s() - start_s
    return [watch.result(spent_s) for watch in watches]


def tick_of(edges: Sequence[tuple[float, float]]) -> tuple[float | None, float | None]:
    """Return tick period and time of one tick from the changes seen, None where they do not tell.

    Args:
        edges: Time of each change and how far off that may be (s), in order.
    """
    if not edges:
        return None, None
    sharpest_s, smallest_s = min(edges, key=lambda edge: edge[1])
    # A poll that came late dates its change badly and may hide further ones: only neighbours of sharp ones count.
    sharp = [i for i, (_, off_s) in enumerate(edges) if off_s <= max(2 * smallest_s, PAUSE_S)]
    clean = [(i, j) for i, j in itertools.pairwise(sharp) if j - i == 1]
    if not clean:
        return None, None
    unit_s = statistics.mean(edges[j][0] - edges[i][0] for i, j in clean)
    error_s = statistics.mean(edges[i][1] + edges[j][1] for i, j in clean)
    ticks, start, best = 0, sharp[0], (0, 0, 0)
    for i, j in itertools.pairwise(sharp):
        count = 1 if j - i == 1 else max(j - i, round((edges[j][0] - edges[i][0]) / unit_s))
        if j - i > 1 and (count + 1) * error_s > MOST_OFF * unit_s:
            ticks, start = 0, j  # nobody knows how many ticks these were
            continue
        ticks += count
        best = max(best, (ticks, start, j))
    count, first, last = best
    tick_s = (edges[last][0] - edges[first][0]) / count
    if 2 * max(edges[i][1] for i in sharp) > 0.8 * tick_s:
        return None, None  # polled too slowly: one change may be two ticks
    error_s = (edges[first][1] + edges[last][1]) / count
    if abs(tick_s - USUAL_TICK_S) <= error_s <= SNAP_ERROR * USUAL_TICK_S:
        return USUAL_TICK_S, sharpest_s
    return (tick_s, sharpest_s) if error_s <= MAX_ERROR * tick_s else (None, None)


VARIABLE: Final = "CUDA_VISIBLE_DEVICES"

_LEGACY_MIG = re.compile(r"MIG-(GPU-[0-9a-fA-F-]+)/(\d+)/(\d+)")
"""Name of a MIG device before driver R470: parent UUID, GPU instance, compute instance (MIG User Guide)."""
_INDEX = re.compile(r"[+-]?\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleGpu:
    """One entry: a physical GPU, or a slice of one."""

    position: int
    """Of the physical GPU in the list that was asked about."""
    mig_uuid: str | None = None
    """The slice; None: the whole GPU."""


def visible_devices(environ: Mapping[str, str], devices: Sequence[tuple[str, Sequence[str]]]) -> tuple[VisibleGpu, ...]:
    """Return what a process with this environment can compute on, in CUDA's order of enumeration.

    A GPU with slices that is named as a whole stands for its first slice: CUDA takes one compute instance a GPU.

    Args:
        environ: Environment variables.
        devices: Every GPU of the node in NVML's order: its UUID, and the UUIDs of its MIG slices.
    """
    text = environ.get(VARIABLE)
    if text is None:
        return tuple(_whole(position, devices) for position in range(len(devices)))
    entries = [entry.strip() for entry in text.split(",")]
    return _resolve(entries, _resolver(entries[0]), devices)


def index_order_is_sure(environ: Mapping[str, str], names: Sequence[str]) -> bool:
    """Return False if an index in the environment may mean another GPU than the one NVML gives that index.

    Args:
        environ: Environment variables.
        names: Product names of all GPUs of the node.
    """
    first = environ.get(VARIABLE, "").split(",")[0].strip()
    by_index = _INDEX.match(first) is not None
    return not by_index or len(set(names)) < 2 or environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"


_Devices = Sequence[tuple[str, Sequence[str]]]
_Resolver = Callable[[str, _Devices], VisibleGpu | None]


def _resolver(first: str) -> _Resolver:
    if first.startswith("GPU-"):
        return _by_uuid
    if first.startswith("MIG-"):
        return _by_slice
    return _by_index


def _resolve(entries: Sequence[str], resolver: _Resolver, devices: _Devices) -> tuple[VisibleGpu, ...]:
    found: list[VisibleGpu] = []
    for entry in entries:
        gpu = resolver(entry, devices)
        if gpu is None:
            break
        if gpu in found:
            return ()
        found.append(gpu)
    return tuple(found)


def _whole(position: int, devices: _Devices) -> VisibleGpu:
    slices = devices[position][1]
    return VisibleGpu(position=position, mig_uuid=slices[0] if slices else None)


def _by_index(entry: str, devices: _Devices) -> VisibleGpu | None:
    number = _INDEX.match(entry)  # like strtoul: "1gpu" is 1
    index = int(number.group()) if number else -1
    return _whole(index, devices) if 0 <= index < len(devices) else None


def _by_uuid(entry: str, devices: _Devices) -> VisibleGpu | None:
    if not entry.startswith("GPU-"):
        return None
    matches = [position for position, (uuid, _) in enumerate(devices) if uuid.startswith(entry)]
    return _whole(matches[0], devices) if len(matches) == 1 else None


def _by_slice(entry: str, devices: _Devices) -> VisibleGpu | None:
    if not entry.startswith("MIG-"):
        return None
    for position, (_, slices) in enumerate(devices):
        if entry in slices:
            return VisibleGpu(position=position, mig_uuid=entry)
    legacy = _LEGACY_MIG.fullmatch(entry)
    if legacy is None:
        return None
    parents = [position for position, (uuid, _) in enumerate(devices) if uuid == legacy.group(1)]
    return VisibleGpu(position=parents[0], mig_uuid=entry) if parents else None


COUNTER: Final = "NVML energy counter"
INSTANT: Final = "NVML instant power"
AVERAGE: Final = "NVML average power"
USAGE: Final = "NVML power usage"

MJ_PER_J: Final = 1000.0
MW_PER_W: Final = 1000.0
TICK_S: Final = 0.1
"""Refresh interval of the energy counter: about 100 ms (ML.ENERGY blog, thermally stable profiling, read
2026-11-21). Held until the probe has measured it."""
REFRESH_S: Final = 0.02
"""Refresh interval of the instant power field: about 50 Hz (public measurements of one card, read 2026-11-21)."""
AVERAGING_S: Final = 1.0
"""NVML API reference, nvmlDeviceGetPowerUsage: "On Ampere (except GA100) or newer GPUs, the API returns power
averaged over 1 sec interval. On GA100 and older architectures, instantaneous power is returned."""
GA100: Final = (8, 0)
"""Compute capability of GA100 (A100, A30): https://developer.nvidia.com/cuda-gpus (read 2026-11-21)."""
PART_TIME: Final = ((8, 0), (9, 0))
"""Compute capabilities of A100 and H100, whose sensor sees 25 % of the time: arXiv 2312.02741, SC24."""
PART_SEEN: Final = 0.25
UNCERTAINTY: Final = 0.05
"""NVML API reference, nvmlDeviceGetPowerUsage: within 5 % of the current power draw."""
SHORT_READ_S: Final = 0.0005
"""A read that takes less than this, as the probe has measured it, may be dated by when it began."""
LONG_READ_S: Final = 0.05
"""A read that took longer than this was held up, whatever the probe has measured, and is dated to its middle."""
SLOWED_BITS: Final = {"thermal": 0x60, "power": 0x4, "brake": 0x80}
"""nvmlClocksEventReasons (nvml.h of NVML 13): SwThermalSlowdown and HwThermalSlowdown; SwPowerCap; HwPowerBrake."""

_MIG_NOTE: Final = (
    "MIG is on and NVML gives no energy per slice: these are the joules of the whole GPU, other slices included"
)
_MIG_REMEDY: Final = (
    "MIG is on and the whole GPU cannot be read from this slice. Let a monitor on the host read it, with the meter"
    " 'prometheus', or run where the whole GPU is visible"
)
_SUPERCHIP_NOTE: Final = (
    "on a Grace Hopper module the reading can cover the whole module with its CPU (zeus documentation)"
)


class NvmlMeter:
    """Reads every GPU that is visible to this process.

    A GPU that exists but cannot be read is a MISSING sensor that says why. A lost GPU is not asked again. A sensor's
    tick, cost and period are exact after :meth:`probe`; sensors of modules come behind those of GPUs.

    Args:
        environ: Environment variables; None: those of the process.
        clock: Time.
        gpus: Read these instead of all visible ones: entries as in ``CUDA_VISIBLE_DEVICES``.
        split: Give this job its part of a GPU on which others compute: ``always``, ``off``, or ``auto``, where others
            do when the meter is opened.

    Raises:
        MeterError: There is no driver, no GPU or none visible; says which, and the remedy.
        ConfigError: One of ``gpus`` is none of the node.
    """

    def __init__(
        self,
        environ: Mapping[str, str] | None = None,
        *,
        clock: Clock | None = None,
        gpus: Sequence[str] = (),
        split: str = "off",
    ) -> None:
        environ = os.environ if environ is None else environ
        self._named, self._split = gpus, split
        self._clock = clock or SystemClock()
        self._nvml = open_nvml()
        self._closed = False
        self.readers: Sequence[_Reader | DeviceReader] = ()
        """One a GPU, then one a module."""
        try:
            found = [gpu for gpu in list_gpus(self._nvml) if not gpu.hidden]
            self._gpus = self._open(found, environ)
            self.readers = [*self._gpus, *_modules(self._nvml, self._gpus, found, self._clock)]
        except BaseException as error:
            self.close()
            if isinstance(error, self._nvml.NVMLError):
                raise MeterError(f"NVML cannot list the GPUs: {error}") from error
            raise

    def probe(self) -> None:
        """Measure how fast counters tick and what a read costs, where that is not known; blocks for up to 0.4 s."""
        live = [gpu for gpu in self._gpus if gpu.value is not None and not gpu.probed]
        if not live:
            return
        polled = poll([gpu.value for gpu in live if gpu.value is not None], self._clock)
        for gpu, result in zip(live, polled, strict=True):
            gpu.learn(result)

    @property
    def sensors(self) -> Sequence[Sensor]:
        """One sensor a physical GPU; tick, cost and period are exact after :meth:`probe`. Then those of modules."""
        return [reader.sensor for reader in self.readers]

    def read(self) -> Sequence[PowerSample]:
        """Read every GPU once. The time of a sample is the middle of its call."""
        return [sample for reader in self.readers for sample in reader.read()]

    def split(self) -> Sequence[PowerMeter]:
        """Return a meter for each GPU: the driver can hang on one of them. All are closed with this one."""
        return self.readers

    def close(self) -> None:
        """Release NVML. Idempotent."""
        if not self._closed:
            self._closed = True
            for reader in self.readers:
                reader.close()
            with contextlib.suppress(Exception):
                self._nvml.nvmlShutdown()

    def _open(self, found: Sequence[NvmlGpu], environ: Mapping[str, str]) -> "list[_Reader]":
        if not found:
            raise MeterError(
                "the NVIDIA driver is there but shows no GPU to this process: give the container or job one"
            )
        if self._named:
            environ = {**environ, VARIABLE: ",".join(self._named)}
        visible = visible_devices(environ, [(gpu.uuid, gpu.slices) for gpu in found])
        if self._named and len(visible) < len(self._named):
            known = ", ".join(f"{i} ({gpu.uid})" for i, gpu in enumerate(found))
            twice = len(set(self._named)) < len(self._named)
            wrong = "a GPU is named twice" if twice else f"there is no {self._named[len(visible)]!r}"
            raise ConfigError(f"power.gpus is {list(self._named)}: {wrong}; name some of what this node has: {known}")
        parts = [_part(self._nvml, found[gpu.position], gpu.mig_uuid) for gpu in visible]
        gpus = list({gpu.uid: gpu for gpu in parts}.values())
        if not gpus:
            uuids = ", ".join(gpu.uid for gpu in found)
            raise MeterError(
                f"{VARIABLE}={environ.get(VARIABLE)!r} leaves no GPU to this process; the node has {uuids}: name one"
                " of them, its index or its MIG slice, or unset the variable"
            )
        note = ""
        if not index_order_is_sure(environ, [gpu.name for gpu in found]):
            note = (
                f"GPUs differ and {VARIABLE} holds indices: set CUDA_DEVICE_ORDER=PCI_BUS_ID so that both mean one GPU"
            )
        open_one = functools.partial(_Reader, nvml=self._nvml, clock=self._clock, note=note, split=self._split)
        readers = _side_by_side([functools.partial(open_one, gpu) for gpu in gpus])
        return [
            open_one(dataclasses.replace(gpu, handle=None, problem=_unanswered(gpu.uid))) if reader is None else reader
            for gpu, reader in zip(gpus, readers, strict=True)
        ]


class _Reader:
    """Reads one GPU by the best method that answered when it was opened."""

    def __init__(self, gpu: NvmlGpu, nvml: Any, clock: Clock, note: str, split: str = "off") -> None:
        self._clock = clock
        self._nvml_error: type[Exception] = nvml.NVMLError
        self._lost_code = nvml.NVML_ERROR_GPU_IS_LOST
        self._uid = gpu.uid
        self._last_j = -1.0
        self._changed_s = clock.monotonic_s()
        self._reads_since_change = 0
        self._half_s: float | None = None
        self.probed = False
        self.value: Callable[[], float] | None = None
        self.sensor, self.value = _choose(gpu, nvml, note)
        self._note = self.sensor.note
        self._is_counter = self.sensor.method == COUNTER
        self._processes = functools.partial(nvml.nvmlDeviceGetComputeRunningProcesses, gpu.handle)
        self._is_split = bool(
            self._is_counter and self.value is not None and split != "off" and not gpu.slices
            and (split == "always" or _has_others(nvml, gpu.handle))
        )  # fmt: skip
        if self._is_split and self.value is not None:
            self.value, self.probed = _OwnPart(self.value, nvml, gpu.handle), True
            self.sensor = dataclasses.replace(
                self.sensor, provenance=Provenance.MODELLED, uncertainty=None, method=f"{COUNTER}, split by sm-time",
                note=f"others may compute on it; {SM_TIME}",
            )  # fmt: skip
        self._unsupported = nvml.NVML_ERROR_NOT_SUPPORTED
        self._states: dict[str, Callable[[], Any]] = {
            "rates": functools.partial(nvml.nvmlDeviceGetUtilizationRates, gpu.handle),
            "temperature_c": functools.partial(nvml.nvmlDeviceGetTemperature, gpu.handle, nvml.NVML_TEMPERATURE_GPU),
            "reasons": functools.partial(nvml.nvmlDeviceGetCurrentClocksEventReasons, gpu.handle),
        }
        self._why = self.sensor.note if self.value is None else ""

    @property
    def sensors(self) -> Sequence[Sensor]:
        return (self.sensor,)

    def read(self) -> Sequence[PowerSample]:
        return (self._sample(),)

    def counters(self) -> Sequence[Counter]:
        if self.value is None or self._half_s is None or not self._is_counter or self._reads_since_change:
            return ()
        return (Counter(self._uid, self.value, self._half_s),)

    def users(self) -> Mapping[str, Collection[int]]:
        return {self._uid: [int(process.pid) for process in self._processes()]}

    def states(self) -> Sequence[DeviceState]:
        """Return what the driver tells beside power; what the card does not support is not asked for again.

        Utilisation is the share of NVML's last sample period, of 1/6 s to 1 s as the product has it, in which one or
        more kernels ran, or device memory was read or written (NVML API reference, nvmlUtilization_t and
        nvmlDeviceGetUtilizationRates, read 2026-11-23): a kernel on one of 132 processors counts as one on all.
        """
        if self.value is None:
            return ()
        t_s, found = self._clock.monotonic_s(), {}
        for name, call in list(self._states.items()):
            try:
                found[name] = call()
            except self._nvml_error as error:
                if getattr(error, "value", None) == self._unsupported:
                    del self._states[name]
        rates, reasons = found.get("rates"), found.get("reasons")
        return (
            DeviceState(
                self._uid,
                t_s,
                sm=None if rates is None else rates.gpu / 100,
                memory=None if rates is None else rates.memory / 100,
                temperature_c=found.get("temperature_c"),
                slowed=None if reasons is None else tuple(name for name, bits in SLOWED_BITS.items() if reasons & bits),
            ),
        )

    def close(self) -> None:
        self.stop("the meter is closed")

    def _sample(self) -> PowerSample:
        before_s = self._clock.monotonic_s()
        if self.value is None:
            return PowerSample(device_uid=self._uid, t_s=before_s, note=self._why)
        try:
            value = self.value()
        except Exception as error:
            return self._failed(error, before_s)
        # Known to be short, a read is dated by its start: what comes after it may be a wait for the interpreter.
        took_s = self._clock.monotonic_s() - before_s
        t_s = before_s + (self._half_s if self._half_s is not None and took_s < LONG_READ_S else took_s / 2)
        if not self._is_counter:
            return PowerSample(device_uid=self._uid, t_s=t_s, power_w=value)
        if value != self._last_j:
            self._last_j, self._changed_s, self._reads_since_change = value, t_s, 0
            return PowerSample(self._uid, t_s, value)
        if not self._is_split and self._is_stuck(t_s):
            note = f"the energy counter has stood at {value:.3f} J for {t_s - self._changed_s:.1f} s"
            return PowerSample(device_uid=self._uid, t_s=t_s, note=note)
        return PowerSample(device_uid=self._uid, t_s=t_s, energy_j=value)

    def _failed(self, error: Exception, t_s: float) -> PowerSample:
        why = str(error) if isinstance(error, self._nvml_error) else repr(error)
        if getattr(error, "value", None) == self._lost_code:
            self.stop(f"the GPU is lost ({why}), see dmesg for Xid errors; it is not read any more")
            return PowerSample(device_uid=self._uid, t_s=t_s, note=self._why)
        return PowerSample(device_uid=self._uid, t_s=t_s, note=f"{self.sensor.method}: {why}")

    def learn(self, polled: Polled) -> None:
        """Put what the probe found into the sensor."""
        sensor = self.sensor
        cost_s, wall_s = polled.cpu_s, polled.wall_s
        if cost_s is None or wall_s is None:
            return
        self._half_s = wall_s / 2 if wall_s < SHORT_READ_S else None
        notes = [self._note] if self._note else []
        notes.append(f"one read takes {wall_s * 1e6:.0f} us, {cost_s * 1e6:.0f} us of them CPU")
        tick_s = sensor.tick_s
        if self._is_counter:
            tick_s = polled.tick_s
            if tick_s is None:
                notes.append(f"the counter's tick could not be measured in {polled.span_s:.2f} s")
        self.probed = tick_s is not None or not self._is_counter
        self.sensor = dataclasses.replace(
            sensor,
            tick_s=tick_s,
            tick_edge_s=polled.edge_s if tick_s is not None else None,
            read_cost_s=cost_s,
            period_s=max(tick_s or sensor.period_s, 1000 * cost_s, 20 * wall_s),
            note="; ".join(notes),
        )

    def stop(self, why: str) -> None:
        """Never call the driver again; every later reading is missing for this reason."""
        self.value = None
        self._why = why

    def _is_stuck(self, t_s: float) -> bool:
        self._reads_since_change += 1
        return self._reads_since_change >= 3 and t_s - self._changed_s > STUCK_S


SM_TIME: Final = (
    "rule sm-time: this job's part of the SM time of all processes, as nvmlDeviceGetProcessUtilization tells it; equal"
    " parts by processes where nobody computes or the driver does not tell"
)


class _OwnPart:
    """What a counter would have counted for this job alone."""

    def __init__(self, whole_j: Callable[[], float], nvml: Any, handle: Any) -> None:
        self._whole_j, self._nvml, self._handle = whole_j, nvml, handle
        self._last_j, self._own_j = whole_j(), 0.0
        self._since_us = 0
        self._lock = threading.Lock()

    def __call__(self) -> float:
        """Return the joules of our part since this was made."""
        with self._lock:
            whole_j = self._whole_j()
            self._own_j += max(whole_j - self._last_j, 0.0) * self.share() if whole_j != self._last_j else 0.0
            self._last_j = whole_j
            return self._own_j

    def share(self) -> float:
        """Return our part since the last look, in 0..1."""
        nvml = self._nvml
        weight: dict[int, int] = {}
        with contextlib.suppress(nvml.NVMLError):  # NotFound: no kernel ran; NotSupported
            samples = nvml.nvmlDeviceGetProcessUtilization(self._handle, self._since_us)
            for sample in samples:
                weight[sample.pid] = weight.get(sample.pid, 0) + sample.smUtil
            self._since_us = max((sample.timeStamp for sample in samples), default=self._since_us)
        if not any(weight.values()):
            with contextlib.suppress(nvml.NVMLError):
                weight = {p.pid: 1 for p in nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)}
        if not weight:
            return 1.0
        ours = sum(value for pid, value in weight.items() if is_of_this_job(pid))
        if not ours and not any(map(psutil.pid_exists, weight)):
            return 1 / len(weight)  # the driver tells numbers of the host, none of which is known in this container
        return ours / sum(weight.values())


def _times(factor: float, value: Callable[[], float]) -> float:
    return factor * value()


def _part(nvml: Any, gpu: NvmlGpu, mig_uuid: str | None) -> NvmlGpu:
    """Return one MIG device of a GPU, where the driver tells how large each is; else the whole GPU."""
    if mig_uuid is None or mig_uuid not in gpu.slices:
        return gpu
    try:
        handles = [nvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in gpu.slices]
        sms = [int(nvml.nvmlDeviceGetAttributes_v2(handle).multiprocessorCount) for handle in handles]
    except nvml.NVMLError:
        return gpu
    return dataclasses.replace(gpu, part=(mig_uuid, sms[gpu.slices.index(mig_uuid)], sum(sms)))


def _has_others(nvml: Any, handle: Any) -> bool:
    """Return True if processes of others compute on a GPU, or clients of MPS."""
    with contextlib.suppress(nvml.NVMLError):
        return not all(is_of_this_job(p.pid) for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle))
    return False


def _choose(gpu: NvmlGpu, nvml: Any, note: str) -> tuple[Sensor, Callable[[], float] | None]:
    device = Device(uid=gpu.uid, kind=DeviceKind.GPU, name=gpu.name)
    notes = [note] if note else []
    failures = [gpu.problem] if gpu.problem else []
    if gpu.handle is not None:
        notes += _caveats(gpu, nvml)
        for method, value in _methods(nvml, gpu.handle):
            try:
                value()
            except nvml.NVMLError as error:
                failures.append(f"{method}: {error}")
                continue
            if failures:
                notes.append(f"better methods do not answer ({'; '.join(failures)})")
            averaging_s = _averaging_s(nvml, gpu.handle, method)
            if averaging_s:
                notes.append(f"it tells the mean of {averaging_s:g} s: phases that come with each step are blurred")
            if gpu.part is not None:
                value = functools.partial(_times, gpu.part[1] / gpu.part[2], value)
            sensor = Sensor(
                device=device,
                provenance=Provenance.MEASURED if gpu.part is None else Provenance.MODELLED,
                method=method,
                period_s=REFRESH_S if method == INSTANT else TICK_S,
                tick_s=TICK_S if method == COUNTER else None,
                averaging_s=averaging_s,
                uncertainty=UNCERTAINTY if gpu.part is None else None,
                seen_share=PART_SEEN if _capability(nvml, gpu.handle) in PART_TIME else None,
                limit_w=_limit_w(nvml, gpu.handle),
                note="; ".join(notes),
            )
            return sensor, value
    reason = f"cannot be read ({'; '.join(failures)})"
    if gpu.slices:
        reason += f". {_MIG_REMEDY}"
    sensor = Sensor(device=device, provenance=Provenance.MISSING, method="none", period_s=10.0, note=reason)
    return dataclasses.replace(sensor, limit_w=_limit_w(nvml, gpu.handle) if gpu.handle is not None else None), None


def _methods(nvml: Any, handle: Any) -> list[tuple[str, Callable[[], float]]]:
    return [
        (COUNTER, _counter_j(nvml, handle)),
        (INSTANT, lambda: _field_w(nvml, handle, nvml.NVML_FI_DEV_POWER_INSTANT)),
        (AVERAGE, lambda: _field_w(nvml, handle, nvml.NVML_FI_DEV_POWER_AVERAGE)),
        (USAGE, lambda: float(nvml.nvmlDeviceGetPowerUsage(handle)) / MW_PER_W),
    ]


def _field_w(nvml: Any, handle: Any, field: int, scope: int = 0) -> float:
    reading = nvml.nvmlDeviceGetFieldValues(handle, [(field, scope)])[0]
    if reading.nvmlReturn != nvml.NVML_SUCCESS:
        raise nvml.NVMLError(reading.nvmlReturn)
    return float(reading.value.uiVal) / MW_PER_W


def _modules(nvml: Any, readers: "Sequence[_Reader]", gpus: Sequence[NvmlGpu], clock: Clock) -> list[DeviceReader]:
    """Return a reader of each Grace Hopper or Grace Blackwell module, which contains its GPU, CPU and memory.

    The scope of the power fields is documented in nvml.h of NVML 13: NVML_POWER_SCOPE_MODULE.
    """

    def module_w(handle: Any) -> tuple[float, None]:
        return _field_w(nvml, handle, nvml.NVML_FI_DEV_POWER_INSTANT, nvml.NVML_POWER_SCOPE_MODULE), None

    own = {reader.sensor.device.uid for reader in readers if _SUPERCHIP_NOTE in reader.sensor.note}
    found = [
        DeviceReader(
            Device(uid=f"{gpu.uid}:module", kind=DeviceKind.NODE, name=f"module of {gpu.name}"),
            [Method("NVML module power", functools.partial(module_w, gpu.handle))],
            clock=clock,
            reference=True,
            note="the whole module: it contains GPU, CPU and memory, and is added to none of them",
        )
        for gpu in gpus
        if gpu.uid in own
    ]
    return [reader for reader in found if reader.sensor.provenance is Provenance.MEASURED]


def _counter_j(nvml: Any, handle: Any) -> Callable[[], float]:
    """Return a call that reads the counter: the driver's own function, without the binding's frames, where it is."""
    function = getattr(getattr(nvml, "nvmlLib", None), "nvmlDeviceGetTotalEnergyConsumption", None)
    if function is None:
        return lambda: float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / MJ_PER_J
    energy_mj = ctypes.c_ulonglong()
    pointer = ctypes.byref(energy_mj)

    def read_j() -> float:
        code = function(handle, pointer)
        if code:
            raise nvml.NVMLError(code)
        return energy_mj.value / MJ_PER_J

    return read_j


def _limit_w(nvml: Any, handle: Any) -> float | None:
    with contextlib.suppress(nvml.NVMLError):
        return float(nvml.nvmlDeviceGetEnforcedPowerLimit(handle)) / MW_PER_W
    return None


def _averaging_s(nvml: Any, handle: Any, method: str) -> float:
    if method == AVERAGE:
        return AVERAGING_S
    if method != USAGE:
        return 0.0
    capability = _capability(nvml, handle)
    return AVERAGING_S if capability is None or capability > GA100 else 0.0


def _capability(nvml: Any, handle: Any) -> tuple[int, int] | None:
    try:
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    except nvml.NVMLError:
        return None
    return int(major), int(minor)


def _caveats(gpu: NvmlGpu, nvml: Any) -> list[str]:
    notes = []
    if gpu.part is not None:
        notes.append(
            f"rule sm-slices: {gpu.part[1]} of the {gpu.part[2]} multiprocessors of all MIG devices of {gpu.uuid}, so"
            " that part of its joules, as NVML gives none per slice"
        )
    elif gpu.slices:
        notes.append(_MIG_NOTE)
    with contextlib.suppress(nvml.NVMLError):
        if nvml.nvmlDeviceGetC2cModeInfoV(gpu.handle).isC2cEnabled:
            notes.append(_SUPERCHIP_NOTE)
    if _capability(nvml, gpu.handle) in PART_TIME:
        notes.append("the sensor of this generation sees 25 % of the time (arXiv 2312.02741)")
    return notes


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlSurvey:
    """Driver, GPUs and how each would be read."""

    problem: str = ""
    """Why there is nothing to read, with the remedy; empty if NVML works."""
    driver_version: str = ""
    gpus: Sequence[NvmlGpu] = ()
    """All GPUs of the node, also those that this process may not use."""
    sensors: Sequence[Sensor] = ()
    """The GPUs visible to this process and how each would be read."""


def survey_nvml(environ: Mapping[str, str] | None = None, *, probe: bool = True) -> NvmlSurvey:
    """Describe driver, GPUs and sensors. Never raises for what the machine lacks.

    Args:
        environ: Environment variables; None: those of the process.
        probe: Measure tick and read cost too (0.4 s).
    """
    try:
        nvml = open_nvml()
    except MeterError as error:
        return NvmlSurvey(problem=str(error))
    version, gpus = "", []
    try:
        with contextlib.suppress(nvml.NVMLError):
            version = nvml.nvmlSystemGetDriverVersion()
        with contextlib.suppress(nvml.NVMLError):
            gpus = [dataclasses.replace(gpu, handle=None) for gpu in list_gpus(nvml)]
        meter = NvmlMeter(environ)
        try:
            if probe:
                meter.probe()
            return NvmlSurvey(driver_version=version, gpus=gpus, sensors=meter.sensors)
        finally:
            meter.close()
    except MeterError as error:
        return NvmlSurvey(problem=str(error), driver_version=version, gpus=gpus)
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()
