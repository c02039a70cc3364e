"""Advantages for loops of one's own, where no library offers them as functions.

GAE is not here: ``torchrl.objectives.value.functional.generalized_advantage_estimate`` is. GRPO's and RLOO's are the
expressions of trl 1.16, which computes them inside its trainers.

Shapes: B rollouts, T tokens of the longest completion, S = size of a group (completions of one prompt, consecutive).
Masks are 1 at tokens of the completion, 0 behind its end.
"""

from typing import Final, Literal

import torch
from torch import Tensor

EPSILON: Final = 1e-4
"""Added to a standard deviation before dividing, as trl does."""


def group_advantages(rewards: Tensor, size: int, *, scale: Literal["group", "batch", "none"] = "group") -> Tensor:
    """Return GRPO's advantages [B]: each reward less its group's mean, over the deviation of the group or the batch.

    arXiv 2402.03300, section 4.1.2; ``none`` is Dr. GRPO's, arXiv 2503.20783.

    Args:
        rewards: Rewards [B]; NaN marks a rollout that nobody could score: it counts for no mean and gets 0.
        size: Number S of rollouts in each group.
        scale: Quantity by which advantages are divided.

    Raises:
        ValueError: B is no multiple of S, or S is below 2.
    """
    groups = _groups(rewards, size)
    advantages = groups - torch.nanmean(groups, dim=1, keepdim=True)
    if scale != "none":
        spread = nan_std(groups, dim=1) if scale == "group" else nan_std(rewards, dim=0)
        advantages = advantages / (spread + EPSILON)
    return torch.nan_to_num(advantages.reshape(-1), nan=0.0)


def leave_one_out(rewards: Tensor, size: int, *, normalise: bool = False) -> Tensor:
    """Return RLOO's advantages [B]: each reward less the mean of the others of its group.

    arXiv 2402.14740, section 2.2.

    Args:
        rewards: Rewards [B], the KL penalty in them; NaN as in :func:`group_advantages`.
        size: Number S of rollouts in each group.
        normalise: Whether advantages are normalised by the batch's mean and deviation.

    Raises:
        ValueError: B is no multiple of S, or S is below 2.
    """
    groups = _groups(rewards, size)
    scored = (~torch.isnan(groups)).sum(dim=1, keepdim=True)
    others = (torch.nansum(groups, dim=1, keepdim=True) - groups) / (scored - 1)
    advantages = (groups - others).reshape(-1)
    if normalise:
        advantages = (advantages - torch.nanmean(advantages)) / (nan_std(advantages, dim=0) + EPSILON)
    return torch.nan_to_num(advantages, nan=0.0)


def mixed_groups(rewards: Tensor, size: int) -> Tensor:
    """Return which rollouts are of a group whose rewards are not all equal [B], bool: the others have no gradient.

    DAPO draws groups until a batch has only such ones: arXiv 2503.14476, section 3.2.

    Args:
        rewards: Rewards [B]; NaN as in :func:`group_advantages`.
        size: Number S of rollouts in each group.

    Raises:
        ValueError: B is no multiple of S, or S is below 2.
    """
    spread = nan_std(_groups(rewards, size), dim=1)[:, 0]
    return (torch.nan_to_num(spread, nan=0.0) > 0).repeat_interleave(size)


def rewards_with_kl(scores: Tensor, logprobs: Tensor, reference: Tensor, mask: Tensor, beta: float) -> Tensor:
    """Return a reward a token [B, T]: ``-beta * (ln p - ln p_reference)``, and the score at the last token.

    arXiv 1909.08593, section 2; arXiv 2203.02155, equation 2.

    Args:
        scores: Scores of the rollouts [B].
        logprobs: Log-probabilities under the policy that drew the tokens [B, T].
        reference: Log-probabilities under the frozen policy [B, T].
        mask: Mask of the tokens that count [B, T]; each row has a token.
        beta: Weight of the penalty.
    """
    kept = mask.to(logprobs.dtype)
    rewards = torch.where(mask.bool(), -beta * (logprobs - reference), 0.0)
    last = kept.cumsum(1).argmax(1, keepdim=True)
    return rewards.scatter_add(1, last, scores.to(rewards.dtype).unsqueeze(1))


