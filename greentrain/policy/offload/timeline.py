"""How long a step takes and what it uses under a plan: a pure function of a cost table.

Order of a training step: generation, [old log-probabilities], critic, reference, reward, advantages, then per
micro-batch a forward, its loss and a backward. A result is needed where it is first read:

* rewards and values: at the advantages, so by the first policy forward, or, with ``Late.ALL``, by the first loss;
* the reference of micro-batch j: at its loss, so behind forwards 1..j and backwards 1..j-1, with ``Late.REFERENCE``;
  where the KL is part of the reward (``advantages_need``) it is needed with the rewards;
* the backward of a micro-batch begins after its loss. The window of rewards is therefore one forward of a
  micro-batch, not of the batch.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from greentrain.errors import ConfigError
from greentrain.policy.offload.stages import MOVABLE, CostTable, Hardware, Plan, Stage, Where, check, worst
from greentrain.types import Provenance

Array = NDArray[np.float64]
_ZERO: Final = np.zeros(())
MOST_PARTS: Final = 10_000
"""Micro-batches or chunks of a step: each is laid out by itself."""


class Late(StrEnum):
    """Which results are waited for at the loss, instead of before the advantages."""

    NONE = "none"
    REFERENCE = "reference"
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """How a step is cut and where its barriers are."""

    micro_batches: int = 8
    """Into how many the training is cut."""
    chunks: int = 1
    """Into how many generation is cut for concurrent passes: 1 submits them at its end, more stream behind it. Rollouts
    are shuffled before training, so every micro-batch waits for the last chunk."""
    late: Late = Late.REFERENCE
    old_share: float = 0.0
    """Share of TRAIN that comes before the advantages: the old log-probabilities."""
    forward_share: float = 1 / 3
    """Share of the rest of TRAIN that is forward; the other is backward."""
    advantages_need: frozenset[Stage] = frozenset({Stage.REWARD, Stage.CRITIC})
    """Add REFERENCE where the KL is part of the reward (PPO, RLOO)."""
    order: tuple[Stage, ...] = (Stage.CRITIC, Stage.REWARD, Stage.REFERENCE)
    """In which order concurrent passes of the same rollouts go to the device."""
    cards: int = 1
    """Offload devices; passes are dealt out to them in ``order``."""
    off_policy: bool = False
    """True: concurrent passes belong to the step before, and have a whole step's time. Needs old log-probabilities and
    clipping; staleness 1."""

    def __post_init__(self) -> None:
        for name in ("micro_batches", "chunks", "cards"):
            if not 1 <= getattr(self, name) <= MOST_PARTS:
                raise ConfigError(f"{name}={getattr(self, name)}: give at least 1 and at most {MOST_PARTS}")
        for name in ("old_share", "forward_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name}={getattr(self, name)}: give a share from 0 to 1")
        if set(self.order) != set(MOVABLE) or len(self.order) != len(MOVABLE):
            raise ConfigError(f"order={self.order}: name each of {', '.join(MOVABLE)} once")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Times:
    """Seconds of one or many steps: arrays of the common shape of the durations that were given."""

    step_s: Array
    gpu_busy_s: Array
    card_busy_s: Array
    """Of all offload devices together."""
    waits_s: Mapping[Stage, Array]
    """How long the GPU stood still for each offloaded stage."""


def times(
    gpu_s: Mapping[Stage, Array | float], card_s: Mapping[Stage, Array | float], plan: Plan, shape: StepShape
) -> Times:
    """Return the times of a plan for one or many steps at once.

    Args:
        gpu_s: Durations on the GPU (s), of the stages that stay there at least.
        card_s: Durations on the offload device (s), of those that leave.
        plan: One for all.
        shape: One for all.
    """
    run = _Run(gpu_s, card_s, plan, shape)
    return run.off_policy() if shape.off_policy else run.on_policy()


class _Run:
    """A step as it is laid out: a cursor of the GPU, and one of each card."""

    def __init__(
        self,
        gpu_s: Mapping[Stage, Array | float],
        card_s: Mapping[Stage, Array | float],
        plan: Plan,
        shape: StepShape,
    ) -> None:
        self._shape = shape
        self._where = {stage: plan.get(stage, Where.GPU) for stage in (*gpu_s, *card_s)}
        self._gpu_s = {s: np.asarray(t, np.float64) for s, t in gpu_s.items() if self._where[s] is Where.GPU}
        self._card_s = {s: np.asarray(t, np.float64) for s, t in card_s.items() if self._where[s] is not Where.GPU}
        self._concurrent = [s for s in shape.order if self._where.get(s) is Where.CONCURRENT]
        offloaded = [s for s in shape.order if s in self._card_s]
        self._card = {stage: i % shape.cards for i, stage in enumerate(offloaded)}
        self._free = [_ZERO] * shape.cards
        self._waits = dict.fromkeys(offloaded, _ZERO)
        self._now = _ZERO

    def on_policy(self) -> Times:
        generated = self._gpu_s[Stage.GENERATE]
        ends = self._submit(generated)
        self._now = generated
        self._before_advantages()
        shape = self._shape
        train = self._gpu_s[Stage.TRAIN] * (1 - shape.old_share)
        forward = train * shape.forward_share / shape.micro_batches
        backward = train / shape.micro_batches - forward
        at_advantages = [s for s in self._concurrent if s in shape.advantages_need]
        if shape.late is Late.NONE:
            at_advantages = list(self._concurrent)
        if shape.late is not Late.ALL:
            self._barrier(at_advantages, ends, -1)
        at_loss = [s for s in self._concurrent if s not in at_advantages]
        for j in range(shape.micro_batches):
            self._now = self._now + forward
            if j == 0 and shape.late is Late.ALL:
                self._barrier(at_advantages, ends, -1)
            self._barrier(at_loss, ends, j)
            self._now = self._now + backward
        return self._times(self._now)

    def off_policy(self) -> Times:
        self._now = self._gpu_s[Stage.GENERATE]
        self._before_advantages()
        gpu = self._now + self._gpu_s[Stage.TRAIN] * (1 - self._shape.old_share)
        loads = [
            sum((self._card_s[s] for s, card in self._card.items() if card == i), _ZERO)
            for i in range(self._shape.cards)
        ]
        step: Array = np.maximum.reduce(np.broadcast_arrays(gpu, *loads))
        total = sum((self._card_s[s] for s in self._concurrent), _ZERO)
        for stage in self._concurrent:
            share = self._card_s[stage] / np.where(total > 0, total, 1.0)
            self._waits[stage] = (step - gpu) * share
        return self._times(step)

    def _submit(self, generated: Array) -> dict[Stage, list[Array]]:
        """Run the concurrent passes, first come, first served; return when each of their parts is there."""
        shape = self._shape
        ends: dict[Stage, list[Array]] = {stage: [] for stage in self._concurrent}
        for chunk in range(shape.chunks):
            ready = generated * ((chunk + 1) / shape.chunks)
            for stage in self._concurrent:
                at_loss = shape.late is not Late.NONE and stage not in shape.advantages_need
                parts = shape.micro_batches if at_loss and shape.chunks == 1 else 1
                for _ in range(parts):
                    ends[stage].append(self._on_card(stage, ready, self._card_s[stage] / (parts * shape.chunks)))
        if shape.chunks > 1:
            return {stage: [found[-1]] for stage, found in ends.items()}
        return ends

    def _before_advantages(self) -> None:
        """What a training computes between generation and advantages, and the offloaded passes it stands still for."""
        self._now = self._now + self._gpu_s[Stage.TRAIN] * self._shape.old_share
        for stage in MOVABLE:
            if stage in self._gpu_s:
                self._now = self._now + self._gpu_s[stage]
            elif self._where.get(stage) is Where.SEQUENTIAL:
                self._wait(stage, self._on_card(stage, self._now, self._card_s[stage]))

    def _on_card(self, stage: Stage, ready: Array, duration: Array) -> Array:
        card = self._card[stage]
        self._free[card] = np.maximum(self._free[card], ready) + duration
        return self._free[card]

    def _barrier(self, stages: Iterable[Stage], ends: Mapping[Stage, list[Array]], part: int) -> None:
        for stage in stages:
            known = ends[stage]
            self._wait(stage, known[min(part, len(known) - 1)] if part >= 0 else known[-1])

    def _wait(self, stage: Stage, until: Array) -> None:
        later = np.maximum(self._now, until)
        self._waits[stage] = self._waits[stage] + (later - self._now)
        self._now = later

    def _times(self, step: Array) -> Times:
        return Times(
            step_s=step,
            gpu_busy_s=sum(self._gpu_s.values(), _ZERO),
            card_busy_s=sum(self._card_s.values(), _ZERO),
            waits_s=self._waits,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A step under a plan."""

    step_s: float
    busy_s: Mapping[Hardware, float]
    """Time that the GPU, and the offload devices together, compute (s)."""
    idle_s: Mapping[Hardware, float]
    """The rest of the step; of all offload devices together, and 0 where the plan does not pay for them."""
    waits_s: Mapping[Stage, float] = field(default_factory=dict)
    """How long the GPU stood still for each offloaded stage (s)."""
    stage_j: Mapping[tuple[Stage, Hardware], float | None]
    """Joules of each stage where it ran, without idle power; None where nobody knows."""
    idle_j: Mapping[Hardware, float | None]
    """Idle power times idle time (J); 0 where there was no idle time, None where nobody knows."""
    tokens: float
    provenance: Provenance
    """Of the least certain of all joules."""

    @property
    def useful_j(self) -> float | None:
        """Joules while something computed; None where a part is unknown."""
        return _sum(self.stage_j.values())

    @property
    def wasted_j(self) -> float | None:
        """Joules while hardware waited; None where a part is unknown."""
        return _sum(self.idle_j.values())

    @property
    def energy_j(self) -> float | None:
        """All joules of the step; None where a part is unknown."""
        return _sum([self.useful_j, self.wasted_j])

    @property
    def j_per_token(self) -> float | None:
        """Joules an output token; None where a part is unknown."""
        return None if self.energy_j is None else self.energy_j / self.tokens

    @property
    def bubble(self) -> float:
        """Share of the step in which the GPU computes nothing."""
        return self.idle_s[Hardware.GPU] / self.step_s if self.step_s else 0.0

    @property
    def hidden_s(self) -> float:
        """Time that the offload devices computed and the GPU did not wait for (s)."""
        return max(0.0, self.busy_s[Hardware.OFFLOAD] - sum(self.waits_s.values()))


