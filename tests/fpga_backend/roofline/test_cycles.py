"""Clocks of the kernels: sizes are those of the C++, and more work or slower memory never takes less time."""

import dataclasses
import re

import pytest

from greentrain.fpga_backend.batch import Batch, pack
from greentrain.fpga_backend.csim.kernels import ATTENTION, GEMM
from greentrain.fpga_backend.explore.space import compiled_to, open_subject
from greentrain.fpga_backend.program import Norm, Program, Rotary
from greentrain.fpga_backend.roofline import cycles
from greentrain.fpga_backend.roofline.cards import U55C, assume
from greentrain.fpga_backend.roofline.counts import BatchLayout, count
from greentrain.fpga_backend.roofline.cycles import array_clocks, kernel_work
from greentrain.fpga_backend.roofline.latency import service
from greentrain.testing.offload_models import decoder
from tools.kernel_documents import FOLDER

CARD = assume(U55C)
BERT = compiled_to(open_subject("bert-base").program, "kernel")
LLAMA = compiled_to(open_subject("llama-3-8b", head="logprob").program, "kernel")


def _constants(source: str) -> dict[str, int]:
    found = re.findall(r"^constexpr int (\w+) = (\d+);", (FOLDER / source).read_text(), re.MULTILINE)
    return {name: int(value) for name, value in found}


def test_sizes_are_those_of_the_kernels() -> None:
    gemm, attention = _constants("gemm.cpp"), _constants("attention.cpp")
    assert (gemm["ROWS"], gemm["COLUMNS"], gemm["ARRAYS"]) == (GEMM.rows, GEMM.columns, GEMM.arrays)
    assert gemm["DEPTH"] == cycles.DEPTH
    assert (attention["QUERIES"], attention["KEYS"]) == (ATTENTION.rows, ATTENTION.columns)
    assert _constants("groups.h")["BLOCK"] == _constants("gate.cpp")["BLOCK"] == cycles.BLOCK
    assert _constants("logprob.cpp")["ROWS"] == cycles.LOGPROB_ROWS


def test_rows_of_norms_and_rotations_wait_for_their_port_alone() -> None:
    rows, wide = 1280, 4096 // 16
    clocks = kernel_work(LLAMA, BatchLayout.equal(1, rows), CARD).clocks
    norms = sum(isinstance(op, Norm) for op in LLAMA.ops)
    turned = [op.x.width // 16 for op in LLAMA.ops if isinstance(op, Rotary)]
    rate = 14.375e9 * CARD.value("memory_efficiency") / 64 / CARD.value("clock_hz")  # of a pseudo channel
    assert clocks["gt_norm"] == pytest.approx(norms * rows * 2 * wide / rate, rel=0.05)
    assert clocks["gt_rotary"] == pytest.approx(sum(rows * 2 * beats / rate for beats in turned), rel=0.1)


@pytest.mark.parametrize("program", [BERT, LLAMA], ids=["bert", "llama"])
def test_the_arrays_never_do_more_than_there_is_time_for(program: Program) -> None:
    layout = BatchLayout.equal(8, 128)
    work = kernel_work(program, layout, CARD)
    counts = count(program, layout)
    linear = sum(op.macs8 for op in counts.ops if op.kind in ("linear", "logprob"))
    assert linear <= work.array_clocks * GEMM.rows * GEMM.outputs  # rows and outputs are filled up to whole tiles
    assert work.array_clocks <= work.clocks["gt_gemm"] < work.total
    assert work.beats * 64 >= counts.pcie_out_bytes


def test_more_work_and_slower_memory_take_longer() -> None:
    layout = BatchLayout.equal(8, 128)
    before = kernel_work(BERT, layout, CARD)
    assert kernel_work(BERT, BatchLayout.equal(9, 128), CARD).total > before.total
    assert kernel_work(BERT, layout, CARD.with_(memory_efficiency=0.1)).total > before.total
    two = kernel_work(compiled_to(BERT, "kernel-a16"), layout, CARD)
    assert two.array_clocks == pytest.approx(2 * before.array_clocks, rel=0.01)  # but for rows that fill no tile
    assert two.clocks["gt_attention"] == before.clocks["gt_attention"]


def test_a_prompt_that_is_shared_is_paid_once() -> None:
    artifact = decoder()
    ids = [[*range(20), 30 + i] for i in range(8)]
    shared = pack(Batch.of(ids, prompt_tokens=[20] * 8), artifact.program)
    alone = pack(Batch.of(ids), artifact.program)
    works = [kernel_work(artifact.program, batch, CARD) for batch in (shared, alone)]
    assert works[0].clocks["gt_norm"] < works[1].clocks["gt_norm"] / 2


def test_a_reader_that_is_away_longer_than_a_tile_takes_sets_the_pace() -> None:
    busy = 10_000
    one, two = (array_clocks(GEMM, 64, tiles, busy=busy) for tiles in (1, 2))
    assert two - one == busy + GEMM.columns
    assert array_clocks(GEMM, 64, 2) - array_clocks(GEMM, 64, 1) == 64 + 32 + 2 * 64 + 2


def test_kernels_are_slower_than_an_ideal_array_and_draw_idle_power_longer() -> None:
    layout = BatchLayout.equal(32, 512)
    ours, ideal = (service(LLAMA, layout, CARD, kernels=kernels) for kernels in (True, False))
    assert ours.run_s > ideal.run_s
    assert ours.parts_j["products"] == ideal.parts_j["products"] and ours.parts_j["idle"] > ideal.parts_j["idle"]
    assert sum(ours.parts_s.values()) == pytest.approx(ours.run_s)
    assert dataclasses.replace(ours).tokens_per_s < 2 * GEMM.rows * GEMM.outputs * CARD.value("clock_hz") / 7e9
