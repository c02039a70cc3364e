"""Comparisons that a person can feel, each with its constant and source.

Grams compare with a car; joules compare with things on the same socket, whose own grams depend on the grid.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from greentrain.types import S_PER_HOUR

M_PER_MILE: Final = 1609.344
"""Metres in an international mile, exact."""

CAR_G_PER_KM: Final = 393.0 / (M_PER_MILE / 1000)
"""Average US passenger vehicle on petrol: 3.93e-4 tCO2e per mile = 244 g/km (US EPA, Greenhouse Gas Equivalencies
Calculator, Calculations and References, as quoted 2026-08). New cars in the EU: 107 g/km in 2023 (WLTP, EEA)."""

PHONE_CHARGE_J: Final = (14.46 - 0.13 * 22) * S_PER_HOUR
"""One full charge of a smartphone: 11.6 Wh = 14.46 Wh in 24 h less 22 h of maintenance at 0.13 W (US DOE 2020, in
US EPA, Greenhouse Gases Equivalencies Calculator, page of 2021)."""

KETTLE_CUP_J: Final = 0.25 * 4186.0 * (100.0 - 15.0) / 0.85
"""Boiling 0.25 l of water from 15 C: m c dT with c = 4186 J/(kg K), at 85 % efficiency of an electric kettle
(usual range 80 to 90 %)."""

LAPTOP_W: Final = 50.0
"""A laptop in use, upper end of the 20 to 50 W of smarterbusiness.co.uk's table of appliances (read 2026-11)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Equivalent:
    """One comparison."""

    amount: float
    unit: str
    """What the amount counts, to be printed after it: ``km in an average US petrol car``."""
    source: str

    @property
    def text(self) -> str:
        """The comparison in words, with two or three significant digits."""
        shown = f"{self.amount:,.0f}" if self.amount >= 100 else f"{self.amount:.2g}"
        return f"{shown} {self.unit}"


def equivalents(*, emissions_g: float | None, energy_j: float) -> Sequence[Equivalent]:
    """Return comparisons for a run.

    Args:
        emissions_g: Emissions (gCO2e); None leaves the car out.
        energy_j: Energy at the socket, facility overhead included (J).
    """
    car = (
        []
        if emissions_g is None
        else [
            Equivalent(
                amount=emissions_g / CAR_G_PER_KM,
                unit="km in an average US petrol car",
                source="US EPA equivalencies: 393 gCO2e per mile",
            )
        ]
    )
    return [
        *car,
        Equivalent(
            amount=energy_j / PHONE_CHARGE_J,
            unit="smartphone charges",
            source="US DOE 2020, in US EPA equivalencies: 11.6 Wh each",
        ),
        Equivalent(
            amount=energy_j / KETTLE_CUP_J,
            unit="cups of water boiled in a kettle",
            source="0.25 l from 15 C at 85 % efficiency: 105 kJ each",
        ),
        Equivalent(
            amount=energy_j / (LAPTOP_W * S_PER_HOUR),
            unit="hours of a laptop in use",
            source="50 W, upper end of 20 to 50 W (smarterbusiness.co.uk)",
        ),
    ]
