"""What goes into a device, how it lies there in rows, and what comes out.

A :class:`Batch` is cut into parts (``some``, ``parts``), and the :class:`Result` of each is put together again
(``joined``). :func:`pack` lays a batch out in rows: each token once, and a prompt that several sequences share once for
all of them. :func:`buckets` brings like lengths together, so that padding them costs little.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from greentrain.fpga_backend.errors import BatchError, DeviceError
from greentrain.fpga_backend.program import Program

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Token sequences of any lengths, without padding.

    Args:
        ids: One array of token ids [tokens] a sequence.
        types: Token types of the same lengths, or None: all 0.
        prompt_tokens: Number of leading tokens of each sequence that are its prompt, or None. Sequences with the
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
            mask: Matrix of the shape of ``ids``; 0 marks padding.
            types: Token types in the shape of ``ids``, or None.
            prompt_tokens: Number of prompt tokens of each sequence, counted without padding.

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

    @property
    def targets(self) -> list[int]:
        """How many log-probabilities each sequence gets."""
        prompts = self.prompt_tokens or (1,) * len(self.ids)
        return [len(ids) - max(prompt, 1) if len(ids) else 0 for ids, prompt in zip(self.ids, prompts, strict=True)]

    def some(self, rows: Sequence[int]) -> "Batch":
        """Return the batch of some of the sequences, without copying their tokens.

        Args:
            rows: Numbers of the sequences, in the order in which they are wanted.
        """
        return Batch(
            ids=tuple(self.ids[i] for i in rows),
            types=None if self.types is None else tuple(self.types[i] for i in rows),
            prompt_tokens=None if self.prompt_tokens is None else tuple(self.prompt_tokens[i] for i in rows),
        )

    def parts(self, sequences: int | Callable[[int], int] | None) -> Iterator["Batch"]:
        """Cut the batch, in order.

        Args:
            sequences: Number of sequences in each part, or a function that returns it for the number that is left;
                None: all of them in one part.
        """
        total = len(self.ids)
        start = 0
        while start < total:
            left = total - start
            asked = left if sequences is None else sequences if isinstance(sequences, int) else sequences(left)
            taken = max(1, min(asked, left))
            yield self if taken == total else self.some(range(start, start + taken))
            start += taken

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

    @classmethod
    def of(
        cls,
        found: npt.NDArray[np.float32],
        targets: Sequence[int],
        *,
        labels: int,
        rows: int,
        run_s: float,
        order: Sequence[int] | None = None,
    ) -> "Result":
        """Return what a device found.

        Args:
            found: Scores [sequences, labels], or log-probabilities [targets] of one sequence after the other.
            targets: Number of log-probabilities of each sequence.
            labels: Number of scores of each sequence; 0: the numbers are log-probabilities.
            rows: Number of rows that were computed.
            run_s: Time on the device (s).
            order: Place in the batch of each sequence in ``found``; None: the same.

        Raises:
            DeviceError: A number is not finite.
        """
        if not np.isfinite(found).all():
            raise DeviceError("the result is not finite: the model's values leave the device's range")
        if labels:
            made = cls(scores=found, run_s=run_s, rows=rows)
        else:
            made = cls(logprobs=tuple(np.split(found, np.cumsum(targets)[:-1])), run_s=run_s, rows=rows)
        return made if order is None else made._in_order(np.argsort(order))

    @classmethod
    def joined(
        cls, results: Sequence["Result"], *, order: Sequence[int] | None = None, at_once: bool = False
    ) -> "Result":
        """Return the result of a batch from those of its parts.

        Args:
            results: Results of the parts, at least one.
            order: Place in the batch of each sequence of the parts; None: they are in the batch's order.
            at_once: True: the parts ran at the same time, on several devices, so the longest time counts.
        """
        if len(results) == 1 and order is None:
            return results[0]
        scores = [result.scores for result in results if result.scores is not None]
        logprobs = [row for result in results for row in result.logprobs or ()]
        made = cls(
            scores=np.concatenate(scores) if scores else None,
            logprobs=tuple(logprobs) if logprobs else None,
            run_s=(max if at_once else sum)(result.run_s for result in results),
            modelled=any(result.modelled for result in results),
            rows=sum(result.rows for result in results),
            notes=tuple(dict.fromkeys(note for result in results for note in result.notes)),
        )
        return made if order is None else made._in_order(np.argsort(order))

    def some(self, rows: Sequence[int]) -> "Result":
        """Return the result of some of the sequences, with no time of its own.

        Args:
            rows: Numbers of the sequences, in the order in which they are wanted.
        """
        return replace(self._in_order(list(rows)), run_s=0.0, rows=0)

    def fault(self, batch: Batch, program: Program) -> str:
        """Say why this cannot be the result of a batch; empty where it can.

        Args:
            batch: Batch that was handed in.
            program: Program that was to run it.
        """
        if program.labels:
            shape = None if self.scores is None else self.scores.shape
            if self.scores is None or shape != (len(batch.ids), program.labels):
                return f"scores of shape {shape} instead of {(len(batch.ids), program.labels)}"
            return "" if np.isfinite(self.scores).all() else "scores that are not finite"
        wanted = [(count,) for count in batch.targets]
        if self.logprobs is None or [row.shape for row in self.logprobs] != wanted:
            return "log-probabilities of other numbers of tokens than the batch has"
        return "" if all(np.isfinite(row).all() for row in self.logprobs) else "log-probabilities that are not finite"

    def _in_order(self, rows: Sequence[int] | npt.NDArray[np.intp]) -> "Result":
        return replace(
            self,
            scores=None if self.scores is None else self.scores[rows],
            logprobs=None if self.logprobs is None else tuple(self.logprobs[i] for i in rows),
        )


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Consecutive rows of one sequence, or of a prompt that several share."""

    start: int
    rows: int
    parent: int = -1
    """Index of the segment whose rows come before these in the sequence, or -1. A parent has no parent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A batch as rows."""

    ids: Ids
    """Token id of each row [rows]."""
    positions: Ids
    """Position of each row in its sequence [rows]."""
    types: Ids
    segments: tuple[Segment, ...]
    """In order of rows; a parent before its children."""
    sequences: tuple[int, ...]
    """Segment in which each sequence of the batch ends. Sequences without a token of their own end in the prompt's."""
    target_rows: Ids
    """Rows whose prediction is wanted [targets], sequence after sequence."""
    target_ids: Ids
    """The token that each is asked about [targets]."""
    targets: tuple[int, ...]
    """How many of them each sequence has."""

    @property
    def rows(self) -> int:
        """Rows in all."""
        return len(self.ids)

    def spans(self, segment: int) -> tuple[tuple[int, int], ...]:
        """Return (start, rows) of a segment's parent, if it has one, and of itself: the rows that it may attend to."""
        own = self.segments[segment]
        before = () if own.parent < 0 else (self.segments[own.parent],)
        return tuple((part.start, part.rows) for part in (*before, own))

    def table(self) -> npt.NDArray[np.int32]:
        """Return the segments as integers [segments, 4]: start, rows, start and rows of the parent (0, 0: none)."""
        lines = []
        for segment in self.segments:
            parent = self.segments[segment.parent] if segment.parent >= 0 else Segment(start=0, rows=0)
            lines.append((segment.start, segment.rows, parent.start, parent.rows))
        return np.array(lines, dtype=np.int32).reshape(-1, 4)


