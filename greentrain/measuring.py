"""Measures what gears and power limits cost, in the training's own steps: for a plan, a power limit, or by hand."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from greentrain.action_cache import ActionCache
from greentrain.action_table import ActionTable
from greentrain.config import GreenConfig
from greentrain.errors import ConfigError, SessionError
from greentrain.hands import FULL, Hands
from greentrain.harmless import harmless
from greentrain.host import Host
from greentrain.runtime import ActiveRun
from greentrain.types import Gear

if TYPE_CHECKING:
    from greentrain.gear_table import GearTable  # loads torch, as the next
    from greentrain.gears import Gears
    from greentrain.policy.objective import Objective

FIRST_READING_S: Final = 2.0
"""How long a profile waits for the sensors of a run that has just begun (s): probing them takes up to 0.4 s."""
PLAN_STEPS: Final = 2000
"""Most steps in which a plan learns what its gears cost: steps of milliseconds need many for a block of 1 s, which
sensors need; usual ones are done after tens."""

SHORT_JOB: Final = 2000
"""A job of fewer optimizer steps is measured in fewer blocks: what it learns must not take a good part of it."""
FEW_ROUNDS: Final = 2
"""Blocks a gear then; fewer would have no interval."""


class Measuring:
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
        self._hands = Hands()
        self.table: ActionTable | None = None
        """What was measured last; None before."""
        self.running: GearTable | None = None
        """What measures now; None: nothing does."""
        self.wants_caps = False
        """True until :meth:`measure_caps`, where a run without a plan is to choose a power limit."""

    def started(self, hands: Hands) -> None:
        """A run begins; its power limits are those of ``hands``."""
        self._hands, self.running = hands, None
        self.wants_caps = not self._config.policy.plans and self._config.actuators.power_cap is not None

    @harmless
    def measure_caps(self) -> None:
        """Measure power limits where every rank has some; a rank without any must say so, or the others wait for it."""
        self.wants_caps = False
        from greentrain.gear_table import everybody

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
        from greentrain.gear_table import GearTable

        end_s = time.monotonic() + FIRST_READING_S
        while not run.sensors and time.monotonic() < end_s:
            time.sleep(0.02)
        self.running = GearTable(
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
        from greentrain.cap_choice import objective_of

        return objective_of(self._config, run, self._hands.limit_w)

    @harmless
    def _choose_cap(self, run: ActiveRun, table: ActionTable) -> None:
        from greentrain.cap_choice import choose_cap

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
