"""Which method an estimate takes where nobody names one: the blend where a search means something, else the table.

On published runs of families left out the blend errs less than the table where it is told the batch, and more where the
batch is a default that starves a large cluster: ``docs/estimate-benchmarks.md``.
"""

import dataclasses
from typing import Final

from greentrain.errors import ConfigError
from greentrain.estimate import blend, hours, practice
from greentrain.estimate.accelerator import Accelerator
from greentrain.estimate.blend import Blend
from greentrain.estimate.cluster import Cluster
from greentrain.estimate.hours import Hours
from greentrain.estimate.model_shape import ModelShape
from greentrain.estimate.values import Assumption, Kind
from greentrain.estimate.workload import Workload

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

    Args:
        shape: The model.
        workload: Of the run. A batch as large as the default counts as not given.
        cluster: Number of devices, or the time limit that asks for it.
        device: What they are.
        year: Of the run, for those of the past; None: today's software.
        of: What was learnt from published runs; None: the package's.

    Raises:
        ConfigError: The device has no peak for the workload's precision.
    """
    of = of or blend.shipped()
    by_table = hours.by_mfu(shape, workload, cluster, device, year=year, of=of.peak)
    if shape.sketched:
        return _instead(by_table, f"of {shape.name} only the size is known: give a name or a config.json for more")
    if not practice.is_known(device):
        return _instead(by_table, f"nobody's step time says what {device.family} reaches of a layout")
    try:
        found = hours.by_blend(shape, workload, cluster, device, year=year, of=of)
    except ConfigError as error:
        return _instead(by_table, str(error))
    default = Workload(tokens=workload.tokens).batch_tokens
    if workload.batch_tokens == default:
        twice = dataclasses.replace(workload, batch_tokens=2.0 * default)
        same = dataclasses.replace(cluster, count=found.count, limit_h=None)
        try:
            other = hours.by_blend(shape, twice, same, device, year=year, of=of)
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
    said = Assumption(name="method", value=found.method, source=why, kind=Kind.ASSUMED)
    return dataclasses.replace(found, assumptions=(said, *found.assumptions))
