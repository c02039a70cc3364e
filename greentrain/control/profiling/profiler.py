"""Measures what gears and power caps cost and bring, in a few seconds of training: ``session.profile_gears()``.

Each gear runs in several short blocks of ordinary training steps, in turns, and every other round the other way
round, so that what drifts (temperature, clocks, a neighbour on the node) meets all gears alike::

    round 1:  bf16  fp16  fp8      of each block:  | warm-up, not counted | measured steps |
    round 2:  fp8   fp16  bf16                                            ^ synchronise    ^
    round 3:  bf16  fp16  fp8

An even number of rounds cancels a linear drift. An odd number of n rounds with k gears leaves (k - 1) / (k n^2) of it
between the first gear and the last: with three rounds 5.6 % of the drift for two gears, 8.3 % for four.

Of a block only times, steps and tokens are kept; its joules are asked for when the sensors have long reported them.
Where power caps are measured too they are waited for at the end of each block, as they decide which cap comes next
(``greentrain.control.profiling.turns``): two seconds in which the devices idle, a dozen times in the life of a model.
A gear's figures are means over its blocks with Student's t, so the interval holds what differs from block to block,
drift included.

Whether gears, power caps and numbers of a profiling phase make sense together.
"""

import math
import operator
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from greentrain.control.profiling.blocks import Block, BlockRecord, MeasuredBlocks, costs_of
from greentrain.control.profiling.turns import (
    LEAST_BLOCKS,
    SPARE,
    CapTurns,
    Ended,
    GearTurns,
    MeasurementOrder,
    Turn,
    energy_per_step,
)
from greentrain.errors import ConfigError, SessionError
from greentrain.policy.action_table import Action, ActionTable
from greentrain.types import Gear, Provenance


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
ASK_AFTER_S: Final = 10.0
"""Age of a block (s) after which its joules are asked for while others run: sensors have reported it (5 s at most,
``greentrain.ledger.active_run.MAX_LAG_S``), their curves still hold it (27 min,
``greentrain.power.curve.CAPACITY``)."""
CAP_SETTLES_S: Final = 1.0
"""Time after a change of power limit that counts as warm-up (s): power follows within a few 100 ms, and readings that
are means over the last second (NVML's power, Ampere and later: NVIDIA, nvmlDeviceGetPowerUsage,
https://docs.nvidia.com/deploy/nvml-api/, 2026-11-21) a second later."""
MOST_CALLS: Final = 1024
"""Calls of the user's function without an optimizer step after which :meth:`GearProfiler.run` gives up."""


