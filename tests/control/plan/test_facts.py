"""What a plan remembers between attempts, and what it takes for granted of a width that it never had."""

import json

import pytest

from greentrain.control.plan.schedule import PlanFacts
from greentrain.policy.action_table import Action, ActionCost, ActionTable, MeanWithCI
from greentrain.types import Gear


def table(ranks: int, *rows: tuple[Gear, float, float | None]) -> ActionTable:
    costs = [
        ActionCost(
            action=Action(gear=gear),
            steps_per_s=MeanWithCI(mean=speed / 10),
            tokens_per_s=MeanWithCI(mean=speed, low=speed - 1, high=speed + 1),
            power_w=None if watts is None else MeanWithCI(mean=watts),
            provenance="missing" if watts is None else "measured",
            steps=12,
            blocks=4,
        )
        for gear, speed, watts in rows
    ]
    return ActionTable(costs=tuple(costs), device="a device", world_size=ranks, created_unix_s=1.0)


def test_facts_survive_a_checkpoint() -> None:
    facts = PlanFacts(idle_w=60.0)
    facts.tables[2] = table(2, (Gear.BF16, 100.0, 500.0))
    again = PlanFacts.from_dict(json.loads(json.dumps(facts.to_dict())))
    assert again == facts
    assert PlanFacts.from_dict({}) == PlanFacts()
    assert PlanFacts.from_dict({"tables": {"2": {"format": 99}}}).tables == {}


def test_a_table_counts_where_it_holds_every_gear() -> None:
    facts = PlanFacts()
    facts.tables[1] = table(1, (Gear.BF16, 100.0, 500.0))
    assert facts.table(1, ["bf16"]) is facts.tables[1]
    assert facts.table(1, ["bf16", "fp8"]) is None and facts.table(2, ["bf16"]) is None


def test_a_width_that_was_never_tried_is_taken_in_proportion_and_says_so() -> None:
    facts = PlanFacts()
    facts.tables[1] = table(1, (Gear.BF16, 100.0, 500.0))
    wide = facts.at_widths(table(4, (Gear.BF16, 300.0, 1900.0)), 4, (1, 2, 4, 8))
    rows = {cost.action.ranks: cost for cost in wide.costs}
    assert list(rows) == [1, 2, 4, 8] and wide.world_size == 8
    speeds = {n: row.tokens_per_s.mean for n, row in rows.items() if row.tokens_per_s is not None}
    assert speeds == pytest.approx({1: 100.0, 2: 200.0, 4: 300.0, 8: 600.0})
    assert [rows[n].provenance for n in (1, 2, 4, 8)] == ["measured", "assumed", "measured", "assumed"]
    assumed = rows[8]
    assert assumed.power_w == MeanWithCI(mean=3800.0) and (assumed.steps, assumed.blocks) == (0, 0)
    assert assumed.tokens_per_s is not None and assumed.tokens_per_s.low is None


def test_unknown_watts_stay_unknown_and_named_widths_stay_as_they_are() -> None:
    wide = PlanFacts().at_widths(table(1, (Gear.BF16, 100.0, None)), 1, (1, 2))
    assert [(cost.power_w, cost.provenance) for cost in wide.costs] == [(None, "missing")] * 2
    named = ActionTable.declare(
        [{"gear": "bf16", "ranks": n, "tokens_per_s": 90.0 * n, "power_w": 100.0} for n in (1, 3)], device="declared"
    )
    assert PlanFacts().at_widths(named, 1, (1, 2, 3)) is named
