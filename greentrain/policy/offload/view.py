"""What a policy sees, what it is to minimise, and what it answers."""

import math
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from greentrain.errors import ConfigError
from greentrain.policy.offload.edi import Cells, EdiMatrix, readings
from greentrain.policy.offload.stages import CostTable, Hardware, Plan, Stage, Where, all_gpu
from greentrain.policy.offload.timeline import StepShape, Timeline, timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """Least joules, with a price on time, within a bound of the step time.

    Grams are joules times the same intensity for every plan, so that the plan of least joules is also that of least
    operational grams; embodied grams run with time and belong into ``time_w``.
    """

    time_w: float = 0.0
    """What a second costs beside the GPU and the offload device (W): the rest of the node."""
    max_slowdown: float = 1.02
    """Longest step, as a multiple of that with everything on the GPU."""

    def __post_init__(self) -> None:
        if not 0 <= self.time_w < math.inf:
            raise ConfigError(f"time_w={self.time_w}: give watts of 0 or more")
        if not self.max_slowdown >= 1:
            raise ConfigError(f"max_slowdown={self.max_slowdown}: give 1 or more; all on the GPU is always allowed")

    def cost_j(self, step: Timeline) -> float | None:
        """Return the joules of a step with the price of its time; None where a part is unknown."""
        return None if step.energy_j is None else step.energy_j + self.time_w * step.step_s

    def allows(self, step: Timeline, on_gpu: Timeline) -> bool:
        """Return True if a step is not too long."""
        return step.step_s <= on_gpu.step_s * self.max_slowdown * (1 + 1e-12)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadView:
    """What a policy sees. Made by :meth:`of` where only a cost table is known."""

    table: CostTable
    """Durations and joules of a step as known now."""
    edi: Cells
    """Energy Density Index, as measured so far."""
    shape: StepShape = field(default_factory=StepShape)
    current: Plan = field(default_factory=dict)
    """What is in force."""
    wheres: tuple[Where, ...] = tuple(Where)
    """What a movable stage may do; SEQUENTIAL alone beside GPU where a framework has no late barrier."""
    objective: Objective = field(default_factory=Objective)

    @classmethod
    def of(
        cls,
        table: CostTable,
        shape: StepShape | None = None,
        *,
        current: Plan | None = None,
        wheres: tuple[Where, ...] = tuple(Where),
        objective: Objective | None = None,
    ) -> "OffloadView":
        """Return the view of someone who has read one step of each placement of a cost table."""
        shape = shape or StepShape()
        matrix = EdiMatrix()
        for reading in readings(table, all_gpu(table), shape):
            matrix.update(reading)
        for stage in table.movable:
            for reading in readings(table, {stage: wheres[-1]}, shape):
                if reading.hardware is Hardware.OFFLOAD:
                    matrix.update(reading)
        return cls(
            table=table,
            edi=matrix.cells,
            shape=shape,
            current=current or all_gpu(table),
            wheres=wheres,
            objective=objective or Objective(),
        )

    @property
    def away(self) -> Where:
        """How a stage leaves the GPU: beside the training where that is possible; GPU where it cannot leave."""
        return max(self.wheres, key=tuple(Where).index)

    @property
    def kept(self) -> Plan:
        """The plan in force, for the stages that the step has; one that nobody could carry out becomes all on GPU."""
        legal = all(
            where is Where.GPU or (stage in self.table.movable and where in self.wheres)
            for stage, where in self.current.items()
        )
        return {s: self.current.get(s, Where.GPU) for s in self.table.stages} if legal else all_gpu(self.table)

    def step(self, plan: Plan) -> Timeline:
        """Return the step under a plan."""
        return timeline(self.table, plan, self.shape)

    def known(self, stage: Stage) -> bool:
        """Return True if the active joules of a stage are known on the GPU and on the offload device."""
        return all(
            (cell := self.edi.get((stage, hardware))) is not None and cell.active_j_per_token is not None
            for hardware in Hardware
        )


@runtime_checkable
class OffloadPolicy(Protocol):
    """Places stages. Pure: the same view gives the same plan, and nothing is kept between calls."""

    @property
    def name(self) -> str:
        """What it is known by."""

    def choose(self, view: OffloadView) -> Plan:
        """Return where each stage of the step runs, each stage named."""

    def reason(self, view: OffloadView, plan: Plan) -> str:
        """Return one sentence on why it chose a plan, with figures."""


def compared(view: OffloadView, plan: Plan) -> str:
    """Return a plan beside all on the GPU, in joules a token and seconds a step."""
    there, gpu = view.step(plan), view.step(all_gpu(view.table))
    if there.j_per_token is None or gpu.j_per_token is None:
        return f"{there.step_s:.4g} s a step instead of {gpu.step_s:.4g} s; joules are not known"
    return (
        f"{there.j_per_token:.4g} J a token and {there.step_s:.4g} s a step, all on gpu {gpu.j_per_token:.4g} J and "
        f"{gpu.step_s:.4g} s ({there.provenance})"
    )