def pack(batch: Batch, program: Program) -> Packed:
    """Lay a batch out in rows.

    Sequences are in the batch's order; a shared prompt comes before the first of them.

    Raises:
        BatchError: The program cannot take the batch.
    """
    batch.check(program)
    prompts = _prompts(batch, program.causal)
    layout = _RowLayout()
    shared: dict[bytes, int] = {}
    ends, rows, wanted, counts = [], [], [], []
    for i, ids in enumerate(batch.ids):
        types = batch.types[i] if batch.types is not None else np.zeros_like(ids)
        cut = prompts[i]
        parent = -1
        if cut:
            key = ids[:cut].tobytes() + b"/" + types[:cut].tobytes()
            if key not in shared:
                shared[key] = layout.append(ids[:cut], types[:cut], -1)
            parent = shared[key]
        end = layout.append(ids[cut:], types[cut:], parent) if cut < len(ids) else parent
        ends.append(end)
        first = 1 if batch.prompt_tokens is None else max(batch.prompt_tokens[i], 1)
        own = layout.row_of(end if cut < len(ids) else -1, parent, cut, np.arange(first - 1, len(ids) - 1))
        rows.append(own)
        wanted.append(ids[first:])
        counts.append(len(own))
    return Packed(
        ids=np.concatenate(layout.ids),
        positions=np.concatenate(layout.positions),
        types=np.concatenate(layout.types),
        segments=tuple(layout.segments),
        sequences=tuple(ends),
        target_rows=np.concatenate(rows).astype(np.int32),
        target_ids=np.concatenate(wanted).astype(np.int32),
        targets=tuple(counts),
    )


