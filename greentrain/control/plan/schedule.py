"""The plan of a training job: who decides when, and what all ranks then do.

::

    Measuring --action table there--> Resting --idle power known--> Deciding --all tokens done--> Over
        |  (declared table: at once)      (only where this process pauses)  |   ^
        |                                                                   v   |
        +-- the training's own steps                                      Paused

Rank 0 decides every ``policy.decide_s``, at the end of an optimizer step, whether to rest, and what to do; all ranks do
it after the same step some steps later, or not at all (:class:`SyncSchedule`). Every other step costs one comparison.
Nothing here raises once training runs.

A checkpoint keeps what a plan has learned (:class:`PlanFacts`): what actions cost at each width, and what a resting
rank draws.

A pause (:class:`Pause`) holds the process still between two of its steps. Everything stays in memory, so it ends in
the step that would have come next. Sensors go on being read and booked by their own thread, in the phase ``paused``. A
SIGCONT, or :meth:`Pause.wake` from another thread, ends it at once; a SIGTERM ends the process as it would have in a
step.
"""

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import FrameType
from typing import Any, Final, Protocol

from greentrain.carbon.replayed import GridTime
from greentrain.config.schema import GreenConfig, WidthConfig
from greentrain.control.coordination import RankZeroChannel, SyncSchedule, Words
from greentrain.control.launcher_protocol import Offer
from greentrain.control.plan.planner import (
    GRAMS,
    CostAim,
    GridOutlook,
    Overhead,
    PlanMessage,
    PlannedJob,
    Planner,
    or_none,
    plan_document,
)
from greentrain.control.profiling.profiler import SLACK_SHARE
from greentrain.ledger.active_run import ActiveRun
from greentrain.ledger.run_folder import PLAN
from greentrain.policy.action_table import Action, ActionCost, ActionTable, MeanWithCI
from greentrain.policy.menu import Menu
from greentrain.policy.registry import caution, open_schedule
from greentrain.types import S_PER_HOUR, CarbonSignal, Gear, Phase, PriceSignal

log = logging.getLogger(__name__)

LOOK_S: Final = 0.25
"""Longest sleep at a stretch (s): how late a word of another rank, or of another thread, is heard."""


class Pause:
    """Holds the training thread until somebody says that it goes on.

    Args:
        free_cache: Give the memory that torch holds in reserve on the GPU back to the driver meanwhile.
    """

    def __init__(self, *, free_cache: bool = False) -> None:
        self._free_cache = free_cache
        self._woken = threading.Event()

    def wake(self) -> None:
        """End the pause at the next look, from any thread."""
        self._woken.set()

    def hold(self, done: Callable[[], bool]) -> bool:
        """Block until ``done`` says so, or until somebody wakes the process.

        Args:
            done: Asked every LOOK_S.

        Returns:
            True if it was woken.
        """
        if self._free_cache:
            _empty_cuda_cache()
        self._woken.clear()
        with self._listening():
            while not self._woken.is_set():
                if done():
                    return False
                time.sleep(LOOK_S)  # a signal's handler runs in the middle of it
        return True

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """Listen to SIGCONT; signals only reach the main thread."""
        number = getattr(signal, "SIGCONT", None)  # Windows has none
        if number is None or threading.current_thread() is not threading.main_thread():
            yield
            return
        before: Any = signal.getsignal(number)

        def woken(signum: int, frame: FrameType | None) -> None:
            self._woken.set()
            if callable(before):
                before(signum, frame)

        signal.signal(number, woken)
        try:
            yield
        finally:
            if signal.getsignal(number) is woken:
                signal.signal(number, signal.SIG_DFL if before is None else before)


def _empty_cuda_cache() -> None:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    try:
        torch.cuda.empty_cache()
    except Exception as error:
        log.warning("GreenTrain: the GPU's cache could not be freed: %r", error)


