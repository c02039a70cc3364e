"""Watts of a device in training, and of its share of the server around it.

    device = idle + (0.877 TDP - idle) (MFU / 0.45)^0.15

Power hardly follows utilisation: a run that does 37 % less per second draws 6 % less (Fernandez et al., 2024), which
with idle cards at 10 to 17 % of their TDP is an exponent of 0.15. A line from idle to TDP would draw far too little.
Where a whole system was metered, as TPUs and the V100, that average is taken instead.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from greentrain.estimate.hardware import Accelerator
from greentrain.estimate.values import Assumption, Range
from greentrain.utils.quantities import SourcedNumber, SourceKind
from greentrain.utils.validation import bound

GAMMA: Final = SourcedNumber(
    unit="1",
    value=0.15,
    kind=SourceKind.FITTED,
    source="one published pair: 37.22 % less utilisation, 5.87 % less power (Fernandez et al., 2024), idle at 10-17 %",
)
REFERENCE_MFU: Final = 0.45
"""MFU of a well-tuned run, at which the device draws :data:`BUSY_SHARE` of its TDP."""
BUSY_SHARE: Final = SourcedNumber(
    unit="1",
    value=0.877,
    kind=SourceKind.FITTED,
    source="H100 in training above 600 W of 700 W (OLMo 2, arXiv 2501.00656); 0.12 of TDP idle and 0.86 of the rest",
)
DEVICE_SPREAD: Final = Range(low=0.9, mid=1.0, high=1.1)
"""Of the curve: a model of node power by FLOP is 11 % off on average (arXiv 2506.14551). A device stays below TDP."""
IDLE_SHARE: Final = SourcedNumber(
    unit="1", value=0.12, kind=SourceKind.ASSUMED, source="idle H100 and A100 SXM draw 10 to 17 % of their TDP"
)
HOST_SHARE: Final = Range(low=0.35, mid=0.42, high=0.55)
"""Server around a GPU (CPUs, memory, fans, network cards), of the GPU's TDP."""
HOST_SOURCE: Final = (
    "servers of H100 draw 1.3 x TDP a GPU in training, 1.2 to 1.5: 909 to 910 W (Granite 3.0), at most 1,050 W of 1,275"
    " rated (arXiv 2412.08602)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metered:
    """Watts a device that were metered over whole systems in training."""

    node_w: Range
    source: str


_PATTERSON: Final = "Patterson et al., arXiv 2104.10350, table 4: system average a device in training, host included"
_V100: Final = Metered(node_w=Range(low=290.0, mid=330.0, high=370.0), source=f"{_PATTERSON}; bounds assumed")
METERED: Final[Mapping[str, Metered]] = {
    "V100-16GB": _V100,
    "V100-32GB": _V100,
    "TPUv3": Metered(node_w=Range(low=245.0, mid=289.0, high=310.0), source=_PATTERSON),
    "TPUv4": Metered(
        node_w=Range(low=326.0, mid=352.0, high=378.5),
        source="326 W (GLaM, arXiv 2112.06905) and 378.5 W (PaLM, arXiv 2204.02311) a chip, host included",
    ),
}
"""By a device's name; with a TDP that a user gives, or of a later year, it is another device."""
TPU_SHARE: Final = Range(low=1.1, mid=1.4, high=1.85)
"""System over chip: 289 of 262 W (v3) and 352 of 192 W (v4); for chips without a metered system."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watts:
    """Power of one device and of what is around it, and why."""

    node_w: Range
    """With the device's share of its server (W)."""
    device_w: Range | None
    """Of the device alone (W); None where only whole systems were metered."""
    assumptions: tuple[Assumption, ...]


def watts(device: Accelerator, mfu: float) -> Watts:
    """Return what a device and its share of the server draw in training.

    Args:
        device: The device.
        mfu: Share of its peak that the model's FLOP come to.
    """
    bound("mfu", mfu, 1e-6, 1.0)
    tdp = device.tdp_w
    metered = METERED.get(device.name)
    if metered is not None and tdp.kind is not SourceKind.GIVEN:
        said = Assumption(
            name="power", value=_w(metered.node_w, "a device"), source=metered.source, kind=SourceKind.MEASURED
        )
        return Watts(node_w=metered.node_w, device_w=None, assumptions=(said,))
    if device.family == "tpu":
        node_w = TPU_SHARE.times(tdp.value)
        source = f"no system of it was metered: TPUv3 and v4 drew 1.1 and 1.8 x the chip's {tdp.source}"
        said = Assumption(name="power", value=_w(node_w, "a device"), source=source, kind=SourceKind.ASSUMED)
        return Watts(node_w=node_w, device_w=None, assumptions=(said,))
    device_w = _curve(device, mfu)
    host_w = HOST_SHARE.times(tdp.value)
    return Watts(
        node_w=device_w.plus(host_w),
        device_w=device_w,
        assumptions=(
            Assumption(name="tdp", value=f"{tdp.value:g} W", source=tdp.source, kind=tdp.kind),
            Assumption(
                name="power of the device",
                value=f"{_w(device_w, 'at')} MFU {mfu:.2f}",
                source=f"curve: {BUSY_SHARE.source}; exponent 0.15 from {GAMMA.source}",
                kind=SourceKind.FITTED,
            ),
            Assumption(
                name="power of its server",
                value=_w(host_w, "a device"),
                source=HOST_SOURCE + ("" if device.family == "h100" else "; taken for other GPUs too"),
                kind=SourceKind.FITTED if device.family == "h100" else SourceKind.ASSUMED,
            ),
        ),
    )


def idle_w(device: Accelerator) -> float:
    """Return what the device alone draws without work (W)."""
    return device.idle_w.value if device.idle_w is not None else IDLE_SHARE.value * device.tdp_w.value


def _curve(device: Accelerator, mfu: float) -> Range:
    tdp_w, idle = device.tdp_w.value, idle_w(device)
    mid = idle + (BUSY_SHARE.value * tdp_w - idle) * (mfu / REFERENCE_MFU) ** GAMMA.value
    spread = DEVICE_SPREAD.times(mid)
    low, mid, high = (min(max(value, idle), tdp_w) for value in (spread.low, spread.mid, spread.high))
    return Range(low=low, mid=mid, high=high)


def _w(found: Range, of: str) -> str:
    return f"{found.mid:.0f} W ({found.low:.0f} to {found.high:.0f}) {of}"
