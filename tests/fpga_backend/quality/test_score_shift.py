from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from greentrain.fpga_backend.quality.groups import advantage_shift, advantages, drawn
from greentrain.fpga_backend.quality.pairs import Floats
from greentrain.fpga_backend.quality.shift import company_shift, shift


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
