"""The rows of a batch: each token once, a prompt that several sequences share once for all of them."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from greentrain.fpga_backend.batch import Batch, Ids
from greentrain.fpga_backend.program import Program


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
    layout = _Layout()
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


class _Layout:
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
    counts: dict[tuple[bytes, bytes], int] = {}
    for key in keys:
        counts[key] = counts.get(key, 0) + 1
    return {i: batch.prompt_tokens[i] if counts[key] > 1 and key[0] else 0 for i, key in enumerate(keys)}
