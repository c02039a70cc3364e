"""The acting side of a session: gears, limits, the phase that measures them, the plan, and what a checkpoint holds.

What a run may change on its own GPUs, power limits and clocks, is undone at its end (:class:`GpuLimits`). Clocks follow
how long the GPU waits for data; that is looked at in the thread which books, never in the training's.

What gears and power limits cost is measured in the training's own steps (:class:`ProfilingSession`): for a plan, for a
power limit, or by hand. Where no policy plans, one power limit for the whole run is chosen by an objective once the
limits were measured.
"""

import dataclasses
import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from greentrain.carbon.replayed import GridTime
from greentrain.config.schema import ActuatorsConfig, GreenConfig, PowerCapConfig
from greentrain.control.coordination import RankZeroChannel, SyncSchedule, Words
from greentrain.control.demand import DemandResponse
from greentrain.control.launcher_protocol import LauncherFiles, Offer
from greentrain.errors import ConfigError, SessionError
from greentrain.ledger.active_run import ActiveRun
from greentrain.ledger.pue import in_run_time
from greentrain.policy.action_table import Action, ActionCache, ActionObjective, ActionTable, choose, declared
from greentrain.types import CarbonSignal, Decision, Gear, LedgerEntry, PriceSignal, Topology
from greentrain.utils.background import BackgroundCall
from greentrain.utils.never_raise import never_raises, warn, warn_experimental

if TYPE_CHECKING:
    from greentrain.control.actuators.clocks import ClockLimit, StallControl
    from greentrain.control.actuators.power_cap import PowerCap
    from greentrain.control.actuators.profiles import Profiles
    from greentrain.control.carbon_budget import BudgetWatch
    from greentrain.control.gears import Gears
    from greentrain.control.plan.schedule import Host, Schedule
    from greentrain.control.preemption import Launcher, PreemptionHandler
    from greentrain.control.profiling.distributed import ProfilingRun


FULL: Final = 1.0


