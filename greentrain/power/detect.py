"""Which meters a machine has: opens those of a configuration, and says why the others cannot be used.

The meter of a run is what the configuration names, or the caller's own, and the meters beside it, as one meter that
reads each of them at its own pace (:class:`CompositeMeter`).
"""

import contextlib
import dataclasses
import functools
import importlib.util
import os
import socket
import sys
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from greentrain.config.schema import NODE_METERS, PowerConfig
from greentrain.errors import ConfigError, GreenTrainWarning, MeterError, MissingExtraError
from greentrain.power.claims import claims_dir, other_pids
from greentrain.power.rapl import RaplMeter, find_zones
from greentrain.types import Counter, Device, DeviceKind, PowerMeter, PowerSample, Provenance, Sensor, Topology
from greentrain.utils.clock import Clock, SystemClock
from greentrain.utils.never_raise import warn

EARLY: Final = 0.9
"""A part is due when this share of its pace has passed: a timer that wakes a little early skips no read."""
MAX_SHARE: Final = 0.001
"""Highest share of one core that reading may cost; a slow sensor is read less often."""
MAX_PACE_S: Final = 10.0
"""Longest time between two readings (s), whatever they cost."""
TIMED_S: Final = 1.0
"""Reads as rare as this (s) are timed each: their cost grows with the machine's processes. Those of fast counters are
not, as a probe knows better what they cost in a row."""
COST_GROWTH: Final = 1.25
"""Largest growth of a read's known cost from one read to the next: one that was interrupted says little."""


class CompositeMeter:
    """The union of several meters' sensors.

    ``read`` returns the samples of the parts that are due, so not every sensor each time. A meter that raises,
    against its contract, gives failed samples and one warning.

    Args:
        meters: The members. Where two have the same device, the first one's sensor is used.
        clock: Time.
    """

    def __init__(self, meters: Sequence[PowerMeter], *, clock: Clock | None = None) -> None:
        clock = clock or SystemClock()
        self.meters = tuple(meters)
        """The members."""
        self.parts: list[MeterPart] = []
        """What is read on its own: each device of a member that can be split, other members whole."""
        self._guard = _Guard()
        seen: set[str] = set()
        for meter in meters:
            split = getattr(meter, "split", None)
            for part in [meter] if split is None else split():
                uids = tuple(dict.fromkeys(s.device.uid for s in part.sensors if s.device.uid not in seen))
                seen.update(uids)
                self.parts.append(MeterPart(part, uids, clock, self._guard))

    @property
    def sensors(self) -> Sequence[Sensor]:
        """The sensors of all members, in their order."""
        return [sensor for part in self.parts for sensor in part.sensors()]

    def read(self) -> Sequence[PowerSample]:
        """Read the parts whose period has passed."""
        return [sample for part in self.parts if part.due() for sample in part.read()]

    def select(self, uids: Collection[str]) -> None:
        """Tell the members which devices are still wanted; a part of which none is wanted is not read."""
        for part in self.parts:
            part.idle = not any(uid in uids for uid in part.uids)
        self._call("select", "selecting devices", uids)

    def probe(self) -> None:
        """Let the members that can find out how fast their sensors tick and what a read costs."""
        if any(part.uids for part in self.parts):
            self._call("probe", "probing")

    def close(self) -> None:
        """Close all members. Idempotent."""
        self._call("close", "closing")

    def _call(self, method: str, action: str, *args: object) -> None:
        """Call a method of all members that have it."""
        for meter in self.meters:
            call = getattr(meter, method, None)
            if call is not None:
                with self._guard(meter, action):
                    call(*args)


class Borrowed:
    """A meter whose owner is somebody else, who closes it: an offload device that outlives the run.

    Args:
        meter: Meter that somebody else owns and closes.
    """

    def __init__(self, meter: PowerMeter) -> None:
        self._meter = meter
        self.states = getattr(meter, "states", tuple)
        """The other's."""

    @property
    def sensors(self) -> Sequence[Sensor]:
        """The other's."""
        return self._meter.sensors

    def read(self) -> Sequence[PowerSample]:
        """Read the other's."""
        return self._meter.read()

    def close(self) -> None:
        """Leave the meter open."""


