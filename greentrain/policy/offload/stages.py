"""Stages of an RLHF step, what they cost where, and plans of where they run."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from greentrain.errors import ConfigError
from greentrain.types import Provenance


class Stage(StrEnum):
    """A part of a step that can be placed."""

    GENERATE = "generate"
    REWARD = "reward"
    REFERENCE = "reference"
    CRITIC = "critic"
    """The critic's values, or what else is computed between generation and advantages."""
    TRAIN = "train"
    """Old log-probabilities where there are any, then forward and backward by micro-batches, and the optimizer."""


class Hardware(StrEnum):
    """What a stage can run on."""

    GPU = "gpu"
    OFFLOAD = "offload"
    """The device beside the GPU."""


class Where(StrEnum):
    """What a plan says of a stage."""

    GPU = "gpu"
    SEQUENTIAL = "sequential"
    """On the offload device; the training waits for it where it would have computed it."""
    CONCURRENT = "concurrent"
    """On the offload device as soon as its input is there; the training waits where it needs the result."""

    @property
    def hardware(self) -> Hardware:
        """What it runs on."""
        return Hardware.GPU if self is Where.GPU else Hardware.OFFLOAD


MOVABLE: Final[tuple[Stage, ...]] = (Stage.CRITIC, Stage.REFERENCE, Stage.REWARD)
"""Stages that may leave the GPU, in the order in which a training computes them. Generation and training hold the
moving weights and stay."""

Plan = Mapping[Stage, Where]
"""Where each stage runs; a stage that it does not name runs on the GPU."""

_WORST: Final = (Provenance.MEASURED, Provenance.MODELLED, Provenance.MISSING)


def worst(*given: Provenance) -> Provenance:
    """Return the least certain of several origins; of none, MEASURED."""
    return max(given, key=_WORST.index, default=Provenance.MEASURED)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """What a stage of one step costs on one kind of hardware."""

    duration_s: float
    """Time that the hardware computes (s)."""
    energy_j: float | None
    """Joules of the whole board in that time, its idle draw included; None where nobody knows."""
    provenance: Provenance
    """Of the less certain of both; MISSING where the joules are unknown."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.duration_s) and self.duration_s >= 0):
            raise ConfigError(f"duration_s={self.duration_s} of a stage: give seconds of 0 or more")
        if self.energy_j is not None and not (math.isfinite(self.energy_j) and self.energy_j >= 0):
            raise ConfigError(f"energy_j={self.energy_j} of a stage: give joules of 0 or more, or None for unknown")
        if (self.energy_j is None) != (self.provenance is Provenance.MISSING):
            raise ConfigError(
                f"energy_j={self.energy_j} with provenance {self.provenance}: unknown joules are None and MISSING"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CostTable:
    """What the stages of one step cost, and what the hardware draws while it waits."""

    costs: Mapping[tuple[Stage, Hardware], StageCost]
    """By stage and hardware. A stage that is not in it is not in the step; one that is only known on the GPU cannot
    leave it."""
    tokens: float
    """Output tokens of the step."""
    gpu_idle_w: float | None = None
    """Draw of the GPU while it waits (W); None where nobody knows."""
    gpu_idle_provenance: Provenance = Provenance.MISSING
    card_idle_w: float | None = None
    """Draw of each offload device while it waits (W); None where nobody knows."""
    card_idle_provenance: Provenance = Provenance.MISSING
    card_stays: bool = False
    """True: the device draws its idle power whatever the plan, so that only what it uses above that counts. False: a
    plan that does not use the device does not pay for it."""

    def __post_init__(self) -> None:
        for stage in (Stage.GENERATE, Stage.TRAIN):
            if (stage, Hardware.GPU) not in self.costs:
                raise ConfigError(f"the cost table has no {stage} on the GPU: a step generates and trains")
        for stage in self.stages:
            if (stage, Hardware.GPU) not in self.costs:
                raise ConfigError(f"the cost table has {stage} only on the offload device: give its cost on the GPU")
        if not (math.isfinite(self.tokens) and self.tokens > 0):
            raise ConfigError(f"tokens={self.tokens}: give the output tokens of a step, above 0")
        for name, power_w, provenance in (
            ("gpu_idle_w", self.gpu_idle_w, self.gpu_idle_provenance),
            ("card_idle_w", self.card_idle_w, self.card_idle_provenance),
        ):
            if power_w is not None and not (math.isfinite(power_w) and power_w >= 0):
                raise ConfigError(f"{name}={power_w}: give watts of 0 or more, or None for unknown")
            if (power_w is None) != (provenance is Provenance.MISSING):
                raise ConfigError(f"{name}={power_w} with provenance {provenance}: unknown watts are None and MISSING")

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Stages of the step, in the order of :class:`Stage`."""
        named = {stage for stage, _ in self.costs}
        return tuple(stage for stage in Stage if stage in named)

    @property
    def movable(self) -> tuple[Stage, ...]:
        """Stages that may leave the GPU and have a cost on the offload device, in the order of MOVABLE."""
        return tuple(stage for stage in MOVABLE if (stage, Hardware.OFFLOAD) in self.costs)

    def cost(self, stage: Stage, where: Where = Where.GPU) -> StageCost:
        """Return what a stage costs where a plan puts it.

        Raises:
            ConfigError: It is not in the table.
        """
        found = self.costs.get((stage, where.hardware))
        if found is None:
            raise ConfigError(
                f"the cost table has no {stage} on the {where.hardware}: measure it, or leave it elsewhere"
            )
        return found


def all_gpu(table: CostTable) -> Plan:
    """Return the plan that leaves every stage on the GPU."""
    return dict.fromkeys(table.stages, Where.GPU)


def plans(table: CostTable, wheres: tuple[Where, ...] = tuple(Where)) -> list[Plan]:
    """Return every legal plan, all on the GPU first, always in the same order.

    Args:
        table: Costs.
        wheres: Places where a movable stage may run.
    """
    start = all_gpu(table)
    found: list[Plan] = [
        {**start, **dict(zip(table.movable, chosen, strict=True))}
        for chosen in itertools.product(wheres, repeat=len(table.movable))
    ]
    return found if Where.GPU in wheres else [start, *found]


def check(plan: Plan, table: CostTable) -> None:
    """Raise where a plan cannot be carried out.

    Raises:
        ConfigError: A stage that must stay was moved, one is not in the step, or nobody knows its cost there.
    """
    for stage, where in plan.items():
        if stage not in table.stages:
            if where is Where.GPU:
                continue
            raise ConfigError(f"the plan puts {stage} on the offload device, but the step has no such stage")
        if where is not Where.GPU and stage not in MOVABLE:
            raise ConfigError(f"the plan moves {stage}: its weights change at every step, so it stays on the GPU")
        table.cost(stage, where)


def label(plan: Plan) -> str:
    """Return a plan in a few words: what is not on the GPU."""
    moved = [f"{stage} {plan[stage]}" for stage in MOVABLE if plan.get(stage, Where.GPU) is not Where.GPU]
    return ", ".join(moved) or "all on gpu"
