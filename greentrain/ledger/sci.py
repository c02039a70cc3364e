"""Software Carbon Intensity.

SCI (ISO/IEC 21031:2024) is ``(E x I + M) per R``. E is the energy of the hardware reserved, facility overhead
included; I is location-based, contracts do not count; M is the embodied share. For training, the SCI for AI
specification asks for R to be a training token, a parameter or a FLOP. R here is gross: every token that went
through the model counts, also those of repeated epochs and of work lost to a crash.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

FLOP_PER_PARAMETER_TOKEN: Final = 6.0
"""Training FLOP of a dense transformer per parameter and token, forward 2 and backward 4 (Kaplan et al.,
arXiv 2001.08361, section 2.1). Attention over long contexts and sparse models are not in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SciScore:
    """One Software Carbon Intensity score."""

    g_per_unit: float
    """Score (gCO2e per functional unit)."""
    unit: str
    """Functional unit R: ``training token``, ``parameter`` or ``FLOP``."""
    units: float
    """How many of them."""
    operational_g: float
    embodied_g: float | None
    """Embodied share M (g); None: not known, and the score is O per R only."""
    complete: bool
    """False: a part of O or M is not known, so the true score is higher."""
    method: str

    def to_dict(self) -> dict[str, Any]:
        """Return a plain dict for JSON."""
        return dataclasses.asdict(self)


def sci_scores(
    *,
    operational_g: float,
    embodied_g: float | None,
    tokens: int = 0,
    parameters: int | None = None,
    unpriced_j: float = 0.0,
    missing_s: float = 0.0,
) -> Sequence[SciScore]:
    """Return a score for each functional unit that is known.

    Args:
        operational_g: Location-based operational emissions, PUE included (gCO2e).
        embodied_g: Embodied share (gCO2e), or None.
        tokens: Training tokens, gross; 0 where they were not counted.
        parameters: Trained parameters of the model, or None.
        unpriced_j: Energy whose intensity is not known (J); it makes the scores incomplete.
        missing_s: Seconds of devices whose energy is not known; it makes the scores incomplete.
    """
    units: list[tuple[str, float]] = []
    if tokens > 0:
        units.append(("training token", float(tokens)))
    if parameters:
        units.append(("parameter", float(parameters)))
    if tokens > 0 and parameters:
        units.append(("FLOP", FLOP_PER_PARAMETER_TOKEN * parameters * tokens))
    total_g = operational_g + (embodied_g or 0.0)
    return [
        SciScore(
            g_per_unit=total_g / count,
            unit=unit,
            units=count,
            operational_g=operational_g,
            embodied_g=embodied_g,
            complete=embodied_g is not None and unpriced_j <= 0 and missing_s <= 0,
            method="SCI (ISO/IEC 21031:2024), location-based, gross units" + (", FLOP = 6ND" if unit == "FLOP" else ""),
        )
        for unit, count in units
    ]