class GpuLimits:
    """Power limits and clocks of one process; without arguments it has none.

    Args:
        power_cap: Sets power limits.
        clocks: Sets clocks.
        stall: Says which.
        profiles: What is set from start to end.
    """

    def __init__(
        self,
        power_cap: "PowerCap | None" = None,
        clocks: "ClockLimit | None" = None,
        stall: "StallControl | None" = None,
        profiles: "Profiles | None" = None,
    ) -> None:
        self.power_cap = power_cap
        """The power limits; None: they are left alone, or there is no right to change them."""
        self._clocks, self._stall = clocks, stall
        self._hands = [hand for hand in (clocks, power_cap, profiles) if hand is not None]
        self._seen: LedgerEntry | None = None
        self._changed = False

    @classmethod
    def open(cls, config: ActuatorsConfig, topology: Topology, warn: Callable[[str], None]) -> "GpuLimits":
        """Put right what dead jobs have left on the node's GPUs, and open what the configuration asks for.

        Args:
            config: Section ``actuators``.
            topology: Place of this process.
            warn: Called with a sentence where something cannot be done.

        Raises:
            ConfigError: A device is not this process's, or a limit is out of its range.
        """
        from greentrain.control.actuators import clocks, driver, guardian, power_cap, profiles

        for sentence in driver.repair():
            warn(sentence)
        asks = config.power_profiles is not None or config.memory_mhz is not None
        caps = config.power_cap
        if caps is None and config.demand is not None and sys.platform != "win32":
            caps = PowerCapConfig(fractions=(FULL,))
        if caps is None and config.clocks is None and not asks:
            return cls()
        if sys.platform == "win32":
            raise ConfigError(
                "actuators.power_cap and actuators.clocks are set, but the guardian that puts limits back needs Linux:"
                " leave both out on Windows"
            )
        one = guardian.Guardian(ask_daemon=config.daemon == "auto")
        cap, limit, control = None, None, None
        if caps is not None:
            cap = power_cap.open_power_cap(caps, topology, warn, guardian=one)
        if config.clocks is not None:
            limit = clocks.open_clocks(config.clocks, topology, warn, guardian=one)
            control = clocks.StallControl(config.clocks)
        held = profiles.open_profiles(config, topology, warn, guardian=one) if asks else None
        if held is not None:
            held.apply()
        if cap is not None or limit is not None:
            BackgroundCall("greentrain-guardian", one.begin)
        return cls(cap, limit, control, held)

    @property
    def caps(self) -> tuple[float, ...]:
        """Fractions of the power limit found that can be set; (1.0,) where none can."""
        return (FULL,) if self.power_cap is None else self.power_cap.fractions

    @property
    def limit_w(self) -> float | None:
        """Power limits of this process's GPUs, as found (W); None where it sets none."""
        return None if self.power_cap is None else self.power_cap.limit_w

    def cap(self, fraction: float, *, at_once: bool = False) -> None:
        """Set a fraction of the power limit found. Never raises.

        Args:
            fraction: One of ``caps``.
            at_once: However short ago the last change was.
        """
        if self.power_cap is not None:
            self._changed = self._changed or fraction != self.power_cap.fraction
            self.power_cap.apply(fraction, at_once=at_once)

    def ceiling(self, share: float) -> float | None:
        """Let no limit be above a share of what was found from now on.

        Returns:
            The share that holds now, the least that the cards take where that is more; None: none can be set.
        """
        self._changed = True
        return None if self.power_cap is None else self.power_cap.limit(share)

    @never_raises
    def look(self, entry: LedgerEntry | None, *, profiling: bool = False) -> str | None:
        """Let clocks follow what was booked last; from the thread that books.

        Args:
            entry: The last entry of the books.
            profiling: Gears or limits are being measured, so its speed says nothing.

        Returns:
            Where clocks have changed, how far below their maximum they are now, and why.
        """
        self._changed = self._changed or profiling  # it may be over when the interval is booked
        if self._clocks is None or self._stall is None or entry is None or entry is self._seen:
            return None
        self._seen = entry
        ordinary = not (self._changed or len(entry.gears) > 1)
        self._changed = False
        seconds = entry.t1_unix_s - entry.t0_unix_s
        states, before = [device.states for device in entry.devices.values()], self._stall.changes
        level = self._stall.observe(seconds, entry.phase_s, entry.steps, states, ordinary=ordinary)
        if level is not None and not self._clocks.apply(level) and self._stall.below:
            self._stall.stop("clocks cannot be set")
        if self._stall.changes == before:
            return None
        return f"clocks at most {self._stall.below:.0%} below their maximum: {self._stall.reason}"

    def tell(self, mark: Callable[[str, str], object]) -> None:
        """Let every change be marked: ``cap`` or ``clock``, and what it is from then on."""
        for hand in self._hands:
            hand.mark = mark

    def close(self) -> None:
        """Put everything back as it was found. Idempotent; never raises."""
        for hand in self._hands:
            hand.close()


FIRST_READING_S: Final = 1.0
"""How long a profile waits for the sensors of a run that has just begun (s): probing them takes up to 0.4 s."""
PLAN_STEPS: Final = 2000
"""Most steps in which a plan learns what its gears cost: steps of milliseconds need many for a block of 1 s, which
sensors need; usual ones are done after tens."""

SHORT_JOB: Final = 2000
"""A job of fewer optimizer steps is measured in fewer blocks: what it learns must not take a good part of it."""
FEW_ROUNDS: Final = 2
"""Blocks a gear then; fewer would have no interval."""


