"""A step in each mode: time, bubble, useful and wasted joules, grams, and the most that physics allows.

A mode is a way in which the training can wait for a frozen pass. Of many steps in a row those on policy do not overlap,
and an off-policy pipeline has to fill and to drain.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from greentrain.errors import ConfigError
from greentrain.policy.offload.stages import Hardware, Plan, Stage, Where, label
from greentrain.policy.offload.timeline import Late, StepShape, Timeline, timeline
from greentrain.simulator.pipeline.table import PipelineTable
from greentrain.types import grams
from greentrain.utils.quantities import SourceKind

CHUNKS: Final = 8
"""Parts in which rollouts finish, where nobody says."""


class Mode(StrEnum):
    """What is done with the passes that a card can run."""

    GPU = "gpu"
    """Nothing: all of the step on the GPUs, the passes one after the other."""
    SEQUENTIAL = "sequential"
    """On the card; the training stands still where it would have computed them. An eager adapter, which waits at the
    call, is the same."""
    PARALLEL = "parallel"
    """Both submitted when generation ends, awaited before the advantages."""
    LATE = "late"
    """The reference awaited at the loss of its micro-batch."""
    LATE_ALL = "late-all"
    """Rewards awaited at the first loss too."""
    STREAM = "stream"
    """Submitted rollout by rollout while the others are generated, awaited before the advantages."""
    STREAM_LATE = "stream-late"
    """Streamed, and awaited at the first loss."""
    OFF_POLICY = "off-policy"
    """Awaited a step later. Another algorithm: its advantages are one step old, so it needs old log-probabilities and
    clipping, and its weights are not those of the others."""


ON_POLICY: Final = tuple(mode for mode in Mode if mode is not Mode.OFF_POLICY)
EAGER: Final = "eager"
"""Another word for SEQUENTIAL."""

_WHERE: Final = {Mode.GPU: Where.GPU, Mode.SEQUENTIAL: Where.SEQUENTIAL}
_LATE: Final[Mapping[Mode, Late]] = {
    Mode.LATE: Late.REFERENCE,
    Mode.LATE_ALL: Late.ALL,
    Mode.STREAM_LATE: Late.ALL,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How a mode is run."""

    cards: int = 1
    chunks: int = CHUNKS
    kl_in_reward: bool = False
    """The reference is part of the reward (PPO, RLOO): it is needed for the advantages."""


def plan_of(table: PipelineTable, mode: Mode) -> Plan:
    """Return where the stages run: all passes that have a time on the card leave, but in GPU mode."""
    away = _WHERE.get(mode, Where.CONCURRENT)
    return {stage: away if stage in table.offloadable else Where.GPU for stage in table.rows}


def shape_of(table: PipelineTable, mode: Mode, setting: Setting) -> StepShape:
    """Return where the barriers of a mode are."""
    need = {Stage.REWARD, Stage.CRITIC} | ({Stage.REFERENCE} if setting.kl_in_reward else set())
    return StepShape(
        micro_batches=table.micro_batches,
        chunks=setting.chunks if mode in (Mode.STREAM, Mode.STREAM_LATE) else 1,
        late=_LATE.get(mode, Late.NONE),
        old_share=table.old_share.value,
        forward_share=table.forward_share.value,
        advantages_need=frozenset(need),
        cards=table.lanes(setting.cards)[0],
        off_policy=mode is Mode.OFF_POLICY,
    )


