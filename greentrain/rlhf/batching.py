"""Padded matrices, as the adapters of frameworks pass them, and the sequences in them."""

from collections.abc import Sequence

import torch
from torch import Tensor


def unpadded(ids: Tensor, mask: Tensor) -> list[list[int]]:
    """Return the tokens of each row [sequences, tokens] that the mask keeps, on whichever side the padding is."""
    return [row[kept].tolist() for row, kept in zip(ids.cpu(), mask.cpu().bool(), strict=True)]


def padded_logprobs(rows: Sequence[Sequence[float]], mask: Tensor) -> Tensor:
    """Return log-probabilities where a causal model's logits have them: column t is of the token in column t + 1.

    Args:
        rows: Log-probabilities by sequence, of each kept token but the first.
        mask: [sequences, tokens]; what it does not keep is padding.

    Returns:
        float32 [sequences, tokens - 1]; 0 at padding.
    """
    kept = mask.cpu().bool()
    out = torch.zeros(kept.shape[0], max(0, kept.shape[1] - 1))
    for i, row in enumerate(rows):
        columns = kept[i].nonzero().flatten()[1:] - 1
        out[i, columns] = torch.tensor(row, dtype=torch.float32)
    return out
