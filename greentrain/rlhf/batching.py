"""Batches in parts, and results put together again.

Padded matrices, as frameworks pass them, and the sequences in them.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from greentrain.fpga_backend.batch import Batch, Result
from greentrain.fpga_backend.program import Program


def part(batch: Batch, rows: Sequence[int]) -> Batch:
    """Return the batch of some of the sequences, without copying their tokens."""
    return Batch(
        ids=tuple(batch.ids[i] for i in rows),
        types=None if batch.types is None else tuple(batch.types[i] for i in rows),
        prompt_tokens=None if batch.prompt_tokens is None else tuple(batch.prompt_tokens[i] for i in rows),
    )


def parts(batch: Batch, sequences: int | Callable[[int], int] | None) -> Iterator[Batch]:
    """Cut a batch.

    Args:
        batch: Sequences.
        sequences: Of each part; or what says of how many that are left the next part takes; None: all.
    """
    total = len(batch.ids)
    start = 0
    while start < total:
        left = total - start
        asked = left if sequences is None else sequences if isinstance(sequences, int) else sequences(left)
        taken = max(1, min(asked, left))
        yield batch if taken == total else part(batch, range(start, start + taken))
        start += taken


def joined(results: Sequence[Result]) -> Result:
    """Return the result of a batch from those of its parts, in order."""
    if len(results) == 1:
        return results[0]
    scores = [r.scores for r in results if r.scores is not None]
    logprobs = [row for r in results for row in r.logprobs or ()]
    return Result(
        scores=np.concatenate(scores) if scores else None,
        logprobs=tuple(logprobs) if logprobs else None,
        run_s=sum(r.run_s for r in results),
        modelled=any(r.modelled for r in results),
        rows=sum(r.rows for r in results),
        notes=tuple(dict.fromkeys(note for r in results for note in r.notes)),
    )


def rows_of(result: Result, rows: Sequence[int]) -> Result:
    """Return the result of some of the sequences, with no time of its own."""
    return Result(
        scores=None if result.scores is None else result.scores[list(rows)],
        logprobs=None if result.logprobs is None else tuple(result.logprobs[i] for i in rows),
        run_s=0.0,
        modelled=result.modelled,
        rows=0,
        notes=result.notes,
    )


def fault_of(result: Result, batch: Batch, program: Program) -> str:
    """Say why a result cannot be that of a batch; empty where it can."""
    if program.labels:
        shape = None if result.scores is None else result.scores.shape
        if result.scores is None or shape != (len(batch.ids), program.labels):
            return f"scores of shape {shape} instead of {(len(batch.ids), program.labels)}"
        return "" if np.isfinite(result.scores).all() else "scores that are not finite"
    prompts = batch.prompt_tokens or (1,) * len(batch.ids)
    wanted = [(len(ids) - max(prompt, 1),) for ids, prompt in zip(batch.ids, prompts, strict=True)]
    if result.logprobs is None or [row.shape for row in result.logprobs] != wanted:
        return "log-probabilities of other numbers of tokens than the batch has"
    return "" if all(np.isfinite(row).all() for row in result.logprobs) else "log-probabilities that are not finite"


def unpadded(ids: Tensor, mask: Tensor) -> list[list[int]]:
    """Return the tokens of each row [sequences, tokens] that the mask keeps, on whichever side the padding is."""
    return [row[kept].tolist() for row, kept in zip(ids.cpu(), mask.cpu().bool(), strict=True)]


def padded_logprobs(rows: Sequence[Sequence[float]], mask: Tensor) -> Tensor:
    """Return log-probabilities where a causal model's logits have them: column t is of the token in column t + 1.

    Args:
        rows: By sequence, of each kept token but the first.
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
