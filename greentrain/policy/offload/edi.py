"""Energy Density Index: joules an output token, by stage and hardware, as a running mean.

Two sums are kept side by side, since they disagree on when a device pays:

* ``Basis.ACTIVE``, as published: the joules of the hardware while it computes the stage.
* ``Basis.WHOLE``, the default: also the joules that the stage makes others spend waiting. The idle joules of the
  offload devices in the whole step are booked to the stages that they are kept for, by their share of the busy time,
  and the idle joules of the GPU to the stage that it stands still for.

A joule that nobody knows makes the value unknown, never lower.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from greentrain.errors import ConfigError
from greentrain.policy.offload.stages import CostTable, Hardware, Plan, Stage, StageCost, Where, worst
from greentrain.policy.offload.timeline import StepShape, timeline
from greentrain.types import Provenance

ALPHA: Final = 0.05
"""Weight of the newest step (published)."""
PROFILE_STEPS: Final = 500
"""Steps of the profiling phase (published)."""


class Basis(StrEnum):
    """Which joules count."""

    ACTIVE = "active"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True, kw_only=True)
class EdiReading:
    """What a stage used in one step."""

    stage: Stage
    hardware: Hardware
    tokens: float
    """Output tokens of the step."""
    busy_s: float
    """Time that the hardware computed the stage (s)."""
    active_j: float | None
    """Joules of the hardware in that time (J); None where nobody knows."""
    idle_j: float | None = 0.0
    """Joules that were spent waiting for the stage, or to be ready for it (J); None where nobody knows."""
    provenance: Provenance
    """Of the least certain joule; MISSING where one is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EdiCell:
    """The running means of one stage on one hardware."""

    count: int = 0
    """Steps with known active joules."""
    unknown: int = 0
    """Steps without."""
    s_per_token: float = 0.0
    active_j_per_token: float | None = None
    """None before any was known."""
    idle_j_per_token: float | None = None
    provenance: Provenance = Provenance.MISSING
    """Of the least certain reading that is in the means."""

    def value(self, basis: Basis = Basis.WHOLE) -> float | None:
        """Return joules an output token; None where nobody knows."""
        if basis is Basis.ACTIVE or self.active_j_per_token is None:
            return self.active_j_per_token
        return None if self.idle_j_per_token is None else self.active_j_per_token + self.idle_j_per_token


Cells = Mapping[tuple[Stage, Hardware], EdiCell]


class EdiMatrix:
    """Energy Density Index of every stage on every hardware that it was seen on.

    Args:
        alpha: Weight of the newest step, above 0 and at most 1.
        averaged: Begin with the plain mean until a new step would weigh less than ``alpha``. False: begin with the
            first step, whose noise is then seen for 1 / alpha steps.

    Raises:
        ConfigError: ``alpha`` is out of bounds.
    """

    def __init__(self, alpha: float = ALPHA, *, averaged: bool = True) -> None:
        if not 0 < alpha <= 1:
            raise ConfigError(f"alpha={alpha}: give the weight of the newest step, above 0 and at most 1")
        self._alpha = alpha
        self._averaged = averaged
        self._cells: dict[tuple[Stage, Hardware], EdiCell] = {}

    def update(self, reading: EdiReading) -> None:
        """Take a step's reading. Joules that are none, such as NaN or below 0, count as unknown.

        Raises:
            ConfigError: Tokens are not above 0, or the time is none.
        """
        if not (math.isfinite(reading.tokens) and reading.tokens > 0):
            raise ConfigError(f"tokens={reading.tokens} of a step: joules a token need tokens above 0")
        if not (math.isfinite(reading.busy_s) and reading.busy_s >= 0):
            raise ConfigError(f"busy_s={reading.busy_s} of {reading.stage}: give seconds of 0 or more")
        active_j = _energy_j(reading.active_j)
        key = reading.stage, reading.hardware
        old = self._cells.get(key, EdiCell())
        seen = old.count + old.unknown
        idle_j = None if active_j is None else _energy_j(reading.idle_j)  # both, or the sum would mix steps
        self._cells[key] = replace(
            old,
            count=old.count + (active_j is not None),
            unknown=old.unknown + (active_j is None),
            s_per_token=self._mean(old.s_per_token if seen else None, reading.busy_s / reading.tokens, seen),
            active_j_per_token=self._next(old.active_j_per_token, active_j, reading.tokens, old.count),
            idle_j_per_token=self._next(old.idle_j_per_token, idle_j, reading.tokens, old.count),
            provenance=old.provenance if active_j is None else self._provenance(old, reading),
        )

    def cell(self, stage: Stage, hardware: Hardware) -> EdiCell:
        """Return the means of a stage on a hardware; empty ones where it was never seen there."""
        return self._cells.get((stage, hardware), EdiCell())

    def value(self, stage: Stage, hardware: Hardware, basis: Basis = Basis.WHOLE) -> float | None:
        """Return joules an output token; None where nobody knows."""
        return self.cell(stage, hardware).value(basis)

    @property
    def cells(self) -> Cells:
        """A copy of what is known now."""
        return dict(self._cells)

    def _next(self, old: float | None, joules: float | None, tokens: float, count: int) -> float | None:
        return old if joules is None else self._mean(old, joules / tokens, count)

    def _mean(self, old: float | None, new: float, count: int) -> float:
        if old is None:
            return new
        weight = max(self._alpha, 1 / (count + 1)) if self._averaged else self._alpha
        return old + weight * (new - old)

    def _provenance(self, old: EdiCell, reading: EdiReading) -> Provenance:
        known = reading.provenance if reading.provenance is not Provenance.MISSING else Provenance.MODELLED
        return worst(known, old.provenance) if old.count else known


