"""What the model has to know of a card. Nothing is guessed: a constant that nobody gave is an error with its name.

A number that says where it is from.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

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
