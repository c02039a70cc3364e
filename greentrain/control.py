"""The acting side of a session: gears, limits, the phase that measures them, the plan, and what a checkpoint holds."""

import math
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from greentrain.action_cache import ActionCache
from greentrain.action_table import Action, ActionTable, declared
from greentrain.carbon.replayed import GridTime
from greentrain.config import GreenConfig
from greentrain.errors import ConfigError, SessionError
from greentrain.handover import Handover, Offer
from greentrain.hands import FULL, Hands
from greentrain.harmless import harmless
from greentrain.runtime import ActiveRun
from greentrain.types import CarbonSignal, Decision, Gear
from greentrain.watch import is_engine

if TYPE_CHECKING:
    from greentrain.budgeting import Budgeting
    from greentrain.gear_table import GearTable  # loads torch, as the next
    from greentrain.gears import Gears
    from greentrain.leaving import Launcher, Leaving
    from greentrain.policy.objective import Objective
    from greentrain.schedule import Schedule  # loads numpy

NONE: Final = (0, 0)
FIRST_READING_S: Final = 2.0
"""How long a profile waits for the sensors of a run that has just begun (s): probing them takes up to 0.4 s."""
PLAN_STEPS: Final = 2000
"""Most steps in which a plan learns what its gears cost: steps of milliseconds need many for a block of 1 s, which
sensors need; usual ones are done after tens."""

SHORT_JOB: Final = 2000
"""A job of fewer optimizer steps is measured in fewer blocks: what it learns must not take a good part of it."""
FEW_ROUNDS: Final = 2
"""Blocks a gear then; fewer would have no interval."""


class Host(Protocol):
    """The part of a session that acting needs."""

    def active(self) -> ActiveRun | None:
        """Return the run, None where there is none in this process."""
        ...

    def mark(self, name: str, *what: Any) -> float:
        """Queue a mark of this moment and return its time (s)."""
        ...

    def begin(self, name: str) -> int:
        """Enter a phase."""
        ...

    def end(self, name: str, token: int = 0) -> None:
        """Leave a phase."""
        ...

    def energy(self, t0_s: float, t1_s: float, wait_s: float = 0.0) -> Mapping[str, float] | None:
        """Return joules by device between two times."""
        ...


