"""Scores and log-probabilities of a compiled model, computed by whatever runs it."""

from collections.abc import Callable, Sequence

import numpy as np

from greentrain.fpga_backend.batch import Batch, Ids, Result
from greentrain.fpga_backend.quality.pairs import Floats

Run = Callable[[Batch], Result]
"""Computes one batch: ``Engine.run`` of the emulator, or a device's submit and the future's result."""


def scores(run: Run, sequences: Sequence[Ids], *, size: int = 32, label: int = 0) -> Floats:
    """Return a score a sequence [sequences], computed in batches of ``size`` in the order given.

    Args:
        run: Function that runs a program which ends in a score head.
        sequences: Token ids.
        size: Sequences a batch. It matters only where a score depends on its company.
        label: Number of the score among those of the head.

    Raises:
        ValueError: The program has no such score.
        OffloadError: The batch does not fit, or the device failed.
    """
    found = []
    for start in range(0, len(sequences), size):
        made = run(Batch.of(sequences[start : start + size])).scores
        if made is None or label >= made.shape[1]:
            raise ValueError(f"the program has no score {label}: compile the model with a score head")
        found.append(made[:, label].astype(np.float64))
    return np.concatenate(found) if found else np.empty(0)


def logprobs(
    run: Run, sequences: Sequence[Ids], *, prompt_tokens: Sequence[int] | None = None, size: int = 8
) -> Floats:
    """Return the log-probabilities of all tokens behind the prompts, sequence after sequence [tokens].

    Args:
        run: Function that runs a program which ends in log-probabilities.
        sequences: Token ids.
        prompt_tokens: Leading tokens of each sequence that are not asked about; None: the first.
        size: Sequences a batch.

    Raises:
        ValueError: The program gives no log-probabilities.
        OffloadError: The batch does not fit, or the device failed.
    """
    found: list[Floats] = []
    for start in range(0, len(sequences), size):
        part = slice(start, start + size)
        prompts = None if prompt_tokens is None else prompt_tokens[part]
        made = run(Batch.of(sequences[part], prompt_tokens=prompts)).logprobs
        if made is None:
            raise ValueError("the program gives no log-probabilities: compile the model with head='logprob'")
        found += [row.astype(np.float64) for row in made]
    return np.concatenate(found) if found else np.empty(0)
