"""The plan of a training job: who decides when, and what all ranks then do.

::

    Measuring --action table there--> Resting --idle power known--> Deciding --all tokens done--> Over
        |  (declared table: at once)      (only where this process pauses)  |   ^
        |                                                                   v   |
        +-- the training's own steps                                      Paused

Rank 0 decides every ``policy.decide_s``, at the end of an optimizer step; the others hear of it at a step on which all
have agreed the time before, so that every other step costs one comparison. Nothing here raises once training runs.

Numbers of ranks that a plan may choose from.

What a rank draws while it rests between two steps, measured once.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from greentrain.carbon.replayed import GridTime
from greentrain.config.schema import GreenConfig, WidthConfig
from greentrain.control.actuators.pause import PHASE, Pause
from greentrain.control.coordination import RankZeroChannel, SyncSchedule
from greentrain.control.interfaces import Actors
from greentrain.control.launcher_protocol import Offer
from greentrain.control.plan.facts import PlanFacts
from greentrain.control.plan.grid_outlook import GridOutlook, Overhead
from greentrain.control.plan.planner import PlanMessage, PlannedJob, Planner, or_none, plan_document
from greentrain.ledger.active_run import ActiveRun
from greentrain.policy.action_table import Action, ActionTable
from greentrain.policy.menu import Menu
from greentrain.policy.registry import caution, open_schedule
from greentrain.types import S_PER_HOUR, CarbonSignal


def widths_of(
    width: WidthConfig | None, offer: Offer | None, ranks: int, warn: Callable[[str], None]
) -> tuple[int, ...]:
    """Return the widths that the launcher can bring about, that of this attempt among them, ascending.

    Args:
        width: Section ``actuators.width``.
        offer: What the launcher can do; None: nothing.
        ranks: Of this attempt.
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


def measure_idle_power_w(actors: Actors, rest_s: float, *, books_all: bool) -> float | None:
    """Return what this rank draws while it rests (W); None where no sensor says.

    Args:
        actors: Mark the phase and read the sensors.
        rest_s: How long (s); the first half is for clocks to fall.
        books_all: The rank books what others leave to it, so without a device nothing is known.
    """
    token = actors.begin(PHASE)
    time.sleep(rest_s / 2)
    t0_s = time.monotonic()
    time.sleep(rest_s / 2)
    t1_s = time.monotonic()
    actors.end(PHASE, token)
    joules = actors.energy(t0_s, t1_s, SENSORS_S)
    if joules is None or (books_all and not joules):  # the others' devices may be booked by rank 0
        return None
    return sum(joules.values()) / (t1_s - t0_s)


log = logging.getLogger(__name__)

REST_S: Final = 6.0
"""How long all ranks rest, once, to learn what a paused one draws (s): the first half is for clocks to fall."""


