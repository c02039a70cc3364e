"""Measures what gears and power caps cost and bring, in a few seconds of training: ``session.profile_gears()``.

Each gear runs in several short blocks of ordinary training steps, in turns, and every other round the other way
round, so that what drifts (temperature, clocks, a neighbour on the node) meets all gears alike::

    round 1:  bf16  fp16  fp8      of each block:  | warm-up, not counted | measured steps |
    round 2:  fp8   fp16  bf16                                            ^ synchronise    ^
    round 3:  bf16  fp16  fp8

An even number of rounds cancels a linear drift. An odd number of n rounds with k gears leaves (k - 1) / (k n^2) of it
between the first gear and the last: with three rounds 5.6 % of the drift for two gears, 8.3 % for four.

Of a block only times, steps and tokens are kept; its joules are asked for when the sensors have long reported them.
Where power caps are measured too they decide which cap comes next (:class:`CapTurns`), so training goes on unmeasured
at the end of each block until the sensors of all ranks have told: steps that ``max_steps`` does not count.
A gear's figures are means over its blocks with Student's t, so the interval holds what differs from block to block,
drift included.

A block is what one rank measured while one gear ran under one power cap; ranks add up to the job, and blocks of an
action to means with intervals. Figures that a loop or a sensor did not give stay None all the way.

Gears alone take turns, every other round the other way round. With power caps the phase goes from coarse to fine::

    every gear at the highest cap --> caps of each gear, one block each, as far as they are of use --> survivors again

All of it follows from what the ranks have in common, so all of them come to the same turn.

Caps too go from coarse to fine, so that 21 of them take a handful of blocks. The cost of a token is taken to have one
minimum in the cap. Above it the cap takes watts that buy little speed, below it the power that is drawn anyway (idle,
memory, fans) is paid for a longer time: P = P_0 + k f^3 for a speed f gives P / f = P_0 / f + k f^2, which is convex in
f, and f grows with the cap. The sweeps of twelve trainings that Zeus keeps (github.com/ml-energy/zeus,
tests/profile_data, commit 75a8b93, 2026-08-20) agree, but for noise.

What lies below the minimum is slower and costs more, so no plan uses it: it is above the line from off to the minimum.
"""

import math
import operator
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from greentrain.errors import ConfigError, SessionError
from greentrain.policy.action_table import Action, ActionCost, ActionTable, MeanWithCI, safe_gear, student_t_95
from greentrain.types import Gear, Provenance


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRecord:
    """One block of steps in one gear, as measured."""

    gear: Gear
    seconds: float
    steps: int
    tokens: int | None
    """None where the loop told none, or not after every step."""
    samples: int | None
    energy_j: Mapping[str, float] | None
    """By device uid (J); None: not known. Empty where this rank reads no device."""
    provenance: str
    """Of the joules: ``measured``, ``modelled``, ``mixed`` or ``missing``."""
    cap: float = 1.0
    """Power cap, as a fraction of the limit found."""

    @property
    def action(self) -> Action:
        """Return what ran."""
        return Action(gear=self.gear, cap=self.cap)


def add_ranks(ranks: Sequence[Sequence[BlockRecord]]) -> list[BlockRecord]:
    """Return the blocks of a whole job: tokens and joules added, the time of the slowest rank.

    Args:
        ranks: The records of each rank, which ran the same blocks.

    Raises:
        ConfigError: They did not.
    """
    runs = {tuple((block.action, block.steps) for block in blocks) for blocks in ranks}
    if len(runs) != 1:
        raise ConfigError(
            "the ranks did not profile the same steps: give every GearProfiler an agree= that asks rank 0"
        )
    return [_added(blocks) for blocks in zip(*ranks, strict=True)]


def costs_of(blocks: Sequence[BlockRecord], actions: Sequence[Action]) -> tuple[ActionCost, ...]:
    """Return the cost of each action that has a block.

    The joules of a block are known if they are of every device that any block has: else two actions would be compared
    on different hardware.
    """
    devices = {uid for block in blocks for uid in block.energy_j or ()}
    by_action = {action: own for action in actions if (own := [block for block in blocks if block.action == action])}
    costs = [_cost(action, own, devices) for action, own in by_action.items()]
    if len({action.cap for action in actions}) > 1:  # these take no turns
        return tuple(costs)
    gears = [action.gear for action in by_action]
    safe = next((own for action, own in by_action.items() if action.gear is safe_gear(gears)), ())
    return tuple(_beside(cost, by_action[cost.action], safe) for cost in costs)


