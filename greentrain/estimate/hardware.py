"""The devices that are known, those that a user describes, and what a device reaches in practice.

A user's YAML has the format of ``utils/devices.toml``. A name of the table with some keys replaces those keys alone:

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

import dataclasses
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from greentrain.errors import ConfigError
from greentrain.estimate.values import Assumption, Range
from greentrain.ledger.embodied import DEVICES
from greentrain.types import Gear
from greentrain.utils.devices import check_keys, device_rows, sourced, three
from greentrain.utils.files import packaged_toml
from greentrain.utils.quantities import SourcedNumber, SourceKind
from greentrain.utils.validation import bound, nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One device. What nobody states is None, never 0."""

    name: str
    family: str
    """Class of devices that reach similar shares of their peak: ``v100``, ``a100``, ``h100``, ``b200``, ``tpu``."""
    year: int
    peak_flop_s: Mapping[Gear, SourcedNumber]
    """Dense peak by precision (FLOP/s)."""
    memory_bytes: SourcedNumber
    memory_bytes_s: SourcedNumber
    link_bytes_s: SourcedNumber
    """To the others of its node, one direction (bytes/s)."""
    node: int
    """Devices of a node, or of a pod's fast network."""
    network_bytes_s: SourcedNumber
    """To other nodes, one direction (bytes/s)."""
    tdp_w: SourcedNumber
    idle_w: SourcedNumber | None
    embodied_kg: Range | None
    """Of the card: low, mid, high (kgCO2e)."""
    embodied_source: str
    server_kg: Range | None
    """Share of the server around it (kgCO2e)."""


_CONSTANTS: Final = {
    "memory_bytes": "B", "memory_bytes_s": "B/s", "link_bytes_s": "B/s", "network_bytes_s": "B/s", "tdp_w": "W",
}  # fmt: skip
"""Units of the numbers that every device has."""
_NEEDED: Final = ("family", "year", "peak_flop_s", *_CONSTANTS, "node")
_EMBODIED: Final = ("embodied_as", "embodied_note", "embodied_kg", "embodied_source", "server_kg")
_KEYS: Final = (*_NEEDED, *_EMBODIED, "aliases", "kind", "source", "idle_w")
_NO_FOOTPRINT: Final = "no life-cycle figure was found: give embodied_kg in a file of devices"
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
    """Return a device by name, as :meth:`Catalogue.find` does.

    Args:
        name: Name of the device, or a usual spelling of it.
        path: Path of a user's YAML file of devices; None: the table alone.
    """
    return catalogue(path).find(name)