def timeline(table: CostTable, plan: Plan, shape: StepShape) -> Timeline:
    """Return what a step takes and uses under a plan.

    Args:
        table: Costs of the stages.
        plan: Plan of where they run.
        shape: Shape of the step: how it is cut.

    Raises:
        ConfigError: The plan cannot be carried out.
    """
    check(plan, table)
    where = {stage: plan.get(stage, Where.GPU) for stage in table.stages}
    costs = {(stage, chosen.hardware): table.cost(stage, chosen) for stage, chosen in where.items()}
    found = times(
        {s: c.duration_s for (s, hardware), c in costs.items() if hardware is Hardware.GPU},
        {s: c.duration_s for (s, hardware), c in costs.items() if hardware is Hardware.OFFLOAD},
        plan,
        shape,
    )
    step_s = float(found.step_s)
    busy_s = {Hardware.GPU: float(found.gpu_busy_s), Hardware.OFFLOAD: float(found.card_busy_s)}
    paid = any(hardware is Hardware.OFFLOAD for _, hardware in costs) or table.card_stays
    idle_s = {
        Hardware.GPU: max(0.0, step_s - busy_s[Hardware.GPU]),
        Hardware.OFFLOAD: max(0.0, shape.cards * step_s - busy_s[Hardware.OFFLOAD]) if paid else 0.0,
    }
    idle_j = {
        Hardware.GPU: _idle_j(table.gpu_idle_w, idle_s[Hardware.GPU]),
        Hardware.OFFLOAD: _idle_j(table.card_idle_w, idle_s[Hardware.OFFLOAD]),
    }
    origins = [cost.provenance for cost in costs.values()]
    origins += [table.gpu_idle_provenance] if idle_j[Hardware.GPU] != 0 else []
    origins += [table.card_idle_provenance] if idle_j[Hardware.OFFLOAD] != 0 else []
    return Timeline(
        step_s=step_s,
        busy_s=busy_s,
        idle_s=idle_s,
        waits_s={stage: float(wait) for stage, wait in found.waits_s.items()},
        stage_j={key: cost.energy_j for key, cost in costs.items()},
        idle_j=idle_j,
        tokens=table.tokens,
        provenance=worst(*origins),
    )


_MOMENT_S: Final = 1e-9
"""Idle time below this is rounding (s)."""


def _idle_j(power_w: float | None, idle_s: float) -> float | None:
    if idle_s < _MOMENT_S:
        return 0.0
    return None if power_w is None else power_w * idle_s


def _sum(parts: Iterable[float | None]) -> float | None:
    total = 0.0
    for part in parts:
        if part is None:
            return None
        total += part
    return total
