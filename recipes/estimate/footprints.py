"""Points of a scaling law on a device in a place: device-hours, energy and grams as ranges, and what dominates them.

The hours are those of the law's FLOP (routing between experts is in them) at the share of the peak that published runs
reached. Training in few bits follows the law of effective parameters: a model whose parameters count for a share s of
as many needs 1 / s times the FLOP for the same loss, whatever the budget.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Final

from greentrain.estimate.carbon import (
    LIFETIME_YEARS,
    Signal,
    embodied_hour,
    independent,
    intensity,
    operational,
    signal_of,
)
from greentrain.estimate.cluster import Cluster
from greentrain.estimate.hardware import Accelerator
from greentrain.estimate.mfu import estimate_mfu, one_over
from greentrain.estimate.model_shape import sized
from greentrain.estimate.power_model import watts
from greentrain.estimate.values import Assumption, Range
from greentrain.estimate.workload import Workload
from greentrain.types import Gear
from greentrain.utils.quantities import SourcedNumber, SourceKind
from greentrain.utils.validation import bound
from recipes.estimate.scaling_laws import DenseLaw, ScalingPoint

_KUMAR: Final = (
    "Kumar et al., Scaling Laws for Precision, arXiv 2411.04330, appendix K, table 2, as a public implementation quotes"
    " it (the table itself was not read): integers in the forward pass, 30 to 220 million parameters, 1.5 to 26 billion"
    " tokens; its authors call the numbers unlikely to be useful for other architectures and data"
)
GAMMA_WEIGHTS: Final = SourcedNumber(unit="bits", value=2.6745, kind=SourceKind.ASSUMED, source=_KUMAR)
GAMMA_ACTIVATIONS: Final = SourcedNumber(unit="bits", value=2.2102, kind=SourceKind.ASSUMED, source=_KUMAR)
GAMMA_ATTENTION: Final = SourcedNumber(unit="bits", value=0.9578, kind=SourceKind.ASSUMED, source=_KUMAR)
"""Of keys and values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PointFootprint:
    """What a point of a scaling law takes on a device in a place."""

    point: ScalingPoint
    device: Accelerator
    precision: Gear
    gpu_hours: Range
    mfu: Range
    """Of the 16-bit peak, before any gain by FP8."""
    node_w: Range
    """Power of a device and its share of the server (W)."""
    kwh_per_hour: Range
    """Of a device-hour, PUE included (kWh)."""
    pue: Range
    g_per_kwh: Range
    operational_g: Range
    """By the grid's intensity (gCO2e)."""
    embodied_g: Range | None
    """gCO2e; None: nobody knows the device's."""
    crossing_g_per_kwh: Range | None
    """Intensity at which operational and embodied grams are equal; below it the embodied ones dominate."""
    assumptions: tuple[Assumption, ...]
    warnings: tuple[str, ...]

    @property
    def total_g(self) -> Range | None:
        """Operational and embodied, bound by bound (gCO2e); None where embodied is not known."""
        return None if self.embodied_g is None else self.operational_g.plus(self.embodied_g)

    @property
    def embodied_share(self) -> Range | None:
        """Embodied over all grams, bound by bound; device-hours cancel. None where embodied is not known."""
        if self.crossing_g_per_kwh is None:
            return None
        even, grid = self.crossing_g_per_kwh, self.g_per_kwh
        return Range(low=_share(even.low, grid.high), mid=_share(even.mid, grid.mid), high=_share(even.high, grid.low))


Footprint = PointFootprint
"""As documents of 0.1 called it; until 0.3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bits:
    """Bits of what a training step multiplies."""

    weights: float = 16.0
    activations: float = 16.0
    attention: float = 16.0
    """Keys and values."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            bound(field.name, getattr(self, field.name), 1.0, 32.0)


FP8_PRODUCTS: Final = Bits(weights=8.0, activations=8.0)
"""Products of weights and activations in FP8, attention in 16 bits: what training in FP8 usually is."""


