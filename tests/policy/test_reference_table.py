"""The table that the benchmarks assume."""

import pytest

from greentrain.policy.action_sources import SETS, reference_table
from greentrain.policy.menu import Menu


@pytest.mark.parametrize(("actions", "rows", "hull"), [("T1", 1, 2), ("T2", 8, 9), ("T4", 2, 2), ("T6", 48, 11)])
def test_how_many_actions_a_best_plan_can_use(actions: str, rows: int, hull: int) -> None:
    menu = Menu.of(reference_table(actions))
    assert (len(menu) - 1, len(menu.hull)) == (rows, hull)
    assert menu.provenance == "assumed"


def test_static_is_eight_nodes_in_bf16() -> None:
    for actions in SETS:
        menu = Menu.of(reference_table(actions))
        assert str(menu.actions[menu.static]) == "bf16 on 8"
        assert menu.power_w[menu.static] == pytest.approx(62_400.0)
        assert menu.tokens_per_s[menu.static] == pytest.approx(701_754.4, rel=1e-6)
