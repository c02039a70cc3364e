"""Counts against brute force over packed rows, and against the tensors of compiled models."""

import dataclasses

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.batch import Batch, Packed, pack
from greentrain.fpga_backend.errors import ArtifactError, BatchError
from greentrain.fpga_backend.program import Attention, Columns, Embed, Linear, LogProb, Precision, Score
from greentrain.fpga_backend.roofline.counts import BatchLayout, count, footprint
from greentrain.testing.offload_models import decoder, encoder

LENGTHS = st.lists(st.integers(1, 12), min_size=1, max_size=5)


def _batch(lengths: list[int], prompts: list[int] | None = None) -> Batch:
    ids = [np.arange(n) + 1 for n in lengths]
    return Batch.of(
        ids, prompt_tokens=None if prompts is None else [min(p, n) for p, n in zip(prompts, lengths, strict=True)]
    )


def _pairs(packed: Packed, causal: bool) -> int:
    """Query by query, key by key."""
    total = 0
    for i, segment in enumerate(packed.segments):
        for row in range(segment.start, segment.start + segment.rows):
            for start, rows in packed.spans(i):
                for key in range(start, start + rows):
                    total += not causal or packed.positions[key] <= packed.positions[row]
    return total


@given(LENGTHS)
@settings(max_examples=25)
def test_products_of_an_encoder_one_by_one(lengths: list[int]) -> None:
    _check_products(encoder(), _batch(lengths))


@given(LENGTHS, st.lists(st.integers(0, 6), min_size=5, max_size=5))
@settings(max_examples=25)
def test_products_of_a_decoder_with_shared_prompts_one_by_one(lengths: list[int], prompts: list[int]) -> None:
    _check_products(decoder(), _batch(lengths, prompts[: len(lengths)]))


def _check_products(artifact: Artifact, batch: Batch) -> None:
    packed = pack(batch, artifact.program)
    counts = count(artifact.program, packed)
    tensors = artifact.tensors
    pooled = False
    for op, counted in zip(artifact.program.ops, counts.ops, strict=True):
        expected = (0, 0)
        rows = len(batch.ids) if pooled else packed.rows
        match op:
            case Linear():
                expected = (rows * tensors[f"{op.weight}.q"].numel(), 0)
            case LogProb():
                expected = (sum(packed.targets) * tensors[f"{op.weight}.q"].numel(), 0)
            case Score():
                expected = (0, len(batch.ids) * tensors[f"{op.weight}.q"].numel())
            case Attention():
                heads, width = op.heads, op.q.width // op.heads
                expected = (_pairs(packed, op.causal) * heads * 2 * width, 0)
        pooled = pooled or type(op).__name__ == "Pool"
        assert (counted.macs8, counted.macs16) == expected, op
    assert counts.tokens == batch.tokens


def test_a_shared_prompt_is_counted_once() -> None:
    program = decoder().program
    ids = [np.r_[np.arange(8), 20 + i, 30 + i] for i in range(4)]
    shared = count(program, pack(Batch.of(ids, prompt_tokens=[8] * 4), program))
    apart = count(program, pack(Batch.of(ids), program))
    first = next(i for i, op in enumerate(program.ops) if isinstance(op, Linear))
    assert apart.ops[first].macs8 == 40 * shared.ops[first].macs8 // 16
    assert shared.tokens == apart.tokens == 40


@given(st.integers(1, 4), st.integers(1, 20), st.booleans())
@settings(max_examples=25)
def test_equal_sequences_without_rows_are_as_packed(sequences: int, tokens: int, causal: bool) -> None:
    program = (decoder if causal else encoder)().program
    packed = pack(_batch([tokens] * sequences), program)
    assert BatchLayout.of(packed) == BatchLayout.equal(sequences, tokens)
    assert count(program, packed) == count(program, BatchLayout.equal(sequences, tokens))


@pytest.mark.parametrize("artifact", [encoder(), encoder(types=0, pooler=True, labels=3), decoder()])
def test_weights_take_what_the_artifact_holds(artifact: Artifact) -> None:
    assert footprint(artifact.program, BatchLayout.equal(1, 1)).weights_bytes == artifact.nbytes