def footprint(
    point: ScalingPoint,
    device: Accelerator,
    cluster: Cluster,
    *,
    signal: Signal | None = None,
    precision: Gear = Gear.BF16,
    embodied: str = "lca",
    lifetime_years: float = LIFETIME_YEARS,
) -> PointFootprint:
    """Return device-hours, energy and grams of a point, bounds as :func:`greentrain.estimate.api.estimate` has them.

    Args:
        point: Point of a scaling law; with more parameters in all than active ones it is a mixture of experts.
        device: Device of the table, or a projected one.
        cluster: Place and PUE; the device in it is not read.
        signal: The cluster's grid, where many points share it; None: it is looked up.
        precision: Precision of the training; a device without BF16 takes FP16 for it.
        embodied: Method of the embodied carbon, ``lca`` or ``act``.
        lifetime_years: Years over which the middle of the embodied carbon is spread.

    Raises:
        ConfigError: The device lacks the precision.
        CarbonSignalError: The zone is not in the tables.
    """
    experts = point.total_parameters > point.active_parameters
    shape = sized(point.total_parameters, point.active_parameters if experts else None)
    found = estimate_mfu(shape, Workload(tokens=point.tokens, precision=precision), device)
    gpu_hours = found.gpu_hours.times(point.flop / found.flop)
    power = watts(device, found.mfu.mid)
    grid = intensity(signal or signal_of(cluster), gpu_hours.mid / (cluster.count or 1))
    an_hour = operational(device_hours=Range.exactly(1.0), node_w=power.node_w, found=grid, cluster=cluster)
    used = operational(device_hours=gpu_hours, node_w=power.node_w, found=grid, cluster=cluster)
    made = embodied_hour(device, method=embodied, lifetime_years=lifetime_years)
    said = Assumption(
        name="FLOP of the law",
        value=f"{point.flop:.3g}",
        source="6 a parameter that a token meets, without embeddings; routing between experts as its authors count",
        kind=SourceKind.ASSUMED,
    )
    return PointFootprint(
        point=point,
        device=device,
        precision=precision,
        gpu_hours=gpu_hours,
        mfu=found.mfu,
        node_w=power.node_w,
        kwh_per_hour=an_hour.facility_kwh,
        pue=used.pue,
        g_per_kwh=grid.g_per_kwh,
        operational_g=used.location_g,
        embodied_g=None if made.g_per_h is None else independent([gpu_hours, made.g_per_h]),
        crossing_g_per_kwh=None
        if made.g_per_h is None
        else independent([made.g_per_h, one_over(an_hour.facility_kwh)]),
        assumptions=(
            said,
            *(one for one in found.assumptions if one.name != "model FLOP"),
            *power.assumptions,
            *used.assumptions,
            *made.assumptions,
        ),
        warnings=(*found.warnings, *grid.warnings, *made.warnings),
    )


def effective_share(bits: Bits, beside: Bits | None = None) -> float:
    """Return for how much of as many parameters those of a model in few bits count, by the law of Kumar et al.

    ``N_eff / N = (1 - exp(-weights / 2.67)) (1 - exp(-activations / 2.21)) (1 - exp(-attention / 0.958))``

    Args:
        bits: Bits of the training.
        beside: Bits of the training that it is compared with; None: 16 bits throughout.
    """

    def counted(of: Bits) -> float:
        return math.prod(
            1.0 - math.exp(-taken / gamma.value)
            for taken, gamma in (
                (of.weights, GAMMA_WEIGHTS),
                (of.activations, GAMMA_ACTIVATIONS),
                (of.attention, GAMMA_ATTENTION),
            )
        )

    return counted(bits) / counted(beside or Bits())


def in_few_bits(law: DenseLaw, share: float) -> DenseLaw:
    """Return a law whose parameters count for a share of as many: ``a / (share N)^alpha`` in place of ``a / N^alpha``.

    Args:
        law: Law as it holds in 16 bits.
        share: Share above 0, at most 1; from :func:`effective_share`, or measured.
    """
    bound("share", share, 1e-3, 1.0)
    return dataclasses.replace(
        law, a=law.a / share**law.alpha, source=f"{law.source}; parameters count for {share:.3g} of as many"
    )


def as_good(law: DenseLaw, point: ScalingPoint, share: float) -> ScalingPoint:
    """Return what reaches a best point's loss with parameters that count for a share of as many.

    Args:
        law: Law as it holds in 16 bits.
        point: Point that ``law.best`` returned.
        share: Share above 0, at most 1, as for :func:`in_few_bits`.
    """
    return in_few_bits(law, share).best(point.flop / share)


def _share(even: float, grid: float) -> float:
    return even / (even + grid) if even + grid > 0 else 0.0
