"""Embodied carbon of a device-hour: a life-cycle assessment where there is one, or area x carbon per area by name.

The two differ by an order of magnitude: 164 kg for an H100 by its maker's reviewed assessment, 15 kg for its die. The
first is the default. Networks between servers and the building are in neither.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from greentrain.estimate.accelerator import Accelerator
from greentrain.estimate.values import Assumption, Kind, Range
from greentrain.ledger.embodied import HIGH_USE, HIGH_YEARS, LOW_YEARS, LifetimeHours
from greentrain.ledger.embodied_table import COMPONENT_P95, DRAM_KG_PER_GB, SERVER_OTHERS_KG
from greentrain.types import G_PER_KG
from greentrain.utils.validation import bound, choice

METHODS: Final = ("lca", "act")
LIFETIME_YEARS: Final = 4.0
"""As ``carbon.lifetime_years``."""

FAB_KG_PER_KWH: Final = 0.583
"""Grid of Taiwan's fabs (ACT, facebookresearch/ACT)."""
MATERIALS_KG_PER_CM2: Final = 0.5
FAB_YIELD: Final = 0.875
PACKAGE_KG: Final = 0.15
"""Per packaged circuit (ACT)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fab:
    """Carbon of a square centimetre at one node of technology."""

    kwh_per_cm2: float
    gas_kg_per_cm2: float
    """Between 95 and 99 % abatement."""
    imec_kg_per_cm2: float | None
    """As imec.netzero has it."""

    @property
    def kg_per_cm2(self) -> float:
        """Carbon per area of good dies."""
        return (FAB_KG_PER_KWH * self.kwh_per_cm2 + self.gas_kg_per_cm2 + MATERIALS_KG_PER_CM2) / FAB_YIELD


FABS: Final[Mapping[int, Fab]] = {
    28: Fab(kwh_per_cm2=0.90, gas_kg_per_cm2=0.1375, imec_kg_per_cm2=0.91),
    20: Fab(kwh_per_cm2=1.20, gas_kg_per_cm2=0.150, imec_kg_per_cm2=0.91),
    14: Fab(kwh_per_cm2=1.20, gas_kg_per_cm2=0.1625, imec_kg_per_cm2=0.97),
    10: Fab(kwh_per_cm2=1.475, gas_kg_per_cm2=0.195, imec_kg_per_cm2=1.09),
    8: Fab(kwh_per_cm2=1.52, gas_kg_per_cm2=0.195, imec_kg_per_cm2=None),
    7: Fab(kwh_per_cm2=2.15, gas_kg_per_cm2=0.275, imec_kg_per_cm2=1.44),
    5: Fab(kwh_per_cm2=2.75, gas_kg_per_cm2=0.3275, imec_kg_per_cm2=1.54),
    3: Fab(kwh_per_cm2=3.25, gas_kg_per_cm2=0.3725, imec_kg_per_cm2=1.75),
}
"""By node (nm); facebookresearch/ACT, 97 % abatement taken as the mean of its 95 and 99 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Die:
    """Silicon of a device, its memory apart."""

    cm2: float
    node_nm: int
    """Nearest of :data:`FABS`."""
    source: str
    kind: Kind


