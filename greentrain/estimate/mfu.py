"""GPU-hours from the share of a device's peak that published runs reached.

    hours = 6 x active parameters x tokens / (peak x MFU x 3600)

MFU is the model FLOP utilisation (Chowdhery et al., arXiv 2204.02311, appendix B), here of the dense 16-bit peak and
without attention's products. ``mfu.toml`` holds what 80 % of new families of models are expected to reach, by class of
device and kind of model; size of the model and age of the software shift it. ``benchmarks/estimator.py --write`` makes
the table and says how well it holds on families that it has not seen.
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from greentrain.errors import ConfigError
from greentrain.estimate.hardware import Accelerator
from greentrain.estimate.model_shape import FLOP_PER_PARAMETER_TOKEN, ModelShape
from greentrain.estimate.values import Assumption, Range, product
from greentrain.estimate.workload import Workload
from greentrain.types import S_PER_HOUR, Gear
from greentrain.utils.files import packaged_toml
from greentrain.utils.quantities import SourcedNumber, SourceKind

REFERENCE_PARAMETERS: Final = 1e10
"""Active parameters that the table is written for."""
NEW_SOFTWARE_YEAR: Final = 2023
"""First year of runs that count as having today's kind of software (fused attention, sequence parallelism)."""
OTHER: Final = "other"
"""Classes of devices of which there is no run."""
STAND_IN: Final[Mapping[str, str]] = {"b200": "h100"}
"""Classes without a run that are taken to reach what their predecessor reaches."""
FP8_SPEEDUP: Final = Range(low=1.2, mid=1.35, high=1.5)
"""FP8 over BF16, whole steps, on devices of twice the peak in FP8; see :func:`fp8_speedup`."""
_FP8_SOURCE: Final = (
    "torchtitan is published with +34 % for Llama-2-7B and +50 % for Llama3-70B on 128 H100s; low is assumed"
)
_AO_SOURCE: Final = (
    "published: github.com/pytorch/ao/pull/4798, 2026-08-24, DeepSeek-V3 on 64 GB300: performance per watt 1.65 x in"
    " NVFP4 (37.6 % faster at 16.6 % less power), 1.31 x in MXFP8; low is its 16B model (15.4 % faster, 7.8 % slower)"
)
GAINS: Final[Mapping[Gear, tuple[Range, float, str]]] = {
    Gear.FP8: (FP8_SPEEDUP, 1.0, _FP8_SOURCE),
    Gear.MXFP8: (Range(low=0.922, mid=1.31, high=1.5), 1.0, _AO_SOURCE + "; as all speed, and high as FP8's"),
    Gear.NVFP4: (Range(low=1.154, mid=1.376, high=1.65), 0.834, _AO_SOURCE + "; high is assumed"),
}
"""Speed and power of a gear over BF16, whole steps, and who says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MfuRow:
    """Model FLOP utilisation of one class of devices and one kind of model."""

    mfu: Range
    """10th, 50th and 90th percentile over families, at ``REFERENCE_PARAMETERS``, with today's kind of software."""
    runs: int
    """Published runs behind this row; 0: it follows from other rows alone."""
    families: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MfuTable:
    """Rows by class of devices and kind of model, and what shifts them."""

    made: str
    """Date."""
    runs: int
    families: int
    per_decade: float
    """MFU is multiplied by this for each tenfold of active parameters."""
    old_software: float
    """MFU is multiplied by this in years before ``NEW_SOFTWARE_YEAR``."""
    smallest: float
    """Least active parameters among the runs; the shift by size stops there."""
    largest: float
    rows: Mapping[tuple[str, bool], MfuRow]
    """By class of devices, and True for mixtures of experts."""

    def row(self, family: str, is_moe: bool) -> MfuRow:
        """Return the row of a class; of an unknown class the one for others, of a successor its predecessor's.

        A stand-in keeps the width of the row for others: nobody's run says how near the two classes are.
        """
        found = self.rows.get((family, is_moe))
        if found is not None:
            return found
        other = self.rows[OTHER, is_moe]
        near = self.rows.get((STAND_IN.get(family, OTHER), is_moe), other)
        by = near.mfu.mid / other.mfu.mid
        return MfuRow(mfu=_capped(other.mfu.times(by)), runs=0, families=0)

    def mfu(self, family: str, is_moe: bool, active_parameters: float, year: int | None = None) -> Range:
        """Return the utilisation to expect.

        Args:
            family: Class of devices, as ``Accelerator.family``.
            is_moe: True for mixtures of experts.
            active_parameters: Number of the parameters that a token meets.
            year: Year of the run; None: today's software.
        """
        size = min(max(active_parameters, self.smallest), self.largest)
        shift = self.per_decade ** math.log10(size / REFERENCE_PARAMETERS)
        if year is not None and year < NEW_SOFTWARE_YEAR:
            shift *= self.old_software
        return _capped(self.row(family, is_moe).mfu.times(shift))


