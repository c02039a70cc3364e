"""Run folders that hold the same ranks of the same run: one of them counts."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """What tells copies apart."""

    folder: str
    run_id: str
    ranks: frozenset[int]
    starts: frozenset[str]
    """When its processes began, by rank; copies have some in common."""
    carried: bool
    """It went on from a checkpoint, so an earlier part of it may lie elsewhere."""
    end_unix_s: float | None
    energy_j: float | None


def copies(candidates: Iterable[Candidate]) -> Mapping[str, str]:
    """Return the folder that counts by the folder that does not.

    Of two folders of one run that share a rank, the one counts that ended last: it was resumed, and has what the
    other one booked in it. Folders with other ranks of the run, as nodes write to disks of their own, all count; so do
    two runs that were only given the same id.
    """
    kept: defaultdict[str, list[Candidate]] = defaultdict(list)
    out = {}
    for one in sorted(candidates, key=_place):
        same = next((other for other in kept[one.run_id] if _is_same(other, one)), None)
        if same is None:
            kept[one.run_id].append(one)
        else:
            out[one.folder] = same.folder
    return out


def _is_same(a: Candidate, b: Candidate) -> bool:
    if not a.ranks & b.ranks:
        return False
    return bool(a.starts & b.starts) or a.carried or b.carried or not (a.starts and b.starts)


def _place(one: Candidate) -> tuple[float, float, str]:
    return -(one.end_unix_s or 0.0), -(one.energy_j or 0.0), one.folder
