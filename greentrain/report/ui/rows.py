"""A run of the index as the page gets it."""

import hashlib
import math
from pathlib import Path
from typing import Any, Final

from greentrain.report.fleet.find import below
from greentrain.report.fleet.row import RunRow
from greentrain.report.fleet.totals import Total

AS_THEY_ARE: Final = (
    "run_id", "name", "project", "user", "zone", "signal", "world_size", "missing_ranks", "steps", "tokens", "samples",
    "policy", "greentrain_version", "error",
)  # fmt: skip
FIGURES: Final = (
    "created_unix_s", "end_unix_s", "wall_s", "energy_j", "measured_j", "modelled_j", "missing_s", "device_s",
    "facility_j", "unpriced_j", "operational_g", "market_g", "embodied_g", "total_g", "saved_g", "g_per_token",
    "j_per_token", "tokens_per_s", "estimate_ratio",
)  # fmt: skip


def key_of(row: RunRow, root: Path) -> str:
    """Return what a run is called in addresses: 16 hexadecimal digits that follow from its folder, and no path."""
    return hashlib.blake2b(below(root, row.folder).encode("utf-8"), digest_size=8).hexdigest()


def row_json(row: RunRow, root: Path, now_unix_s: float) -> dict[str, Any]:
    """Return a row for JSON; folders are relative to the root, unknown figures null.

    Args:
        row: The run.
        root: Of the index.
        now_unix_s: Present time (s since the epoch).
    """
    return {
        "id": key_of(row, root),
        "folder": below(root, row.folder),
        "state": row.state(now_unix_s),
        "duplicate_of": None if row.duplicate_of is None else below(root, row.duplicate_of),
        **{name: getattr(row, name) for name in AS_THEY_ARE},
        **{name: finite(getattr(row, name)) for name in FIGURES},
        "tags": dict(row.tags),
        "devices": list(row.devices),
        "frameworks": list(row.frameworks),
        "gears": {gear: finite(share) for gear, share in row.gears.items()},
    }


def total_json(total: Total) -> dict[str, Any]:
    """Return a total for JSON."""
    figures = (
        "energy_j", "measured_j", "modelled_j", "facility_j", "unpriced_j", "device_s", "missing_s", "operational_g",
        "market_g", "embodied_g", "total_g", "rank_s", "saved_g", "missing_share",
    )  # fmt: skip
    return {
        "key": dict(total.key),
        "runs": total.runs,
        "tokens": total.tokens,
        "samples": total.samples,
        **{name: finite(getattr(total, name)) for name in figures},
    }


def finite(value: float | None) -> float | None:
    """Return a number that JSON can hold; None for the others."""
    return value if value is not None and math.isfinite(value) else None
