"""Embodied carbon: the share of making a device that falls on each hour it is reserved.

mid   card and server share, over ``carbon.lifetime_years`` (4 by default)
low   card alone, over 6 years
high  card and server share, over 3 years of which 85 % is used

A device without a figure has no rate (None), and :func:`why_unknown` says why; it is never 0. The table is
``embodied.toml``. Networks between machines and the building are in no row of it but the TPUs'.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from greentrain.config.schema import CarbonConfig
from greentrain.types import G_PER_KG, S_PER_HOUR, S_PER_YEAR, Device, DeviceKind
from greentrain.utils.files import packaged_toml

CPU_PACKAGE_KG: Final = 1.47
"""Server CPU at 16 nm: 1.47 cm2 x 1.0 kg/cm2 (LLMCarbon, data/hardware.csv, read 2026-11)."""

DRAM_KG_PER_GB: Final = 0.4
"""DRAM at 18 nm (LLMCarbon, data/hardware.csv, read 2026-11). ACT's range is 0.05 to 0.6 kg/GB."""

SERVER_OTHERS_KG: Final = 133.9
"""Boards, power supplies and casing of one server: 111.6 cm2 x 1.2 kg/cm2 (LLMCarbon, data/hardware.csv; the
file itself prints 148.2 for this product)."""

COMPONENT_P95: Final = 1.6
"""95th percentile over mean of a 7 nm component model (CarbonClarity, arXiv 2507.01145)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFootprint:
    """The embodied carbon of one kind of device."""

    pattern: str
    """Regular expression, searched in the device's name without regard to case."""
    low_kg: float
    mid_kg: float
    high_kg: float
    server_kg: float
    """Share of the server around it; added to mid and high."""
    source: str

    def matches(self, name: str) -> bool:
        """True if the footprint is of the device with this name."""
        return re.search(self.pattern, name, re.IGNORECASE) is not None


def _read() -> Iterator[DeviceFootprint]:
    table = packaged_toml("greentrain.ledger", "embodied.toml")
    for row in table["device"]:
        (low, mid, high), source = row["kg"], table["sources"].get(row["source"], row["source"])
        yield DeviceFootprint(
            pattern=row["pattern"],
            low_kg=low,
            mid_kg=mid,
            high_kg=high,
            server_kg=table["server_share_kg"] if row["in_server"] else 0.0,
            source=f"{source}; {table['server_share_source']}" if row["in_server"] else source,
        )


DEVICES: Final = tuple(_read())
"""Of ``embodied.toml``. First match wins."""


LOW_YEARS: Final = 6.0
"""Functional unit of the TPU life-cycle study (Schneider et al., arXiv 2502.01671), and BLOOM's (arXiv 2211.02001)."""
HIGH_YEARS: Final = 3.0
"""Lifetime in EcoLogits' methodology (read 2026-11)."""
HIGH_USE: Final = 0.85
"""Share of its life in which the device is reserved by anyone; BLOOM assumed the same (arXiv 2211.02001)."""
_H_PER_YEAR: Final = S_PER_YEAR / S_PER_HOUR
_HOST = (DeviceKind.CPU, DeviceKind.DRAM)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbodiedRate:
    """Embodied carbon of one device per hour that it is reserved (gCO2e/h)."""

    low_g_per_h: float
    mid_g_per_h: float
    high_g_per_h: float
    source: str

    def to_dict(self) -> dict[str, Any]:
        """Return the record that stands beside the sensor in the journal."""
        return {"low": self.low_g_per_h, "mid": self.mid_g_per_h, "high": self.high_g_per_h, "source": self.source}


class LifetimeHours(NamedTuple):
    """Hours over which embodied carbon is spread: the divisors of its low, mid and high rate."""

    low_h: float
    mid_h: float
    high_h: float

    @classmethod
    def of(cls, years: float) -> "LifetimeHours":
        """Return those of a lifetime (years)."""
        return cls(
            low_h=max(LOW_YEARS, years) * _H_PER_YEAR,
            mid_h=years * _H_PER_YEAR,
            high_h=min(HIGH_YEARS, years) * _H_PER_YEAR * HIGH_USE,
        )


