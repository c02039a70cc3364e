"""Which action a profiling phase measures next, and how many steps the block may take at most.

Gears alone take turns, every other round the other way round. With power caps the phase goes from coarse to fine::

    every gear at the highest cap --> caps of each gear, one block each, as far as they are of use --> survivors again

All of it follows from what the ranks have in common, so all of them come to the same turn.

Which power cap of a gear to measure next: from coarse to fine, so that 21 caps take a handful of blocks.

The cost of a token is taken to have one minimum in the cap. Above it the cap takes watts that buy little speed, below
it the power that is drawn anyway (idle, memory, fans) is paid for a longer time: P = P_0 + k f^3 for a speed f gives
P / f = P_0 / f + k f^2, which is convex in f, and f grows with the cap. The sweeps of twelve trainings that Zeus keeps
(github.com/ml-energy/zeus, tests/profile_data, commit 75a8b93, 2026-08-20) agree, but for noise.

What lies below the minimum is slower and costs more, so no plan uses it: it is above the line from off to the minimum.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from greentrain.policy.action_table import Action
from greentrain.types import Gear

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


LEAST_BLOCKS: Final = 2
"""Blocks a gear that ``max_steps`` is shared out for first: with one there is no interval."""
SPARE: Final = 1.05
"""Steps planned for a block, in times what its gear's pace asks for: one more look costs a synchronisation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A block that is over, as all ranks see it."""

    action: Action
    steps: int
    """Measured steps."""
    warm: int
    """Warm-up steps before them."""
    speed: float | None
    """Steps a second of the slowest rank; None where no time passed."""
    power_w: float | None
    """Of all ranks together; None where it is not known, or was not asked for."""
    short: bool
    """The steps ran out before it was long enough for the sensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What is measured next."""

    action: Action
    share: int
    """Steps it may take, warm-up included."""


class MeasurementOrder(Protocol):
    """Says what is measured next."""

    wanting: int
    """About how many more steps the search for caps could have used."""

    def ended(self, block: Ended) -> None:
        """Note a block that is over."""
        ...

    def next(self, left: int) -> Turn | None:
        """Return what is measured with so many steps left; None: nothing more."""
        ...

    def drop(self, cap: float) -> None:
        """A cap cannot be set: measure no more at it."""
        ...


class GearTurns:
    """Every gear once a round; an even number of rounds cancels a linear drift."""

    def __init__(self, actions: Sequence[Action], *, rounds: int) -> None:
        self._actions = tuple(actions)
        self._rounds = rounds
        self._round = 0
        self._waiting = list(actions)
        self._needs: dict[Action, int] = {}
        self.wanting = 0

    def ended(self, block: Ended) -> None:
        """Note a block that is over."""
        self._needs[block.action] = block.steps + block.warm

    def next(self, left: int) -> Turn | None:
        """Return what is measured with so many steps left; None: nothing more."""
        if not self._waiting:
            self._round += 1
            if self._round >= LEAST_BLOCKS and not self._another(left):
                return None
            self._waiting = list(self._actions if self._round % 2 == 0 else self._actions[::-1])
        action = self._waiting.pop(0)
        later = len(self._waiting) + len(self._actions) * max(0, LEAST_BLOCKS - 1 - self._round)
        share = left // (later + 1)
        if self._round > 0:
            share = max(share, left - sum(self._needs[other] for other in self._waiting))
        return Turn(action=action, share=share)

    def drop(self, cap: float) -> None:
        """Nothing is left without the one cap."""
        self._waiting, self._rounds, self._round = [], 0, LEAST_BLOCKS

    def _another(self, left: int) -> bool:
        needed = math.ceil(SPARE * sum(self._needs.values()))
        return self._round < self._rounds and needed <= left