def _energy_j(given: float | None) -> float | None:
    return None if given is None or not math.isfinite(given) or given < 0 else given


def readings(table: CostTable, plan: Plan, shape: StepShape) -> list[EdiReading]:
    """Return what a step of a cost table would be read as under a plan.

    Raises:
        ConfigError: The plan cannot be carried out.
    """
    step = timeline(table, plan, shape)
    card_s = step.busy_s[Hardware.OFFLOAD]
    found = []
    for (stage, hardware), energy_j in step.stage_j.items():
        cost = table.cost(stage, plan.get(stage, Where.GPU))
        idle_j: float | None = 0.0
        origins = [cost.provenance]
        if hardware is Hardware.OFFLOAD:
            share = cost.duration_s / card_s if card_s else 0.0
            idle_j = _kept_j(table, step.idle_j[Hardware.OFFLOAD], share, step.waits_s.get(stage, 0.0))
            origins += [table.card_idle_provenance, table.gpu_idle_provenance]
        found.append(
            EdiReading(
                stage=stage,
                hardware=hardware,
                tokens=table.tokens,
                busy_s=cost.duration_s,
                active_j=energy_j,
                idle_j=idle_j,
                provenance=worst(*origins) if energy_j is not None and idle_j is not None else Provenance.MISSING,
            )
        )
    return found


def _kept_j(table: CostTable, card_idle_j: float | None, share: float, wait_s: float) -> float | None:
    """Idle joules that a stage is answerable for: of the devices kept for it, and of the GPU that waited for it."""
    if card_idle_j is None or (wait_s > 0 and table.gpu_idle_w is None):
        return None
    return card_idle_j * share + (table.gpu_idle_w or 0.0) * wait_s


def measured_table(
    cells: Cells,
    tokens: float,
    *,
    gpu_idle_w: float | None,
    gpu_idle_provenance: Provenance,
    card_idle_w: float | None,
    card_idle_provenance: Provenance,
    card_stays: bool = False,
) -> CostTable:
    """Return the cost table of a step of so many output tokens from what was measured.

    Raises:
        ConfigError: Generation or training was never seen.
    """
    costs = {
        key: StageCost(
            duration_s=cell.s_per_token * tokens,
            energy_j=None if cell.active_j_per_token is None else cell.active_j_per_token * tokens,
            provenance=Provenance.MISSING if cell.active_j_per_token is None else cell.provenance,
        )
        for key, cell in cells.items()
        if (key[0], Hardware.GPU) in cells
    }
    return CostTable(
        costs=costs,
        tokens=tokens,
        gpu_idle_w=gpu_idle_w,
        gpu_idle_provenance=gpu_idle_provenance,
        card_idle_w=card_idle_w,
        card_idle_provenance=card_idle_provenance,
        card_stays=card_stays,
    )