class ProfilingSession:
    """Measures for one session, and keeps the table.

    Rank 0 says after which step all ranks begin and end, and with which arguments: a rank's own numbers, such as the
    tokens of its batches, decide nothing.

    Args:
        config: The checked configuration.
        host: The session.
        gears: Returns those of the session; None where the configuration names none.
        plan_with: Called with a table, or None where there will be none; returns whether a plan uses it, else one power
            limit is chosen from it.
    """

    def __init__(
        self,
        config: GreenConfig,
        host: "Host",
        *,
        gears: Callable[[], "Gears | None"],
        plan_with: Callable[[ActionTable | None], bool],
    ) -> None:
        self._config, self._host = config, host
        self._gears, self._plan_with = gears, plan_with
        self._gpu_limits, self._cache = GpuLimits(), ActionCache()
        self.table: ActionTable | None = None
        """What was measured last, from the same step on on all ranks; None before."""
        self._found: ActionTable | None = None
        self.running: ProfilingRun | None = None
        """What measures now; None: nothing does."""
        self._wish: dict[str, Any] | None = None
        self._slack: Callable[[float], float] | None = None
        self._steps, self._until_s = 0, 0.0
        self._sync: SyncSchedule | None = None
        self._ended: Mapping[str, Any] | None = None

    def started(self, gpu_limits: GpuLimits) -> None:
        """A run begins; its power limits are ``gpu_limits``."""
        self._gpu_limits, self.running, self._wish, self._ended = gpu_limits, None, None, None
        self._steps, self._sync = 0, None
        if not self._config.policy.plans and self._config.actuators.power_cap is not None:
            self.want(caps_only=True)

    def closed(self) -> None:
        """The run is over: a table that is being kept is waited for, at most a second."""
        if self._cache.saving is not None and not self._cache.wait():
            warn("the action table may not be kept, as the disk hangs: then the next run measures it again")

    def want(
        self,
        *,
        refresh: bool = False,
        max_steps: int = PLAN_STEPS,
        rounds: int | None = None,
        caps_only: bool = False,
        slack: Callable[[float], float] | None = None,
    ) -> None:
        """Measure in the coming steps, as rank 0 asks for; the others only say that they take part.

        Args:
            refresh: Measure even if there is a table.
            max_steps: Most steps, over all gears.
            rounds: Blocks a gear; None: as usual.
            caps_only: Measure only where every rank can set power limits.
            slack: Returns the time before the deadline that the job would not need at so many seconds a step (s); None:
                there is no deadline.
        """
        self._slack = slack
        self._wish = {"refresh": refresh, "max_steps": max_steps, "rounds": rounds, "caps_only": caps_only}
        self._until_s = time.monotonic() + FIRST_READING_S

    @never_raises
    def stepped(self) -> None:
        """Note the end of an optimizer step, on every rank."""
        self._steps += 1
        if self._wish is None or self.running is not None or (run := self._host.active()) is None:
            return
        if self._sync is None:
            channel = RankZeroChannel(f"{run.run_id}/profile", run.topology)
            self._sync = SyncSchedule(channel, time.monotonic, run.warn)
        self._sync.steps = self._steps - 1
        said = self._sync.stepped(lambda: self._say(run))
        if said is not None and "begin" in said:
            self._begin_together(run, **said["begin"])
        elif said is not None:
            self._end_together(said["end"])
        elif self._sync.over:
            self._wish = None
            self._plan_with(None)

    def _say(self, run: ActiveRun) -> Words:
        if self._ended is not None:
            return {"end": self._ended}, 1
        if not run.sensors and time.monotonic() < self._until_s:
            return None, 1
        return {"begin": {**(self._wish or {}), "objective": self._objective(run)}}, 1

    def _begin_together(self, run: ActiveRun, *, caps_only: bool, **how: Any) -> None:
        gears = self._gears()
        try:
            if gears is not None:  # also where this rank cannot begin: the others shift, until all agree on the end
                gears.box.neutral = run.topology.world_size > 1
            phase = self._open(run, **how)
            if gears is None or (caps_only and len(phase.fractions) == 1):
                self._measured(None)
                return
            self.running = phase
            gears.measure(phase)
        except Exception as error:
            run.warn(f"gears and power limits are not measured: {error}")
            self._measured(None)

    def _end_together(self, said: Mapping[str, Any]) -> None:
        gears = self._gears()
        self._wish = self._ended = None
        self.table = self._found
        if gears is not None:
            gears.measure(None)
            gears.box.neutral = False
        if said["cap"] is not None:
            self._gpu_limits.cap(float(said["cap"]), at_once=True)

    def profile(self, step: Callable[[], int | None] | None, *, refresh: bool, max_steps: int) -> ActionTable | None:
        """Measure what every gear costs; see ``GreenSession.profile_gears``.

        Args:
            step: Trains one step; None: the coming steps of the training are used.
            refresh: Measure even if there is a table.
            max_steps: Most steps, over all gears.

        Raises:
            ConfigError: The steps are too few.
            SessionError: No run, no gears or no model, or a rank that does not take part.
        """
        run = self._host.active()
        gears = None if run is None else self._gears()
        if run is None or gears is None:
            raise SessionError(
                "profile_gears() needs a running session with precision.gears and a watched model: start() it, name the"
                " gears, and watch(model, optimizer) first"
            )
        from greentrain.control.profiling.distributed import check_steps

        check_steps(gears.box, max_steps)
        if step is None:
            self.want(refresh=refresh, max_steps=max_steps)
            return None
        if run.topology.world_size > 1:
            step()  # its own communication brings the ranks together, wherever each of them came from
        end_s = time.monotonic() + FIRST_READING_S
        while not run.sensors and time.monotonic() < end_s:
            time.sleep(0.02)
        try:
            self.running = self._open(run, refresh=refresh, max_steps=max_steps, rounds=None, objective=None)
        except TimeoutError as error:
            raise SessionError(f"{error} to profile_gears(step): call it on every rank after the same step") from None
        gears.box.neutral = run.topology.world_size > 1
        try:
            gears.measure(self.running)
            self.running.run(step)
        finally:
            gears.measure(None)
            gears.box.neutral, self._ended, self.running = False, None, None
        self.table = self._found
        return self.table

    def _open(
        self,
        run: ActiveRun,
        *,
        refresh: bool,
        max_steps: int,
        rounds: int | None,
        objective: Mapping[str, Any] | None,
    ) -> "ProfilingRun":
        from greentrain.control.profiling.distributed import ProfilingRun

        channel = RankZeroChannel(f"{run.run_id}/blocks", run.topology)
        gears = self._gears()
        assert gears is not None
        return ProfilingRun(
            gears.box,
            run.sensors,
            self._host.energy,
            max_steps=max_steps,
            cache=None if refresh else self._cache,
            tell=self._measured,
            rounds=rounds,
            channel=channel,
            caps=self._gpu_limits.power_cap,
            objective=ActionObjective(**(objective or self._objective(run))),
            slack=self._slack,
        )

    def _measured(self, table: ActionTable | None) -> None:
        self._found, self.running = table or self.table, None
        self._ended = {"cap": None}
        run = self._host.active()
        if run is not None and table is not None:
            run.event("profile", f"{len(table.costs)} actions were measured side by side")
            run.know(action_table=table.to_dict())
        if self._plan_with(table) or run is None or table is None or run.topology.rank > 0:
            return
        if any(action.cap != FULL for action in table.actions):
            gear = Gear(self._config.policy.gear or self._config.precision.gears[0])
            wanted = lambda: ActionObjective(**self._objective(run))  # noqa: E731
            self._ended = {"cap": choose_cap(table, wanted, run, gear, self._gpu_limits.caps)}

    def _objective(self, run: ActiveRun) -> dict[str, Any]:
        if self._config.policy.plans or self._gpu_limits.power_cap is None:
            return dataclasses.asdict(ActionObjective())
        return dataclasses.asdict(objective_of(self._config, run, self._gpu_limits.limit_w))


