"""The acting side of a session: gears, limits, the phase that measures them, the plan, and what a checkpoint holds.

What the plan of a session acts through; see ``greentrain.control.interfaces``.
"""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from greentrain.carbon.replayed import GridTime
from greentrain.config.schema import GreenConfig
from greentrain.control.gpu_limits import GpuLimits
from greentrain.control.interfaces import Host, is_engine
from greentrain.control.launcher_protocol import LauncherFiles, Offer
from greentrain.control.profiling.session import ProfilingSession, check_gears
from greentrain.errors import ConfigError
from greentrain.ledger.active_run import ActiveRun
from greentrain.policy.action_table import Action, ActionTable, declared
from greentrain.types import CarbonSignal, Decision, Gear
from greentrain.utils.never_raise import never_raises, warn_experimental

if TYPE_CHECKING:
    from greentrain.control.carbon_budget import BudgetWatch
    from greentrain.control.gears import Gears
    from greentrain.control.plan.schedule import Schedule
    from greentrain.control.preemption import Launcher, PreemptionHandler


class PlanActors:
    """Gears, power limits, leaving and measuring of one run.

    Args:
        config: The checked configuration.
        host: The session.
        hands: Power limits of the run.
        leaving: Ends the process; None where nobody brings it back.
        measuring: Measures what actions cost.
        gears: Returns the gears that the session has by now; None where it has none.
    """

    def __init__(
        self,
        config: GreenConfig,
        host: Host,
        *,
        hands: GpuLimits,
        leaving: "PreemptionHandler | None",
        measuring: ProfilingSession,
        gears: Callable[[], "Gears | None"],
    ) -> None:
        self._config, self._host = config, host
        self._hands, self._leaving, self._measuring, self._gears = hands, leaving, measuring, gears

    def follow(self, action: Action, reason: str) -> None:
        """Use gear and power limit of an action from now on, because the plan says so."""
        self._hands.cap(action.cap)
        gears = self._gears()
        if gears is not None:
            gears.follow(action.gear, reason)

    def can(self, action: Action) -> bool:
        """Return whether this process can use gear and power limit of an action."""
        return str(action.gear) in self._config.precision.gears and action.cap in self._hands.caps

    @property
    def offer(self) -> "Offer | None":
        """What the launcher can do; None: nothing."""
        return None if self._leaving is None else self._leaving.offer

    def leave(self, ranks: int, not_before_unix_s: float | None, reason: str) -> None:
        """Ask for a checkpoint and leave after it; called on every rank at the same step."""
        if self._leaving is not None:
            self._leaving.ask(ranks, not_before_unix_s, reason)

    def vetoes(self) -> Mapping[Gear, str]:
        """Return the gears that must not be used now, and why."""
        gears = self._gears()
        return {} if gears is None else {**gears.vetoes, **gears.barred}

    def measure(self, steps: float) -> None:
        """Measure every gear in the coming steps, for the plan of a job of so many steps."""
        self._measuring.measure_for_plan(steps)

    def begin(self, name: str) -> int:
        """Enter a phase."""
        return self._host.begin(name)

    def end(self, name: str, token: int = 0) -> None:
        """Leave a phase."""
        self._host.end(name, token)

    def energy(self, t0_s: float, t1_s: float, wait_s: float = 0.0) -> Mapping[str, float] | None:
        """Return joules by device between two times."""
        return self._host.energy(t0_s, t1_s, wait_s)


NONE: Final = (0, 0)