@dataclass(frozen=True, slots=True, kw_only=True)
class MfuEstimate:
    """Device-hours, and what they rest on."""

    gpu_hours: Range
    """10th, 50th and 90th percentile."""
    mfu: Range
    """Of the 16-bit peak, before any gain by FP8."""
    flop: float
    assumptions: tuple[Assumption, ...]
    warnings: tuple[str, ...]


@functools.cache
def shipped() -> MfuTable:
    """Return the table of the package."""
    return table(packaged_toml("greentrain.estimate", "mfu.toml"))


@functools.cache
def of_optimum() -> MfuTable:
    """Return, in the same form, the share of real hours that the search's optimum is: divide the optimum by it."""
    return table(packaged_toml("greentrain.estimate", "optimum.toml"))


def table(data: Mapping[str, Any]) -> MfuTable:
    """Read a table as ``mfu.toml`` has it.

    Raises:
        ConfigError: A key is missing, or there is no row for other classes.
    """
    try:
        rows = {
            (family, kind == "moe"): MfuRow(
                mfu=Range.of(*row["mfu"]),
                runs=row["runs"],
                families=row["families"],
            )
            for family, kinds in data["class"].items()
            for kind, row in kinds.items()
        }
        numbers = ("runs", "families", "per_decade", "old_software", "smallest", "largest")
        found = MfuTable(made=str(data["made"]), rows=rows, **{name: data[name] for name in numbers})
    except KeyError as error:
        raise ConfigError(f"the table of utilisations lacks {error}: make it with benchmarks/estimator.py") from error
    if not {(OTHER, False), (OTHER, True)} <= rows.keys():
        raise ConfigError(f"the table of utilisations lacks the rows of class {OTHER!r}")
    return found


