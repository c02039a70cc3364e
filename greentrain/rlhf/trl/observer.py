"""Sees rollouts end while transformers still generates others."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from transformers import StoppingCriteria, StoppingCriteriaList

from greentrain.utils.never_raise import never_raises

Told = Callable[[Mapping[int, tuple[list[int], list[int]]]], None]
"""Gets, at each token, prompt and completion ids of the rows that have just ended."""


class EndedRows(StoppingCriteria):
    """A stopping criterion that stops nothing.

    Args:
        prompt_mask: Of the prompts [sequences, tokens]; 0 marks padding.
        eos_token_ids: A row has ended with the first of them.
        told: Called at each token. Rows that end by length are not told of: generation is over then.
    """

    def __init__(self, prompt_mask: torch.Tensor, eos_token_ids: Sequence[int], told: Told) -> None:
        self._mask = prompt_mask.bool()
        self._eos = torch.tensor(list(eos_token_ids), device=prompt_mask.device)
        self._told = told
        self._ended = torch.zeros(len(prompt_mask), dtype=torch.bool, device=prompt_mask.device)

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        """Look at the newest token of each row."""
        self._look(input_ids)
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)

    @never_raises
    def _look(self, input_ids: torch.Tensor) -> None:
        if len(input_ids) != len(self._ended):
            return  # several sequences a prompt: not what TRL asks for
        fresh = torch.isin(input_ids[:, -1], self._eos) & ~self._ended
        numbers = fresh.nonzero()[:, 0].tolist()
        self._ended |= fresh
        width = self._mask.shape[1]
        self._told({i: (input_ids[i, :width][self._mask[i]].tolist(), input_ids[i, width:].tolist()) for i in numbers})


@contextlib.contextmanager
def observed(model: Any, eos_token_ids: Sequence[int], told: Told) -> Iterator[None]:
    """Tell of rows that end in ``model.generate`` inside the block.

    Args:
        model: Whose ``generate`` is called, with ``attention_mask``.
        eos_token_ids: As in :class:`EndedRows`.
        told: As in :class:`EndedRows`.
    """
    generate, own = model.generate, vars(model).get("generate")

    def watched(*args: Any, **kwargs: Any) -> Any:
        criteria = StoppingCriteriaList(kwargs.pop("stopping_criteria", None) or [])
        criteria.append(EndedRows(kwargs["attention_mask"], eos_token_ids, told))
        return generate(*args, **kwargs, stopping_criteria=criteria)

    model.generate = watched
    try:
        yield
    finally:
        del model.generate
        if own is not None:
            model.generate = own