class Actors(Protocol):
    """What the plan acts through."""

    def follow(self, action: Action, reason: str) -> None:
        """Use gear and power limit of an action from now on."""

    def can(self, action: Action) -> bool:
        """Return whether this process can use gear and power limit of an action."""

    @property
    def offer(self) -> Offer | None:
        """What the launcher can do; None: nothing."""

    def leave(self, ranks: int, not_before_unix_s: float | None, reason: str) -> None:
        """Ask for a checkpoint after this step, and leave when it is written."""

    def vetoes(self) -> Mapping[Gear, str]:
        """Return the gears that must not be used now, and why."""

    def measure(self, steps: float, slack: Callable[[float], float]) -> None:
        """Measure what every action costs in the coming ones of the job's steps; ``Schedule.use`` gets the table.

        Args:
            steps: Optimizer steps of the job.
            slack: Returns the time before the deadline that the job would not need at so many seconds a step (s).
        """

    @property
    def measuring(self) -> bool:
        """Whether that goes on in this step."""


class Host(Protocol):
    """The part of a session that acting needs."""

    def active(self) -> ActiveRun | None:
        """Return the run, None where there is none in this process."""

    def mark(self, name: str, *what: Any) -> float:
        """Queue a mark of this moment and return its time (s)."""

    def begin(self, name: str) -> int:
        """Enter a phase."""

    def end(self, name: str, token: int = 0) -> None:
        """Leave a phase."""

    def energy(self, t0_s: float, t1_s: float, wait_s: float = 0.0) -> Mapping[str, float] | None:
        """Return joules by device between two times."""


@dataclass(slots=True)
class PlanFacts:
    """Facts of one job on its devices, over all its attempts."""

    idle_w: float | None = None
    """Power of one rank that is held and does not work (W); None: not measured."""
    tables: dict[int, ActionTable] = field(default_factory=dict)
    """What was measured, by number of ranks."""

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> "PlanFacts":
        """Return what :meth:`to_dict` wrote; what cannot be read is measured again."""
        tables = {}
        for ranks, data in (state.get("tables") or {}).items():
            with suppress(ValueError):
                tables[int(ranks)] = ActionTable.from_dict(data)
        idle_w = state.get("idle_w")
        return cls(idle_w=None if idle_w is None else float(idle_w), tables=tables)

    def to_dict(self) -> dict[str, Any]:
        """Return the facts in plain JSON types."""
        return {"idle_w": self.idle_w, "tables": {str(n): table.to_dict() for n, table in self.tables.items()}}

    def table(self, ranks: int, gears: Sequence[str]) -> ActionTable | None:
        """Return what was measured at a width; None where one of the gears is not in it."""
        table = self.tables.get(ranks)
        known = () if table is None else {str(action.gear) for action in table.actions}
        return table if set(gears).issubset(known) else None

    def at_widths(self, table: ActionTable, ranks: int, widths: Sequence[int]) -> ActionTable:
        """Return the actions of a table at several widths.

        Widths that the table names itself stay as they are. A width that no attempt has had yet is taken from the
        nearest one by proportion, labelled ``assumed``: too good where ranks wait for each other, so that a plan tries
        it and then knows better.

        Args:
            table: Table of costs at the width of this attempt.
            ranks: Number of ranks of this attempt.
            widths: All that may be used.
        """
        if any(cost.action.ranks is not None for cost in table.costs):
            return table
        known = {**self.tables, ranks: table}
        costs: list[ActionCost] = []
        for width in widths:
            nearest = min(known, key=lambda n: (abs(n - width), n))
            costs += [_at(cost, width, width / nearest) for cost in known[nearest].costs]
        return replace(table, costs=tuple(costs), world_size=max(widths))


def _at(cost: ActionCost, ranks: int, times: float) -> ActionCost:
    action = Action(gear=cost.action.gear, cap=cost.action.cap, ranks=ranks)
    if times == 1.0:
        return replace(cost, action=action)
    return replace(
        cost,
        action=action,
        steps_per_s=_times(cost.steps_per_s, times),
        tokens_per_s=_times(cost.tokens_per_s, times),
        samples_per_s=_times(cost.samples_per_s, times),
        power_w=_times(cost.power_w, times),
        provenance="missing" if cost.power_w is None else "assumed",
        steps=0,
        blocks=0,
    )