NO_PUE: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GridIntensity:
    """What a joule emits."""

    g_per_kwh: float | None = None
    """None: nobody said, so grams are unknown."""
    pue: float = NO_PUE
    source: str = ""

    def grams(self, energy_j: float | None) -> float | None:
        """Return the grams of IT joules, PUE included; None where one of them is unknown."""
        if energy_j is None or self.g_per_kwh is None:
            return None
        return grams(energy_j * self.pue, self.g_per_kwh)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """A step in one mode."""

    mode: Mode
    cards: int
    plan: Plan
    line: Timeline
    base_s: float
    """The step with everything on the GPUs (s)."""
    cap: float
    """The most that moving these passes can speed up the step, by Amdahl's law."""
    g: float | None
    """Grams of a step, PUE included; None where nobody knows."""
    origins: tuple[SourceKind, ...]
    """What the figures rest on, the surest first; they themselves are modelled."""

    @property
    def speedup(self) -> float:
        """Against everything on the GPUs."""
        return self.base_s / self.line.step_s

    @property
    def tokens_per_s(self) -> float:
        """Output tokens a second."""
        return self.line.tokens / self.line.step_s

    @property
    def g_per_mtoken(self) -> float | None:
        """Grams a million output tokens; None where nobody knows."""
        return None if self.g is None else 1e6 * self.g / self.line.tokens

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types; what is unknown is null."""
        line = self.line
        return {
            "mode": str(self.mode),
            "on_policy": self.mode is not Mode.OFF_POLICY,
            "cards": self.cards,
            "plan": {str(stage): str(where) for stage, where in self.plan.items()},
            "step_s": line.step_s,
            "speedup": self.speedup,
            "cap": self.cap,
            "tokens_per_s": self.tokens_per_s,
            "bubble": line.bubble,
            "busy_s": _named(line.busy_s),
            "idle_s": _named(line.idle_s),
            "waits_s": {str(stage): wait_s for stage, wait_s in line.waits_s.items()},
            "hidden_s": line.hidden_s,
            "stage_j": {f"{stage} on {where}": energy_j for (stage, where), energy_j in line.stage_j.items()},
            "idle_j": _named(line.idle_j),
            "useful_j": line.useful_j,
            "wasted_j": line.wasted_j,
            "energy_j": line.energy_j,
            "j_per_token": line.j_per_token,
            "g": self.g,
            "g_per_mtoken": self.g_per_mtoken,
            "origins": [str(origin) for origin in self.origins],
        }


def simulate(
    table: PipelineTable,
    mode: Mode,
    setting: Setting | None = None,
    grid: GridIntensity | None = None,
    *,
    plan: Plan | None = None,
    card_stays: bool = False,
) -> StepOutcome:
    """Return a step.

    Args:
        table: Table with what the stages of the step take.
        mode: Place of the passes, and the point at which the training waits for them.
        setting: Cards, and how rollouts finish.
        grid: Grid, which says what a joule emits.
        plan: Plan of where stages run, in place of the mode's own.
        card_stays: The cards are powered whatever the plan, so even the GPU mode pays for them.

    Raises:
        ConfigError: The cards cannot be shared out, or the plan cannot be carried out.
    """
    setting, grid = setting or Setting(), grid or GridIntensity()
    where = plan_of(table, mode) if plan is None else plan
    line = timeline(table.cost_table(setting.cards, card_stays=card_stays), where, shape_of(table, mode, setting))
    return StepOutcome(
        mode=mode,
        cards=setting.cards if line.busy_s[Hardware.OFFLOAD] or card_stays else 0,
        plan=where,
        line=line,
        base_s=table.step_s,
        cap=amdahl(table, [stage for stage, place in where.items() if place is not Where.GPU]),
        g=grid.grams(line.energy_j),
        origins=table.origins(where),
    )


def best(outcomes: Iterable[StepOutcome]) -> StepOutcome:
    """Return the outcome of least joules a step; of least time where any joules are unknown."""
    found = list(outcomes)
    if any(outcome.line.energy_j is None for outcome in found):
        return min(found, key=lambda outcome: outcome.line.step_s)
    return min(found, key=lambda outcome: (outcome.line.energy_j or 0.0, outcome.line.step_s))


def amdahl(table: PipelineTable, passes: Iterable[Stage]) -> float:
    """Return the speed-up if these passes cost no time at all: no device and no schedule goes beyond it."""
    left_s = table.step_s - sum(table.rows[stage].gpu_s.value for stage in set(passes) if stage in table.rows)
    return table.step_s / left_s


def said(outcome: StepOutcome) -> str:
    """Return the plan in a few words."""
    return label(outcome.plan)


def _named(values: Mapping[Hardware, Any]) -> dict[str, Any]:
    return {str(hardware): value for hardware, value in values.items()}


MOST_STEPS: Final = 100_000


def step_ends(table: PipelineTable, mode: Mode, steps: int, setting: Setting | None = None) -> Sequence[float]:
    """Return when each training step is over (s).

    On-policy, step k + 1 generates with the weights that step k trained, so nothing overlaps and the mean step is the
    single one. One step off-policy, generation k + 1 begins when training k - 1 is over: in the time between, the card
    has the passes of rollouts k. The first of ``steps`` trainings ends after two generations, and the mean step falls
    towards max(GPU, card), the single step of :func:`simulate`.

    Args:
        table: Table with what the stages of the step take.
        mode: Place of the passes, and the point at which the training waits for them.
        steps: Number of training steps, 1 to MOST_STEPS.
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
