"""The fields of the accounting standards, taken from a summary."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from greentrain.ledger.sci import sci_scores, scope2
from greentrain.report.equivalents import equivalents

PROCEDURE: Final = (
    "provider boundary, this training run only: data preparation, other experiments, inference and retirement are"
    " not in it"
)


def sci_fields(summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the Software Carbon Intensity: boundary, method and a score for each known functional unit.

    ``value_g``, ``unit`` and ``complete`` repeat the first score (per training token where tokens were counted).
    None where the operational emissions are not known.
    """
    carbon, energy, work = summary["carbon"], summary["energy"], summary["work"]
    if carbon["operational_location_g"] is None:
        return None
    scores = sci_scores(
        operational_g=carbon["operational_location_g"],
        embodied_g=carbon["embodied_g"]["mid"],
        tokens=work["tokens"] or 0,
        parameters=summary["run"]["parameters"],
        unpriced_j=carbon["unpriced_j"] or 0.0,
        missing_s=energy["missing_device_s"],
    )
    first = scores[0] if scores else None
    devices = ", ".join(dict.fromkeys(device["name"] for device in summary["devices"]))
    return {
        "value_g": first.g_per_unit if first else None,
        "unit": first.unit if first else None,
        "complete": first.complete if first else None,
        "operational_g": carbon["operational_location_g"],
        "embodied_g": carbon["embodied_g"]["mid"],
        "boundary": f"{PROCEDURE}. Hardware: {devices or 'none'}",
        "method": "SCI = (E x I + M) per R, ISO/IEC 21031:2024; E includes PUE, I location-based",
        "scores": [score.to_dict() for score in scores],
    }


def scope2_fields(summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return GHG Protocol scope 2 by both methods; None where no energy is known.

    The contracted factor is one for the whole run, so the mean PUE by energy gives the exact product.
    """
    carbon, energy = summary["carbon"], summary["energy"]
    if energy["energy_j"] is None:
        return None
    sources = carbon["sources"]
    fields = scope2(
        energy_j=energy["energy_j"],
        pue=energy["pue"],
        operational_g=carbon["operational_location_g"],
        market_g_per_kwh=carbon["market_g_per_kwh"],
        factor_source="; ".join(dict.fromkeys(f"{s['zone']}: {s['source']}" for s in sources)) or "unknown",
        factor_kind=", ".join(dict.fromkeys(s["basis"] for s in sources)) or "unknown",
        time_resolution=carbon["signal"].get("resolution") or "not stated",
    )
    return fields.to_dict()


def comparisons(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return comparisons a person can feel; none where the energy is not known."""
    facility_j = summary["energy"]["facility_energy_j"]
    if not facility_j:
        return []
    rows = equivalents(emissions_g=summary["carbon"]["emissions_g"], energy_j=facility_j)
    return [{**dataclasses.asdict(row), "text": row.text} for row in rows]
