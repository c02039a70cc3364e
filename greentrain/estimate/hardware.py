"""The devices that are known, and those that a user describes.

A user's YAML has the format of ``hardware.toml``. A name of the table with some keys replaces those keys alone:

    H100-SXM: {tdp_w: 500, idle_w: {value: 68, kind: measured, source: our rack}}
    Own-1:
      family: h100
      year: 2026
      peak_flop_s: {bf16: 1.0e+15}
      memory_bytes: 96.0e+9
      memory_bytes_s: 3.0e+12
      link_bytes_s: 4.0e+11
      node: 8
      network_bytes_s: 5.0e+10
      tdp_w: 600
      embodied_kg: [150, 180, 250]     # or embodied_as, a name in the table of footprints
"""

import functools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final

from greentrain.errors import ConfigError
from greentrain.estimate.accelerator import Accelerator, Constant
from greentrain.estimate.values import Kind, Range
from greentrain.ledger.embodied_table import DEVICES
from greentrain.types import Gear
from greentrain.utils.validation import bound, choice, nearest

_CONSTANTS: Final = ("memory_bytes", "memory_bytes_s", "link_bytes_s", "network_bytes_s", "tdp_w")
_NEEDED: Final = ("family", "year", "peak_flop_s", *_CONSTANTS, "node")
_EMBODIED: Final = ("embodied_as", "embodied_note", "embodied_kg", "embodied_source", "server_kg")
_KEYS: Final = (*_NEEDED, *_EMBODIED, "aliases", "kind", "source", "idle_w")
_CONSTANT: Final = ("value", "kind", "source")
_NO_FOOTPRINT: Final = "no life-cycle figure was found: give embodied_kg in a file of devices"
_MOST: Final = 1e21
_FORMS: Final = frozenset(("sxm", "pcie"))
_NOISE: Final = frozenset(
    ("nvidia", "tesla", "amd", "instinct", "google", "cloud", "xilinx", "alveo", "tensor", "core", "gpu", "oam", "hgx")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """Devices by name, and how else people write them."""

    devices: Mapping[str, Accelerator]
    spellings: Mapping[str, str]
    """By another spelling, the name."""

    def find(self, name: str) -> Accelerator:
        """Return a device; case, vendor, order of the words and punctuation do not matter.

        Raises:
            ConfigError: There is none; the message lists the nearest names.
        """
        if name in self.devices:
            return self.devices[name]
        wanted = _words(name)
        spelled = [(n, n) for n in self.devices] + list(self.spellings.items())
        run_in = _run_in(name)
        exact = {of for s, of in spelled if wanted and (_words(s) == wanted or _run_in(s) == run_in)}
        words = {
            n: frozenset[str]().union(*(_words(spelling) for spelling, of in spelled if of == n)) for n in self.devices
        }
        telling = {word for word in wanted - _FORMS if not word.isdigit()}
        like = exact or {n for n in self.devices if telling and wanted <= words[n]}
        if len(like) == 1:
            return self.devices[like.pop()]
        raise ConfigError(
            f"device {name!r} is not in the table; known: {', '.join(self.devices)}"
            f"{nearest(name, (*self.devices, *self.spellings)) or '.'} Describe others in a YAML file of devices"
        )


def known(path: Path | None = None) -> Mapping[str, Accelerator]:
    """Return the devices by name, with those of a user's file."""
    return catalogue(path).devices


def find(name: str, path: Path | None = None) -> Accelerator:
    """Return a device by name, as :meth:`Catalogue.find` does."""
    return catalogue(path).find(name)


def catalogue(path: Path | None = None) -> Catalogue:
    """Return the table with a user's file over it.

    Args:
        path: YAML, as at the head of this module; None: the table alone.

    Raises:
        ConfigError: The file cannot be read, or a key, value or unit in it is wrong.
    """
    if path is None:
        return _shipped()
    from greentrain.utils import yaml_file  # loads yaml

    given = yaml_file.read(path, "table of devices")
    if not isinstance(given, Mapping):
        raise ConfigError(f"{path}: write devices by name, each with its keys")
    table = {**_rows()}
    for name, row in given.items():
        _check_keys(row, f"{path}: {name}", _KEYS)
        stamped = {"kind": Kind.GIVEN.value, "source": str(path), **row}
        table[str(name)] = _over(table[str(name)], stamped) if str(name) in table else stamped
    return _catalogue(table, f"{path}: ")


def _over(old: Mapping[str, Any], new: Mapping[str, Any]) -> Mapping[str, Any]:
    """Replace keys of a row; what stays keeps the source that it had."""
    stamp = {"kind": old.get("kind"), "source": old.get("source")}
    row: dict[str, Any] = {**old}
    if {"embodied_kg", "embodied_as"} & new.keys():
        row = {key: value for key, value in old.items() if key not in _EMBODIED}
    for key in (*_CONSTANTS, "idle_w"):
        if isinstance(row.get(key), (int, float)):
            row[key] = {"value": row[key], **stamp}
    peaks = {g: {"value": v, **stamp} if isinstance(v, (int, float)) else v for g, v in row["peak_flop_s"].items()}
    return {**row, **new, "peak_flop_s": {**peaks, **new.get("peak_flop_s", {})}}


@functools.cache
def _shipped() -> Catalogue:
    return _catalogue(_rows(), "hardware.toml: ")


@functools.cache
def _rows() -> Mapping[str, Mapping[str, Any]]:
    text = resources.files("greentrain.estimate").joinpath("hardware.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def _catalogue(table: Mapping[str, Mapping[str, Any]], where: str) -> Catalogue:
    return Catalogue(
        devices={name: _device(name, row, f"{where}{name}") for name, row in table.items()},
        spellings={str(alias): name for name, row in table.items() for alias in row.get("aliases", ())},
    )


def _device(name: str, row: Mapping[str, Any], where: str) -> Accelerator:
    _check_keys(row, where, _KEYS)
    for key in _NEEDED:
        if key not in row:
            raise ConfigError(f"{where}: {key} is missing, and there is no default for it")
    peaks = row["peak_flop_s"]
    _check_keys(peaks, f"{where}.peak_flop_s", tuple(gear.value for gear in Gear))
    if not peaks:
        raise ConfigError(f"{where}.peak_flop_s is empty: give the dense peak of one precision at least, as bf16")
    for key, low, high in (("year", 2000, 2100), ("node", 1, 1e6)):
        if type(row[key]) is not int:
            raise ConfigError(f"{where}.{key} is {row[key]!r}; it must be a whole number")
        bound(f"{where}.{key}", row[key], low, high)
    kg, server, source = _embodied(row, where)
    constants = {key: _constant(row[key], row, f"{where}.{key}") for key in _CONSTANTS}
    return Accelerator(
        name=name,
        family=str(row["family"]),
        year=row["year"],
        peak_flop_s={Gear(g): _constant(v, row, f"{where}.peak_flop_s.{g}") for g, v in peaks.items()},
        node=row["node"],
        idle_w=_constant(row["idle_w"], row, f"{where}.idle_w") if row.get("idle_w") is not None else None,
        embodied_kg=kg,
        embodied_source=source,
        server_kg=server,
        **constants,
    )


def _constant(given: Any, row: Mapping[str, Any], where: str) -> Constant:
    """Return a figure with its own kind and source, or with those of its device."""
    fields: Mapping[str, Any] = given if isinstance(given, Mapping) else {"value": given}
    _check_keys(fields, where, _CONSTANT)
    kind = fields.get("kind", row.get("kind"))
    source = fields.get("source", row.get("source"))
    choice(f"{where}.kind", str(kind), tuple(each.value for each in Kind))
    if not source:
        raise ConfigError(f"{where}: no source: say where the figure is from")
    return Constant(value=_number(fields.get("value"), where), kind=Kind(kind), source=str(source))


def _embodied(row: Mapping[str, Any], where: str) -> tuple[Range | None, Range | None, str]:
    """Return kilograms of the card, of its share of the server, and who says so."""
    if "embodied_kg" in row:
        if "embodied_as" in row:
            raise ConfigError(f"{where}: give embodied_kg or embodied_as, not both")
        source = str(row.get("embodied_source", row.get("source", where)))
        server = _range(row["server_kg"], f"{where}.server_kg") if "server_kg" in row else None
        return _range(row["embodied_kg"], f"{where}.embodied_kg"), server, source
    if "embodied_as" not in row:
        return None, None, _NO_FOOTPRINT
    found = next((device for device in DEVICES if device.matches(str(row["embodied_as"]))), None)
    if found is None:
        raise ConfigError(f"{where}.embodied_as is {row['embodied_as']!r}: the table of footprints has no such device")
    note = f"; {row['embodied_note']}" if "embodied_note" in row else ""
    card = Range(low=found.low_kg, mid=found.mid_kg, high=found.high_kg)
    return card, Range.exactly(found.server_kg), found.source + note


def _range(given: Any, where: str) -> Range:
    values = given if isinstance(given, (list, tuple)) else [given] * 3
    if len(values) != 3:
        raise ConfigError(f"{where} is {given!r}; give one number, or low, mid and high (kg)")
    low, mid, high = (_number(value, where, least=0.0) for value in values)
    if not low <= mid <= high:
        raise ConfigError(f"{where} is {given!r}; give low, mid and high in this order (kg)")
    return Range(low=low, mid=mid, high=high)


def _number(given: Any, where: str, *, least: float = 1e-9) -> float:
    try:
        value = float(given) if isinstance(given, (int, float, str)) and not isinstance(given, bool) else None
    except ValueError:
        value = None
    if value is None:
        raise ConfigError(f"{where} is {given!r}; expected a number")
    bound(where, value, least, _MOST)
    return value


def _check_keys(given: Any, where: str, allowed: tuple[str, ...]) -> None:
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where} is {given!r}; it must be a section with keys")
    for key in given:
        if key not in allowed:
            raise ConfigError(f"{where}: unknown key {key}; known here: {', '.join(allowed)}{nearest(key, allowed)}")


def _run_in(name: str) -> str:
    """Return a name without punctuation: ``RTX-4090`` is rtx4090."""
    return re.sub(r"[^a-z0-9]+", "", name.casefold())


def _words(name: str) -> frozenset[str]:
    """Return what tells a device from others in its name: ``NVIDIA H100 80GB HBM3`` is h100 and 80."""
    text = re.sub(r"(?<=\d)\s*gi?b\b|hbm\w*", " ", name.casefold())
    text = re.sub(r"(sxm)\d?|(pcie|tpu)", r" \1\2 ", text)
    return frozenset(re.findall(r"[a-z0-9]+", text)) - _NOISE
