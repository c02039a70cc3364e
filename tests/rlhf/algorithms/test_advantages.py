import math

import pytest
import torch
from torch import Tensor

from recipes.common import advantages as adv


def rewards_of(*rows: float) -> Tensor:
    return torch.tensor(rows)


def test_a_group_with_unscored_rollouts_by_hand() -> None:
    found = adv.group_advantages(rewards_of(1.0, 3.0, math.nan, 5.0, 5.0, 5.0), 3)
    spread = math.sqrt(2.0) + adv.EPSILON
    assert found.tolist() == pytest.approx([-1 / spread, 1 / spread, 0.0, 0.0, 0.0, 0.0])
    assert adv.group_advantages(rewards_of(1.0, 3.0), 2, scale="none").tolist() == [-1.0, 1.0]
    batch = adv.group_advantages(rewards_of(1.0, 3.0, 10.0, 20.0), 2, scale="batch")
    assert batch.tolist() == pytest.approx([a / (math.sqrt(221 / 3) + 1e-4) for a in (-1, 1, -5, 5)])


def test_leave_one_out_by_hand() -> None:
    found = adv.leave_one_out(rewards_of(1.0, 2.0, 6.0, math.nan, 4.0, 8.0, math.nan, math.nan, 3.0), 3)
    assert found.tolist() == [-3.0, -1.5, 4.5, 0.0, -4.0, 4.0, 0.0, 0.0, 0.0]
    normal = adv.leave_one_out(torch.randn(12, generator=torch.Generator().manual_seed(1)), 4, normalise=True)
    assert (normal.mean().item(), normal.std().item()) == pytest.approx((0.0, 1.0), abs=1e-3)


def test_groups_of_one_verdict_are_not_mixed() -> None:
    found = adv.mixed_groups(rewards_of(1.0, 0.0, 1.0, 1.0, math.nan, 1.0, 0.0, 0.0), 2)
    assert found.tolist() == [True, True, False, False, False, False, False, False]


@pytest.mark.parametrize("size", [0, 1, 4])
def test_groups_that_do_not_fit_are_refused(size: int) -> None:
    for function in (adv.group_advantages, adv.leave_one_out, adv.mixed_groups):
        with pytest.raises(ValueError, match=f"size={size} with 6 rollouts"):
            function(torch.zeros(6), size)


def test_kl_enters_the_reward_token_by_token_and_the_score_at_the_last_one() -> None:
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    policy = torch.tensor([[-1.0, -2.0, -3.0], [-1.0, -9.0, math.nan]])
    reference = torch.tensor([[-2.0, -2.0, -1.0], [-4.0, 0.0, 0.0]])
    found = adv.rewards_with_kl(torch.tensor([5.0, 7.0]), policy, reference, mask, beta=0.5)
    assert found.tolist() == [[-0.5, 0.0, 6.0], [5.5, 0.0, 0.0]]


def test_returns_are_discounted_sums_that_skip_gaps() -> None:
    mask = torch.tensor([[1, 0, 1, 1], [1, 1, 0, 0]])
    rewards = torch.tensor([[1.0, 99.0, 2.0, 4.0], [3.0, 8.0, 99.0, 99.0]])
    assert adv.returns(rewards, mask, gamma=0.5).tolist() == [[3.0, 0.0, 4.0, 4.0], [7.0, 8.0, 0.0, 0.0]]


def test_reinforce_plus_plus_is_the_whitened_return() -> None:
    made = torch.Generator().manual_seed(0)
    policy, reference = (-torch.rand(4, 5, generator=made) for _ in range(2))
    scores, mask = torch.randn(4, generator=made), torch.ones(4, 5)
    mask[1, 3:] = 0
    found = adv.reinforce_plus_plus(scores, policy, reference, mask, beta=0.1, gamma=0.9)
    raw = torch.zeros(4, 5)
    for i in range(4):
        length, later = int(mask[i].sum()), 0.0
        for t in reversed(range(length)):
            reward = -0.1 * (policy[i, t] - reference[i, t]).item() + (scores[i].item() if t == length - 1 else 0.0)
            later = reward + 0.9 * later
            raw[i, t] = later
    kept = raw[mask.bool()]
    assert found[mask.bool()].tolist() == pytest.approx(((kept - kept.mean()) / kept.std()).tolist(), abs=1e-5)
    assert not found[~mask.bool()].any()


def test_a_rollout_that_nobody_could_score_leaves_the_others_advantages_alone() -> None:
    made = torch.Generator().manual_seed(0)
    policy, reference = (-torch.rand(3, 4, generator=made) for _ in range(2))
    scores, mask = torch.tensor([1.0, math.nan, -2.0]), torch.ones(3, 4)
    found = adv.reinforce_plus_plus(scores, policy, reference, mask, beta=0.1)
    kept = [0, 2]
    alone = adv.reinforce_plus_plus(scores[kept], policy[kept], reference[kept], mask[kept], beta=0.1)
    assert torch.allclose(found[kept], alone, atol=1e-6)
    assert not found[1].any()


def test_a_token_gets_the_rewards_of_the_steps_it_is_in_by_hand() -> None:
    steps = torch.tensor([[0, 1, 0, 1], [1, 0, 1, 0]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
    rewards = torch.tensor([[9.0, 1.0, 9.0, 3.0], [5.0, 9.0, 7.0, 9.0]])  # the nines end no step
    mean, spread = 4.0, math.sqrt(20 / 3) + adv.EPSILON
    a, b, c, d = ((r - mean) / spread for r in (1.0, 3.0, 5.0, 7.0))
    found = adv.step_advantages(rewards, steps, mask, 2)
    wanted = [a + b, a + b, b, b, c + d, d, d, 0.0]
    assert found.flatten().tolist() == pytest.approx(wanted, abs=1e-6)


def test_one_step_a_rollout_is_an_outcome_reward() -> None:
    rewards = torch.randn(6, 4, generator=torch.Generator().manual_seed(3))
    steps, mask = torch.zeros(6, 4), torch.ones(6, 4)
    steps[:, -1] = 1
    found = adv.step_advantages(rewards, steps, mask, 3)
    outcome = adv.group_advantages(rewards[:, -1], 3)
    assert torch.allclose(found, outcome[:, None].expand(-1, 4), atol=1e-6)
