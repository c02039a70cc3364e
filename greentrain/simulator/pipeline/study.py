"""What the command line asks for, and its answers: for people and for programs."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from greentrain.errors import ConfigError
from greentrain.policy.offload.stages import Stage
from greentrain.simulator.pipeline import display
from greentrain.simulator.pipeline.bounds import BreakEven, CardFootprint, break_even, caps
from greentrain.simulator.pipeline.inputs import PipelineInputs, open_footprint, open_grid, open_table
from greentrain.simulator.pipeline.simulate import (
    CHUNKS,
    GridIntensity,
    Mode,
    Setting,
    StepOutcome,
    best,
    simulate,
    step_ends,
)
from greentrain.simulator.pipeline.table import PipelineTable
from greentrain.simulator.pipeline.what_if import (
    GpuLink,
    Scaled,
    SensitivityPoint,
    over_grids,
    point,
    reward_sized,
    scale,
    waterfall,
)
from greentrain.utils.quantities import SourcedNumber
from greentrain.utils.validation import choice

if TYPE_CHECKING:
    from rich.console import RenderableType

REWARD_MODEL: Final = "reward-model"
BATCH: Final = "batch"
GRID: Final = "grid"
OVER: Final[Mapping[str, str]] = {REWARD_MODEL: "reward model", BATCH: "x the batch", GRID: "g/kWh"}
"""What can be varied, and what it is in."""
FACTORS: Final = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
MODELS: Final = ("minilm", "bert-base", "qwen2-0.5b", "llama-3-8b")
GRIDS: Final = (20.0, 50.0, 100.0, 200.0, 400.0, 800.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRequest:
    """A table, and how its steps are run and priced."""

    wanted: PipelineInputs
    chunks: int = CHUNKS
    kl_in_reward: bool = False
    card_stays: bool = False
    grid: str | None = None
    pue: float = 1.0
    embodied_kg: str | None = None

    def setting(self, cards: int) -> Setting:
        """Return how steps are run with so many cards."""
        return Setting(cards=cards, chunks=self.chunks, kl_in_reward=self.kl_in_reward)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyAnswer:
    """To one question."""

    document: Mapping[str, Any]
    """In plain JSON types."""
    shown: "Sequence[RenderableType]"


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenedStudy:
    table: PipelineTable
    grid: GridIntensity
    made: CardFootprint | None

    @classmethod
    def of(cls, asked: StudyRequest) -> "_OpenedStudy":
        table = open_table(asked.wanted)
        return cls(table=table, grid=open_grid(asked.grid, asked.pue), made=open_footprint(table, asked.embodied_kg))

    def paid(self, setting: Setting, away: StepOutcome) -> BreakEven | None:
        """Against GPUs without cards, even where the cards would be powered whatever the plan."""
        home = simulate(self.table, Mode.GPU, setting, self.grid)
        return None if self.made is None else break_even(home, away, self.made)


def answer_modes(
    asked: StudyRequest, modes: Sequence[Mode], cards: Sequence[int], *, steps: int = 1, gpus: Sequence[int] = (),
    link: GpuLink | None = None,
) -> StudyAnswer:  # fmt: skip
    """Return a step in several modes.

    Args:
        asked: The table.
        modes: Modes in the order in which they are shown.
        cards: Numbers of cards.
        steps: Number of steps in a row, for the mean.
        gpus: Numbers of GPUs for T(N); needs ``link``.
        link: Link between GPUs.

    Raises:
        ConfigError: Something of the input is wrong.
    """
    opened = _OpenedStudy.of(asked)
    table, grid = opened.table, opened.grid
    found = [
        simulate(table, mode, asked.setting(number), grid, card_stays=asked.card_stays)
        for number in cards
        for mode in modes
        if mode is not Mode.GPU or number == cards[0] or asked.card_stays
    ]
    means = [step_ends(table, one.mode, steps, asked.setting(one.cards or cards[0]))[-1] / steps for one in found]
    home = simulate(table, Mode.GPU, asked.setting(cards[0]), grid, card_stays=asked.card_stays)
    away = best([outcome for outcome in found if outcome.plan != home.plan] or found)
    paid = opened.paid(asked.setting(cards[0]), away)
    wide = asked.setting(away.cards or cards[0])
    scaled = scale(table, gpus, link, away.mode, wide, grid, card_stays=asked.card_stays) if gpus and link else ()
    known = all(one.line.energy_j is not None for one in found)
    least = "Least joules" if known else "Least time, for want of joules,"
    notes = [f"{least} with cards: {away.mode}, {away.cards} of them.", *display.paid_lines(table.card, paid, grid)]
    if steps > 1:
        told = ", ".join(f"{one.mode} {mean:.3g}" for one, mean in zip(found, means, strict=True))
        notes.insert(0, f"Mean of {steps} steps in a row (s): {told}.")
    if Mode.OFF_POLICY in modes:
        notes.insert(0, "+ off-policy is another algorithm: advantages one step old, and other weights.")
    return StudyAnswer(
        document={
            **_document(table, asked, grid),
            "outcomes": [
                {**one.to_dict(), "steps": steps, "mean_step_s": mean} for one, mean in zip(found, means, strict=True)
            ],
            "caps": [cap.to_dict() for cap in caps(table)],
            "break_even": None if paid is None else {"mode": str(away.mode), **paid.to_dict()},
            "scaling": [_scaled(row) for row in scaled],
        },
        shown=[display.simulated(table, found, notes), *([display.scaled(scaled)] if scaled else [])],
    )


def answer_waterfall(asked: StudyRequest, cards: int) -> StudyAnswer:
    """Return an ablation.

    Raises:
        ConfigError: Something of the input is wrong.
    """
    opened = _OpenedStudy.of(asked)
    table, grid = opened.table, opened.grid
    rows = waterfall(table, asked.setting(cards), grid, card_stays=asked.card_stays)
    paid = opened.paid(asked.setting(cards), rows[-2].outcome)
    return StudyAnswer(
        document={
            **_document(table, asked, grid),
            "rows": [row.to_dict() for row in rows],
            "caps": [cap.to_dict() for cap in caps(table)],
            "break_even": None if paid is None else {"mode": str(rows[-2].outcome.mode), **paid.to_dict()},
        },
        shown=[display.fallen(table, rows, display.paid_lines(table.card, paid, grid))],
    )


def answer_sensitivity(asked: StudyRequest, over: str, values: Sequence[str], mode: Mode, cards: int) -> StudyAnswer:
    """Return how a mode moves with something.

    Args:
        asked: The table.
        over: A key of ``OVER``.
        values: Factors of the reward model or the batch, names of models where a card is modelled, or g/kWh; none: the
            usual ones.
        mode: Place of the passes, and the point at which the training waits for them.
        cards: Number of cards.

    Raises:
        ConfigError: Something of the input is wrong.
    """
    if over == "kl-weight":
        raise ConfigError(
            "--over kl-weight: it multiplies log-probabilities that are there, so at any weight above 0 a step takes "
            "the same time and joules; at 0 leave the stage reference out of the table"
        )
    choice("--over", over, tuple(OVER))
    by_model = over == REWARD_MODEL and asked.wanted.card is not None
    names = values or (MODELS if by_model else ())
    if by_model:
        models = {**asked.wanted.models, Stage.REWARD: names[0]}
        asked = dataclasses.replace(asked, wanted=dataclasses.replace(asked.wanted, models=models))
    opened = _OpenedStudy.of(asked)
    table, grid, setting = opened.table, opened.grid, asked.setting(cards)

    def seen(value: float | str, one: PipelineTable) -> SensitivityPoint:
        return point(value, one, mode, setting, grid, opened.made)

    if by_model:
        points = [
            seen(
                name, open_table(dataclasses.replace(asked.wanted, models={**asked.wanted.models, Stage.REWARD: name}))
            )
            for name in names
        ]
    elif over == GRID:
        points = list(over_grids(table, _numbers(values, GRIDS), mode, setting, grid, opened.made))
    elif over == BATCH:
        points = [seen(x, open_table(dataclasses.replace(asked.wanted, batch=x))) for x in _numbers(values, FACTORS)]
    else:
        points = [seen(x, reward_sized(table, x)) for x in _numbers(values, FACTORS)]
    legend = "what a scheduler would do, by joules; by time where some are unknown"
    notes = [f"With card: mode {mode}, {cards} of them. best: {legend}."]
    if opened.made is None:
        notes.append(f"Embodied carbon of {table.card} is unknown (--embodied-kg), and so is the break-even.")
    else:
        notes.append(f"Making a card: {opened.made.low_kg:g} to {opened.made.high_kg:g} kg ({opened.made.source}).")
    if over != GRID:
        notes.append(f"Grid: {grid.source}, PUE {grid.pue:g}." if grid.source else "Grid: unknown (--grid).")
    return StudyAnswer(
        document={
            **_document(table, asked, grid),
            "over": over,
            "mode": str(mode),
            "points": [found.to_dict() for found in points],
        },
        shown=[display.varied(table, OVER[over], points, notes)],
    )


def _numbers(values: Sequence[str], usual: Sequence[float]) -> Sequence[float]:
    try:
        return [float(value) for value in values] or usual
    except ValueError:
        raise ConfigError(f"--values {','.join(values)}: numbers, as in 0.5,1,2") from None


def _document(table: PipelineTable, asked: StudyRequest, grid: GridIntensity) -> dict[str, Any]:
    return {
        "table": {
            "name": table.name,
            "tokens": table.tokens,
            "sequences": table.sequences,
            "micro_batches": table.micro_batches,
            "forward_share": _figure(table.forward_share),
            "old_share": _figure(table.old_share),
            "gpu": table.gpu,
            "gpus": table.gpus,
            "gpu_idle_w": _figure(table.gpu_idle_w),
            "card": table.card,
            "card_idle_w": _figure(table.card_idle_w),
            "stages": {
                str(stage): {
                    name: _figure(getattr(row, name)) for name in ("gpu_s", "gpu_w", "card_s", "card_w")
                }
                for stage, row in table.rows.items()
            },
            "notes": list(table.notes),
        },
        "provenance": "modelled",
        "chunks": asked.chunks,
        "kl_in_reward": asked.kl_in_reward,
        "card_stays": asked.card_stays,
        "grid": {"g_per_kwh": grid.g_per_kwh, "pue": grid.pue, "source": grid.source},
    }  # fmt: skip


def _figure(figure: SourcedNumber | None) -> dict[str, Any] | None:
    return None if figure is None else {"value": figure.value, "kind": str(figure.kind), "source": figure.source}


def _scaled(row: Scaled) -> dict[str, Any]:
    return {
        "gpus": row.gpus,
        "comm_s": row.comm_s,
        "efficiency": row.efficiency,
        "home": row.home.to_dict(),
        "away": row.away.to_dict(),
    }
