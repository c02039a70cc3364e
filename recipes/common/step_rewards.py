"""Process rewards: a score for each step of a completion, from any device that scores sequences.

Each step's prefix, from the prompt to the step's end, is a sequence of its own, so a reward model of either kind will
do: one that reads in both directions scores a prefix as if nothing followed, and so does a causal one. The price is
rows: n steps of a completion of T tokens are n prefixes, n (T + 1) / 2 rows on average instead of T. On causal models
a prompt is computed once for all prefixes that begin with it. A causal model with a score at each row would need T rows
only, but no device's program has such a head.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from greentrain.fpga_backend.batch import Batch, Ids
from greentrain.fpga_backend.errors import BatchError
from greentrain.rlhf.engine import OffloadEngine, Ticket
from greentrain.rlhf.kinds import PassKind


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRewards:
    """Rewards of steps."""

    rewards: Tensor
    """[B, T] float32: of a step at the token where it ends, else 0."""
    steps: Tensor
    """[B, T] bool: where steps end. With ``rewards`` it is what ``advantages.step_advantages`` takes."""


class StepTicket:
    """Rewards of steps, now or later. Made by :func:`submit`.

    Args:
        ticket: Ticket of the prefixes.
        ends: Places where steps end, by completion.
        width: Number T of columns (tokens).
        label: Number of the score of a prefix that is the reward.
    """

    def __init__(self, ticket: Ticket, ends: Sequence[Sequence[int]], width: int, label: int = 0) -> None:
        self.ticket = ticket
        self._ends = ends
        self._width = width
        self._label = label

    def result(self, timeout_s: float | None = None) -> StepRewards:
        """Wait for the rewards: the barrier. Raises as :meth:`Ticket.result` does."""
        found = self.ticket.result(timeout_s)
        assert found.scores is not None  # or the engine would have raised
        rewards = torch.zeros(len(self._ends), self._width)
        steps = torch.zeros(len(self._ends), self._width, dtype=torch.bool)
        rows = [(i, end) for i, ends in enumerate(self._ends) for end in ends]
        at = tuple(torch.tensor(rows).T)
        rewards[at] = torch.from_numpy(np.array(found.scores[:, self._label]))
        steps[at] = True
        return StepRewards(rewards=rewards, steps=steps)


def submit(
    engine: OffloadEngine,
    prompts: Sequence[Ids],
    completions: Sequence[Ids],
    ends: Sequence[Sequence[int]],
    *,
    kind: PassKind = PassKind.STEP_REWARD,
    width: int | None = None,
    label: int | None = None,
) -> StepTicket:
    """Hand in the prefixes of all steps as one batch.

    Args:
        engine: Engine that has a pass of the kind.
        prompts: Token ids of each prompt.
        completions: Token ids of each completion, without padding.
        ends: Indices of the tokens at which a step ends, by completion: see :func:`step_ends`.
        kind: Kind of the pass.
        width: Number T of columns (tokens); None: that of the longest completion.
        label: Number of the score of a prefix that is the reward; may be left out where there is one.

    Raises:
        BatchError: There is no step at all, an index lies outside its completion, or a prefix does not fit the model.
        ConfigError: There is no such pass, or it does not have that score.
    """
    label = engine.of(kind).score_at(label)
    batch = prefixes(prompts, completions, ends)
    longest = max(len(row) for row in completions)
    if width is not None and width < longest:
        raise BatchError(f"width={width}: a completion has {longest} tokens")
    return StepTicket(engine.submit(kind, batch), ends, longest if width is None else width, label)


def prefixes(prompts: Sequence[Ids], completions: Sequence[Ids], ends: Sequence[Sequence[int]]) -> Batch:
    """Return the batch of all steps' prefixes, completion by completion.

    Raises:
        BatchError: As :func:`submit`.
    """
    rows = list(_prefixes(prompts, completions, ends))
    if not rows:
        raise BatchError("no completion has a step: ends holds no index")
    return Batch.of([ids for ids, _ in rows], prompt_tokens=[prompt for _, prompt in rows])


def step_ends(completion: Ids, separators: Sequence[int]) -> list[int]:
    """Return where the steps of a completion end: at each token that separates, and at the last one.

    A run of separators ends one step, at its last token.

    Args:
        completion: Token ids, without padding.
        separators: Token ids such as that of a line's end.
    """
    divides = np.isin(completion, np.asarray(list(separators)))
    last = len(completion) - 1
    return [i for i in range(len(completion)) if i == last or (divides[i] and not divides[i + 1])]


def _prefixes(
    prompts: Sequence[Ids], completions: Sequence[Ids], ends: Sequence[Sequence[int]]
) -> Iterator[tuple[Ids, int]]:
    if not len(prompts) == len(completions) == len(ends):
        raise BatchError(f"{len(prompts)} prompts, {len(completions)} completions and {len(ends)} lists of steps")
    for i, (prompt, completion, own) in enumerate(zip(prompts, completions, ends, strict=True)):
        whole = np.concatenate([prompt, completion])
        for end in own:
            if not 0 <= end < len(completion):
                raise BatchError(f"completion {i} has {len(completion)} tokens, and a step that ends at {end}")
            yield whole[: len(prompt) + end + 1], len(prompt)
