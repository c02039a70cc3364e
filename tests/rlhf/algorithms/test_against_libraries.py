"""Our few lines beside the libraries that have them: trl's helpers, torchrl's PPO loss and GAE."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from recipes.common import advantages as adv
from recipes.common import surrogates
from recipes.common.gae import gae

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def test_deviations_are_those_of_trl() -> None:
    from trl.trainer.utils import nanstd

    values = torch.randn(8, 5, generator=torch.Generator().manual_seed(0))
    values[0, 1] = values[3, 2] = values[3, 4] = math.nan
    assert torch.equal(adv.nan_std(values, dim=1), nanstd(values, dim=1, keepdim=True))
    groups = values.view(-1, 10)
    wanted = (groups - torch.nanmean(groups, dim=1, keepdim=True)) / (nanstd(groups, dim=1, keepdim=True) + 1e-4)
    assert torch.equal(adv.group_advantages(values.view(-1), 10), torch.nan_to_num(wanted.view(-1), nan=0.0))


def test_the_clipped_surrogate_and_value_are_those_of_torchrl() -> None:
    from tensordict import TensorDict
    from tensordict.nn import TensorDictModule
    from torch.distributions import Categorical
    from torchrl.modules import ProbabilisticActor, ValueOperator
    from torchrl.objectives import ClipPPOLoss

    made = torch.Generator().manual_seed(2)
    b, t, vocabulary, width = 3, 5, 7, 4
    hidden = torch.randn(b, t, width, generator=made)
    tokens = torch.randint(0, vocabulary, (b, t), generator=made)
    before = torch.log_softmax(torch.randn(b, t, vocabulary, generator=made), -1)
    old = before.gather(-1, tokens[..., None])[..., 0]
    advantages, wanted, said = (torch.randn(b, t, generator=made) for _ in range(3))
    torch.manual_seed(0)
    policy, critic = nn.Linear(width, vocabulary), nn.Linear(width, 1)
    actor: Any = ProbabilisticActor(
        TensorDictModule(policy, in_keys=["observation"], out_keys=["logits"]),
        in_keys=["logits"],
        distribution_class=Categorical,
        return_log_prob=True,
    )
    loss: Any = ClipPPOLoss(
        actor,
        ValueOperator(critic, in_keys=["observation"]),
        clip_epsilon=0.2,
        clip_value=0.3,
        entropy_bonus=False,
        critic_coeff=1.0,
        loss_critic_type="l2",
        normalize_advantage=False,
    )
    found = loss(
        TensorDict(
            {
                "observation": hidden,
                "action": tokens,
                "action_log_prob": old,
                "advantage": advantages[..., None],
                "value_target": wanted[..., None],
                "state_value": said[..., None],
            },
            batch_size=[b, t],
        )
    )
    now = torch.log_softmax(policy(hidden), -1).gather(-1, tokens[..., None])[..., 0]
    mask = torch.ones(b, t)
    ours = surrogates.policy_loss(now, old, advantages, mask, clip=0.2)
    assert float(found["clip_fraction"]) > 0.2  # or the clipping was not compared
    assert torch.allclose(ours, found["loss_objective"].mean(), atol=1e-6)
    found["loss_objective"].mean().backward()
    theirs = next(value.grad for name, value in loss.named_parameters() if name.endswith("weight") and len(value) > 1)
    assert torch.allclose(torch.autograd.grad(ours, policy.weight)[0], theirs, atol=1e-6)
    values = critic(hidden)[..., 0]
    assert torch.allclose(
        surrogates.value_loss(values, said, wanted, mask, clip=0.3), found["loss_critic"].mean(), atol=1e-6
    )


def test_padding_changes_no_advantage_and_no_loss() -> None:
    made = torch.Generator().manual_seed(4)
    rewards, values = (torch.randn(2, 6, generator=made) for _ in range(2))
    mask = torch.ones(2, 6)
    mask[0, 4:] = 0
    advantages, wanted = gae(rewards, values, mask, gamma=0.99, lam=0.9)
    short, short_wanted = gae(rewards[:1, :4], values[:1, :4], mask[:1, :4], gamma=0.99, lam=0.9)
    assert torch.equal(advantages[:1, :4], short) and torch.equal(wanted[:1, :4], short_wanted)
    assert not advantages[0, 4:].any()
    later, expected = 0.0, []
    for t in reversed(range(6)):
        following = values[1, t + 1].item() if t < 5 else 0.0
        later = rewards[1, t].item() + 0.99 * following - values[1, t].item() + 0.99 * 0.9 * later
        expected.append(later)
    assert advantages[1].tolist() == pytest.approx(expected[::-1], abs=1e-5)
    assert torch.equal(surrogates.masked_mean(rewards, mask), torch.cat([rewards[0, :4], rewards[1]]).sum() / 10)


def test_whatever_stands_at_padding_has_no_gradient() -> None:
    mask = torch.tensor([[1, 0]])
    now = torch.tensor([[-1.0, 0.0]], requires_grad=True)
    loss = surrogates.policy_loss(now, torch.tensor([[-1.1, -200.0]]), torch.ones(1, 1), mask)
    gradients = [torch.autograd.grad(loss, now)[0]]
    values = torch.tensor([[0.1, 1.0]], requires_grad=True)
    loss = surrogates.value_loss(values, torch.zeros(1, 2), torch.tensor([[1.0, math.nan]]), mask)
    gradients += torch.autograd.grad(loss, values)
    assert all(found[0, 0] != 0 and found[0, 1] == 0 for found in gradients)
