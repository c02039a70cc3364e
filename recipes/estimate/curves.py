"""What the sweeps compute: curves of footprints, from the tables of devices, grids and scaling laws alone."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from greentrain.estimate import hardware
from greentrain.estimate.carbon import signal_of
from greentrain.estimate.cluster import Cluster
from greentrain.estimate.mfu import FP8_SPEEDUP
from greentrain.estimate.relations import ZONES
from greentrain.estimate.values import Assumption, Range
from greentrain.types import Gear
from greentrain.utils.quantities import SourceKind
from recipes.estimate.footprints import (
    FP8_PRODUCTS,
    GAMMA_WEIGHTS,
    PointFootprint,
    as_good,
    effective_share,
    footprint,
    in_few_bits,
)
from recipes.estimate.projection import GrowthRate, GrowthRates, project
from recipes.estimate.scaling_laws import DENSE, FINE_GRAINED, ScalingLaw, curve

LAWS: Final[tuple[tuple[str, ScalingLaw, str], ...]] = (
    ("dense", DENSE, DENSE.source),
    ("fine-grained mixture of experts", FINE_GRAINED, FINE_GRAINED.source),
)
"""Of one paper: the same data and tokenizer, so that their losses may stand beside each other."""
GENERATIONS: Final = ("V100-16GB", "A100-80GB", "H100-SXM", "B200", "TPUv4", "TPUv5p")
TODAY: Final = "B200"
AHEAD_YEARS: Final = (0.0, 5.0, 10.0)
FEW_BITS_ON: Final = "H100-SXM"
"""The FP8 gains in the table were published for it."""
GRIDS_FOR: Final = ("A100-80GB", "H100-SXM", "B200", "TPUv5p")
BUDGET_FLOP: Final = 1e24
_TABLE_2: Final = "CarbonScaling (arXiv 2508.06524), table 2"
_AREA: Final = 1.05
"""Growth of a die a year."""


def _published(per_year: float, said: str) -> GrowthRate:
    return GrowthRate(per_year=per_year, source=f"{_TABLE_2}: {said}")


CARBONSCALING: Final = GrowthRates(
    peak=_published(1.30, "throughput"),
    memory=_published(1.25, "HBM, first of its three rates, taken as capacity"),
    memory_bandwidth=_published(1.24, "HBM, last of its three rates, taken as bandwidth"),
    link=_published(1.11, "NVLink"),
    power=_published(1.03, "power"),
    embodied=_published(_AREA * 1.10, "area, times 10 % a year of carbon per area"),
)
"""Where it has no rate (network between nodes) that of GreenTrain's table; SRAM 1.40 has no place in this model."""
RATES: Final = {
    "epoch": GrowthRates(),
    "carbonscaling": CARBONSCALING,
    "carbonscaling-flat": dataclasses.replace(
        CARBONSCALING, embodied=_published(_AREA, "area, at the carbon per area of today")
    ),
}
"""By the name that ``sweeps.py --rates`` takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One point of a curve."""

    found: PointFootprint
    share: float = 1.0
    """For which the parameters count, of as many in 16 bits."""
    over_bf16: Range | None = None
    """Grams over those of BF16, by the range of the FP8 gain alone: all else that is not known is the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One line of a figure."""

    name: str
    law: str
    law_source: str
    samples: tuple[Sample, ...]
    assumed: tuple[Assumption, ...] = ()
    """Beside those of its points."""


def place(zone: str, pue: float | None) -> Cluster:
    """Return where the runs are; its device is not read."""
    return Cluster(device=TODAY, count=1, zone=zone, pue=pue)


def generations(flops: Sequence[float], where: Cluster) -> list[Curve]:
    """Return loss over carbon on devices of several years, by both laws."""
    found, grid = [], signal_of(where)
    for law_name, law, source in LAWS:
        points = curve(law, flops)
        for device in map(hardware.find, GENERATIONS):
            samples = tuple(Sample(found=footprint(point, device, where, signal=grid)) for point in points)
            found.append(Curve(name=device.name, law=law_name, law_source=source, samples=samples))
    return found


