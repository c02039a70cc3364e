import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau

from benchmarks.fpga_quality_figures import (
    accuracy,
    advantage_shift,
    advantages,
    company_shift,
    drawn,
    interval,
    kendall_tau,
    kl,
    logprob_shift,
    penalty_bias,
    resampled,
    shift,
)
from greentrain.fpga_backend.quality.flips import Floats, Pairs, every

LOGPROBS = st.lists(st.floats(-20, 0), min_size=1, max_size=30)


@given(st.data(), st.integers(2, 30))
def test_kendall_tau_is_scipys(data: st.DataObject, items: int) -> None:
    column = st.lists(st.integers(0, 8), min_size=items, max_size=items)
    first, second = data.draw(column), data.draw(column)
    ours, theirs = kendall_tau(first, second), float(kendalltau(first, second).statistic)
    assert ours == pytest.approx(theirs, abs=1e-12) or (math.isnan(ours) and math.isnan(theirs))


def test_accuracy_by_hand() -> None:
    assert accuracy(
        [2.0, 1.0, 1.0], Pairs(better=np.array([0, 1, 1, 0]), worse=np.array([1, 2, 0, 2]), margin=np.full(4, np.nan))
    ) == pytest.approx((1 + 0.5 + 0 + 1) / 4)


def test_every_draw_of_a_certain_figure_is_that_figure() -> None:
    pairs = every(12)
    rates = resampled([[0.0] * 66, [1.0] * 66, [math.nan] * 66], pairs, 12, draws=20)
    assert (rates[0] == 0).all() and (rates[1] == 1).all() and np.isnan(rates[2]).all()
    assert math.isnan(interval(rates[2]).low)


def test_draws_scatter_about_the_rate_as_draws_of_items_do() -> None:
    # One item decides all pairs it is in; 1 of 50 items. Drawn k times it decides about k (n - k) of n^2 / 2 pairs, so
    # rates scatter as Poisson(1) does, by about 100 % of 2/50. Were pairs drawn, they would scatter by 14 %.
    pairs = every(50)
    counts = ((pairs.better == 25) | (pairs.worse == 25)).astype(float)
    rates = resampled(counts, pairs, 50, draws=2000)[0]
    assert rates.mean() == pytest.approx(2 / 50, rel=0.1)
    assert rates.std() / rates.mean() == pytest.approx(1.0, abs=0.15)


def test_candidates_see_the_same_draws() -> None:
    pairs = every(30)
    counts = np.random.default_rng(1).integers(0, 2, len(pairs)).astype(float)
    rates = resampled([counts, counts / 2], pairs, 30, draws=50)
    np.testing.assert_allclose(rates[1] / rates[0], 0.5)
    np.testing.assert_array_equal(rates, resampled([counts, counts / 2], pairs, 30, draws=50))


def test_pairs_without_order_count_for_no_draw() -> None:
    pairs = every(10)
    counts = np.where(np.arange(45) % 2, np.nan, 1.0)
    rates = resampled(counts, pairs, 10, draws=50)[0]
    assert (rates[~np.isnan(rates)] == 1).all()


def test_interval_by_hand() -> None:
    found = interval(np.append(np.arange(101.0), np.nan), 0.9)
    assert (found.low, found.high) == pytest.approx((5.0, 95.0))


def test_counts_of_other_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\[candidates, 3 pairs\]"):
        resampled([0.0, 1.0], every(3), 3)


def test_shift_by_hand() -> None:
    found = shift([0.0, 2.0, 0.0, 2.0], [0.0, 2.5, 0.0, 1.0])  # the reference's standard deviation is 1
    assert (found.mean, found.most, found.unit) == (0.375, 1.0, 1.0)
    assert found.p99 == pytest.approx(0.985)  # between the two largest, 0.5 and 1


def test_shift_has_no_unit_of_its_own() -> None:
    assert shift([0.0, 20.0], [0.0, 21.0]).mean == pytest.approx(shift([0.0, 2.0], [0.0, 2.1]).mean)


def test_shift_needs_a_spread() -> None:
    with pytest.raises(ValueError, match="2 items the same"):
        shift([1.0, 1.0], [1.0, 2.0])


def test_company_does_not_move_a_score_of_its_own() -> None:
    values = np.random.default_rng(0).normal(size=10)
    assert company_shift(lambda items: values[list(items)], 10, (3, 10)) == 0.0


@pytest.mark.parametrize("sizes, moved", [((1,), 0.0), ((2,), 1.0), ((3,), 3.0), ((3, 2), 3.0), ((100,), 3.0)])
def test_company_that_moves_a_score_is_found(sizes: tuple[int, ...], moved: float) -> None:
    values = np.array([1.0, 2.0, 4.0])

    def by_the_largest(items: Sequence[int]) -> Floats:
        found: Floats = values[list(items)] - values[list(items)].max()
        return found

    assert company_shift(by_the_largest, 3, sizes) == moved


def test_a_batch_of_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"sizes are \[0\]"):
        company_shift(lambda items: [0.0] * len(items), 2, (0,))


def test_advantages_by_hand() -> None:
    np.testing.assert_allclose(advantages([[1.0, 3.0], [5.0, 5.0]]), [[-1.0, 1.0], [0.0, 0.0]])


def test_a_group_of_one_reward_has_no_advantage_even_where_its_mean_rounds() -> None:
    assert not advantages([[0.1, 0.1, 0.1]]).any()


