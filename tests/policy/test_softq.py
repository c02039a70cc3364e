"""Soft values against their definition, and what they say."""

import math
from functools import cache

import numpy as np
import pytest

from greentrain.policy.carbongear import DISCOUNT, TEMPERATURE, SoftValues, train
from greentrain.policy.chain import STATES, IntensityChain, state
from greentrain.policy.menu import Menu
from tests.policy.cases import action_table

MENU = Menu.of(action_table(nodes=3))


@cache
def values(switch_s: float = 600.0, epoch_s: float = 3600.0) -> SoftValues:
    return train(MENU, IntensityChain.shipped(), switch_s=switch_s, epoch_s=epoch_s)


def by_definition(learned: SoftValues, price: int, before: int, width: int) -> float:
    """One backup of W, in loops."""
    chain = IntensityChain.shipped()
    follows, level = chain.probabilities()[before], chain.levels()
    total = 0.0
    for after in np.flatnonzero(follows):
        costs = []
        for row in range(len(learned.rows)):
            lost_h = learned.lost_h if learned.width_of[row] != width else 0.0
            stage = level[after] * learned.power[row] - learned.prices[price] * learned.speed[row] * (1.0 - lost_h)
            costs.append(stage + learned.values[price, after, learned.width_of[row]])
        least = min(costs)
        soft = least - TEMPERATURE * math.log(sum(math.exp((least - cost) / TEMPERATURE) for cost in costs))
        total += DISCOUNT * follows[after] * soft
    return total


@pytest.mark.parametrize(("price", "before"), [(4, 20), (20, 100), (30, 103), (47, 170)])
def test_values_are_a_fixed_point_of_their_definition(price: int, before: int) -> None:
    learned = values()
    expected = np.array([by_definition(learned, price, before, width) for width in range(len(learned.widths))])
    assert learned.values[price, before] == pytest.approx(expected - expected.mean(), abs=0.2 * TEMPERATURE)


def test_to_be_wide_is_worth_more_while_tokens_are_dear_and_to_be_off_is_never_a_loss_later() -> None:
    learned = values()
    usual = int(state(np.array([1.0]), np.array([0.0]))[0])
    dear, cheap = learned.values[-1, usual], learned.values[0, usual]
    assert dear[-1] < dear[0] - 0.1, "off, a dear hour of training loses ten minutes"
    assert np.ptp(cheap) < 1e-6, "so cheap that nothing is trained: no width is worth anything"


def test_no_width_is_ever_worth_more_than_one_change() -> None:
    learned = values()
    spread = np.ptp(learned.values, axis=2)
    assert (spread <= learned.prices[:, None] * learned.lost_h * learned.speed.max() * 1.001 + 1e-6).all()


def test_where_a_change_costs_nothing_there_is_nothing_to_learn() -> None:
    assert not values(switch_s=0.0).values.any()


def test_longer_epochs_make_a_width_matter_no_more_and_shorter_ones_use_the_hour() -> None:
    hour, six_hours, quarter = values(), values(epoch_s=6 * 3600.0), values(epoch_s=900.0)
    assert (six_hours.epoch_h, quarter.epoch_h) == (6.0, 1.0)
    assert (quarter.values == hour.values).all()
    usual = int(state(np.array([1.0]), np.array([0.0]))[0])
    assert 0.0 < np.ptp(six_hours.values[-1, usual]) <= np.ptp(hour.values[-1, usual]) * 1.01


def test_costs_are_the_hours_own_and_what_comes_after_it() -> None:
    learned = values()
    price, relative = float(learned.prices[20]), 0.9
    costs = learned.costs(np.array([relative] * 2), np.array([50, 50]), np.array([price] * 2), np.array([0, 3]))
    stage = relative * learned.power - price * learned.speed
    lost = price * learned.speed * learned.lost_h
    after = learned.values[20, 50, learned.width_of]
    width = learned.widths[learned.width_of]
    assert costs[0] == pytest.approx(stage + after + np.where(width != 0, lost, 0.0))
    assert costs[1] == pytest.approx(stage + after + np.where(width != 3, lost, 0.0))


def test_prices_between_two_are_between_and_those_outside_are_at_the_end() -> None:
    learned = values()
    at = np.array([0])
    middle = math.sqrt(learned.prices[10] * learned.prices[11])

    def after(price: float) -> np.ndarray:
        costs = learned.costs(np.ones(1), at, np.array([price]), np.array([3]))[0]
        changed = learned.widths[learned.width_of] != 3
        return np.asarray(costs - learned.power + price * learned.speed * (1 - learned.lost_h * changed))

    assert after(middle) == pytest.approx((after(learned.prices[10]) + after(learned.prices[11])) / 2)
    assert after(learned.prices[-1] * 50) == pytest.approx(after(learned.prices[-1]))
    assert after(0.0) == pytest.approx(after(learned.prices[0]))


def test_a_menu_that_does_not_change_its_width_learns_nothing_but_what_a_pause_costs() -> None:
    one = Menu.of(action_table(), wanted=lambda action: action.ranks == 8)
    learned = train(one, IntensityChain.shipped(), switch_s=600.0)
    assert learned.values.shape == (len(learned.prices), STATES, 2)
    assert list(learned.widths) == [0, 8]
