"""From a profiling phase to the action table: the ranks agree, the cache is asked first, the run is told.

::

    Asking --first step told: in the cache?--> Done
      |  no
      v
    Measuring --every block done--> Done
"""

import functools
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from greentrain.action_cache import ActionCache, cache_key
from greentrain.action_table import Action, ActionTable
from greentrain.errors import SessionError
from greentrain.precision.gearbox import GearBox
from greentrain.profile_blocks import add_ranks
from greentrain.profiling import GearProfiler
from greentrain.types import Gear, Provenance, Sensor

SETTLE_S = 4.0
"""How long to wait for the last block's joules (s): readings are worked in every 2 s (``runtime.SETTLE_S``)."""
TICKS = 10
"""Ticks of a counter that a block must hold, so that an edge's share of one is a few per cent."""
ROUNDS = 4
"""Blocks a gear: an even number cancels a linear drift, and four have intervals a third narrower than three."""
PERIODS = 3
"""Readings of any other sensor that it must hold."""


class GearTable:
    """Measures the gears of a box while training runs, or finds them in the cache.

    Args:
        box: The gears, attached.
        sensors: What the rank books.
        energy: Returns joules by device between two monotonic times, waiting so many seconds for sensors.
        max_steps: Most steps of the phase.
        cache: Where tables are kept; None: measure in any case, keep nothing.
        tell: Called with the finished table.
        rounds: Most blocks a gear; None: ROUNDS.

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
    ) -> None:
        if box.model is None:
            raise SessionError("profile_gears() has no model: call watch(model, optimizer) before")
        self._box, self._cache, self._tell = box, cache, tell
        self._sensors = list(sensors)
        self._device = next((p.device for p in box.model.parameters()), torch.device("cpu"))
        self._ranks = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
        self.table: ActionTable | None = None
        """The finished table."""
        periods_s = [TICKS * s.tick_s if s.tick_s else PERIODS * s.period_s for s in self._sensors]
        self.profiler = GearProfiler(
            box.gears,
            energy=functools.partial(_late, energy),
            provenance=self._provenance,
            synchronize=functools.partial(torch.cuda.synchronize, self._device) if self._is_cuda else None,
            agree=self._agree,
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
        else:
            self.profiler.boundary(time.monotonic())

    def run(self, step: Callable[[], int | None]) -> None:
        """Train until the table is there.

        Args:
            step: Trains one step and returns its tokens.
        """
        self.profiler.run(step)
        self.finish()

    def finish(self) -> None:
        """Make the table of what was measured. Idempotent."""
        if self.table is None:
            table = self._measured()
            self._finish(table)
            if self._cache is not None and self._first:
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
            self.table, self.profiler.done = table, True
            self._tell(table)

    def _measured(self) -> ActionTable:
        records = self.profiler.records()
        if self._ranks > 1:
            gathered: list[Any] = [None] * self._ranks
            dist.all_gather_object(gathered, records)
            records = add_ranks(gathered)
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
            actions=[Action(gear=gear) for gear in self._box.gears],
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
            },
        )

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


def _late(
    energy: Callable[[float, float, float], Mapping[str, float] | None], t0_s: float, t1_s: float
) -> Mapping[str, float] | None:
    return energy(t0_s, t1_s, SETTLE_S)
