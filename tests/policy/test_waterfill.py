"""The best plan: against HiGHS, with its limits, and what must hold for every plan."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.sparse import csr_matrix, eye, hstack, kron

from greentrain.errors import ConfigError
from greentrain.policy.menu import OFF, Menu
from greentrain.policy.waterfill import Plan, price, row_at, shortest_s, solve
from greentrain.types import Gear
from tests.policy.cases import Array, action_table, grid, small_menu

MENU = Menu.of(action_table())
STATIC = float(MENU.tokens_per_s[MENU.static])
HOURS = np.full(336, 3600.0)


def least_grams(g: Array, weights_s: Array, tokens: float, menu: Menu, share: float, last: int) -> float:
    """Solve the linear programme with HiGHS: seconds of each row in each column, the job ending in column ``last``."""
    k, m = last + 1, len(menu)
    cost = np.append(np.outer(g[:k], menu.power_w).ravel() / 3.6e6, 0.0)
    ended = np.zeros((k, 1))
    ended[-1] = menu.power_w[OFF] > 0
    scale = max(1e-9, float(np.abs(cost).max()))
    limits = np.array([np.tile(-menu.tokens_per_s, k) / tokens, np.tile(menu.fp8.astype(float), k)])
    found = linprog(
        cost / scale,
        A_ub=np.hstack([limits, np.zeros((2, 1))]),
        b_ub=[-1.0, share * weights_s.sum()],
        A_eq=hstack([kron(eye(k), np.ones((1, m))), csr_matrix(ended)]),
        b_eq=weights_s[:k],
        method="highs-ds",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    return float(found.fun * scale) if found.status == 0 else np.inf


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["plain", "fp8", "held", "held fp8"])
@pytest.mark.parametrize("seed", range(25))
def test_it_is_the_optimum_of_the_linear_programme(kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    h = int(rng.integers(1, 25))
    menu = small_menu(rng, int(rng.integers(1, 10)), idle_w=float(rng.uniform(0.1, 100.0)) if "held" in kind else None)
    g = grid(rng, h) if seed % 3 else rng.integers(0, 4, h).astype(np.float64) * 100.0
    weights_s = rng.uniform(0.0, 3600.0, h)
    share = float(rng.uniform()) if "fp8" in kind else 1.0
    tokens = float(rng.uniform(0.01, 1.0)) * weights_s.sum() / shortest_s(1.0, menu, fp8_max_share=share)
    plan = solve(g, weights_s, tokens, menu, fp8_max_share=share)
    ends = range(h) if "held" in kind else [h - 1]
    best = min(least_grams(g, weights_s, tokens, menu, share, last) for last in ends)
    assert plan.grams == pytest.approx(best, rel=1e-9, abs=1e-9 * g.max())
    assert plan.tokens >= tokens * (1 - 1e-9) and plan.rounded_tokens >= tokens * (1 - 1e-9)
    assert plan.shares @ menu.fp8 * plan.end_s <= share * weights_s.sum() * (1 + 1e-9)
    assert plan.shares.sum() == pytest.approx(1.0)
    assert plan.end_s <= weights_s.sum() * (1 + 1e-12)


def test_a_fortnight_at_five_minutes_and_49_choices_against_highs() -> None:
    g = np.repeat(grid(np.random.default_rng(0), 24), 4)
    weights_s = np.full(g.size, 900.0)
    tokens = STATIC * weights_s.sum() / 1.5
    best = least_grams(g, weights_s, tokens, MENU, 1.0, g.size - 1)
    assert solve(g, weights_s, tokens, MENU).grams == pytest.approx(best, rel=1e-9)
    best = least_grams(g, weights_s, tokens, MENU, 0.37, g.size - 1)
    plan = solve(g, weights_s, tokens, MENU, fp8_max_share=0.37)
    assert plan.grams == pytest.approx(best, rel=1e-9)
    assert plan.shares @ MENU.fp8 == pytest.approx(0.37) and plan.fp8_price > 0


@pytest.mark.parametrize(("kind", "loss"), [("plain", 1e-3), ("fp8", 3e-3), ("held", 3e-3)])
@pytest.mark.parametrize("flat", [False, True])
def test_one_row_a_column_costs_hardly_more(kind: str, loss: float, flat: bool) -> None:
    menu = Menu.of(action_table(), released=kind != "held", idle_w=2100.0)
    g = np.full(336, 300.0) if flat else grid(np.random.default_rng(3), 336)
    share = 0.37 if kind == "fp8" else 1.0
    tokens = STATIC * HOURS.sum() / 1.5
    plan = solve(g, HOURS, tokens, menu, fp8_max_share=share)
    assert plan.rounded_tokens >= tokens * (1 - 1e-9)
    assert plan.grams * (1 - 1e-12) <= plan.rounded_grams <= plan.grams * (1 + loss)
    assert plan.rounded_tokens == pytest.approx(menu.tokens_per_s[plan.rows] @ HOURS)
    assert menu.fp8[plan.rows].mean() <= share
    if flat:
        assert np.count_nonzero(np.diff(plan.rows)) <= 4
    if kind == "held":
        assert plan.end_s < 0.8 * HOURS.sum()
        ran = np.flatnonzero(plan.rows)[-1] + 1
        grams = menu.power_w[plan.rows[:ran]] @ g[:ran] / 1000.0
        assert plan.rounded_grams == pytest.approx(grams)


def test_the_price_gives_the_plan_back() -> None:
    g = grid(np.random.default_rng(4), 336)
    tokens = STATIC * HOURS.sum() / 1.5
    for menu in (MENU, Menu.of(action_table(), released=False, idle_w=2100.0)):
        plan = solve(g, HOURS, tokens, menu)
        found = price(np.stack([g, g]), np.stack([HOURS, HOURS]), np.array([tokens, 0.0]), menu)
        assert found == pytest.approx([plan.price, 0.0], rel=1e-9)
        until = int(plan.end_s // 3600.0)
        assert np.count_nonzero(row_at(menu, g[:until], found[:1]) != plan.rows[:until]) <= 6


def test_scarce_fp8_goes_to_green_hours() -> None:
    g = grid(np.random.default_rng(5), 336)
    plan = solve(g, HOURS, STATIC * HOURS.sum(), MENU, fp8_max_share=0.37)
    fp8 = MENU.fp8[plan.rows]
    assert 0.3 < fp8.mean() <= 0.37
    assert g[fp8].mean() < 0.9 * g[plan.rows > 0].mean()


@given(st.integers(0, 10_000), st.sampled_from(["plain", "fp8", "held"]), st.floats(0.05, 0.95))
@settings(max_examples=40, deadline=None)
def test_more_slack_never_costs_carbon(seed: int, kind: str, load: float) -> None:
    rng = np.random.default_rng(seed)
    menu = small_menu(rng, 5, idle_w=20.0 if kind == "held" else None)
    share = 0.4 if kind == "fp8" else 1.0
    g = grid(rng, 60)
    tokens = load * 20 * 3600.0 / shortest_s(1.0, menu, fp8_max_share=share)
    grams = [solve(g[:h], HOURS[:h], tokens, menu, fp8_max_share=share).grams for h in range(20, 61, 8)]
    assert np.all(np.diff(grams) <= 1e-9 * grams[0])


@given(st.integers(0, 10_000), st.floats(0.01, 0.99), st.floats(1.0, 900.0))
@settings(max_examples=40, deadline=None)
def test_a_constant_grid_gives_the_plan_with_the_least_energy(seed: int, load: float, g_per_kwh: float) -> None:
    menu = small_menu(np.random.default_rng(seed), 6)
    tokens = load * menu.tokens_per_s[menu.fastest] * HOURS[:50].sum()
    plan = solve(np.full(50, g_per_kwh), HOURS[:50], tokens, menu)
    pace = tokens / HOURS[:50].sum()
    power_w = np.interp(pace, menu.tokens_per_s[menu.hull], menu.power_w[menu.hull])
    assert plan.grams == pytest.approx(power_w * 50 * g_per_kwh / 1000.0, rel=1e-9)


@given(st.integers(0, 10_000), st.floats(1e-3, 1e3), st.sampled_from(["plain", "fp8", "held"]))
@settings(max_examples=40, deadline=None)
def test_scaling_the_intensity_scales_nothing_but_grams(seed: int, factor: float, kind: str) -> None:
    rng = np.random.default_rng(seed)
    menu = small_menu(rng, 5, idle_w=20.0 if kind == "held" else None)
    share = 0.4 if kind == "fp8" else 1.0
    g = grid(rng, 40)
    tokens = float(rng.uniform(0.1, 0.9)) * 40 * 3600.0 / shortest_s(1.0, menu, fp8_max_share=share)
    one = solve(g, HOURS[:40], tokens, menu, fp8_max_share=share)
    other = solve(factor * g, HOURS[:40], tokens, menu, fp8_max_share=share)
    assert other.tokens_per_s == pytest.approx(one.tokens_per_s, rel=1e-6, abs=1e-6)
    assert (other.grams, other.price) == pytest.approx((factor * one.grams, factor * one.price), rel=1e-9)
    assert other.rows.tolist() == one.rows.tolist()


def test_an_infeasible_deadline_says_which_one_is_feasible() -> None:
    g = np.full(10, 300.0)
    tokens = 2.0 * STATIC * HOURS[:10].sum()
    for share in (1.0, 0.37):
        needed_s = shortest_s(tokens, MENU, fp8_max_share=share)
        with pytest.raises(ConfigError, match=f"earliest feasible deadline is {needed_s:.0f} s") as refused:
            solve(g, HOURS[:10], tokens, MENU, fp8_max_share=share)
        assert ("37% of the time in FP8" in str(refused.value)) == (share < 1)
        columns = np.full(1 + int(needed_s // 3600), 3600.0)
        columns[-1] = needed_s - columns[:-1].sum()
        plan = solve(np.full(columns.size, 300.0), columns, tokens, MENU, fp8_max_share=share)
        assert plan.tokens == pytest.approx(tokens)
        columns[-1] -= 0.001 * needed_s
        with pytest.raises(ConfigError, match="earliest"):
            solve(np.full(columns.size, 300.0), columns, tokens, MENU, fp8_max_share=share)


def test_bad_input_is_refused() -> None:
    g = np.full(5, 300.0)
    with pytest.raises(ConfigError, match=r"earliest feasible deadline is 100 s \(0\.03 h\) after"):
        solve(g, np.zeros(5), 100 * MENU.tokens_per_s[MENU.fastest], MENU)  # the deadline has passed
    for tokens in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(ConfigError, match="tokens is"):
            solve(g, HOURS[:5], tokens, MENU)
    with pytest.raises(ConfigError, match=r"2 of 5 columns .* column 1"):
        solve(np.array([1.0, np.nan, 1.0, -1.0, 1.0]), HOURS[:5], 1.0, MENU)
    with pytest.raises(ConfigError, match=r"shapes are \(5,\) and \(4,\)"):
        solve(g, HOURS[:4], 1.0, MENU)
    with pytest.raises(ConfigError, match=r"shapes are \(0,\)"):
        solve(g[:0], HOURS[:0], 1.0, MENU)
    with pytest.raises(ConfigError, match="time in a column"):
        solve(g, -HOURS[:5], 1.0, MENU)
    with pytest.raises(ConfigError, match="from 0 to 1"):
        solve(g, HOURS[:5], 1.0, MENU, fp8_max_share=1.1)
    without = Menu.of(action_table(), wanted=lambda action: action.gear is Gear.FP8)
    with pytest.raises(ConfigError, match="cannot be done"):
        solve(g, HOURS[:5], 1.0, without, fp8_max_share=0.0)


def test_a_year_at_five_minutes_takes_no_time() -> None:
    g = np.repeat(grid(np.random.default_rng(6), 8760), 12)
    weights_s = np.full(g.size, 300.0)
    tokens = STATIC * weights_s.sum() / 1.5

    def timed() -> tuple[float, Plan]:
        began_s = time.process_time()
        plan = solve(g, weights_s, tokens, MENU)
        return time.process_time() - began_s, plan

    seconds, plan = min((timed() for _ in range(3)), key=lambda one: one[0])
    assert seconds < 0.4  # 0.06 s on an idle core
    assert plan.rounded_grams <= plan.grams * (1 + 1e-4)
