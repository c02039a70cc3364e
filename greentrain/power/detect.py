"""Which meters a machine has: opens those of a configuration, and says why the others cannot be used.

The meter of a run is what the configuration names, or the caller's own, and the meters beside it, as one meter that
reads each of them at its own pace (:class:`CompositeMeter`).
"""

import contextlib
import dataclasses
import functools
import os
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from greentrain.config.schema import PowerConfig
from greentrain.errors import ConfigError, GreenTrainWarning, MeterError, MissingExtraError
from greentrain.power.claims import claims_dir, other_pids
from greentrain.power.rapl import RaplMeter, find_zones
from greentrain.types import Counter, DeviceKind, PowerMeter, PowerSample, Provenance, Sensor, Topology
from greentrain.utils.clock import Clock, SystemClock

EARLY: float = 0.9
"""A member is due when this share of its period has passed: a timer that wakes a little early skips no read."""


class CompositeMeter:
    """The union of several meters' sensors.

    ``read`` returns the samples of the members that are due, so not every sensor each time. A member that raises,
    against its contract, gives failed samples and one warning.

    Args:
        meters: The members. Where two have the same device, the first one's sensor is used.
        clock: Time.
    """

    def __init__(self, meters: Sequence[PowerMeter], *, clock: Clock | None = None) -> None:
        clock = clock or SystemClock()
        seen: set[str] = set()
        self._members: list[_Member] = []
        for meter in meters:
            uids = [s.device.uid for s in meter.sensors if s.device.uid not in seen]
            seen.update(uids)
            self._members.append(_Member(meter, tuple(dict.fromkeys(uids)), clock))

    @property
    def meters(self) -> Sequence[PowerMeter]:
        """The members."""
        return [member.meter for member in self._members]

    @property
    def sensors(self) -> Sequence[Sensor]:
        """The sensors of all members, in their order."""
        return [sensor for member in self._members for sensor in member.sensors()]

    def read(self) -> Sequence[PowerSample]:
        """Read the members whose period has passed."""
        return [sample for member in self._members if member.due() for sample in member.read()]

    def read_all(self) -> Sequence[PowerSample]:
        """Read every member now, due or not: at the end of a run."""
        return [sample for member in self._members for sample in member.read()]

    def select(self, uids: Collection[str]) -> None:
        """Tell the members which devices are still wanted; one of which none is wanted is not read."""
        for member in self._members:
            member.select(uids)

    def counters(self) -> Sequence[Counter]:
        """Return the counters of all members that may be read directly."""
        return [counter for member in self._members for counter in member.counters()]

    def probe(self) -> None:
        """Let the members that can find out how fast their sensors tick and what a read costs."""
        for member in self._members:
            member.probe()

    def close(self) -> None:
        """Close all members. Idempotent."""
        for member in self._members:
            member.close()


class Borrowed:
    """A meter whose owner is somebody else, who closes it: an offload device that outlives the run.

    Args:
        meter: Meter that somebody else owns and closes.
    """

    def __init__(self, meter: PowerMeter) -> None:
        self._meter = meter

    @property
    def sensors(self) -> Sequence[Sensor]:
        """The other's."""
        return self._meter.sensors

    def read(self) -> Sequence[PowerSample]:
        """Read the other's."""
        return self._meter.read()

    def close(self) -> None:
        """Leave the meter open."""


class _Member:
    def __init__(self, meter: PowerMeter, uids: tuple[str, ...], clock: Clock) -> None:
        self.meter = meter
        self._uids = uids
        self._clock = clock
        self._last_s: float | None = None
        self._warned = False
        self._idle = False
        self._sensors = self._kept(meter.sensors)
        self._period_s = min((s.period_s for s in self._sensors), default=0.0)

    def sensors(self) -> Sequence[Sensor]:
        with self._guard("naming its sensors"):
            self._sensors = self._kept(self.meter.sensors)
            self._period_s = min((s.period_s for s in self._sensors), default=0.0)
        return self._sensors

    def due(self) -> bool:
        if self._last_s is None:
            return True
        return not self._idle and self._clock.monotonic_s() - self._last_s >= EARLY * self._period_s

    def read(self) -> Sequence[PowerSample]:
        if not self._uids:
            return ()
        self._last_s = self._clock.monotonic_s()
        try:
            return [sample for sample in self.meter.read() if sample.device_uid in self._uids]
        except Exception as error:
            self._warn("reading", error)
            note = f"{type(self.meter).__name__} failed: {error!r}"
            return [PowerSample(device_uid=uid, t_s=self._last_s, note=note) for uid in self._uids]

    def select(self, uids: Collection[str]) -> None:
        self._idle = not any(uid in uids for uid in self._uids)
        select = getattr(self.meter, "select", None)
        if select is not None:
            with self._guard("selecting devices"):
                select(uids)

    def counters(self) -> Sequence[Counter]:
        counters = getattr(self.meter, "counters", None)
        if counters is not None and not self._idle:
            with self._guard("listing its counters"):
                return [counter for counter in counters() if counter.device_uid in self._uids]
        return ()

    def probe(self) -> None:
        probe = getattr(self.meter, "probe", None)
        if probe is not None and self._uids:
            with self._guard("probing"):
                probe()
            self.sensors()

    def close(self) -> None:
        with self._guard("closing"):
            self.meter.close()

    def _kept(self, sensors: Sequence[Sensor]) -> Sequence[Sensor]:
        return [sensor for sensor in sensors if sensor.device.uid in self._uids]

    @contextlib.contextmanager
    def _guard(self, action: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._warn(action, error)

    def _warn(self, action: str, error: Exception) -> None:
        if self._warned:
            return
        self._warned = True
        text = f"GreenTrain: {type(self.meter).__name__} failed while {action} ({error!r}); training goes on"
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
    root_pid: int | None = None,
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
        root_pid: Top of the process tree that the model charges; None is this process.
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
                with contextlib.suppress(MeterError):
                    meters.append(_open(name, config, environ, clock))
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
    for name, value in (("prometheus", config.prometheus_url), ("replay", config.replay_csv)):
        if value is not None:
            findings.extend(_survey_one(name, config, environ))
    return findings


def _names(config: PowerConfig) -> tuple[str, ...]:
    return (config.meters,) if isinstance(config.meters, str) else tuple(dict.fromkeys(config.meters))


def _open(name: str, config: PowerConfig, environ: Mapping[str, str] | None, clock: Clock | None) -> PowerMeter:
    if name == "nvml":
        from greentrain.power.nvml import NvmlMeter

        return NvmlMeter(os.environ if environ is None else environ, clock=clock)
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
    if name == "null":
        return NullMeter()
    raise ConfigError(f"power.meters names {name!r}, which cannot be opened without its setting")


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
    root_pid: int | None,
    excluded_pids: Callable[[], Collection[int]],
    clock: Clock | None,
) -> Sequence[PowerMeter]:
    from greentrain.power.cpu_model import CpuModelMeter

    known = {s.device.kind for meter in meters for s in meter.sensors if s.provenance is not Provenance.MISSING}
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
    "rapl": "CPU packages and memory",
    "cpu_model": "CPU and memory, modelled",
    "prometheus": "CPU, memory and GPUs as seen by Kepler",
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
    """Has no sensors."""

    @property
    def sensors(self) -> Sequence[Sensor]:
        """Nothing."""
        return ()

    def read(self) -> Sequence[PowerSample]:
        """Return nothing."""
        return ()

    def close(self) -> None:
        """Do nothing."""