class MeterPart:
    """What is read in one go, at its own pace, and may hang alone: one GPU, or a meter that is not split.

    Args:
        meter: Read here, closed by its owner.
        uids: Devices that are read; what else the meter says is left out.
        clock: Time.
        guard: Turns what the meter raises into one warning.
    """

    def __init__(self, meter: PowerMeter, uids: Sequence[str], clock: Clock, guard: "_Guard | None" = None) -> None:
        self.meter = meter
        self.uids = uids
        self.idle = False
        """Nobody wants any of its devices."""
        self._clock = clock
        self._guard = guard or _Guard()
        self._last_s: float | None = None
        self._cost_s = 0.0
        self._period_s = 0.0
        self._sensors: Sequence[Sensor] = ()
        self.sensors()

    def sensors(self) -> Sequence[Sensor]:
        """Return the sensors as they are known now; the last ones that were named where the meter raises."""
        with self._guard(self.meter, "naming its sensors"):
            self._sensors = [sensor for sensor in self.meter.sensors if sensor.device.uid in self.uids]
            self._period_s = min((sensor.period_s for sensor in self._sensors), default=0.0)
        return self._sensors

    @property
    def cost_s(self) -> float:
        """CPU time of one read (s): as it was of late where reads are rare, else as probed."""
        return self._cost_s or sum(sensor.read_cost_s or 0.0 for sensor in self._sensors)

    @property
    def pace_s(self) -> float:
        """How often it is read (s): as its fastest sensor asks, more rarely where that would cost too much."""
        return max(self._period_s, min(self.cost_s / MAX_SHARE, MAX_PACE_S))

    def due(self) -> bool:
        """Return True if its pace asks for a read now."""
        if self._last_s is None:
            return True
        return not self.idle and self._clock.monotonic_s() - self._last_s >= EARLY * self.pace_s

    def read(self) -> Sequence[PowerSample]:
        """Read it once. Whatever the meter does, this returns: failed samples where it raised or gave no samples."""
        if not self.uids:
            return ()
        self._last_s = self._clock.monotonic_s()
        start_s = time.thread_time()
        try:
            samples = [sample for sample in self.meter.read() if sample.device_uid in self.uids]
            for sample in samples:
                if not isinstance(sample, PowerSample):
                    raise TypeError(f"{sample!r} is no PowerSample")
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit of a library too, and a panic of native code: training goes on
            self._guard.warn(self.meter, "reading", error)
            note = f"{type(self.meter).__name__} failed: {error!r}"
            return [PowerSample(device_uid=uid, t_s=self._last_s, note=note) for uid in self.uids]
        if self._period_s >= TIMED_S:
            cost_s = time.thread_time() - start_s
            self._cost_s = min(cost_s, COST_GROWTH * self._cost_s) if self._cost_s else cost_s
        return samples

    def counters(self) -> Sequence[Counter]:
        """Return its counters that may be read directly."""
        counters = getattr(self.meter, "counters", None)
        if counters is not None and not self.idle:
            with self._guard(self.meter, "listing its counters"):
                return [counter for counter in counters() if counter.device_uid in self.uids]
        return ()


class _Guard:
    """Turns what meters raise against their contract into one warning a meter."""

    def __init__(self) -> None:
        self._warned: set[int] = set()

    @contextlib.contextmanager
    def __call__(self, meter: PowerMeter, action: str) -> Iterator[None]:
        try:
            yield
        except (Exception, SystemExit) as error:
            self.warn(meter, action, error)

    def warn(self, meter: PowerMeter, action: str, error: BaseException) -> None:
        if id(meter) not in self._warned:
            self._warned.add(id(meter))
            text = f"GreenTrain: {type(meter).__name__} failed while {action} ({error!r}); training goes on"
            with contextlib.suppress(GreenTrainWarning):
                warnings.warn(text, GreenTrainWarning, stacklevel=4)


