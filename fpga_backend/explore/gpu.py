"""A GPU beside the cards: arithmetic from its data sheet, or what somebody measured."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from greentrain.errors import ConfigError
from greentrain.fpga_backend.program import Program
from greentrain.fpga_backend.roofline.counts import BatchLayout, count
from greentrain.utils.devices import device_rows, sourced
from greentrain.utils.quantities import SourcedNumber, SourceKind
from greentrain.utils.validation import bound, nearest

MFU: Final = SourcedNumber(
    value=0.3,
    unit="1",
    source="share of the peak that a framework reaches in large batches; what was published lies between 0.15 and 0.5",
    kind=SourceKind.ASSUMED,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """What a data sheet says of a GPU."""

    name: str
    peak_flops_per_s: SourcedNumber
    """Dense BF16, without sparsity."""
    power_w: SourcedNumber


GPUS: Final[Mapping[str, str]] = {"H100": "H100-SXM", "A100": "A100-80GB"}
"""Name in ``devices.toml`` of each GPU that cards are compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRow:
    """A GPU at one sequence length."""

    name: str
    sequence: int
    tokens_per_s: float
    power_w: float
    how: str
    """``measured``, or the arithmetic."""

    @property
    def j_per_token(self) -> float:
        """Power over speed."""
        return self.power_w / self.tokens_per_s


def gpu_named(name: str) -> GpuSpec:
    """Return a GPU by its name.

    Raises:
        ConfigError: There is none.
    """
    device = GPUS.get(name.upper())
    if device is None:
        raise ConfigError(f"no GPU {name!r}; known: {', '.join(GPUS)}{nearest(name.upper(), GPUS)}")
    row = device_rows()[device]
    return GpuSpec(
        name=name.upper(),
        peak_flops_per_s=sourced(row["peak_flop_s"]["bf16"], "FLOP/s", f"devices.toml: {device}.peak_flop_s.bf16", row),
        power_w=sourced(row["tdp_w"], "W", f"devices.toml: {device}.tdp_w", row),
    )


def computed(spec: GpuSpec, program: Program, sequence: int, mfu: float | None = None) -> GpuRow:
    """Return what a GPU would do by its data sheet, at full power all the time.

    Raises:
        ConfigError: ``mfu`` is no share.
    """
    share = MFU.value if mfu is None else mfu
    bound("--mfu", share, 1e-6, 1.0)
    flops = 2 * count(program, BatchLayout.equal(1, sequence)).macs / sequence
    how = f"data sheet, {share:.0%} of its peak ({'assumed' if mfu is None else 'given'}), full power"
    return GpuRow(
        name=spec.name,
        sequence=sequence,
        tokens_per_s=spec.peak_flops_per_s.value * share / flops,
        power_w=spec.power_w.value,
        how=how,
    )


def measured(name: str, sequence: int, tokens_per_s: float, power_w: float) -> GpuRow:
    """Return what the user measured.

    Raises:
        ConfigError: A figure is not positive.
    """
    bound("--gpu-tokens-per-s", tokens_per_s, 1e-9, 1e12)
    bound("--gpu-power-w", power_w, 1e-3, 1e6)
    return GpuRow(name=name, sequence=sequence, tokens_per_s=tokens_per_s, power_w=power_w, how="given as measured")
