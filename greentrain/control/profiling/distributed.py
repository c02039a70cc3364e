"""From a profiling phase to the action table: the ranks agree, the cache is asked first, the run is told.

::

    Asking --first step told: in the cache?--> Done
      |  no
      v
    Measuring --every block done--> Done

Power limits are set between two steps, on all ranks or on none, and are those found again when the phase is over.
"""

import functools
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist

from greentrain.control.precision.gearbox import GearBox
from greentrain.control.profiling.profiler import GearProfiler, add_ranks
from greentrain.errors import SessionError
from greentrain.policy.action_table import Action, ActionCache, ActionObjective, ActionTable, cache_key
from greentrain.types import Gear, Provenance, Sensor

log = logging.getLogger(__name__)
T = TypeVar("T")

SETTLE_S = 4.0
"""How long to wait for the last block's joules (s): readings are worked in every 2 s (``runtime.SETTLE_S``)."""
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
        ...

    @property
    def fraction(self) -> float:
        """What they are set to."""
        ...

    def apply(self, fraction: float, *, at_once: bool = False) -> bool:
        """Set them and return True if they are set; never raises.

        Args:
            fraction: One of ``fractions``.
            at_once: However short ago the last change was.
        """
        ...


class ProfilingRun:
    """Measures the gears of a box while training runs, or finds them in the cache.

    Args:
        box: The gears, attached.
        sensors: Sensors that the rank books.
        energy: Returns joules by device between two monotonic times, waiting so many seconds for sensors.
        max_steps: Most steps of the phase.
        cache: Cache of tables; None: measure in any case, keep nothing.
        tell: Called with the finished table.
        rounds: Most blocks an action; None: ROUNDS.
        caps: Power limits to measure each gear at; None: those that there are. They are 1.0 afterwards.
        objective: Objective of the search for caps, slowdown included; rank 0's counts. None: joules a step.
        clock: Monotonic time (s), that of ``energy``.

    Raises:
        SessionError: No model is watched.
        ConfigError: ``max_steps`` is too few for the gears.
    """

    def __init__(
        self,
        box: GearBox,
        sensors: Iterable[Sensor],
        energy: Callable[[float, float, float], Mapping[str, float] | None],
        *,
        max_steps: int,
        cache: ActionCache | None,
        tell: Callable[[ActionTable], None],
        rounds: int | None = None,
        caps: Caps | None = None,
        objective: ActionObjective | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if box.model is None:
            raise SessionError("profile_gears() has no model: call watch(model, optimizer) before")
        self._box, self._cache, self._tell = box, cache, tell
        self._sensors = list(sensors)
        self._device = next((p.device for p in box.model.parameters()), torch.device("cpu"))
        self._ranks = _ranks()
        self.table: ActionTable | None = None
        """The finished table."""
        self._caps, self._clock = caps, clock
        self._objective = everybody(objective or ActionObjective())[
            0
        ]  # grid and devices of one rank, so all search alike
        self._fractions = self._common()
        self._set = self._fractions[0]
        self._whole = True
        periods_s = [TICKS * s.tick_s if s.tick_s else PERIODS * s.period_s for s in self._sensors]
        self.profiler = GearProfiler(
            box.gears,
            energy=functools.partial(_late, energy),
            provenance=self._provenance,
            clock=clock,
            synchronize=functools.partial(torch.cuda.synchronize, self._device) if self._is_cuda else None,
            agree=self._agree,
            gather=everybody,
            caps=self._fractions,
            score=self._objective.score,
            max_slowdown=self._objective.max_slowdown,
            rounds=rounds or ROUNDS,
            min_block_s=max([1.0, *periods_s]),
            max_steps=max_steps,
        )
        self._tokens = self._steps = 0
        self._key = ""

    @property
    def gear(self) -> Gear:
        """Gear of the coming step."""
        return self.profiler.gear

    @property
    def done(self) -> bool:
        """True when the table is there."""
        return self.table is not None

    def boundary(self) -> None:
        """Note the end of an optimizer step, on all ranks alike."""
        if self._steps == 1 and self._cache is not None:
            self._key = self._key_of(self._tokens)
            self._finish(self._share(self._cache.load(self._key) if self._first else None))
        self._steps += 1
        if self.profiler.done:
            self.finish()  # only now: the last step's tokens have been told since
            return
        try:
            self.profiler.boundary(self._clock())
            self._set_cap()
        except Exception:
            self.stop()
            raise

    def run(self, step: Callable[[], int | None]) -> None:
        """Train until the table is there.

        Args:
            step: Trains one step and returns its tokens.
        """
        try:
            self.profiler.run(step)
        except BaseException:
            self.stop()
            raise
        self.finish()

    def stop(self) -> None:
        """Measure nothing more and set the power limits found; the table holds what there is. Idempotent."""
        self.profiler.done, self._whole = True, False
        self._restore()

    def finish(self) -> None:
        """Make the table of what was measured. Idempotent."""
        if self.table is None:
            self._restore()
            table = self._measured()
            self._finish(table)
            if self._first and (advice := self.profiler.advice):
                log.warning("GreenTrain: profiling: %s", advice)
            if self._cache is not None and self._first and self._whole:
                self._cache.save(self._key, table)

    def step(self, tokens: int, samples: int) -> None:
        """Note what the step that just ended held."""
        if self._steps == 1:
            self._tokens += tokens or samples
        self.profiler.step(tokens, samples)

    # -- inside ------------------------------------------------------------------------------------------------

    @property
    def _is_cuda(self) -> bool:
        return self._device.type == "cuda"

    @property
    def _first(self) -> bool:
        return self._ranks == 1 or dist.get_rank() == 0

    def _finish(self, table: ActionTable | None) -> None:
        if table is not None:
            self._restore()
            self.table, self.profiler.done = table, True
            self._tell(table)

    def _common(self) -> tuple[float, ...]:
        """Return the caps that all ranks can set, the limits found first; they are set to these now.

        Where a rank cannot go back to them the limits in force are the only cap, the lowest of all ranks.
        """
        if self._caps is None:
            mine: tuple[tuple[float, ...], float, bool] = ((1.0,), 1.0, True)
        else:
            mine = (self._caps.fractions, self._caps.fraction, self._caps.fraction == 1.0)
            if not mine[2] and self._caps.apply(1.0, at_once=True):
                mine = (self._caps.fractions, 1.0, True)
        ranks = everybody(mine)
        if not all(full for _, _, full in ranks):
            return (min(fraction for _, fraction, _ in ranks),)
        common = set(ranks[0][0]).intersection(*(fractions for fractions, _, _ in ranks))
        return tuple(sorted(common | {1.0}, reverse=True))

    def _set_cap(self) -> None:
        """Set the cap of the coming step; where a rank cannot, the cap is dropped, and another one comes.

        After the last block the limits found are set at once.
        """
        caps, profiler = self._caps, self.profiler
        while caps is not None and not profiler.done and profiler.cap != self._set:
            fraction = profiler.cap
            if all(everybody(caps.apply(fraction, at_once=True))):
                self._set = fraction
                return
            self._set, self._whole = math.nan, False
            if fraction == self._fractions[0]:
                self.stop()
            else:
                profiler.drop(fraction)
        if profiler.done:
            self._restore()

    def _restore(self) -> None:
        """Set the power limits found, where this phase has changed them."""
        if self._caps is not None and len(self._fractions) > 1 and self._caps.fraction != 1.0:
            self._caps.apply(1.0, at_once=True)

    def _measured(self) -> ActionTable:
        records = self.profiler.records()
        if self._ranks > 1:
            records = add_ranks(everybody(records))
        versions = {"torch": torch.__version__}
        names = self._names()
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
            actions=[Action(gear=gear, cap=cap) for gear in self._box.gears for cap in self._fractions],
            parameters=[(tuple(p.shape), str(p.dtype)) for p in model.parameters()],
            layers=[{name: getattr(layer, name) for name in fields} for layer in self._box.plan],
            backend="" if backend is None else backend.name,
            device=self._names(),
            world_size=self._ranks,
            versions={"torch": torch.__version__},
            tokens_per_step=tokens,
            settings={
                "threads": torch.get_num_threads(),
                "compiled": any(getattr(m, "_compiled_call_impl", None) is not None for m in model.modules()),
                "sensors": sorted(sensor.method for sensor in self._sensors),
                **({} if len(self._fractions) == 1 else self._goal()),
            },
        )

    def _goal(self) -> dict[str, Any]:
        """Return what decides which caps are looked at; not the grid's intensity, which changes by the hour."""
        goal = self._objective
        return {"objective": (goal.name, goal.eta if goal.name == "cost" else None, goal.max_slowdown)}

    def _agree(self, number: int) -> int:
        if self._ranks == 1:
            return number
        shared = torch.tensor([number], device=self._device)
        dist.broadcast(shared, src=0)
        return int(shared.item())

    def _share(self, table: ActionTable | None) -> ActionTable | None:
        if self._ranks == 1:
            return table
        held: list[Any] = [None if table is None else table.to_dict()]
        dist.broadcast_object_list(held, src=0, device=self._device)
        return None if held[0] is None else ActionTable.from_dict(held[0])


def everybody(value: T) -> list[T]:
    """Return a value of every rank, in their order; all ranks call it at the same step."""
    gathered: list[Any] = [value] * _ranks()
    if len(gathered) > 1:
        dist.all_gather_object(gathered, value)
    return gathered


def _ranks() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _late(
    energy: Callable[[float, float, float], Mapping[str, float] | None], t0_s: float, t1_s: float
) -> Mapping[str, float] | None:
    return energy(t0_s, t1_s, SETTLE_S)
