"""Strong scaling: one step on N GPUs.

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

from greentrain.errors import ConfigError
from greentrain.policy.offload.stages import Stage
from greentrain.simulator.pipeline.figure import Origin
from greentrain.simulator.pipeline.modes import Mode, Setting
from greentrain.simulator.pipeline.simulate import GridIntensity, StepOutcome, simulate
from greentrain.simulator.pipeline.table import PipelineTable
from greentrain.utils.validation import bound


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLink:
    """Between GPUs, and what crosses it once a step.

    Raises:
        ConfigError: A number is out of bounds.
    """

    gradient_bytes: float
    bytes_per_s: float
    """Of one GPU, one way."""
    latency_s: float = 0.0
    """Of one round between neighbours."""
    serial_s: float = 0.0
    """Part of the step that more GPUs do not shorten (s)."""

    def __post_init__(self) -> None:
        bound("gradient_bytes", self.gradient_bytes, 0, 1e15)
        bound("bytes_per_s", self.bytes_per_s, 1, 1e15)
        bound("latency_s", self.latency_s, 0, 10)
        bound("serial_s", self.serial_s, 0, 1e6)

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
        rows[stage] = dataclasses.replace(row, gpu_s=row.gpu_s.times(factor, f"on {gpus} GPUs", Origin.MODELLED))
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
