"""Device-hours by each of the methods, in one form: ``mfu``, ``roofline``, ``blend``, ``pilot`` and ``auto``.

The blend is the geometric mean, with equal weights, of what devices reach of their peak and what runs take beside the
search's optimum: they err in different ways, the table knowing no layout, batch or network, the search no software.
Its interval is ``width`` times as wide (log) as the table's, which knows classes that nobody ran on; the width comes
from families of models left out. ``benchmarks/estimator.py --write`` makes it.

``auto`` takes the blend where a search means something, else the table. On published runs of families left out the
blend errs less than the table where it is told the batch, and more where the batch is a default that starves a large
cluster: ``docs/estimate-benchmarks.md``.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from greentrain.errors import ConfigError
from greentrain.estimate import hardware, mfu
from greentrain.estimate.cluster import Cluster
from greentrain.estimate.hardware import Accelerator, Catalogue
from greentrain.estimate.layouts import Floats, ParallelLayout
from greentrain.estimate.mfu import MfuTable, estimate_mfu
from greentrain.estimate.model_shape import FLOP_PER_PARAMETER_TOKEN, ModelShape
from greentrain.estimate.pilot import Pilot, forecast, read_pilot
from greentrain.estimate.power_model import HOST_SHARE, HOST_SOURCE
from greentrain.estimate.search import Optimum, Takes, search, smallest_count
from greentrain.estimate.values import Assumption, Range
from greentrain.estimate.workload import Workload
from greentrain.types import S_PER_HOUR, DeviceKind, Gear
from greentrain.utils.files import packaged_toml
from greentrain.utils.quantities import SourceKind

WEIGHT: Final = 0.5
"""Of the search's part; set before it was tried."""
_Number = TypeVar("_Number", float, Floats)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blend:
    """What the blend has learnt from published runs."""

    peak: MfuTable
    """Share of the 16-bit peak."""
    optimum: MfuTable
    """Share of real hours that the search's optimum is."""
    width: float
    """Of the interval's logarithm, over that of the table's interval."""

    def hours(self, by_table: Range, optimum_h: float, share: float) -> Range:
        """Return device-hours, 10th and 90th percentile over families that were not seen.

        Args:
            by_table: Device-hours by ``peak``.
            optimum_h: Device-hours of the search's optimum.
            share: The optimum's share of real hours, by ``optimum``.
        """
        mid = middle(by_table.mid, optimum_h / share)
        return Range(
            low=mid * (by_table.low / by_table.mid) ** self.width,
            mid=mid,
            high=mid * (by_table.high / by_table.mid) ** self.width,
        )


def middle(by_table: _Number, by_search: _Number) -> _Number:
    """Return the blend of two times."""
    blended: _Number = by_table ** (1.0 - WEIGHT) * by_search**WEIGHT
    return blended


@functools.cache
def shipped() -> Blend:
    """Return the package's."""
    return Blend(
        peak=mfu.shipped(), optimum=mfu.of_optimum(), width=width(packaged_toml("greentrain.estimate", "blend.toml"))
    )


def width(data: Mapping[str, Any]) -> float:
    """Read the width as ``blend.toml`` has it.

    Raises:
        ConfigError: It is missing.
    """
    if "width" not in data:
        raise ConfigError("blend.toml lacks 'width': make it with benchmarks/estimator.py --write")
    return float(data["width"])


METHODS: Final = ("blend", "mfu", "roofline", "pilot")
SERVER: Final = 8
"""Devices are taken by the server, where a time limit asks for their number."""
_MOST_DEVICES: Final = 10**7
_FLOOR: Final = "the layout is the modelled optimum, its step time what nobody may reach: measure a pilot"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hours:
    """What a method found."""

    method: str
    gpu_hours: Range
    count: int
    """Devices."""
    mfu: float
    """Share of the peak that the devices reach, in the middle; FP8 counts against 16 bit."""
    assumptions: tuple[Assumption, ...]
    warnings: tuple[str, ...]
    node_w: Range | None = None
    """Measured power of a device and its share of the server (W); None: to be modelled."""
    layout: ParallelLayout | None = None
    """The best that was found."""
    memory_bytes: Mapping[str, float] | None = None
    """Of the fullest device in that layout, by term."""


