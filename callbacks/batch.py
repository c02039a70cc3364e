"""How many tokens and samples a batch holds, from shapes alone: nothing waits for the device."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

_TOKEN_TYPES = (torch.int64, torch.int32)
_MAX_DEPTH = 3


def count(batch: Any) -> tuple[int, int]:
    """Return tokens and samples of a batch.

    ``input_ids``, wherever it is found, is tokens. Otherwise the first tensor decides: integers of shape (batch,
    time) are tokens, anything else is samples. Padding counts: whether a token is padding only the device knows.

    Args:
        batch: A tensor, or mappings and sequences of tensors as data loaders make them.

    Returns:
        (tokens, samples); 0 where the batch does not tell.
    """
    ids = _input_ids(batch)
    if ids is not None:
        return ids.numel(), ids.shape[0] if ids.dim() > 1 else 1
    first = next(_tensors(batch), None)
    if first is None or first.dim() == 0:
        return 0, 0
    tokens = first.numel() if first.dim() == 2 and first.dtype in _TOKEN_TYPES else 0
    return tokens, first.shape[0]


def _input_ids(batch: Any) -> torch.Tensor | None:
    found = batch.get("input_ids") if isinstance(batch, Mapping) else getattr(batch, "input_ids", None)
    if isinstance(found, torch.Tensor):
        return found
    if isinstance(batch, (list, tuple)):
        for item in batch[:8]:
            if isinstance(item, Mapping) and isinstance(item.get("input_ids"), torch.Tensor):
                ids: torch.Tensor = item["input_ids"]
                return ids
    return None


def _tensors(batch: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        yield batch
    elif depth < _MAX_DEPTH:
        if isinstance(batch, Mapping):
            items: Iterable[Any] = batch.values()
        elif isinstance(batch, (list, tuple)):
            items = batch
        else:
            return
        for item in items:
            yield from _tensors(item, depth + 1)