def _beside(cost: ActionCost, own: Sequence[BlockRecord], safe: Sequence[BlockRecord]) -> ActionCost:
    """Return a cost with its ratios to the safe gear, taken round by round: what slows a round slows both."""
    speeds, efficiencies = [], []
    for a, b in zip(own, safe, strict=False):
        speeds.append(math.log(a.steps / a.seconds * b.seconds / b.steps))
        a_j, b_j = (sum((block.energy_j or {}).values()) / block.steps for block in (a, b))
        if a_j > 0 < b_j and (a.energy_j or {}).keys() == (b.energy_j or {}).keys():
            efficiencies.append(math.log(b_j / a_j))
    return replace(cost, speed_ratio=_of_logs(speeds), efficiency_ratio=_of_logs(efficiencies))


def _of_logs(logs: Sequence[float]) -> MeanWithCI | None:
    if len(logs) < LEAST_BLOCKS:
        return None
    mean = statistics.fmean(logs)
    half = min(MOST_LOG, student_t_95(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs)))
    return MeanWithCI(mean=math.exp(mean), low=math.exp(mean - half), high=math.exp(mean + half))


def _cost(action: Action, blocks: Sequence[BlockRecord], devices: set[str]) -> ActionCost:
    seconds = [block.seconds for block in blocks]
    steps = [float(block.steps) for block in blocks]
    tokens = _all_known([block.tokens for block in blocks])
    samples = _all_known([block.samples for block in blocks])
    joules = _all_known(
        [sum(b.energy_j.values()) if devices and b.energy_j and b.energy_j.keys() == devices else None for b in blocks]
    )
    return ActionCost(
        action=action,
        steps_per_s=MeanWithCI.of(_ratios(steps, seconds)),
        tokens_per_s=None if tokens is None else MeanWithCI.of(_ratios(tokens, seconds)),
        samples_per_s=None if samples is None else MeanWithCI.of(_ratios(samples, seconds)),
        power_w=None if joules is None else MeanWithCI.of(_ratios(joules, seconds)),
        j_per_step=None if joules is None else MeanWithCI.of(_ratios(joules, steps)),
        j_per_token=None if joules is None or tokens is None else MeanWithCI.of(_ratios(joules, tokens)),
        provenance="missing" if joules is None else _one({block.provenance for block in blocks}),
        steps=sum(block.steps for block in blocks),
        blocks=len(blocks),
    )


def _added(blocks: Sequence[BlockRecord]) -> BlockRecord:
    tokens = _all_known([block.tokens for block in blocks])
    samples = _all_known([block.samples for block in blocks])
    energy_j: dict[str, float] | None = {}
    for block in blocks:
        if energy_j is None or block.energy_j is None:
            energy_j = None
            continue
        for uid, joules in block.energy_j.items():  # rapl:package-0 of two nodes are one entry
            energy_j[uid] = energy_j.get(uid, 0.0) + joules
    return BlockRecord(
        gear=blocks[0].gear,
        cap=blocks[0].cap,
        seconds=max(block.seconds for block in blocks),
        steps=blocks[0].steps,
        tokens=None if tokens is None else round(sum(tokens)),
        samples=None if samples is None else round(sum(samples)),
        energy_j=energy_j,
        provenance=_one({block.provenance for block in blocks if block.energy_j}) if energy_j else "missing",
    )


def _all_known(values: Sequence[float | None]) -> list[float] | None:
    known = [value for value in values if value is not None]
    return known if len(known) == len(values) else None


def _ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(above, below, strict=True)]


def _one(provenances: set[str]) -> str:
    return provenances.pop() if len(provenances) == 1 else "mixed"


def provenance_of(energy_j: Mapping[str, float] | None, known: Mapping[str, Provenance]) -> str:
    """Return where joules come from; of a device that nobody vouches for they count as modelled."""
    return _one({str(known.get(uid, Provenance.MODELLED)) for uid in energy_j}) if energy_j else "missing"


