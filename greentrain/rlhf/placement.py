"""Decides where the passes run, step by step: measures every placement, then asks a policy. No threads, no clock."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from greentrain.errors import ConfigError
from greentrain.policy.offload.edi import ALPHA, PROFILE_STEPS, EdiMatrix, measured_table
from greentrain.policy.offload.stages import MOVABLE, Hardware, Plan, Stage, StageCost, Where, all_gpu, label
from greentrain.policy.offload.timeline import StepShape
from greentrain.policy.offload.view import Objective, OffloadPolicy, View
from greentrain.rlhf.edi_meter import EdiMeter
from greentrain.utils.validation import bound

JUDGED: Final = 3
"""Steps after which a plan's measured step time counts."""
SCATTER: Final = 0.03
"""Share by which a measured step may be longer than the bound before that counts: step times scatter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """How a scheduler measures and decides."""

    profile_steps: int = PROFILE_STEPS
    """Steps in which every placement is tried in turn."""
    warmup_steps: int = 1
    """Steps before them, with all on the GPU, that nobody measures."""
    decide_steps: int = 100
    """Steps from one decision to the next."""
    refresh_decisions: int = 10
    """After so many decisions every placement is tried once more: sequences grow, and a value that nobody measures is
    not known for long. 0: never."""
    alpha: float = ALPHA
    """Weight of the newest step in the running means."""
    concurrent: bool = True
    """False: the framework has no late barrier, so a pass that leaves the GPU is waited for."""
    shape: StepShape = field(default_factory=StepShape)
    """How the step is cut, and where its barriers are."""
    objective: Objective = field(default_factory=Objective)
    card_stays: bool = False
    """True: the offload device stays on whether it is used or not, so that its idle power decides nothing."""

    def __post_init__(self) -> None:
        bound("profile_steps", self.profile_steps, 1, 1e9)
        bound("warmup_steps", self.warmup_steps, 0, 1e9)
        bound("decide_steps", self.decide_steps, 1, 1e9)
        bound("refresh_decisions", self.refresh_decisions, 0, 1e9)

    @property
    def wheres(self) -> tuple[Where, ...]:
        """What a stage may do."""
        return tuple(Where) if self.concurrent else (Where.GPU, Where.SEQUENTIAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A decision."""

    plan: Plan
    reason: str
    limits: Mapping[Stage, float] = field(default_factory=dict)
    """The longest that a stage may take on the offload device, in seconds an output token: the latency budget."""

    def to_json(self) -> dict[str, Any]:
        """Return it in plain types, for the other ranks."""
        return {
            "plan": {str(stage): str(where) for stage, where in self.plan.items()},
            "reason": self.reason,
            "limits": {str(stage): limit for stage, limit in self.limits.items()},
        }

    @classmethod
    def from_json(cls, word: Mapping[str, Any]) -> "Placement":
        """Return what :meth:`to_json` wrote."""
        return cls(
            plan={Stage(stage): Where(where) for stage, where in word["plan"].items()},
            reason=str(word["reason"]),
            limits={Stage(stage): float(limit) for stage, limit in word["limits"].items()},
        )


