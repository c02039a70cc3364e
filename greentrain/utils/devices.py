"""The devices of ``devices.toml``: what estimates, the design space of cards and the emulator know of them."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Final

from greentrain.errors import ConfigError
from greentrain.utils.files import packaged_toml
from greentrain.utils.quantities import SourcedNumber, SourceKind
from greentrain.utils.validation import bound, choice, nearest

NUMBER_KEYS: Final = ("value", "kind", "source")
"""Keys of a number that states where it is from itself."""
MOST: Final = 1e21
DEVICE_KINDS: Final = (
    SourceKind.DATASHEET, SourceKind.MEASURED, SourceKind.AUDITED,
    SourceKind.FITTED, SourceKind.ASSUMED, SourceKind.GIVEN,
)  # fmt: skip
"""Kinds of numbers that a device may have."""


@functools.cache
def device_rows() -> Mapping[str, Mapping[str, Any]]:
    """Return the rows of ``devices.toml`` by the name of the device."""
    return packaged_toml("greentrain.utils", "devices.toml")


def sourced(
    given: Any,
    unit: str,
    where: str,
    row: Mapping[str, Any],
    kinds: tuple[SourceKind, ...] = DEVICE_KINDS,
    *,
    least: float = 1e-9,
    most: float = MOST,
) -> SourcedNumber:
    """Return a number with its own kind and source, or with those of the row that it stands in.

    Args:
        given: A plain number, or a mapping with ``value`` and, where the number has its own, ``kind`` and ``source``.
        unit: Unit of the number.
        where: Place of the number, for messages.
        row: The row, whose ``kind`` and ``source`` hold for plain numbers.
        kinds: Kinds that the number may be of.
        least: Least value that is allowed.
        most: Most that is allowed.

    Raises:
        ConfigError: It is no number, is out of bounds, or nobody says where it is from.
    """
    fields = check_keys(given if isinstance(given, Mapping) else {"value": given}, where, NUMBER_KEYS)
    kind, source = fields.get("kind", row.get("kind")), fields.get("source", row.get("source"))
    if not kind:
        raise ConfigError(f"{where} does not say where it is from: add kind to it, or once for all: {', '.join(kinds)}")
    choice(f"{where}.kind", str(kind), kinds)
    if not source:
        raise ConfigError(f"{where}: no source: say where the figure is from")
    value = number(fields.get("value"), where, least=least, most=most)
    return SourcedNumber(value=value, unit=unit, kind=SourceKind(str(kind)), source=str(source))


def number(given: Any, where: str, *, least: float = 1e-9, most: float = MOST) -> float:
    """Return a number of a device within its bounds.

    Args:
        given: A number, or the text of one.
        where: Place of the number, for messages.
        least: Least value that is allowed.
        most: Most that is allowed.

    Raises:
        ConfigError: It is no number, or is out of bounds.
    """
    try:
        value = float(given) if isinstance(given, (int, float, str)) and not isinstance(given, bool) else None
    except ValueError:
        value = None
    if value is None:
        raise ConfigError(f"{where} is {given!r}; expected a number")
    bound(where, value, least, most)
    return given if type(given) is int else value  # whole numbers stay whole where they are shown


def three(given: Any, where: str) -> tuple[float, float, float]:
    """Return low, mid and high (kg) of one number for all, or of a list of them in this order.

    Raises:
        ConfigError: It is neither, or one is out of bounds.
    """
    values = given if isinstance(given, (list, tuple)) else [given] * 3
    if len(values) != 3:
        raise ConfigError(f"{where} is {given!r}; give one number, or low, mid and high (kg)")
    low, mid, high = (number(value, where, least=0.0) for value in values)
    if not low <= mid <= high:
        raise ConfigError(f"{where} is {given!r}; give low, mid and high in this order (kg)")
    return low, mid, high


def check_keys(given: Any, where: str, allowed: Sequence[str]) -> Mapping[str, Any]:
    """Return a section after a check that it has known keys only.

    Args:
        given: Value that may be a section.
        where: Place of it, for messages.
        allowed: Keys that it may have.

    Raises:
        ConfigError: It is no section, or has another key.
    """
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where} is {given!r}; it must be a section with keys: {', '.join(allowed)}")
    for key in given:
        if key not in allowed:
            raise ConfigError(
                f"{where}: unknown key {key}; known here: {', '.join(allowed)}{nearest(str(key), allowed)}"
            )
    return given