MODELLED_KINDS = (DeviceKind.CPU, DeviceKind.DRAM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What ``greentrain doctor`` says about one sensor or one meter."""

    meter: str
    """Name in power.meters."""
    device: str
    """What it measures, or would."""
    usable: bool
    provenance: Provenance
    detail: str
    """How it is read, or why it is not, and the remedy."""
    uncertainty: float | None = None
    """Relative uncertainty of long totals; None where nobody states one."""
    uid: str = ""


def open_meters(
    config: PowerConfig,
    *,
    topology: Topology | None = None,
    root_pid: int | Callable[[], int | None] | None = None,
    excluded_pids: Callable[[], Collection[int]] = frozenset,
    environ: Mapping[str, str] | None = None,
    clock: Clock | None = None,
) -> CompositeMeter:
    """Open the meters of a configuration.

    ``auto`` opens NVML and RAPL where they answer, and models CPU and memory where nothing measures them; a sensor
    that is there but cannot be read is named in the note of what stands in for it. A list opens exactly its meters;
    ``cpu_model`` beside others models only what they do not measure, so that no joule is booked twice.

    Args:
        config: Section ``power``.
        topology: Place of this process among the ranks of its node.
        root_pid: Top of the process tree that the model charges; None is this process. A function returns it later,
            where the process has not begun yet.
        excluded_pids: Called at each read of the model: processes whose own meters book them.
        environ: Environment variables; None: those of the process.
        clock: Time.

    Raises:
        MeterError: A meter that is named cannot be opened; says why and what to do.
        MissingExtraError: A named meter needs a package that is not installed.
    """
    auto = config.meters == "auto"
    names = ("nvml", "rapl", "cpu_model") if auto else _names(config)
    meters: list[PowerMeter] = []
    notes: dict[DeviceKind, str] = {}
    try:
        for name in names:
            if name == "cpu_model":
                continue
            if not auto:
                meters.append(_open(name, config, environ, clock))
            elif name == "rapl":
                meters.extend(_rapl_where_readable(config, notes, clock))
            else:
                meters.extend(_gpus_where_they_answer(config, environ, clock))
        if "cpu_model" in names:
            meters.extend(_model(config, meters, notes, topology, root_pid, excluded_pids, clock))
    except BaseException:
        for meter in meters:
            meter.close()
        raise
    return CompositeMeter(meters, clock=clock)


def survey(config: PowerConfig | None = None, *, environ: Mapping[str, str] | None = None) -> list[Finding]:
    """Try every meter and say what it gives, or why not and what to do. Never raises for what the machine lacks."""
    config = config or PowerConfig()
    findings = [*_survey_nvml(environ), *_survey_rapl(config)]
    measured = {f.uid.partition(":")[2].partition("-")[0] for f in findings if f.usable and f.meter == "rapl"}
    stand_in = "used for what has no sensor" if len(measured) < 2 else "not needed, RAPL measures CPU and memory"
    for finding in _survey_one("cpu_model", config, environ):
        findings.append(dataclasses.replace(finding, detail=f"{finding.detail} ({stand_in})"))
    for name, value in (
        *(
            (n, n in _names(config) or _is_installed(bindings or n) or Path(place).exists() or None)
            for n, (bindings, _, place) in _OTHERS.items()
        ),
        ("prometheus", config.prometheus_url),
        ("redfish", config.redfish_url),
        ("ipmi", "ipmi" in _names(config) or None),
        ("replay", config.replay_csv),
    ):
        if value is not None:
            findings.extend(_survey_one(name, config, environ))
    return findings


def _names(config: PowerConfig) -> tuple[str, ...]:
    return (config.meters,) if isinstance(config.meters, str) else tuple(dict.fromkeys(config.meters))


def _named_gpus(config: PowerConfig) -> Sequence[str]:
    return () if config.gpus in (None, ("all",), ("used",)) else config.gpus


def _open(name: str, config: PowerConfig, environ: Mapping[str, str] | None, clock: Clock | None) -> PowerMeter:
    named = _named_gpus(config)
    if name == "nvml":
        from greentrain.power.nvml import NvmlMeter

        return NvmlMeter(os.environ if environ is None else environ, clock=clock, gpus=named, split=config.split)
    if name == "amd":
        from greentrain.power.amd import AmdMeter

        return AmdMeter(environ, clock=clock, gpus=named)
    if name == "intel":
        from greentrain.power.intel import IntelMeter

        return IntelMeter(environ, clock=clock, gpus=named)
    if name in ("apple", "jetson"):
        from greentrain.power.soc import AppleMeter, JetsonMeter

        return AppleMeter(clock=clock) if name == "apple" else JetsonMeter(clock=clock)
    if name == "rapl":
        return RaplMeter(config.rapl_root, clock=clock)
    if name == "cpu_model":
        from greentrain.power.cpu_model import CpuModelMeter

        return CpuModelMeter(scope=config.cpu_scope, tdp_w=config.cpu_tdp_w, clock=clock)
    if name == "prometheus" and config.prometheus_url is not None:
        from greentrain.power.prometheus import PrometheusMeter

        return PrometheusMeter(config.prometheus_url, config.prometheus_query, clock=clock)
    if name == "replay" and config.replay_csv is not None:
        from greentrain.power.replay import ReplayMeter

        return ReplayMeter(config.replay_csv, clock=clock)
    if name in NODE_METERS:
        from greentrain.power.node import NodeMeter, dcmi, redfish

        url = config.redfish_url if name == "redfish" else None
        read_w = dcmi() if url is None else redfish(url, config.redfish_chassis, environ=environ)
        reference = bool(set(_names(config)) - {name, "null"}) and name in _names(config)
        return NodeMeter(name, read_w, host=socket.gethostname(), reference=reference, clock=clock)
    if name == "null":
        return NullMeter()
    raise ConfigError(f"power.meters names {name!r}, which cannot be opened without its setting")


_OTHERS: Mapping[str, tuple[str, str, str]] = {
    "amd": ("amdsmi", "hip", "/sys/module/amdgpu"),
    "intel": ("pyzes", "xpu", "/sys/module/xe"),
    "apple": ("zeus_apple_silicon", "", "/System/Library/CoreServices"),
    "jetson": ("", "", "/sys/bus/i2c/drivers/ina3221"),
}
"""Of each meter beside NVML: its bindings, the name of a torch that is built for it, and a path that tells of it."""


def _gpus_where_they_answer(
    config: PowerConfig, environ: Mapping[str, str] | None, clock: Clock | None
) -> Sequence[PowerMeter]:
    """Open what reads GPUs where there is any; one that hangs, or that torch is built for, is missing and said so."""
    refused: dict[str, MeterError | MissingExtraError] = {}
    for name in ("jetson", "nvml", "amd", "intel", "apple"):
        bindings, built_for, _ = _OTHERS.get(name, ("", "", ""))
        torch = sys.modules.get("torch")
        used = bool(built_for and torch is not None and getattr(torch.version, built_for, None))
        if bindings and not used and not _is_installed(bindings):
            continue
        try:
            return [_open(name, config, environ, clock)]
        except (MeterError, MissingExtraError) as error:
            if _named_gpus(config):  # kept where it may be raised: what its frames hold lives as long as they do
                refused[name] = error
                continue
            if not (used or isinstance(error.__cause__, TimeoutError)):
                continue
            warn(f"GPUs are not measured: {error}")
            device, missing = Device(uid=name, kind=DeviceKind.GPU, name=_WHAT[name]), Provenance.MISSING
            return [NullMeter(Sensor(device=device, provenance=missing, method="none", period_s=10.0, note=str(error)))]
    if _named_gpus(config):
        raise refused["nvml"]
    return []


def _is_installed(module: str) -> bool:
    return module in sys.modules or importlib.util.find_spec(module) is not None


def _rapl_where_readable(
    config: PowerConfig, notes: dict[DeviceKind, str], clock: Clock | None
) -> Sequence[PowerMeter]:
    """Open the kinds of counters of which at least one answers; say in ``notes`` why the others are modelled."""
    zones = find_zones(config.rapl_root)
    kinds = {zone.device.kind for zone in zones if not zone.problem}
    for zone in zones:
        if zone.problem and zone.device.kind not in kinds:
            notes.setdefault(zone.device.kind, f"Modelled because RAPL is not readable: {zone.problem}")
    return [RaplMeter(config.rapl_root, strict=False, kinds=kinds, clock=clock)] if kinds else []


def _model(
    config: PowerConfig,
    meters: Sequence[PowerMeter],
    notes: Mapping[DeviceKind, str],
    topology: Topology | None,
    root_pid: int | Callable[[], int | None] | None,
    excluded_pids: Callable[[], Collection[int]],
    clock: Clock | None,
) -> Sequence[PowerMeter]:
    from greentrain.power.cpu_model import CpuModelMeter

    known = {
        s.device.kind
        for meter in meters
        for s in meter.sensors
        if s.provenance is not Provenance.MISSING and not s.reference
    }.union(*(getattr(meter, "covers", ()) for meter in meters))
    kinds = [kind for kind in MODELLED_KINDS if kind not in known and DeviceKind.NODE not in known]
    if not kinds:
        return []
    place = topology or Topology()
    return [
        CpuModelMeter(
            scope=config.cpu_scope,
            root_pid=root_pid,
            kinds=kinds,
            tdp_w=config.cpu_tdp_w,
            local_world_size=place.local_world_size,
            excluded_pids=excluded_pids,
            notes=notes,
            clock=clock,
        )
    ]


def _survey_nvml(environ: Mapping[str, str] | None) -> list[Finding]:
    from greentrain.power.nvml import survey_nvml

    found = survey_nvml(environ)
    findings = [_finding("nvml", sensor) for sensor in found.sensors]
    if found.driver_version:
        findings = [dataclasses.replace(f, detail=f"driver {found.driver_version}. {f.detail}") for f in findings]
    if found.problem:
        findings.append(_missing("nvml", _WHAT["nvml"], found.problem))
    seen = {sensor.device.uid for sensor in found.sensors}
    for gpu in found.gpus:
        if gpu.uid not in seen:
            why = gpu.problem or "not visible to this process: see CUDA_VISIBLE_DEVICES"
            findings.append(_missing("nvml", gpu.name, why, gpu.uid))
    return findings


def _survey_rapl(config: PowerConfig) -> list[Finding]:
    zones = find_zones(config.rapl_root)
    if not zones:
        return _survey_one("rapl", config, None)
    meter = RaplMeter(config.rapl_root, strict=False)
    try:
        return [_finding("rapl", sensor) for sensor in meter.sensors]
    finally:
        meter.close()


def _survey_one(name: str, config: PowerConfig, environ: Mapping[str, str] | None) -> list[Finding]:
    try:
        meter = _open(name, config, environ, None)
    except (MeterError, MissingExtraError) as error:
        return [_missing(name, _WHAT[name], str(error))]
    try:
        return [_finding(name, sensor) for sensor in meter.sensors]
    finally:
        meter.close()


def _missing(name: str, device: str, why: str, uid: str = "") -> Finding:
    return Finding(meter=name, device=device, usable=False, provenance=Provenance.MISSING, detail=why, uid=uid)


def _finding(name: str, sensor: Sensor) -> Finding:
    usable = sensor.provenance is not Provenance.MISSING
    return Finding(
        meter=name,
        device=sensor.device.name,
        usable=usable,
        provenance=sensor.provenance,
        detail=f"{sensor.method}. {sensor.note}" if usable and sensor.note else sensor.note or sensor.method,
        uncertainty=sensor.uncertainty,
        uid=sensor.device.uid,
    )


_WHAT: Mapping[str, str] = {
    "nvml": "NVIDIA GPUs",
    "amd": "AMD GPUs",
    "intel": "Intel GPUs",
    "apple": "Apple silicon",
    "jetson": "Jetson rails",
    "rapl": "CPU packages and memory",
    "cpu_model": "CPU and memory, modelled",
    "prometheus": "CPU, memory and GPUs as seen by Kepler",
    "redfish": "the whole node",
    "ipmi": "the whole node",
    "replay": "recorded devices",
}


def open_run_meter(
    config: PowerConfig, place: Topology, clock: Clock, *, own: PowerMeter | None, extra: Sequence[PowerMeter]
) -> PowerMeter:
    """Return the meter of a run that starts.

    Args:
        config: Section ``power``.
        place: Place of this process in the job.
        clock: Time.
        own: Read instead of those the configuration names; None: open these.
        extra: Read beside it, and not closed with it.

    Raises:
        MeterError: A meter that was asked for by name cannot be opened.
    """
    if own is None:
        others = functools.partial(other_pids, claims_dir())
        own = open_meters(config, topology=place, excluded_pids=others, clock=clock)
    if not extra:
        return own

    members = own.meters if isinstance(own, CompositeMeter) else [own]
    return CompositeMeter([*members, *map(Borrowed, extra)], clock=clock)


class NullMeter:
    """Reads nothing.

    Args:
        sensors: Sensors that are missing.
    """

    def __init__(self, *sensors: Sensor) -> None:
        self.sensors: Sequence[Sensor] = sensors
        """What is missing."""

    def read(self) -> Sequence[PowerSample]:
        """Return a failed sample of each sensor."""
        return [PowerSample(device_uid=s.device.uid, t_s=time.monotonic(), note=s.note) for s in self.sensors]

    def close(self) -> None:
        """Do nothing."""