def check_gears_named(config: GreenConfig) -> None:
    """Check that gears are named where something is to be measured in them.

    Raises:
        ConfigError: They are not.
    """
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


def objective_of(config: GreenConfig, run: ActiveRun, limit_w: float | None) -> ActionObjective:
    """Return what a power limit is chosen for, with what is known now.

    Where the intensity that ``carbon`` needs is not known, or the limit that ``cost`` needs, it is ``energy``; the run
    is told.

    Args:
        config: The checked configuration.
        run: The run.
        limit_w: Power limits of this rank's devices, as found (W); those of other ranks are taken to be alike.
    """
    asked = config.actuators.power_cap
    assert asked is not None
    name, why = asked.objective, ""
    now_s = run.unix_s()
    g_per_kwh = run.signal.mean(now_s, now_s).g_per_kwh
    if name == "carbon" and g_per_kwh is None:
        name, why = "energy", "the carbon intensity is not known now"
    if name == "cost" and limit_w is None:
        name, why = "energy", "nobody knows the power limit of the devices"
    if why:
        run.warn(f"the power limit is chosen for least energy instead of {asked.objective}, as {why}")
    return ActionObjective(
        name=name,
        g_per_kwh=g_per_kwh,
        pue=in_run_time(run.facility, run.signal).pue(now_s, now_s).value,
        embodied_g_per_s=run.embodied_g_per_s * run.topology.world_size,
        eta=asked.eta,
        limit_w=None if limit_w is None else limit_w * run.topology.world_size,
        max_slowdown=asked.max_slowdown,
    )