def projections(flops: Sequence[float], where: Cluster, rates: GrowthRates) -> list[Curve]:
    """Return loss over carbon on today's device and on what may follow it, by both laws."""
    found, grid = [], signal_of(where)
    for law_name, law, source in LAWS:
        points = curve(law, flops)
        for years in AHEAD_YEARS:
            later = project(hardware.find(TODAY), years, rates)
            device = hardware.find(TODAY) if years == 0 else later.device
            found.append(
                Curve(
                    name=device.name,
                    law=law_name,
                    law_source=source,
                    samples=tuple(Sample(found=footprint(point, device, where, signal=grid)) for point in points),
                    assumed=later.assumptions if years else (),
                )
            )
    return found


def few_bits(count: int, share: float | None, where: Cluster) -> tuple[list[Curve], Curve, float]:
    """Return BF16 and FP8 around one budget, what FP8 takes for the loss of BF16 over shares, and the share taken.

    Args:
        count: Points of a curve.
        share: For which parameters count in FP8, of as many in 16 bits; None: by the law of Kumar et al.
        where: Place and PUE.
    """
    taken = effective_share(FP8_PRODUCTS) if share is None else share
    device, grid = hardware.find(FEW_BITS_ON), signal_of(where)
    flops = np.geomspace(BUDGET_FLOP / 10**0.5, BUDGET_FLOP * 10**0.5, count).tolist()
    name, _, source = LAWS[0]
    bf16 = [footprint(point, device, where, signal=grid) for point in curve(DENSE, flops)]
    counted = Assumption(
        name="share for which parameters count in FP8",
        value=f"{taken:.4g}",
        source=GAMMA_WEIGHTS.source if share is None else "--effective-share",
        kind=GAMMA_WEIGHTS.kind if share is None else SourceKind.GIVEN,
    )
    curves = [Curve(name="BF16", law=name, law_source=source, samples=tuple(Sample(found=one) for one in bf16))]
    for label, of, assumed in (
        (f"FP8, parameters count for {taken:.3f}", taken, (counted,)),
        ("FP8, no loss at all", 1.0, ()),
    ):
        law = in_few_bits(DENSE, of)
        samples = tuple(
            _beside(footprint(law.best(flop), device, where, signal=grid, precision=Gear.FP8), one, of)
            for flop, one in zip(flops, bf16, strict=True)
        )
        curves.append(Curve(name=label, law=name, law_source=source, samples=samples, assumed=assumed))
    point = DENSE.best(BUDGET_FLOP)
    one = footprint(point, device, where, signal=grid)
    equal = tuple(
        _beside(footprint(as_good(DENSE, point, of), device, where, signal=grid, precision=Gear.FP8), one, of)
        for of in sorted({*np.linspace(0.5, 1.0, count).tolist(), taken})
    )
    return curves, Curve(name="FP8 for the loss of BF16", law=name, law_source=source, samples=equal), taken


def intensities(per_axis: int, where: Cluster) -> tuple[list[Curve], list[Curve]]:
    """Return one run on several devices from 0 to 1,000 g/kWh, and in the zones of the tables.

    Args:
        per_axis: Points of the linear and of the logarithmic axis.
        where: PUE, and a zone beside the usual ones.
    """
    name, law, source = LAWS[0]
    point = law.best(BUDGET_FLOP)
    grids = sorted({*np.linspace(0.0, 1000.0, per_axis).tolist(), *np.geomspace(1.0, 1000.0, per_axis).tolist()})
    swept, zones = [], []
    for device in map(hardware.find, GRIDS_FOR):
        samples = tuple(
            Sample(found=footprint(point, device, dataclasses.replace(where, zone="", g_per_kwh=g))) for g in grids
        )
        swept.append(Curve(name=device.name, law=name, law_source=source, samples=samples))
    for zone in dict.fromkeys((*ZONES, where.zone)):
        there = dataclasses.replace(where, zone=zone)
        grid = signal_of(there)
        samples = tuple(
            Sample(found=footprint(point, device, there, signal=grid)) for device in map(hardware.find, GRIDS_FOR)
        )
        zones.append(Curve(name=zone, law=name, law_source=source, samples=samples))
    return swept, zones


def _beside(fp8: PointFootprint, bf16: PointFootprint, share: float) -> Sample:
    assert fp8.total_g is not None and bf16.total_g is not None
    mid = fp8.total_g.mid / bf16.total_g.mid
    gain = FP8_SPEEDUP
    times = Range(low=mid * gain.mid / gain.high, mid=mid, high=mid * gain.mid / gain.low)
    return Sample(found=fp8, share=share, over_bf16=times)