def by_mfu(
    shape: ModelShape,
    workload: Workload,
    cluster: Cluster,
    device: Accelerator,
    *,
    year: int | None = None,
    of: MfuTable | None = None,
) -> Hours:
    """Return device-hours by the table of utilisations; ``of`` replaces the package's."""
    found = estimate_mfu(shape, workload, device, year=year, of=of)
    count, said, warned = _count(cluster, device, lambda _: found.gpu_hours)
    return Hours(
        method="mfu",
        gpu_hours=found.gpu_hours,
        count=count,
        mfu=_reached(shape, workload, device, found.gpu_hours),
        assumptions=(*found.assumptions, *said),
        warnings=(*found.warnings, *warned),
    )


def by_pilot(
    shape: ModelShape,
    workload: Workload,
    cluster: Cluster,
    device: Accelerator,
    folder: Path,
    *,
    known: Catalogue | None = None,
) -> Hours:
    """Return device-hours by the speed of a short run, and its watts where they were read.

    Args:
        shape: The model, as in the pilot.
        workload: Workload of the long run.
        cluster: Devices of the long run; each is taken to be as fast as in the pilot.
        device: Device that the cluster consists of.
        folder: The pilot's run folder.
        known: Devices by name, for what the pilot ran on; None: the table.

    Raises:
        ConfigError: The pilot cannot be read, is faster than the device's peak, or failures keep any number of devices
            from the time limit.
    """
    pilot = read_pilot(folder)

    def gpu_hours(count: int) -> Range:
        if count > _MOST_DEVICES:
            raise ConfigError(
                f"limit_h is {cluster.limit_h:g}, which no number of devices keeps at the pilot's speed: with more of"
                " them failures take more of the time. Give more hours"
            )
        return forecast(pilot, workload.tokens, count=count).gpu_hours

    count, said, warned = _count(cluster, device, gpu_hours)
    found = forecast(pilot, workload.tokens, count=count)
    mfu = _mfu(shape, pilot.tokens_per_s.mid / pilot.devices, device)
    if mfu > 1:
        raise ConfigError(
            f"{folder}: {pilot.tokens_per_s.mid:.3g} tokens/s of {shape.name} are {mfu:.2g} x the peak of"
            f" {pilot.devices} x {device.name}: name the model and the device that the pilot ran"
        )
    if pilot.gears and set(pilot.gears) != {workload.precision.value}:
        ran = " and ".join(pilot.gears)
        warned = (*warned, f"the pilot ran in {ran}, the estimate is in {workload.precision}: hours are the pilot's")
    another, is_its_own = _ran_on(pilot, device, known or hardware.catalogue())
    node_w, power, lacking = _pilot_w(pilot, device) if is_its_own else (None, (), ())
    return Hours(
        method="pilot",
        gpu_hours=found.gpu_hours,
        count=count,
        mfu=mfu,
        assumptions=(*found.assumptions, *said, *power),
        warnings=(*found.warnings, *warned, *lacking, *another),
        node_w=node_w,
    )


def by_roofline(
    shape: ModelShape,
    workload: Workload,
    cluster: Cluster,
    device: Accelerator,
    *,
    year: int | None = None,
    of: MfuTable | None = None,
) -> Hours:
    """Return device-hours of the best layout, times what real runs took beside it: ``of``, or the package's.

    Other arguments are those of :func:`by_blend`.

    Raises:
        ConfigError: Nothing fits into the devices' memory (the largest term is named), or only the size is known.
    """
    of = of or mfu.of_optimum()
    share = of.mfu(device.family, shape.is_moe, shape.active_parameters, year)
    best = _best(shape, workload, cluster, device, lambda _, run_s: run_s / share.mid, "roofline")
    gpu_hours = mfu.one_over(share).times(best.gpu_hours)
    return Hours(
        method="roofline",
        gpu_hours=gpu_hours,
        count=best.count,
        mfu=_reached(shape, workload, device, gpu_hours),
        assumptions=(*_beside_optimum(best, share, of, shape, device), *best.assumptions),
        warnings=(*_no_run(of, shape, device), _FLOOR, *late(cluster, gpu_hours, best.count)),
        layout=best.layout,
        memory_bytes=best.memory_bytes,
    )


