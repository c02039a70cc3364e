"""torchrl's advantage estimate for tokens of a language model."""

import sys

import torch
from torch import Tensor

# torchrl imports ray where that is installed, and ray 2.60 fails on a package amdsmi without AMD's driver beside it.
_hidden = "amdsmi" not in sys.modules
if _hidden:
    sys.modules["amdsmi"] = None  # type: ignore[assignment]  # the documented way to say "not here"
try:
    from torchrl.objectives.value.functional import generalized_advantage_estimate
finally:
    if _hidden:
        del sys.modules["amdsmi"]


def gae(rewards: Tensor, values: Tensor, mask: Tensor, *, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Return advantages and returns [B, T]; 0 where the mask is.

    The end of a completion is the end of its episode: nothing is expected behind it.

    Args:
        rewards: Of each token [B, T].
        values: What the critic expected before each token [B, T].
        mask: 1 at tokens of the completion, which has no gaps [B, T].
        gamma: Discount of a token.
        lam: How far an advantage looks beyond the next value: arXiv 1506.02438.
    """
    kept = mask.bool()
    after = torch.nn.functional.pad(kept[:, 1:], (0, 1), value=False)
    later = torch.nn.functional.pad(values[:, 1:], (0, 1))
    advantages, returns = generalized_advantage_estimate(
        gamma,
        lam,
        values[..., None],
        later[..., None],
        torch.where(kept, rewards, 0.0)[..., None],
        ~after[..., None],
    )
    return torch.where(kept, advantages[..., 0], 0.0), torch.where(kept, returns[..., 0], 0.0)
