"""A budget of grams in a training process: rank 0 looks at the books, all ranks hear what follows from it."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from greentrain.config.schema import PolicyConfig
from greentrain.control.coordination import RankZeroChannel, SyncSchedule
from greentrain.errors import ConfigError
from greentrain.ledger.active_run import ActiveRun
from greentrain.policy.action_table import Action, ActionTable
from greentrain.policy.budget import CarbonBudget
from greentrain.policy.menu import Menu
from greentrain.types import Gear

LOOK_S: Final = 5.0
"""How often the books are looked at (s): they are written every ``run.book_s``, 10 s."""


class BudgetWatch:
    """Watches ``policy.budget_g`` for one run, on every rank.

    Args:
        config: Section ``policy``, with a budget.
        run: The run.
        gears: Gears of the run.
        said: Events that an earlier part of the run has told.
        unix_s: Time.
    """

    def __init__(
        self,
        config: PolicyConfig,
        run: ActiveRun,
        gears: tuple[Gear, ...],
        said: tuple[str, ...] = (),
        unix_s: Callable[[], float] = time.time,
    ) -> None:
        self._config, self._run, self._gears, self._unix_s = config, run, gears, unix_s
        self._meetings = RankZeroChannel(f"{run.run_id}/budget", run.topology)
        self._agenda = SyncSchedule(unix_s)
        self._next_s = unix_s() + LOOK_S
        self.said = said
        """What was told, once each."""
        self.vetoes: Mapping[Gear, str] = {}
        """Gears that the budget rules out."""
        self.stop = False
        """True when a checkpoint should be written and the run should end."""

    def stepped(self, tokens_done: float, gear: Gear | None, table: ActionTable | None) -> None:
        """Note the end of an optimizer step; now and then, look.

        Args:
            tokens_done: Tokens of all ranks until now.
            gear: In use; None: the run has none.
            table: What gears cost, where it was measured.
        """
        if not self._agenda.step() or self.stop or not self._meetings.possible:
            return
        found = None
        if self._agenda.is_due(self._next_s):
            self._next_s = self._unix_s() + LOOK_S
            self._agenda.restart()
            if self._run.topology.rank == 0:
                try:
                    found = self._look(tokens_done, gear, table)
                except Exception as error:  # the other ranks wait for a word, whatever it is
                    self._run.warn(f"the carbon budget could not be looked at ({error!r})")
        heard = self._meetings.share({"found": found, "steps": self._agenda.steps_until(self._next_s)})
        if heard is None:
            self._agenda.meet_after(1 << 62)  # out of step with the others
            return
        self._agenda.meet_after(int(heard["steps"]))
        if heard["found"] is not None:
            self._take(heard["found"])

    def _look(self, tokens_done: float, gear: Gear | None, table: ActionTable | None) -> dict[str, Any]:
        sums = self._run.job_sums()
        spent_g = sums.emissions_g if sums.energy_j > sums.unpriced_j else None
        in_use = gear or Gear.FP32
        menu = self._menu(table, in_use)
        assert self._config.budget_g is not None
        budget = CarbonBudget(self._config.budget_g, self._config.budget_action, menu)
        view = budget.look(spent_g, tokens_done, self._config.tokens, in_use, self.said)
        barred = {
            str(action.gear) for action, no in zip(menu.actions, view.vetoed.tolist(), strict=True) if no and action
        }
        return {
            "events": [[event.kind, event.text] for event in view.events],
            "vetoed": sorted(barred),
            "stop": view.stop,
        }

    def _take(self, found: Mapping[str, Any]) -> None:
        for kind, text in found["events"]:
            self.said = (*self.said, kind)
            if self._run.topology.rank == 0:
                self._run.event("budget", text, budget=kind)
                self._run.warn(text, "see policy.budget_g")
        self.vetoes = {Gear(name): "the carbon budget is nearly spent" for name in found["vetoed"]}
        self.stop = bool(found["stop"])

    def _menu(self, table: ActionTable | None, gear: Gear) -> Menu:
        """Return the gears that may be used; only the one in use where nobody has measured what they cost."""
        if table is not None:
            try:
                return Menu.of(table, wanted=lambda action: action.gear in self._gears and action.cap == 1.0)
            except ConfigError:
                pass  # the table has no watts
        unknown = np.array([0.0, np.nan])
        return Menu(
            actions=(None, Action(gear=gear)),
            tokens_per_s=unknown,
            power_w=unknown,
            width=np.array([0, 1]),
            provenance="missing",
        )
