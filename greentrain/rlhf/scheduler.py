"""Where each pass runs, decided while the training runs.

First every placement of every pass is tried in turn. Then, every so many steps, the policy decides from what was
measured, and the plan changes at that step's end, on all ranks alike. A pass that stays on the GPU runs at the engine's
home. :class:`Placements` decides, step by step, without threads or a clock.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Annotated, Final

from greentrain.control.coordination import RankZeroChannel
from greentrain.errors import ConfigError
from greentrain.fpga_backend.batch import Batch
from greentrain.policy.offload.edi import ALPHA, PROFILE_STEPS, EdiMatrix, measured_table
from greentrain.policy.offload.rule import EdiRule
from greentrain.policy.offload.stages import MOVABLE, Hardware, Plan, Stage, Where, all_gpu, label
from greentrain.policy.offload.timeline import StepShape
from greentrain.policy.offload.view import Objective, OffloadPolicy, OffloadView
from greentrain.rlhf.edi_meter import EdiMeter, EnergySource, SessionEnergy, StepRecord, StepWindow
from greentrain.rlhf.engine import OffloadEngine, PassStats, Ticket
from greentrain.rlhf.kinds import PassKind, Place
from greentrain.session.session import GreenSession
from greentrain.utils.never_raise import never_raises, once, warn
from greentrain.utils.topology import current_topology
from greentrain.utils.validation import Bound, check_fields

JUDGED: Final = 3
"""Steps after which a plan's measured step time counts."""
SCATTER: Final = 0.03
"""Share by which a measured step may be longer than the bound before that counts: step times scatter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """How a scheduler measures and decides."""

    profile_steps: Annotated[int, Bound(1, 1e9)] = PROFILE_STEPS
    """Steps in which every placement is tried in turn."""
    warmup_steps: Annotated[int, Bound(0, 1e9)] = 1
    """Steps before them, with all on the GPU, that nobody measures."""
    decide_steps: Annotated[int, Bound(1, 1e9)] = 100
    """Steps from one decision to the next."""
    refresh_decisions: Annotated[int, Bound(0, 1e9)] = 10
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
    queue_max: Annotated[int, Bound(1, 1e9)] | None = None
    """A batch goes home while so many parts wait at the device or run there. None: it waits, as the engine says."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def wheres(self) -> tuple[Where, ...]:
        """What a stage may do."""
        return tuple(Where) if self.concurrent else (Where.GPU, Where.SEQUENTIAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A decision."""

    plan: Plan
    reason: str


class Placements:
    """Which placement each step tries, and what is decided from what was measured.

    Args:
        movable: Stages that may be on either side.
        policy: Policy that decides.
        settings: Numbers that say how it measures and decides.

    Raises:
        ConfigError: The profiling phase is too short for every placement to be tried.
    """

    def __init__(self, movable: tuple[Stage, ...], policy: OffloadPolicy, settings: SchedulerSettings) -> None:
        self.settings = settings
        self.matrix = EdiMatrix(settings.alpha)
        self._movable = tuple(stage for stage in MOVABLE if stage in movable)
        self._policy = policy
        self.gpu: Plan = dict.fromkeys(self._movable, Where.GPU)
        away = [where for where in settings.wheres if where is not Where.GPU]
        self.trials: list[Plan] = [self.gpu, *({**self.gpu, s: where} for s in self._movable for where in away)]
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
        self._seen: dict[str, _MeanTime] = {}

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
        seen = self._seen.setdefault(label(plan), _MeanTime())
        seen.add(step_s / tokens, self.settings.alpha)

    def decide(self, current: Plan, tokens: float, meter: EdiMeter) -> Placement:
        """Return what the policy wants, as far as measured step times allow it.

        Args:
            current: Plan that is in force.
            tokens: Output tokens of a step.
            meter: Meter with what was measured.
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
        whole = {**all_gpu(view.table), **plan}
        return Placement(plan=plan, reason=f"{self._policy.name}: {self._policy.reason(view, whole)}")

    def view(self, current: Plan, tokens: float, meter: EdiMeter) -> OffloadView | None:
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
        return OffloadView(
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
class _MeanTime:
    s_per_token: float = 0.0
    count: int = 0

    def add(self, s_per_token: float, alpha: float) -> None:
        self.count += 1
        self.s_per_token += max(alpha, 1 / self.count) * (s_per_token - self.s_per_token)


log = logging.getLogger(__name__)

STAGE_OF: Final[Mapping[PassKind, Stage]] = {
    PassKind.REWARD: Stage.REWARD,
    PassKind.STEP_REWARD: Stage.REWARD,
    PassKind.REFERENCE: Stage.REFERENCE,
    PassKind.CRITIC: Stage.CRITIC,
}
"""Which stage a pass belongs to."""


class StageScheduler(OffloadEngine):
    """Stands before an engine, in its place, and decides where its passes run. Used from the training thread.

    Whatever takes an engine (streams, adapters) takes the scheduler. Passes without a home stay on their device.

    Args:
        engine: Runs the passes.
        policy: Policy that decides; None: ``EdiRule()``.
        session: Measures the GPU's side; without it no joules are known, and nothing leaves the GPU for their sake.
        settings: Numbers that say how it measures and decides.
        energy: Source of joules in the place of ``session``.
        meetings: Channel by which rank 0 tells the others; None: over torch.distributed, if there is a process group.

    Raises:
        ConfigError: The profiling phase is too short.
    """

    def __init__(
        self,
        engine: OffloadEngine,
        policy: OffloadPolicy | None = None,
        session: GreenSession | None = None,
        *,
        settings: SchedulerSettings | None = None,
        energy: EnergySource | None = None,
        meetings: RankZeroChannel | None = None,
    ) -> None:
        self.settings = settings or SchedulerSettings()
        self._engine = engine
        self._desk = engine._desk  # its passes, its sums and its end are the engine's
        self._session = session
        movable = tuple({STAGE_OF[kind] for kind, what in engine.passes.items() if what.home is not None})
        self._placements = Placements(movable, policy or EdiRule(), self.settings)
        devices = {id(what.device.device): what.device.device for what in engine.passes.values()}
        source = energy if energy is not None else SessionEnergy(session, list(devices.values()))
        self.edi = self._placements.matrix
        """The Energy Density Index so far."""
        self.meter = EdiMeter(source, self.edi, self.settings.shape.cards)
        """Where it is measured."""
        place = current_topology()
        self._first = place.rank == 0
        self._meetings = meetings or RankZeroChannel("rlhf/offload", place)
        self._tell = once(warn)
        self.placement = Placement(plan=self._placements.gpu, reason="nothing was measured yet")
        """The last decision, with its reason."""
        self._steps = 0
        self._plan = self._placements.trial(0) or self.placement.plan
        self._windows: list[StepWindow] = []
        self.restart()
        self._tokens = 0.0

    def where(self, what: Stage | PassKind) -> Where:
        """Return where a stage, or a pass, runs in this step."""
        if isinstance(what, PassKind) and self._engine.of(what).home is None:
            return Where.CONCURRENT
        return self._plan.get(STAGE_OF[what] if isinstance(what, PassKind) else what, Where.GPU)

    def submit(
        self, kind: PassKind, batch: Batch, *, at: Place = Place.DEVICE, sequential: bool | None = None
    ) -> Ticket:
        """Hand in a batch as ``OffloadEngine.submit`` does, where the plan puts it; HOME and True hold in any case."""
        where = self.where(kind)
        if self._engine.of(kind).home is None:
            return self._engine.submit(kind, batch, at=at, sequential=sequential)
        home = at is Place.HOME or where is Where.GPU or self._full()
        place = Place.HOME if home else Place.DEVICE
        waits = bool(sequential) or home or where is Where.SEQUENTIAL
        begun_s = time.monotonic()
        ticket = self._engine.submit(kind, batch, at=place, sequential=waits)
        self._window(STAGE_OF[kind], begun_s, waits=not home)
        ticket.tell(lambda t0_s: self._window(STAGE_OF[kind], t0_s, waits=True))
        return ticket

    @contextmanager
    def stage(self, stage: Stage) -> Iterator[None]:
        """Mark what the GPU computes: GENERATE, TRAIN, or a CRITIC that is no pass of the engine.

        Time outside of all marks counts as generation. Passes mark themselves.
        """
        begun_s = time.monotonic()
        try:
            yield
        finally:
            self._window(stage, begun_s, waits=False)

    def step_end(self, tokens: float) -> None:
        """End a step: book it, and decide where that is due. Every rank calls it equally often.

        Args:
            tokens: Output tokens of this rank's rollouts in the step.

        Raises:
            ConfigError: It is not above 0.
        """
        if not tokens > 0:
            raise ConfigError(f"tokens={tokens} at step_end: give the output tokens of the step, above 0")
        self._book(tokens)
        self._steps += 1
        if self._placements.due(self._steps):
            self._agree()
        self._plan = self._placements.trial(self._steps) or self.placement.plan
        self.restart()

    def restart(self) -> None:
        """Begin the step anew: what ran since the last one ended was an evaluation or a checkpoint."""
        self._windows.clear()
        self._before = self._engine.stats()
        self._begun_s = time.monotonic()

    @property
    def plan(self) -> Plan:
        """What is in force in this step; while placements are tried, a trial."""
        return dict(self._plan)

    @property
    def profiling(self) -> bool:
        """True while this step tries a placement."""
        return self._placements.trial(self._steps) is not None

    def _window(self, stage: Stage, begun_s: float, *, waits: bool) -> None:
        self._windows.append(StepWindow(stage=stage, t0_s=begun_s, t1_s=time.monotonic(), waits=waits))

    @never_raises
    def _book(self, tokens: float) -> None:
        now_s = time.monotonic()
        self._tokens = tokens if not self._tokens else self._tokens + self.settings.alpha * (tokens - self._tokens)
        if self._steps < self.settings.warmup_steps:
            return
        stats = self._engine.stats()
        ran = {kind: now - self._before.get(kind, PassStats()) for kind, now in stats.items()}
        offload_s = self._offload_s(ran)
        if offload_s is None:
            return
        self._placements.ran(self._plan, now_s - self._begun_s, tokens)
        if not any(window.stage is Stage.TRAIN for window in self._windows):
            self._windows.append(StepWindow(stage=Stage.TRAIN, t0_s=now_s, t1_s=now_s))
        self.meter.add(
            StepRecord(t0_s=self._begun_s, t1_s=now_s, tokens=tokens, windows=tuple(self._windows), offload_s=offload_s)
        )

    def _offload_s(self, ran: Mapping[PassKind, PassStats]) -> Mapping[Stage, float] | None:
        """Return how long devices computed in this step; None if something ran elsewhere than planned."""
        found: defaultdict[Stage, float] = defaultdict(float)
        for kind, stats in ran.items():
            if self._engine.of(kind).home is None or not stats.calls:
                continue
            if (stats.at_home > 0) is not (self.where(kind) is Where.GPU):
                return None
            if not stats.at_home:
                found[STAGE_OF[kind]] += stats.busy_s
        return found

    def _agree(self) -> None:
        """Take rank 0's decision; without one, what was decided last stays."""
        if not self._meetings.possible:
            self._tell("several ranks without torch.distributed cannot agree on where passes run: all stay on the gpu")
            return
        own = self._decided() if self._first else None
        word = self._meetings.broadcast(None if own is None else asdict(own))
        if word is None:
            self._tell("there was no decision on where passes run: the last one stays")
            return
        plan = {Stage(stage): Where(where) for stage, where in word["plan"].items()}
        self._take(Placement(plan=plan, reason=str(word["reason"])))

    @never_raises
    def _decided(self) -> Placement | None:
        self.meter.settle()
        return self._placements.decide(self.placement.plan, self._tokens, self.meter)

    def _take(self, new: Placement) -> None:
        moved = label(new.plan) != label(self.placement.plan)
        self.placement = new
        log.log(logging.INFO if moved else logging.DEBUG, "step %d: %s", self._steps, new.reason)
        run = None if self._session is None else self._session.active()
        if run is not None and moved:
            run.event("offload", new.reason, step=self._steps, plan=dict(new.plan))

    def _full(self) -> bool:
        """Return True if the queue of the device takes no more; while placements are tried it takes all."""
        most = self.settings.queue_max
        return most is not None and not self.profiling and self._desk.at_devices() >= most
