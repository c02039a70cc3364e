"""Blocks of a profiling phase, while they run and until their joules are known."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from greentrain.action_table import Action
from greentrain.profile_blocks import BlockRecord, provenance_of
from greentrain.types import Provenance


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