def by_blend(
    shape: ModelShape,
    workload: Workload,
    cluster: Cluster,
    device: Accelerator,
    *,
    year: int | None = None,
    of: Blend | None = None,
) -> Hours:
    """Return the geometric mean of device-hours by the table and by the search for a layout.

    Args:
        shape: The model; its layers and widths are known.
        workload: Workload of the run.
        cluster: Number of devices, or the time limit that asks for it.
        device: Device that the cluster consists of.
        year: Year of a run of the past; None: today's software.
        of: Tables learnt from published runs; None: the package's.

    Raises:
        ConfigError: Nothing fits into the devices' memory (the largest term is named), only the size is known, or the
            device has no peak for the workload's precision.
    """
    of = of or shipped()
    table = estimate_mfu(shape, workload, device, year=year, of=of.peak)
    share = of.optimum.mfu(device.family, shape.is_moe, shape.active_parameters, year)
    table_s = table.gpu_hours.mid * S_PER_HOUR

    def takes(count: Floats, run_s: Floats) -> Floats:
        return middle(table_s / count, run_s / share.mid)

    best = _best(shape, workload, cluster, device, takes, "blend")
    gpu_hours = of.hours(table.gpu_hours, best.gpu_hours, share.mid)
    said = Assumption(
        name="blend",
        value=f"geometric mean of {table.gpu_hours.mid:.3g} device-hours by the table and"
        f" {best.gpu_hours / share.mid:.3g} by the layout, equal weights",
        source=f"bounds {of.width:.2f} times as wide (log) as the table's: {of.peak.families} families left out",
        kind=SourceKind.FITTED,
    )
    return Hours(
        method="blend",
        gpu_hours=gpu_hours,
        count=best.count,
        mfu=_reached(shape, workload, device, gpu_hours),
        assumptions=(
            said,
            *table.assumptions,
            *_beside_optimum(best, share, of.optimum, shape, device),
            *best.assumptions,
        ),
        warnings=(*table.warnings, _FLOOR, *late(cluster, gpu_hours, best.count)),
        layout=best.layout,
        memory_bytes=best.memory_bytes,
    )


def _best(
    shape: ModelShape, workload: Workload, cluster: Cluster, device: Accelerator, takes: Takes, method: str
) -> Optimum:
    """Return the best layout on the cluster's devices, or on the fewest that keep its time limit."""
    if shape.sketched:
        raise ConfigError(
            f"method {method!r} needs layers and widths, and of {shape.name} only the size is known: give a name or a"
            f" config.json (--config), or take method 'mfu'"
        )
    if cluster.count is not None:
        return search(shape, workload, device, cluster.count)
    limit_s = (cluster.limit_h or 1.0) * S_PER_HOUR
    return smallest_count(shape, workload, device, limit_s, takes=takes)


def _beside_optimum(
    best: Optimum, share: Range, of: MfuTable, shape: ModelShape, device: Accelerator
) -> tuple[Assumption, ...]:
    """Return the floor, and how far above it real runs are."""
    over = mfu.one_over(share)
    row = of.row(device.family, shape.is_moe)
    kind = "mixtures of experts" if shape.is_moe else "dense"
    return (
        Assumption(
            name="modelled optimum",
            value=f"{best.gpu_hours:.3g} device-hours, MFU {best.mfu:.2f}: {best.layout}",
            source=f"best of {best.fitting} layouts that fit into memory, of {best.tried}",
            kind=SourceKind.FITTED,
        ),
        Assumption(
            name="real runs over the modelled optimum",
            value=f"{over.mid:.2f} x ({over.low:.2f} to {over.high:.2f}, 80 % of unseen families)",
            source=f"{of.runs} published runs of {of.families} families over the optimum of this search, {row.runs} of"
            f" them {kind} on {device.family}; table of {of.made}, shifted by size",
            kind=SourceKind.FITTED,
        ),
    )


