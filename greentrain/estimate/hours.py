"""Device-hours by each of the methods, in one form."""

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from greentrain.errors import ConfigError
from greentrain.estimate import hardware
from greentrain.estimate.accelerator import Accelerator
from greentrain.estimate.cluster import Cluster
from greentrain.estimate.layouts import Layout
from greentrain.estimate.mfu import estimate_mfu
from greentrain.estimate.model_shape import FLOP_PER_PARAMETER_TOKEN, ModelShape
from greentrain.estimate.pilot import Pilot, forecast, read_pilot
from greentrain.estimate.power_model import HOST_SHARE, HOST_SOURCE
from greentrain.estimate.search import search, smallest_count
from greentrain.estimate.values import Assumption, Kind, Range
from greentrain.estimate.workload import Workload
from greentrain.types import DeviceKind, Gear
from greentrain.units import S_PER_HOUR

METHODS: Final = ("mfu", "roofline", "pilot")
SERVER: Final = 8
"""Devices are taken by the server, where a time limit asks for their number."""
REAL: Final = Range(low=1.06, mid=1.67, high=2.99)
"""Device-hours of published runs over the search's optimum: 10th, 50th and 90th percentile, families alike."""
REAL_SOURCE: Final = "42 published runs of 22 families over the optimum of this search, each family counted once"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hours:
    """What a method found."""

    gpu_hours: Range
    count: int
    """Devices."""
    mfu: float
    """Share of the 16-bit peak that the devices reach, in the middle."""
    assumptions: tuple[Assumption, ...]
    warnings: tuple[str, ...]
    node_w: Range | None = None
    """Measured power of a device and its share of the server (W); None: to be modelled."""
    layout: Layout | None = None
    """The best that was found."""
    memory_bytes: Mapping[str, float] | None = None
    """Of the fullest device in that layout, by term."""


def by_mfu(
    shape: ModelShape, workload: Workload, cluster: Cluster, device: Accelerator, *, year: int | None = None
) -> Hours:
    """Return device-hours by the table of utilisations."""
    found = estimate_mfu(shape, workload, device, year=year)
    count, said, warned = _count(cluster, found.gpu_hours)
    return Hours(
        gpu_hours=found.gpu_hours,
        count=count,
        mfu=found.mfu.mid,
        assumptions=(*found.assumptions, *said),
        warnings=(*found.warnings, *warned),
    )


def by_pilot(shape: ModelShape, workload: Workload, cluster: Cluster, device: Accelerator, folder: Path) -> Hours:
    """Return device-hours by the speed of a short run, and its watts where they were read.

    Args:
        shape: The model, as in the pilot.
        workload: Of the long run.
        cluster: Devices of the long run; each is taken to be as fast as in the pilot.
        device: What they are.
        folder: The pilot's run folder.
    """
    pilot = read_pilot(folder)
    count, said, warned = _count(cluster, forecast(pilot, workload.tokens, count=SERVER).gpu_hours)
    found = forecast(pilot, workload.tokens, count=count)
    mfu = _mfu(shape, pilot.tokens_per_s.mid / pilot.devices, device)
    if mfu > 1:
        raise ConfigError(
            f"{folder}: {pilot.tokens_per_s.mid:.3g} tokens/s of {shape.name} are {mfu:.2g} x the peak of"
            f" {pilot.devices} x {device.name}: name the model and the device that the pilot ran"
        )
    node_w, power, lacking = _pilot_w(pilot, device)
    return Hours(
        gpu_hours=found.gpu_hours,
        count=count,
        mfu=mfu,
        assumptions=(*found.assumptions, *said, *power),
        warnings=(*found.warnings, *warned, *lacking, *_other_device(pilot, device)),
        node_w=node_w,
    )


def by_roofline(shape: ModelShape, workload: Workload, cluster: Cluster, device: Accelerator) -> Hours:
    """Return device-hours of the best layout, times what real runs took beside it.

    Raises:
        ConfigError: Nothing fits into the devices' memory; the largest term is named.
    """
    if cluster.count is not None:
        best = search(shape, workload, device, cluster.count)
    else:
        best = smallest_count(shape, workload, device, (cluster.limit_h or 1.0) * S_PER_HOUR / REAL.mid)
    said = Assumption(
        name="real runs over the modelled optimum",
        value=f"{REAL.mid:.2f} x ({REAL.low:.2f} to {REAL.high:.2f})",
        source=REAL_SOURCE,
        kind=Kind.FITTED,
    )
    optimum = Assumption(
        name="modelled optimum",
        value=f"{best.gpu_hours:.3g} device-hours, MFU {best.mfu:.2f}: {best.layout}",
        source=f"best of {best.fitting} layouts that fit into memory, of {best.tried}",
        kind=Kind.FITTED,
    )
    return Hours(
        gpu_hours=REAL.times(best.gpu_hours),
        count=best.count,
        mfu=min(1.0, _mfu(shape, workload.tokens / (best.gpu_hours * REAL.mid * S_PER_HOUR), device)),
        assumptions=(optimum, said, *best.assumptions),
        warnings=("the layout is the modelled optimum, its step time what nobody may reach: measure a pilot",),
        layout=best.layout,
        memory_bytes=best.memory_bytes,
    )


def _count(cluster: Cluster, gpu_hours: Range) -> tuple[int, tuple[Assumption, ...], tuple[str, ...]]:
    """Return the devices, what was assumed for them, and whether the limit is safe."""
    if cluster.count is not None or cluster.limit_h is None:
        return cluster.count or 1, (), ()
    limit_h = cluster.limit_h
    count = 1 if gpu_hours.mid <= limit_h else math.ceil(gpu_hours.mid / limit_h / SERVER) * SERVER
    value = f"{count}, to be done in {limit_h:g} h"
    said = Assumption(name="devices", value=value, source=f"the middle of the hours, by {SERVER}", kind=Kind.FITTED)
    longest_h = gpu_hours.high / count
    if longest_h <= limit_h:
        return count, (said,), ()
    warning = f"the limit of {limit_h:g} h holds for the middle of the hours: one run in ten takes {longest_h:.2g} h"
    return count, (said,), (warning,)


def _mfu(shape: ModelShape, tokens_per_s: float, device: Accelerator) -> float:
    """Return the share of a device's 16-bit peak that its tokens/s come to; above 1 where they cannot be its own."""
    peaks = device.peak_flop_s
    gear = next((gear for gear in (Gear.BF16, Gear.FP16) if gear in peaks), next(iter(peaks)))
    flop_s = FLOP_PER_PARAMETER_TOKEN * shape.active_parameters * tokens_per_s
    return max(1e-6, flop_s / peaks[gear].value)


def _other_device(pilot: Pilot, device: Accelerator) -> tuple[str, ...]:
    """Return a warning where the pilot ran on a device of the table that is another one."""
    for row in pilot.by_device:
        if row.kind is not DeviceKind.GPU:
            continue
        with contextlib.suppress(ConfigError):  # a device that the table does not know
            if (ran := hardware.find(row.name).name) != device.name:
                return (f"the pilot ran on {ran}, the estimate is of {device.name}: hours and watts are the pilot's",)
    return ()


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
    said = Assumption(name="power of its server", value=value, source=HOST_SOURCE, kind=Kind.ASSUMED)
    return read_w.plus(host_w), (said,), ()
