"""The price of a token: against a plain greedy, at ties and at every kind of empty column."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from greentrain.policy.menu import OFF, Menu
from greentrain.policy.waterfill import deadline_price, filled, row_at, steps_up
from tests.policy.cases import Array, action_table, grid, small_menu

MENU = Menu.of(action_table())
FASTEST = float(MENU.tokens_per_s[MENU.fastest])


def greedy(g: Array, weights_s: Array, tokens: float, menu: Menu) -> float:
    """Fill all steps from the cheapest on, sorted as a whole."""
    rows, per_token, more_per_s = steps_up(menu)
    cost = np.multiply.outer(g, per_token).ravel()
    brings = np.multiply.outer(weights_s, more_per_s).ravel()
    order = np.argsort(cost, kind="stable")
    need = tokens - menu.tokens_per_s[rows[0]] * weights_s.sum()
    reached = np.searchsorted(np.cumsum(brings[order]), need)
    return float(cost[order[reached]]) if need > 0 else 0.0


def test_only_eleven_of_the_49_choices_are_ever_best() -> None:
    assert len(MENU) == 49 and len(MENU.hull) == 11


@pytest.mark.parametrize(("n", "h"), [(1, 336), (3, 1), (5, 2), (40, 336), (600, 24)])
def test_the_price_is_that_of_the_greedy(n: int, h: int) -> None:
    rng = np.random.default_rng(n)
    g, weights_s = grid(rng, n, h), rng.uniform(0.0, 3600.0, (n, h))
    tokens = rng.uniform(0.01, 0.99, n) * FASTEST * weights_s.sum(axis=1)
    found = deadline_price(g, weights_s, tokens, MENU)
    expected = [greedy(g[i], weights_s[i], tokens[i], MENU) for i in range(n)]
    assert found == pytest.approx(expected, rel=1e-12)


@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(1, 12), st.sampled_from([None, 1.0, 300.0]))
def test_with_ties_zeros_and_empty_columns_too(seed: int, h: int, actions: int, idle_w: float | None) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 9))
    menu = small_menu(rng, actions, idle_w=idle_w)
    g: Array = rng.integers(0, 4, (n, h)).astype(np.float64) * 100.0
    weights_s: Array = rng.integers(0, 3, (n, h)).astype(np.float64) * 1800.0
    tokens = rng.uniform(0.0, 1.0, n) * menu.tokens_per_s[menu.fastest] * weights_s.sum(axis=1)
    found = deadline_price(g, weights_s, tokens, menu)
    for i in np.flatnonzero(tokens > 0):
        assert found[i] == pytest.approx(greedy(g[i], weights_s[i], tokens[i], menu), rel=1e-12)
        done = menu.tokens_per_s[row_at(menu, g[i], found[i])] @ weights_s[i]
        assert done >= tokens[i] * (1 - 1e-9)


def test_rows_at_a_price_emit_least() -> None:
    rng = np.random.default_rng(1)
    g, prices = grid(rng, 200), rng.uniform(0.0, 1e-5, 200)
    worth = g[:, None] * MENU.power_w / 3.6e6 - prices[:, None] * MENU.tokens_per_s
    rows = row_at(MENU, g, prices)
    assert worth[np.arange(200), rows] == pytest.approx(worth.min(axis=1), rel=1e-12, abs=1e-12)
    assert len(np.unique(rows)) > 3
    assert row_at(MENU, np.array([0.0, np.nan, 300.0, 300.0]), np.array([0.0, 1.0, np.inf, 0.0])).tolist() == [
        *[MENU.fastest] * 3,
        OFF,
    ]


def test_nothing_left_is_free_and_too_much_has_no_price() -> None:
    g, weights_s = np.full((4, 3), 200.0), np.full((4, 3), 3600.0)
    room = FASTEST * 3 * 3600.0
    found = deadline_price(g, weights_s, np.array([0.0, -5.0, room, room * 1.001]), MENU)
    assert found[:2].tolist() == [0.0, 0.0]
    assert np.isfinite(found[2]) and row_at(MENU, g[2], found[2]).tolist() == [MENU.fastest] * 3
    assert found[3] == np.inf
    assert deadline_price(g, np.zeros((4, 3)), np.array([0.0, 1.0, 1.0, 1.0]), MENU).tolist() == [0.0, *[np.inf] * 3]


def test_unknown_columns_count_as_the_mean_of_the_known_ones() -> None:
    g = np.array([[100.0, np.nan, 400.0, 1e9], [np.nan] * 4])
    weights_s = np.array([[3600.0, 3600.0, 1800.0, 0.0]] * 2)
    assert filled(g, weights_s).tolist() == [[100.0, 200.0, 400.0, 1e9], [1.0] * 4]
    tokens = np.full(2, 0.5 * FASTEST * weights_s[0].sum())
    assert (
        deadline_price(g, weights_s, tokens, MENU).tolist()
        == deadline_price(filled(g, weights_s), weights_s, tokens, MENU).tolist()
    )


def test_more_carbon_scales_the_price_and_more_time_never_raises_it() -> None:
    rng = np.random.default_rng(2)
    g, weights_s = grid(rng, 1, 100), np.full((1, 100), 3600.0)
    tokens = np.array([0.3 * FASTEST * 360_000.0])
    one = deadline_price(g, weights_s, tokens, MENU)
    assert deadline_price(3.0 * g, weights_s, tokens, MENU) == pytest.approx(3.0 * one, rel=1e-12)
    prices = [deadline_price(g[:, :h], weights_s[:, :h], tokens, MENU)[0] for h in range(40, 101)]
    assert np.all(np.diff(prices) <= 0)