class GearProfiler:
    """Takes training through gears and power caps; driven by the training itself.

    ::

        Warming --steps done, pace steady--> Measuring --min_block_s and min_steps reached--> Warming of the next
           ^ |                                 ^ |                                            block, or Done
           +-+ still getting faster            +-+ a few more steps

    Between two looks at the clock a step costs a subtraction. The next look is a number of steps away that ``agree``
    makes the same on all ranks, so all of them shift gears at the same step.

    ``max_steps`` is never exceeded. Two blocks a gear come first, whatever they hold, then as many rounds as fit. Where
    steps are so quick that a block's share of them runs out before ``min_block_s``, its speed counts and its joules
    are unknown, unless its gear has two longer blocks; :attr:`advice` then says how many steps it takes.

    Args:
        gears: Gears to measure, the one to start in first.
        energy: Returns the joules by device between two times of ``clock``, or None where they are not known. Called
            between blocks for blocks long past, and by :meth:`table`, where it may wait for sensors.
        provenance: Returns where the joules of each device come from.
        clock: Monotonic time (s).
        synchronize: Waits until the device has done all it was given; None where steps are over when they return.
        agree: Returns rank 0's number on every rank.
        caps: Power caps to measure each gear at, as fractions of the limit found; who drives the profiler sets
            :attr:`cap` before the next step, or calls :meth:`drop`.
        score: What a step costs, from steps/s and watts: what the search for caps looks for. None: joules a step.
        max_slowdown: Largest share of its gear's speed that a cap may cost to be of use; None: any.
        gather: Returns a number of every rank, in the order of ranks.
        settle_s: Least warm-up after a change of cap (s).
        rounds: Blocks an action.
        warmup_steps: Steps before a gear's first block; a third of them before later ones.
        min_block_s: Shortest block (s): ten periods of the slowest sensor, or an edge's share of a tick counts.
        min_steps: Fewest steps of a block.
        max_steps: Most steps of all gears together, warm-up included.

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
        gather: Callable[[float], Sequence[float]] = lambda value: (value,),
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
        self._warmup_steps, self._settle_s = warmup_steps, settle_s
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
        self._ended: Block | None = None
        self._told = False
        self._left = 0
        self.steps = 0
        """Steps since the start, warm-up included."""
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
        if self.done:
            self._ended = None
            return self.gear
        self.steps += 1
        self._told = False
        block = self._block
        if block.t0_s is None:
            self._ended = None
            block.warm += 1
        else:
            self._ended = block
            block.steps += 1
        self._left -= 1
        if self._left <= 0:
            if self._synchronize is not None:
                self._synchronize()
                t_s = self._clock()
            if block.t0_s is None:
                self._warmed(block, t_s)
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
            before = self.steps
            held = step()
            try:
                tokens += 0 if held is None else operator.index(held)
            except TypeError as error:
                raise ConfigError(
                    f"the function to profile returned a {type(held).__name__}; it must return the step's tokens as an"
                    " int, or None"
                ) from error
            calls += 1
            if self.steps == before:
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
            device: For people: what the steps ran on.
            world_size: Ranks of the job.
            versions: What it was measured with.
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
        faster = False
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
            self._left = self._agree(more)
            if self._left > 0:
                return
        block.t0_s = now_s
        pace_s = self._blocks.pace_s(block.action) or block.warm_s or 0.0
        planned = math.ceil(SPARE * self._min_block_s / pace_s) if pace_s > 0 else 0
        self._left = min(self._agree(max(self._min_steps, planned)), block.last_step - self.steps)

    def _measured(self, block: Block, t0_s: float, now_s: float) -> None:
        """Look at the measured steps: a few more of them, or the next block."""
        seconds = now_s - t0_s
        wanted = max(0, self._min_steps - block.steps)
        if seconds < self._min_block_s:
            missing = (self._min_block_s - seconds) / seconds if seconds > 0 else 1.0
            wanted = max(wanted, math.ceil(SPARE * missing * block.steps), 1)
        wanted = self._agree(wanted)
        self._left = min(wanted, block.last_step - self.steps)
        if self._left > 0:
            return
        block.t1_s, block.short = now_s, wanted > 0
        if seconds > 0:
            self._blocks.add(block)
        self._blocks.ask(now_s - ASK_AFTER_S)
        self._turns.ended(self._result(block, t0_s, seconds))
        self._next_block(self._clock() if self._capped else now_s)

    def _result(self, block: Block, t0_s: float, seconds: float) -> Ended:
        """Return a block as all ranks see it: with caps, its watts and its slowest rank's speed."""
        speed = power_w = None
        if self._capped:
            if not block.short and seconds > 0:
                block.energy_j, block.asked = self._energy(t0_s, block.t1_s), True
            joules = sum(block.energy_j.values()) if block.energy_j is not None else math.nan
            watts = sum(self._gather(joules / seconds if seconds > 0 else math.nan))
            slowest_s = max(self._gather(seconds))
            speed = block.steps / slowest_s if slowest_s > 0 else None
            power_w = watts if watts > 0 else None  # neither NaN nor a job that reads no device
        return Ended(
            action=block.action, steps=block.steps, warm=block.warm, speed=speed, power_w=power_w, short=block.short
        )

    def _next_block(self, now_s: float | None) -> None:
        """Begin the next block, with its share of the steps that are left; the phase is over where there is none."""
        turn: Turn | None = self._turns.next(self._max_steps - self.steps)
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