def _no_run(of: MfuTable, shape: ModelShape, device: Accelerator) -> tuple[str, ...]:
    """Return a warning where nobody ran this kind of model on this class of devices."""
    if of.row(device.family, shape.is_moe).runs:
        return ()
    kind = "mixture of experts" if shape.is_moe else "dense"
    return (f"no published run in the table is {kind} on {device.family}: its hours over the optimum follow others'",)


def _count(
    cluster: Cluster, device: Accelerator, gpu_hours: Callable[[int], Range]
) -> tuple[int, tuple[Assumption, ...], tuple[str, ...]]:
    """Return the devices, what was assumed for them, and whether the limit is safe.

    Args:
        cluster: Cluster with the number of devices, or with the limit.
        device: Device, whose nodes are taken whole but for parts of one.
        gpu_hours: Returns the device-hours of a number of devices, which do not fall with more of them.
    """
    if cluster.count is not None or cluster.limit_h is None:
        return cluster.count or 1, (), ()
    limit_h, node = cluster.limit_h, min(device.node, SERVER)
    count = next((n for n in range(1, node) if node % n == 0 and gpu_hours(n).mid <= n * limit_h), node)
    while (needed := gpu_hours(count).mid) > count * limit_h:
        count = max(count + node, math.ceil(needed / limit_h / node) * node)
    value = f"{count}, to be done in {limit_h:g} h"
    said = Assumption(name="devices", value=value, source=f"the middle of the hours, by {node}", kind=SourceKind.FITTED)
    return count, (said,), late(cluster, gpu_hours(count), count)


def late(cluster: Cluster, gpu_hours: Range, count: int) -> tuple[str, ...]:
    """Return a warning where a time limit is kept in the middle alone."""
    longest_h = gpu_hours.high / count
    if cluster.limit_h is None or longest_h <= cluster.limit_h:
        return ()
    return (
        f"the limit of {cluster.limit_h:g} h holds for the middle of the hours: one run in ten takes"
        f" {float(f'{longest_h:.2g}'):g} h",
    )


def _reached(shape: ModelShape, workload: Workload, device: Accelerator, gpu_hours: Range) -> float:
    """Return the share of the peak that the middle of device-hours comes to."""
    peak, _ = mfu.peak_of(device, workload.precision)
    flop = FLOP_PER_PARAMETER_TOKEN * shape.active_parameters * workload.tokens
    return min(1.0, flop / (gpu_hours.mid * S_PER_HOUR * peak.value))


def _mfu(shape: ModelShape, tokens_per_s: float, device: Accelerator) -> float:
    """Return the share of a device's 16-bit peak that its tokens/s come to; above 1 where they cannot be its own."""
    peaks = device.peak_flop_s
    gear = next((gear for gear in (Gear.BF16, Gear.FP16) if gear in peaks), next(iter(peaks)))
    flop_s = FLOP_PER_PARAMETER_TOKEN * shape.active_parameters * tokens_per_s
    return max(1e-6, flop_s / peaks[gear].value)


def _ran_on(pilot: Pilot, device: Accelerator, known: Catalogue) -> tuple[tuple[str, ...], bool]:
    """Return a warning where the pilot did not run on the device, and whether its watts can be those of one."""
    names = {row.name: _name(row.name, known) for row in pilot.by_device}
    gpus = {row.name for row in pilot.by_device if row.kind is DeviceKind.GPU}
    if not gpus:
        if device.name in names.values() or any(
            r.kind is DeviceKind.NODE and r.watts is not None for r in pilot.by_device
        ):
            return (), True
        what = f"the pilot's meters saw no accelerator: its hours are taken for those of {device.name}"
        return (f"{what}, power is modelled",), False
    others = sorted(names[name] for name in gpus if names[name] != device.name)
    if not others:
        return (), True
    ran = ", ".join(others)
    return (f"the pilot ran on {ran}, the estimate is of {device.name}: hours and watts are the pilot's",), True


