"""From a profiling phase to the action table: the ranks agree, the cache is asked first, the run is told.

::

    Asking --first step told: in the cache?--> Done
      |  no
      v
    Measuring --every block done--> Collecting --rank 0 has all records--> Done

Power limits are set between two steps, on all ranks or on none, and are those found again when the phase is over.

Rank 0's clock says how many steps each rank goes on; ranks hear of it through the job's store, each wait of a second at
most, never by a collective: a rank that does not come ends the measuring, not the training. Until all have heard of
the end, ranks may be in different gears for a step or two, so who optimizes must not look at the gear meanwhile
(``GearBox.neutral``).
"""

import contextlib
import functools
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final, Protocol

import torch

from greentrain.control.coordination import RankZeroChannel
from greentrain.control.precision.gearbox import GearBox, compiled_call
from greentrain.control.profiling.profiler import ASK_S, SENSORS_S, BlockRecord, GearProfiler, add_ranks
from greentrain.errors import ConfigError, SessionError
from greentrain.policy.action_table import Action, ActionCache, ActionObjective, ActionTable, cache_key
from greentrain.types import Gear, Provenance, Sensor, Topology
from greentrain.utils.background import BackgroundCall

log = logging.getLogger(__name__)

COLLECT_S: Final = 30.0
"""How long rank 0 looks for the records of all ranks, step by step (s): they come SENSORS_S after the last block."""
TICKS = 10
"""Ticks of a counter that a block must hold, so that an edge's share of one is a few per cent."""
ROUNDS = 4
"""Blocks a gear: an even number cancels a linear drift, and four have intervals a third narrower than three."""
PERIODS = 3
"""Readings of any other sensor that it must hold."""


class Caps(Protocol):
    """Sets the power limits of this process's devices; see ``greentrain.control.actuators.power_cap``."""

    @property
    def fractions(self) -> tuple[float, ...]:
        """What the devices can do, as fractions of the limits found, from 1.0 down."""

    @property
    def fraction(self) -> float:
        """What they are set to."""

    def apply(self, fraction: float, *, at_once: bool = False) -> bool:
        """Set them and return True if they are set; never raises.

        Args:
            fraction: One of ``fractions``.
            at_once: However short ago the last change was.
        """


