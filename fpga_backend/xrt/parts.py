"""A batch in parts for several devices, and their answers put together again."""

from collections.abc import Mapping, Sequence

import numpy as np

from greentrain.fpga_backend.batch import Batch, Result
from greentrain.fpga_backend.program import Program


def split(batch: Batch, program: Program, parts: int) -> tuple[tuple[int, ...], ...]:
    """Return the sequences of each part: about equal in tokens, sequences of one shared prompt together.

    Args:
        batch: Sequences.
        program: What will run them; where it is causal, a shared prompt is computed once.
        parts: At most so many.

    Returns:
        Indices in rising order, the part with most tokens first; no part is empty.
    """
    groups: dict[object, list[int]] = {}
    for i, ids in enumerate(batch.ids):
        prompt = 0 if batch.prompt_tokens is None or not program.causal else batch.prompt_tokens[i]
        types = b"" if batch.types is None else batch.types[i][:prompt].tobytes()
        groups.setdefault((ids[:prompt].tobytes(), types) if prompt else i, []).append(i)
    costs = [(_rows(batch, group), group) for group in groups.values()]
    loads = [0] * max(parts, 1)
    chosen: list[list[int]] = [[] for _ in loads]
    for cost, group in sorted(costs, key=lambda item: -item[0]):  # the largest first, to the least loaded
        least = loads.index(min(loads))
        loads[least] += cost
        chosen[least] += group
    return tuple(
        tuple(sorted(part)) for _, part in sorted(zip(loads, chosen, strict=True), key=lambda p: -p[0]) if part
    )


def picked(batch: Batch, part: Sequence[int]) -> Batch:
    """Return the batch of some sequences."""
    return Batch(
        ids=tuple(batch.ids[i] for i in part),
        types=None if batch.types is None else tuple(batch.types[i] for i in part),
        prompt_tokens=None if batch.prompt_tokens is None else tuple(batch.prompt_tokens[i] for i in part),
    )


def joined(results: Mapping[tuple[int, ...], Result]) -> Result:
    """Return one answer of several, by the sequences that each is for. The parts ran at the same time."""
    order = np.argsort([i for part in results for i in part])
    found = list(results.values())
    scores = logprobs = None
    if found[0].scores is not None:
        scores = np.concatenate([result.scores for result in found if result.scores is not None])[order]
    else:
        rows = [row for result in found for row in result.logprobs or ()]
        logprobs = tuple(rows[i] for i in order)
    return Result(
        scores=scores,
        logprobs=logprobs,
        run_s=max(result.run_s for result in found),
        modelled=any(result.modelled for result in found),
        rows=sum(result.rows for result in found),
        notes=tuple(dict.fromkeys(note for result in found for note in result.notes)),
    )


def _rows(batch: Batch, group: Sequence[int]) -> int:
    """Return the rows of sequences that share a prompt."""
    tokens = sum(len(batch.ids[i]) for i in group)
    if len(group) == 1 or batch.prompt_tokens is None:
        return tokens
    return tokens - (len(group) - 1) * batch.prompt_tokens[group[0]]