_LLMCARBON: Final = "LLMCarbon, data/hardware.csv"
DIES: Final[Mapping[str, Die]] = {
    "V100": Die(cm2=8.15, node_nm=14, source=f"{_LLMCARBON}; 12 nm taken as 14", kind=Kind.DATASHEET),
    "A100": Die(cm2=8.26, node_nm=7, source="GA100 of 826 mm2; recalled", kind=Kind.ASSUMED),
    "A800": Die(cm2=8.26, node_nm=7, source="as the A100; recalled", kind=Kind.ASSUMED),
    "H100": Die(cm2=8.14, node_nm=5, source=f"{_LLMCARBON}; 4 nm taken as 5", kind=Kind.DATASHEET),
    "H800": Die(cm2=8.14, node_nm=5, source="as the H100", kind=Kind.ASSUMED),
    "H200": Die(cm2=8.14, node_nm=5, source="as the H100", kind=Kind.ASSUMED),
    "B100": Die(cm2=16.3, node_nm=5, source="two dies of the H100's size; recalled", kind=Kind.ASSUMED),
    "B200": Die(cm2=16.3, node_nm=5, source="two dies of the H100's size; recalled", kind=Kind.ASSUMED),
    "TPUv3": Die(cm2=7.0, node_nm=14, source=f"{_LLMCARBON}; 16 nm taken as 14", kind=Kind.DATASHEET),
    "TPUv4": Die(cm2=4.0, node_nm=7, source=_LLMCARBON, kind=Kind.DATASHEET),
}
"""By a device's name, or what stands in it before a dash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbodiedHour:
    """Embodied carbon of one device-hour; None: nobody knows it."""

    g_per_h: Range | None
    assumptions: tuple[Assumption, ...]
    warnings: tuple[str, ...] = ()


def embodied_hour(device: Accelerator, *, method: str = "lca", lifetime_years: float = LIFETIME_YEARS) -> EmbodiedHour:
    """Return the embodied carbon of a device-hour.

    low is the card alone over 6 years, mid card and server over ``lifetime_years``, high both over 3 years of which
    85 % is used: the bounds of :mod:`greentrain.ledger.embodied`.

    Args:
        device: The device.
        method: ``lca``: life-cycle figures; ``act``: area x carbon per area, an order of magnitude less.
        lifetime_years: Years over which mid is spread.
    """
    choice("embodied", method, METHODS)
    bound("lifetime_years", lifetime_years, 0.1, 50.0)
    card, server, source, kind = _lca(device) if method == "lca" else _act(device)
    if card is None:
        return EmbodiedHour(g_per_h=None, assumptions=(), warnings=(f"embodied carbon is not known: {source}",))
    spread = LifetimeHours.of(lifetime_years)
    g_per_h = Range(
        low=card.low * G_PER_KG / spread.low_h,
        mid=(card.mid + server.mid) * G_PER_KG / spread.mid_h,
        high=(card.high + server.high) * G_PER_KG / spread.high_h,
    )
    said = [
        Assumption(
            name="embodied carbon, device",
            value=f"{card.mid:.3g} kg" + ("" if card.low == card.high else f" ({card.low:.3g} to {card.high:.3g})"),
            source=source,
            kind=kind,
        ),
        Assumption(
            name="embodied carbon, its server",
            value=f"{server.mid:.3g} kg a device" if server.mid else "none beside the device's",
            source="as above" if method == "lca" else "boards, supplies and casing over 8 devices (LLMCarbon)",
            kind=Kind.ASSUMED,
        ),
        Assumption(
            name="lifetime",
            value=f"{lifetime_years:g} years; low {LOW_YEARS:g}, card alone; high {HIGH_YEARS:g}, {HIGH_USE:.0%} used",
            source="Schneider et al., arXiv 2502.01671 (6 years); EcoLogits (3); BLOOM, arXiv 2211.02001 (85 %)",
            kind=Kind.ASSUMED,
        ),
    ]
    warnings: tuple[str, ...] = ()
    if method == "act":
        warnings = (
            "embodied by area x carbon per area: reviewed assessments of whole cards come to ten times as much",
        )
    elif device.server_kg is None:
        warnings = ("the server around the device has no embodied figure and is left out: give server_kg",)
    return EmbodiedHour(g_per_h=g_per_h, assumptions=tuple(said), warnings=warnings)


def _lca(device: Accelerator) -> tuple[Range | None, Range, str, Kind]:
    server = device.server_kg or Range.exactly(0.0)
    assumed = any(word in device.embodied_source for word in ("assumption", "no LCA", "order of magnitude"))
    return device.embodied_kg, server, device.embodied_source, Kind.ASSUMED if assumed else Kind.AUDITED


def _act(device: Accelerator) -> tuple[Range | None, Range, str, Kind]:
    die = next((die for name, die in DIES.items() if f"{device.name}-".startswith(f"{name}-")), None)
    server = Range.exactly(SERVER_OTHERS_KG / min(device.node, 8))
    if die is None:
        return (
            None,
            server,
            f"no die area of {device.name} is in the table: use the life-cycle figures (lca)",
            Kind.ASSUMED,
        )
    fab = FABS[die.node_nm]
    mid = fab.kg_per_cm2
    memory_kg = device.memory_bytes.value / 1e9 * DRAM_KG_PER_GB
    low = (fab.imec_kg_per_cm2 or mid) * die.cm2 + PACKAGE_KG
    mid_kg = mid * die.cm2 + PACKAGE_KG + memory_kg
    source = (
        f"area x carbon per area: {die.cm2:g} cm2 ({die.source}) x {mid:.2f} kg/cm2 at {die.node_nm} nm"
        f" (facebookresearch/ACT; low by imec.netzero and without memory, high x {COMPONENT_P95:g},"
        f" CarbonClarity, arXiv 2507.01145), memory at {DRAM_KG_PER_GB:g} kg/GB and boards of a server from LLMCarbon"
    )
    return Range(low=low, mid=mid_kg, high=mid_kg * COMPONENT_P95), server, source, die.kind