class Placements:
    """Which placement each step tries, and what is decided from what was measured.

    Args:
        movable: Stages that may be on either side.
        policy: Decides.
        settings: How.

    Raises:
        ConfigError: The profiling phase is too short for every placement to be tried.
    """

    def __init__(self, movable: tuple[Stage, ...], policy: OffloadPolicy, settings: SchedulerSettings) -> None:
        self.settings = settings
        self.matrix = EdiMatrix(settings.alpha)
        self._movable = tuple(stage for stage in MOVABLE if stage in movable)
        self._policy = policy
        gpu: Plan = dict.fromkeys(self._movable, Where.GPU)
        self.gpu = gpu
        self.trials: list[Plan] = [
            gpu,
            *({**gpu, s: where} for s in self._movable for where in settings.wheres if where is not Where.GPU),
        ]
        if settings.profile_steps < len(self.trials):
            raise ConfigError(
                f"profile_steps={settings.profile_steps}: {len(self.trials)} placements are to be tried, give at least "
                f"{len(self.trials)}, better 20 times as many"
            )
        every = settings.refresh_decisions * settings.decide_steps
        if every and every < 2 * len(self.trials):
            raise ConfigError(
                f"refresh_decisions={settings.refresh_decisions} times decide_steps={settings.decide_steps} is {every} "
                f"steps, in which {len(self.trials)} placements are to be tried: give at least {2 * len(self.trials)}, "
                "or refresh_decisions=0"
            )
        self._seen: dict[str, _Seen] = {}

    def trial(self, step: int) -> Plan | None:
        """Return what a step tries, counted from 0; None where the decision is in force."""
        settings = self.settings
        if step < settings.warmup_steps:
            return self.gpu
        since = step - settings.warmup_steps
        if since < settings.profile_steps:
            return self.trials[since % len(self.trials)]
        since -= settings.profile_steps
        every = settings.refresh_decisions * settings.decide_steps
        if not every or since < every:
            return None
        return self.trials[since % every] if since % every < len(self.trials) else None

    def due(self, steps: int) -> bool:
        """Return True if it is decided after so many steps."""
        since = steps - self.settings.warmup_steps - self.settings.profile_steps
        return since >= 0 and since % self.settings.decide_steps == 0

    def ran(self, plan: Plan, step_s: float, tokens: float) -> None:
        """Take how long a step took."""
        seen = self._seen.setdefault(label(plan), _Seen())
        seen.add(step_s / tokens, self.settings.alpha)

    def decide(self, current: Plan, tokens: float, meter: EdiMeter) -> Placement:
        """Return what the policy wants, as far as measured step times allow it.

        Args:
            current: What is in force.
            tokens: Output tokens of a step.
            meter: What was measured.
        """
        view = self.view(current, tokens, meter)
        if view is None:
            return Placement(plan=self.gpu, reason="all on gpu: no step was measured")
        plan = {stage: where for stage, where in self._policy.choose(view).items() if stage in self._movable}
        plan = {**self.gpu, **plan}
        slower = self._slower(plan)
        if slower is not None:
            return Placement(
                plan=self.gpu,
                reason=f"all on gpu: {label(plan)} was chosen, but its steps were measured to take {slower:.0%} longer",
            )
        return Placement(
            plan=plan,
            reason=f"{self._policy.name}: {self._policy.reason(view, {**all_gpu(view.table), **plan})}",
            limits={
                stage: limit
                for stage, where in plan.items()
                if where is not Where.GPU and (limit := longest(view, {**all_gpu(view.table), **plan}, stage))
            },
        )

    def view(self, current: Plan, tokens: float, meter: EdiMeter) -> View | None:
        """Return what the policy sees; None before a step was booked."""
        cells = self.matrix.cells
        if any((stage, Hardware.GPU) not in cells for stage in (Stage.GENERATE, Stage.TRAIN)):
            return None
        gpu_w, gpu_from = meter.gpu_idle
        card_w, card_from = meter.card_idle
        cards = self.settings.shape.cards
        whole = measured_table(
            cells,
            tokens,
            gpu_idle_w=gpu_w,
            gpu_idle_provenance=gpu_from,
            card_idle_w=None if card_w is None else card_w / cards,
            card_idle_provenance=card_from,
            card_stays=self.settings.card_stays,
        )
        return View(
            table=whole,
            edi=cells,
            shape=self.settings.shape,
            current={**all_gpu(whole), **{s: w for s, w in current.items() if s in whole.stages}},
            wheres=self.settings.wheres,
            objective=self.settings.objective,
        )

    def _slower(self, plan: Plan) -> float | None:
        """Return by how much a plan was measured to lengthen the step, if that is more than allowed."""
        mine, gpu = self._seen.get(label(plan)), self._seen.get(label(self.gpu))
        if mine is None or gpu is None or min(mine.count, gpu.count) < JUDGED or label(plan) == label(self.gpu):
            return None
        ratio = mine.s_per_token / gpu.s_per_token
        return ratio - 1 if ratio > self.settings.objective.max_slowdown * (1 + SCATTER) else None


@dataclass(slots=True)
class _Seen:
    s_per_token: float = 0.0
    count: int = 0

    def add(self, s_per_token: float, alpha: float) -> None:
        self.count += 1
        self.s_per_token += max(alpha, 1 / self.count) * (s_per_token - self.s_per_token)


def longest(view: View, plan: Plan, stage: Stage) -> float | None:
    """Return the longest that an offloaded stage may take (s a token) before the GPU would be the better place.

    The window is that of the plan: the step may not get longer than the bound, nor cost more than with everything on
    the GPU. None where even the present time is too long.
    """
    gpu = view.step(all_gpu(view.table))
    gpu_j = view.objective.cost_j(gpu)
    cost = view.table.cost(stage, plan[stage])

    def fits(factor: float) -> bool:
        joules = None if cost.energy_j is None else cost.energy_j * factor
        longer = StageCost(duration_s=cost.duration_s * factor, energy_j=joules, provenance=cost.provenance)
        table = replace(view.table, costs={**view.table.costs, (stage, Hardware.OFFLOAD): longer})
        step = replace(view, table=table).step(plan)
        cost_j = view.objective.cost_j(step)
        return view.objective.allows(step, gpu) and cost_j is not None and gpu_j is not None and cost_j <= gpu_j

    if not fits(1.0):
        return None
    low, high = 1.0, 2.0
    while fits(high) and high < _FACTORS:
        low, high = high, 2 * high
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low * cost.duration_s / view.table.tokens


_FACTORS: Final = 1024.0
