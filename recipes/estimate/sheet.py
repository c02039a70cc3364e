"""A figure's values as CSV: assumptions first, in lines that begin with #, then one row a point."""

import csv
from collections.abc import Sequence
from pathlib import Path

from greentrain.estimate.values import Range
from recipes.estimate.curves import Curve, Sample

VARYING = ("FLOP of the law", "MFU", "power of the device", "intensity")
"""Assumptions whose value differs from point to point: the columns have it."""


def write(path: Path, curves: Sequence[Curve]) -> Path:
    """Write every value of some curves."""
    rows = [_row(curve, sample) for curve in curves for sample in curve.samples]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        for line in assumptions(curves):
            file.write(f"# {line}\n")
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def assumptions(curves: Sequence[Curve]) -> list[str]:
    """Return what the curves rest on, each once, with the curves that it is of."""
    of: dict[str, list[str]] = {}
    for curve in curves:
        of.setdefault(f"law, {curve.law} [fitted]: {curve.law_source}", []).append(curve.name)
        seen = [one for sample in curve.samples for one in sample.found.assumptions]
        for one in dict.fromkeys((*curve.assumed, *seen)):
            varies = one.name in VARYING
            value = "see the columns" if varies else one.value
            of.setdefault(f"{one.name} [{one.kind}]: {value} ({one.source})", []).append(curve.name)
    everyone = {curve.name for curve in curves}
    lines = [
        "All values are modelled; low, mid and high are bounds or 10th, 50th and 90th percentile as docs/estimate.md"
    ]
    for line, names in of.items():
        whose = "all" if set(names) == everyone else ", ".join(dict.fromkeys(names))
        lines.append(f"{whose}: {line}")
    return lines


def _row(curve: Curve, sample: Sample) -> dict[str, object]:
    found, point = sample.found, sample.found.point
    return {
        "curve": curve.name,
        "law": curve.law,
        "device": found.device.name,
        "device_year": found.device.year,
        "precision": found.precision.value,
        "effective_share": f"{sample.share:.4g}",
        "flop": f"{point.flop:.6g}",
        "total_parameters": f"{point.total_parameters:.6g}",
        "active_parameters": f"{point.active_parameters:.6g}",
        "tokens": f"{point.tokens:.6g}",
        "loss_nats_per_token": f"{point.loss:.6f}",
        "extrapolated": "; ".join(point.extrapolated),
        **_range("g_per_kwh", found.g_per_kwh),
        **_range("pue", found.pue),
        **_range("mfu", found.mfu),
        **_range("node_w", found.node_w),
        **_range("device_hours", found.gpu_hours),
        **_range("operational_g", found.operational_g),
        **_range("embodied_g", found.embodied_g),
        **_range("total_g", found.total_g),
        **_range("embodied_share", found.embodied_share),
        **_range("crossing_g_per_kwh", found.crossing_g_per_kwh),
        **_range("grams_over_bf16", sample.over_bf16),
        "provenance": "modelled",
        "warnings": "; ".join(found.warnings),
    }


def _range(name: str, of: Range | None) -> dict[str, str]:
    """Return three columns, empty where nobody knows."""
    ends = ("low", "mid", "high")
    return {f"{name}_{end}": "" if of is None else f"{getattr(of, end):.6g}" for end in ends}