def choose_cap(
    table: ActionTable,
    objective: Callable[[], ActionObjective],
    run: ActiveRun,
    gear: Gear,
    fractions: tuple[float, ...],
) -> float | None:
    """Return the best limit for one gear; None where there is none. Rank 0 chooses for all.

    Args:
        table: Table of the costs that were measured.
        objective: Returns the objective of the choice.
        run: The run.
        gear: The gear of the run.
        fractions: Limits that this process can set.
    """
    try:
        wanted = objective()
        found = choose(
            table,
            wanted,
            reference=Action(gear=gear),
            wanted=lambda action: action.gear is gear and action.cap in fractions,
        )
    except Exception as error:
        run.warn(f"the power limit stays as it was found: {error}")
        return None
    run.event("cap", f"{found} ({wanted.name})", cap=found.action.cap)
    return found.action.cap


NO_COUNTS: Final = (0, 0)


class Controller:
    """Shifts, profiles and plans for one session.

    Args:
        config: The checked configuration.
        host: The session.
        launcher: Launcher that brings the training back; None: the one whose folder the environment names, if any.
    """

    def __init__(self, config: GreenConfig, host: "Host", launcher: "Launcher | None" = None) -> None:
        self._config = config
        self._host = host
        self._launcher = launcher
        self.preemption: PreemptionHandler | None = None
        """Ends this process when its launcher or the plan asks for it; None where nobody brings it back."""
        self.steps = 0
        """Optimizer steps of the run, earlier parts included, without those that a checkpoint undid."""
        self._ranks = 1
        self._gears: Gears | None = None
        self._shifted_s: float | None = None
        self._grid: tuple[CarbonSignal, GridTime] | None = None
        self._price: PriceSignal | None = None
        self._demand: DemandResponse | None = None
        self._schedule: Schedule | None = None
        self._saved: Mapping[str, Any] | None = None
        self._declared: ActionTable | None = None
        self._plans = config.policy.plans
        self._budget: BudgetWatch | None = None
        self._tokens = 0.0
        self._budget_events: tuple[str, ...] = ()
        self._uncounted = NO_COUNTS
        check_gears_named(config)
        if config.policy.actions is not None:
            self._declared = declared(config.policy.actions)
        self.gpu_limits = GpuLimits()
        """Power limits and clocks, from start to end of a run."""
        self.profiling = ProfilingSession(config, host, gears=self._named_gears, plan_with=self._plan_with)
        """What measures gears and power limits."""

    @property
    def gears(self) -> "Gears | None":
        """The gears; None where the configuration names none. Loads torch."""
        if self._gears is None and self._config.precision.gears:
            from greentrain.control.gears import Gears

            self._gears = Gears(self._config, self._shifted, self._unused)
        return self._gears

    # -- life --------------------------------------------------------------------------------------------------

    def started(
        self,
        run: ActiveRun,
        signal: CarbonSignal,
        grid_time: GridTime,
        *,
        resumed: bool,
        price: PriceSignal | None = None,
    ) -> None:
        """A run begins, or goes on from a checkpoint.

        Args:
            run: The run.
            signal: Carbon intensity in the grid's own time.
            grid_time: Clock that maps the machine's time to the grid's.
            resumed: It goes on.
            price: Price of electricity in the grid's own time; None: nobody says.
        """
        if not resumed:
            self._saved, self._tokens, self._budget_events, self.steps = None, 0.0, (), 0
            if self._gears is not None:
                self._gears.restart()
        self._grid = (signal, grid_time)
        self._price = price
        self._shifted_s = self._schedule = self._budget = self.preemption = None
        self._uncounted = NO_COUNTS
        self._ranks = run.topology.world_size
        self.gpu_limits = GpuLimits.open(self._config.actuators, run.topology, run.warn)
        self.gpu_limits.tell(self._host.mark)
        demand = self._config.actuators.demand
        self._demand = None
        if demand is not None:
            pauses = self._plans and self._config.actuators.pause
            self._demand = DemandResponse(run, self.gpu_limits, extra=demand.dir, pauses=pauses)
        self.profiling.started(self.gpu_limits)
        launcher = self._who_launched()
        if launcher is not None:
            self._open_preemption(launcher, run)

    @property
    def began_unix_s(self) -> float | None:
        """When the launcher began with this job, waits included (s since the epoch); None: there is none."""
        launcher = self._who_launched()
        offer = None if launcher is None else launcher.offer()
        return None if offer is None else offer.job_unix_s

    def _who_launched(self) -> "Launcher | None":
        return self._launcher or LauncherFiles.from_env()

    @never_raises
    def _open_preemption(self, launcher: "Launcher", run: ActiveRun) -> None:
        from greentrain.control.preemption import PreemptionHandler

        self.preemption = PreemptionHandler(launcher, run, wake=self.wake)

    def closed(self) -> None:
        """The run is over: what was changed for its time is changed back."""
        if self._schedule is not None:
            never_raises(self._schedule.close)()
        if self.preemption is not None:
            never_raises(self.preemption.close)()
        never_raises(self.profiling.closed)()
        if self._gears is not None:
            self._gears.detach()
        never_raises(self.gpu_limits.close)()

    def each_second(self, run: ActiveRun) -> None:
        """Look for a launcher's notice, and let clocks follow the books; called by the thread that books."""
        changed = self.gpu_limits.look(run.last_entry, profiling=self.profiling.running is not None)
        if changed is not None:
            run.event("clock", changed)
        if self.preemption is not None:
            never_raises(self.preemption.look)()
        if self._demand is not None and never_raises(self._demand.look)() and self._schedule is not None:
            self._schedule.decide_again()

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
        if self._uncounted != NO_COUNTS:
            tokens, samples = tokens + self._uncounted[0], samples + self._uncounted[1]
            self._uncounted = NO_COUNTS
        self.steps += 1
        self._tokens += (tokens or samples) * self._ranks
        if self.profiling.running is not None:
            self.profiling.running.step(tokens, samples)
        if self.preemption is not None:
            self._follow_launcher(self.preemption)
        if self._plans:
            self._plan(tokens, samples)
        elif self._demand is not None and self._gears is not None:
            self._ask_gear(self._demand, self._gears)
        self.profiling.stepped()
        if self._config.policy.budget_g is not None:
            self._watch_budget(tokens, samples)

    @never_raises
    def _follow_launcher(self, preemption: "PreemptionHandler") -> None:
        preemption.stepped()

    @never_raises
    def _ask_gear(self, demand: DemandResponse, gears: "Gears") -> None:
        asked, run = demand.stepped(), self._host.active()
        if asked is None or run is None:
            return
        gear, why = asked
        if gear is not None and gear not in gears.box.gears:
            run.warn(f"{gear} is asked for ({why}), and not among precision.gears: the run keeps its own")
            gear = None
        gears.ask(gear, why)

    @never_raises
    def _watch_budget(self, tokens: int, samples: int) -> None:
        run, gears = self._host.active(), self._gears
        if run is None:
            return
        if self._budget is None:
            from greentrain.control.carbon_budget import BudgetWatch

            named = tuple(Gear(name) for name in self._config.precision.gears)
            self._budget = BudgetWatch(self._config.policy, run, named, self._budget_events)
        gear = None if gears is None else gears.box.gear
        self._budget.stepped(self._tokens, gear, self._declared or self.profiling.table)
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
                price=self._price,
                host=self._host,
                actors=self,
                declared=self._declared or self.profiling.table,
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
        return self.preemption is not None and self.preemption.due

    def checkpointed(self) -> bool:
        """A checkpoint is written: tell the launcher; return whether the run was asked to leave after it."""
        preemption = self.preemption
        if preemption is None:
            return False
        preemption.progress(self.steps, self._tokens)
        return preemption.due

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

    # -- what the plan acts through: interfaces.Actors ---------------------------------------------------------

    def follow(self, action: Action, reason: str) -> None:
        """Use gear and power limit of an action from now on, because the plan says so."""
        self.gpu_limits.cap(action.cap)
        if self._gears is not None:
            self._gears.follow(action.gear, reason)

    def can(self, action: Action) -> bool:
        """Return whether this process can use gear and power limit of an action."""
        return str(action.gear) in self._config.precision.gears and action.cap in self.gpu_limits.caps

    @property
    def offer(self) -> "Offer | None":
        """What the launcher can do; None: nothing."""
        return None if self.preemption is None else self.preemption.offer

    def leave(self, ranks: int, not_before_unix_s: float | None, reason: str) -> None:
        """Ask for a checkpoint and leave after it; called on every rank at the same step."""
        if self.preemption is not None:
            self.preemption.ask(ranks, not_before_unix_s, reason)

    def vetoes(self) -> Mapping[Gear, str]:
        """Return the gears that must not be used now, and why."""
        if self._demand is not None and self._demand.veto:
            return dict.fromkeys(Gear, self._demand.veto)
        if self._gears is None:
            return {}
        found = {**self._gears.vetoes, **self._gears.barred}
        asked, why = (None, "") if self._demand is None else self._demand.gear
        planner = None if self._schedule is None else self._schedule.planner
        if (
            planner is None
            or asked in found
            or not any(a is not None and a.gear == asked for a in planner.menu.actions)
        ):
            return found  # what nobody may use, or knows the cost of, is no choice of the plan's
        return {**{gear: why for gear in self._gears.box.gears if gear != asked}, **found}

    def measure(self, steps: float, slack: Callable[[float], float]) -> None:
        """Measure every gear in the coming steps, for the plan of a job of so many steps, as its deadline allows."""
        self.profiling.want(rounds=FEW_ROUNDS if steps < SHORT_JOB else None, slack=slack)

    @property
    def measuring(self) -> bool:
        """Whether gears are being measured in this step."""
        return self.profiling.running is not None

    # -- metrics and checkpoints -------------------------------------------------------------------------------

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
            out["budget"] = {"said": list(self._budget.reported)}
        return out

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where a checkpoint was written."""
        if self.gears is not None and "precision" in state:
            self.gears.load_state_dict(state["precision"])
        self._saved = state.get("plan")
        progress = state.get("progress") or {}
        self.steps, self._tokens = int(progress.get("steps", 0)), float(progress.get("tokens", 0.0))
        self._budget_events = tuple((state.get("budget") or {}).get("said", ()))

    # -- inside ------------------------------------------------------------------------------------------------

    def _shifted(self, before: Gear, decision: Decision, steps: int) -> None:
        run = self._host.active()
        if run is None:
            return
        self._shifted_s = self._host.mark("gear", str(decision.gear))
        text = f"{before} -> {decision.gear} after step {steps}: {decision.reason}"
        run.event("gear", text, step=steps, gear=str(decision.gear))

    def _unused(self, why: str) -> None:
        """What runs is not what the gears are on: the steps from here on belong to none."""
        self._host.mark("gear", "")
        run = self._host.active()
        if run is not None:
            run.event("warning", why)

    def _named_gears(self) -> "Gears | None":
        """Return the gears; a method, as a session that has not started can be sent to another process."""
        return self.gears

    def _plan_with(self, table: ActionTable | None) -> bool:
        """Plan with what was measured, None: nothing was; False where nothing is planned."""
        if self._schedule is None:
            return False
        if table is not None:
            self._schedule.use(table)
        else:
            self._schedule.give_up()
        return True


def is_engine(model: Any) -> bool:
    """Return whether this is a DeepSpeed engine."""
    # DeepSpeedEngine (deepspeed/runtime/engine.py): counts micro batches and calls its optimizer inside step().
    return all(hasattr(model, name) for name in ("micro_steps", "global_steps", "backward", "step"))
