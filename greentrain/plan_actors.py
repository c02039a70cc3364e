"""What the plan of a session acts through; see ``greentrain.actors``."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from greentrain.action_table import Action
from greentrain.config import GreenConfig
from greentrain.handover import Offer
from greentrain.hands import Hands
from greentrain.host import Host
from greentrain.measuring import Measuring
from greentrain.types import Gear

if TYPE_CHECKING:
    from greentrain.gears import Gears  # loads torch
    from greentrain.leaving import Leaving


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
        hands: Hands,
        leaving: "Leaving | None",
        measuring: Measuring,
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