def catalogue(path: Path | None = None) -> Catalogue:
    """Return the table with a user's file over it.

    Args:
        path: Path of the user's YAML file, as at the head of this module; None: the table alone.

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
        check_keys(row, f"{path}: {name}", _KEYS)
        stamped = {"kind": SourceKind.GIVEN.value, "source": str(path), **row}
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
    return _catalogue(_rows(), "devices.toml: ")


def _rows() -> Mapping[str, Mapping[str, Any]]:
    """Return the devices that train; what else the file says of an FPGA card is of its design for frozen passes."""
    own = {name: row for name, row in device_rows().items() if "family" in row}
    return {name: {key: row[key] for key in row if key not in ("card", "limits")} for name, row in own.items()}


def _catalogue(table: Mapping[str, Mapping[str, Any]], where: str) -> Catalogue:
    return Catalogue(
        devices={name: _device(name, row, f"{where}{name}") for name, row in table.items()},
        spellings={str(alias): name for name, row in table.items() for alias in row.get("aliases", ())},
    )


def _device(name: str, row: Mapping[str, Any], where: str) -> Accelerator:
    check_keys(row, where, _KEYS)
    for key in _NEEDED:
        if key not in row:
            raise ConfigError(f"{where}: {key} is missing, and there is no default for it")
    peaks = row["peak_flop_s"]
    check_keys(peaks, f"{where}.peak_flop_s", tuple(gear.value for gear in Gear))
    if not peaks:
        raise ConfigError(f"{where}.peak_flop_s is empty: give the dense peak of one precision at least, as bf16")
    for key, low, high in (("year", 2000, 2100), ("node", 1, 1e6)):
        if type(row[key]) is not int:
            raise ConfigError(f"{where}.{key} is {row[key]!r}; it must be a whole number")
        bound(f"{where}.{key}", row[key], low, high)
    kg, server, source = _embodied(row, where)
    constants = {key: sourced(row[key], unit, f"{where}.{key}", row) for key, unit in _CONSTANTS.items()}
    return Accelerator(
        name=name,
        family=str(row["family"]),
        year=row["year"],
        peak_flop_s={Gear(g): sourced(v, "FLOP/s", f"{where}.peak_flop_s.{g}", row) for g, v in peaks.items()},
        node=row["node"],
        idle_w=sourced(row["idle_w"], "W", f"{where}.idle_w", row) if row.get("idle_w") is not None else None,
        embodied_kg=kg,
        embodied_source=source,
        server_kg=server,
        **constants,
    )


def _embodied(row: Mapping[str, Any], where: str) -> tuple[Range | None, Range | None, str]:
    """Return kilograms of the card, of its share of the server, and who says so."""
    if "embodied_kg" in row:
        if "embodied_as" in row:
            raise ConfigError(f"{where}: give embodied_kg or embodied_as, not both")
        source = str(row.get("embodied_source", row.get("source", where)))
        server = Range.of(*three(row["server_kg"], f"{where}.server_kg")) if "server_kg" in row else None
        return Range.of(*three(row["embodied_kg"], f"{where}.embodied_kg")), server, source
    if "embodied_as" not in row:
        return None, None, _NO_FOOTPRINT
    found = next((device for device in DEVICES if device.matches(str(row["embodied_as"]))), None)
    if found is None:
        raise ConfigError(f"{where}.embodied_as is {row['embodied_as']!r}: the table of footprints has no such device")
    note = f"; {row['embodied_note']}" if "embodied_note" in row else ""
    card = Range(low=found.low_kg, mid=found.mid_kg, high=found.high_kg)
    return card, Range.exactly(found.server_kg), found.source + note


def _run_in(name: str) -> str:
    """Return a name without punctuation: ``RTX-4090`` is rtx4090."""
    return re.sub(r"[^a-z0-9]+", "", name.casefold())


def _words(name: str) -> frozenset[str]:
    """Return what tells a device from others in its name: ``NVIDIA H100 80GB HBM3`` is h100 and 80."""
    text = re.sub(r"(?<=\d)\s*gi?b\b|hbm\w*", " ", name.casefold())
    text = re.sub(r"(sxm)\d?|(pcie|tpu)", r" \1\2 ", text)
    return frozenset(re.findall(r"[a-z0-9]+", text)) - _NOISE


@dataclass(frozen=True, slots=True, kw_only=True)
class Practice:
    """Constants of the roofline. Shares are of the datasheet's figure; "exposed" is what does not hide behind work."""

    eta: SourcedNumber
    """Of the peak: large matrix products, before tiles, waves and short inner dimensions take theirs."""
    units: SourcedNumber
    """Units that a wave of tiles occupies (multiprocessors, matrix units)."""
    attention: SourcedNumber
    """Of the peak: the two products of attention."""
    memory_rate: SourcedNumber
    link_rate: SourcedNumber
    network_rate: SourcedNumber
    exposed_tensor: SourcedNumber
    exposed_pipeline: SourcedNumber
    """Of the transfers between pipeline stages."""
    exposed_data: SourcedNumber
    """Of gradient and weight traffic, at least: the first and the last bucket have nothing to hide behind."""
    exposed_experts: SourcedNumber
    """Of the traffic to experts."""
    exposed_experts_pipelined: SourcedNumber
    expert_nodes: SourcedNumber
    memory_share: SourcedNumber
    reserve_bytes: SourcedNumber

    def assumptions(self) -> tuple[Assumption, ...]:
        """Return every constant with its source."""
        return tuple(
            Assumption(name=f"roofline.{field.name}", value=f"{each.value:g}", source=each.source, kind=each.kind)
            for field in dataclasses.fields(self)
            for each in (getattr(self, field.name),)
        )


_UNITS: Final = {"units": "units", "expert_nodes": "nodes", "reserve_bytes": "B"}
"""Of what is no share."""


def _read_practice() -> dict[str, dict[str, SourcedNumber]]:
    return {
        group: {
            name: sourced(row, _UNITS.get(group, _UNITS.get(name, "1")), f"practice.toml: {group}.{name}", {})
            for name, row in rows.items()
        }
        for group, rows in packaged_toml("greentrain.estimate", "practice.toml").items()
    }


_PRACTICE: Final = _read_practice()
ETA: Final = _PRACTICE["eta"]
"""By family, share of the peak that large matrix products reach."""


def is_known(accelerator: Accelerator) -> bool:
    """Return whether the device's family has a share of the peak of its own, and not the one for all others."""
    return accelerator.family in ETA


def practice_of(accelerator: Accelerator, precision: Gear) -> Practice:
    """Return the constants for a device in one precision."""
    other = _PRACTICE["other"]
    eta, fp8 = ETA.get(accelerator.family, other["eta"]), other["fp8"]
    if precision.is_low:
        eta = SourcedNumber(
            value=eta.value * fp8.value,
            unit="1",
            kind=SourceKind.ASSUMED,
            source=f"{fp8.value} x {eta.value}: {fp8.source}; {eta.source}",
        )
    units = _PRACTICE["units"].get(accelerator.family, other["units"])
    return Practice(eta=eta, units=units, **_PRACTICE["common"])


def peak_flop_s(accelerator: Accelerator, precision: Gear) -> float:
    """Return the peak in a precision; BF16 and FP16 stand in for one another.

    Raises:
        ConfigError: The device has no such precision, or nobody states its peak.
    """
    twins = {Gear.BF16: Gear.FP16, Gear.FP16: Gear.BF16}
    for gear in (precision, twins.get(precision, precision)):
        if gear in accelerator.peak_flop_s:
            return accelerator.peak_flop_s[gear].value
    raise ConfigError(
        f"{accelerator.name} has no peak in {precision.value}; known: "
        f"{', '.join(gear.value for gear in accelerator.peak_flop_s)}. Choose one of them as precision"
    )
