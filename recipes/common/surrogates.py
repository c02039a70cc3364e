"""PPO's clipped objectives for tokens of a language model; torchrl's loss modules want an actor of their own kind.

arXiv 1707.06347, section 3; the value's clipping as in its reference implementation. Shapes as in ``advantages.py``.
"""

import torch
from torch import Tensor


def policy_loss(
    logprobs: Tensor,
    before: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip: float = 0.2,
    clip_high: float | None = None,
) -> Tensor:
    """Return the negative clipped surrogate, mean over the batch's tokens, and differentiable in ``logprobs``.

    Args:
        logprobs: Log-probabilities under the policy as it is now [B, T].
        before: Log-probabilities under the policy that drew the tokens [B, T].
        advantages: Advantages [B, T], or [B, 1] for one a rollout.
        mask: Mask of the tokens that count [B, T].
        clip: Distance from 1 up to which the ratio of probabilities counts, so its logarithm counts from
            ``ln(1 - clip)`` to ``ln(1 + clip)``.
        clip_high: Distance above 1, where it is another one: DAPO, arXiv 2503.14476, section 3.1; None: ``clip``.
    """
    log_ratio = _kept(logprobs - before, mask)
    lowest, highest = (torch.tensor(ratio).log().item() for ratio in (1 - clip, 1 + (clip_high or clip)))
    advantages = _kept(advantages, mask)
    gain = torch.minimum(log_ratio.exp() * advantages, log_ratio.clamp(lowest, highest).exp() * advantages)
    return -masked_mean(gain, mask)


def value_loss(values: Tensor, before: Tensor, returns: Tensor, mask: Tensor, *, clip: float = 0.2) -> Tensor:
    """Return the squared error of the values, or of the values near their old ones where that is larger.

    Args:
        values: Values of the critic as it is now [B, T].
        before: Values of the critic when the advantages were made [B, T].
        returns: Values that it should have had [B, T].
        mask: Mask of the tokens that count [B, T].
        clip: Largest distance by which a value may move from its old one.
    """
    values, before, returns = _kept(values, mask), _kept(before, mask), _kept(returns, mask)
    near = before + (values - before).clamp(-clip, clip)
    return masked_mean(torch.maximum((values - returns) ** 2, (near - returns) ** 2), mask)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over the tokens of the batch; 0 where there is none."""
    kept = mask.to(values.dtype)
    return _kept(values, mask).sum() / kept.sum().clamp(min=1)


def _kept(values: Tensor, mask: Tensor) -> Tensor:
    """Return values with 0 at padding, before anything is computed of them: 0 times infinity has a gradient of NaN."""
    return torch.where(mask.bool(), values, 0.0)
