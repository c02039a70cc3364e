"""The same step otherwise: on more GPUs, with another reward model, batch or grid, and with one thing added at a time.

Strong scaling is one step on N GPUs:

    T(N) = W * N_0 / N + S + C(N)
    C(N) = 2 (N - 1) / N * bytes / bandwidth + 2 (N - 1) * latency        for N > 1

W is the time of the stages on the table's N_0 GPUs without S and C(N_0), S what more GPUs do not shorten (s). C is the
ring all-reduce of the gradients, reduce-scatter and all-gather of N - 1 rounds each (Patarasuk and Yuan, Bandwidth
optimal all-reduce algorithms for clusters of workstations, J. Parallel Distrib. Comput. 69, 2009), none of it hidden
behind the backward pass. The table's training contains S and C(N_0), so T(N_0) is the table's step. Dividing W evenly
is the best case.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from greentrain.errors import ConfigError
from greentrain.policy.offload.stages import Stage, plans
from greentrain.simulator.pipeline.bounds import BreakEven, CardFootprint, break_even
from greentrain.simulator.pipeline.simulate import (
    ON_POLICY,
    GridIntensity,
    Mode,
    Setting,
    StepOutcome,
    best,
    plan_of,
    simulate,
)
from greentrain.simulator.pipeline.table import PipelineTable, StageRow
from greentrain.utils.quantities import SourceKind
from greentrain.utils.validation import Bound, bound, check_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLink:
    """Between GPUs, and what crosses it once a step.

    Raises:
        ConfigError: A number is out of bounds.
    """

    gradient_bytes: Annotated[float, Bound(0, 1e15)]
    bytes_per_s: Annotated[float, Bound(1, 1e15)]
    """Of one GPU, one way."""
    latency_s: Annotated[float, Bound(0, 10)] = 0.0
    """Of one round between neighbours."""
    serial_s: Annotated[float, Bound(0, 1e6)] = 0.0
    """Part of the step that more GPUs do not shorten (s)."""

    def __post_init__(self) -> None:
        check_fields(self)

    def all_reduce_s(self, gpus: int) -> float:
        """Return the time of a ring all-reduce (s)."""
        if gpus == 1:
            return 0.0
        return 2 * (gpus - 1) / gpus * self.gradient_bytes / self.bytes_per_s + 2 * (gpus - 1) * self.latency_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """A step on so many GPUs."""

    gpus: int
    comm_s: float
    """All-reduce, of which nothing is hidden behind the backward pass: an upper bound (s)."""
    home: StepOutcome
    """Everything on the GPUs."""
    away: StepOutcome
    """In the mode that was asked for."""
    efficiency: float
    """Of ``home``: its speed-up over the table's step, over the growth in GPUs."""


def scaled(table: PipelineTable, gpus: int, link: GpuLink) -> PipelineTable:
    """Return the table on another number of GPUs; what a card takes does not change.

    Raises:
        ConfigError: The table's training is shorter than what it must contain.
    """
    bound("gpus", gpus, 1, 10**6)
    rows = dict(table.rows)
    ratio = table.gpus / gpus
    fixed_s = link.serial_s + link.all_reduce_s(table.gpus)
    train = rows[Stage.TRAIN].gpu_s
    if fixed_s > train.value:
        raise ConfigError(
            f"all-reduce and serial part take {fixed_s:.3g} s on {table.gpus} GPUs, but training there takes "
            f"{train.value:.3g} s: give fewer bytes, a faster link, or a shorter serial part"
        )
    if gpus == table.gpus:
        return table
    now_s = (train.value - fixed_s) * ratio + link.serial_s + link.all_reduce_s(gpus)
    grown = now_s / (train.value * ratio) if train.value else 1.0
    for stage, row in rows.items():
        factor = ratio * (grown if stage is Stage.TRAIN else 1.0)
        rows[stage] = dataclasses.replace(row, gpu_s=row.gpu_s.times(factor, f"on {gpus} GPUs", SourceKind.MODELLED))
    old = table.old_share.value / grown
    forward = table.forward_share.value * (1 - table.old_share.value) / grown / (1 - old) if old < 1 else 0.0
    return dataclasses.replace(
        table,
        rows=rows,
        gpus=gpus,
        old_share=dataclasses.replace(table.old_share, value=min(1.0, old)),
        forward_share=dataclasses.replace(table.forward_share, value=min(1.0, forward)),
    )