class CapTurns:
    """Gears times caps, each pair once if it may be of use, and those that are as often as steps allow.

    Args:
        gears: The one to start in first.
        caps: From the highest on; at least two.
        rounds: Most blocks an action.
        warm: Least warm-up steps of a block that is not a gear's first.
        settle_s: Time after a change of cap that counts as warm-up (s).
        max_slowdown: Largest share of its gear's speed that a cap may cost to be of use; None: any.
        score: Cost of a step from steps/s and watts, with one minimum in the cap.
    """

    def __init__(
        self,
        gears: Sequence[Gear],
        caps: Sequence[float],
        *,
        rounds: int,
        warm: int,
        settle_s: float,
        max_slowdown: float | None,
        score: Callable[[float, float], float],
    ) -> None:
        self._gears, self._caps = tuple(gears), list(caps)
        self._rounds, self._warm, self._settle_s = rounds, warm, settle_s
        self._max_slowdown, self._score = max_slowdown, score
        self._blocks: dict[Action, list[Ended]] = {}
        self._coarse: dict[Gear, int] = {}
        self._round = 0
        self._waiting: list[Action] = []
        self.wanting = 0

    def ended(self, block: Ended) -> None:
        """Note a block that is over."""
        self._blocks.setdefault(block.action, []).append(block)

    def drop(self, cap: float) -> None:
        """A cap cannot be set: measure no more at it."""
        self._caps = [other for other in self._caps if other != cap]
        self._waiting = [action for action in self._waiting if action.cap != cap]

    def next(self, left: int) -> Turn | None:
        """Return what is measured with so many steps left; None: nothing more."""
        if not self._caps:
            return None
        new = [top for top in self._tops if top not in self._blocks]
        if new:
            return Turn(action=new[0], share=left // (LEAST_BLOCKS * len(new)))
        if self._round == 0:
            turn = self._again(left) or self._sweep(left)
            if turn is not None:
                return turn
        if not self._waiting:
            self._round += 1
            self._waiting = self._survivors(left) if self._round < self._rounds else []
        if not self._waiting:
            return None
        return Turn(action=self._waiting.pop(0), share=left)

    # -- inside ------------------------------------------------------------------------------------------------

    @property
    def _tops(self) -> list[Action]:
        return [Action(gear=gear, cap=self._caps[0]) for gear in self._gears]

    def _again(self, left: int) -> Turn | None:
        """Return a gear at the highest cap whose power is not known: caps are compared with it."""
        unknown = [top for top in self._tops if len(self._blocks[top]) < LEAST_BLOCKS and self._seen(top) is None]
        return Turn(action=unknown[0], share=left // len(unknown)) if unknown and left > 2 * self._warm else None

    def _sweep(self, left: int) -> Turn | None:
        """Return the next cap that the search of a gear asks for."""
        self.wanting = 0
        searched = [gear for gear in self._gears if self._next_cap(gear, 1) is not None]
        for i, gear in enumerate(searched):
            steps = self._steps(Action(gear=gear, cap=self._caps[0]))
            room = left // (len(searched) - i) // steps
            if len(self._tried(gear)) == 1 and room > 0:
                short = len(self._caps) <= DENSE
                self._coarse[gear] = room if short else min(COARSE, max(1, room - 1))
            found = self._next_cap(gear, room)
            if found is not None:
                return Turn(action=Action(gear=gear, cap=self._caps[found]), share=left)
            self.wanting += steps * min(len(self._caps) - len(self._tried(gear)), 2 * COARSE)
        return None

    def _next_cap(self, gear: Gear, blocks: int) -> int | None:
        """Return which cap of a gear the search asks for; None where it is over, or has nothing to compare with."""
        tried = self._tried(gear)
        if 0 not in tried or tried[0].power_w is None:
            return None
        return next_cap(
            len(self._caps),
            tried,
            blocks=blocks,
            coarse=self._coarse.get(gear, 1),
            slowest=self._slowest(gear),
            score=self._score,
        )

    def _tried(self, gear: Gear) -> dict[int, Seen]:
        """Return what the caps of a gear have shown, by index; those measured in vain have no power."""
        found: dict[int, Seen] = {}
        for i, cap in enumerate(self._caps):
            action = Action(gear=gear, cap=cap)
            speed = next((block.speed for block in self._blocks.get(action, ()) if block.speed is not None), None)
            seen = self._seen(action) or (None if speed is None else Seen(speed=speed, power_w=None))
            if seen is not None:
                found[i] = seen
        return found

    def _slowest(self, gear: Gear) -> float:
        """Return the fewest steps a second of use: who chooses compares with this gear, or with a faster one."""
        if self._max_slowdown is None:
            return 0.0
        own = [block for action, blocks in self._blocks.items() if action.gear is gear for block in blocks]
        return (1.0 - self._max_slowdown) * max((block.speed for block in own if block.speed is not None), default=0.0)

    def _seen(self, action: Action) -> Seen | None:
        """Return the means of an action's blocks; None where joules are not known of any."""
        known = [
            (block.speed, block.power_w)
            for block in self._blocks.get(action, ())
            if block.speed is not None and block.power_w is not None
        ]
        if not known:
            return None
        speed, power_w = (sum(values) / len(known) for values in zip(*known, strict=True))
        return Seen(speed=speed, power_w=power_w)

    def _steps(self, action: Action) -> int:
        """Return the steps of another block of an action, or of one at a lower cap: steps are slower there."""
        blocks = self._blocks[action]
        settling = max((math.ceil(self._settle_s * block.speed) for block in blocks if block.speed), default=0)
        return math.ceil(SPARE * max(block.steps for block in blocks)) + max(self._warm, settling)

    def _survivors(self, left: int) -> list[Action]:
        """Return what another block is worth its steps for: what a plan, or the objective, may use.

        The best for the objective comes first, then what is nearest to the lower hull of (speed, power); in the first
        of these rounds every gear at the highest cap as well.
        """
        seen = {action: it for action in self._blocks if action.cap in self._caps and (it := self._seen(action))}
        excess = {action: _excess(it, list(seen.values())) for action, it in seen.items()}
        fit = {
            action: self._score(it.speed, it.power_w)
            for action, it in seen.items()
            if it.power_w is not None and it.speed >= self._slowest(action.gear)
        }
        if fit:
            excess[min(fit, key=lambda action: fit[action])] = -1.0
        tops = self._tops if self._round == 1 else []
        wanted = [a for a in sorted(excess, key=lambda a: excess[a]) if excess[a] <= NOISE or a in tops]
        taken: list[Action] = []
        for action in wanted:
            left -= self._steps(action)
            if left >= 0:
                taken.append(action)
        order = {gear: i for i, gear in enumerate(self._gears)}
        return sorted(taken, key=lambda a: (order[a.gear], -a.cap), reverse=self._round % 2 == 1)


def _excess(it: Seen, others: Sequence[Seen]) -> float:
    """Return by which share an action draws more than the cheapest mixture of others and pauses that is as fast."""
    points = [(0.0, 0.0), *((other.speed, other.power_w or 0.0) for other in others)]
    least = math.inf
    for v1, w1 in points:
        for v2, w2 in points:
            if v1 <= it.speed <= v2:
                least = min(least, w2 if v1 == v2 else w1 + (w2 - w1) * (it.speed - v1) / (v2 - v1))
    return (it.power_w or 0.0) / least - 1.0 if least > 0 else 0.0