class ProfilingRun:
    """Measures the gears of a box while training runs, or finds them in the cache.

    Args:
        box: The gears, attached.
        sensors: Sensors that the rank books.
        energy: Returns joules by device between two monotonic times, or None where they are not known yet.
        max_steps: Most steps that are measured, warm-up included.
        cache: Cache of tables; None: measure in any case, keep nothing.
        tell: Called with the finished table; with None where the ranks could not measure together.
        rounds: Most blocks an action; None: ROUNDS.
        channel: Channel of the ranks; None: this process measures alone.
        caps: Power limits to measure each gear at; None: those that there are. They are 1.0 afterwards.
        objective: Objective of the search for caps, slowdown included; rank 0's counts. None: joules a step.
        slack: Time before the deadline that the job would not need at so many seconds a step (s); None: no deadline.
        clock: Monotonic time (s), that of ``energy``.

    Raises:
        SessionError: No model is watched.
        ConfigError: ``max_steps`` is too few for the gears.
        TimeoutError: Not all ranks began.
    """

    def __init__(
        self,
        box: GearBox,
        sensors: Iterable[Sensor],
        energy: Callable[[float, float], Mapping[str, float] | None],
        *,
        max_steps: int,
        cache: ActionCache | None,
        tell: Callable[[ActionTable | None], None],
        rounds: int | None = None,
        channel: RankZeroChannel | None = None,
        caps: Caps | None = None,
        objective: ActionObjective | None = None,
        slack: Callable[[float], float] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_steps(box, max_steps)
        assert box.model is not None
        self._box, self._cache, self._tell = box, cache, tell
        self._sensors = list(sensors)
        self._device = next((p.device for p in box.model.parameters()), torch.device("cpu"))
        together = channel is not None and channel.possible
        self._channel = channel if together and channel else RankZeroChannel("alone", Topology())
        self._ranks = self._channel.place.world_size
        self._first = self._channel.first
        self.table: ActionTable | None = None
        """The finished table."""
        self._caps, self._clock = caps, clock
        self.fractions, self._objective = self._common(objective or ActionObjective())
        """Power limits that all ranks can set, as fractions of those found."""
        self._set = self.fractions[0]
        self._whole = True
        periods_s = [TICKS * s.tick_s if s.tick_s else PERIODS * s.period_s for s in self._sensors]
        self.profiler = GearProfiler(
            box.gears,
            energy=energy,
            provenance=self._provenance,
            clock=clock,
            synchronize=functools.partial(torch.cuda.synchronize, self._device) if self._is_cuda else None,
            agree=self._agree,
            gather=self._channel.everybody,
            caps=self.fractions,
            score=self._objective.score,
            max_slowdown=self._objective.max_slowdown,
            slack=slack,
            rounds=rounds or ROUNDS,
            min_block_s=max([1.0, *periods_s]),
            max_steps=max_steps,
        )
        self._tokens = self._steps = 0
        self._key = ""
        self._ended_s: float | None = None
        self._asked_s = -math.inf
        self._handed_in = self._told = False
        self.failed = ""
        """Why there will be no table; empty where there may."""

    @property
    def gear(self) -> Gear:
        """Gear of the coming step."""
        return self.profiler.gear

    @property
    def done(self) -> bool:
        """True when the table is there, or there will be none."""
        return self.table is not None or bool(self.failed)

    def boundary(self) -> None:
        """Note the end of an optimizer step, on all ranks alike."""
        try:
            if self._steps == 1 and self._cache is not None:
                self._key = self._key_of(self._tokens)
                self._ask_cache(self._cache)
            self._steps += 1
            if self.profiler.done:
                self._collect()  # only now: the last step's tokens have been told since
                return
            self.profiler.boundary(self._clock())
            self._set_cap()
        except TimeoutError as error:
            self._fail(str(error))
        except Exception:
            self.stop()
            raise

    def run(self, step: Callable[[], int | None]) -> None:
        """Train until the table is there; a few steps more than are measured, as sensors and ranks tell later.

        Args:
            step: Trains one step and returns its tokens.
        """
        try:
            self.profiler.run(step)
            self._collect()
            while not (self.failed or all(self._channel.everybody(self.done))):  # steps have collectives: equally many
                step()
                self._collect()
        except TimeoutError as error:
            self._fail(str(error))
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Measure nothing more and set the power limits found; the table holds what there is. Idempotent."""
        self.profiler.done, self._whole = True, False
        self._restore()

    def step(self, tokens: int, samples: int) -> None:
        """Note what the step that just ended held."""
        if self._steps == 1:
            self._tokens += tokens or samples
        if not self._told:
            self.profiler.step(tokens, samples)
        self._told = self.profiler.done  # later ones belong to no block

    # -- inside ------------------------------------------------------------------------------------------------

    @property
    def _is_cuda(self) -> bool:
        return self._device.type == "cuda"

    def _finish(self, table: ActionTable) -> None:
        self._restore()
        self.table, self.profiler.done = table, True
        self._tell(table)

    def _fail(self, why: str) -> None:
        """Measure nothing more; the other ranks hear of it."""
        self.stop()
        self.failed = why
        log.warning("GreenTrain: profiling ends, as %s; training goes on", why)
        with contextlib.suppress(Exception):
            self._channel.hand_in("records", None)
            if self._first:
                self._channel.post(1, {"table": None})
        self._tell(None)

    def _ask_cache(self, cache: ActionCache) -> None:
        """Take the table from the cache, where rank 0 has one."""
        found = None
        if self._first:
            try:  # the others wait for this rank, which must not wait as long for a disk
                found = BackgroundCall("greentrain-cache", lambda: cache.load(self._key)).result(
                    self._channel.wait_s / 2
                )
            except TimeoutError as error:
                log.warning("GreenTrain: what actions cost is measured again, as the cache does not open: %s", error)
        word = self._channel.broadcast({"table": None if found is None else found.to_dict()})
        if word is None:
            raise TimeoutError(f"rank 0 said nothing within {self._channel.wait_s:g} s")
        if word["table"] is not None:
            self._finish(ActionTable.from_dict(word["table"]))

    def _collect(self) -> None:
        """Hand this rank's records in as soon as sensors have told; rank 0 makes the table of all, which all wait for.

        Nobody stands still for it: called once a step.
        """
        if self.done:
            return
        now_s = self._clock()
        self._ended_s = now_s if self._ended_s is None else self._ended_s
        self._restore()
        if not self._handed_in:
            if now_s < self._asked_s + ASK_S:
                return
            self._asked_s = now_s
            if not self.profiler.settled and now_s < self._ended_s + SENSORS_S:
                return
            self._handed_in = True
            self._channel.hand_in("records", [asdict(record) for record in self.profiler.records()])
        if not self._first:
            word = self._channel.heard(1)
            if word is not None and word["table"] is not None:
                self._finish(ActionTable.from_dict(word["table"]))
            elif word is not None or now_s > self._ended_s + SENSORS_S + COLLECT_S:
                self._fail("rank 0 has no table")
            return
        ranks = self._channel.handed_in("records")
        if ranks is not None:
            self._conclude(ranks)
        elif now_s > self._ended_s + COLLECT_S:
            self._fail(f"not all ranks told what they measured within {COLLECT_S:g} s")

    def _conclude(self, ranks: Sequence[Sequence[Mapping[str, Any]] | None]) -> None:
        try:
            table = self._table_of([_records(rank) for rank in ranks])
        except (ConfigError, TypeError) as error:
            self._fail(str(error))
            return
        self._channel.post(1, {"table": table.to_dict()})
        self._finish(table)
        for advice in filter(None, (self.profiler.advice, table.doubts)):
            log.warning("GreenTrain: profiling: %s", advice)
        if self._cache is not None and self._whole and not (table.doubts or self.profiler.hurried):
            self._cache.save_soon(self._key, table)

    def _common(self, objective: ActionObjective) -> tuple[tuple[float, ...], ActionObjective]:
        """Return the caps that all ranks can set, the limits found first, and rank 0's objective.

        They are set to the limits found now. Where a rank cannot go back to them the limits in force are the only cap,
        the lowest of all ranks. Grid and devices are those of one rank, so all search alike.
        """
        if self._caps is None:
            mine: tuple[tuple[float, ...], float, bool] = ((1.0,), 1.0, True)
        else:
            mine = (self._caps.fractions, self._caps.fraction, self._caps.fraction == 1.0)
            if not mine[2] and self._caps.apply(1.0, at_once=True):
                mine = (self._caps.fractions, 1.0, True)
        ranks = self._channel.everybody([*mine, asdict(objective)])
        agreed = ActionObjective(**ranks[0][3])
        if not all(full for _, _, full, _ in ranks):
            return (min(fraction for _, fraction, _, _ in ranks),), agreed
        common = set(ranks[0][0]).intersection(*(fractions for fractions, _, _, _ in ranks))
        return tuple(sorted(common | {1.0}, reverse=True)), agreed

    def _set_cap(self) -> None:
        """Set the cap of the coming step; where a rank cannot, the cap is dropped, and another one comes.

        After the last block the limits found are set at once.
        """
        caps, profiler = self._caps, self.profiler
        while caps is not None and not profiler.done and profiler.cap != self._set:
            fraction = profiler.cap
            if all(self._channel.everybody(caps.apply(fraction, at_once=True))):
                self._set = fraction
                return
            self._set, self._whole = math.nan, False
            if fraction == self.fractions[0]:
                self.stop()
            else:
                profiler.drop(fraction)
        if profiler.done:
            self._restore()

    def _restore(self) -> None:
        """Set the power limits found, where this phase has changed them."""
        if self._caps is not None and len(self.fractions) > 1 and self._caps.fraction != 1.0:
            self._caps.apply(1.0, at_once=True)

    def _table_of(self, ranks: Sequence[Sequence[BlockRecord]]) -> ActionTable:
        records, versions, names = add_ranks(ranks), {"torch": torch.__version__}, self._names()
        return self.profiler.table(device=names, world_size=self._ranks, versions=versions, records=records)

    def _provenance(self) -> Mapping[str, Provenance]:
        return {sensor.device.uid: sensor.provenance for sensor in self._sensors}

    def _names(self) -> str:
        if self._is_cuda:
            return torch.cuda.get_device_name(self._device)
        return ", ".join(dict.fromkeys(sensor.device.name for sensor in self._sensors)) or "cpu"

    def _key_of(self, tokens: int) -> str:
        model, backend = self._box.model, self._box.backend
        assert model is not None
        fields = ("name", "in_features", "out_features", "chosen")
        return cache_key(
            actions=[Action(gear=gear, cap=cap) for gear in self._box.gears for cap in self.fractions],
            parameters=[(tuple(p.shape), str(p.dtype)) for p in model.parameters()],
            layers=[{name: getattr(layer, name) for name in fields} for layer in self._box.plan],
            backend="" if backend is None else backend.name,
            device=self._names(),
            world_size=self._ranks,
            versions={"torch": torch.__version__},
            tokens_per_step=tokens,
            settings={
                "threads": torch.get_num_threads(),
                "compiled": any(compiled_call(m) is not None for m in model.modules()),
                "sensors": sorted(sensor.method for sensor in self._sensors),
                **({} if len(self.fractions) == 1 else self._goal()),
            },
        )

    def _goal(self) -> dict[str, Any]:
        """Return what decides which caps are looked at; not the grid's intensity, which changes by the hour."""
        goal = self._objective
        return {"objective": (goal.name, goal.eta if goal.name == "cost" else None, goal.max_slowdown)}

    def _agree(self, number: int) -> int:
        word = self._channel.broadcast({"number": number})
        if word is None:
            raise TimeoutError(f"rank 0 said nothing within {self._channel.wait_s:g} s")
        return int(word["number"])


def _records(rank: Sequence[Mapping[str, Any]] | None) -> list[BlockRecord]:
    if rank is None:
        raise ConfigError("a rank could not measure")
    return [BlockRecord(**{**record, "gear": Gear(record["gear"])}) for record in rank]


def check_steps(box: GearBox, max_steps: int) -> None:
    """Check what a phase in the coming steps would be given.

    Raises:
        SessionError: No model is watched.
        ConfigError: ``max_steps`` is too few for the gears.
    """
    if box.model is None:
        raise SessionError("profile_gears() has no model: call watch(model, optimizer) before")
    GearProfiler(box.gears, energy=lambda t0_s, t1_s: None, provenance=dict, max_steps=max_steps)
