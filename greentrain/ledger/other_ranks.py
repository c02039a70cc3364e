"""What the other ranks of a job have booked so far, from the last lines of their journals.

Rank 0 logs the figures of the whole job this way: no collective, no message, nothing on the training thread. Ranks
whose journals are not visible here (another node without a shared folder) are not counted, and the count says so.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from greentrain.ledger.journal import rank_path

TAIL_BYTES = 65_536
"""How much of a journal's end is read: several of its longest lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherRanksTotals:
    """Sums over ranks."""

    ranks: int = 0
    """Ranks counted."""
    energy_j: float = 0.0
    emissions_g: float = 0.0
    unpriced_j: float = 0.0
    power_w: float = 0.0
    """Mean power of each rank's last ledger interval (W)."""
    tokens: int = 0
    samples: int = 0

    def __add__(self, other: "OtherRanksTotals") -> "OtherRanksTotals":
        return OtherRanksTotals(
            ranks=self.ranks + other.ranks,
            energy_j=self.energy_j + other.energy_j,
            emissions_g=self.emissions_g + other.emissions_g,
            unpriced_j=self.unpriced_j + other.unpriced_j,
            power_w=self.power_w + other.power_w,
            tokens=self.tokens + other.tokens,
            samples=self.samples + other.samples,
        )


def sums_of_others(folder: Path, rank: int, world_size: int) -> OtherRanksTotals:
    """Return the sums of all ranks but ``rank`` as of their last bookings. Never raises.

    Ranks beyond ``world_size`` are of an earlier attempt that was wider: what they used counts, they draw nothing now.
    """
    out = OtherRanksTotals()
    other = 0
    while other < world_size or rank_path(folder, other).exists():
        record = None if other == rank else _last_entry(rank_path(folder, other))
        if record is not None:
            sums = _sums(record)
            out = out + (sums if other < world_size else replace(sums, ranks=0, power_w=0.0))
        other += 1
    return out


def _last_entry(path: Path) -> Mapping[str, Any] | None:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        if line.startswith(b'{"kind":"entry"'):
            try:
                record = json.loads(line)
            except ValueError:
                continue
            return record if isinstance(record, dict) and isinstance(record.get("sum"), dict) else None
    return None


def _sums(record: Mapping[str, Any]) -> OtherRanksTotals:
    energy_j = sum(device["j"] for device in record["devices"].values())
    known = {field.name for field in fields(OtherRanksTotals)} - {"ranks", "power_w"}  # a newer version may sum more
    sums = {name: value for name, value in record["sum"].items() if name in known}
    return OtherRanksTotals(ranks=1, power_w=energy_j / max(record["t1"] - record["t0"], 1e-9), **sums)
