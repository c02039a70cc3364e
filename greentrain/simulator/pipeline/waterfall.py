"""An ablation: what each thing that is added to the plain step brings, in the order in which they are built."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from greentrain.policy.offload.stages import plans
from greentrain.simulator.pipeline.modes import ON_POLICY, Mode, Setting, plan_of
from greentrain.simulator.pipeline.simulate import GridIntensity, StepOutcome, best, simulate
from greentrain.simulator.pipeline.table import PipelineTable

STEPS: Final = (
    ("baseline: all on the GPUs", Mode.GPU),
    ("+ passes on the card, sequential", Mode.SEQUENTIAL),
    ("+ concurrent", Mode.PARALLEL),
    ("+ late reference", Mode.LATE),
    ("+ streamed behind generation", Mode.STREAM_LATE),
)
SCHEDULER: Final = "+ scheduler"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fall:
    """One row."""

    name: str
    outcome: StepOutcome

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {"name": self.name, **self.outcome.to_dict()}


def waterfall(
    table: PipelineTable, setting: Setting | None = None, grid: GridIntensity | None = None, *, card_stays: bool = False
) -> tuple[Fall, ...]:
    """Return the rows. Each adds to the one before; nothing says that it improves on it.

    The last row is the best of all on-policy modes and plans, each pass on the GPUs or the card: least joules with the
    cards' idle power counted, or least time where joules are unknown. It may leave everything on the GPUs.
    """
    rows = [
        Fall(name=name, outcome=simulate(table, mode, setting, grid, card_stays=card_stays)) for name, mode in STEPS
    ]
    return (*rows, Fall(name=SCHEDULER, outcome=scheduled(table, setting, grid, card_stays=card_stays)))


def scheduled(
    table: PipelineTable,
    setting: Setting | None = None,
    grid: GridIntensity | None = None,
    modes: Sequence[Mode] = ON_POLICY,
    *,
    card_stays: bool = False,
) -> StepOutcome:
    """Return the best of all plans in all of these modes.

    Raises:
        ConfigError: The cards cannot be shared out.
    """
    setting = setting or Setting()
    legal = plans(table.cost_table(setting.cards))
    own = (Mode.GPU, Mode.SEQUENTIAL)  # their names say where the passes run; PARALLEL has the same barriers
    return best(
        simulate(table, mode, setting, grid, plan=plan, card_stays=card_stays)
        for mode in modes
        for plan in ([plan_of(table, mode)] if mode in own else legal)
    )
