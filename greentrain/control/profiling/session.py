"""Measures what gears and power limits cost, in the training's own steps: for a plan, a power limit, or by hand.

One power limit for the whole run, where no policy plans: chosen by an objective once the limits were measured.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from greentrain.config.schema import GreenConfig
from greentrain.control.coordination import RankZeroChannel
from greentrain.control.gpu_limits import FULL, GpuLimits
from greentrain.control.interfaces import Host
from greentrain.control.profiling.cache import ActionCache
from greentrain.errors import ConfigError, SessionError
from greentrain.ledger.active_run import ActiveRun
from greentrain.ledger.pue import in_run_time
from greentrain.policy.action_table import Action, ActionTable
from greentrain.policy.objective import Objective, choose
from greentrain.types import Gear
from greentrain.utils.never_raise import never_raises

if TYPE_CHECKING:
    from greentrain.control.gears import Gears
    from greentrain.control.profiling.distributed import ProfilingRun


FIRST_READING_S: Final = 2.0
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

    Args:
        config: The checked configuration.
        host: The session.
        gears: Returns those of the session; None where the configuration names none.
        plan_with: Called with a table; returns whether a plan uses it, else one power limit is chosen from it.
    """

    def __init__(
        self,
        config: GreenConfig,
        host: Host,
        *,
        gears: Callable[[], "Gears | None"],
        plan_with: Callable[[ActionTable], bool],
    ) -> None:
        self._config, self._host = config, host
        self._gears, self._plan_with = gears, plan_with
        self._hands = GpuLimits()
        self.table: ActionTable | None = None
        """What was measured last; None before."""
        self.running: ProfilingRun | None = None
        """What measures now; None: nothing does."""
        self.wants_caps = False
        """True until :meth:`measure_caps`, where a run without a plan is to choose a power limit."""

    def started(self, hands: GpuLimits) -> None:
        """A run begins; its power limits are those of ``hands``."""
        self._hands, self.running = hands, None
        self.wants_caps = not self._config.policy.plans and self._config.actuators.power_cap is not None

    @never_raises
    def measure_caps(self) -> None:
        """Measure power limits where every rank has some; a rank without any must say so, or the others wait for it."""
        self.wants_caps = False
        from greentrain.control.profiling.distributed import everybody

        if all(len(caps) > 1 for caps in everybody(self._hands.caps)):
            self.profile(None, refresh=False, max_steps=PLAN_STEPS)

    def measure_for_plan(self, steps: float) -> None:
        """Measure every gear in the coming steps, for the plan of a job of so many steps."""
        rounds = FEW_ROUNDS if steps < SHORT_JOB else None
        self.profile(None, refresh=False, max_steps=PLAN_STEPS, rounds=rounds)

    def profile(
        self, step: Callable[[], int | None] | None, *, refresh: bool, max_steps: int, rounds: int | None = None
    ) -> ActionTable | None:
        """Measure what every gear costs; see ``GreenSession.profile_gears``.

        Args:
            step: Trains one step; None: the coming steps of the training are used.
            refresh: Measure even if there is a table.
            max_steps: Most steps, over all gears.
            rounds: Blocks a gear; None: as usual.

        Raises:
            ConfigError: The steps are too few.
            SessionError: No run, no gears or no model.
        """
        run = self._host.active()
        gears = None if run is None else self._gears()
        if run is None or gears is None:
            raise SessionError(
                "profile_gears() needs a running session with precision.gears and a watched model: start() it, name the"
                " gears, and watch(model, optimizer) first"
            )
        from greentrain.control.profiling.distributed import ProfilingRun

        end_s = time.monotonic() + FIRST_READING_S
        while not run.sensors and time.monotonic() < end_s:
            time.sleep(0.02)
        self.running = ProfilingRun(
            gears.box,
            run.sensors,
            self._host.energy,
            max_steps=max_steps,
            cache=None if refresh else ActionCache(),
            tell=self._measured,
            rounds=rounds,
            caps=self._hands.power_cap,
            objective=None if self._config.policy.plans or self._hands.power_cap is None else self._objective(run),
        )
        gears.measure(self.running)
        if step is not None:
            self.running.run(step)
            gears.measure(None)
        return self.table

    def _measured(self, table: ActionTable) -> None:
        self.table, self.running = table, None
        run = self._host.active()
        if run is not None:
            run.event("profile", f"{len(table.costs)} actions were measured side by side")
            run.know(action_table=table.to_dict())
        if self._plan_with(table):
            return
        if run is not None and any(action.cap != FULL for action in table.actions):  # so on every rank
            self._choose_cap(run, table)

    def _objective(self, run: ActiveRun) -> "Objective":

        return objective_of(self._config, run, self._hands.limit_w)

    @never_raises
    def _choose_cap(self, run: ActiveRun, table: ActionTable) -> None:

        gear = Gear(self._config.policy.gear or self._config.precision.gears[0])
        cap = choose_cap(table, lambda: self._objective(run), run, gear, self._hands.caps)
        if cap is not None:
            self._hands.cap(cap, at_once=True)


def check_gears(config: GreenConfig) -> None:
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


def objective_of(config: GreenConfig, run: ActiveRun, limit_w: float | None) -> Objective:
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
    return Objective(
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
    objective: Callable[[], Objective],
    run: ActiveRun,
    gear: Gear,
    fractions: tuple[float, ...],
) -> float | None:
    """Return rank 0's choice on all ranks: the best limit for one gear; None where there is none. Every rank calls it.

    Args:
        table: What was measured.
        objective: Returns what it is chosen for; asked on rank 0.
        run: The run.
        gear: The gear of the run.
        fractions: Limits that this process can set.
    """
    cap: float | None = None
    if run.topology.rank == 0:
        try:
            wanted = objective()
            found = choose(
                table,
                wanted,
                reference=Action(gear=gear),
                wanted=lambda action: action.gear is gear and action.cap in fractions,
            )
            cap = found.action.cap
            run.event("cap", f"{found} ({wanted.name})", cap=cap)
        except Exception as error:  # the others wait for a word
            run.warn(f"the power limit stays as it was found: {error}")
    said = RankZeroChannel(f"{run.run_id}/cap", run.topology).share({"cap": cap})
    return None if said is None or said["cap"] is None else float(said["cap"])