def test_activations_of_16_bits_are_twice_the_products() -> None:
    """Of linear layers and the vocabulary head, for one byte more an element written and read; nothing else changes."""
    layout = BatchLayout.equal(3, 10)
    eight, sixteen = (decoder(vocabulary=102, activation_bits=bits).program for bits in (8, 16))
    for op, a, b in zip(eight.ops, count(eight, layout).ops, count(sixteen, layout).ops, strict=True):
        if isinstance(op, Linear | LogProb):
            rows = 27 if isinstance(op, LogProb) else 30
            assert b.macs8 == 2 * a.macs8 > 0
            assert b.activation_bytes - a.activation_bytes == 2 * rows * op.x.width
            assert (b.weight_bytes, b.launches) == (a.weight_bytes, a.launches)
        else:
            assert a == b
    one, two = (footprint(program, layout) for program in (eight, sixteen))
    assert two.weights_bytes == one.weights_bytes and two.activations_bytes >= one.activations_bytes
    half = [dataclasses.replace(program, precision="fp16") for program in (eight, sixteen)]
    assert count(half[0], layout) == count(half[1], layout), "rows that are not quantised have no digits"


def test_the_row_of_two_digits_takes_room() -> None:
    """By hand: one wide layer at the peak, 16 rows of x (256) and y (8) in binary32, and 256 bytes a digit."""
    ops = (
        Embed(out=0, weight="e", index="token", width=256),
        Linear(out=1, x=Columns(register=0, start=0, width=256), weight="w", outputs=8, bias=False, activation_bits=16),
    )
    program = dataclasses.replace(encoder().program, ops=ops)
    assert footprint(program, BatchLayout.equal(1, 16)).activations_bytes == 16 * (4 * (256 + 8) + 2 * 256)


def test_the_host_sends_what_the_packing_holds() -> None:
    program = decoder().program
    packed = pack(_batch([9, 7, 5], [4, 4, 4]), program)
    counts = count(program, packed)
    table = packed.table()
    arrays = [packed.ids, packed.positions, packed.types, table, table[list(packed.sequences)]]
    sent = sum(array.nbytes for array in arrays)
    if isinstance(program.ops[-1], LogProb):
        assert counts.pcie_in_bytes == sent + packed.target_rows.nbytes + packed.target_ids.nbytes
        assert counts.pcie_out_bytes == 4 * sum(packed.targets)
    else:
        assert counts.pcie_in_bytes == sent
        assert counts.pcie_out_bytes == 64 * 3


def test_fewer_bits_need_less_memory_and_wider_products() -> None:
    layout = BatchLayout.equal(2, 16)
    small = encoder(hidden=64, heads=4, inner=128).program
    sizes = {}
    names: tuple[Precision, ...] = ("fp16", "w8a16", "w4a16")
    for precision in names:
        program = dataclasses.replace(small, precision=precision)
        sizes[precision] = footprint(program, layout).weights_bytes
        counts = count(program, layout)
        assert counts.macs8 == 0 and counts.macs16 == count(small, layout).macs
    assert sizes["fp16"] > sizes["w8a16"] > sizes["w4a16"]


def test_what_has_no_model() -> None:
    with pytest.raises(ArtifactError, match="fp32"):
        count(dataclasses.replace(encoder().program, precision="fp32"), BatchLayout.equal(1, 1))
    with pytest.raises(BatchError, match="at least 1"):
        BatchLayout.equal(0, 5)


def test_registers_are_free_after_their_last_reader() -> None:
    """By hand: an encoder of hidden 32, inner 64, 4 heads, 16 rows; the peak is at the products of the perceptron or
    of attention, where x, the new register and the row quantised for it are live."""
    program = encoder(layers=3).program
    more = encoder(layers=6).program
    layout = BatchLayout.equal(1, 16)
    assert footprint(program, layout).activations_bytes == footprint(more, layout).activations_bytes
    # x (32) and q, k, v (96) and the attended rows (32) of binary32, and their 8-bit rows (96)
    assert footprint(program, layout).activations_bytes == 16 * (4 * (32 + 96 + 32) + 96)