def _times(estimate: MeanWithCI | None, times: float) -> MeanWithCI | None:
    return None if estimate is None else MeanWithCI(mean=estimate.mean * times)


def widths_of(
    width: WidthConfig | None, offer: Offer | None, ranks: int, warn: Callable[[str], None]
) -> tuple[int, ...]:
    """Return the widths that the launcher can bring about, that of this attempt among them, ascending.

    Args:
        width: Section ``actuators.width``.
        offer: Offer of what the launcher can do; None: nothing.
        ranks: Number of ranks of this attempt.
        warn: Called with a sentence where the launcher and the job disagree.
    """
    if width is None or offer is None:
        return (ranks,)
    if offer.ranks != ranks:
        warn(
            f"the launcher was to start {offer.ranks} ranks, and there are {ranks}: the number of ranks is"
            " left alone; check how the command starts its processes (on a CPU, accelerate needs a --config_file"
            " for several)"
        )
        return (ranks,)
    return tuple(sorted({ranks, *(n for n in width.widths if offer.min_ranks <= n <= offer.max_ranks)}))


SENSORS_S: Final = 4.0
"""How long to wait for the sensors to report a rest (s)."""


def rest(host: Host, rest_s: float, changes: Callable[[float], object]) -> tuple[float, float]:
    """Hold this rank still and return the times (s) between which its power is that of a resting one.

    Args:
        host: The session, which marks the phase.
        rest_s: Length of the rest (s); the first half is for clocks to fall.
        changes: Called with each time (s) at which power changes.
    """
    token = host.begin(Phase.PAUSED)
    changes(time.monotonic())
    time.sleep(rest_s / 2)
    t0_s = time.monotonic()
    changes(t0_s)
    time.sleep(rest_s / 2)
    t1_s = time.monotonic()
    host.end(Phase.PAUSED, token)
    changes(t1_s)
    return t0_s, t1_s


REST_S: Final = 6.0
"""How long all ranks rest, once, to learn what a paused one draws (s): the first half is for clocks to fall."""


