"""Devices of later years: a known one, grown by rates of each of its figures. Every figure of one is assumed."""

import dataclasses
from dataclasses import dataclass, fields
from typing import Final

from greentrain.estimate.hardware import Accelerator
from greentrain.estimate.values import Assumption, Range
from greentrain.utils.quantities import SourcedNumber, SourceKind
from greentrain.utils.validation import bound

_EPOCH: Final = "Epoch AI, Trends in Machine Learning Hardware (2023), 47 accelerators of 2010 to 2023"
_TABLE: Final = "growth of a device's figure from the V100 (2017) to the B200 (2024) in the table of devices"


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthRate:
    """Growth of one figure."""

    per_year: float
    """Factor a year: 1.35 is 35 % more."""
    source: str

    def __post_init__(self) -> None:
        bound("per_year", self.per_year, 0.5, 2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthRates:
    """Growth of every figure that a later device has."""

    peak: GrowthRate = GrowthRate(per_year=2 ** (1 / 2.3), source=f"{_EPOCH}: doubles in 2.3 years")
    memory: GrowthRate = GrowthRate(per_year=2 ** (1 / 4.0), source=f"{_EPOCH}: doubles in 4 years")
    memory_bandwidth: GrowthRate = GrowthRate(per_year=2 ** (1 / 4.1), source=f"{_EPOCH}: doubles in 4.1 years")
    link: GrowthRate = GrowthRate(per_year=(900 / 150) ** (1 / 7), source=_TABLE)
    network: GrowthRate = GrowthRate(per_year=(50 / 6.25) ** (1 / 7), source=_TABLE)
    power: GrowthRate = GrowthRate(
        per_year=2 ** (1 / 2.3 - 1 / 3.0),
        source=f"{_EPOCH}: peak doubles in 2.3 years, FLOP per joule in 3, so that watts are their quotient",
    )
    embodied: GrowthRate = GrowthRate(
        per_year=1.10,
        source="10 % a year, as CarbonScaling takes it for making a device (quoted there from Jones, IEDM 2023; that"
        " paper was not read)",
    )


Rates = GrowthRates
"""As documents of 0.1 called it; until 0.3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Projected:
    """A device that does not exist, and what was assumed of it."""

    device: Accelerator
    assumptions: tuple[Assumption, ...]


def project(device: Accelerator, years: float, rates: GrowthRates | None = None) -> Projected:
    """Return the device that stands so many years after one that is known.

    Args:
        device: The known one.
        years: Number of years after the device's own, 0 to 20. What is unknown of it stays unknown.
        rates: Rates of growth; None: published rates, and those of the table.
    """
    bound("years", years, 0.0, 20.0)
    rates = GrowthRates() if rates is None else rates

    def later(now: SourcedNumber, rate: GrowthRate) -> SourcedNumber:
        factor = rate.per_year**years
        source = f"{device.name}'s {now.value:g} x {factor:.3g} in {years:g} years ({rate.source})"
        return dataclasses.replace(now, value=now.value * factor, kind=SourceKind.ASSUMED, source=source)

    kg = None if device.embodied_kg is None else device.embodied_kg.times(rates.embodied.per_year**years)
    grown = Accelerator(
        name=f"{device.name} +{years:g} years (assumed)",
        family=device.family,
        year=device.year + round(years),
        peak_flop_s={gear: later(peak, rates.peak) for gear, peak in device.peak_flop_s.items()},
        memory_bytes=later(device.memory_bytes, rates.memory),
        memory_bytes_s=later(device.memory_bytes_s, rates.memory_bandwidth),
        link_bytes_s=later(device.link_bytes_s, rates.link),
        node=device.node,
        network_bytes_s=later(device.network_bytes_s, rates.network),
        tdp_w=later(device.tdp_w, rates.power),
        idle_w=None if device.idle_w is None else later(device.idle_w, rates.power),
        embodied_kg=kg,
        embodied_source=device.embodied_source if kg is None else _embodied_source(device, kg, rates.embodied),
        server_kg=device.server_kg,
    )
    return Projected(device=grown, assumptions=_assumptions(device, years, rates))


def _embodied_source(device: Accelerator, kg: Range, rate: GrowthRate) -> str:
    return (
        f"assumed: {kg.mid:.0f} kg, grown by {rate.per_year - 1:+.1%} a year ({rate.source}) from {device.name}: "
        + (device.embodied_source)
    )


def _assumptions(device: Accelerator, years: float, rates: GrowthRates) -> tuple[Assumption, ...]:
    grown = [
        Assumption(
            name=f"growth of {field.name.replace('_', ' ')}",
            value=f"{getattr(rates, field.name).per_year - 1:+.1%} a year over {years:g} years",
            source=getattr(rates, field.name).source,
            kind=SourceKind.ASSUMED,
        )
        for field in fields(rates)
    ]
    same = Assumption(
        name="projected device",
        value=f"{device.name} of {device.year}, {years:g} years later",
        source="node size, server share and family (and with it the share of the peak that is reached) as today",
        kind=SourceKind.ASSUMED,
    )
    return (same, *grown)
