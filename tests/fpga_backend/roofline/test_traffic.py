"""Bytes of the card's memory, operator by operator, by hand: binary32 registers, 8-bit rows with a scale a head."""

import numpy as np

from greentrain.fpga_backend.batch import Batch, pack
from greentrain.fpga_backend.program import Attention
from greentrain.fpga_backend.roofline.counts import BatchLayout, OpCount, count
from greentrain.testing.offload_models import decoder, encoder


def test_an_encoder_of_one_layer() -> None:
    program = encoder(layers=1, hidden=32, heads=4, inner=64, types=0).program
    counts = count(program, BatchLayout.equal(2, 5))
    rows, register = 10, 10 * 32 * 4
    by_hand = {
        "embed": (rows * (32 * 2 + 4), register + rows * 4),
        "add": (0, 3 * register),
        "norm": (2 * 32 * 4, 2 * register),
        "attention": (0, 3 * (register + rows * (32 + 16)) + rows * (32 + 16) + rows * (64 + 32) + register),
        "gate": (0, 2 * rows * 64 * 4),
        "pool": (0, register + 2 * 32 * 4),
        "score": (32 * 2 + 4 + 4, 2 * 32 * 4 + 2 * 4),
    }
    for op in counts.ops:
        if op.kind != "linear":
            assert (op.weight_bytes, op.activation_bytes) == by_hand[op.kind], op
    assert [_linear(op) for op in counts.ops if op.kind == "linear"] == [
        (outputs * inner + 8 * outputs, rows * (inner * 4 + 2 * (inner + 4) + outputs * 4))
        for inner, outputs in ((32, 96), (32, 32), (32, 64), (64, 32))
    ]


def _linear(op: OpCount) -> tuple[int, int]:
    return op.weight_bytes, op.activation_bytes


def test_keys_of_a_shared_prompt_are_read_by_each_that_shares_it() -> None:
    program = decoder(heads=4, kv_heads=2).program
    ids = [np.r_[np.arange(8), 20 + i, 30 + i] for i in range(4)]
    packed = pack(Batch.of(ids, prompt_tokens=[8] * 4), program)
    place, op = next((i, op) for i, op in enumerate(program.ops) if isinstance(op, Attention))
    rows, keys, q, kv = 8 + 4 * 2, 8 + 4 * 10, op.q.width, op.k.width
    quantised = rows * (q * 5 + 4 * 4) + 2 * rows * (kv * 5 + 2 * 4)
    read = rows * (q + 4 * 4) + keys * 2 * (kv + 2 * 4)
    assert count(program, packed).ops[place].activation_bytes == quantised + read + rows * q * 4
