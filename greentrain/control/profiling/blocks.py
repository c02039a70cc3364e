"""Measured blocks of steps, and the action costs that follow from them.

A block is what one rank measured while one gear ran under one power cap; ranks add up to the job, and blocks of an
action to means with intervals. Figures that a loop or a sensor did not give stay None all the way.

Blocks of a profiling phase, while they run and until their joules are known.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from greentrain.errors import ConfigError
from greentrain.policy.action_table import Action, ActionCost, MeanWithCI
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
    costs = []
    for action in actions:
        own = [block for block in blocks if block.action == action]
        if own:
            costs.append(_cost(action, own, devices))
    return tuple(costs)


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
    """Its joules were asked for, and waited for, when it ended."""
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
