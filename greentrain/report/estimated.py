"""What an estimate said before the run, beside what was measured: ``estimate.json`` in the run folder."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from greentrain.report import units_text
from greentrain.units import J_PER_KWH, S_PER_HOUR

NAME: Final = "estimate.json"
"""Written by ``greentrain estimate --into RUN``."""
_MOST_BYTES: Final = 2**22


def estimated(folder: Path, summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return estimated and measured figures of a run; None where no estimate lies in its folder.

    A run that trained fewer or more tokens than the estimate was for is held to its share of it.

    Args:
        folder: The run's.
        summary: What was measured.
    """
    found = _read(folder / NAME)
    if found is None:
        return None
    try:
        planned = float(found["inputs"]["workload"]["tokens"])
        energy = _range(found["energy_kwh"]["it"], J_PER_KWH)
        duration = _range(found["duration_h"], S_PER_HOUR)
        grams = _range(found["operational_g"]["location"], 1.0)
        method, count = str(found["method"]), int(found["count"])
    except (KeyError, TypeError, ValueError):
        return None
    trained = summary["work"]["tokens"]
    share = trained / planned if trained and planned > 0 else None
    measured = {
        "duration_s": (duration, summary["time"]["wall_s"]),
        "energy_j": (energy, summary["energy"]["energy_j"]),
        "operational_g": (grams, summary["carbon"]["operational_location_g"]),
    }
    return {
        "method": method,
        "devices": count,
        "tokens": planned,
        "trained_share": share,
        "figures": {name: _beside(bounds, value, share) for name, (bounds, value) in measured.items()},
    }


def rows(summary: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Return name, estimate, what was measured and the verdict of each figure; nothing without an estimate."""
    found = summary.get("estimate")
    if not found:
        return []
    texts = {
        "duration_s": ("Time", units_text.duration),
        "energy_j": ("Energy", units_text.energy),
        "operational_g": ("Electricity's CO\N{SUBSCRIPT TWO}e", units_text.mass),
    }
    table = []
    for key, (name, text) in texts.items():
        figure = found["figures"][key]
        if figure is None:
            table.append((name, units_text.UNKNOWN, units_text.UNKNOWN, ""))
            continue
        bounds = f"{text(figure['mid'])} ({text(figure['low'])} to {text(figure['high'])})"
        table.append((name, bounds, text(figure["measured"]), _verdict(figure)))
    return table


def scope(summary: Mapping[str, Any]) -> str:
    """Return what the estimate was of."""
    found = summary["estimate"]
    share = found["trained_share"]
    text = f"Method {found['method']}, {found['devices']} devices, {units_text.count(found['tokens'])} tokens"
    if share is None:
        return f"{text}; the run's tokens were not counted, so nothing can be held to it."
    part = units_text.percent(share) if share < 1 else f"{share:.3g} x"
    return (
        f"{text}; scaled to {part} of them, which were trained. The estimate has the servers in it, the run its meters."
    )


def _beside(bounds: Mapping[str, float], measured: float | None, share: float | None) -> dict[str, Any] | None:
    if share is None:
        return None
    scaled = {name: value * share for name, value in bounds.items()}
    known = measured is not None and scaled["mid"] > 0
    return {
        **scaled,
        "measured": measured,
        "ratio": measured / scaled["mid"] if known and measured is not None else None,
        "within": scaled["low"] <= measured <= scaled["high"] if measured is not None else None,
    }


def _verdict(figure: Mapping[str, Any]) -> str:
    if figure["ratio"] is None:
        return ""
    inside = "within" if figure["within"] else "outside"
    return f"{units_text.significant(figure['ratio'], 2)} x the middle, {inside} the bounds"


def _read(path: Path) -> Mapping[str, Any] | None:
    """Return a document; None where there is none that can be read: a report is never lost for it."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            return None
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _range(found: Mapping[str, Any], unit: float) -> dict[str, float]:
    bounds = {name: float(found[name]) * unit for name in ("low", "mid", "high")}
    if not all(map(math.isfinite, bounds.values())):
        raise ValueError("a bound is not finite")
    return bounds
