"""What the model has to know of a card, and the cards that are known.

Nothing is guessed: a constant that nobody gave is an error with its name. ``ASSUMED`` has values for constants of which
no figure was found (2026-11-21); they are taken only where somebody asks for them by :func:`assume`, and every figure
that rests on one says so.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from greentrain.errors import ConfigError
from greentrain.utils.devices import device_rows
from greentrain.utils.quantities import SourcedNumber, SourceKind
from greentrain.utils.validation import nearest

KINDS: Final = (SourceKind.DATASHEET, SourceKind.MEASURED, SourceKind.ASSUMED)
"""Kinds that a constant of a card may be of."""
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
    """Constants of one kind of card, and of the design that is loaded on it, as far as they are known."""

    name: str
    constants: Mapping[str, SourcedNumber] = field(default_factory=dict)
    """By their names in ``CONSTANTS``."""

    def with_(self, **values: float | SourcedNumber) -> "CardSpec":
        """Return the card with constants replaced: a number is taken in the constant's unit, and as assumed.

        Raises:
            ConfigError: There is no such constant, or a value cannot be one.
        """
        changed = dict(self.constants)
        for name, value in values.items():
            unit = unit_of(name)
            given = value if isinstance(value, SourcedNumber) else _given(float(value), unit, SourceKind.ASSUMED)
            if given.unit != unit:
                raise ConfigError(f"{self.name}.{name} is given in {given.unit}; it is in {unit}")
            if unit == "1" and not 0 < given.value <= 1:
                raise ConfigError(f"{self.name}.{name} is {given.value:g}; a share lies in (0, 1]")
            if unit in _POSITIVE and not given.value:
                raise ConfigError(f"{self.name}.{name} is 0 {unit}; it is positive")
            changed[name] = given
        return CardSpec(name=self.name, constants=changed)

    def given(self, text: str) -> "CardSpec":
        """Return the card with one constant of the form ``name=value`` or ``name=value:measured``.

        Raises:
            ConfigError: It has another form.
        """
        name, equals, rest = text.partition("=")
        number, _, kind = rest.partition(":")
        try:
            value = float(number) if equals else float("nan")
            if (kind or "assumed") not in KINDS:
                raise ConfigError(f"given by the user: kind is {kind!r}; known: {', '.join(KINDS)}")
            constant = _given(value, unit_of(name), SourceKind(kind or "assumed"))
        except (ValueError, ConfigError) as error:
            raise ConfigError(
                f"{text!r} sets no constant ({error}); write name=value, or name=value:measured where you measured it"
            ) from error
        return self.with_(**{name: constant})

    def constant(self, name: str) -> SourcedNumber:
        """Return one constant with its source.

        Raises:
            ConfigError: It is not known.
        """
        self.check((name,))
        return self.constants[name]

    def value(self, name: str) -> float:
        """Return one constant in its unit; errors are those of :meth:`constant`."""
        return self.constant(name).value

    def kind(self, name: str) -> SourceKind:
        """Return where one constant is from; errors are those of :meth:`constant`."""
        return self.constant(name).kind

    def missing(self, names: Iterable[str] | None = None) -> tuple[str, ...]:
        """Return the constants that nobody gave, of those named or of all."""
        return tuple(name for name in (CONSTANTS if names is None else names) if name not in self.constants)

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


def _given(value: float, unit: str, kind: SourceKind) -> SourcedNumber:
    return SourcedNumber(value=value, unit=unit, source="given by the user", kind=kind)


def _numbers(rows: Mapping[str, Mapping[str, Any]], kind: str = "") -> dict[str, SourcedNumber]:
    """Return the constants of a section of ``devices.toml``, which all have one kind where it is given."""
    return {
        name: SourcedNumber(
            value=row["value"], unit=unit_of(name), source=row["source"], kind=SourceKind(kind or row["kind"])
        )
        for name, row in rows.items()
    }


def _card(name: str) -> CardSpec:
    """Return a card of ``devices.toml``; bandwidth and TDP that it does not state are those of the device."""
    row = device_rows()[name]
    shared = {"memory_bytes_per_s": row.get("memory_bytes_s"), "tdp_w": row.get("tdp_w")}
    own = {key: given for key, given in {**shared, **row["card"]}.items() if key != "assumed" and given is not None}
    return CardSpec(name=name, constants=_numbers(own))


CARDS: Final[Mapping[str, CardSpec]] = {name: _card(name) for name, row in device_rows().items() if "card" in row}
U55C: Final = CARDS["U55C"]
V80: Final = CARDS["V80"]
ASSUMED: Final = {name: _numbers(device_rows()[name]["card"]["assumed"], "assumed") for name in CARDS}
"""By card, values of constants that have no figure, and why these."""
LIMITS: Final = _numbers(device_rows()["U55C"]["limits"])
"""What no design on a U55C can pass."""


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
    return card.with_(**{name: values[name] for name in card.missing() if name in values})