def _name(name: str, known: Catalogue) -> str:
    """Return a device's name in the table; its own where the table does not know it."""
    with contextlib.suppress(ConfigError):
        return known.find(name).name
    return name


def _pilot_w(pilot: Pilot, device: Accelerator) -> tuple[Range | None, tuple[Assumption, ...], tuple[str, ...]]:
    """Return measured watts a device; the server around it is modelled where only the devices were read."""
    if pilot.watts is None:
        return None, (), ("the pilot knows no joules: power is modelled",)
    read_w = pilot.watts.times(1.0 / pilot.devices)
    read = {row.kind for row in pilot.by_device if row.watts is not None}
    if read & {DeviceKind.CPU, DeviceKind.NODE}:
        return read_w, (), ("fans, network cards and what else the pilot's meters do not see are in no figure",)
    host_w = HOST_SHARE.times(device.tdp_w.value)
    value = f"{host_w.mid:.0f} W ({host_w.low:.0f} to {host_w.high:.0f}) a device"
    said = Assumption(name="power of its server", value=value, source=HOST_SOURCE, kind=SourceKind.ASSUMED)
    return read_w.plus(host_w), (said,), ()


AUTO: Final = "auto"
HANGS: Final = 0.05
"""A batch that nobody gave must not decide: where twice as much saves this share of the hours, the table is taken."""


def by_auto(
    shape: ModelShape,
    workload: Workload,
    cluster: Cluster,
    device: Accelerator,
    *,
    year: int | None = None,
    of: Blend | None = None,
) -> Hours:
    """Return device-hours by the blend; by the table, with a warning that says why, where no layout can be searched.

    Arguments are those of :func:`by_blend`. A batch as large as the default counts as not given.

    Raises:
        ConfigError: The device has no peak for the workload's precision.
    """
    of = of or shipped()
    by_table = by_mfu(shape, workload, cluster, device, year=year, of=of.peak)
    if shape.sketched:
        return _instead(by_table, f"of {shape.name} only the size is known: give a name or a config.json for more")
    if not hardware.is_known(device):
        return _instead(by_table, f"nobody's step time says what {device.family} reaches of a layout")
    try:
        found = by_blend(shape, workload, cluster, device, year=year, of=of)
    except ConfigError as error:
        return _instead(by_table, str(error))
    default = Workload(tokens=workload.tokens).batch_tokens
    if workload.batch_tokens == default:
        twice = dataclasses.replace(workload, batch_tokens=2.0 * default)
        same = dataclasses.replace(cluster, count=found.count, limit_h=None)
        try:
            other = by_blend(shape, twice, same, device, year=year, of=of)
        except ConfigError:  # more micro-batches in flight do not fit: a larger batch saves nothing
            other = found
        less = 1.0 - other.gpu_hours.mid / found.gpu_hours.mid
        if less > HANGS:
            return _instead(
                by_table,
                f"on {found.count} devices its hours hang on the batch, and {default:.3g} tokens are a default: twice"
                f" as much takes {less:.0%} fewer. Give --batch, or --method blend where the default is the run's",
            )
    return _said(found, "the default where layers are known and a layout fits into memory")


def _instead(by_table: Hours, why: str) -> Hours:
    warning = f"method mfu and not blend: {why}"
    return _said(dataclasses.replace(by_table, warnings=(warning, *by_table.warnings)), why)


def _said(found: Hours, why: str) -> Hours:
    said = Assumption(name="method", value=found.method, source=why, kind=SourceKind.ASSUMED)
    return dataclasses.replace(found, assumptions=(said, *found.assumptions))
