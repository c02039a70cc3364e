"""What a plan has learned and a checkpoint keeps: what actions cost at each width, and what a resting rank draws."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from greentrain.policy.action_table import Action, ActionCost, ActionTable, MeanWithCI


@dataclass(slots=True)
class PlanFacts:
    """Facts of one job on its devices, over all its attempts."""

    idle_w: float | None = None
    """Power of one rank that is held and does not work (W); None: not measured."""
    tables: dict[int, ActionTable] = field(default_factory=dict)
    """What was measured, by number of ranks."""

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> "PlanFacts":
        """Return what :meth:`to_dict` wrote; what cannot be read is measured again."""
        tables = {}
        for ranks, data in (state.get("tables") or {}).items():
            try:
                tables[int(ranks)] = ActionTable.from_dict(data)
            except ValueError:
                continue
        idle_w = state.get("idle_w")
        return cls(idle_w=None if idle_w is None else float(idle_w), tables=tables)

    def to_dict(self) -> dict[str, Any]:
        """Return the facts in plain JSON types."""
        return {"idle_w": self.idle_w, "tables": {str(n): table.to_dict() for n, table in self.tables.items()}}

    def table(self, ranks: int, gears: Sequence[str]) -> ActionTable | None:
        """Return what was measured at a width; None where one of the gears is not in it."""
        table = self.tables.get(ranks)
        known = () if table is None else {str(action.gear) for action in table.actions}
        return table if set(gears).issubset(known) else None

    def keep(self, ranks: int, table: ActionTable) -> None:
        """Remember what was measured at a width."""
        self.tables[ranks] = table

    def at_widths(self, table: ActionTable, ranks: int, widths: Sequence[int]) -> ActionTable:
        """Return the actions of a table at several widths.

        Widths that the table names itself stay as they are. A width that no attempt has had yet is taken from the
        nearest one by proportion, labelled ``assumed``: too good where ranks wait for each other, so that a plan tries
        it and then knows better.

        Args:
            table: Of this attempt.
            ranks: Its width.
            widths: All that may be used.
        """
        if any(cost.action.ranks is not None for cost in table.costs):
            return table
        known = {**self.tables, ranks: table}
        costs: list[ActionCost] = []
        for width in widths:
            nearest = min(known, key=lambda n: (abs(n - width), n))
            costs += [_at(cost, width, width / nearest) for cost in known[nearest].costs]
        return replace(table, costs=tuple(costs), world_size=max(widths))


def _at(cost: ActionCost, ranks: int, times: float) -> ActionCost:
    action = Action(gear=cost.action.gear, cap=cost.action.cap, ranks=ranks)
    if times == 1.0:
        return replace(cost, action=action)
    return replace(
        cost,
        action=action,
        steps_per_s=_times(cost.steps_per_s, times),
        tokens_per_s=_times(cost.tokens_per_s, times),
        samples_per_s=_times(cost.samples_per_s, times),
        power_w=_times(cost.power_w, times),
        provenance="missing" if cost.power_w is None else "assumed",
        steps=0,
        blocks=0,
    )


def _times(estimate: MeanWithCI | None, times: float) -> MeanWithCI | None:
    return None if estimate is None else MeanWithCI(mean=estimate.mean * times)
