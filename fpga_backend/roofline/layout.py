"""The size of a batch as the model needs it: of a packed one, or of equal sequences that nobody has to build."""

from dataclasses import dataclass

from greentrain.fpga_backend.errors import BatchError
from greentrain.fpga_backend.packing import Packed


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLayout:
    """What a batch comes to, in rows."""

    tokens: int
    """Of all sequences, shared prompts counted each time."""
    rows: int
    """Rows that are computed."""
    sequences: int
    segments: int
    targets: int
    """Wanted log-probabilities."""
    causal_pairs: int
    """Pairs of query and key in a causal attention, over all segments."""
    all_pairs: int
    """The same where every row sees its whole sequence."""
    keys: int
    """Rows that a segment may attend to, added up over the segments: keys and values read."""

    @classmethod
    def of(cls, packed: Packed) -> "BatchLayout":
        """Return the size of a packed batch."""
        before = [packed.segments[s.parent].rows if s.parent >= 0 else 0 for s in packed.segments]
        own = [segment.rows for segment in packed.segments]
        keys = [b + n for b, n in zip(before, own, strict=True)]
        ends = [keys[segment] for segment in packed.sequences]
        return cls(
            tokens=sum(ends),
            rows=packed.rows,
            sequences=len(packed.sequences),
            segments=len(packed.segments),
            targets=len(packed.target_rows),
            causal_pairs=sum(b * n + _triangle(n) for b, n in zip(before, own, strict=True)),
            all_pairs=sum(n * k for n, k in zip(own, keys, strict=True)),
            keys=sum(keys),
        )

    @classmethod
    def equal(cls, sequences: int, tokens: int) -> "BatchLayout":
        """Return the size of ``sequences`` sequences of ``tokens`` tokens each, no prompt shared.

        Raises:
            BatchError: One of them is below 1.
        """
        if sequences < 1 or tokens < 1:
            raise BatchError(f"{sequences} sequences of {tokens} tokens: both are at least 1")
        return cls(
            tokens=sequences * tokens,
            rows=sequences * tokens,
            sequences=sequences,
            segments=sequences,
            targets=sequences * (tokens - 1),
            causal_pairs=sequences * _triangle(tokens),
            all_pairs=sequences * tokens * tokens,
            keys=sequences * tokens,
        )


def _triangle(rows: int) -> int:
    return rows * (rows + 1) // 2
