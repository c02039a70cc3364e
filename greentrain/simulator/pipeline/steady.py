"""Many steps in a row: on-policy steps do not overlap, and an off-policy pipeline has to fill and to drain."""

from collections.abc import Sequence
from typing import Final

from greentrain.errors import ConfigError
from greentrain.policy.offload.stages import Stage, Where
from greentrain.simulator.pipeline.modes import Mode, Setting, plan_of
from greentrain.simulator.pipeline.simulate import simulate
from greentrain.simulator.pipeline.table import PipelineTable

MOST_STEPS: Final = 100_000


def step_ends(table: PipelineTable, mode: Mode, steps: int, setting: Setting | None = None) -> Sequence[float]:
    """Return when each training step is over (s).

    On-policy, step k + 1 generates with the weights that step k trained, so nothing overlaps and the mean step is the
    single one. One step off-policy, generation k + 1 begins when training k - 1 is over: in the time between, the card
    has the passes of rollouts k. The first of ``steps`` trainings ends after two generations, and the mean step falls
    towards max(GPU, card), the single step of :func:`simulate`.

    Args:
        table: What its stages take.
        mode: How the training waits.
        steps: How many trainings, 1 to MOST_STEPS.
        setting: Cards, and how rollouts finish.

    Raises:
        ConfigError: There are no steps or too many, or the cards cannot be shared out.
    """
    if not 1 <= steps <= MOST_STEPS:
        raise ConfigError(f"{steps} steps: at least 1 and at most {MOST_STEPS} are simulated")
    setting = setting or Setting()
    if mode is not Mode.OFF_POLICY:
        step_s = simulate(table, mode, setting).line.step_s
        return [step_s * (k + 1) for k in range(steps)]
    plan = plan_of(table, mode)
    lanes, each = table.lanes(setting.cards)
    at_home = {stage: row.gpu_s.value for stage, row in table.rows.items() if plan[stage] is Where.GPU}
    generate_s = at_home[Stage.GENERATE]
    train_s = at_home[Stage.TRAIN] * (1 - table.old_share.value)
    between_s = sum(at_home.values()) - generate_s - train_s
    loads_s = [0.0] * lanes
    for i, stage in enumerate(table.offloadable):
        seconds = table.rows[stage].card_s
        loads_s[i % lanes] += 0.0 if seconds is None else seconds.value / each
    free_s = [0.0] * lanes
    now_s, ready_s = generate_s + between_s, generate_s
    ends: list[float] = []
    for k in range(steps):
        free_s = [max(free, ready_s) + load for free, load in zip(free_s, loads_s, strict=True)]
        if k + 1 < steps:  # the next rollouts, behind which these are trained
            ready_s = now_s + generate_s
            now_s = ready_s + between_s
        now_s = max(now_s, *free_s) + train_s
        ends.append(now_s)
    return ends