class Control:
    """Shifts, profiles and plans for one session.

    Args:
        config: The checked configuration.
        host: The session.
        launcher: Who brings the training back; None: the one whose folder is named in the environment, if any.
    """

    def __init__(self, config: GreenConfig, host: Host, launcher: "Launcher | None" = None) -> None:
        self._config = config
        self._host = host
        self._launcher = launcher
        self.leaving: Leaving | None = None
        """Ends this process when its launcher or the plan asks for it; None where nobody brings it back."""
        self.steps = 0
        """Optimizer steps of the run, earlier parts included, without those that a checkpoint undid."""
        self._ranks = 1
        self._capping = False
        self._gears: Gears | None = None
        self._profile: GearTable | None = None
        self._shifted_s: float | None = None
        self._until_close = False
        self._grid: tuple[CarbonSignal, GridTime] | None = None
        self._schedule: Schedule | None = None
        self._saved: Mapping[str, Any] | None = None
        self._declared: ActionTable | None = None
        self._plans = config.policy.plans
        self._budget: Budgeting | None = None
        self._tokens = 0.0
        self._told: tuple[str, ...] = ()
        self._uncounted = NONE
        if config.policy.plans and not config.precision.gears:
            raise ConfigError(
                f"policy.name is {config.policy.name!r}, but precision.gears is empty: name the gears that the plan may"
                " use; one, such as [bf16], is enough for a plan of pauses"
            )
        if config.actuators.power_cap is not None and not config.precision.gears:
            raise ConfigError(
                "actuators.power_cap is set, but precision.gears is empty: limits are measured in the gears of the run,"
                " so name them; one, such as [bf16], is enough"
            )
        if config.policy.actions is not None:
            self._declared = declared(config.policy.actions)
        self.hands = Hands()
        """Power limits and clocks, from start to end of a run."""
        self.action_table: ActionTable | None = None
        """What :meth:`profile_gears` has measured; None before."""

    @property
    def gears(self) -> "Gears | None":
        """The gears; None where the configuration names none. Loads torch."""
        if self._gears is None and self._config.precision.gears:
            from greentrain.gears import Gears

            self._gears = Gears(self._config, self._shifted)
        return self._gears

    # -- life --------------------------------------------------------------------------------------------------

    def started(self, run: ActiveRun, signal: CarbonSignal, grid_time: GridTime, *, resumed: bool) -> None:
        """A run begins, or goes on from a checkpoint.

        Args:
            run: The run.
            signal: Carbon intensity in the grid's own time.
            grid_time: What that is.
            resumed: It goes on.
        """
        if not resumed:
            self._saved, self._tokens, self._told, self.steps = None, 0.0, (), 0
            if self._gears is not None:
                self._gears.restart()
        self._grid = (signal, grid_time)
        self._shifted_s = self._profile = self._schedule = self._budget = self.leaving = None
        self._uncounted = NONE
        self._ranks = run.topology.world_size
        self.hands = Hands.open(self._config.actuators, run.topology, run.warn)
        self._capping = not self._plans and self._config.actuators.power_cap is not None
        launcher = self._who_launched()
        if launcher is not None:
            self._meet_launcher(launcher, run)

    @property
    def began_unix_s(self) -> float | None:
        """When the launcher began with this job, waits included (s since the epoch); None: there is none."""
        launcher = self._who_launched()
        offer = None if launcher is None else launcher.offer()
        return None if offer is None else offer.job_unix_s

    def _who_launched(self) -> "Launcher | None":
        return self._launcher or Handover.from_env()

    @harmless
    def _meet_launcher(self, launcher: "Launcher", run: ActiveRun) -> None:
        from greentrain.leaving import Leaving

        self.leaving = Leaving(launcher, run, wake=self.wake)

    def closed(self) -> None:
        """The run is over: what was changed for its time is changed back."""
        if self._schedule is not None:
            harmless(self._schedule.close)()
        if self._gears is not None:
            self._gears.detach() if self._until_close else self._gears.release()
        harmless(self.hands.close)()

    def each_second(self, run: ActiveRun) -> None:
        """Look for a launcher's notice, and let clocks follow the books; called by the thread that books."""
        self.hands.look(run.last_entry, profiling=self._profile is not None)
        if self.leaving is not None:
            harmless(self.leaving.look)()

    def watch(self, model: Any, optimizer: Any, scaler: Any) -> Callable[[], None] | None:
        """Give a model its gears, until the run is closed.

        Returns:
            What an engine that counts its own steps has to call after each; None without gears.

        Raises:
            ConfigError: A gear cannot work with them.
        """
        gears = self.gears
        if gears is None:
            return None
        engine = model is not None and is_engine(model)
        self._until_close = True
        if model is not None:
            gears.attach(model, scaler=scaler or (engine and model.fp16_enabled()) or None)
        if engine:
            gears.bind(model.optimizer, counts=False)
        elif optimizer is not None:
            gears.bind(optimizer)
        self.show()
        return gears.boundary

    def show(self) -> None:
        """Tell the run which gear it begins in, and which layers have gears."""
        run, gears = self._host.active(), self._gears
        if run is not None and gears is not None and gears.box.model is not None:
            self._host.mark("gear", str(gears.box.gear))
            run.know(**gears.describe())

    # -- while it runs -----------------------------------------------------------------------------------------

    def step_end(self, t_s: float) -> float:
        """Return when the step that is told at ``t_s`` ended: before the shift, if its optimizer's hook shifted."""
        if self._shifted_s is None:
            return t_s
        t_s, self._shifted_s = math.nextafter(self._shifted_s, 0.0), None
        return t_s

    def counted(self, tokens: int, samples: int) -> None:
        """Tokens or samples were told without a step; they go with the next one."""
        self._uncounted = (self._uncounted[0] + tokens, self._uncounted[1] + samples)

    def stepped(self, tokens: int, samples: int) -> None:
        """A step was told."""
        if self._uncounted != NONE:
            tokens, samples = tokens + self._uncounted[0], samples + self._uncounted[1]
            self._uncounted = NONE
        self.steps += 1
        self._tokens += (tokens or samples) * self._ranks
        if self._profile is not None:
            self._profile.step(tokens, samples)
        if self.leaving is not None:
            self._stay_or_leave(self.leaving)
        if self._plans:
            self._plan(tokens, samples)
        elif self._capping:
            self._capping = False
            self._measure_caps()
        if self._config.policy.budget_g is not None:
            self._watch_budget(tokens, samples)

    @harmless
    def _measure_caps(self) -> None:
        """Measure power limits where every rank has some; a rank without any must say so, or the others wait for it."""
        from greentrain.gear_table import everybody

        if all(len(caps) > 1 for caps in everybody(self.hands.caps)):
            self.profile_gears(None, refresh=False, max_steps=PLAN_STEPS)

    @harmless
    def _stay_or_leave(self, leaving: "Leaving") -> None:
        leaving.stepped()

    @harmless
    def _watch_budget(self, tokens: int, samples: int) -> None:
        run, gears = self._host.active(), self._gears
        if run is None:
            return
        if self._budget is None:
            from greentrain.budgeting import Budgeting

            named = tuple(Gear(name) for name in self._config.precision.gears)
            self._budget = Budgeting(self._config.policy, run, named, self._told)
        gear = None if gears is None else gears.box.gear
        self._budget.stepped(self._tokens, gear, self._declared or self.action_table)
        if gears is not None:
            gears.barred = self._budget.vetoes

    @harmless
    def _plan(self, tokens: int, samples: int) -> None:
        run = self._host.active()
        if self._schedule is None and run is not None and self._grid is not None:
            from greentrain.schedule import Schedule

            signal, grid_time = self._grid
            self._schedule = Schedule(
                self._config,
                run=run,
                signal=signal,
                grid_time=grid_time,
                actors=self,
                declared=self._declared or self.action_table,
                state=self._saved,
                tokens=self._tokens - (tokens or samples) * self._ranks,
            )
        if self._schedule is not None:
            self._schedule.stepped(self._tokens)

    # What a plan acts through; see greentrain.schedule.Actors.

    def follow(self, action: Action, reason: str) -> None:
        """Use gear and power limit of an action from now on, because the plan says so."""
        self.hands.cap(action.cap)
        if self._gears is not None:
            self._gears.follow(action.gear, reason)

    def can(self, action: Action) -> bool:
        """Return whether this process can use gear and power limit of an action."""
        return str(action.gear) in self._config.precision.gears and action.cap in self.hands.caps

    @property
    def offer(self) -> "Offer | None":
        """What the launcher can do; None: nothing."""
        return None if self.leaving is None else self.leaving.offer

    def leave(self, ranks: int, not_before_unix_s: float | None, reason: str) -> None:
        """Ask for a checkpoint and leave after it; called on every rank at the same step."""
        if self.leaving is not None:
            self.leaving.ask(ranks, not_before_unix_s, reason)

    def vetoes(self) -> Mapping[Gear, str]:
        """Return the gears that must not be used now, and why."""
        return {} if self._gears is None else {**self._gears.vetoes, **self._gears.barred}

    def measure(self, steps: float) -> None:
        """Measure every gear in the coming steps, for the plan of a job of so many steps."""
        rounds = FEW_ROUNDS if steps < SHORT_JOB else None
        self.profile_gears(None, refresh=False, max_steps=PLAN_STEPS, rounds=rounds)

    def begin(self, name: str) -> int:
        """Enter a phase."""
        return self._host.begin(name)

    def end(self, name: str, token: int = 0) -> None:
        """Leave a phase."""
        self._host.end(name, token)

    def energy(self, t0_s: float, t1_s: float, wait_s: float = 0.0) -> Mapping[str, float] | None:
        """Return joules by device between two times."""
        return self._host.energy(t0_s, t1_s, wait_s)

    @property
    def checkpoint_due(self) -> bool:
        """True while a checkpoint should be written, as a pause, a leave or the end of a budget is about to come."""
        if self.should_stop or (self._schedule is not None and self._schedule.checkpoint_due):
            return True
        return self.leaving is not None and self.leaving.due

    def checkpointed(self) -> bool:
        """A checkpoint is written: tell the launcher; return whether the run was asked to leave after it."""
        leaving = self.leaving
        if leaving is None:
            return False
        leaving.progress(self.steps, self._tokens)
        return leaving.due

    @property
    def should_stop(self) -> bool:
        """True when the carbon budget is spent and ``policy.budget_action`` says to end."""
        return self._budget is not None and self._budget.stop

    def wake(self) -> None:
        """End a pause."""
        if self._schedule is not None:
            self._schedule.wake()

    def shift(self, gear: str) -> None:
        """Use a gear from the next optimizer step on, in place of the policy.

        Raises:
            ConfigError: It is not among ``precision.gears``.
        """
        if self.gears is None:
            raise ConfigError(f"cannot shift to {gear!r}: precision.gears is empty; name the gears of the run there")
        self.gears.shift(gear)

    def prewarm(self, run: Callable[[], Any]) -> None:
        """Run something once in every gear."""
        if self.gears is not None:
            self.gears.prewarm(run)

    def profile_gears(
        self, step: Callable[[], int | None] | None, *, refresh: bool, max_steps: int, rounds: int | None = None
    ) -> ActionTable | None:
        """Measure what every gear costs; see ``GreenSession.profile_gears``.

        Raises:
            ConfigError: The steps are too few.
            SessionError: No run, no gears or no model.
        """
        run = self._host.active()
        if run is None or self.gears is None:
            raise SessionError(
                "profile_gears() needs a running session with precision.gears and a watched model: start() it, name the"
                " gears, and watch(model, optimizer) first"
            )
        from greentrain.gear_table import GearTable

        end_s = time.monotonic() + FIRST_READING_S
        while not run.sensors and time.monotonic() < end_s:
            time.sleep(0.02)
        self._profile = GearTable(
            self.gears.box,
            run.sensors,
            self._host.energy,
            max_steps=max_steps,
            cache=None if refresh else ActionCache(),
            tell=self._measured,
            rounds=rounds,
            caps=self.hands.power_cap,
            objective=None if self._plans or self.hands.power_cap is None else self._objective(run),
        )
        self.gears.measure(self._profile)
        if step is not None:
            self._profile.run(step)
            self.gears.measure(None)
        return self.action_table

    # -- what is told and kept ---------------------------------------------------------------------------------

    def metrics(self) -> dict[str, float]:
        """Return figures for a logger; what was not measured is left out."""
        return {} if self._gears is None else self._gears.metrics()

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint must hold, in plain JSON types."""
        out: dict[str, Any] = {} if self._gears is None else {"precision": self._gears.state_dict()}
        out["progress"] = {"steps": self.steps, "tokens": self._tokens}
        if self._schedule is not None:
            out["plan"] = self._schedule.state_dict()
        if self._budget is not None:
            out["budget"] = {"said": list(self._budget.said)}
        return out

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where a checkpoint was written."""
        if self.gears is not None and "precision" in state:
            self.gears.load_state_dict(state["precision"])
        self._saved = state.get("plan")
        progress = state.get("progress") or {}
        self.steps, self._tokens = int(progress.get("steps", 0)), float(progress.get("tokens", 0.0))
        self._told = tuple((state.get("budget") or {}).get("said", ()))

    # -- inside ------------------------------------------------------------------------------------------------

    def _shifted(self, before: Gear, decision: Decision, steps: int) -> None:
        run = self._host.active()
        if run is None:
            return
        self._shifted_s = self._host.mark("gear", str(decision.gear))
        text = f"{before} -> {decision.gear} after step {steps}: {decision.reason}"
        run.event("gear", text, step=steps, gear=str(decision.gear))

    def _measured(self, table: ActionTable) -> None:
        self.action_table, self._profile = table, None
        run = self._host.active()
        if run is not None:
            run.event("profile", f"{len(table.costs)} actions were measured side by side")
            run.know(action_table=table.to_dict())
        if self._schedule is not None:
            self._schedule.use(table)
        elif run is not None and any(action.cap != FULL for action in table.actions):  # so on every rank
            self._choose_cap(run, table)

    def _objective(self, run: ActiveRun) -> "Objective":
        from greentrain.cap_choice import objective_of

        return objective_of(self._config, run, self.hands.limit_w)

    @harmless
    def _choose_cap(self, run: ActiveRun, table: ActionTable) -> None:
        from greentrain.cap_choice import choose_cap

        gear = Gear(self._config.policy.gear or self._config.precision.gears[0])
        cap = choose_cap(table, lambda: self._objective(run), run, gear, self.hands.caps)
        if cap is not None:
            self.hands.cap(cap, at_once=True)