class _RowLayout:
    """Rows and segments so far."""

    def __init__(self) -> None:
        self.ids: list[Ids] = []
        self.positions: list[Ids] = []
        self.types: list[Ids] = []
        self.segments: list[Segment] = []
        self.rows = 0

    def append(self, ids: Ids, types: Ids, parent: int) -> int:
        """Add a segment and return its index."""
        first = self.segments[parent].rows if parent >= 0 else 0
        self.ids.append(ids)
        self.types.append(types)
        self.positions.append(np.arange(first, first + len(ids), dtype=np.int32))
        self.segments.append(Segment(start=self.rows, rows=len(ids), parent=parent))
        self.rows += len(ids)
        return len(self.segments) - 1

    def row_of(self, own: int, parent: int, cut: int, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the rows of a sequence's positions, of which the first ``cut`` lie in the parent."""
        before = self.segments[parent].start if parent >= 0 else 0
        after = self.segments[own].start - cut if own >= 0 else 0
        return np.where(positions < cut, before + positions, after + positions)


def _prompts(batch: Batch, causal: bool) -> Mapping[int, int]:
    """Return how many leading tokens of each sequence are shared with another: 0 where nothing is gained."""
    if batch.prompt_tokens is None or not causal:
        return dict.fromkeys(range(len(batch.ids)), 0)
    keys = [
        (ids[:n].tobytes(), b"" if batch.types is None else batch.types[i][:n].tobytes())
        for i, (ids, n) in enumerate(zip(batch.ids, batch.prompt_tokens, strict=True))
    ]
    counts = Counter(keys)
    return {i: batch.prompt_tokens[i] if counts[key] > 1 and key[0] else 0 for i, key in enumerate(keys)}


STRETCH = 1.25
"""A bucket's longest sequence is at most this much longer than its shortest, or ``SLACK`` tokens (a judgement: a call
of its own costs more than padding does)."""
SLACK = 8

RowNumbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Segments whose attention is one padded call."""

    queries: RowNumbers
    """Row of each query [segments, longest segment]; padding repeats the segment's first row."""
    keys: RowNumbers
    """Row of each key [segments, longest segment with its parent]; the parent's first; padding as above."""
    rows: RowNumbers
    """How many queries are no padding [segments]."""
    parents: RowNumbers
    """How many keys come from the parent [segments]."""

    @property
    def real(self) -> npt.NDArray[np.bool_]:
        """Which queries are no padding [segments, longest segment]."""
        return np.arange(self.queries.shape[1]) < self.rows[:, None]

    @property
    def ragged(self) -> bool:
        """True if there is padding."""
        return not self.real.all()

    @property
    def run(self) -> tuple[int, int] | None:
        """First and last row + 1 where the bucket is nothing but those rows in their order, else None."""
        first, count = int(self.queries[0, 0]), self.queries.size
        whole = not self.ragged and not self.parents.any() and int(self.queries[-1, -1]) == first + count - 1
        return (first, first + count) if whole and (np.diff(self.queries.ravel()) == 1).all() else None

    def mask(self, causal: bool, window: int = 0) -> npt.NDArray[np.bool_] | None:
        """Return which keys a query may see [segments, 1, queries or 1, keys], or None: all, or the causal triangle.

        Args:
            causal: True where a query sees no key behind it.
            window: Tokens from which on a key is too far away; 0: none is.
        """
        positions = np.arange(self.keys.shape[1])
        if window and window < len(positions):
            own = (self.parents[:, None] + np.arange(self.queries.shape[1]))[:, :, None]
            seen = (np.abs(own - positions) < window) & (positions < (self.parents + self.rows)[:, None, None])
            seen |= positions == own  # a row of padding sees itself
            seen &= positions <= own if causal else True
            return np.asarray(seen[:, None])
        if causal:
            if not self.parents.any():
                return None  # padding comes after every real query
            own = self.parents[:, None] + np.arange(self.queries.shape[1])
            return (positions <= own[:, :, None])[:, None]
        return (positions < self.rows[:, None])[:, None, None] if self.ragged else None


def buckets(packed: Packed) -> tuple[Bucket, ...]:
    """Return a batch's segments in buckets."""
    sizes = np.array([segment.rows for segment in packed.segments], dtype=np.int64)
    parents = np.array([segment.parent for segment in packed.segments], dtype=np.int64)
    before = np.where(parents >= 0, sizes[parents], 0)
    order = np.lexsort((np.arange(len(sizes)), sizes, before))
    return tuple(_bucket(packed, list(group)) for group in _alike(order, sizes, before))


def by_length(batch: Batch) -> tuple[Batch, list[int]]:
    """Return the batch with its sequences in order of length, and the place of each of them in the original."""
    order = sorted(range(len(batch.ids)), key=lambda i: len(batch.ids[i]))
    return batch.some(order), order


def _alike(order: Iterable[int], sizes: RowNumbers, before: RowNumbers) -> list[list[int]]:
    """Return runs of an order whose sizes, and sizes before, are alike."""
    groups: list[list[int]] = []
    for i in map(int, order):
        first = groups[-1][0] if groups else -1
        longest = max(sizes[first] * STRETCH, sizes[first] + SLACK)
        if first >= 0 and sizes[i] <= longest and before[first] == before[i]:
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups


def _bucket(packed: Packed, group: list[int]) -> Bucket:
    segments = [packed.segments[i] for i in sorted(group)]
    rows = np.array([segment.rows for segment in segments], dtype=np.int64)
    starts = np.array([segment.start for segment in segments], dtype=np.int64)
    place = np.arange(rows.max())
    own = starts[:, None] + np.where(place < rows[:, None], place, 0)
    ahead = [packed.segments[segment.parent] for segment in segments if segment.parent >= 0]
    if not ahead:
        return Bucket(queries=own, keys=own, rows=rows, parents=np.zeros_like(rows))
    count = ahead[0].rows
    parent = np.array([segment.start for segment in ahead], dtype=np.int64)[:, None] + np.arange(count)
    return Bucket(queries=own, keys=np.hstack([parent, own]), rows=rows, parents=np.full_like(rows, count))