def estimate_mfu(
    shape: ModelShape,
    workload: Workload,
    accelerator: Accelerator,
    *,
    year: int | None = None,
    of: MfuTable | None = None,
) -> MfuEstimate:
    """Return device-hours by the table.

    Args:
        shape: The model; FLOP count its active parameters.
        workload: Tokens and precision.
        accelerator: The device.
        year: Year of a run of the past; None: today's software.
        of: Table in place of the package's.

    Raises:
        ConfigError: The device has no peak for the workload's precision.
    """
    of = of or shipped()
    warnings = []
    peak, gear = peak_of(accelerator, workload.precision)
    row = of.row(accelerator.family, shape.is_moe)
    mfu = of.mfu(accelerator.family, shape.is_moe, shape.active_parameters, year)
    kind = "mixture of experts" if shape.is_moe else "dense"
    stand_in = STAND_IN.get(accelerator.family)
    if row.runs == 0:
        like = f"of {stand_in}, its predecessor" if stand_in else "over all classes, with what is known of its kind"
        warnings.append(f"no published run in the table is {kind} on {accelerator.family}: the estimate is {like}")
    if not of.smallest <= shape.active_parameters <= of.largest:
        warnings.append(
            f"{shape.active_parameters:.3g} active parameters lie outside the published runs' "
            f"{of.smallest:.2g} to {of.largest:.2g}"
        )
    flop = FLOP_PER_PARAMETER_TOKEN * shape.active_parameters * workload.tokens
    hours = one_over(mfu).times(flop / peak.value / S_PER_HOUR)
    assumptions = [
        Assumption(
            name="model FLOP",
            value=f"{flop:.3g} = 6 x {shape.active_parameters:.4g} active parameters x {workload.tokens:.3g} tokens",
            source="Kaplan et al., arXiv 2001.08361, section 2.1; attention's products are not counted",
            kind=SourceKind.ASSUMED,
        ),
        Assumption(name=f"peak, {gear}", value=f"{peak.value / 1e12:.4g} TFLOP/s", source=peak.source, kind=peak.kind),
        Assumption(
            name="MFU",
            value=f"{mfu.mid:.3f} ({mfu.low:.3f} to {mfu.high:.3f}, 80 % of unseen families)",
            source=f"{of.runs} published runs of {of.families} families, {row.runs} of them {kind} on "
            f"{accelerator.family}; table of {of.made}, shifted by size",
            kind=SourceKind.FITTED,
        ),
    ]
    if workload.precision.is_low:
        gain, name = fp8_speedup(accelerator, workload.precision), workload.precision.upper()
        hours = product([hours, one_over(gain)])
        text = f"{gain.mid:g} x ({gain.low:g} to {gain.high:g})"
        published, _, source = GAINS[workload.precision]
        source += "" if gain == published else f"; {accelerator.name}'s peaks allow no more"
        assumptions.append(Assumption(name=f"{name} over BF16", value=text, source=source, kind=SourceKind.ASSUMED))
    return MfuEstimate(gpu_hours=hours, mfu=mfu, flop=flop, assumptions=tuple(assumptions), warnings=tuple(warnings))


def fp8_speedup(accelerator: Accelerator, gear: Gear = Gear.FP8) -> Range:
    """Return what 8 or 4 bits gain over 16 in whole steps: as published, and no more than the device's peaks promise.

    Args:
        accelerator: The device.
        gear: FP8, MXFP8 or NVFP4.

    Raises:
        ConfigError: The device has no such gear, or no 16-bit peak.
    """
    wide, _ = peak_of(accelerator, gear)
    most, gain = max(1.0, accelerator.peak_flop_s[gear].value / wide.value), GAINS[gear][0]
    return Range(low=min(gain.low, most), mid=min(gain.mid, most), high=min(gain.high, most))


def one_over(share: Range) -> Range:
    """Return the reciprocal of a range above 0: what a share of the peak costs."""
    return Range(low=1 / share.high, mid=1 / share.mid, high=1 / share.low)


def peak_of(accelerator: Accelerator, precision: Gear) -> tuple[SourcedNumber, Gear]:
    """Return the peak that utilisation refers to: FP8 counts against 16 bit, as the published runs do.

    Raises:
        ConfigError: The device has no such precision.
    """
    peaks = accelerator.peak_flop_s
    if precision.is_low and precision not in peaks:
        raise ConfigError(f"{accelerator.name} has no {precision.upper()}: choose bf16 or another device")
    wanted = (Gear.FP32,) if precision is Gear.FP32 else (Gear.BF16, Gear.FP16)
    for gear in wanted:
        if gear in peaks:
            return peaks[gear], gear
    has = ", ".join(gear.value for gear in peaks)
    raise ConfigError(f"{accelerator.name} has no peak for {precision}; known: {has}")


def _capped(mfu: Range) -> Range:
    """Return utilisations that do not pass 1."""
    return Range(low=min(mfu.low, 1.0), mid=min(mfu.mid, 1.0), high=min(mfu.high, 1.0))