def scale(
    table: PipelineTable,
    gpus: Sequence[int],
    link: GpuLink,
    mode: Mode,
    setting: Setting | None = None,
    grid: GridIntensity | None = None,
    *,
    card_stays: bool = False,
) -> tuple[Scaled, ...]:
    """Return a step for each number of GPUs, with and without cards, which are powered in both if ``card_stays``.

    Raises:
        ConfigError: As :func:`scaled` and :func:`simulate`.
    """
    found = []
    for number in gpus:
        wider = scaled(table, number, link)
        home = simulate(wider, Mode.GPU, setting, grid, card_stays=card_stays)
        found.append(
            Scaled(
                gpus=number,
                comm_s=link.all_reduce_s(number),
                home=home,
                away=simulate(wider, mode, setting, grid, card_stays=card_stays),
                efficiency=table.step_s / home.line.step_s * table.gpus / number,
            )
        )
    return tuple(found)


STEPS: Final = (
    ("baseline: all on the GPUs", Mode.GPU),
    ("+ passes on the card, sequential", Mode.SEQUENTIAL),
    ("+ concurrent", Mode.PARALLEL),
    ("+ late reference", Mode.LATE),
    ("+ streamed behind generation", Mode.STREAM_LATE),
)
ADAPTIVE: Final = "+ adaptive batch"
SCHEDULER: Final = "+ scheduler"
MOST_CHUNKS: Final = 64
"""Parts into which an adaptive batch cuts rollouts, at most."""


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

    The adaptive batch streams rollouts in parts of the size that is best, by powers of two, and of those as good in the
    largest: the seconds of a pass on the card do not depend on its parts here. The last row is the best of all
    on-policy modes and plans, each pass on the GPUs or the card: least joules with the cards' idle power counted, or
    least time where joules are unknown. It may leave everything on the GPUs.
    """
    rows = [
        Fall(name=name, outcome=simulate(table, mode, setting, grid, card_stays=card_stays)) for name, mode in STEPS
    ]
    setting = setting or Setting()
    sizes = [2**i for i in range(MOST_CHUNKS.bit_length()) if 2**i <= (table.sequences or MOST_CHUNKS)]
    cuts = [dataclasses.replace(setting, chunks=chunks) for chunks in sizes]
    streamed = [simulate(table, Mode.STREAM_LATE, cut, grid, card_stays=card_stays) for cut in cuts]
    adapted = best(streamed)
    setting = cuts[streamed.index(adapted)]
    last = Fall(name=SCHEDULER, outcome=scheduled(table, setting, grid, card_stays=card_stays))
    return (*rows, Fall(name=f"{ADAPTIVE}, parts: {setting.chunks}", outcome=adapted), last)


def scheduled(
    table: PipelineTable,
    setting: Setting | None = None,
    grid: GridIntensity | None = None,
    *,
    card_stays: bool = False,
) -> StepOutcome:
    """Return the best of all plans in all on-policy modes.

    Raises:
        ConfigError: The cards cannot be shared out.
    """
    setting = setting or Setting()
    legal = plans(table.cost_table(setting.cards))
    own = (Mode.GPU, Mode.SEQUENTIAL)  # their names say where the passes run; PARALLEL has the same barriers
    return best(
        simulate(table, mode, setting, grid, plan=plan, card_stays=card_stays)
        for mode in ON_POLICY
        for plan in ([plan_of(table, mode)] if mode in own else legal)
    )


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
    origin = None if factor == 1 else SourceKind.ASSUMED
    card_s = None if row.card_s is None else row.card_s.times(factor, why, origin)
    return dataclasses.replace(row, gpu_s=row.gpu_s.times(factor, why, origin), card_s=card_s)