def test_advantage_shift_by_hand() -> None:
    reference, candidate = [0.0, 1.0, 4.0, 0.0, 1.0], [0.0, 3.0, 4.0, 1.0, 0.0]
    found = advantage_shift(reference, candidate, [[0, 1, 2]])  # means 5/3 and 7/3: item 1 passes its own
    assert found.sign_flips == pytest.approx(1 / 3)
    assert found.best_changed == 0
    found = advantage_shift(reference, candidate, [[3, 4]])
    assert (found.sign_flips, found.mean, found.best_changed) == (1.0, 2.0, 1.0)


def test_only_another_best_answer_changes_the_best() -> None:
    assert advantage_shift([1.0, 2.0, 9.0], [2.0, 1.0, 9.0], [[0, 1, 2]]).best_changed == 0
    assert advantage_shift([1.0, 8.0, 9.0], [1.0, 9.0, 8.0], [[0, 1, 2]]).best_changed == 1


def test_an_advantage_that_is_lost_counts_half() -> None:
    assert advantage_shift([0.0, 1.0], [1.0, 1.0], [[0, 1]]).sign_flips == 0.5
    assert np.isnan(advantage_shift([1.0, 1.0], [0.0, 1.0], [[0, 1]]).sign_flips)


@given(st.lists(st.integers(-100, 100), min_size=4, max_size=4), st.sampled_from([0.5, 2.0, 8.0]), st.integers(-9, 9))
def test_scale_and_offset_of_rewards_change_no_advantage(rewards: list[int], scale: float, offset: int) -> None:
    reference = np.array(rewards, dtype=np.float64)
    found = advantage_shift(reference, reference * scale + offset, [[0, 1, 2, 3]])
    assert found.mean == pytest.approx(0, abs=1e-9)
    assert found.best_changed == 0


@given(st.lists(st.sampled_from("abc"), max_size=40), st.integers(1, 5), st.integers(0, 3))
def test_groups_are_of_one_kind_and_take_no_item_twice(kinds: list[str], size: int, seed: int) -> None:
    found = drawn(kinds, size, seed=seed)
    members = found.ravel().tolist()
    assert len(set(members)) == len(members) == sum(kinds.count(k) // size * size for k in set(kinds))
    assert all(len({kinds[i] for i in group}) == 1 for group in found)
    np.testing.assert_array_equal(found, drawn(kinds, size, seed=seed))


def test_a_group_of_strangers_is_refused() -> None:
    with pytest.raises(ValueError, match="below 2"):
        advantage_shift([0.0, 1.0], [0.0, 1.0], [[0, 2]])
    with pytest.raises(ValueError, match=r"\[groups, size\]"):
        advantages([1.0, 2.0])


def test_logprob_shift_by_hand() -> None:
    found = logprob_shift([-1.0, -2.0, -3.0], [-1.0, -2.5, -2.75])
    assert (found.mean, found.most, found.tokens) == (0.25, 0.5, 3)
    assert found.p99 == pytest.approx(0.495)


def test_estimators_by_hand() -> None:
    found = kl([math.log(0.5), math.log(0.5)], [math.log(0.25), math.log(0.75)])  # r = 1/2 and 3/2
    assert found.k1 == pytest.approx((math.log(2) - math.log(1.5)) / 2)
    assert found.k2 == pytest.approx((math.log(2) ** 2 + math.log(1.5) ** 2) / 4)
    assert found.k3 == pytest.approx((-0.5 + math.log(2) + 0.5 - math.log(1.5)) / 2)


def test_estimators_come_to_the_true_divergence() -> None:
    draw = np.random.default_rng(0)
    q, p = draw.dirichlet(np.ones(50)), draw.dirichlet(np.ones(50))
    p = 0.8 * q + 0.2 * p
    tokens = draw.choice(50, 200_000, p=q)
    found = kl(np.log(q[tokens]), np.log(p[tokens]))
    true = float((q * np.log(q / p)).sum())
    assert found.k3 == pytest.approx(true, abs=4 * found.k3_error)
    assert found.k1 == pytest.approx(true, rel=0.05)
    assert found.k3_error < true / 20


@given(LOGPROBS)
def test_a_reference_that_is_the_policy_has_no_divergence(values: list[float]) -> None:
    found = kl(values, values)
    assert (found.k1, found.k2, found.k3) == (0, 0, 0)
    assert logprob_shift(values, values).most == 0


@given(LOGPROBS, st.data())
def test_k2_and_k3_are_never_negative(values: list[float], data: st.DataObject) -> None:
    other = data.draw(st.lists(st.floats(-20, 0), min_size=len(values), max_size=len(values)))
    found = kl(values, other)
    assert found.k2 >= 0 and found.k3 >= 0


def test_small_divergences_do_not_drown_in_rounding() -> None:
    found = kl([-1.0], [-1.0 + 1e-9])
    assert found.k3 == pytest.approx(found.k2, rel=1e-6)


def test_penalty_bias_is_the_difference_of_two_penalties() -> None:
    policy, reference, candidate = [-1.0, -2.0], [-1.1, -2.0], [-1.0, -2.2]
    expected = kl(policy, candidate).k3 - kl(policy, reference).k3
    found = penalty_bias(policy, reference, candidate)
    assert found.mean == pytest.approx(expected) and expected > 0
    changes = [
        kl(policy[i : i + 1], candidate[i : i + 1]).k3 - kl(policy[i : i + 1], reference[i : i + 1]).k3 for i in (0, 1)
    ]
    assert found.error == pytest.approx(abs(changes[0] - changes[1]) / 2)


def test_tokens_that_cannot_be_compared_are_refused() -> None:
    with pytest.raises(ValueError, match="no tokens"):
        kl([], [])
    with pytest.raises(ValueError, match="2 scores, the reference has 1"):
        logprob_shift([-1.0], [-1.0, -2.0])
    with pytest.raises(ValueError, match="-inf"):
        kl([-1.0], [-math.inf])
