"""CPU package and DRAM energy from the RAPL counters under ``/sys/class/powercap``.

The kernel serves Intel's counters and those of AMD (Zen and newer, package only) in the same tree:
https://docs.kernel.org/power/powercap/powercap.html (read 2026-11-21). A counter is a file of microjoules that
wraps at ``max_energy_range_uj``. The meter keeps the last value of each, so a wrap is seen as long as two reads
are closer together than one turn of the counter; no process has to watch it.
"""

import contextlib
import dataclasses
import functools
import math
import os
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from greentrain.errors import MeterError
from greentrain.power.cpu_model import cpu_field, listed_tdp, text_of
from greentrain.power.daemon_client import DaemonClient, find_daemon
from greentrain.types import Device, DeviceKind, PowerSample, Provenance, Sensor
from greentrain.utils.clock import Clock, SystemClock

ROOT: Final = "/sys/class/powercap"
UJ_PER_J: Final = 1_000_000.0
MAX_ZONE_W: Final = 1000.0
"""More than any CPU package or its memory draws: the largest TDP sold is 500 W (AMD EPYC 9965, amd.com, read
2026-11-21). It turns a counter's range into the longest safe gap and tells a reset from a wrap."""
SETTLE_S: Final = 0.05
"""Slack for the refresh of a counter (about 1 ms; Intel SDM vol. 3B, 15.10) when its power is judged."""
TICK_S: Final = 0.001
"""Refresh interval of a RAPL counter: about 1 ms, Intel SDM vol. 3B, 15.10."""
UNCERTAINTY: Final = {DeviceKind.CPU: 0.05, DeviceKind.DRAM: 0.2}
"""Package: a few percent since Haswell, Khan et al., RAPL in Action, ACM ToMPECS 3(2), 2018. DRAM: within 20 %,
Desrochers et al., A Validation of DRAM RAPL Power Measurements, MEMSYS 2016."""
PPT_PER_TDP: Final = 1.35
"""Most that an AMD package draws, of its TDP, as its own limiter holds it: AMD on the sockets of Zen, 2022-05-26
(https://www.tomshardware.com/news/amd-corrects-socket-am5-for-ryzen-7000-power-specs-230w-peak-power-170w-tdp). Its
counters state no limit in the tree, as Intel's do."""
DAEMON_S: Final = 0.1
"""How often the daemon is asked (s): each reading is a message, and how many a user may send is bounded."""
DENIED: Final = "permission denied"
REMEDY: Final = (
    "Linux lets only root read RAPL since 5.10 because of CVE-2020-8694 (power side channel). Ask an administrator"
    " for: sudo groupadd -f rapl; sudo usermod -aG rapl $USER; sudo chgrp rapl {root}/*/energy_uj; sudo chmod 0440"
    ' {root}/*/energy_uj, and to keep it after a reboot the udev rule SUBSYSTEM=="powercap",'
    ' KERNEL=="intel-rapl:*", RUN+="/bin/chgrp rapl /sys%p/energy_uj", RUN+="/bin/chmod 0440 /sys%p/energy_uj";'
    " or for greentrain daemon, which reads it for those in its list"
)
"""https://www.intel.com/content/www/us/en/developer/articles/technical/software-security-guidance/advisory-guidance/running-average-power-limit-energy-reporting.html
(read 2026-11-21)."""