def returns(rewards: Tensor, mask: Tensor, *, gamma: float = 1.0) -> Tensor:
    """Return what is still to come [B, T]: ``G_t = r_t + gamma * G_(t+1)``; 0 where the mask is.

    A gap in the mask, such as a tool's answer in the middle, is passed over without a discount.

    Args:
        rewards: A reward a token [B, T].
        mask: Mask of the tokens that count [B, T].
        gamma: Discount of a token.
    """
    kept = mask.bool()
    found = torch.zeros_like(rewards)
    later = torch.zeros_like(rewards[:, 0])
    for t in reversed(range(rewards.shape[1])):
        later = torch.where(kept[:, t], rewards[:, t] + gamma * later, later)
        found[:, t] = torch.where(kept[:, t], later, 0.0)
    return found


def whitened(values: Tensor, mask: Tensor) -> Tensor:
    """Return values [B, T] with mean 0 and deviation 1 over the batch's tokens; 0 where the mask is.

    Args:
        values: Values of the tokens [B, T].
        mask: Mask of the tokens that count [B, T], at least two tokens.
    """
    kept = values[mask.bool()]
    scale = torch.rsqrt(kept.var() + 1e-8)
    return torch.where(mask.bool(), (values - kept.mean()) * scale, 0.0)


def reinforce_plus_plus(
    scores: Tensor, logprobs: Tensor, reference: Tensor, mask: Tensor, *, beta: float, gamma: float = 1.0
) -> Tensor:
    """Return REINFORCE++'s advantages [B, T]: returns with the KL penalty in the reward, whitened over the batch.

    No critic and no groups. arXiv 2501.03262, section 3. Arguments as in :func:`rewards_with_kl` and :func:`returns`;
    a rollout whose score is NaN counts for no mean and gets 0.
    """
    unscored = torch.isnan(scores)
    scores, mask = scores.masked_fill(unscored, 0.0), mask.masked_fill(unscored.unsqueeze(1), 0)
    return whitened(returns(rewards_with_kl(scores, logprobs, reference, mask, beta), mask, gamma=gamma), mask)


def step_advantages(rewards: Tensor, steps: Tensor, mask: Tensor, size: int) -> Tensor:
    """Return advantages [B, T] of process rewards: of each token, the normalised rewards of the steps it still is in.

    A step's reward is normalised by mean and deviation of all steps of its group; a token gets the sum over the steps
    that end at it or later: arXiv 2402.03300, section 4.1.3. ``GRPOTrainer`` of trl takes advantages of this shape.

    Args:
        rewards: Reward of a step at the token where it ends [B, T]; anything elsewhere.
        steps: 1 where a step ends [B, T].
        mask: Mask of the tokens that count [B, T].
        size: Number S of rollouts in each group.

    Raises:
        ValueError: B is no multiple of S, or S is below 2.
    """
    ends = steps.bool() & mask.bool()
    groups = _groups(torch.where(ends, rewards, torch.nan), size)
    flat = groups.reshape(len(groups), -1)
    mean, spread = torch.nanmean(flat, dim=1, keepdim=True), nan_std(flat, dim=1)
    normalised = torch.nan_to_num((flat - mean) / (spread + EPSILON), nan=0.0).reshape(rewards.shape)
    return returns(normalised, mask)


def nan_std(values: Tensor, dim: int) -> Tensor:
    """Return the deviation along a dimension, which is kept, NaN left out: NaN where fewer than two are left."""
    mean = torch.nanmean(values, dim=dim, keepdim=True)
    count = (~torch.isnan(values)).sum(dim=dim, keepdim=True)
    # Two factors, in this order, as in trl: the last bit of the advantages is the same.
    variance = torch.nanmean((values - mean) ** 2, dim=dim, keepdim=True) * (count / (count - 1))
    return torch.sqrt(torch.where(count > 1, variance, torch.nan))


def _groups(values: Tensor, size: int) -> Tensor:
    if size < 2 or len(values) % size:
        raise ValueError(f"size={size} with {len(values)} rollouts: groups have at least 2, and all have the same size")
    return values.view(-1, size, *values.shape[1:])
