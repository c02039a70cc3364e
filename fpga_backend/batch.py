"""What goes into a device, and what comes out."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from greentrain.fpga_backend.errors import BatchError
from greentrain.fpga_backend.program import Program

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Token sequences of any lengths, without padding.

    Args:
        ids: One array of token ids [tokens] a sequence.
        types: Token types of the same lengths, or None: all 0.
        prompt_tokens: How many leading tokens of each sequence are its prompt, or None. Sequences that begin with the
            same prompt share its computation, and log-probabilities are returned only for what follows it.
    """

    ids: tuple[Ids, ...]
    types: tuple[Ids, ...] | None = None
    prompt_tokens: tuple[int, ...] | None = None

    @classmethod
    def of(
        cls,
        ids: Sequence[Any],
        *,
        types: Sequence[Any] | None = None,
        prompt_tokens: Sequence[int] | None = None,
    ) -> "Batch":
        """Return a batch of anything numpy can read as sequences of integers: lists, arrays, CPU tensors.

        What is int32 already is not copied: leave it as it is until the result is there.

        Raises:
            BatchError: A sequence is not one-dimensional, or not of integers.
        """
        if not hasattr(ids, "__iter__"):
            raise BatchError(f"ids is a {type(ids).__name__}; a batch is several sequences of token ids")
        return cls(
            ids=tuple(_row(row, f"ids[{i}]") for i, row in enumerate(ids)),
            types=None if types is None else tuple(_row(row, f"types[{i}]") for i, row in enumerate(types)),
            prompt_tokens=None if prompt_tokens is None else tuple(int(n) for n in prompt_tokens),
        )

    @classmethod
    def padded(cls, ids: Any, mask: Any, *, types: Any = None, prompt_tokens: Sequence[int] | None = None) -> "Batch":
        """Return the batch of a padded matrix, with the padding, on whichever side it is, left away.

        Args:
            ids: Token ids [sequences, tokens].
            mask: The same shape; 0 marks padding.
            types: Token types of the same shape, or None.
            prompt_tokens: As in the constructor, counted without padding.

        Raises:
            BatchError: The shapes differ, or the mask holds something else than 0 and 1 (such as NaN).
        """
        matrix, kept = np.asarray(ids), np.asarray(mask)
        if matrix.shape != kept.shape or matrix.ndim != 2:
            raise BatchError(
                f"ids {list(matrix.shape)} and mask {list(kept.shape)} must be the same [sequences, tokens]"
            )
        if not np.isin(kept, (0, 1)).all():
            raise BatchError("the mask holds values other than 0 and 1: 1 marks a token, 0 padding")
        keep = kept.astype(bool)
        segment = None if types is None else np.asarray(types)
        if segment is not None and segment.shape != matrix.shape:
            raise BatchError(f"types {list(segment.shape)} must have the shape of ids {list(matrix.shape)}")
        return cls.of(
            [row[k] for row, k in zip(matrix, keep, strict=True)],
            types=None if segment is None else [row[k] for row, k in zip(segment, keep, strict=True)],
            prompt_tokens=prompt_tokens,
        )

    @property
    def tokens(self) -> int:
        """Tokens of all sequences, shared prompts counted each time."""
        return sum(len(row) for row in self.ids)

    def check(self, program: Program) -> None:
        """Raise if the program cannot take the batch.

        Raises:
            BatchError: Names the sequence, the value, the bound and what to do.
        """
        if not self.ids:
            raise BatchError("the batch has no sequences")
        _integers(self.ids, "ids")
        for i, row in enumerate(self.ids):
            if not 0 < len(row) <= program.max_tokens:
                raise BatchError(
                    f"sequence {i} has {len(row)} tokens; compiled for 1 to {program.max_tokens}: "
                    "truncate it, or compile with a larger max_tokens"
                )
            _within(row, program.vocabulary, f"sequence {i} holds token id")
        if self.types is not None:
            _integers(self.types, "types")
            if [len(row) for row in self.types] != [len(row) for row in self.ids]:
                raise BatchError("types must have the lengths of ids")
            for i, row in enumerate(self.types):
                _within(row, max(program.types, 1), f"sequence {i} holds token type")
        if self.prompt_tokens is not None:
            if len(self.prompt_tokens) != len(self.ids):
                raise BatchError(f"{len(self.prompt_tokens)} prompt_tokens for {len(self.ids)} sequences")
            for i, (prompt, row) in enumerate(zip(self.prompt_tokens, self.ids, strict=True)):
                if not 0 <= prompt <= len(row):
                    raise BatchError(f"sequence {i} of {len(row)} tokens has a prompt of {prompt}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a device computed."""

    scores: npt.NDArray[np.float32] | None = None
    """Scores [sequences, labels] of a program that ends in a score head."""
    logprobs: tuple[npt.NDArray[np.float32], ...] | None = None
    """By sequence, ln p of each token given those before it: [tokens - 1], or [tokens - prompt] where prompts are given
    (a prompt of 0 counts as 1: nothing predicts the first token)."""
    run_s: float
    """Seconds on the device, without waiting in its queue."""
    modelled: bool = False
    """True if ``run_s`` is what a model of a device says instead of a measurement."""
    rows: int
    """Rows that were computed: fewer than tokens where prompts were shared."""
    notes: tuple[str, ...] = field(default=())


def fitting(batch: Any, program: Program) -> Batch:
    """Return a batch that a caller gave, if it is one that the program can take.

    Raises:
        BatchError: It is something else, or does not fit.
    """
    if not isinstance(batch, Batch):
        raise BatchError(
            f"a {type(batch).__name__} is no Batch: make one by Batch.of(sequences) or Batch.padded(ids, mask)"
        )
    batch.check(program)
    return batch


def _row(row: Any, place: str) -> Ids:
    array = np.asarray(row)
    if array.ndim != 1:
        raise BatchError(f"{place} has shape {list(array.shape)}; each sequence is one-dimensional")
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise BatchError(f"{place} is of {array.dtype}; token ids and types are integers")
    if array.size and (array.min() < -(2**31) or array.max() >= 2**31):
        raise BatchError(f"{place} holds a value beyond 32 bits")
    return array.astype(np.int32, copy=False)


def _integers(rows: tuple[Ids, ...], name: str) -> None:
    """Raise where a row is not what a kernel reads: other bytes would be other tokens."""
    for i, row in enumerate(rows):
        if row.dtype != np.int32 or row.ndim != 1:
            raise BatchError(
                f"{name}[{i}] is {row.dtype}{list(row.shape)}; devices read int32[tokens]: make the batch by Batch.of"
            )


def _within(row: Ids, bound: int, what: str) -> None:
    if len(row) and not 0 <= (low := int(row.min())) <= (high := int(row.max())) < bound:
        raise BatchError(f"{what} {low if low < 0 else high}; the compiled model knows 0 to {bound - 1}")
