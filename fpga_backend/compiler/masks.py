"""What an attention mask lets a token see."""

import torch

_FORBIDDEN = -1e4
"""An added number at or below this forbids: the weight e^-10000 is 0 in any precision; models write -1e4 to -inf."""


def describe(mask: torch.Tensor, tokens: int) -> tuple[bool | None, str]:
    """Say whether a mask is causal.

    Args:
        mask: [..., tokens, tokens] or what broadcasts to it; of bool (True: may see) or of numbers that are added.
        tokens: Length of the sequence, without padding.

    Returns:
        True for a causal mask, False for one that lets everything see everything, None for any other, with what is
        wrong with it.
    """
    square = mask.expand(*mask.shape[:-2], tokens, tokens).reshape(-1, tokens, tokens)
    if len(square) > 1 and not bool((square == square[:1]).all()):
        return None, "differs from head to head (ALiBi?)"
    seen = square[0]
    if seen.dtype != torch.bool:
        forbidden = seen <= _FORBIDDEN
        if not bool((forbidden | (seen == 0)).all()):
            return None, "adds numbers to the scores (ALiBi, or a bias by position)"
        seen = ~forbidden
    if bool(seen.all()):
        return False, ""
    causal = torch.ones(tokens, tokens, dtype=torch.bool).tril_()
    wrong = seen != causal
    if not bool(wrong.any()):
        return True, ""
    query, key = (int(i) for i in wrong.nonzero()[0])
    does = "sees" if bool(seen[query, key]) else "does not see"
    return None, f"is neither full nor causal: token {query} {does} token {key}"
