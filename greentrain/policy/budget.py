"""A budget of grams: warn at 80 %, take a cheaper precision where that is allowed, then stop with a checkpoint.

Pure: what was said already is handed in, so that nothing is said twice, a resumed run included. ::

    within --80 %--> near  [warn, suggest; cheaper/stop: veto all gears but the cheapest]
    near --100 %--> spent  [warn; stop: checkpoint and end]
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from greentrain.policy.menu import OFF, Menu
from greentrain.types import G_PER_KG, Gear

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
    """What has not been said before."""
    vetoed: NDArray[np.bool_]
    """(m,) rows that must not be used."""
    stop: bool
    """True: take a checkpoint and end."""


class CarbonBudget:
    """Watches the grams of a run.

    Args:
        budget_g: What the run may emit, operational (g).
        action: ``warn``: only says so; ``cheaper``: also the gear of least energy a token from 80 % on; ``stop``: also
            a checkpoint and an end at 100 %.
        menu: What the job can do.
    """

    def __init__(self, budget_g: float, action: str, menu: Menu) -> None:
        self._budget_g, self._action = budget_g, action
        self._gears = np.array(["" if row is None else str(row.gear) for row in menu.actions])
        with np.errstate(divide="ignore", invalid="ignore"):
            j_per_token = np.where(menu.tokens_per_s > 0, menu.power_w / menu.tokens_per_s, np.inf)
        self._least_j = {gear: float(j_per_token[self._gears == gear].min()) for gear in set(self._gears) - {""}}
        self._cheapest = min(self._least_j, key=lambda gear: self._least_j[gear])

    def look(
        self, spent_g: float | None, tokens_done: float, tokens: float | None, gear: Gear, said: Collection[str] = ()
    ) -> BudgetView:
        """Return what the budget asks for.

        Args:
            spent_g: Emitted until now (g); None where nobody knows.
            tokens_done: Trained until now.
            tokens: Of the whole job; None: not known.
            gear: In use.
            said: ``kind`` of the events that were told before.
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
            events=tuple(event for event in events if event.kind not in said),
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
        share = 1.0 - self._least_j[self._cheapest] / self._least_j.get(str(gear), float("inf"))
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