@dataclass(slots=True)
class Block:
    """A block while it runs and until its joules are known."""

    action: Action
    first: bool
    """The first of its gear."""
    settle_s: float
    """Least warm-up (s): the cap has changed."""
    last_step: int
    """Step of the phase with which it ends at the latest."""
    looked_s: float | None
    """Time of the last look (s): the start of the warm-up steps that run."""
    looked_warm: int = 0
    """Warm-up steps before it."""
    warm: int = 0
    warm_s: float | None = None
    """Seconds a warm-up step, of the last ones."""
    t0_s: float | None = None
    t1_s: float = 0.0
    steps: int = 0
    told: int = 0
    tokens: int = 0
    samples: int = 0
    short: bool = False
    """The steps ran out before it was long enough for the sensors."""
    asked: bool = False
    """Its joules were asked for, until they were known or given up, when it ended."""
    energy_j: Mapping[str, float] | None = None


class MeasuredBlocks:
    """The blocks that are over, of one rank.

    Args:
        energy: Returns the joules by device between two times, or None where they are not known.
        least: Long blocks of an action with which its short ones do not count any more.
    """

    def __init__(self, energy: Callable[[float, float], Mapping[str, float] | None], *, least: int) -> None:
        self._energy, self._least = energy, least
        self.ended: list[Block] = []
        """All of them, in their order."""

    def add(self, block: Block) -> None:
        """Keep a block that is over."""
        self.ended.append(block)

    def drop(self, cap: float) -> None:
        """Forget what was measured at a power cap."""
        self.ended = [block for block in self.ended if block.action.cap != cap]

    def records(self, provenance: Callable[[], Mapping[str, Provenance]]) -> list[BlockRecord]:
        """Return those that count; asks for the joules not yet known.

        Args:
            provenance: Returns where the joules of each device come from; called once they are known.
        """
        self.ask(math.inf)
        known = provenance()
        return [
            BlockRecord(
                gear=block.action.gear,
                cap=block.action.cap,
                seconds=block.t1_s - (block.t0_s or 0.0),
                steps=block.steps,
                tokens=block.tokens if block.tokens and block.told == block.steps else None,
                samples=block.samples if block.samples and block.told == block.steps else None,
                energy_j=block.energy_j,
                provenance=provenance_of(block.energy_j, known),
            )
            for block in self.counted()
        ]

    def counted(self) -> list[Block]:
        """Return the blocks without the short ones of actions that have enough others."""
        long = [block.action for block in self.ended if not block.short]
        return [block for block in self.ended if not block.short or long.count(block.action) < self._least]

    def known(self) -> bool:
        """Return whether the joules of all blocks that count are known; asks for those that are not."""
        self.ask(math.inf)
        return all(block.energy_j is not None or block.short or block.asked for block in self.counted())

    def pace_s(self, action: Action) -> float | None:
        """Return the seconds a step of an action took in its last block; None before its first."""
        for block in reversed(self.ended):
            if block.action == action and block.t0_s is not None:
                return (block.t1_s - block.t0_s) / block.steps
        return None

    def ask(self, until_s: float) -> None:
        """Ask for the joules of the blocks that ended by a time and have none yet."""
        for block in self.ended:
            waited = block.asked and math.isfinite(until_s)
            known = block.energy_j is not None or block.short or waited
            if not known and block.t0_s is not None and block.t1_s <= until_s:
                block.energy_j = self._energy(block.t0_s, block.t1_s)


MOST_LOG: Final = 20.0
"""Longest half of an interval of logarithms: no number overflows."""
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
        seen: Speed and power that were measured, by index.
        blocks: Number of further blocks that there are steps for.
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

    def next(self, left: int) -> Turn | None:
        """Return what is measured with so many steps left; None: nothing more."""

    def drop(self, cap: float) -> None:
        """A cap cannot be set: measure no more at it."""

    def leave(self, gear: Gear) -> None:
        """A gear is not worth its time: measure no more in it."""


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
            if not self._actions or (self._round >= LEAST_BLOCKS and not self._another(left)):
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

    def leave(self, gear: Gear) -> None:
        """A gear is not worth its time: measure no more in it."""
        self._actions = tuple(action for action in self._actions if action.gear is not gear)
        self._waiting = [action for action in self._waiting if action.gear is not gear]

    def _another(self, left: int) -> bool:
        needed = math.ceil(SPARE * sum(self._needs.get(action, 0) for action in self._actions))
        return self._round < self._rounds and needed <= left


