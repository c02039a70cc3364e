"""The acting side of a session: gears, the phase that measures them, and what a checkpoint holds of both."""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from greentrain.action_cache import ActionCache
from greentrain.action_table import ActionTable
from greentrain.config import GreenConfig
from greentrain.errors import ConfigError, SessionError
from greentrain.runtime import ActiveRun
from greentrain.types import Decision, Gear
from greentrain.watch import is_engine

if TYPE_CHECKING:
    from greentrain.gear_table import GearTable  # loads torch, as the next
    from greentrain.gears import Gears


class Host(Protocol):
    """The part of a session that acting needs."""

    def active(self) -> ActiveRun | None:
        """Return the run, None where there is none in this process."""
        ...

    def mark(self, name: str, *what: Any) -> float:
        """Queue a mark of this moment and return its time (s)."""
        ...

    def energy(self, t0_s: float, t1_s: float, wait_s: float = 0.0) -> Mapping[str, float] | None:
        """Return joules by device between two times."""
        ...


class Control:
    """Shifts, profiles and plans for one session.

    Args:
        config: The checked configuration.
        host: The session.
    """

    def __init__(self, config: GreenConfig, host: Host) -> None:
        self._config = config
        self._host = host
        self._gears: Gears | None = None
        self._profile: GearTable | None = None
        self._shifted_s: float | None = None
        self._until_close = False
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

    def started(self, *, resumed: bool) -> None:
        """A run begins, or goes on from a checkpoint."""
        if self._gears is not None and not resumed:
            self._gears.restart()
        self._shifted_s = self._profile = None

    def closed(self) -> None:
        """The run is over: what was changed for its time is changed back."""
        if self._gears is not None:
            self._gears.detach() if self._until_close else self._gears.release()

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

    def stepped(self, tokens: int, samples: int) -> None:
        """A step was told."""
        if self._profile is not None:
            self._profile.step(tokens, samples)

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
        run = self._host.active()
        if run is None or self.gears is None:
            raise SessionError(
                "profile_gears() needs a running session with precision.gears and a watched model: start() it, name the"
                " gears, and watch(model, optimizer) first"
            )
        from greentrain.gear_table import GearTable

        self._profile = GearTable(
            self.gears.box,
            run.sensors,
            self._host.energy,
            max_steps=max_steps,
            cache=None if refresh else ActionCache(),
            tell=self._measured,
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
        return {} if self._gears is None else {"precision": self._gears.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where a checkpoint was written."""
        if self.gears is not None and "precision" in state:
            self.gears.load_state_dict(state["precision"])

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
            run.event("profile", f"{len(table.costs)} gears were measured side by side")
            run.know(action_table=table.to_dict())
