"""Software Carbon Intensity of a run that has not been: grams per training token, per parameter, per FLOP.

Per parameter counts all parameters, per FLOP those that a token meets: in a mixture of experts these differ.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from greentrain.estimate.model_shape import ModelShape
from greentrain.estimate.values import Range
from greentrain.ledger.sci import SciScore, sci_scores


@dataclass(frozen=True, slots=True, kw_only=True)
class SciRange:
    """One score with its bounds."""

    g_per_unit: Range
    """gCO2e per functional unit, operational (by location) and embodied."""
    unit: str
    """Functional unit: ``training token``, ``parameter`` or ``FLOP``."""
    units: float
    complete: bool
    """False: embodied carbon is not known, so the true score is higher."""
    method: str


def sci_ranges(shape: ModelShape, tokens: float, operational_g: Range, embodied_g: Range | None) -> Sequence[SciRange]:
    """Return the scores by the three functional units that the SCI for AI specification asks of training.

    Args:
        shape: The model.
        tokens: Training tokens, gross.
        operational_g: Location-based, PUE included; contracts do not count.
        embodied_g: Embodied share; None where it is not known.
    """
    low, mid, high = (
        _scores(
            shape, tokens, getattr(operational_g, bound), None if embodied_g is None else getattr(embodied_g, bound)
        )
        for bound in ("low", "mid", "high")
    )
    return [
        SciRange(
            g_per_unit=Range(low=a.g_per_unit, mid=b.g_per_unit, high=c.g_per_unit),
            unit=b.unit,
            units=b.units,
            complete=b.complete,
            method=b.method + (", N active parameters" if b.unit == "FLOP" and shape.is_moe else ""),
        )
        for a, b, c in zip(low, mid, high, strict=True)
    ]


def _scores(shape: ModelShape, tokens: float, operational_g: float, embodied_g: float | None) -> list[SciScore]:
    def by(parameters: float) -> dict[str, SciScore]:
        found = sci_scores(
            operational_g=operational_g, embodied_g=embodied_g, tokens=round(tokens), parameters=round(parameters)
        )
        return {score.unit: score for score in found}

    total, active = by(shape.total_parameters), by(shape.active_parameters)
    return [total["training token"], total["parameter"], active["FLOP"]]
