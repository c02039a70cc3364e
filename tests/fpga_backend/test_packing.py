"""A batch's rows: every token once, shared prompts once, and where each prediction is found."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from greentrain.fpga_backend.batch import Batch, pack
from greentrain.fpga_backend.errors import BatchError
from greentrain.fpga_backend.program import Embed, Program

PROGRAM = Program(
    ops=(Embed(out=0, weight="e", index="token", width=4),),
    vocabulary=50,
    types=2,
    max_tokens=12,
    hidden=4,
    layers=1,
    causal=True,
)


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_every_sequence_can_be_read_back_from_the_rows(data: st.DataObject) -> None:
    prompts = data.draw(st.lists(st.lists(st.integers(0, 3), max_size=4), min_size=1, max_size=3))
    picks = data.draw(
        st.lists(
            st.tuples(st.sampled_from(prompts), st.lists(st.integers(0, 49), max_size=6)), min_size=1, max_size=8
        ).filter(lambda rows: all(p + c for p, c in rows))
    )
    told = data.draw(st.booleans())
    batch = Batch.of([p + c for p, c in picks], prompt_tokens=[len(p) for p, _ in picks] if told else None)
    packed = pack(batch, PROGRAM)
    at = 0
    for i, (prompt, completion) in enumerate(picks):
        rows = [row for start, n in packed.spans(packed.sequences[i]) for row in range(start, start + n)]
        assert packed.ids[rows].tolist() == prompt + completion
        assert packed.positions[rows].tolist() == list(range(len(rows)))
        first = max(len(prompt), 1) if told else 1
        count = packed.targets[i]
        assert count == len(rows) - first
        assert packed.target_rows[at : at + count].tolist() == rows[first - 1 : -1]
        assert packed.target_ids[at : at + count].tolist() == (prompt + completion)[first:]
        at += count
    assert at == len(packed.target_rows) == len(packed.target_ids)
    if told:
        shared = {tuple(p) for p, _ in picks if p and sum(q == p for q, _ in picks) > 1}
        saved = sum(len(p) * (sum(tuple(q) == p for q, _ in picks) - 1) for p in shared)
        assert packed.rows == batch.tokens - saved
    else:
        assert packed.rows == batch.tokens
    for segment, line in zip(packed.segments, packed.table(), strict=True):
        parent = packed.segments[segment.parent] if segment.parent >= 0 else None
        assert line.tolist() == [
            segment.start,
            segment.rows,
            parent.start if parent else 0,
            parent.rows if parent else 0,
        ]


def test_prompts_of_a_model_that_looks_both_ways_are_not_shared() -> None:
    import dataclasses

    batch = Batch.of([[1, 2, 3], [1, 2, 4]], prompt_tokens=[2, 2])
    both = pack(batch, dataclasses.replace(PROGRAM, causal=False))
    assert both.rows == 6
    assert pack(batch, PROGRAM).rows == 4


def test_equal_ids_of_other_types_are_another_prompt() -> None:
    batch = Batch.of([[1, 2, 3], [1, 2, 4]], types=[[0, 0, 0], [1, 1, 1]], prompt_tokens=[2, 2])
    assert pack(batch, PROGRAM).rows == 6


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (Batch(ids=()), "no sequences"),
        (Batch.of([[]]), "sequence 0 has 0 tokens"),
        (Batch.of([[1], list(range(13))]), "sequence 1 has 13 tokens; compiled for 1 to 12"),
        (Batch.of([[1, 50]]), "token id 50; the compiled model knows 0 to 49"),
        (Batch.of([[1, -3]]), "token id -3"),
        (Batch.of([[1, 2]], types=[[0, 2]]), "token type 2; the compiled model knows 0 to 1"),
        (Batch.of([[1, 2]], types=[[0]]), "types must have the lengths"),
        (Batch.of([[1, 2]], prompt_tokens=[3]), "sequence 0 of 2 tokens has a prompt of 3"),
        (Batch.of([[1, 2]], prompt_tokens=[1, 1]), "2 prompt_tokens for 1 sequences"),
    ],
)
def test_a_batch_that_does_not_fit_says_what_does(batch: Batch, said: str) -> None:
    with pytest.raises(BatchError, match=said):
        pack(batch, PROGRAM)


def test_padding_is_left_away_on_either_side() -> None:
    ids = np.array([[0, 7, 8], [5, 6, 0]])
    batch = Batch.padded(ids, np.array([[0, 1, 1], [1, 1, 0]]), types=np.array([[9, 1, 0], [0, 1, 9]]))
    assert [row.tolist() for row in batch.ids] == [[7, 8], [5, 6]]
    assert batch.types is not None
    assert [row.tolist() for row in batch.types] == [[1, 0], [0, 1]]


@pytest.mark.parametrize(
    ("ids", "mask", "said"),
    [
        (np.zeros((2, 3), int), np.ones((2, 2)), "same"),
        (np.zeros(3, int), np.ones(3), "same"),
        (np.zeros((1, 2), int), np.array([[1.0, np.nan]]), "other than 0 and 1"),
        (np.zeros((1, 2)), np.ones((1, 2)), "integers"),
    ],
)
def test_wrong_matrices_are_refused(ids: np.ndarray, mask: np.ndarray, said: str) -> None:
    with pytest.raises(BatchError, match=said):
        Batch.padded(ids, mask)


def test_ids_beyond_32_bits_are_refused() -> None:
    with pytest.raises(BatchError, match="32 bits"):
        Batch.of([[2**31]])
