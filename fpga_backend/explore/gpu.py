"""A GPU beside the cards: arithmetic from its data sheet, or what somebody measured."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from greentrain.errors import ConfigError
from greentrain.fpga_backend.program import Program
from greentrain.fpga_backend.roofline.cards import Quantity
from greentrain.fpga_backend.roofline.counts import BatchLayout, count
from greentrain.utils.validation import bound, nearest

MFU: Final = Quantity(
    value=0.3,
    unit="1",
    source="share of the peak that a framework reaches in large batches; what was published lies between 0.15 and 0.5",
    kind="assumed",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """What a data sheet says."""

    name: str
    peak_flops_per_s: Quantity
    """Dense BF16, without sparsity."""
    power_w: Quantity


def _spec(name: str, flops: float, power_w: float, source: str) -> GpuSpec:
    return GpuSpec(
        name=name,
        peak_flops_per_s=Quantity(value=flops, unit="FLOP/s", source=source, kind="datasheet"),
        power_w=Quantity(value=power_w, unit="W", source=source, kind="datasheet"),
    )


GPUS: Final[Mapping[str, GpuSpec]] = {
    "H100": _spec("H100", 989.4e12, 700, "NVIDIA H100 Tensor Core GPU data sheet, SXM: BF16 dense, maximum power"),
    "A100": _spec("A100", 312e12, 400, "NVIDIA A100 Tensor Core GPU data sheet, 80 GB SXM: BF16 dense, maximum power"),
}


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
    found = GPUS.get(name.upper())
    if found is None:
        raise ConfigError(f"no GPU {name!r}; known: {', '.join(GPUS)}{nearest(name.upper(), GPUS)}")
    return found


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
