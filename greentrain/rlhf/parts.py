"""Batches in parts, and results put together again."""

from collections.abc import Iterator, Sequence

import numpy as np

from greentrain.fpga_backend.batch import Batch, Result


def part(batch: Batch, rows: Sequence[int]) -> Batch:
    """Return the batch of some of the sequences, without copying their tokens."""
    return Batch(
        ids=tuple(batch.ids[i] for i in rows),
        types=None if batch.types is None else tuple(batch.types[i] for i in rows),
        prompt_tokens=None if batch.prompt_tokens is None else tuple(batch.prompt_tokens[i] for i in rows),
    )


def parts(batch: Batch, sequences: int | None) -> Iterator[Batch]:
    """Cut a batch after every so many sequences; None: not at all."""
    if sequences is None or sequences >= len(batch.ids):
        yield batch
        return
    for start in range(0, len(batch.ids), sequences):
        yield part(batch, range(start, min(start + sequences, len(batch.ids))))


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
