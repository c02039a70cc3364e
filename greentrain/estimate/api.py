"""One call from a model and a cluster to hours, energy, carbon and money, as ranges with their reasons.

from greentrain.estimate.api import estimate
found = estimate(shapes.find("llama-3-8b"), Workload(tokens=15e12), Cluster(device="h100", count=1024, zone="FRA"))
found.operational.location_g.mid, found.embodied_g, found.assumptions
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from greentrain.errors import ConfigError
from greentrain.estimate import hardware, hours
from greentrain.estimate.carbon import (
    LIFETIME_YEARS,
    Operational,
    Signal,
    embodied_hour,
    independent,
    intensity,
    operational,
    sci_ranges,
    signal_of,
)
from greentrain.estimate.cluster import Cluster
from greentrain.estimate.hardware import Accelerator
from greentrain.estimate.hours import AUTO, Hours
from greentrain.estimate.mfu import GAINS, fp8_speedup, peak_of
from greentrain.estimate.model_shape import ModelShape
from greentrain.estimate.money import Money, RunPrices, money
from greentrain.estimate.power_model import watts
from greentrain.estimate.relations import DEVICES, ZONES, RunGrams, relations, start_hours
from greentrain.estimate.result import Estimate
from greentrain.estimate.values import Assumption, Range
from greentrain.estimate.workload import Workload
from greentrain.types import Gear
from greentrain.utils.quantities import SourceKind
from greentrain.utils.validation import bound, choice


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What else an estimate may be told."""

    start: datetime | None = None
    """When the run begins, with its offset; None: at any time."""
    embodied: str = "lca"
    """``lca`` or ``act``."""
    lifetime_years: float = LIFETIME_YEARS
    infrastructure_share: float = 0.0
    """Energy of networks and storage, as a share of the servers'."""
    node_w: float | None = None
    """Power of a device and its share of the server (W), where it is known."""
    prices: RunPrices = dataclasses.field(default_factory=RunPrices)
    devices_file: Path | None = None
    """YAML of devices of one's own."""
    year: int | None = None
    """Of the run, for those of the past."""
    compare_devices: Sequence[str] = DEVICES
    compare_zones: Sequence[str] = ZONES

    def __post_init__(self) -> None:
        if self.start is not None and self.start.tzinfo is None:
            raise ConfigError(
                f"start is {self.start.isoformat()}, without a time zone: give one, as in datetime(2026, 12, 1, 22,"
                " tzinfo=UTC)"
            )


def estimate(
    shape: ModelShape,
    workload: Workload,
    cluster: Cluster,
    *,
    method: str = AUTO,
    pilot: Path | None = None,
    options: Options | None = None,
) -> Estimate:
    """Estimate a training run.

    Args:
        shape: The model.
        workload: Tokens, sequence, batch and precision of the training.
        cluster: Devices, their number or a time limit, and the place.
        method: ``mfu``: what published runs reached; ``roofline``: search over layouts; ``blend``: the middle of both;
            ``pilot``: a short run's speed; ``auto``: ``pilot`` with a pilot's folder, ``blend`` where a layout can be
            searched, else ``mfu`` with a warning that says why.
        pilot: The short run's folder, for ``pilot`` and ``auto``.
        options: Prices, start, what the embodied carbon is taken from.

    Raises:
        ConfigError: An input is wrong, or contradicts another.
        CarbonSignalError: The zone is not in the tables, or the trace is malformed.
    """
    choice("method", method, (AUTO, *hours.METHODS))
    if method == AUTO and pilot is not None:
        method = "pilot"
    if (method == "pilot") != (pilot is not None):
        raise ConfigError(f"method={method!r} and pilot={pilot}: a pilot's folder goes with method='pilot'")
    options = options or Options()
    if options.year is not None:
        bound("year", options.year, 2012, 2100)
    catalogue = hardware.catalogue(options.devices_file)
    device = catalogue.find(cluster.device)
    signal = signal_of(cluster)
    if pilot is not None:
        found = hours.by_pilot(shape, workload, cluster, device, pilot, known=catalogue)
    else:
        found = _BY[method](shape, workload, cluster, device, year=options.year)
    core = _core(found, workload, cluster, device, signal, options)

    modelled = dataclasses.replace(options, node_w=None)

    def again(work: Workload, there: Cluster) -> RunGrams:
        other = catalogue.find(there.device)
        by_table = hours.by_mfu(shape, work, there, other, year=options.year)
        same_grid = (there.zone, there.g_per_kwh, there.trace_csv) == (
            cluster.zone,
            cluster.g_per_kwh,
            cluster.trace_csv,
        )
        found = _core(by_table, work, there, other, signal if same_grid else signal_of(there), modelled)
        return RunGrams(
            operational=found.operational.location_g.mid,
            embodied=found.embodied_g.mid if found.embodied_g else None,
            notes=tuple(
                note for note in by_table.warnings if note not in hours.late(there, by_table.gpu_hours, by_table.count)
            ),
            grid=found.grid,
        )

    others = [catalogue.find(name) for name in options.compare_devices]
    its_g = core.operational.location_g.mid
    share = its_g / ((its_g + (core.embodied_g.mid if core.embodied_g else 0.0)) or 1.0)
    return Estimate(
        shape=shape,
        workload=workload,
        cluster=cluster,
        device=device,
        method=found.method,
        count=found.count,
        gpu_hours=found.gpu_hours,
        duration_h=core.duration_h,
        mfu=found.mfu,
        node_w=core.node_w,
        operational=core.operational,
        embodied_g=core.embodied_g,
        sci=tuple(sci_ranges(shape, workload.tokens, core.operational.location_g, core.embodied_g)),
        money=core.money,
        layout=found.layout,
        memory_bytes=found.memory_bytes,
        assumptions=(*_inputs(workload), *found.assumptions, *core.assumptions),
        warnings=(*_precision(workload, device, found.method), *found.warnings, *core.warnings),
        relations=(
            *relations(workload, cluster, again=again, device=device, others=others, zones=options.compare_zones),
            *start_hours(signal, core.duration_h.mid, options.start, share),
        ),
    )


