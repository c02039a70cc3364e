"""How a result moves with the size of the reward model, the batch, and the grid."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from greentrain.errors import ConfigError
from greentrain.policy.offload.stages import Stage
from greentrain.simulator.pipeline.break_even import BreakEven, CardFootprint, break_even
from greentrain.simulator.pipeline.figure import Origin
from greentrain.simulator.pipeline.modes import Mode, Setting
from greentrain.simulator.pipeline.simulate import GridIntensity, StepOutcome, simulate
from greentrain.simulator.pipeline.table import PipelineTable, StageRow
from greentrain.simulator.pipeline.waterfall import scheduled
from greentrain.utils.validation import bound


@dataclass(frozen=True, slots=True, kw_only=True)
class SensitivityPoint:
    """One value of what is varied."""

    value: float | str
    home: StepOutcome
    """Everything on the GPUs."""
    away: StepOutcome
    """In the mode that was asked for."""
    best: StepOutcome
    """What a scheduler would do."""
    paid: BreakEven | None
    """Of ``away``; None where grams, or the card's embodied carbon, are unknown."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {
            "value": self.value,
            "home": self.home.to_dict(),
            "away": self.away.to_dict(),
            "best": self.best.to_dict(),
            "break_even": None if self.paid is None else self.paid.to_dict(),
        }


def point(
    value: float | str,
    table: PipelineTable,
    mode: Mode,
    setting: Setting,
    grid: GridIntensity,
    card: CardFootprint | None,
) -> SensitivityPoint:
    """Return what a table comes to."""
    home, away = simulate(table, Mode.GPU, setting, grid), simulate(table, mode, setting, grid)
    return SensitivityPoint(
        value=value,
        home=home,
        away=away,
        best=scheduled(table, setting, grid),
        paid=None if card is None else break_even(home, away, card),
    )


def reward_sized(table: PipelineTable, factor: float) -> PipelineTable:
    """Return the table with a reward model so many times as large, its time on both sides in proportion.

    Raises:
        ConfigError: The factor is not positive, or the step has no reward model.
    """
    if Stage.REWARD not in table.rows:
        raise ConfigError(f"{table.name} has no stage reward, whose model could be larger: vary --over batch or grid")
    bound("size of the reward model", factor, 1e-6, 1e6)
    row = table.rows[Stage.REWARD]
    why = f"a reward model {factor:g} x as large"
    rows = {**table.rows, Stage.REWARD: _scaled(row, factor, why)}
    return dataclasses.replace(table, rows=rows)


def batch_sized(table: PipelineTable, factor: float) -> PipelineTable:
    """Return the table with so many times the rollouts, every stage in proportion.

    Raises:
        ConfigError: The factor is not positive.
    """
    bound("size of the batch", factor, 1e-6, 1e6)
    if factor == 1:
        return table
    rows = {stage: _scaled(row, factor, f"{factor:g} x the rollouts") for stage, row in table.rows.items()}
    sequences = None if table.sequences is None else max(1, round(table.sequences * factor))
    return dataclasses.replace(table, rows=rows, tokens=table.tokens * factor, sequences=sequences)


def over_grids(
    table: PipelineTable,
    g_per_kwh: Sequence[float],
    mode: Mode,
    setting: Setting,
    grid: GridIntensity,
    card: CardFootprint | None,
) -> tuple[SensitivityPoint, ...]:
    """Return a point for each intensity; its step is always the same.

    Raises:
        ConfigError: An intensity is negative, or above 2,000.
    """
    found = []
    for value in g_per_kwh:
        bound("g/kWh", value, 0, 2000)
        found.append(point(value, table, mode, setting, dataclasses.replace(grid, g_per_kwh=value), card))
    return tuple(found)


def _scaled(row: StageRow, factor: float, why: str) -> StageRow:
    origin = None if factor == 1 else Origin.ASSUMED
    card_s = None if row.card_s is None else row.card_s.times(factor, why, origin)
    return dataclasses.replace(row, gpu_s=row.gpu_s.times(factor, why, origin), card_s=card_s)
