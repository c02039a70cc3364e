"""Which power cap of a gear to measure next: from coarse to fine, so that 21 caps take a handful of blocks.

The cost of a token is taken to have one minimum in the cap. Above it the cap takes watts that buy little speed, below
it the power that is drawn anyway (idle, memory, fans) is paid for a longer time: P = P_0 + k f^3 for a speed f gives
P / f = P_0 / f + k f^2, which is convex in f, and f grows with the cap. The sweeps of twelve trainings that Zeus keeps
(github.com/ml-energy/zeus, tests/profile_data, commit 75a8b93, 2026-08-20) agree, but for noise.

What lies below the minimum is slower and costs more, so no plan uses it: it is above the line from off to the minimum.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

NOISE: Final = 0.05
"""By how much two blocks of the same action may differ: in the sweeps above the energy rises by more than this in two
of the 67 pairs of neighbours where it should fall (by 5.9 and 6.2 %)."""
ALIKE: Final = 0.02
"""Two caps under which power differs by less do not bind, and neither does any between them."""
DENSE: Final = 5
"""Lists of caps up to this long are gone through one by one."""
COARSE: Final = 3
"""Caps of the first pass over a longer list, beside the highest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one block at a cap has shown."""

    speed: float
    """Steps a second."""
    power_w: float | None
    """Of the whole job; None where it is not known."""


def energy_per_step(speed: float, power_w: float) -> float:
    """Return the joules of a step: the score where nobody names another."""
    return power_w / speed


def next_cap(
    count: int,
    seen: Mapping[int, Seen],
    *,
    blocks: int,
    coarse: int,
    slowest: float = 0.0,
    score: Callable[[float, float], float] = energy_per_step,
) -> int | None:
    """Return which cap to measure next, as an index into the list from the highest on; None: enough is known.

    Args:
        count: Caps in the list, at least one.
        seen: What was measured, by index.
        blocks: How many more there are steps for.
        coarse: Caps of the first pass, beside the highest; see :func:`coarse_caps`.
        slowest: Fewest steps a second that are of use; what is slower, beyond noise, ends the pass.
        score: Cost of a step from speed and power; less is better.
    """
    if blocks <= 0:
        return None
    floor = lowest_useful(seen, slowest=slowest, score=score)
    for i in coarse_caps(count, coarse):
        if i not in seen and (floor is None or i < floor):
            return i
    scores = _scores(seen, slowest, score)
    if not scores:
        return None
    best = min(scores, key=lambda i: scores[i])
    best = max(i for i in scores if i == best or (i > best and _alike(seen[i], seen[best])))
    gaps = []
    higher = max((i for i in seen if i < best), default=best)
    if not _alike(seen[higher], seen[best]):
        gaps.append((higher - best, scores.get(higher, math.inf), (higher + best) // 2))
    lower = min((i for i in seen if i > best), default=best)
    gaps.append((best - lower, scores.get(lower, math.inf), (best + lower) // 2))
    wide = [gap for gap in gaps if gap[0] < -1]
    return min(wide)[2] if wide else None


def coarse_caps(count: int, coarse: int) -> list[int]:
    """Return the caps of the first pass, from the highest on: all of a short list, else evenly spread ones."""
    if count <= min(DENSE, coarse + 1):
        return list(range(count))
    if coarse <= 1:
        return [0, count // 2][: 1 + max(0, coarse)]
    return sorted({round(i * (count - 1) / coarse) for i in range(coarse + 1)})


def lowest_useful(
    seen: Mapping[int, Seen], *, slowest: float, score: Callable[[float, float], float] = energy_per_step
) -> int | None:
    """Return the first cap from which on none is of use; None where none such was seen.

    A cap ends the list if it is slower than allowed, or if it draws less than a higher one, makes fewer steps of that
    and each of them costs more, all beyond noise. A cap that draws no less does not bind, and cannot be why steps are
    slower.
    """
    for low in sorted(seen):
        it = seen[low]
        if it.speed < slowest * (1.0 - NOISE):
            return low
        if it.power_w is None:
            continue
        for high in seen:
            other = seen[high]
            if high < low and other.power_w is not None and it.power_w < other.power_w * (1.0 - NOISE):
                dearer = score(it.speed, it.power_w) > score(other.speed, other.power_w) * (1.0 + NOISE)
                if it.speed < other.speed and dearer:
                    return low
    return None


def _alike(one: Seen, two: Seen) -> bool:
    """Return True if two caps draw the same."""
    if one.power_w is None or two.power_w is None:
        return False
    return abs(one.power_w - two.power_w) <= ALIKE * max(one.power_w, two.power_w)


def _scores(seen: Mapping[int, Seen], slowest: float, score: Callable[[float, float], float]) -> dict[int, float]:
    """Return the scores of caps that are fast enough and whose power is known."""
    return {i: score(it.speed, it.power_w) for i, it in seen.items() if it.power_w is not None and it.speed >= slowest}