_BY: Final[Mapping[str, Callable[..., Hours]]] = {
    AUTO: hours.by_auto,
    "blend": hours.by_blend,
    "mfu": hours.by_mfu,
    "roofline": hours.by_roofline,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Core:
    """What follows from device-hours."""

    duration_h: Range
    node_w: Range
    operational: Operational
    embodied_g: Range | None
    money: Money
    grid: str
    assumptions: tuple[Assumption, ...]
    warnings: tuple[str, ...]


def _core(
    found: Hours, workload: Workload, cluster: Cluster, device: Accelerator, signal: Signal, options: Options
) -> _Core:
    said: list[Assumption] = []
    duration_h = found.gpu_hours.times(1.0 / found.count)
    if options.node_w is not None:
        bound("node_w", options.node_w, 1e-3, 1e6)
        node_w = Range.exactly(options.node_w)
        said.append(Assumption(name="power", value=f"{node_w.mid:g} W a device", source="given", kind=SourceKind.GIVEN))
    elif found.node_w is not None:
        node_w = found.node_w
    else:
        low = workload.precision if workload.precision.is_low else None
        gain = fp8_speedup(device, low).mid if low else 1.0
        modelled = watts(device, found.mfu / gain)  # the watts of 16 bit: nobody metered FP8, and the others are ratios
        node_w = modelled.node_w.times(GAINS[low][1] if low else 1.0)
        said += modelled.assumptions
    grid = intensity(signal, duration_h.mid, options.start)
    used = operational(
        device_hours=found.gpu_hours,
        node_w=node_w,
        found=grid,
        cluster=cluster,
        infrastructure_share=options.infrastructure_share,
    )
    made = embodied_hour(device, method=options.embodied, lifetime_years=options.lifetime_years)
    paid = money(device, found.gpu_hours, used.facility_kwh, options.prices)
    return _Core(
        duration_h=duration_h,
        node_w=node_w,
        operational=used,
        embodied_g=None if made.g_per_h is None else independent([found.gpu_hours, made.g_per_h]),
        money=paid,
        grid=f"{float(f'{grid.g_per_kwh.mid:.2g}'):g} g/kWh: {grid.said_by}",
        assumptions=(*said, *used.assumptions, *made.assumptions, *paid.assumptions),
        warnings=(*grid.warnings, *made.warnings),
    )


def _precision(workload: Workload, device: Accelerator, method: str) -> tuple[str, ...]:
    """Return a warning where another precision stands in for the workload's, or nobody published a run in it."""
    if workload.precision in (Gear.BF16, Gear.FP16) and workload.precision not in device.peak_flop_s:
        _, gear = peak_of(device, workload.precision)
        return (f"{device.name} has no {workload.precision}: the peak in {gear} is taken",)
    if workload.precision is Gear.FP32 and method != "pilot":
        return ("the published runs are in 16 bit: the share of the peak that they reached is taken for fp32 too",)
    return ()


def _inputs(workload: Workload) -> tuple[Assumption, ...]:
    """Return the defaults among the inputs."""
    defaults = {field.name: field.default for field in dataclasses.fields(Workload)}
    return tuple(
        Assumption(
            name=name.replace("_", " "),
            value=f"{value:g}{unit}" if isinstance(value, (int, float)) else f"{value}",
            source="default",
            kind=SourceKind.ASSUMED,
        )
        for name, value, unit in (
            ("sequence", workload.sequence, " tokens"),
            ("batch_tokens", workload.batch_tokens, " tokens"),
            ("precision", workload.precision, ""),
        )
        if value == defaults[name]
    )