class Controller:
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
        self.leaving: PreemptionHandler | None = None
        """Ends this process when its launcher or the plan asks for it; None where nobody brings it back."""
        self.steps = 0
        """Optimizer steps of the run, earlier parts included, without those that a checkpoint undid."""
        self._ranks = 1
        self._gears: Gears | None = None
        self._shifted_s: float | None = None
        self._until_close = False
        self._grid: tuple[CarbonSignal, GridTime] | None = None
        self._schedule: Schedule | None = None
        self._saved: Mapping[str, Any] | None = None
        self._declared: ActionTable | None = None
        self._plans = config.policy.plans
        self._budget: BudgetWatch | None = None
        self._tokens = 0.0
        self._told: tuple[str, ...] = ()
        self._uncounted = NONE
        check_gears(config)
        if config.policy.actions is not None:
            self._declared = declared(config.policy.actions)
        self.hands = GpuLimits()
        """Power limits and clocks, from start to end of a run."""
        self._measuring = ProfilingSession(config, host, gears=self._named_gears, plan_with=self._plan_with)

    @property
    def action_table(self) -> ActionTable | None:
        """What :meth:`profile_gears` has measured; None before."""
        return self._measuring.table

    @property
    def gears(self) -> "Gears | None":
        """The gears; None where the configuration names none. Loads torch."""
        if self._gears is None and self._config.precision.gears:
            from greentrain.control.gears import Gears

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
        self._shifted_s = self._schedule = self._budget = self.leaving = None
        self._uncounted = NONE
        self._ranks = run.topology.world_size
        self.hands = GpuLimits.open(self._config.actuators, run.topology, run.warn)
        self._measuring.started(self.hands)
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
        return self._launcher or LauncherFiles.from_env()

    @never_raises
    def _meet_launcher(self, launcher: "Launcher", run: ActiveRun) -> None:
        from greentrain.control.preemption import PreemptionHandler

        self.leaving = PreemptionHandler(launcher, run, wake=self.wake)

    def closed(self) -> None:
        """The run is over: what was changed for its time is changed back."""
        if self._schedule is not None:
            never_raises(self._schedule.close)()
        if self._gears is not None:
            self._gears.detach() if self._until_close else self._gears.release()
        never_raises(self.hands.close)()

    def each_second(self, run: ActiveRun) -> None:
        """Look for a launcher's notice, and let clocks follow the books; called by the thread that books."""
        self.hands.look(run.last_entry, profiling=self._measuring.running is not None)
        if self.leaving is not None:
            never_raises(self.leaving.look)()

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
        if engine and getattr(getattr(model, "device", None), "type", "") == "cuda":
            warn_experimental("gears of a DeepSpeed engine", "its engine ran on CPUs, never on a GPU")
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
        if self._measuring.running is not None:
            self._measuring.running.step(tokens, samples)
        if self.leaving is not None:
            self._stay_or_leave(self.leaving)
        if self._plans:
            self._plan(tokens, samples)
        elif self._measuring.wants_caps:
            self._measuring.measure_caps()
        if self._config.policy.budget_g is not None:
            self._watch_budget(tokens, samples)

    @never_raises
    def _stay_or_leave(self, leaving: "PreemptionHandler") -> None:
        leaving.stepped()

    @never_raises
    def _watch_budget(self, tokens: int, samples: int) -> None:
        run, gears = self._host.active(), self._gears
        if run is None:
            return
        if self._budget is None:
            from greentrain.control.carbon_budget import BudgetWatch

            named = tuple(Gear(name) for name in self._config.precision.gears)
            self._budget = BudgetWatch(self._config.policy, run, named, self._told)
        gear = None if gears is None else gears.box.gear
        self._budget.stepped(self._tokens, gear, self._declared or self.action_table)
        if gears is not None:
            gears.barred = self._budget.vetoes

    @never_raises
    def _plan(self, tokens: int, samples: int) -> None:
        run = self._host.active()
        if self._schedule is None and run is not None and self._grid is not None:
            from greentrain.control.plan.schedule import Schedule

            signal, grid_time = self._grid
            self._schedule = Schedule(
                self._config,
                run=run,
                signal=signal,
                grid_time=grid_time,
                actors=PlanActors(
                    self._config,
                    self._host,
                    hands=self.hands,
                    leaving=self.leaving,
                    measuring=self._measuring,
                    gears=lambda: self._gears,
                ),
                declared=self._declared or self.action_table,
                state=self._saved,
                tokens=self._tokens - (tokens or samples) * self._ranks,
            )
        if self._schedule is not None:
            self._schedule.stepped(self._tokens)

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
        self, step: Callable[[], int | None] | None, *, refresh: bool, max_steps: int
    ) -> ActionTable | None:
        """Measure what every gear costs; see ``GreenSession.profile_gears``.

        Raises:
            ConfigError: The steps are too few.
            SessionError: No run, no gears or no model.
        """
        return self._measuring.profile(step, refresh=refresh, max_steps=max_steps)

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

    def _named_gears(self) -> "Gears | None":
        """Return the gears; a method, as a session that has not started can be sent to another process."""
        return self.gears

    def _plan_with(self, table: ActionTable) -> bool:
        """Plan with what was measured; False where nothing is planned."""
        if self._schedule is None:
            return False
        self._schedule.use(table)
        return True
