"""Embodied carbon of devices: what each figure covers and who says so.

Every row is the carbon of making one device (kgCO2e), cradle to gate unless it says otherwise. Networks between
machines and the building are in no row but the TPUs'.
"""

import re
from dataclasses import dataclass
from typing import Final

SERVER_SHARE_KG: Final = 712.0
"""Share of one accelerator in an 8-GPU training server without its GPUs: 5,700 kg / 8. EcoLogits' methodology for
AWS p5.48xlarge, from Boavizta's server model, read 2026-11. Contains the host's CPUs and memory."""

HBM_KG_PER_GB: Final = 0.853
"""Memory part of the H100 baseboard, 546 kg / (8 x 80 GB) (NVIDIA HGX H100 PCF Summary, ISO 14067)."""

CPU_PACKAGE_KG: Final = 1.47
"""Server CPU at 16 nm: 1.47 cm2 x 1.0 kg/cm2 (LLMCarbon, data/hardware.csv, read 2026-11)."""

DRAM_KG_PER_GB: Final = 0.4
"""DRAM at 18 nm (LLMCarbon, data/hardware.csv, read 2026-11). ACT's range is 0.05 to 0.6 kg/GB."""

SERVER_OTHERS_KG: Final = 133.9
"""Boards, power supplies and casing of one server: 111.6 cm2 x 1.2 kg/cm2 (LLMCarbon, data/hardware.csv; the
file itself prints 148.2 for this product)."""

COMPONENT_P95: Final = 1.6
"""95th percentile over mean of a 7 nm component model (CarbonClarity, arXiv 2507.01145)."""

_NVIDIA_H100: Final = "NVIDIA HGX H100 PCF Summary (ISO 14067, reviewed by WSP), 1,312 kg per 8-GPU baseboard"
_FALK: Final = "Falk et al., arXiv 2509.00093, teardown LCA of the A100 SXM 40 GB"
_TPU: Final = (
    "Schneider et al., arXiv 2502.01671, first-party LCA with host, transport and building; low is manufacturing only;"
    " figures quoted by others, not read in the paper"
)
_SHARE: Final = "712 kg server share (5,700 kg / 8, EcoLogits for p5.48xlarge)"


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


def _card(
    pattern: str, kg: float, source: str, low_kg: float | None = None, high_kg: float | None = None
) -> DeviceFootprint:
    return DeviceFootprint(
        pattern=pattern,
        low_kg=kg if low_kg is None else low_kg,
        mid_kg=kg,
        high_kg=kg if high_kg is None else high_kg,
        server_kg=SERVER_SHARE_KG,
        source=f"{source}; {_SHARE}",
    )


def _tpu(pattern: str, manufacturing_kg: float, embodied_kg: float, high_kg: float | None = None) -> DeviceFootprint:
    return DeviceFootprint(
        pattern=pattern,
        low_kg=manufacturing_kg,
        mid_kg=embodied_kg,
        high_kg=embodied_kg if high_kg is None else high_kg,
        server_kg=0.0,
        source=_TPU,
    )


DEVICES: Final = (
    _card(r"\bH100\b", 164.0, _NVIDIA_H100),
    _card(
        r"\bH200\b",
        164.0,
        f"assumption: no footprint of the H200 was found, the H100's is used ({_NVIDIA_H100});"
        " high adds 61 GB of HBM at 0.853 kg/GB",
        high_kg=164.0 + 61 * HBM_KG_PER_GB,
    ),
    _card(r"\bB200\b", 284.25, "NVIDIA HGX B200 PCF Summary, 2,274 kg per 8-GPU baseboard"),
    _card(
        r"\bB100\b", 284.0, "assumption: no footprint of the B100 was found; same dies as the B200 (NVIDIA PCF, 284 kg)"
    ),
    _card(
        r"\bA100\b.*\b80GB|\bA100\b.*\b80 GB",
        127.6 + 40 * HBM_KG_PER_GB,
        f"assumption: the 40 GB card ({_FALK}, 127.6 kg) plus 40 GB of HBM at 0.853 kg/GB;"
        " high from the parametric model of the A100 PCIe (Hubblo/ADEME, 181 kg) plus the same",
        low_kg=127.6,
        high_kg=181.0 + 40 * HBM_KG_PER_GB,
    ),
    _card(
        r"\bA100\b",
        127.6,
        f"{_FALK}; high from the parametric model of the A100 PCIe (Hubblo/ADEME, 181 kg)",
        high_kg=181.0,
    ),
    _card(r"\bV100\b", 95.0, "component model, no LCA exists: 80 to 110 kg", low_kg=80.0, high_kg=110.0),
    _tpu(r"\bTPU[ -]?v4i\b", 285.0, 386.0),
    _tpu(r"\bTPU[ -]?v4\b", 513.0, 693.0),
    _tpu(r"\bTPU[ -]?v5e\b|\bTPU v5 ?lite", 285.0, 402.0),
    _tpu(r"\bTPU[ -]?v5p\b", 796.0, 1010.0, high_kg=1101.0),
    _tpu(r"\bTPU[ -]?v6e\b|\bTPU v6 ?lite", 523.0, 692.0),
    DeviceFootprint(
        pattern=r"\bU55C\b",
        low_kg=45.0,
        mid_kg=57.5,
        high_kg=70.0,
        server_kg=0.0,
        source="order of magnitude only, no LCA exists: 45 to 70 kg by the size of comparable PCIe cards; card alone",
    ),
)
"""First match wins, so the more special pattern stands first."""
