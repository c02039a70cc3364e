"""Where each pass runs, decided while the training runs.

    scheduler = StageScheduler(engine, EdiRule(), session)
    for prompts in loader:
        with scheduler.stage(Stage.GENERATE): ...
        rewards = scheduler.submit(PassKind.REWARD, batch)       # a ticket, as the engine's
        reference = scheduler.submit(PassKind.REFERENCE, batch)
        with scheduler.stage(Stage.TRAIN): ...                   # asks for the results where it needs them
        scheduler.step_end(tokens=output_tokens)

First every placement of every pass is tried in turn. Then, every so many steps, the policy decides from what was
measured, and the plan changes at that step's end, on all ranks alike. A pass that stays on the GPU runs at the engine's
home. Between two decisions a batch whose sequences are longer than the window allows goes home by itself: that is the
rank's own affair, as its results are the same (or, at a home that is not exact, differ as documented).
"""

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from greentrain.control.coordination import RankZeroChannel
from greentrain.errors import ConfigError
from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.batch import Batch
from greentrain.policy.offload.edi import EdiMatrix
from greentrain.policy.offload.rule import EdiRule
from greentrain.policy.offload.stages import Plan, Stage, Where, label
from greentrain.policy.offload.view import OffloadPolicy
from greentrain.rlhf.edi_meter import EdiMeter, EnergySource, SessionEnergy, StepRecord, Window
from greentrain.rlhf.engine import OffloadEngine
from greentrain.rlhf.frozen_pass import FrozenPass
from greentrain.rlhf.kinds import PassKind, Place
from greentrain.rlhf.lengths import LengthTimes
from greentrain.rlhf.placement import Placement, Placements, SchedulerSettings
from greentrain.rlhf.stats import PassStats
from greentrain.rlhf.ticket import Ticket, Watched
from greentrain.session.session import GreenSession
from greentrain.utils.never_raise import never_raises, once, warn
from greentrain.utils.topology import current_topology

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
        engine: Runs the passes. To find the device's best micro-batch as well, give its passes a ``part_size``.
        policy: Decides; None: ``EdiRule()``.
        session: Measures the GPU's side; without it no joules are known, and nothing leaves the GPU for their sake.
        settings: How it measures and decides.
        energy: Where joules come from, in the place of ``session``.
        meetings: How rank 0 tells the others; None: over torch.distributed, if there is a process group.

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
        self._session = session
        movable = tuple({STAGE_OF[kind] for kind, what in engine.passes.items() if what.home is not None})
        self._placements = Placements(movable, policy or EdiRule(), self.settings)
        devices = {id(what.device.device): what.device.device for what in engine.passes.values()}
        source = energy if energy is not None else SessionEnergy(session, list(devices.values()))
        self._meter = EdiMeter(source, self._placements.matrix, self.settings.shape.cards)
        source.read()
        place = current_topology()
        self._first = place.rank == 0
        self._meetings = meetings or RankZeroChannel("rlhf/offload", place)
        self._tell = once(warn)
        self._times = {(kind, place): LengthTimes() for kind in engine.passes for place in Place}
        self._placement = Placement(plan=self._placements.gpu, reason="nothing was measured yet")
        self._steps = 0
        self._plan = self._placements.trial(0) or self._placement.plan
        self._windows: list[Window] = []
        self.restart()
        self._sent_home: set[PassKind] = set()
        self._tokens = 0.0
        self._taken: dict[Stage, float] = {}  # tokens that a stage's passes take, for each output token

    # What an engine has

    @property
    def passes(self) -> Mapping[PassKind, FrozenPass]:
        """As the engine's."""
        return self._engine.passes

    def of(self, kind: PassKind) -> FrozenPass:
        """As the engine's."""
        return self._engine.of(kind)

    def stats(self) -> Mapping[PassKind, PassStats]:
        """As the engine's."""
        return self._engine.stats()

    def replace(self, kind: PassKind, artifact: Artifact) -> None:
        """As the engine's."""
        self._engine.replace(kind, artifact)

    # What a training calls

    def where(self, what: Stage | PassKind) -> Where:
        """Return where a stage, or a pass, runs in this step."""
        if isinstance(what, PassKind) and self._engine.of(what).home is None:
            return Where.CONCURRENT
        return self._plan.get(STAGE_OF[what] if isinstance(what, PassKind) else what, Where.GPU)

    def submit(
        self, kind: PassKind, batch: Batch, *, at: Place = Place.DEVICE, sequential: bool | None = None
    ) -> Ticket:
        """Hand in a batch, as ``OffloadEngine.submit`` does, where the plan puts it.

        Args:
            kind: Of the pass.
            batch: Finished rollouts.
            at: DEVICE: where the plan says; HOME: there in any case.
            sequential: True: wait here in any case; otherwise as the plan says.

        Raises:
            OffloadError: As ``OffloadEngine.submit``.
        """
        where = self.where(kind)
        if self._engine.of(kind).home is None:
            return self._engine.submit(kind, batch, at=at, sequential=sequential)
        home = at is Place.HOME or where is Where.GPU or bool(self._too_long(kind, batch))
        place = Place.HOME if home else Place.DEVICE
        waits = bool(sequential) or home or where is Where.SEQUENTIAL
        begun_s = time.monotonic()
        ticket = self._engine.submit(kind, batch, at=place, sequential=waits)
        self._window(STAGE_OF[kind], begun_s, waits=not home)
        times = self._times[kind, place]
        return Watched(
            ticket,
            waited=lambda t0_s: self._window(STAGE_OF[kind], t0_s, waits=True),
            ran=lambda run_s: times.add(batch, run_s),
        )

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
        self._plan = self._placements.trial(self._steps) or self._placement.plan
        self.restart()

    def restart(self) -> None:
        """Begin the step anew: what ran since the last one ended was an evaluation or a checkpoint."""
        self._windows.clear()
        self._before = self._engine.stats()
        self._begun_s = time.monotonic()

    # What is known

    @property
    def plan(self) -> Plan:
        """What is in force in this step; while placements are tried, a trial."""
        return dict(self._plan)

    @property
    def placement(self) -> Placement:
        """The last decision, with its reason."""
        return self._placement

    @property
    def profiling(self) -> bool:
        """True while this step tries a placement."""
        return self._placements.trial(self._steps) is not None

    @property
    def edi(self) -> EdiMatrix:
        """The Energy Density Index so far."""
        return self._placements.matrix

    @property
    def meter(self) -> EdiMeter:
        """Where it is measured."""
        return self._meter

    # Inside

    def _window(self, stage: Stage, begun_s: float, *, waits: bool) -> None:
        self._windows.append(Window(stage=stage, t0_s=begun_s, t1_s=time.monotonic(), waits=waits))

    @never_raises
    def _book(self, tokens: float) -> None:
        now_s = time.monotonic()
        self._tokens = tokens if not self._tokens else self._tokens + self.settings.alpha * (tokens - self._tokens)
        if self._steps < self.settings.warmup_steps:
            return
        self._take_tokens(tokens)
        offload_s = self._offload_s()
        if offload_s is None:
            return
        self._placements.ran(self._plan, now_s - self._begun_s, tokens)
        if not any(window.stage is Stage.TRAIN for window in self._windows):
            self._windows.append(Window(stage=Stage.TRAIN, t0_s=now_s, t1_s=now_s))
        self._meter.add(
            StepRecord(t0_s=self._begun_s, t1_s=now_s, tokens=tokens, windows=tuple(self._windows), offload_s=offload_s)
        )

    def _take_tokens(self, tokens: float) -> None:
        taken: dict[Stage, float] = {}
        for kind, stats in self._engine.stats().items():
            more = stats.tokens - self._before.get(kind, PassStats()).tokens
            taken[STAGE_OF[kind]] = taken.get(STAGE_OF[kind], 0.0) + more / tokens
        for stage, ratio in taken.items():
            old = self._taken.get(stage, ratio)
            self._taken[stage] = old + self.settings.alpha * (ratio - old)

    def _offload_s(self) -> dict[Stage, float] | None:
        """Return how long devices computed in this step; None if something ran elsewhere than planned."""
        found: dict[Stage, float] = {}
        for kind, stats in self._engine.stats().items():
            before = self._before.get(kind, PassStats())
            if self._engine.of(kind).home is None or stats.calls == before.calls:
                continue
            at_home = stats.at_home - before.at_home
            if (at_home > 0) is not (self.where(kind) is Where.GPU):
                return None
            if not at_home:
                found[STAGE_OF[kind]] = found.get(STAGE_OF[kind], 0.0) + stats.busy_s - before.busy_s
        return found

    def _agree(self) -> None:
        """Take rank 0's decision; without one, what was decided last stays."""
        if not self._meetings.possible:
            self._tell("several ranks without torch.distributed cannot agree on where passes run: all stay on the gpu")
            return
        own = self._decided() if self._first else None
        word = self._meetings.share(None if own is None else own.to_json())
        if word is None:
            self._tell("there was no decision on where passes run: the last one stays")
            return
        self._take(Placement.from_json(word))

    @never_raises
    def _decided(self) -> Placement | None:
        self._meter.settle()
        return self._placements.decide(self._placement.plan, self._tokens, self._meter)

    def _take(self, new: Placement) -> None:
        moved = label(new.plan) != label(self._placement.plan)
        self._placement = new
        self._sent_home.clear()
        log.log(logging.INFO if moved else logging.DEBUG, "step %d: %s", self._steps, new.reason)
        run = None if self._session is None else self._session.active()
        if run is not None and moved:
            run.event("offload", new.reason, step=self._steps, plan=new.to_json()["plan"])

    @never_raises
    def _too_long(self, kind: PassKind, batch: Batch) -> bool:
        """Return True if the sequences are too long for the window of the plan."""
        limit = self._placement.limits.get(STAGE_OF[kind])
        if limit is None or self.profiling:
            return False
        expected, each = self._times[kind, Place.DEVICE].s_per_token(batch), self._taken.get(STAGE_OF[kind])
        if expected is None or not each or expected * each <= limit:
            return False
        if kind not in self._sent_home:
            self._sent_home.add(kind)
            log.info(
                "step %d: %s on gpu: a batch of up to %d tokens a sequence would take %.3g s on the device; the window "
                "for it is %.3g s",
                self._steps,
                kind,
                max(len(row) for row in batch.ids),
                expected * batch.tokens,
                limit / each * batch.tokens,
            )
        return True
