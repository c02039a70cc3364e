"""Sequences of like lengths together, so that padding them to one length costs little."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from greentrain.fpga_backend.batch import Batch
from greentrain.fpga_backend.packing import Packed

STRETCH = 1.25
"""A bucket's longest sequence is at most this much longer than its shortest, or ``SLACK`` tokens (a judgement: a call
of its own costs more than padding does)."""
SLACK = 8

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Segments whose attention is one padded call."""

    queries: Rows
    """Row of each query [segments, longest segment]; padding repeats the segment's first row."""
    keys: Rows
    """Row of each key [segments, longest segment with its parent]; the parent's first; padding as above."""
    rows: Rows
    """How many queries are no padding [segments]."""
    parents: Rows
    """How many keys come from the parent [segments]."""

    @property
    def ragged(self) -> bool:
        """True if there is padding."""
        return bool((self.rows != self.queries.shape[1]).any())

    @property
    def run(self) -> tuple[int, int] | None:
        """First and last row + 1 where the bucket is nothing but those rows in their order, else None."""
        first, count = int(self.queries[0, 0]), self.queries.size
        whole = not self.ragged and not self.parents.any() and int(self.queries[-1, -1]) == first + count - 1
        return (first, first + count) if whole and (np.diff(self.queries.ravel()) == 1).all() else None

    def mask(self, causal: bool) -> npt.NDArray[np.bool_] | None:
        """Return which keys a query may see [segments, 1, queries or 1, keys], or None: all, or the causal triangle."""
        positions = np.arange(self.keys.shape[1])
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
    return chosen(batch, order), order


def length_groups(batch: Batch, most_rows: int) -> tuple[tuple[int, ...], ...]:
    """Return a batch's sequences in groups of like lengths.

    Args:
        batch: Sequences.
        most_rows: Largest number of sequences times longest length in a group of more than one.
    """
    sizes = np.array([len(row) for row in batch.ids], dtype=np.int64)
    groups: list[tuple[int, ...]] = []
    for group in _alike(np.argsort(sizes, kind="stable"), sizes, np.zeros_like(sizes)):
        step = max(1, most_rows // int(sizes[list(group)].max()))
        groups += [tuple(group[i : i + step]) for i in range(0, len(group), step)]
    return tuple(groups)


def chosen(batch: Batch, some: Sequence[int]) -> Batch:
    """Return a batch of some of the sequences."""
    return replace(
        batch,
        ids=tuple(batch.ids[i] for i in some),
        types=None if batch.types is None else tuple(batch.types[i] for i in some),
        prompt_tokens=None if batch.prompt_tokens is None else tuple(batch.prompt_tokens[i] for i in some),
    )


def _alike(order: Iterable[int], sizes: Rows, before: Rows) -> list[list[int]]:
    """Return runs of an order whose sizes, and sizes before, are alike."""
    groups: list[list[int]] = []
    for i in map(int, order):
        first = groups[-1][0] if groups else -1
        if first >= 0 and _near(sizes[first], sizes[i]) and before[first] == before[i]:
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups


def _near(short: int, long: int) -> bool:
    return long <= max(short * STRETCH, short + SLACK)


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
