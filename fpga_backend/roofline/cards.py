"""All constants of the model, with their sources. ``None`` is a figure that was looked for and not found (2026-11-21).

``ASSUMED`` holds values for those: nobody measured them. They are taken only where somebody asks for them by
:func:`assume`, and every figure that rests on one says so.
"""

from collections.abc import Mapping
from typing import Final

from greentrain.errors import ConfigError
from greentrain.fpga_backend.roofline.card_spec import CardSpec, Kind, Quantity, unit_of
from greentrain.utils.validation import nearest


def _quantity(name: str, value: float, kind: Kind, source: str) -> Quantity:
    return Quantity(value=value, unit=unit_of(name), source=source, kind=kind)


def _card(name: str, **constants: tuple[float, Kind, str]) -> CardSpec:
    return CardSpec(name=name, **{key: _quantity(key, *given) for key, given in constants.items()})


U55C: Final = _card(
    "U55C",
    dsps=(
        8304,
        "datasheet",
        "FINN, util/platforms.py (github.com/Xilinx/finn), after UG1120: 9,024 DSP48E2 less those of the XDMA shell",
    ),
    macs8_per_dsp=(2, "measured", "rtl/gt_dual_mac.v: two products of one DSP48E2, every pair of operands simulated"),
    macs16_per_dsp=(1, "datasheet", "UG579: a 27 x 18 multiplier; for binary16 its significands, adders apart"),
    memory_bytes=(16 * 2**30, "datasheet", "UG1393 2023.1, HBM Configuration and Use: 32 channels of 512 MB"),
    memory_bytes_per_s=(460e9, "datasheet", "UG1393 2023.1, HBM Configuration and Use: 32 x 14.375 GB/s"),
    memory_efficiency=(
        400 / 460,
        "datasheet",
        "xilinx.github.io/xbtest, Calibration - Memory CU power: 32 channels at full rate are 400 GB/s",
    ),
    pcie_bytes_per_s=(
        9302.8 * 2**20,
        "measured",
        "github.com/Xilinx/XRT/issues/6883: a user's xbutil validate on a U200 with the Gen3x16 XDMA shell, writing",
    ),
    launch_s=(
        100e-6,
        "measured",
        "github.com/Xilinx/XRT/issues/8687: a user's U55C, 50 to 100 us through OpenCL; the larger is taken",
    ),
    memory_j_per_byte=(
        40 / 400e9,
        "datasheet",
        "xilinx.github.io/xbtest, Calibration - Memory CU power: up to 40 W at 400 GB/s",
    ),
    tdp_w=(115, "datasheet", "AMD's product brief of the U55C, as others quote it; the brief itself was not read"),
)

U55C_CHIP_DSPS: Final = Quantity(
    value=9024,
    unit="DSP",
    source="DSP48E2 of the whole device, as the area tables after UG1120 and DS978 have it",
    kind="datasheet",
)
U55C_LINK: Final = Quantity(
    value=16 * 8e9 * 128 / 130 / 8,
    unit="B/s",
    source="UG1120, U55C Gen3x16 XDMA: 16 lanes of 8 GT/s, 128b/130b; packets' headers not taken off",
    kind="datasheet",
)

V80: Final = _card(
    "V80",
    dsps=(10848, "datasheet", "all DSP58 of the device, as the DFVG paper (2026) quotes AMD; AMD's sheet was not read"),
    macs8_per_dsp=(3, "datasheet", "AM004 1.2.1, Vector Fixed-Point ALU: a dot product of three; this RTL has none"),
    macs16_per_dsp=(1, "datasheet", "UG1273 2024.2, DSP Primitives: a 27 x 24 multiplier"),
    memory_bytes=(32 * 2**30, "datasheet", "xilinx.github.io/amr-docs 3.0.0, V80 Board Documentation"),
    memory_bytes_per_s=(
        820e9,
        "datasheet",
        "as the DFVG paper (2026) quotes AMD; AMD's amr-docs 3.0.0 say that their design approaches 460 GB/s",
    ),
    tdp_w=(190, "datasheet", "as the DFVG paper (2026) quotes AMD; AMD's sheet was not read"),
)

CARDS: Final[Mapping[str, CardSpec]] = {card.name: card for card in (U55C, V80)}

ASSUMED: Final[Mapping[str, Mapping[str, tuple[float, str]]]] = {
    "U55C": {
        "dsp_share": (4096 / 8304, "an array of 8,192 MACs, the largest of the area table that leaves half the region"),
        "clock_hz": (250e6, "no design of this project was placed and routed, so there is no timing report"),
        "array_efficiency": (0.8, "filling, draining and rows that do not fill a tile"),
        "queue_depth": (4, "what a caller lets wait"),
        "idle_power_w": (30, "twice the 14.5 to 15 W of a U55C with its shell alone, PC2 Paderborn's cluster manual"),
        "mac8_j": (10e-12, "a full array at 250 MHz then takes 16 W beyond idle"),
        "mac16_j": (25e-12, "2.5 times an 8-bit one"),
        "pcie_j_per_byte": (80e-12, "10 pJ a bit"),
    },
    "V80": {
        "dsp_share": (4096 / 10848, "as many slices as are assumed of the U55C"),
        "clock_hz": (300e6, "a generation newer than the U55C, where 250 MHz are assumed"),
        "array_efficiency": (0.8, "as the U55C"),
        "memory_efficiency": (400 / 460, "as the U55C"),
        "pcie_bytes_per_s": (20e9, "about 0.62 of Gen5 x8, the share that the U55C's shell reaches of Gen3 x16"),
        "launch_s": (100e-6, "as the U55C"),
        "queue_depth": (4, "what a caller lets wait"),
        "idle_power_w": (45, "above the 34 to 41 W of VCK5000s with their shell alone, PC2 Paderborn's cluster manual"),
        "mac8_j": (7e-12, "less than the U55C: a newer process"),
        "mac16_j": (18e-12, "2.5 times an 8-bit one"),
        "memory_j_per_byte": (100e-12, "as the U55C"),
        "pcie_j_per_byte": (80e-12, "10 pJ a bit"),
    },
}
"""By card, values of constants that have no figure, and why these. The manual: upb-pc2.atlassian.net, "Power and Energy
Measurements of FPGAs"."""


def named(name: str) -> CardSpec:
    """Return a card by its name, in any case.

    Raises:
        ConfigError: There is none.
    """
    found = CARDS.get(name.upper())
    if found is None:
        raise ConfigError(f"no card {name!r}; known: {', '.join(CARDS)}{nearest(name.upper(), CARDS)}")
    return found


def assume(card: CardSpec) -> CardSpec:
    """Return a card whose missing constants have assumed values; those that are known stay."""
    values = ASSUMED.get(card.name, {})
    return card.with_(
        **{
            name: _quantity(name, values[name][0], "assumed", values[name][1])
            for name in card.missing()
            if name in values
        }
    )
