"""Which method an estimate takes where nobody names one: the blend where a search means something, else the table."""

import contextlib
import dataclasses
from typing import Final

from greentrain.errors import ConfigError
from greentrain.estimate import hours, practice
from greentrain.estimate.accelerator import Accelerator
from greentrain.estimate.cluster import Cluster
from greentrain.estimate.hours import Hours
from greentrain.estimate.model_shape import ModelShape
from greentrain.estimate.values import Assumption, Kind
from greentrain.estimate.workload import Workload

AUTO: Final = "auto"
HANGS: Final = 0.1
"""A default batch is worth a warning where twice as much would save this share of the hours."""


def by_auto(
    shape: ModelShape, workload: Workload, cluster: Cluster, device: Accelerator, *, year: int | None = None
) -> Hours:
    """Return device-hours by the blend; by the table, with a warning that says why, where no layout can be searched.

    Args:
        shape: The model.
        workload: Of the run.
        cluster: Number of devices, or the time limit that asks for it.
        device: What they are.
        year: Of the run, for those of the past; None: today's software.

    Raises:
        ConfigError: The device has no peak for the workload's precision.
    """
    by_table = hours.by_mfu(shape, workload, cluster, device, year=year)
    if shape.sketched:
        return _instead(by_table, f"of {shape.name} only the size is known: give a name or a config.json for more")
    if not practice.is_known(device):
        return _instead(by_table, f"nobody's step time says what {device.family} reaches of a layout")
    try:
        found = hours.by_blend(shape, workload, cluster, device, year=year)
    except ConfigError as error:
        return _instead(by_table, str(error))
    found = dataclasses.replace(
        found, warnings=(*found.warnings, *_batch(found, shape, workload, cluster, device, year))
    )
    return _said(found, "the default where layers are known and a layout fits into memory")


def _batch(
    found: Hours, shape: ModelShape, workload: Workload, cluster: Cluster, device: Accelerator, year: int | None
) -> tuple[str, ...]:
    """Return a warning where the hours hang on a batch that nobody gave."""
    if workload.batch_tokens != Workload(tokens=workload.tokens, sequence=workload.sequence).batch_tokens:
        return ()
    twice = dataclasses.replace(workload, batch_tokens=2.0 * workload.batch_tokens)
    same = dataclasses.replace(cluster, count=found.count, limit_h=None)
    with contextlib.suppress(ConfigError):
        less = 1.0 - hours.by_blend(shape, twice, same, device, year=year).gpu_hours.mid / found.gpu_hours.mid
        if less > HANGS:
            return (
                f"a batch of {workload.batch_tokens:.3g} tokens, the default, is small for {found.count} devices: twice"
                f" as much would take {less:.0%} fewer hours; give the run's own (--batch)",
            )
    return ()


def _instead(by_table: Hours, why: str) -> Hours:
    warning = f"method mfu and not blend: {why}"
    return _said(dataclasses.replace(by_table, warnings=(warning, *by_table.warnings)), why)


def _said(found: Hours, why: str) -> Hours:
    said = Assumption(name="method", value=found.method, source=why, kind=Kind.ASSUMED)
    return dataclasses.replace(found, assumptions=(said, *found.assumptions))
