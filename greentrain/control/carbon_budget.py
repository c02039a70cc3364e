"""A budget of grams in a training process: warn at 80 %, take a cheaper precision, then stop with a checkpoint.

Rank 0 looks at the books, and all ranks receive what follows from it (:class:`BudgetWatch`). What follows is pure
(:class:`CarbonBudget`): what was reported is handed in, so nothing is reported twice, a resumed run included. ::

    within --80 %--> near  [warn, suggest; cheaper/stop: veto all gears but the cheapest]
    near --100 %--> spent  [warn; stop: checkpoint and end]
"""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from greentrain.config.schema import PolicyConfig
from greentrain.control.coordination import RankZeroChannel, SyncSchedule, Words
from greentrain.errors import ConfigError
from greentrain.ledger.active_run import ActiveRun
from greentrain.policy.action_table import Action, ActionTable
from greentrain.policy.menu import OFF, Menu
from greentrain.types import G_PER_KG, J_PER_KWH, Gear

NEAR: Final = 0.8
"""Share of the budget at which it is time to say so; a round number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetEvent:
    """Something to tell, once."""

    kind: str
    """``near``, ``suggest``, ``cheaper``, ``spent`` or ``stop``."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BudgetView:
    """What a budget asks for now."""

    share: float
    """Of the budget that is spent; NaN where the grams are not known."""
    events: tuple[BudgetEvent, ...]
    """What has not been reported before."""
    vetoed: NDArray[np.bool_]
    """(m,) rows that must not be used."""
    stop: bool
    """True: take a checkpoint and end."""


class CarbonBudget:
    """Watches the grams of a run.

    Args:
        budget_g: Most operational emissions of the run (g).
        action: ``warn``: only says so; ``cheaper``: also the gear of least energy a token from 80 % on; ``stop``: also
            a checkpoint and an end at 100 %.
        menu: Menu of the choices of the job.
    """

    def __init__(self, budget_g: float, action: str, menu: Menu) -> None:
        self._budget_g, self._action = budget_g, action
        self._gears = np.array(["" if row is None else str(row.gear) for row in menu.actions])
        with np.errstate(divide="ignore", invalid="ignore"):
            j_per_token = np.where(menu.tokens_per_s > 0, menu.power_w / menu.tokens_per_s, np.inf)
        self._least_j = {gear: float(j_per_token[self._gears == gear].min()) for gear in set(self._gears) - {""}}
        self._cheapest = min(self._least_j, key=lambda gear: self._least_j[gear])

    def look(
        self,
        spent_g: float | None,
        tokens_done: float,
        tokens: float | None,
        gear: Gear,
        reported: Collection[str] = (),
    ) -> BudgetView:
        """Return what the budget asks for.

        Args:
            spent_g: Emitted until now (g); None where nobody knows.
            tokens_done: Trained until now.
            tokens: Tokens of the whole job; None: not known.
            gear: Gear in use.
            reported: ``kind`` of the events that were reported before.
        """
        free = np.zeros(len(self._gears), np.bool_)
        if spent_g is None:
            return BudgetView(share=float("nan"), events=(), vetoed=free, stop=False)
        share = spent_g / self._budget_g
        events: list[BudgetEvent] = []
        if share >= NEAR:
            events += self._near(spent_g, tokens_done, tokens, gear)
        if share >= 1.0:
            events += self._spent(spent_g, tokens_done, tokens)
        cheaper = share >= NEAR and self._action in ("cheaper", "stop")
        vetoed = (self._gears != self._cheapest) & (np.arange(len(self._gears)) != OFF) if cheaper else free
        return BudgetView(
            share=share,
            events=tuple(event for event in events if event.kind not in reported),
            vetoed=vetoed,
            stop=share >= 1.0 and self._action == "stop",
        )

    def _near(self, spent_g: float, tokens_done: float, tokens: float | None, gear: Gear) -> list[BudgetEvent]:
        text = f"{_mass(spent_g)} of the budget of {_mass(self._budget_g)} are spent ({spent_g / self._budget_g:.0%})"
        rest_g = None
        if tokens is not None and tokens_done > 0:
            rest_g = spent_g / tokens_done * max(0.0, tokens - tokens_done)
            text += f", for {tokens_done / tokens:.0%} of the tokens; as until now the whole job takes"
            text += f" {_mass(spent_g + rest_g)}"
        events = [BudgetEvent(kind="near", text=text)]
        if str(gear) == self._cheapest:
            return events
        saves = f"{self._cheapest} needs least energy a token of the gears whose cost is known"
        if str(gear) in self._least_j:
            share = 1.0 - self._least_j[self._cheapest] / self._least_j[str(gear)]
            saves = f"{self._cheapest} needs {share:.0%} less energy a token than {gear}"
            if rest_g is not None:
                saves += f", about {_mass(share * rest_g)} less for the rest of the job"
        if self._action == "warn":
            remedy = ": use it, or let policy.budget_action 'cheaper' do so"
            return [*events, BudgetEvent(kind="suggest", text=saves + remedy)]
        return [*events, BudgetEvent(kind="cheaper", text=f"{saves}, so it is the only gear from now on")]

    def _spent(self, spent_g: float, tokens_done: float, tokens: float | None) -> list[BudgetEvent]:
        left = "" if tokens is None else f" with {max(0.0, 1 - tokens_done / tokens):.0%} of the tokens left"
        text = f"the budget of {_mass(self._budget_g)} is spent ({_mass(spent_g)}){left}"
        if self._action != "stop":
            return [BudgetEvent(kind="spent", text=f"{text}; policy.budget_action {self._action!r} lets it go on")]
        return [BudgetEvent(kind="stop", text=f"{text}: a checkpoint is taken and the run ends")]


