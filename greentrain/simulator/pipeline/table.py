"""What the stages of a step take on the GPUs and on a card, figure by figure."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from greentrain.errors import ConfigError
from greentrain.policy.offload.stages import MOVABLE, CostTable, Hardware, Stage, StageCost, Where
from greentrain.types import Provenance
from greentrain.utils.quantities import SourcedNumber, SourceKind, least_sure, sure_first

FIGURE_KINDS = (SourceKind.MEASURED, SourceKind.MODELLED, SourceKind.PUBLISHED, SourceKind.ASSUMED)
"""Kinds of figures that a table of stages may have."""
FORWARD_SHARE = SourcedNumber(
    value=1 / 3, unit="1", kind=SourceKind.ASSUMED, source="a backward pass has twice the products of a forward"
)
NONE = SourcedNumber(
    value=0.0, unit="1", kind=SourceKind.ASSUMED, source="no log-probabilities are computed before the advantages"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRow:
    """A stage of one step."""

    gpu_s: SourcedNumber
    """All GPUs at it together (s)."""
    gpu_w: SourcedNumber | None = None
    """Draw of one GPU meanwhile (W); None where nobody knows."""
    card_s: SourcedNumber | None = None
    """One card with the whole pass (s); None: it stays on the GPUs."""
    card_w: SourcedNumber | None = None
    """Draw of a card meanwhile, its idle power included (W)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTable:
    """A step, as somebody measured, modelled, published or assumed it."""

    name: str
    rows: Mapping[Stage, StageRow]
    tokens: float
    """Output tokens of a step."""
    sequences: int | None = None
    """Rollouts of a step; None where nobody says."""
    micro_batches: int = 8
    forward_share: SourcedNumber = FORWARD_SHARE
    """Share of training, but for the old log-probabilities, that is forward passes."""
    old_share: SourcedNumber = NONE
    """Share of training that is old log-probabilities, before the advantages."""
    gpu: str = "GPU"
    gpus: int = 1
    gpu_idle_w: SourcedNumber | None = None
    """Of one GPU that waits."""
    card: str = "card"
    card_idle_w: SourcedNumber | None = None
    """Of one card that waits."""
    embodied_kg: tuple[float, float, float] | None = None
    """Of one card: low, mid, high; None where nobody knows."""
    embodied_source: str = ""
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        for stage in (Stage.GENERATE, Stage.TRAIN):
            if stage not in self.rows:
                raise ConfigError(f"{self.name}: no stage {stage}; a step generates and trains")
        for stage, row in self.rows.items():
            if stage not in MOVABLE and row.card_s is not None:
                raise ConfigError(f"{self.name}: {stage} has a time on the card, but its weights move: it stays")
            if row.card_w is not None and row.card_s is None:
                raise ConfigError(f"{self.name}: {stage} has watts of the card but no seconds: give card_s too")
        if not self.rows[Stage.GENERATE].gpu_s.value + self.rows[Stage.TRAIN].gpu_s.value > 0:
            raise ConfigError(f"{self.name}: generation and training take 0 s together; a step takes time")
        if self.gpus < 1:
            raise ConfigError(f"{self.name}: {self.gpus} GPUs; a step needs at least 1")

    @property
    def step_s(self) -> float:
        """The step with everything on the GPUs (s)."""
        return sum(row.gpu_s.value for row in self.rows.values())

    @property
    def offloadable(self) -> tuple[Stage, ...]:
        """Passes that have a time on the card."""
        return tuple(stage for stage in MOVABLE if stage in self.rows and self.rows[stage].card_s is not None)

    def with_card(
        self, passes: Mapping[Stage, tuple[SourcedNumber, SourcedNumber | None]], **card: object
    ) -> "PipelineTable":
        """Return the table with seconds and watts of passes on a card; other passes lose theirs.

        Args:
            passes: Seconds and watts on a card, by stage; None: watts not known.
            **card: Other fields of the table.

        Raises:
            ConfigError: A pass is not in the step.
        """
        rows = {stage: dataclasses.replace(row, card_s=None, card_w=None) for stage, row in self.rows.items()}
        for stage, (card_s, card_w) in passes.items():
            if stage not in rows:
                raise ConfigError(f"{self.name} has no stage {stage}: it has {', '.join(rows)}")
            rows[stage] = dataclasses.replace(rows[stage], card_s=card_s, card_w=card_w)
        return dataclasses.replace(self, rows=rows, **card)  # type: ignore[arg-type]

    def slowed(self, factor: float) -> "PipelineTable":
        """Return the table with a card that takes so many times the GPUs' time for both passes; watts are kept."""
        why = f"{factor:g} x the GPUs' time"
        taken = {
            stage: (self.rows[stage].gpu_s.times(factor, why, SourceKind.ASSUMED), self.rows[stage].card_w)
            for stage in (Stage.REWARD, Stage.REFERENCE)
            if stage in self.rows
        }
        return self.with_card(taken)

    def lanes(self, cards: int) -> tuple[int, int]:
        """Return how many devices a step sees, and of how many cards each: more cards than passes share each pass.

        Raises:
            ConfigError: They cannot be shared out evenly.
        """
        passes = max(1, len(self.offloadable))
        if cards < 1:
            raise ConfigError(f"{cards} cards: a pass that leaves the GPUs needs at least 1")
        if cards <= passes:
            return cards, 1
        if cards % passes:
            raise ConfigError(f"{cards} cards for {passes} passes: give at most {passes}, or a multiple of {passes}")
        return passes, cards // passes

    def cost_table(self, cards: int = 1, *, card_stays: bool = False) -> CostTable:
        """Return what a step costs, of all GPUs and in joules.

        Args:
            cards: Number of cards. With more than passes, each pass is shared: its time falls, its joules stay.
            card_stays: The cards are there and powered whatever the plan.

        Raises:
            ConfigError: They cannot be shared out.
        """
        _, each = self.lanes(cards)
        costs: dict[tuple[Stage, Hardware], StageCost] = {}
        for stage, row in self.rows.items():
            costs[stage, Hardware.GPU] = _cost(row.gpu_s, row.gpu_w, number=self.gpus)
            if row.card_s is not None:
                costs[stage, Hardware.OFFLOAD] = _cost(row.card_s, row.card_w, share=each)
        return CostTable(
            costs=costs,
            tokens=self.tokens,
            gpu_idle_w=None if self.gpu_idle_w is None else self.gpus * self.gpu_idle_w.value,
            gpu_idle_provenance=_provenance(self.gpu_idle_w),
            card_idle_w=None if self.card_idle_w is None else each * self.card_idle_w.value,
            card_idle_provenance=_provenance(self.card_idle_w),
            card_stays=card_stays,
        )

    def origins(self, plan: Mapping[Stage, Where]) -> tuple[SourceKind, ...]:
        """Return what the figures of a plan rest on, the surest first."""
        used: list[SourcedNumber | None] = [self.gpu_idle_w]
        for stage, row in self.rows.items():
            away = plan.get(stage, Where.GPU) is not Where.GPU
            used += [row.card_s, row.card_w, self.card_idle_w] if away else [row.gpu_s, row.gpu_w]
        return sure_first(figure.kind for figure in used if figure is not None)


def _cost(seconds: SourcedNumber, watts: SourcedNumber | None, *, number: int = 1, share: int = 1) -> StageCost:
    if watts is None:
        return StageCost(duration_s=seconds.value / share, energy_j=None, provenance=Provenance.MISSING)
    return StageCost(
        duration_s=seconds.value / share,
        energy_j=number * seconds.value * watts.value,
        provenance=least_sure((seconds.kind, watts.kind)).provenance,
    )


def _provenance(figure: SourcedNumber | None) -> Provenance:
    return Provenance.MISSING if figure is None else figure.kind.provenance
