"""Which meters a machine has: opens those of a configuration, and says why the others cannot be used.

The one meter of a run: what the configuration names, or the caller's own, and the meters beside it.

The meter of a run that measures nothing.
"""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from greentrain.config.schema import PowerConfig
from greentrain.errors import ConfigError, MeterError, MissingExtraError
from greentrain.power.claims import claims_dir, other_pids
from greentrain.power.composite import CompositeMeter
from greentrain.power.rapl import RaplMeter, find_zones
from greentrain.types import DeviceKind, PowerMeter, PowerSample, Provenance, Sensor, Topology
from greentrain.utils.clock import Clock

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
        topology: Where this process stands among the ranks of its node.
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
    from greentrain.power.composite import Borrowed, CompositeMeter

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