def _mass(grams: float) -> str:
    return f"{grams / G_PER_KG:.3g} kg" if grams >= G_PER_KG else f"{grams:.3g} g"


MODEL: Final = (
    "a smaller, pruned or more coarsely quantised model is another model, of whose cost this run knows nothing"
)
"""Said of what the paper on Eco-Orchestrator names as future work."""
LATER: Final = 0.9
"""An hour is worth waiting for where it has a tenth less; a round number."""
LOOK_S: Final = 5.0
"""How often the books are looked at (s): they are written every ``run.book_s``, 10 s."""


class BudgetWatch:
    """Watches ``policy.budget_g`` for one run, on every rank.

    Args:
        config: Section ``policy``, with a budget.
        run: The run.
        gears: Gears of the run.
        reported: Events that an earlier part of the run has reported.
        clock_s: Time (s): a clock that is set back must not end the looks.
    """

    def __init__(
        self,
        config: PolicyConfig,
        run: ActiveRun,
        gears: tuple[Gear, ...],
        reported: tuple[str, ...] = (),
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._run, self._gears, self._clock_s = config, run, gears, clock_s
        self._sync = SyncSchedule(RankZeroChannel(f"{run.run_id}/budget", run.topology), clock_s, run.warn)
        self._next_s = clock_s() + LOOK_S
        self.reported = reported
        """Events that were reported, once each."""
        self.vetoes: Mapping[Gear, str] = {}
        """Gears that the budget rules out."""
        self.stop = False
        """True when a checkpoint should be written and the run should end."""

    def stepped(self, tokens_done: float, gear: Gear | None, table: ActionTable | None) -> None:
        """Note the end of an optimizer step; now and then, look.

        Args:
            tokens_done: Tokens of all ranks until now.
            gear: Gear in use; None: the run has none.
            table: Table of the costs of gears; None: it was not measured.
        """
        if self.stop:
            return
        found = self._sync.stepped(lambda: self._say(tokens_done, gear, table))
        if found is not None:
            self._take(found)

    def _say(self, tokens_done: float, gear: Gear | None, table: ActionTable | None) -> Words:
        """Return what follows from the books, where that is new; rank 0 tells all ranks."""
        found = None
        if self._sync.is_due(self._next_s):
            self._next_s = self._clock_s() + LOOK_S
            self._sync.restart()
            try:
                found = self._look(tokens_done, gear, table)
            except Exception as error:
                self._run.warn(f"the carbon budget could not be looked at ({error!r})")
        if found is not None and not (found["events"] or found["stop"] or found["vetoed"] != sorted(self.vetoes)):
            found = None
        return found, self._sync.steps_until(self._next_s)

    def _look(self, tokens_done: float, gear: Gear | None, table: ActionTable | None) -> dict[str, Any]:
        sums = self._run.job_sums()
        spent_g = sums.emissions_g if sums.energy_j > sums.unpriced_j else None
        in_use = gear or Gear.FP32
        menu = self._menu(table, in_use)
        assert self._config.budget_g is not None
        budget = CarbonBudget(self._config.budget_g, self._config.budget_action, menu)
        view = budget.look(spent_g, tokens_done, self._config.tokens, in_use, self.reported)
        ways = "; ".join([*self._ways(table, in_use), MODEL]) if view.events else ""
        barred = {
            str(action.gear) for action, no in zip(menu.actions, view.vetoed.tolist(), strict=True) if no and action
        }
        return {
            "events": [[e.kind, f"{e.text}. Besides: {ways}" if e.kind == "near" else e.text] for e in view.events],
            "vetoed": sorted(barred),
            "stop": view.stop,
        }

    def _ways(self, table: ActionTable | None, gear: Gear) -> list[str]:
        """Return what else would make the rest cheaper, by what was measured in this run."""
        ways, run = [], self._run
        costs = {} if table is None else {c.action: c for c in table.costs if c.power_w and c.tokens_per_s}
        full = costs.pop(Action(gear=gear), None)
        caps = [cost for action, cost in costs.items() if action.gear == gear and action.ranks is None]
        if full is not None and caps:
            each_j = {
                c.action: c.power_w.mean / c.tokens_per_s.mean for c in (full, *caps) if c.power_w and c.tokens_per_s
            }
            least = min((full, *caps), key=lambda cost: each_j[cost.action])
            if least is not full and least.tokens_per_s and full.tokens_per_s:
                saved = 1.0 - each_j[least.action] / each_j[full.action]
                speed = least.tokens_per_s.mean / full.tokens_per_s.mean
                ways.append(
                    f"{least.action} takes {saved:.0%} less energy a token at {speed:.0%} of the speed"
                    f" ({least.provenance}): actuators.power_cap"
                )
        entry, totals = run.last_entry, run.ledger.totals
        now = None if entry is None else entry.carbon.g_per_kwh
        if now is not None and totals.facility_j > 0 and not totals.unpriced_j:
            mean = totals.operational_g / totals.facility_j * J_PER_KWH
            if mean < LATER * now:
                ways.append(
                    f"the grid has {now:.0f} g/kWh now and had {mean:.0f} on average in this run,"
                    f" {1 - mean / now:.0%} less: policy.name 'mpc' with policy.deadline waits for such hours"
                )
        if Gear.FP8 not in self._gears:
            ways.append("what FP8 takes was not measured, as it is not among precision.gears")
        return ways

    def _take(self, found: Mapping[str, Any]) -> None:
        for kind, text in found["events"]:
            self.reported = (*self.reported, kind)
            if self._run.topology.rank == 0:
                self._run.event("budget", text, budget=kind)
                self._run.warn(text, "see policy.budget_g")
        self.vetoes = {Gear(name): "the carbon budget is nearly spent" for name in found["vetoed"]}
        self.stop = bool(found["stop"])

    def _menu(self, table: ActionTable | None, gear: Gear) -> Menu:
        """Return the gears that may be used; only the one in use where nobody has measured what they cost."""
        if table is not None:
            try:
                return Menu.of(table, wanted=lambda a: a.gear in self._gears and a.cap == 1.0 and table.better(a))
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
