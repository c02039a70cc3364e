"""What the model has to know of a card, and the cards that are known.

Nothing is guessed: a constant that nobody gave is an error with its name. ``ASSUMED`` has values for constants of which
no figure was found (2026-11-21); they are taken only where somebody asks for them by :func:`assume`, and every figure
that rests on one says so.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from greentrain.errors import ConfigError
from greentrain.utils.validation import nearest

Kind = Literal["datasheet", "measured", "assumed"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """A constant of a model.

    Raises:
        ConfigError: The value is not finite or is negative, or the kind is unknown.
    """

    value: float
    unit: str
    source: str
    """Document, or who measured it and how."""
    kind: Kind
    """``datasheet``: a maker's document; ``measured``: somebody measured it on a part; ``assumed``: neither."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.value) and self.value >= 0):
            raise ConfigError(f"{self.value!r} {self.unit} ({self.source}): a quantity is finite and not negative")
        if self.kind not in KINDS:
            raise ConfigError(f"{self.source}: kind is {self.kind!r}; known: {', '.join(KINDS)}")

    def __str__(self) -> str:
        """Return value, unit, kind and source in one line."""
        return f"{self.value:g} {self.unit} ({self.kind}: {self.source})"


CONSTANTS: Mapping[str, tuple[str, str]] = {
    "dsps": ("DSP", "DSP slices that a design may use, behind the shell"),
    "macs8_per_dsp": ("MAC/clock", "8-bit products of one DSP slice in a clock"),
    "macs16_per_dsp": ("MAC/clock", "16-bit products of one DSP slice in a clock"),
    "dsp_share": ("1", "share of those DSP slices that the design multiplies with"),
    "clock_hz": ("Hz", "clock of the design, from its timing report"),
    "array_efficiency": ("1", "share of the clocks of a product in which the array works"),
    "memory_bytes": ("B", "memory of the card"),
    "memory_bytes_per_s": ("B/s", "peak bandwidth of that memory"),
    "memory_efficiency": ("1", "share of the peak that kernels reach"),
    "pcie_bytes_per_s": ("B/s", "what a copy between host and card reaches, one way"),
    "launch_s": ("s", "from the host's call to the kernel's first clock, and back"),
    "queue_depth": ("batches", "batches that may wait for the card"),
    "idle_power_w": ("W", "board power with the design loaded and nothing to do"),
    "mac8_j": ("J", "board energy of one 8-bit product beyond idle"),
    "mac16_j": ("J", "board energy of one 16-bit product beyond idle"),
    "memory_j_per_byte": ("J/B", "board energy of one byte of memory traffic beyond idle"),
    "pcie_j_per_byte": ("J/B", "board energy of one byte over PCIe beyond idle"),
    "tdp_w": ("W", "board power that cooling is laid out for"),
}
"""Unit and meaning of each constant of a card."""
_POSITIVE = ("DSP", "MAC/clock", "Hz", "B", "B/s", "batches")


@dataclass(frozen=True, slots=True, kw_only=True)
class CardSpec:
    """Constants of one kind of card, and of the design that is loaded on it. ``None``: not known."""

    name: str
    dsps: Quantity | None = None
    macs8_per_dsp: Quantity | None = None
    macs16_per_dsp: Quantity | None = None
    dsp_share: Quantity | None = None
    clock_hz: Quantity | None = None
    array_efficiency: Quantity | None = None
    memory_bytes: Quantity | None = None
    memory_bytes_per_s: Quantity | None = None
    memory_efficiency: Quantity | None = None
    pcie_bytes_per_s: Quantity | None = None
    launch_s: Quantity | None = None
    queue_depth: Quantity | None = None
    idle_power_w: Quantity | None = None
    mac8_j: Quantity | None = None
    mac16_j: Quantity | None = None
    memory_j_per_byte: Quantity | None = None
    pcie_j_per_byte: Quantity | None = None
    tdp_w: Quantity | None = None

    def with_(self, **values: float | Quantity) -> "CardSpec":
        """Return the card with constants replaced: a number is taken in the constant's unit, and as assumed.

        Raises:
            ConfigError: There is no such constant, or a value cannot be one.
        """
        changed: dict[str, Any] = {}
        for name, value in values.items():
            unit = unit_of(name)
            given = value if isinstance(value, Quantity) else _given(float(value), unit, "assumed")
            if given.unit != unit:
                raise ConfigError(f"{self.name}.{name} is given in {given.unit}; it is in {unit}")
            if unit == "1" and not 0 < given.value <= 1:
                raise ConfigError(f"{self.name}.{name} is {given.value:g}; a share lies in (0, 1]")
            if unit in _POSITIVE and not given.value:
                raise ConfigError(f"{self.name}.{name} is 0 {unit}; it is positive")
            changed[name] = given
        return dataclasses.replace(self, **changed)

    def given(self, text: str) -> "CardSpec":
        """Return the card with one constant of the form ``name=value`` or ``name=value:measured``.

        Raises:
            ConfigError: It has another form.
        """
        name, equals, rest = text.partition("=")
        number, _, kind = rest.partition(":")
        try:
            value = float(number) if equals else float("nan")
            quantity = _given(value, unit_of(name), kind or "assumed")  # type: ignore[arg-type]
        except (ValueError, ConfigError) as error:
            raise ConfigError(
                f"{text!r} sets no constant ({error}); write name=value, or name=value:measured where you measured it"
            ) from error
        return self.with_(**{name: quantity})

    def value(self, name: str) -> float:
        """Return one constant in its unit.

        Raises:
            ConfigError: It is not known.
        """
        self.check((name,))
        found: Quantity = getattr(self, name)
        return found.value

    def kind(self, name: str) -> Kind:
        """Return where a known constant is from."""
        found: Quantity = getattr(self, name)
        return found.kind

    def missing(self, names: Iterable[str] | None = None) -> tuple[str, ...]:
        """Return the constants that nobody gave, of those named or of all."""
        return tuple(name for name in (CONSTANTS if names is None else names) if getattr(self, name) is None)

    def check(self, names: Iterable[str]) -> None:
        """Raise if one of these constants is not known.

        Raises:
            ConfigError: Names each, its unit, what it is and how to give it.
        """
        if missing := self.missing(names):
            lines = "\n".join(f"  {name} ({unit_of(name)}): {about(name)}" for name in missing)
            raise ConfigError(
                f"{self.name} lacks {len(missing)} constants for which no public figure is known:\n{lines}\n"
                f"Give them: card.with_({missing[0]}=...), or --set {self.name}.{missing[0]}=VALUE[:measured]; "
                "or take assumed ones knowingly: assume(card), --assume."
            )


def unit_of(name: str) -> str:
    """Return a constant's unit.

    Raises:
        ConfigError: There is none of that name.
    """
    if name not in CONSTANTS:
        raise ConfigError(f"no constant {name!r}; known: {', '.join(CONSTANTS)}{nearest(name, CONSTANTS)}")
    return CONSTANTS[name][0]


def about(name: str) -> str:
    """Return what a constant is, in a few words."""
    return CONSTANTS[name][1]


def _given(value: float, unit: str, kind: Kind) -> Quantity:
    return Quantity(value=value, unit=unit, source="given by the user", kind=kind)


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
