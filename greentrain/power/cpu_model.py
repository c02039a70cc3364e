"""A model of CPU and memory power, for machines whose sensors cannot be read.

CPU. The energy of a package is taken as linear in time and in CPU seconds:

    E = idle_w x share x t  +  (tdp_w - idle_w) / threads x cpu_seconds

with idle_w = 10 % of the thermal design power, codecarbon's floor (hardware.py 3.3.2). codecarbon's machine mode bends
the load term (``0.1 + 0.9 load^3``); its process mode is linear, as is this model, for three reasons. The joules of
the processes of a machine must add up to the joules of the machine, and only a linear term does that. The system
counts CPU seconds exactly and cumulatively, so the linear form needs no load sampled at the right moment and loses
nothing between two reads, while the cube of a mean is not the mean of the cubes. And measured servers are close to
linear in utilisation: Fan, Weber, Barroso, Power Provisioning for a Warehouse-sized Computer, ISCA 2007, find the
linear model within 5 % for groups of machines. Both forms agree at full load.

Memory. 0.375 W for each resident GB: 3 W per 8 GB, codecarbon's model before version 3 (docs of codecarbon,
"methodology", after https://www.crucial.com/support/articles-faq-memory/how-much-power-does-memory-use). Its present
model guesses DIMMs from a size, at least two of 5 W: that may fit a machine, but a floor of 10 W for each process
would charge a node with eight ranks 80 W. A rate per GB adds up over processes.

The thermal design power of a CPU is looked up by its name in the table that codecarbon ships: ``data/hardware/
cpu_power.csv`` (MIT; 4,918 parts in 3.3.2) is found and read without importing codecarbon or pandas.

The CPU seconds and the memory are those of a process and all its descendants, also of those that came and went between
reads (:class:`ProcessTree`). Linux adds the CPU time of a child to its parent when the parent waits for it, so what a
child did after the last read, or did altogether if it was born and died in between, shows up as growth of its parent's
reaped time. A pid stands for the same process only while its start time is the same. proc_pid_stat(5), read 2026-11-21.
"""

import contextlib
import csv
import dataclasses
import functools
import importlib.util
import math
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import psutil

from greentrain.errors import MeterError
from greentrain.types import Device, DeviceKind, PowerSample, Provenance, Sensor
from greentrain.utils.clock import Clock, SystemClock

RECHECK_READS: Final = 30
"""Every so many reads, processes known to be strangers are looked at again: their pid may have a new owner."""


class ProcStat(NamedTuple):
    """One process at one instant."""

    ppid: int
    start: float
    """Start time in the source's unit; with the pid it names the process."""
    own_s: float
    """CPU seconds of its threads, user and system, ended threads included."""
    reaped_s: float
    """CPU seconds of ended children that it waited for, and of theirs."""
    rss_bytes: int


class ProcSource(Protocol):
    """The process table of the machine."""

    def pids(self) -> Iterable[int]:
        """Return all process ids."""

    def stat(self, pid: int) -> ProcStat | None:
        """Return one process, or None if it is gone."""