_ZONE = re.compile(r"intel-rapl:\d+")
_SUBZONE = re.compile(r"intel-rapl:\d+:\d+")
_MIRROR_UJ: Final = 1_000_000
"""Two packages whose counters agree to 1 J are one counter shown twice (multi-die AMD parts,
https://github.com/mlco2/codecarbon/issues/1274)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaplZone:
    """One counter of the tree."""

    path: Path
    device: Device
    range_j: float
    """The counter wraps here (J)."""
    limit_w: float | None = None
    """Most that the processor lets itself draw (W); None where it states none."""
    problem: str = ""
    """Why the counter cannot be read and what to do; empty if it can."""
    daemon_j: Callable[[], float] | None = None
    """Asks ``greentrain daemon`` for its joules, where this process may not read the file."""


def find_zones(root: str | Path = ROOT, *, ask_daemon: bool = True) -> tuple[RaplZone, ...]:
    """Return the package and DRAM counters of a powercap tree, also those that cannot be read.

    Args:
        root: The powercap tree.
        ask_daemon: Let ``greentrain daemon`` read what this process may not.

    ``psys`` holds the packages once more, ``core`` and ``uncore`` are parts of them, and ``intel-rapl-mmio`` is a
    second window on the same counters: all are left out.
    """
    root = Path(root)
    zones: dict[str, RaplZone] = {}
    packages: list[tuple[str, int]] = []
    for zone in _children(root, _ZONE):
        name = text_of(zone / "name")
        if not name.startswith("package-"):
            continue
        package = name.removeprefix("package-")
        found = _zone(zone, f"rapl:package-{package}", DeviceKind.CPU, f"CPU package {package}", root)
        if found.device.uid in zones or (not found.problem and _mirrored(found, packages)):
            continue
        zones[found.device.uid] = found
        subzones = {sub.name: sub for sub in _children(root, _SUBZONE) if sub.name.startswith(zone.name + ":")}
        subzones |= {sub.name: sub for sub in _children(zone, _SUBZONE)}
        for sub in subzones.values():
            if text_of(sub / "name") == "dram":
                memory = _zone(sub, f"rapl:dram-{package}", DeviceKind.DRAM, f"DRAM of package {package}", root)
                zones.setdefault(memory.device.uid, memory)
    daemon = find_daemon() if ask_daemon and any(DENIED in zone.problem for zone in zones.values()) else None
    if daemon is None:
        return tuple(zones.values())
    return tuple(_by_daemon(zone, daemon) if DENIED in zone.problem else zone for zone in zones.values())


def _by_daemon(zone: RaplZone, daemon: DaemonClient) -> RaplZone:
    package, kind = zone.device.uid.rpartition("-")[2], "cpu" if zone.device.kind is DeviceKind.CPU else "dram"
    if package not in daemon.cpus or (kind == "dram" and not daemon.cpus[package]):
        return zone
    read_j = functools.partial(daemon.energy_j, package, kind)
    return dataclasses.replace(zone, problem="", range_j=math.inf, daemon_j=read_j)


class RaplMeter:
    """Reads every RAPL package and DRAM counter of the machine.

    Args:
        root: The powercap tree.
        strict: True: raise if a counter cannot be read. False: it becomes a MISSING sensor that names the remedy.
        kinds: Kinds of device whose counters are opened.
        cpuinfo: File of the processors' names, by which AMD's limits are known.
        clock: Time.
        ask_daemon: Let ``greentrain daemon`` read what this process may not.

    Raises:
        MeterError: There is no counter or, if ``strict``, one cannot be read; names the file and the remedy.
    """

    def __init__(
        self,
        root: str | Path = ROOT,
        *,
        strict: bool = True,
        kinds: Collection[DeviceKind] = (DeviceKind.CPU, DeviceKind.DRAM),
        cpuinfo: str | Path = "/proc/cpuinfo",
        clock: Clock | None = None,
        ask_daemon: bool = True,
    ) -> None:
        self._clock = clock or SystemClock()
        zones = [zone for zone in find_zones(root, ask_daemon=ask_daemon) if zone.device.kind in kinds]
        if not zones:
            raise MeterError(
                f"no RAPL counter under {root}: virtual machines, containers that hide /sys/class/powercap, CPUs that"
                " are neither Intel nor AMD Zen, and kernels without intel_rapl_msr have none. Use the meter"
                " 'cpu_model' instead"
            )
        if strict:
            for zone in zones:
                if zone.problem:
                    raise MeterError(zone.problem)
        amd_w = _amd_limit_w(text_of(cpuinfo))
        if amd_w is not None:
            packages = [zone for zone in zones if zone.device.kind is DeviceKind.CPU]
            zones = [dataclasses.replace(zone, limit_w=amd_w) if zone in packages else zone for zone in zones]
        self._counters = [_Counter(zone, self._clock.monotonic_s()) for zone in zones]

    @property
    def sensors(self) -> Sequence[Sensor]:
        """One sensor a counter, packages before their memory."""
        return [counter.sensor for counter in self._counters]

    def read(self) -> Sequence[PowerSample]:
        """Read every counter: one ``pread`` each."""
        return [counter.read(self._clock.monotonic_s()) for counter in self._counters]

    def probe(self) -> None:
        """Time the reads, so that the sensors state what one costs."""
        repeats = 5
        for counter in self._counters:
            start_s = self._clock.monotonic_s()
            for _ in range(repeats):
                counter.read(self._clock.monotonic_s())
            cost_s = (self._clock.monotonic_s() - start_s) / repeats
            counter.sensor = dataclasses.replace(counter.sensor, read_cost_s=cost_s)

    def close(self) -> None:
        """Close the files. Idempotent."""
        for counter in self._counters:
            counter.close()


class _Counter:
    def __init__(self, zone: RaplZone, t_s: float) -> None:
        self._zone = zone
        self._path = str(zone.path / "energy_uj")
        self._fd = -1
        self._closed = False
        self._total_j = 0.0
        self._raw_j: float | None = None
        self._t_s = t_s
        self._safe_gap_s = zone.range_j / MAX_ZONE_W
        self.sensor = _sensor(zone, self._safe_gap_s)
        if not zone.problem:
            self.read(t_s)

    def read(self, t_s: float) -> PowerSample:
        uid = self._zone.device.uid
        if self._zone.problem or self._closed:
            return PowerSample(device_uid=uid, t_s=t_s, note=self._zone.problem or "the meter is closed")
        try:
            raw_j = self._file_j() if self._zone.daemon_j is None else self._zone.daemon_j()
        except (OSError, ValueError) as error:
            self._drop()
            return PowerSample(device_uid=uid, t_s=t_s, note=f"cannot read {self._path}: {error}")
        note = self._advance(raw_j, t_s)
        if note:
            return PowerSample(device_uid=uid, t_s=t_s, note=note)
        return PowerSample(device_uid=uid, t_s=t_s, energy_j=self._total_j)

    def _file_j(self) -> float:
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        return int(os.pread(self._fd, 32, 0)) / UJ_PER_J

    def _advance(self, raw_j: float, t_s: float) -> str:
        last_j, gap_s = self._raw_j, t_s - self._t_s
        self._raw_j, self._t_s = raw_j, t_s
        if last_j is None:
            return ""
        delta_j = raw_j - last_j
        if delta_j < 0:
            delta_j += self._zone.range_j
            if not 0 <= delta_j <= MAX_ZONE_W * (gap_s + SETTLE_S):
                return f"{self._path} fell from {last_j:.1f} J to {raw_j:.1f} J in {gap_s:.1f} s: a reset, not a wrap"
        if gap_s > self._safe_gap_s:
            return f"{self._path} was not read for {gap_s:.0f} s and may have wrapped more than once"
        self._total_j += delta_j
        return ""

    def close(self) -> None:
        self._closed = True
        self._drop()

    def _drop(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = -1


def _sensor(zone: RaplZone, safe_gap_s: float) -> Sensor:
    kind = zone.device.kind
    note = zone.problem or (
        "All processes of the machine, read by greentrain daemon"
        if zone.daemon_j is not None
        else f"All processes of the machine. Wraps every {zone.range_j:.0f} J: read it at least every"
        f" {safe_gap_s:.0f} s (at {MAX_ZONE_W:.0f} W)"
    )
    return Sensor(
        device=zone.device,
        provenance=Provenance.MISSING if zone.problem else Provenance.MEASURED,
        method="RAPL package" if kind is DeviceKind.CPU else "RAPL dram",
        period_s=0.01 if zone.daemon_j is None else DAEMON_S,
        tick_s=None if zone.problem else TICK_S,
        uncertainty=None if zone.problem else UNCERTAINTY[kind],
        limit_w=zone.limit_w,
        note=note,
    )


def _zone(path: Path, uid: str, kind: DeviceKind, name: str, root: Path) -> RaplZone:
    device = Device(uid=uid, kind=kind, name=name)
    problem = ""
    range_j = 0.0
    file = path / "energy_uj"
    try:
        int(file.read_text())
        file = path / "max_energy_range_uj"
        range_j = int(file.read_text()) / UJ_PER_J
        if range_j <= 0:
            problem = f"{file} says {range_j:g}; the counter's range must be positive"
    except PermissionError:
        problem = f"cannot read {file}: {DENIED}. {REMEDY.format(root=root)}"
    except (OSError, ValueError) as error:
        problem = f"cannot read {file}: {error}"
    return RaplZone(path=path, device=device, range_j=range_j, limit_w=_limit_w(path), problem=problem)


def _limit_w(zone: Path) -> float | None:
    """Return the highest limit that the processor keeps over seconds (W): its long or its short one.

    None where it keeps none: limits are switched off, or above what any package draws, as some mainboards set them.
    """
    if text_of(zone / "enabled") != "1":
        return None
    stated_w = [0.0]
    for name in zone.glob("constraint_*_name"):
        limit_uw = text_of(zone / name.name.replace("_name", "_power_limit_uw"))
        if text_of(name) in ("long_term", "short_term") and limit_uw.isdigit():
            stated_w.append(int(limit_uw) / UJ_PER_J)
    return max(stated_w) if 0 < max(stated_w) <= MAX_ZONE_W else None


def _amd_limit_w(cpuinfo: str) -> float | None:
    """Return what an AMD package of the name in /proc/cpuinfo draws at most (W); None for others and unknown ones."""
    found = listed_tdp(cpu_field(cpuinfo, "model name")) if cpu_field(cpuinfo, "vendor_id") == "AuthenticAMD" else None
    return None if found is None else PPT_PER_TDP * found[1]


def _mirrored(zone: RaplZone, packages: list[tuple[str, int]]) -> bool:
    raw_uj = int(text_of(zone.path / "energy_uj") or 0)
    if any(raw_uj > 0 and abs(raw_uj - other_uj) <= _MIRROR_UJ for _, other_uj in packages):
        return True
    packages.append((zone.device.uid, raw_uj))
    return False


def _children(folder: Path, pattern: re.Pattern[str]) -> list[Path]:
    try:
        names = [name for name in os.listdir(folder) if pattern.fullmatch(name)]
    except OSError:
        return []
    return [folder / name for name in sorted(names, key=lambda name: [int(n) for n in name.split(":")[1:]])]
