"""The schedule: memory that stays bounded, and programs that do not fit the kernels."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.batch import Batch
from greentrain.fpga_backend.card import Buffer
from greentrain.fpga_backend.csim.launches import launches
from greentrain.fpga_backend.csim.layout import BatchSize, CardLayout
from greentrain.fpga_backend.csim.schedule import BatchSchedule
from greentrain.fpga_backend.errors import ArtifactError, BatchError, DeviceError
from greentrain.fpga_backend.program import (
    Attention,
    Columns,
    Embed,
    Gate,
    Linear,
    LogProb,
    Norm,
    Op,
    Pool,
    Program,
    Rotary,
    Score,
    read_by,
    widths,
)
from greentrain.testing.offload_models import decoder, encoder, sequences
from tests.fpga_backend.csim.checked_card import CheckedCard


def changed(artifact: Artifact, kind: type[Any], **fields: Any) -> Artifact:
    """Return the artifact with fields of its last operator of a kind changed."""
    ops: list[Op] = list(artifact.program.ops)
    last = max(i for i, op in enumerate(ops) if isinstance(op, kind))
    ops[last] = dataclasses.replace(ops[last], **fields)
    return dataclasses.replace(artifact, program=dataclasses.replace(artifact.program, ops=tuple(ops)))


def programmed(artifact: Artifact, **fields: Any) -> Artifact:
    return dataclasses.replace(artifact, program=dataclasses.replace(artifact.program, **fields))


BERT, LLAMA = encoder(), decoder()
QKV = Columns(register=0, start=0, width=30)


@pytest.mark.parametrize(
    ("artifact", "said"),
    [
        (programmed(BERT, precision="bf16"), "'bf16'.*'w8a8'"),
        (programmed(BERT, activations="tensor"), "one scale a tensor"),
        (programmed(BERT, max_tokens=8193), "8193.*8192"),
        (programmed(BERT, max_tokens=65), "position|entries 0 to 64 of a table of 64"),
        (programmed(BERT, vocabulary=102), "entries 0 to 101 of a table of 101"),
        (programmed(BERT, ops=BERT.program.ops[:-1]), "neither a score nor"),
        (programmed(LLAMA, vocabulary=102), "entries 0 to 101|fewer outputs"),
        (programmed(LLAMA, ops=(*LLAMA.program.ops, *LLAMA.program.ops[-1:])), "is not the last"),
        (changed(BERT, Embed, offset=-1), "entries -1"),
        (changed(BERT, Linear, outputs=31), r"needs linear\d+.q as int8\[31"),
        (changed(BERT, Linear, out=0), "register 0 a second time"),
        (changed(BERT, Norm, weight="none"), "lacks tensor none.g"),
        (changed(BERT, Gate, table="swish"), "no table swish"),
        (changed(BERT, Gate, up=Columns(register=0, start=0, width=3)), "pairs 64 columns with 3"),
        (changed(BERT, Gate, up=Columns(register=99, start=0, width=64)), "register 99, which nothing has written"),
        (changed(BERT, Gate, x=Columns(register=0, start=1, width=32)), "reads columns 1 to 33 of 32"),
        (changed(BERT, Attention, kv_heads=3), "4 query heads, 3 key heads"),
        (changed(BERT, Attention, heads=8), "unequal width"),
        (changed(BERT, Attention, heads=0), "0 query heads"),
        (changed(BERT, Attention, kv_heads=0), "0 key heads"),
        (changed(BERT, Embed, index="row"), "no index 'row'"),
        (changed(BERT, Pool, how="median"), "no 'median'"),
        (changed(BERT, Score, x=Columns(register=0, start=0, width=32)), "rows of tokens: pool them"),
        (changed(BERT, Pool, x=Columns(register=0, start=0, width=0)), "reads columns 0 to 0"),
        (changed(BERT, Linear, activation_bits=12), r"\(linear\) has activations of 12 bits, the kernels 8 or 16"),
        (changed(LLAMA, LogProb, activation_bits=32), r"\(logprob\) has activations of 32 bits"),
        (changed(LLAMA, Rotary, heads=3), "cannot cut"),
        (changed(LLAMA, Rotary, weight="none"), "lacks tensor none.cos"),
        (changed(LLAMA, LogProb, vocabulary=2**22 + 1), r"4194305 tokens.*hold 4194304"),
    ],
)
def test_what_the_kernels_cannot_run_is_refused_at_load(library: Path, artifact: Artifact, said: str) -> None:
    card = CheckedCard(library)
    with pytest.raises(ArtifactError, match=said):
        BatchSchedule(artifact, card)
    assert card.nbytes == 0


def test_registers_of_one_buffer_are_never_alive_together() -> None:
    for program in (BERT.program, LLAMA.program, encoder(pooler=True, layers=3).program):
        layout = CardLayout(program)
        last = {c.register: i for i, op in enumerate(program.ops) for c in read_by(op)}
        owner: dict[int, int] = {}
        for i, op in enumerate(program.ops):
            for columns in read_by(op):
                assert owner[layout.slot_of[columns.register]] == columns.register, f"operator {i} reads what is gone"
            if not isinstance(op, LogProb):
                slot = layout.slot_of[op.out]
                assert last.get(owner.get(slot, -1), -1) < i
                owner[slot] = op.out
        assert len(set(layout.slot_of.values())) < len(widths(program)) / 3


def test_buffers_hold_the_widest_register_they_are_given() -> None:
    for program in (BERT.program, LLAMA.program):
        layout = CardLayout(program)
        held = layout.buffers(BatchSize(rows=10, sequences=3, targets=5))
        for register, width in widths(program).items():
            rows = 3 if register >= min((op.out for op in program.ops if isinstance(op, Pool)), default=10**9) else 10
            assert held[f"slot:{layout.slot_of[register]}"][0] >= rows * width * 4


def test_memory_is_reused_and_given_back(library: Path) -> None:
    """Batches of the same size allocate nothing; a larger one replaces; close frees all."""
    card = CheckedCard(library)
    schedule = BatchSchedule(LLAMA, card)
    empty = card.nbytes
    schedule.run(sequences(LLAMA, lengths=(30, 20)))
    held = card.nbytes
    assert held > empty
    for seed in range(5):
        schedule.run(sequences(LLAMA, seed=seed, lengths=(20, 30)))
        assert card.nbytes == held
    schedule.run(sequences(LLAMA, lengths=(64,) * 4))
    assert card.nbytes > held
    schedule.close()
    schedule.close()
    assert card.nbytes == 0


def test_a_long_batch_stays_within_its_bound(library: Path) -> None:
    """Forty times the tokens in waves: the memory is that of the bound."""
    card = CheckedCard(library)
    bound = 2**20
    schedule = BatchSchedule(BERT, card, activation_bytes=bound)
    empty = card.nbytes
    schedule.run(sequences(BERT, lengths=(64,) * 200))
    assert card.nbytes - empty < 1.3 * bound


def test_a_card_without_room_keeps_nothing(library: Path) -> None:
    """The first batch fails for want of memory; a smaller one runs, and gives the right answer."""
    card = Small(library)
    schedule = BatchSchedule(BERT, card)
    card.room = card.nbytes + 200_000
    with pytest.raises(DeviceError, match="no room"):
        schedule.run(sequences(BERT, lengths=(64,) * 20))
    batch = sequences(BERT, lengths=(9,))
    expected = BatchSchedule(BERT, CheckedCard(library)).run(batch).scores
    assert np.array_equal(expected, schedule.run(batch).scores)  # type: ignore[arg-type]
    full = Small(library)
    full.room = 5000
    with pytest.raises(DeviceError, match="no room"):
        BatchSchedule(BERT, full)
    assert full.nbytes == 0


class Small(CheckedCard):
    """A card with room for ``room`` bytes."""

    room = 10**9

    def allocate(self, nbytes: int, bank: int = 0) -> Buffer:
        if self.nbytes + nbytes > self.room:
            raise DeviceError("no room")
        return super().allocate(nbytes, bank)


def test_wrong_batches_are_refused(library: Path) -> None:
    with pytest.raises(BatchError, match="token id"):
        BatchSchedule(BERT, CheckedCard(library)).run(Batch.of([[1, 2, 101]]))


@pytest.mark.parametrize("where", ["embed0.s", "norm5.g", "linear6.s", "linear6.b", "score-1.s"])
@pytest.mark.parametrize("how", ["mean", "first"])
def test_what_overflows_fails_the_batch(library: Path, where: str, how: str) -> None:
    """A weight so large that a product leaves binary32 is seen at the end, wherever it began."""
    artifact = encoder(head=how)  # type: ignore[arg-type]
    name = next(n for n in artifact.tensors if n.startswith(where.split("-")[0]) and n.endswith(where[-2:]))
    huge = artifact.with_tensors({**artifact.tensors, name: torch.full_like(artifact.tensors[name], 3e38)})
    with pytest.raises(DeviceError, match="not finite"):
        BatchSchedule(huge, CheckedCard(library)).run(sequences(artifact, lengths=(5, 9)))


@pytest.mark.parametrize("program", [BERT.program, LLAMA.program], ids=["encoder", "decoder"])
def test_a_program_becomes_few_launches(program: Program) -> None:
    """Quantise before each product, three times before attention, and nothing else twice."""
    found = launches(program)
    linears = sum(isinstance(op, Linear | LogProb) for op in program.ops)
    attentions = sum(isinstance(op, Attention) for op in program.ops)
    last = 1 if isinstance(program.ops[-1], LogProb) else 0
    assert len(found) == len(program.ops) + linears + 3 * attentions + last