class LinuxProc:
    """Reads /proc directly: about 10 microseconds a process, psutil needs ten times that.

    Args:
        root: Mount point of procfs.
    """

    def __init__(self, root: str = "/proc") -> None:
        self._root = root
        self._tick_s = 1.0 / os.sysconf("SC_CLK_TCK")
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")

    def pids(self) -> Iterable[int]:
        """Return all process ids."""
        try:
            return [int(name) for name in os.listdir(self._root) if name[0] in "123456789" and name.isdigit()]
        except OSError:
            return []

    def stat(self, pid: int) -> ProcStat | None:
        """Return one process, or None if it is gone."""
        try:
            fd = os.open(f"{self._root}/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            text = os.read(fd, 1024)
        except OSError:
            return None
        finally:
            os.close(fd)
        fields = text[text.rfind(b")") + 2 :].split()
        if len(fields) < 22:
            return None
        tick_s = self._tick_s
        return ProcStat(
            int(fields[1]),
            float(fields[19]),
            (int(fields[11]) + int(fields[12])) * tick_s,
            (int(fields[13]) + int(fields[14])) * tick_s,
            int(fields[21]) * self._page_bytes,
        )


class PsutilProc:
    """The same through psutil, for systems without procfs. Children's reaped time is known on Unix only."""

    def pids(self) -> Iterable[int]:
        """Return all process ids."""
        return psutil.pids()

    def stat(self, pid: int) -> ProcStat | None:
        """Return one process, or None if it is gone."""
        try:
            process = psutil.Process(pid)
            with process.oneshot():
                times = process.cpu_times()
                reaped_s = getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
                own_s = times.user + times.system
                rss_bytes = process.memory_info().rss
                return ProcStat(process.ppid(), process.create_time(), own_s, reaped_s, rss_bytes)
        except psutil.Error:
            return None


@dataclass(frozen=True, slots=True)
class TreeUsage:
    """What the tree has used."""

    cpu_s: float
    """CPU seconds since construction, or since its processes began; never falls."""
    rss_bytes: int
    """Resident memory now: pages shared by several processes count once for each."""
    processes: int


class ProcessTree:
    """Follows a process and its descendants.

    Args:
        root_pid: Top of the tree.
        excluded_pids: Called at each read: processes that others account for. They and their descendants are left
            out, also when their time arrives at a parent of the tree that waited for them.
        source: The process table.
        whole: Whether what the tree has used before counts too.
    """

    def __init__(
        self,
        root_pid: int,
        *,
        excluded_pids: Callable[[], Collection[int]] = frozenset,
        source: ProcSource,
        whole: bool = False,
    ) -> None:
        self._root = root_pid
        self._excluded_pids = excluded_pids
        self._source = source
        self._known: dict[int, ProcStat] = {}
        self._foreign: dict[int, float] = {}
        self._others: set[int] = set()
        self._reads = 0
        self._cpu_s = 0.0
        self.read()
        self._cpu_s *= whole

    def read(self) -> TreeUsage | None:
        """Return the tree's usage, or None if its root has ended and was waited for."""
        stats = self._refresh()
        adopted = self._find_new(stats)
        if self._root not in stats:
            return None
        others = self._of_others(stats)
        gone_s, blocked = self._gone(stats)
        rss_bytes = 0
        for pid, stat in stats.items():
            if pid in others:
                continue
            rss_bytes += stat.rss_bytes
            old = self._known.get(pid)
            if old is None:
                self._cpu_s += 0.0 if pid in adopted else stat.own_s + stat.reaped_s
            elif pid not in self._others:
                self._cpu_s += max(0.0, stat.own_s - old.own_s)
                if pid not in blocked:
                    self._cpu_s += max(0.0, stat.reaped_s - old.reaped_s - gone_s.get(pid, 0.0))
        self._known, self._others = stats, others
        return TreeUsage(self._cpu_s, rss_bytes, len(stats) - len(others))

    def _refresh(self) -> dict[int, ProcStat]:
        stats = {}
        for pid, old in self._known.items():
            stat = self._source.stat(pid)
            if stat is not None and stat.start == old.start:
                stats[pid] = stat
        if not self._known:
            stat = self._source.stat(self._root)
            if stat is not None:
                stats[self._root] = stat
        return stats

    def _find_new(self, stats: dict[int, ProcStat]) -> set[int]:
        recheck = self._reads % RECHECK_READS == 0
        self._reads += 1
        strangers = self._foreign
        self._foreign = {}
        fresh: dict[int, ProcStat] = {}
        for pid in self._source.pids():
            if pid in stats:
                continue
            if pid in strangers and not recheck:
                self._foreign[pid] = strangers[pid]
                continue
            stat = self._source.stat(pid)
            if stat is not None:
                fresh[pid] = stat
        adopted: set[int] = set()
        found = True
        while found:
            found = False
            for pid, stat in list(fresh.items()):
                if stat.ppid in stats:
                    stats[pid] = fresh.pop(pid)
                    if strangers.get(pid) == stat.start:
                        adopted.add(pid)
                    found = True
        self._foreign.update((pid, stat.start) for pid, stat in fresh.items())
        return adopted

    def _of_others(self, stats: Mapping[int, ProcStat]) -> set[int]:
        excluded = self._excluded_pids()
        if not excluded and not self._others:
            return set()
        verdict: dict[int, bool] = {self._root: self._root in excluded}

        def other(pid: int) -> bool:
            if pid not in verdict:
                verdict[pid] = False
                parent = stats[pid].ppid
                verdict[pid] = pid in excluded or (other(parent) if parent in stats else pid in self._others)
            return verdict[pid]

        return {pid for pid in stats if other(pid)}

    def _gone(self, stats: Mapping[int, ProcStat]) -> tuple[dict[int, float], set[int]]:
        """Return the already counted seconds of ended descendants by living ancestor, and ancestors of others'."""
        gone_s: dict[int, float] = {}
        blocked: set[int] = set()
        for pid, old in self._known.items():
            if pid in stats:
                continue
            parent = old.ppid
            while parent not in stats and parent in self._known:
                parent = self._known[parent].ppid
            if parent not in stats:
                continue
            gone_s[parent] = gone_s.get(parent, 0.0) + old.own_s + old.reaped_s
            if pid in self._others:
                blocked.add(parent)
        return gone_s, blocked


W_PER_THREAD: Final = 4.0
"""For parts that no table knows: codecarbon's ``DEFAULT_POWER_PER_CORE`` (codecarbon/core/cpu.py 3.3.2, used per
thread; read 2026-11-21)."""
UNCERTAINTY_TABLE: Final = 0.3
"""Our judgement, nobody publishes one: packages draw 60 to 100 % of their TDP under a full load, 10 to 40 % idle."""
UNCERTAINTY_SHARE: Final = 0.5
"""Our judgement: the same, and the share of a package that a virtual machine holds is a guess."""
UNCERTAINTY_UNKNOWN: Final = 0.7
"""Our judgement: parts of the table range from 1.4 to 8 W a thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuPower:
    """The full-load power of the CPUs that this machine sees."""

    model: str
    """Name as in /proc/cpuinfo."""
    tdp_w: float
    """Thermal design power of everything visible (W)."""
    uncertainty: float
    note: str
    """Where the number comes from."""


def cpu_power(cpuinfo: str, threads: int, *, tdp_w: float | None = None) -> CpuPower:
    """Return the thermal design power of a machine.

    Args:
        cpuinfo: Text of /proc/cpuinfo.
        threads: Hardware threads online.
        tdp_w: Known TDP of all packages (W), to override the table.
    """
    model = cpu_field(cpuinfo, "model name") or cpu_field(cpuinfo, "Model") or "unknown CPU"
    found = listed_tdp(model) if tdp_w is None else None
    name, part_w = found or ("", W_PER_THREAD * threads)
    source, uncertainty = f"TDP {part_w:g} W of {name} (codecarbon's CPU table)", UNCERTAINTY_TABLE
    if tdp_w is not None:
        note = f"TDP {tdp_w:g} W from power.cpu_tdp_w"
    elif not name:
        tdp_w, uncertainty = part_w, UNCERTAINTY_UNKNOWN
        note = (
            f"{model!r} is not in codecarbon's CPU table: {W_PER_THREAD:g} W for each of {threads} threads assumed; set"
            " power.cpu_tdp_w"
        )
    elif "hypervisor" not in cpu_field(cpuinfo, "flags").split():
        packages = max(1, len(set(re.findall(r"^physical id\s*:\s*(\d+)", cpuinfo, re.MULTILINE))))
        tdp_w, note = part_w * packages, f"{source}, {packages} package{'s' if packages > 1 else ''}"
    elif cores := re.search(r"(\d+)-Core", model):
        part_threads = 2 * int(cores.group(1))
        tdp_w, uncertainty = part_w * threads / part_threads, UNCERTAINTY_SHARE
        seen = f"this virtual machine sees {threads} of about {part_threads} threads a package"
        note = f"{source}; {seen}; set power.cpu_tdp_w"
    else:
        tdp_w, uncertainty = min(part_w, W_PER_THREAD * threads), UNCERTAINTY_SHARE
        seen = f"this virtual machine sees {threads} threads of it: {tdp_w:g} W assumed"
        note = f"{source}; {seen}; set power.cpu_tdp_w"
    return CpuPower(model=model, tdp_w=tdp_w, uncertainty=uncertainty, note=note)


def find_tdp(model: str, table: Mapping[str, float] | None = None) -> tuple[str, float] | None:
    """Return the table's name and TDP (W) of a CPU, or None if the table does not know it.

    An entry matches if all its words occur in the model name; the entry with most words wins, and none does if two
    such entries disagree. An entry without a generation (``E5-2640``) never matches a model with one (``v4``).

    Args:
        model: Name as in /proc/cpuinfo.
        table: TDP (W) by part name; None reads codecarbon's.
    """
    table = read_table() if table is None else table
    wanted = _words(model)
    generation = {word for word in wanted if re.fullmatch(r"v\d", word)}
    best: list[tuple[str, float]] = []
    most = 0
    for name, tdp_w in table.items():
        words = _words(name)
        if not words <= wanted or not generation <= words or not any(c.isdigit() for w in words for c in w):
            continue
        if len(words) > most:
            best, most = [], len(words)
        if len(words) == most:
            best.append((name, tdp_w))
    return best[0] if len({tdp_w for _, tdp_w in best}) == 1 else None


@functools.cache
def listed_tdp(model: str) -> tuple[str, float] | None:
    """Return what ``find_tdp`` finds in codecarbon's table, which takes 40 ms, once a process."""
    return find_tdp(model)


def read_table() -> dict[str, float]:
    """Return TDP (W) by part name; empty where codecarbon is not installed or moved its table."""
    spec = importlib.util.find_spec("codecarbon")
    table: dict[str, float] = {}
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / "data" / "hardware" / "cpu_power.csv"
        with contextlib.suppress(OSError), path.open(encoding="utf-8", newline="") as file:
            for row in csv.reader(file):
                with contextlib.suppress(ValueError, IndexError):  # the header and four rows such as "27.29.5"
                    table[row[0]] = float(row[1])
    return table


def _words(name: str) -> frozenset[str]:
    text = re.sub(r"\((r|tm)\)|@.*", "", name.lower())
    text = re.sub(r"\b(cpu|processor|\d+-core)\b", " ", text)
    return frozenset(re.findall(r"[a-z0-9][a-z0-9.+\-]*", text))


def cpu_field(cpuinfo: str, key: str) -> str:
    """Return what /proc/cpuinfo says of its first processor; empty where it says nothing."""
    match = re.search(rf"^{key}\s*:\s*(.*)$", cpuinfo, re.MULTILINE)
    return match.group(1).strip() if match else ""


IDLE_SHARE: Final = 0.1
"""Idle power / TDP: codecarbon/external/hardware.py 3.3.2, ``_get_power_from_cpu_load`` (read 2026-11-21)."""
RAM_W_PER_GB: Final = 0.375
"""3 W per 8 GB; see the module's text."""
RAM_UNCERTAINTY: Final = 0.6
"""Our judgement: parts on sale draw 0.1 W/GB (64 GB registered DIMM) to 0.4 W/GB (8 GB DIMM)."""
PERIOD_S: Final = 1.0
CPU_UID: Final = "model:cpu"
DRAM_UID: Final = "model:dram"
SCOPES: Final = ("process_tree", "machine")


class CpuModelMeter:
    """Models CPU energy from CPU seconds and memory power from resident memory.

    Args:
        scope: ``process_tree``: a process, its descendants, and its share of the idle power. ``machine``: all load.
        root_pid: Top of the process tree; None is this process. Read once more before it is waited for: the tree of
            a process that is gone reads as missing. A function returns it later, where the process has not begun yet.
        kinds: Kinds of device to model: CPU, DRAM or both.
        tdp_w: Thermal design power of all packages (W); None looks it up in codecarbon's table.
        local_world_size: Ranks on this node that share the CPUs; each is charged its part of the idle power.
        excluded_pids: Called at each read: processes whose own meters book them, left out with their descendants.
        notes: Said first by the sensor of a kind, for example why it is modelled.
        proc: Mount point of procfs, for process trees; where there is none, and of the whole machine, psutil is asked.
        clock: Time.

    Raises:
        MeterError: The scope is unknown or the root process does not exist.
    """

    def __init__(
        self,
        *,
        scope: str = "process_tree",
        root_pid: int | Callable[[], int | None] | None = None,
        kinds: Collection[DeviceKind] = (DeviceKind.CPU, DeviceKind.DRAM),
        tdp_w: float | None = None,
        local_world_size: int = 1,
        excluded_pids: Callable[[], Collection[int]] = frozenset,
        notes: Mapping[DeviceKind, str] | None = None,
        proc: str = "/proc",
        clock: Clock | None = None,
    ) -> None:
        if scope not in SCOPES:
            raise MeterError(f"cpu model: scope is {scope!r}; known: {', '.join(SCOPES)}")
        self._clock = clock or SystemClock()
        self._closed = False
        pid = root_pid if isinstance(root_pid, int) else os.getpid()
        self._load: _TreeLoad | _MachineLoad
        if scope == "machine":
            self._load = _MachineLoad()
        else:
            source: ProcSource = LinuxProc(proc) if Path(proc, "stat").exists() else PsutilProc()
            tree_of = functools.partial(ProcessTree, excluded_pids=excluded_pids, source=source)
            if callable(root_pid):
                later = root_pid
                self._load = _TreeLoad(lambda: None if (pid := later()) is None else tree_of(pid, whole=True))
            else:
                tree = tree_of(pid)
                self._load = _TreeLoad(lambda: tree)
        if self._load.read() is None:
            what = f"process {pid} does not exist" if scope == "process_tree" else self._load.gone
            raise MeterError(f"cpu model: {what}")
        threads = os.cpu_count() or 1
        power = cpu_power(text_of(f"{proc}/cpuinfo"), threads, tdp_w=tdp_w)
        usable, share = float(threads), 1.0
        if scope == "process_tree":
            usable = allowed_cpus(pid)
            share = usable / threads / max(1, local_world_size)
        idle_w = IDLE_SHARE * power.tdp_w
        self._idle_w = idle_w * share
        self._j_per_cpu_s = (power.tdp_w - idle_w) / threads
        self._t0_s = self._clock.monotonic_s()
        full_w = self._idle_w + self._j_per_cpu_s * min(usable, threads)
        full: dict[DeviceKind, float | None] = {DeviceKind.CPU: full_w, DeviceKind.DRAM: None}
        with contextlib.suppress(Exception):
            full[DeviceKind.DRAM] = RAM_W_PER_GB * psutil.virtual_memory().total / 1e9
        used = "resident memory, shared pages once a process" if scope == "process_tree" else "used memory"
        about = {
            DeviceKind.CPU: f"{power.note}; idle {self._idle_w:.3g} W charged here, {self._j_per_cpu_s:.3g} J per CPU"
            " second",
            DeviceKind.DRAM: f"{RAM_W_PER_GB} W per GB of {used} (3 W per 8 GB, codecarbon before 3.0)",
        }
        for kind, why in (notes or {}).items():
            about[kind] = f"{why}. {about.get(kind, '')}"
        self._sensors = [s for s in _sensors(power, scope, full, about) if s.device.kind in kinds]

    @property
    def sensors(self) -> Sequence[Sensor]:
        """The CPU, then the memory."""
        return self._sensors

    def read(self) -> Sequence[PowerSample]:
        """Read the load once and return modelled CPU energy and memory power."""
        load = None if self._closed else self._load.read()
        t_s = self._clock.monotonic_s()
        if load is None:
            note = "the meter is closed" if self._closed else self._load.gone
            return [PowerSample(device_uid=s.device.uid, t_s=t_s, note=note) for s in self._sensors]
        cpu_s, memory_bytes = load
        energy_j = self._idle_w * (t_s - self._t0_s) + self._j_per_cpu_s * cpu_s
        power_w = RAM_W_PER_GB * memory_bytes / 1e9
        return [
            PowerSample(device_uid=s.device.uid, t_s=t_s, energy_j=energy_j)
            if s.device.kind is DeviceKind.CPU
            else PowerSample(device_uid=s.device.uid, t_s=t_s, power_w=power_w)
            for s in self._sensors
        ]

    def probe(self) -> None:
        """Time one read, so that the sensors state what it costs."""
        start_s = time.thread_time()
        self._load.read()
        cost_s = time.thread_time() - start_s
        for i, sensor in enumerate(self._sensors):
            self._sensors[i] = dataclasses.replace(sensor, read_cost_s=0.0 if i else cost_s)

    def close(self) -> None:
        """Stop reading. Idempotent."""
        self._closed = True


class _TreeLoad:
    gone = "its process has ended"

    def __init__(self, begun: Callable[[], ProcessTree | None]) -> None:
        self._begun = begun
        self._tree: ProcessTree | None = None

    def read(self) -> tuple[float, float] | None:
        self._tree = self._tree or self._begun()
        if self._tree is None:
            return 0.0, 0.0
        usage = self._tree.read()
        if usage is None:
            return None
        if usage.processes == 1:
            return usage.cpu_s, usage.rss_bytes
        return usage.cpu_s, min(usage.rss_bytes, _used_bytes())  # pages that several share count once for each


class _MachineLoad:
    def __init__(self) -> None:
        self._base_s: float | None = None
        self._last_s = 0.0
        self.gone = ""

    def read(self) -> tuple[float, float] | None:
        try:
            times, memory = psutil.cpu_times(), psutil.virtual_memory()
        except Exception as error:  # a file of procfs that is gone, or not as psutil knows it
            self.gone = f"the load of the machine cannot be read ({error!r})"
            return None
        # not idle, iowait, nor stolen by the hypervisor; nice, irq and softirq are Linux' alone
        busy_s = sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq"))
        self._base_s = busy_s if self._base_s is None else self._base_s
        self._last_s = max(self._last_s, busy_s - self._base_s)
        return self._last_s, float(memory.total - memory.available)


def allowed_cpus(pid: int) -> float:
    """Return how many CPUs a process may use: its affinity, or the quota of its container where that is less."""
    try:
        count = float(len(os.sched_getaffinity(pid)))
    except (AttributeError, OSError):
        count = float(os.cpu_count() or 1)
    quota, _, period = text_of("/sys/fs/cgroup/cpu.max").partition(" ")
    if quota.isdigit() and period.isdigit() and int(period) > 0:
        count = min(count, int(quota) / int(period))
    return count


def _used_bytes() -> float:
    """Return how much memory is used on the machine; infinity where nobody knows."""
    with contextlib.suppress(Exception):
        memory = psutil.virtual_memory()
        return float(memory.total - memory.available)
    return math.inf


def _sensors(
    power: CpuPower, scope: str, full_w: Mapping[DeviceKind, float | None], notes: Mapping[DeviceKind, str]
) -> list[Sensor]:
    """Return the sensors; ``full_w``: what the model says of a full load (W), more by its error is the most."""
    machine = scope == "machine"
    cpu_w, memory_w = full_w[DeviceKind.CPU], full_w[DeviceKind.DRAM]
    load = "machine load" if machine else "CPU seconds of the process tree"
    cpu = Sensor(
        device=Device(uid=CPU_UID, kind=DeviceKind.CPU, name=power.model),
        provenance=Provenance.MODELLED,
        method=f"TDP x {load}",
        period_s=PERIOD_S,
        uncertainty=power.uncertainty,
        limit_w=cpu_w and cpu_w * (1 + power.uncertainty),
        shared=machine,
        note=notes[DeviceKind.CPU],
    )
    dram = Sensor(
        device=Device(uid=DRAM_UID, kind=DeviceKind.DRAM, name="memory"),
        provenance=Provenance.MODELLED,
        method="used memory x W/GB" if machine else "resident memory x W/GB",
        period_s=PERIOD_S,
        uncertainty=RAM_UNCERTAINTY,
        limit_w=memory_w and memory_w * (1 + RAM_UNCERTAINTY),
        shared=machine,
        note=notes[DeviceKind.DRAM],
    )
    return [cpu, dram]


def text_of(path: str | Path, size: int = 1 << 20) -> str:
    """Return the text of a file of the kernel, up to a number of bytes, stripped; empty where it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            return (file.read(size) or b"").decode("utf-8", "replace").strip()
    except OSError:
        return ""
