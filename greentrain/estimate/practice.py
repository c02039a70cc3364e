"""What a device reaches of its datasheet, and how much of its traffic hides behind work: the roofline's constants."""

import dataclasses
from dataclasses import dataclass
from typing import Final

from greentrain.errors import ConfigError
from greentrain.estimate.accelerator import Accelerator, Constant
from greentrain.estimate.values import Assumption, Kind
from greentrain.types import Gear

_MEGATRON: Final = "eight step times of Megatron-LM on A100-80GB, 22B to 1T (arXiv 2205.05198, table 5)"
_OURS: Final = "no published measurement; benchmarks/estimator_steps.py shows what follows from it"


def _fitted(value: float, source: str) -> Constant:
    return Constant(value=value, kind=Kind.FITTED, source=source)


def _assumed(value: float, source: str = _OURS) -> Constant:
    return Constant(value=value, kind=Kind.ASSUMED, source=source)


@dataclass(frozen=True, slots=True, kw_only=True)
class Practice:
    """Constants of the roofline. Shares are of the datasheet's figure; "exposed" is what does not hide behind work."""

    eta: Constant
    """Of the peak: large matrix products, before tiles, waves and short inner dimensions take theirs."""
    units: Constant
    """Units that a wave of tiles occupies (multiprocessors, matrix units)."""
    attention: Constant
    """Of the peak: the two products of attention."""
    memory_rate: Constant
    link_rate: Constant
    network_rate: Constant
    exposed_tensor: Constant
    exposed_pipeline: Constant
    """Of the transfers between pipeline stages."""
    exposed_data: Constant
    """Of gradient and weight traffic, at least: the first and the last bucket have nothing to hide behind."""
    exposed_experts: Constant
    """Of the traffic to experts."""
    exposed_experts_pipelined: Constant
    expert_nodes: Constant
    memory_share: Constant
    reserve_bytes: Constant

    def assumptions(self) -> tuple[Assumption, ...]:
        """Return every constant with its source."""
        return tuple(
            Assumption(name=f"roofline.{field.name}", value=f"{each.value:g}", source=each.source, kind=each.kind)
            for field in dataclasses.fields(self)
            for each in (getattr(self, field.name),)
        )


ETA: Final = {
    "v100": _assumed(0.66, "as H100"),
    "a100": _fitted(0.71, _MEGATRON),
    "h100": _assumed(0.66, "set so that GPT-3 175B reaches the 47 % at 96 devices of Megatron-LM's README; recalled"),
    "b200": _assumed(0.66, "as H100"),
    "tpu": _assumed(0.85, "systolic arrays without waves; never compared with a step time"),
}
ETA_OTHER: Final = _assumed(0.60, "a family without any step time to compare with")
ETA_FP8: Final = _assumed(0.85, "of the 16-bit share: scaling and casting of FP8; recalled from Transformer Engine")
UNITS: Final = {
    "v100": Constant(value=80, kind=Kind.DATASHEET, source="V100: 80 multiprocessors"),
    "a100": Constant(value=108, kind=Kind.DATASHEET, source="A100: 108 multiprocessors"),
    "h100": Constant(value=132, kind=Kind.DATASHEET, source="H100 SXM: 132 multiprocessors; PCIe has 114"),
    "b200": Constant(value=148, kind=Kind.DATASHEET, source="B200: 148 multiprocessors"),
    "tpu": Constant(value=8, kind=Kind.DATASHEET, source="TPU v4: 2 cores of 4 matrix units; recalled"),
}
UNITS_OTHER: Final = _assumed(100, "a family without an entry")

_COMMON: Final = {
    "memory_rate": _assumed(0.85, "streaming kernels on GPUs reach 80 to 90 %; recalled"),
    "link_rate": _assumed(0.75, "large all-reduces inside a node reach 70 to 80 % of the links; recalled"),
    "network_rate": _assumed(0.80, "large all-reduces between nodes; recalled"),
    "exposed_tensor": _assumed(1.0, "all-reduces of tensor parallelism hide nowhere, as in Megatron-LM of 2022"),
    "exposed_pipeline": _assumed(0.3),
    "exposed_data": _assumed(0.08),
    "exposed_experts": _assumed(0.5),
    "exposed_experts_pipelined": _assumed(0.3, "as above; micro-batches of two directions overlap"),
    "expert_nodes": _assumed(4.0, "DeepSeek-V3 sends a token to 4 nodes at most (arXiv 2412.19437)"),
    "memory_share": _assumed(0.92, "the rest is lost to fragments of the allocator"),
    "reserve_bytes": _assumed(2.5e9, "context, libraries and buffers of collectives; recalled"),
}


def is_known(accelerator: Accelerator) -> bool:
    """Return whether the device's family has a share of the peak of its own, and not the one for all others."""
    return accelerator.family in ETA


def practice_of(accelerator: Accelerator, precision: Gear) -> Practice:
    """Return the constants for a device in one precision."""
    eta = ETA.get(accelerator.family, ETA_OTHER)
    if precision is Gear.FP8:
        eta = _assumed(eta.value * ETA_FP8.value, f"{ETA_FP8.value} x {eta.value}: {ETA_FP8.source}; {eta.source}")
    return Practice(
        eta=eta,
        units=UNITS.get(accelerator.family, UNITS_OTHER),
        attention=_assumed(0.45, "fused attention in BF16 on A100 and H100; recalled"),
        **_COMMON,
    )


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