class CapTurns:
    """Gears times caps, each pair once if it may be of use, and those that are as often as steps allow.

    Args:
        gears: The one to start in first.
        caps: Power caps from the highest on, at least two.
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

    def leave(self, gear: Gear) -> None:
        """A gear is not worth its time: measure no more in it."""
        self._gears = tuple(other for other in self._gears if other is not gear)
        self._waiting = [action for action in self._waiting if action.gear is not gear]

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
        order = {gear: i for i, gear in enumerate(self._gears)}
        useful = [a for a in excess if a.gear in order and (excess[a] <= NOISE or a in tops)]
        wanted = sorted(useful, key=lambda a: excess[a])
        taken: list[Action] = []
        for action in wanted:
            left -= self._steps(action)
            if left >= 0:
                taken.append(action)
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


def check_phase(
    gears: Sequence[Gear],
    caps: Sequence[float],
    rounds: int,
    warmup_steps: int,
    min_block_s: float,
    min_steps: int,
    max_steps: int,
) -> None:
    """Check what ``greentrain.control.profiling.profiler.GearProfiler`` is given; its arguments say what each means.

    Raises:
        ConfigError: The gears or numbers make no sense, or the steps do not suffice for two blocks a gear.
    """
    if not gears or len(set(gears)) != len(gears):
        raise ConfigError(f"profiling needs each gear once, at least one, not {[str(gear) for gear in gears]}")
    if not caps or len(set(caps)) != len(caps):
        raise ConfigError(f"profiling needs each power cap once, at least one, not {list(caps)}")
    for name, value, least in (
        ("rounds", rounds, LEAST_BLOCKS),
        ("warmup_steps", warmup_steps, 1),
        ("min_steps", min_steps, 1),
        ("max_steps", max_steps, LEAST_BLOCKS * len(gears) * (warmup_steps + min_steps)),
    ):
        if value < least:
            raise ConfigError(f"profiling {len(gears)} gears: {name} is {value}; it must be at least {least}")
    if not (math.isfinite(min_block_s) and min_block_s > 0):
        raise ConfigError(f"profiling: min_block_s is {min_block_s}; it must be a number of seconds above 0")


FALLING: Final = 0.9
"""A step this much shorter than the one before says that the gear is still warming up."""
MOST_WARM: Final = 4
"""Bound of the first warm-up, in times ``warmup_steps``."""
MANY: Final = 4.0
"""A gear is left after its first steps if one takes longer than a block has to be, and as many times what the quickest
known takes: no plan that could use that one is better for knowing this one's interval."""
SLACK_SHARE: Final = 0.5
"""Of the time before the deadline that the quickest gear known would not need, the most that a block may cost."""
ASK_AFTER_S: Final = 10.0
"""Age of a block (s) after which its joules are asked for while others run: sensors have reported it (5 s at most,
``greentrain.ledger.active_run.MAX_LAG_S``), their curves still hold it (27 min,
``greentrain.power.sampler.CAPACITY``)."""
CAP_SETTLES_S: Final = 1.0
"""Time after a change of power limit that counts as warm-up (s): power follows within a few 100 ms, and readings that
are means over the last second (NVML's power, Ampere and later: NVIDIA, nvmlDeviceGetPowerUsage,
https://docs.nvidia.com/deploy/nvml-api/, 2026-11-21) a second later."""
SENSORS_S: Final = 4.0
"""How long training goes on unmeasured until the joules of a block are known (s): readings are worked in every 2 s
(``greentrain.ledger.active_run.SETTLE_S``)."""
ASK_S: Final = 0.25
"""How often the sensors are asked for the joules of the last blocks (s)."""
MOST_CALLS: Final = 1024
"""Calls of the user's function without an optimizer step after which :meth:`GearProfiler.run` gives up."""