class Schedule:
    """Follows a plan in one training process.

    Args:
        config: The checked configuration; ``policy`` plans.
        run: The run.
        signal: Carbon intensity in the grid's own time.
        grid_time: What the grid's time is.
        actors: What it acts through.
        declared: A table that was declared; None: measure one.
        unix_s: Time.
        state: Of an earlier part of the run.
        tokens: That all ranks have trained in it.
    """

    def __init__(
        self,
        config: GreenConfig,
        *,
        run: ActiveRun,
        signal: CarbonSignal,
        grid_time: GridTime,
        actors: Actors,
        declared: ActionTable | None,
        unix_s: Callable[[], float] = time.time,
        state: Mapping[str, Any] | None = None,
        tokens: float = 0.0,
    ) -> None:
        assert config.policy.tokens is not None and config.policy.deadline_h is not None
        self._config, self._run, self._actors, self._unix_s = config, run, actors, unix_s
        self._time = grid_time
        self._ranks = run.topology.world_size
        self._first = run.topology.rank == 0
        self._meetings = RankZeroChannel(run.run_id, run.topology)
        self._pause = Pause(free_cache=config.actuators.free_cache)
        start_s = float((state or {}).get("start_s", grid_time.grid_s))
        self.job = PlannedJob(
            tokens=config.policy.tokens,
            start_s=start_s,
            deadline_s=start_s + config.policy.deadline_h * S_PER_HOUR,
        )
        self._grid = GridOutlook(signal, Overhead.of(run.facility, self.job.start_s, self.job.deadline_s))
        self.tokens = tokens
        """Tokens that all ranks have trained, earlier parts included; as many on each rank."""
        self.checkpoint_due = False
        """True for one step before a pause: what is in memory should go to the disk."""
        self.planner: Planner | None = None
        """Who decides; on rank 0, once there is a table."""
        self._word: PlanMessage | None = None
        self._agenda = SyncSchedule(unix_s)
        self._table: ActionTable | None = None
        self._opened = self._pausing = self._closed = False
        self._at = (0, self.tokens, unix_s())
        self._past: list[float | None] = []
        self._over = not self._meetings.possible
        if self._over:
            run.warn(f"{self._ranks} ranks have no process group, so they cannot agree on a plan: there is none")
        self._known = PlanFacts.from_dict(state or {})
        table = declared or self._known.table(self._ranks, config.precision.gears)
        if not self._over:
            self._table = table
        self._measured = self._over or table is not None

    # -- called by the training ----------------------------------------------------------------------------------

    def stepped(self, tokens: float) -> None:
        """Note the end of an optimizer step, on every rank; now and then, decide.

        Args:
            tokens: That all ranks have trained until now, earlier parts included.
        """
        meeting = self._agenda.step()
        done, self.tokens = tokens - self.tokens, tokens
        if not self._measured:
            self._measured = True
            self._actors.measure(self.job.tokens / max(1, done))
        if self._table is not None:
            table, self._table = self._table, None
            self._open(table)
        elif meeting and self._opened and not self._over:
            self._boundary()

    def use(self, table: ActionTable) -> None:
        """Plan with a table from the end of this step on; called on every rank in the same step."""
        self._table = table
        self._known.keep(self._ranks, table)

    def _open(self, table: ActionTable) -> None:
        pausable = self._config.actuators.pause
        released = bool(self._config.policy.released)
        idle_w = self._config.policy.idle_w if self._config.policy.idle_w is not None else self._known.idle_w
        if pausable and not released and idle_w is None:
            idle_w = self._known.idle_w = measure_idle_power_w(self._actors, REST_S, books_all=self._first)
            if idle_w is None:
                pausable = False
                self._run.warn(
                    "nobody knows what a paused rank draws, so the plan has no pauses: set policy.idle_w (W)"
                )
        if self._first:
            with self._or_tell_the_end():
                self.planner = self._planner(table, idle_w, pausable, held=pausable and not released)
                self._run.know(plan=self._facts())
            told = caution(self._config.policy)
            if told:
                self._run.warn(told)
        self._opened = True
        self._mark_time()
        self._boundary()

    def _planner(self, table: ActionTable, idle_w: float | None, pausable: bool, *, held: bool) -> Planner:
        widths, offer = self._widths, self._actors.offer
        if len(widths) > 1:
            table = self._known.at_widths(table, self._ranks, widths)
        menu = Menu.of(table, released=not held, idle_w=idle_w, wanted=self._can_do)
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

    @contextmanager
    def _or_tell_the_end(self) -> Iterator[None]:
        """Let no rank wait for a word that rank 0 could not find: the plan ends on all of them."""
        try:
            yield
        except Exception:
            self._over = True
            self._meetings.share({"over": True})
            raise

    def wake(self) -> None:
        """End a pause by hand, from any thread."""
        self._pause.wake()

    def close(self) -> None:
        """The run is over: tell it what the plan knew. Idempotent."""
        self._closed = True
        self._pause.wake()
        if self.planner is not None:
            self._run.know(plan=self._facts())
        self._over = True

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

    def _boundary(self) -> None:
        if self._pausing:
            self._hold()  # the step that was asked for a checkpoint is done
        elif self._ranks > 1 or self._due():
            self._hear(self._meetings.share(self._word_of_now()))
        elif self._word is not None:
            self._agenda.meet_after(self._agenda.steps_until(self._time.real(self._word.next_s)))

    def _word_of_now(self) -> Mapping[str, Any] | None:
        """Return what rank 0 has to tell; None on the others."""
        if not self._first:
            return None
        with self._or_tell_the_end():
            return self._say(self._decide() if self._due() else None)

    def _due(self) -> bool:
        """Return whether it is time to decide; rank 0's answer counts."""
        return self._word is None or self._agenda.is_due(self._time.real(self._word.next_s))

    def _decide(self, awake: bool = False) -> PlanMessage | None:
        """Return the decision of rank 0; None on the others."""
        if self.planner is None:
            return None
        action = None if self._word is None else self._word.action
        if action is not None and action.ranks not in (None, self._ranks):
            self.planner.stayed(replace(action, ranks=self._ranks))
        self._observe()
        word = self.planner.decide(self._unix_s(), self.tokens, vetoed=self._actors.vetoes(), awake=awake)
        return replace(word, away=self._is_worth_leaving(word))

    def _observe(self) -> None:
        """Tell the planner what was trained since the last time."""
        steps, tokens, since_s = self._at
        if self.planner is not None and self._agenda.steps > steps:
            self.planner.observe(self.tokens - tokens, self._unix_s() - since_s)
        self._mark_time()

    def _mark_time(self) -> None:
        self._agenda.restart()
        self._at = (self._agenda.steps, self.tokens, self._unix_s())

    def _say(self, word: PlanMessage | None) -> dict[str, Any]:
        """Return what rank 0 tells: a decision or none, and how many steps from now all meet again."""
        newest = word or self._word
        steps = 1 if newest is None else self._agenda.steps_until(self._time.real(newest.next_s))
        return {"word": None if word is None else word.to_dict(), "steps": steps}

    def _hear(self, said: Mapping[str, Any] | None) -> None:
        if said is None:
            self._over = True
            self._run.warn("rank 0 said nothing at an agreed step, so this rank follows no plan any more")
            return
        if said.get("over"):
            self._over = True
            return
        self._agenda.meet_after(int(said["steps"]))
        if said["word"] is not None:
            self._follow(PlanMessage.from_dict(said["word"]))

    def _follow(self, word: PlanMessage) -> None:
        """Do what was decided."""
        before, self._word = self._word, word
        self._tell(before, word)
        if word.done:
            self._over = True
        elif word.action is not None:
            self._actors.follow(word.action, word.reason)
            if word.action.ranks not in (None, self._ranks):
                self._actors.leave(word.action.ranks or self._ranks, None, f"{word.action}: {word.reason}")
        else:
            self._pausing = True
            if word.away:
                not_before = None if word.resume_s is None else self._time.real(word.resume_s)
                self._actors.leave(word.resume_ranks or self._ranks, not_before, f"off: {word.reason}")
            self.checkpoint_due = word.away or self._config.actuators.checkpoint
            self._agenda.meet_after(1)
            if not self.checkpoint_due:
                self._hold()

    def _is_worth_leaving(self, word: PlanMessage) -> bool:
        """Return whether a pause is long enough to end the process, and somebody starts it again."""
        offer = self._actors.offer
        if offer is None or not offer.can_wait or not self._config.actuators.defer or word.resume_s is None:
            return False
        return word.resume_s - word.grid_s >= self._config.actuators.min_away_s

    def _hold(self) -> None:
        """Stay between two steps until the plan, or somebody, says that it goes on."""
        self.checkpoint_due = False
        self._observe()
        token = self._actors.begin(PHASE)
        try:
            said = None
            while said is None:
                woken = self._pause.hold(self._look)
                if self._closed:
                    return
                said = self._hold_on(woken)
            self._pausing = False
            self._mark_time()
            self._hear(said)
        finally:
            self._actors.end(PHASE, token)

    def _look(self) -> bool:
        """Return whether there is something to decide or to hear."""
        return self._closed or (self._due() if self._first else self._meetings.heard())

    def _hold_on(self, woken: bool) -> Mapping[str, Any] | None:
        """Return the word that ends the pause, None where it goes on."""
        if not self._first:
            return self._meetings.share(None) if self._meetings.heard() else None
        with self._or_tell_the_end():
            word = self._decide(awake=woken)
        if word is not None and word.action is None and not word.done:
            before, self._word = self._word, word
            self._tell(before, word)
            return None
        return self._meetings.share(self._say(word))

    def _tell(self, before: PlanMessage | None, word: PlanMessage) -> None:
        if not self._first:
            return
        name = "off" if word.action is None else str(word.action)
        self._run.event(
            "decision", f"{name}: {word.reason}", **word.to_dict(), step=self._agenda.steps, tokens=self.tokens
        )
        if before is None or before.action != word.action:
            moment = datetime.fromtimestamp(word.grid_s, UTC)
            log.info("%s UTC, step %d: %s. %s", f"{moment:%H:%M}", self._agenda.steps, name, word.reason)
