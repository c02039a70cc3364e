"""What a run costs: its electricity for whoever owns the devices, or its device-hours for whoever rents them.

The two are not added up: a rent has the electricity in it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from greentrain.estimate.hardware import Accelerator
from greentrain.estimate.values import Assumption, Range, product
from greentrain.utils.quantities import SourceKind
from greentrain.utils.validation import bound

CURRENCY: Final = "USD"
KWH: Final = Range(low=0.06, mid=0.081, high=0.18)
KWH_SOURCE: Final = (
    "default: industrial customers in the USA, mean 8.06 ct in 2023 (EIA, as Statista quotes it), states from 6 (Iowa,"
    " April 2025) to 18 ct (Massachusetts, July 2024; EIA, Electric Power Monthly, table 5.6)"
)
_RENT_SOURCE: Final = "default: on-demand list prices of clouds, May 2026, as one comparison has them (mercatus-ai.com)"
RENT: Final[Mapping[str, Range]] = {
    "A100-80GB": Range(low=0.80, mid=1.3, high=3.0),
    "H100-SXM": Range(low=2.0, mid=3.0, high=5.0),
    "H200": Range(low=2.5, mid=4.0, high=7.0),
}
"""Rent of a device-hour by device; mid is the middle of the specialised clouds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPrices:
    """What is paid. What is not given is a default that is named, or not known."""

    per_kwh: float | None = None
    per_device_hour: float | None = None
    currency: str = CURRENCY

    def __post_init__(self) -> None:
        for name in ("per_kwh", "per_device_hour"):
            value = getattr(self, name)
            if value is not None:
                bound(name, value, 0.0, 1e6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Money:
    """Costs in one currency; None: no price is known."""

    currency: str
    electricity: Range | None
    """Energy of the facility at the price of a kWh."""
    rent: Range | None
    """Device-hours at the price of one; electricity is in it."""
    assumptions: tuple[Assumption, ...]


def money(device: Accelerator, device_hours: Range, facility_kwh: Range, prices: RunPrices) -> Money:
    """Return what the run costs.

    Args:
        device: Device whose default rent is taken.
        device_hours: Device-hours.
        facility_kwh: Energy, facility included.
        prices: Prices that are known. In another currency than the defaults', only these count.
    """
    defaults = prices.currency == CURRENCY
    kwh, kwh_source = _price(prices.per_kwh, KWH if defaults else None, KWH_SOURCE)
    hour, hour_source = _price(prices.per_device_hour, RENT.get(device.name) if defaults else None, _RENT_SOURCE)
    said = []
    for name, price, given, source in (
        ("price of a kWh", kwh, prices.per_kwh, kwh_source),
        ("price of a device-hour", hour, prices.per_device_hour, hour_source),
    ):
        if price is not None:
            text = f"{price.mid:.2g} {prices.currency}"
            kind = SourceKind.ASSUMED if given is None else SourceKind.GIVEN
            said.append(Assumption(name=name, value=text + _width(price), source=source, kind=kind))
    return Money(
        currency=prices.currency,
        electricity=_cost(facility_kwh, kwh),
        rent=_cost(device_hours, hour),
        assumptions=tuple(said),
    )


def _price(given: float | None, default: Range | None, source: str) -> tuple[Range | None, str]:
    return (default, source) if given is None else (Range.exactly(given), "given")


def _cost(amount: Range, price: Range | None) -> Range | None:
    if price is None:
        return None
    return product([amount, price]) if price.low > 0 else amount.times(price)


def _width(price: Range) -> str:
    return "" if price.low == price.high else f" ({price.low:.2g} to {price.high:.2g})"