class GearProfiler:
    """Takes training through gears and power caps; driven by the training itself.

    ::

        Warming --steps done, pace steady--> Measuring --min_block_s and min_steps reached--> Warming of the next
           ^ |                                 ^ |                                            block, or Done
           +-+ still getting faster            +-+ a few more steps; with caps, until sensors have told

    Between two looks at the clock a step costs a subtraction. The next look is a number of steps away that ``agree``
    makes the same on all ranks, so all of them shift gears at the same step.

    ``max_steps`` measured steps are never exceeded. Two blocks a gear come first, whatever they hold, then as many
    rounds as fit. Where steps are so quick that a block's share of them runs out before ``min_block_s``, its speed
    counts and its joules are unknown, unless its gear has two longer blocks; :attr:`advice` then says how many steps it
    takes.

    Args:
        gears: Gears to measure, the one to start in first.
        energy: Returns the joules by device between two times of ``clock``, or None where they are not known (yet).
            Called between two steps, where it must not wait for sensors, and by :meth:`table`.
        provenance: Returns where the joules of each device come from.
        clock: Monotonic time (s).
        synchronize: Waits until the device has done all it was given; None where steps are over when they return.
        agree: Returns rank 0's number on every rank.
        caps: Power caps to measure each gear at, as fractions of the limit found; who drives the profiler sets
            :attr:`cap` before the next step, or calls :meth:`drop`.
        score: Cost of a step from steps/s and watts, which the search for caps makes least. None: joules a step.
        max_slowdown: Largest share of its gear's speed that a cap may cost to be of use; None: any.
        slack: Returns the time before the deadline that the job would not need at so many seconds a step (s); rank 0's
            counts. None: there is no deadline.
        gather: Returns the numbers of every rank, in the order of ranks.
        settle_s: Least warm-up after a change of cap (s).
        rounds: Blocks an action.
        warmup_steps: Steps before a gear's first block; a third of them before later ones.
        min_block_s: Shortest block (s): ten periods of the slowest sensor, or an edge's share of a tick counts.
        min_steps: Fewest steps of a block.
        max_steps: Most steps of all gears together, warm-up included, but for those that run until sensors have told.

    Raises:
        ConfigError: The gears or numbers make no sense, or the steps do not suffice for two blocks a gear.
    """

    def __init__(
        self,
        gears: Sequence[Gear],
        *,
        energy: Callable[[float, float], Mapping[str, float] | None],
        provenance: Callable[[], Mapping[str, Provenance]],
        clock: Callable[[], float] = time.monotonic,
        synchronize: Callable[[], None] | None = None,
        agree: Callable[[int], int] = lambda steps: steps,
        caps: Sequence[float] = (1.0,),
        score: Callable[[float, float], float] | None = None,
        max_slowdown: float | None = None,
        slack: Callable[[float], float] | None = None,
        gather: Callable[[Sequence[float]], Sequence[Sequence[float]]] = lambda numbers: (numbers,),
        settle_s: float = CAP_SETTLES_S,
        rounds: int = 3,
        warmup_steps: int = 3,
        min_block_s: float = 1.0,
        min_steps: int = 3,
        max_steps: int = 200,
    ) -> None:
        check_phase(gears, caps, rounds, warmup_steps, min_block_s, min_steps, max_steps)
        caps = sorted(caps, reverse=True)
        self._actions = [Action(gear=gear, cap=cap) for gear in gears for cap in caps]
        self._gears = tuple(gears)
        self._energy, self._provenance = energy, provenance
        self._clock, self._synchronize, self._agree, self._gather = clock, synchronize, agree, gather
        self._warmup_steps, self._settle_s, self._slack = warmup_steps, settle_s, slack
        self._min_block_s, self._min_steps, self._max_steps = min_block_s, min_steps, max_steps
        self._capped = len(caps) > 1
        self._blocks = MeasuredBlocks(energy, least=1 if self._capped else LEAST_BLOCKS)
        self._turns: MeasurementOrder = (
            CapTurns(
                gears,
                caps,
                rounds=rounds,
                warm=math.ceil(warmup_steps / 3),
                settle_s=settle_s,
                max_slowdown=max_slowdown,
                score=score or energy_per_step,
            )
            if self._capped
            else GearTurns(self._actions, rounds=rounds)
        )
        self._begun: set[Gear] = set()
        self._why_left: dict[Gear, str] = {}
        self.hurried = False
        """True where the deadline kept a gear from being measured as long as it should be; known on rank 0."""
        self._ended: Block | None = None
        self._told = self._over = False
        self._left = self._ran = 0
        self.steps = 0
        """Steps since the start, warm-up included, but for those that ran until sensors have told."""
        self.done = False
        """True when there is nothing more to run."""
        self._cap = caps[0]
        """That of the last block."""
        self._block: Block
        self._next_block(None)

    @property
    def gear(self) -> Gear:
        """Gear of the coming step; after the end that of the last one."""
        return self._block.action.gear

    @property
    def cap(self) -> float:
        """Power cap of the coming step; after the end that of the last one."""
        return self._block.action.cap

    def drop(self, cap: float) -> None:
        """A power cap cannot be set: forget what was measured at it, and go on with another one."""
        self._turns.drop(cap)
        self._blocks.drop(cap)
        self._actions = [action for action in self._actions if action.cap != cap]
        if self.cap == cap and not self.done:
            self._next_block(self._block.looked_s)

    def boundary(self, t_s: float) -> Gear:
        """Note the end of an optimizer step.

        Args:
            t_s: Now, by ``clock`` (s).

        Returns:
            The gear of the next step.
        """
        block, self._ended = self._block, None
        if self.done:
            return self.gear
        self._told = False
        self._ran += 1
        self._left -= 1
        if not self._over:
            self.steps += 1
            if block.t0_s is None:
                block.warm += 1
            else:
                self._ended = block
                block.steps += 1
        if self._left <= 0:
            if self._synchronize is not None:
                self._synchronize()
                t_s = self._clock()
            if block.t0_s is None:
                self._warmed(block, t_s)
            elif self._over:
                self._settle(block, block.t0_s, t_s)
            else:
                self._measured(block, block.t0_s, t_s)
        return self.gear

    def step(self, tokens: int = 0, samples: int = 0) -> None:
        """Note what the step that ended with the last :meth:`boundary` held, on this rank."""
        if self._ended is not None:
            self._ended.told += not self._told
            self._ended.tokens += tokens
            self._ended.samples += samples
        self._told = True

    def run(self, step: Callable[[], int | None]) -> None:
        """Train until everything is measured.

        Args:
            step: Trains one step, or one micro-batch of one, and returns its tokens, or None. Its optimizer's hook
                must call :meth:`boundary`.

        Raises:
            ConfigError: It returns something else.
            SessionError: It does not step the optimizer.
        """
        tokens = calls = 0
        while not self.done:
            before = self._ran
            held = step()
            try:
                tokens += 0 if held is None else operator.index(held)
            except TypeError as error:
                raise ConfigError(
                    f"the function to profile returned a {type(held).__name__}; it must return the step's tokens as an"
                    " int, or None"
                ) from error
            calls += 1
            if self._ran == before:
                if calls >= MOST_CALLS:
                    raise SessionError(
                        f"the function to profile was called {calls} times without a step of the watched optimizer:"
                        " pass that optimizer to watch() and step it in the function"
                    )
                continue
            if tokens and not self._told:
                self.step(tokens)
            tokens = calls = 0

    @property
    def advice(self) -> str:
        """What keeps joules out of the table though there are sensors, and the remedy; "" where nothing does."""
        blocks = self._blocks.counted()
        short = sum(block.short for block in blocks)
        if self._why_left:
            return "; ".join(f"{gear} was left early: {why}" for gear, why in self._why_left.items())
        if short:
            paces_s = [pace_s for action in self._actions if (pace_s := self._blocks.pace_s(action))]
            longest = math.ceil(SPARE**2 * self._min_block_s / min(paces_s)) + MOST_WARM * self._warmup_steps
            needed = LEAST_BLOCKS * len(self._gears) * longest
            return (
                f"{short} of {len(blocks)} blocks ended before the {self._min_block_s:g} s that the sensors need:"
                f" raise max_steps from {self._max_steps} to about {max(needed, self._max_steps + 1)}"
            )
        if self._capped and self.done and blocks and all(block.energy_j is None for block in blocks):
            return "no joules are known, so power caps were not measured: they need a sensor that GreenTrain can read"
        if self._turns.wanting and self.done:
            ended = self._blocks.ended
            return (
                f"{len(ended)} blocks fit in, of {len({block.action for block in ended})} pairs of gear"
                " and power cap; the search for the best cap had more to try: name fewer caps, or raise max_steps from"
                f" {self._max_steps} to about {self._max_steps + self._turns.wanting}"
            )
        return ""

    @property
    def settled(self) -> bool:
        """True when the joules of all blocks are known; asks for those that are not."""
        return self._blocks.known()

    def records(self) -> list[BlockRecord]:
        """Return the blocks of this rank; asks for the joules not yet known."""
        return self._blocks.records(self._provenance)

    def table(
        self,
        *,
        device: str = "",
        world_size: int = 1,
        versions: Mapping[str, str] | None = None,
        created_unix_s: float | None = None,
        records: Sequence[BlockRecord] | None = None,
    ) -> ActionTable:
        """Return what was measured; a gear without a whole block is not in it.

        Args:
            device: Device that the steps ran on, for people.
            world_size: Ranks of the job.
            versions: Versions of the software it was measured with.
            created_unix_s: Time (s since the epoch); None: now.
            records: The blocks of all ranks, from ``profile_blocks.add_ranks``; None: those of this rank alone.
        """
        blocks = self.records() if records is None else records
        told = [block for block in blocks if block.tokens is not None]
        return ActionTable(
            costs=costs_of(blocks, self._actions),
            device=device,
            world_size=world_size,
            tokens_per_step=sum(b.tokens or 0 for b in told) / sum(b.steps for b in told) if told else None,
            created_unix_s=time.time() if created_unix_s is None else created_unix_s,
            versions=dict(versions or {}),
        )

    # -- inside ------------------------------------------------------------------------------------------------

    def _warmed(self, block: Block, now_s: float) -> None:
        """Look at a warm-up: another step of it, or the first measured ones."""
        before_s, block.looked_s = block.looked_s, now_s
        steps, block.looked_warm = block.warm - block.looked_warm, block.warm
        last_s, faster = None, False
        if before_s is not None:
            last_s = block.warm_s
            block.warm_s = (now_s - before_s) / steps
            faster = last_s is not None and block.warm_s < FALLING * last_s
            block.settle_s -= now_s - before_s
        if block.first or self._capped:
            start = self.steps - block.warm
            room = block.last_step - start - self._min_steps
            least = self._warmup_steps if block.first else 0
            more = int(block.warm < least or (block.first and faster and block.warm < min(MOST_WARM * least, room)))
            if block.settle_s > 0 and block.warm_s and not more:
                more = max(0, min(math.ceil(block.settle_s / block.warm_s), room - block.warm))
            told = block.first and steps == 1 and last_s is not None and not faster
            self._left = self._agree(-1 if told and self._is_slow(block.warm_s or 0.0) else more)
            if self._left < 0 and before_s is not None:  # that step is all that is measured
                block.t0_s, block.steps, block.warm, block.t1_s = before_s, 1, block.warm - 1, now_s
                self._ended = block
                self._end(block, before_s, now_s)
            if self._left != 0:
                return
        block.t0_s = now_s
        pace_s = self._blocks.pace_s(block.action) or block.warm_s or 0.0
        planned = math.ceil(SPARE * self._min_block_s / pace_s) if pace_s > 0 else 0
        self._left = min(self._agree(max(self._least(pace_s), planned)), block.last_step - self.steps)

    def _measured(self, block: Block, t0_s: float, now_s: float) -> None:
        """Look at the measured steps: a few more of them, or the next block."""
        seconds = now_s - t0_s
        wanted = max(0, self._least(seconds / block.steps) - block.steps)
        if seconds < self._min_block_s:
            missing = (self._min_block_s - seconds) / seconds if seconds > 0 else 1.0
            wanted = max(wanted, math.ceil(SPARE * missing * block.steps), 1)
        wanted = self._agree(wanted)
        self._left = min(wanted, block.last_step - self.steps)
        if self._left > 0:
            return
        block.t1_s, block.short = now_s, wanted > 0
        self._end(block, t0_s, now_s)

    def _end(self, block: Block, t0_s: float, now_s: float) -> None:
        """Keep a block that is over."""
        if now_s > t0_s:
            self._blocks.add(block)
        self._blocks.ask(now_s - ASK_AFTER_S)
        self._over = True
        self._settle(block, t0_s, now_s)

    def _settle(self, block: Block, t0_s: float, now_s: float) -> None:
        """Go on where the sensors of all ranks have told of a block, with what all see alike; else train a little."""
        seconds, watts = block.t1_s - t0_s, 0.0
        speed: float | None = None
        if self._capped:  # else no turn depends on it
            if seconds > 0 and block.energy_j is None and not block.short:
                block.energy_j = self._energy(t0_s, block.t1_s)
            watts = math.nan if block.energy_j is None or seconds <= 0 else sum(block.energy_j.values()) / seconds
            ranks = self._gather((seconds, watts, now_s - block.t1_s))
            slowest_s, watts = max(rank[0] for rank in ranks), sum(rank[1] for rank in ranks)
            if math.isnan(watts) and not block.short and slowest_s > 0 and ranks[0][2] < SENSORS_S:
                self._left = math.ceil(ASK_S * block.steps / slowest_s)
                return
            block.asked, speed, now_s = True, block.steps / slowest_s if slowest_s > 0 else None, self._clock()
        known_w = watts if watts > 0 else None  # neither NaN nor a job that reads no device
        steps, warm, short = block.steps, block.warm, block.short
        self._turns.ended(Ended(action=block.action, steps=steps, warm=warm, speed=speed, power_w=known_w, short=short))
        self._next_block(now_s)

    @property
    def _quickest_s(self) -> float:
        """Seconds a step of the quickest block that is over; infinite before the first."""
        ended = self._blocks.ended
        return min(((block.t1_s - (block.t0_s or 0.0)) / block.steps for block in ended), default=math.inf)

    def _is_slow(self, step_s: float) -> bool:
        """Return whether a step takes many times what it could, and longer than sensors ask for."""
        return step_s >= self._min_block_s and step_s > MANY * self._quickest_s

    def _is_late(self, steps: int, step_s: float) -> bool:
        """Return whether so many steps cost more of the time that is left before the deadline than a block may."""
        quickest_s = min(step_s, self._quickest_s)
        if self._slack is None:
            return False
        return steps * (step_s - quickest_s) > SLACK_SHARE * self._slack(quickest_s)

    def _least(self, step_s: float) -> int:
        """Return the fewest steps of a block: where time is short, as few as sensors can do with."""
        late = self._is_late(self._min_steps, step_s)
        self.hurried = self.hurried or late
        return 1 if late else self._min_steps

    def _is_not_worth_it(self, action: Action) -> bool:
        """Return whether a gear is measured no more, as it is far too slow or the deadline is near."""
        paces_s = [pace_s for a in self._actions if a.gear is action.gear and (pace_s := self._blocks.pace_s(a))]
        quickest_s, why = self._quickest_s, ""
        steps = self._warmup_steps + self._min_steps
        if paces_s and self._is_slow(min(paces_s)):
            times = min(paces_s) / quickest_s
            why = f"a step takes {times:.0f} times as long as the quickest; its figures have no interval"
        elif paces_s and self._is_late(max(steps, int(self._min_block_s / min(paces_s))), min(paces_s)):
            why = "the deadline leaves no time to measure it better"
        elif not paces_s and self._is_late(steps, MANY * quickest_s) and not self._is_late(1, quickest_s):
            why = "the deadline leaves no time to try it"  # late at the quickest known, it would be the only hope
        if why:
            self._why_left[action.gear], self.hurried = why, self.hurried or "deadline" in why
        return bool(why)

    def _next_block(self, now_s: float | None) -> None:
        """Begin the next block, with its share of the steps that are left; the phase is over where there is none."""
        self._over = False
        turn: Turn | None = self._turns.next(self._max_steps - self.steps)
        while turn is not None and self._begun and self._agree(int(self._is_not_worth_it(turn.action))):
            self._turns.leave(turn.action.gear)
            turn = self._turns.next(self._max_steps - self.steps)
        if turn is None:
            self.done = True
            return
        first = turn.action.gear not in self._begun
        self._begun.add(turn.action.gear)
        settle_s = self._settle_s if turn.action.cap != self._cap else 0.0
        self._cap = turn.action.cap
        self._left = 1 if first else math.ceil(self._warmup_steps / 3)
        self._block = Block(
            action=turn.action,
            first=first,
            settle_s=settle_s,
            last_step=self.steps + turn.share,
            looked_s=now_s,
        )