def embodied_rate(
    device: Device, config: CarbonConfig, *, share: float = 1.0, memory_gb: float | None = None
) -> EmbodiedRate | None:
    """Return the embodied carbon of one device per hour, or None where nobody knows it.

    Args:
        device: The device. ``config.embodied_kg`` is searched first: the longest key that is part of its name wins,
            and stands for everything that is to be spread, server included.
        config: Overrides and lifetime.
        share: Part of the device that is this job's, as with a slice of a machine.
        memory_gb: Size of the host's memory (GB), for a DRAM device; None asks the operating system.
    """
    row = _override(device, config) or _table(device, memory_gb)
    if row is None:
        return None
    years = config.lifetime_years
    spread = LifetimeHours.of(years)
    per_kg = share * G_PER_KG
    return EmbodiedRate(
        low_g_per_h=row.low_kg * per_kg / spread.low_h,
        mid_g_per_h=(row.mid_kg + row.server_kg) * per_kg / spread.mid_h,
        high_g_per_h=(row.high_kg + row.server_kg) * per_kg / spread.high_h,
        source=f"{row.source}; over {years:g} years",
    )


def embodied_rates(devices: Sequence[Device], config: CarbonConfig) -> Mapping[str, EmbodiedRate]:
    """Return the rates of a node's devices by uid, counting nothing twice.

    Where an accelerator carries its share of the server, the host's CPUs and memory are in it and get no rate of
    their own unless ``config.embodied_kg`` names them. Several CPU or DRAM devices of one host share its boards
    and its memory evenly. Devices without a figure are left out; :func:`why_unknown` says why.
    """
    in_server = _in_server(devices)
    rates: dict[str, EmbodiedRate] = {}
    for device in devices:
        if device.kind in _HOST and in_server and _override(device, config) is None:
            continue
        twins = sum(other.kind is device.kind for other in devices) if device.kind in _HOST else 1
        rate = embodied_rate(device, config, share=1 / twins if _override(device, config) is None else 1.0)
        if rate is not None:
            rates[device.uid] = rate
    return rates


def why_unknown(device: Device, devices: Sequence[Device]) -> str:
    """Return why a device has no embodied rate, with the remedy.

    Args:
        device: The device without a rate.
        devices: All devices of the node.
    """
    if device.kind in _HOST and _in_server(devices):
        return "in the server share of the node's accelerators"
    return (
        f"no life-cycle figure in the table: give its maker's in kg with carbon.embodied_kg: {{{device.name!r}: ...}}"
    )


def _in_server(devices: Sequence[Device]) -> bool:
    """Return whether an accelerator of the node carries the host in its server share."""
    rows = [_table(device, None) for device in devices if device.kind not in _HOST]
    return any(row is not None and row.server_kg > 0 for row in rows)


def _override(device: Device, config: CarbonConfig) -> DeviceFootprint | None:
    keys = [key for key in config.embodied_kg if key.casefold() in device.name.casefold()]
    if not keys:
        return None
    key = max(keys, key=len)
    kg = config.embodied_kg[key]
    return DeviceFootprint(
        pattern="", low_kg=kg, mid_kg=kg, high_kg=kg, server_kg=0.0, source=f"carbon.embodied_kg[{key!r}] = {kg:g} kg"
    )


def _table(device: Device, memory_gb: float | None) -> DeviceFootprint | None:
    if device.kind is DeviceKind.CPU:
        kg = CPU_PACKAGE_KG + SERVER_OTHERS_KG
        return _components(
            kg, f"modelled: CPU {CPU_PACKAGE_KG:g} kg and boards, supplies, casing {SERVER_OTHERS_KG:g} kg"
        )
    if device.kind is DeviceKind.DRAM:
        size_gb = _host_memory_gb() if memory_gb is None else memory_gb
        if size_gb is None:
            return None
        return _components(size_gb * DRAM_KG_PER_GB, f"modelled: {size_gb:.0f} GB x {DRAM_KG_PER_GB:g} kg/GB")
    return next((row for row in DEVICES if row.matches(device.name)), None)


def _components(kg: float, source: str) -> DeviceFootprint:
    return DeviceFootprint(
        pattern="",
        low_kg=kg,
        mid_kg=kg,
        high_kg=kg * COMPONENT_P95,
        server_kg=0.0,
        source=f"{source} (LLMCarbon, data/hardware.csv; no LCA of this machine), high x {COMPONENT_P95:g}",
    )


def _host_memory_gb() -> float | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    except (AttributeError, OSError, ValueError):
        return None