class Schedule:
    """Follows a plan in one training process.

    Args:
        config: The checked configuration; ``policy`` plans.
        run: The run.
        signal: Carbon intensity in the grid's own time.
        grid_time: Clock that maps the machine's time to the grid's.
        price: Price of electricity in the grid's own time; None: nobody says.
        host: The session.
        actors: Actors that the plan acts through: the controller.
        declared: A table that was declared; None: measure one.
        unix_s: Time of the day, by which the grid is dated (s); None: the run's.
        elapsed_s: Time that never jumps, by which training is measured (s); None: the run's.
        state: State of an earlier part of the run.
        tokens: Tokens that all ranks have trained in it.
    """

    def __init__(
        self,
        config: GreenConfig,
        *,
        run: ActiveRun,
        signal: CarbonSignal,
        grid_time: GridTime,
        price: PriceSignal | None = None,
        host: Host,
        actors: Actors,
        declared: ActionTable | None,
        unix_s: Callable[[], float] | None = None,
        elapsed_s: Callable[[], float] | None = None,
        state: Mapping[str, Any] | None = None,
        tokens: float = 0.0,
    ) -> None:
        assert config.policy.tokens is not None and config.policy.deadline_h is not None
        self._config, self._run, self._host, self._actors = config, run, host, actors
        self._unix_s = unix_s or run.unix_s
        self._elapsed_s = elapsed_s = elapsed_s or run.monotonic_s
        self._time = grid_time
        self._ranks = run.topology.world_size
        self._first = run.topology.rank == 0
        channel = RankZeroChannel(run.run_id, run.topology)
        self._pause = Pause(free_cache=config.actuators.free_cache)
        start_s = float((state or {}).get("start_s", grid_time.grid_s))
        self.job = PlannedJob(
            tokens=config.policy.tokens,
            start_s=start_s,
            deadline_s=start_s + config.policy.deadline_h * S_PER_HOUR,
        )
        overhead = Overhead.of(run.facility, self.job.start_s, self.job.deadline_s)
        self._grid = GridOutlook(signal, overhead, CostAim.of(config, price))
        self.tokens = tokens
        """Tokens that all ranks have trained, earlier parts included; as many on each rank."""
        self.checkpoint_due = False
        """True for one step before a pause: what is in memory should go to the disk."""
        self.planner: Planner | None = None
        """Who decides; on rank 0, once there is a table."""
        self._message: PlanMessage | None = None
        self._sync = SyncSchedule(channel, elapsed_s, run.warn)
        self._table: ActionTable | None = None
        self._rested: tuple[float, float] | None = None
        self._heard: Mapping[str, Any] | None = None
        self._pausing = self._closed = self._again = False
        self._pausable, self._weigh_s, self._per_step = True, 0.0, 0.0
        self._at = (0, self.tokens, elapsed_s())
        self._past: list[float | None] = []
        self._over = self._sync.over
        self._known = PlanFacts.from_dict(state or {})
        table = declared or self._known.table(self._ranks, config.precision.gears)
        if not self._over:
            self._table = table
        self._measured = self._over or table is not None

    # -- called by the training ----------------------------------------------------------------------------------

    def stepped(self, tokens: float) -> None:
        """Note the end of an optimizer step, on every rank; now and then, decide.

        Args:
            tokens: Tokens that all ranks have trained until now, earlier parts included.
        """
        done, self.tokens = tokens - self.tokens, tokens
        self._per_step = self._per_step or max(1.0, done)
        if not self._measured:
            self._measured = True
            self._actors.measure(self.job.tokens / self._per_step, self._slack_s)
        if self._pausing or self._over or self._actors.measuring:
            self._sync.steps += 1
            if self._pausing:
                self._hold()  # the step that was asked for a checkpoint is done
        elif (said := self._sync.stepped(self._say)) is not None:
            self._do(said)

    def _slack_s(self, step_s: float) -> float:
        """Return the time before the deadline that the job would not need at so many seconds a step (s)."""
        end_s = self._time.real(self.job.deadline_s - self._config.policy.margin_s)
        return end_s - self._unix_s() - max(0.0, self.job.tokens - self.tokens) / self._per_step * step_s

    def use(self, table: ActionTable) -> None:
        """Plan with a table, on rank 0, from now on."""
        self._table = table
        self._known.tables[self._ranks] = table

    def give_up(self) -> None:
        """Nobody knows what actions cost: without a table there is no plan, on any rank."""
        if self.planner is None and not self._over:
            self._over = True
            self._run.warn("what gears cost was not measured on all ranks, so there is no plan")
            self._sync.close()

    def _say(self) -> Words:
        """Return what rank 0 tells all ranks, None for nothing, and after how many steps it looks again."""
        if self._table is not None:
            if self._wants_rest and self._rested is None:
                paces = [cost.steps_per_s.mean for cost in self._table.costs if cost.steps_per_s]
                if not paces or SLACK_SHARE * self._slack_s(1.0 / max(paces)) >= REST_S:
                    return {"rest": REST_S}, 1
                self._pausable = False
                self._run.warn("the deadline leaves no time to learn what a paused rank draws: the plan has no pauses")
            if self._wants_rest and not self._weigh_rest():
                return None, 1
            table, self._table = self._table, None
            self._open(table)
        message = None
        if self.planner is not None and self._due():
            message = self._decide()
        newest = message or self._message
        steps = 1 if newest is None else self._sync.steps_until(self._elapsed_at(newest.next_s))
        return None if message is None else {"message": message.to_dict()}, steps

    @property
    def _wants_rest(self) -> bool:
        """Whether somebody has to find out what a paused rank draws."""
        known = self._config.policy.idle_w is not None or self._known.idle_w is not None
        return self._config.actuators.pause and not self._config.policy.released and not known and self._pausable

    def _weigh_rest(self) -> bool:
        """Return whether the sensors have told what a resting rank draws, or are not waited for any more."""
        assert self._rested is not None
        t0_s, t1_s = self._rested
        if time.monotonic() < self._weigh_s:
            return False
        self._weigh_s = time.monotonic() + LOOK_S
        joules = self._host.energy(t0_s, t1_s)
        if joules:
            self._known.idle_w = sum(joules.values()) / (t1_s - t0_s)
        elif time.monotonic() > t1_s + SENSORS_S:  # rank 0 books what others leave to it, so no device is no answer
            self._pausable = False
            self._run.warn("nobody knows what a paused rank draws, so the plan has no pauses: set policy.idle_w (W)")
        else:
            return False
        return True

    def _open(self, table: ActionTable) -> None:
        pausable = self._config.actuators.pause and self._pausable
        idle_w = self._config.policy.idle_w if self._config.policy.idle_w is not None else self._known.idle_w
        held = pausable and not self._config.policy.released
        self.planner = self._planner(table, idle_w, pausable, held=held)
        self._run.know(plan=self._facts())
        if self._grid.unit == GRAMS:  # of money there is no bound in grams
            self._run.leave(PLAN, self.planner.certificate(self._unix_s(), self.tokens))
        caution_text = caution(self._config.policy)
        if caution_text:
            self._run.warn(caution_text)
        self._mark_time()

    def _planner(self, table: ActionTable, idle_w: float | None, pausable: bool, *, held: bool) -> Planner:
        widths, offer = self._widths, self._actors.offer
        if len(widths) > 1:
            table = self._known.at_widths(table, self._ranks, widths)
        menu = Menu.of(
            table, released=not held, idle_w=idle_w, wanted=lambda action: self._can_do(action) and table.better(action)
        )
        policy = self._config.policy
        if not policy.switch_s and offer is not None and offer.resize_s is not None and len(widths) > 1:
            policy = replace(policy, switch_s=offer.resize_s * self._time.speed)
        return Planner(
            policy,
            job=self.job,
            time=self._time,
            grid=self._grid,
            menu=menu.with_fp8_share(self._config.precision.fp8_max_share),
            make=lambda scaled: open_schedule(policy, scaled),
            pausable=pausable,
            ranks=self._ranks,
        )

    def wake(self) -> None:
        """End a pause by hand, from any thread."""
        self._pause.wake()

    def decide_again(self) -> None:
        """Decide at rank 0's next look, from any thread: what may be used has changed."""
        self._again = True
        self._sync.look_now()

    def close(self) -> None:
        """The run is over: tell it what the plan knew. Idempotent."""
        self._closed = True
        self._pause.wake()
        if self.planner is not None:
            self._run.know(plan=self._facts())
        self._over = True
        self._sync.close()

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint must hold, in plain JSON types."""
        return {"start_s": self.job.start_s, **self._known.to_dict()}

    # -- what the plan rests on ------------------------------------------------------------------------------------

    @property
    def _widths(self) -> tuple[int, ...]:
        return widths_of(self._config.actuators.width, self._actors.offer, self._ranks, self._run.warn)

    def _can_do(self, action: Action) -> bool:
        """Return whether this process, or its launcher, can do an action."""
        return self._actors.can(action) and action.ranks in (None, *self._widths)

    def _facts(self) -> dict[str, Any]:
        assert self.planner is not None
        if not self._past:
            self._past = or_none(self._grid.past(self.job.start_s))
        return plan_document(
            self.planner,
            policy=self._config.policy.name,
            grid=self._grid,
            past=self._past,
            tokens=self.tokens,
        )

    # -- inside --------------------------------------------------------------------------------------------------

    def _due(self) -> bool:
        """Return whether it is time to decide; rank 0's answer counts."""
        return self._again or self._message is None or self._sync.is_due(self._elapsed_at(self._message.next_s))

    def _elapsed_at(self, grid_s: float) -> float:
        """Return when a time of the grid comes, as things are now, in the time that never jumps (s)."""
        return self._elapsed_s() + self._time.real(grid_s) - self._unix_s()

    def _decide(self, awake: bool = False) -> PlanMessage | None:
        """Return the decision of rank 0; None on the others."""
        self._again = False
        if self.planner is None:
            return None
        action = None if self._message is None else self._message.action
        if action is not None and action.ranks not in (None, self._ranks):
            self.planner.stayed(replace(action, ranks=self._ranks))
        self._observe()
        message = self.planner.decide(self._unix_s(), self.tokens, vetoed=self._actors.vetoes(), awake=awake)
        return replace(message, away=self._is_worth_leaving(message))

    def _observe(self) -> None:
        """Tell the planner what was trained since the last time."""
        steps, tokens, since_s = self._at
        if self.planner is not None and self._sync.steps > steps:
            self.planner.observe(self.tokens - tokens, self._elapsed_s() - since_s)
        self._mark_time()

    def _mark_time(self) -> None:
        self._sync.restart()
        self._at = (self._sync.steps, self.tokens, self._elapsed_s())

    def _do(self, said: Mapping[str, Any]) -> None:
        """Do what rank 0 has said, on every rank after the same step."""
        if "rest" in said:
            self._rested = rest(self._host, said["rest"], self._run.changes)
            self._mark_time()
        else:
            self._follow(PlanMessage.from_dict(said["message"]))

    def _follow(self, message: PlanMessage) -> None:
        """Do what was decided."""
        before, self._message = self._message, message
        self._report(before, message)
        if message.done:
            self._over = True
        elif message.action is not None:
            self._actors.follow(message.action, message.reason)
            if message.action.ranks not in (None, self._ranks):
                self._actors.leave(message.action.ranks or self._ranks, None, f"{message.action}: {message.reason}")
        else:
            self._pausing = True
            if message.away:
                not_before = None if message.resume_s is None else self._time.real(message.resume_s)
                self._actors.leave(message.resume_ranks or self._ranks, not_before, f"off: {message.reason}")
            self.checkpoint_due = message.away or self._config.actuators.checkpoint
            if not self.checkpoint_due:
                self._hold()

    def _is_worth_leaving(self, message: PlanMessage) -> bool:
        """Return whether a pause is long enough to end the process, and somebody starts it again."""
        offer = self._actors.offer
        if offer is None or not offer.can_wait or not self._config.actuators.defer or message.resume_s is None:
            return False
        return message.resume_s - message.grid_s >= self._config.actuators.min_away_s

    def _hold(self) -> None:
        """Stay between two steps until the plan, or somebody, says that it goes on."""
        self.checkpoint_due = False
        self._observe()
        token, said = self._host.begin(Phase.PAUSED), None
        self._run.changes(time.monotonic())
        try:
            while said is None and not (self._closed or self._sync.over):
                said = self._hold_on(self._pause.hold(self._look))
        finally:
            self._pausing = False
            self._host.end(Phase.PAUSED, token)
            self._run.changes(time.monotonic())
        self._mark_time()
        if said is not None:
            self._do(said)

    def _look(self) -> bool:
        """Return whether there is something to decide or to hear."""
        if not self._first and self._heard is None:
            self._heard = self._sync.hear()
        return self._closed or self._sync.over or (self._due() if self._first else self._heard is not None)

    def _hold_on(self, woken: bool) -> Mapping[str, Any] | None:
        """Return what ends the pause, None where it goes on."""
        if self._closed or not self._first:
            heard, self._heard = self._heard, None
            return heard
        try:
            message = self._decide(awake=woken)
        except Exception:
            self._sync.close()
            raise
        if message is None or (message.action is None and not message.done):
            before, self._message = self._message, message or self._message
            if message is not None:
                self._report(before, message)
            return None
        said = {"message": message.to_dict()}
        self._sync.say(said, self._sync.steps_until(self._elapsed_at(message.next_s)))
        return said

    def _report(self, before: PlanMessage | None, message: PlanMessage) -> None:
        if not self._first:
            return
        name = "off" if message.action is None else str(message.action)
        self._run.event(
            "decision", f"{name}: {message.reason}", **message.to_dict(), step=self._sync.steps, tokens=self.tokens
        )
        if before is None or before.action != message.action:
            moment = datetime.fromtimestamp(message.grid_s, UTC)
            log.info("%s UTC, step %d: %s. %s", f"{moment:%H:%M}", self._sync.steps, name, message.reason)
