"""The three numbers of a run in hindsight, and why one of them may not be known."""

import numpy as np
import pytest

from greentrain.policy.hindsight import BLIND, REGRET, STATIC, judge
from greentrain.policy.menu import Menu
from greentrain.policy.waterfill import solve
from tests.policy.cases import action_table, grid

MENU = Menu.of(action_table())
SPEED, POWER_W = float(MENU.tokens_per_s[MENU.static]), float(MENU.power_w[MENU.static])
G = grid(np.random.default_rng(0), 48)
HOURS = np.full(48, 3600.0)
TOKENS = SPEED * HOURS.sum() / 1.5


def test_the_three_numbers_by_hand() -> None:
    plan = solve(G, HOURS, TOKENS, MENU)
    verdict = judge(G, HOURS, MENU, TOKENS, plan.rounded_grams)
    static_g = POWER_W * G[:32].sum() / 1000.0
    pace_w = np.interp(TOKENS / HOURS.sum(), MENU.tokens_per_s[MENU.hull], MENU.power_w[MENU.hull])
    assert verdict.static_g == pytest.approx(static_g)
    assert verdict.blind_g == pytest.approx(pace_w * G.sum() / 1000.0)
    assert verdict.oracle_g == pytest.approx(plan.grams)
    assert verdict.saving_vs_static == pytest.approx(1 - plan.rounded_grams / static_g)
    assert verdict.regret == pytest.approx(plan.rounded_grams / plan.grams - 1)
    assert verdict.saving_vs_static is not None and verdict.saving_vs_blind is not None
    assert verdict.saving_vs_static > verdict.saving_vs_blind > 0
    assert not verdict.unknown and verdict.static_name == "bf16 on 8"


def test_the_usual_training_saves_nothing_against_itself() -> None:
    tokens = SPEED * 30.5 * 3600.0
    grams = POWER_W * (G[:30].sum() + 0.5 * G[30]) / 1000.0
    verdict = judge(G, HOURS, MENU, tokens, grams)
    assert verdict.saving_vs_static == pytest.approx(0.0, abs=1e-12)
    assert verdict.saving_vs_blind is not None and verdict.saving_vs_blind < 0


def test_limits_count_in_all_plans() -> None:
    free = judge(G, HOURS, MENU, TOKENS, 1.0)
    limited = judge(G, HOURS, MENU, TOKENS, 1.0, fp8_max_share=0.3)
    held = judge(G, HOURS, Menu.of(action_table(), released=False, idle_w=2100.0), TOKENS, 1.0)
    for other in (limited, held):
        assert other.blind_g is not None and free.blind_g is not None and other.blind_g > 1.01 * free.blind_g
        assert other.oracle_g is not None and free.oracle_g is not None and other.oracle_g > 1.01 * free.oracle_g
        assert other.oracle_g < other.blind_g
        assert other.static_g == free.static_g


def test_what_is_not_known_is_none_and_says_why() -> None:
    late = G.copy()
    late[40] = np.nan  # after the end of the usual training
    verdict = judge(late, HOURS, MENU, TOKENS, 1000.0)
    assert verdict.saving_vs_static is not None
    assert verdict.saving_vs_blind is None and verdict.regret is None and verdict.oracle_g is None
    assert set(verdict.unknown) == {BLIND, REGRET}
    assert "not known in 1 of the 48 h" in verdict.unknown[REGRET]

    nothing = judge(G, HOURS, MENU, TOKENS, None, why_unknown="no meter was open")
    assert nothing.unknown == dict.fromkeys((STATIC, BLIND, REGRET), "no meter was open")
    assert nothing.saving_vs_static is None and nothing.static_g is not None

    short = judge(G[:20], HOURS[:20], MENU, TOKENS, 1000.0)
    assert "would last 32 h" in short.unknown[STATIC]
    assert "cannot be done" in short.unknown[REGRET] and "cannot be done" in short.unknown[BLIND]

    idle = judge(G, HOURS, MENU, 0.0, 0.0)
    assert set(idle.unknown.values()) == {"no tokens were trained"}

    clean = judge(np.zeros(48), HOURS, MENU, TOKENS, 0.0)
    assert clean.saving_vs_static is None and "emits nothing" in clean.unknown[STATIC]


def test_columns_without_time_need_no_intensity() -> None:
    verdict = judge(np.append(G, np.nan), np.append(HOURS, 0.0), MENU, TOKENS, 1000.0)
    assert not verdict.unknown
