"""The card of numpy memory: what does not fit is an error before a kernel sees it."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from greentrain.fpga_backend.card import Buffer, Card
from greentrain.fpga_backend.csim.kernels import KERNELS, STREAMS, WORK
from greentrain.fpga_backend.errors import DeviceError
from tests.fpga_backend.csim.checked_card import CheckedCard, extents

SUM = (1, 1, 0, 1, 0, 1, 3, 0)
"""Scalars of a sum of a row of one column."""


@pytest.fixture
def card(library: Path) -> Iterator[CheckedCard]:
    card = CheckedCard(library)
    yield card
    card.close()


def test_memory_is_aligned_and_holds_what_was_written(card: CheckedCard) -> None:
    typed: Card = card
    buffer = typed.allocate(100)
    typed.write(buffer, np.arange(25, dtype=np.int32))
    typed.write(buffer, np.array([7.5], dtype=np.float32), 96)
    out = np.empty(25, dtype=np.int32)
    typed.read(buffer, out)
    assert out[:24].tolist() == list(range(24))
    assert out[24:].view(np.float32) == 7.5
    assert card.nbytes == 100
    typed.free(buffer)
    assert card.nbytes == 0


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda c, b: c.write(b, np.zeros(9, dtype=np.int8)), "9 bytes at 0: buffer 0 has 8"),
        (lambda c, b: c.write(b, np.zeros(1, dtype=np.int8), -1), "at -1"),
        (lambda c, b: c.read(b, np.empty(2, dtype=np.int32), 4), "8 bytes at 4"),
        (lambda c, b: c.read(b, np.empty((2, 2), dtype=np.int8).T[:1]), "contiguous"),
        (lambda c, b: c.read(Buffer(99, 8), np.empty(2, dtype=np.int8)), "buffer 99 is not"),
        (lambda c, b: c.allocate(0), "at least 1"),
        (lambda c, b: c.allocate(8, 9), "bank 9"),
        (lambda c, b: c.allocate(2**60), "no memory"),
        (lambda c, b: c.launch("gt_other", ()), "no kernel gt_other"),
        (lambda c, b: c.launch("gt_gate", (b, b, b, 1)), "takes 12 arguments, not 4"),
        (lambda c, b: c.launch("gt_gate", (1, b, b, b, *SUM)), "x is a pointer"),
        (lambda c, b: c.launch("gt_gate", (b, b, b, b, b, *SUM[1:])), "rows is a scalar"),
        (lambda c, b: c.launch("gt_gate", (b, b, b, b, 2**31, *SUM[1:])), "rows=2147483648 does not fit 32 bits"),
        (lambda c, b: c.launch("gt_gate", (b, b, b, b, *SUM)), "x needs 64 bytes, its buffer has 8"),
        (lambda c, b: c.launch("gt_gate", (b, c.allocate(64, 1), b, b, *SUM)), "up reaches bank 0.* lies in 1"),
    ],
)
def test_what_does_not_fit(card: CheckedCard, wrong: Callable[[CheckedCard, Buffer], Any], said: str) -> None:
    buffer = card.allocate(8)
    with pytest.raises(DeviceError, match=said):
        wrong(card, buffer)


def test_a_closed_card_gives_no_memory(card: CheckedCard) -> None:
    buffer = card.allocate(8)
    card.close()
    card.close()
    with pytest.raises(DeviceError, match="closed"):
        card.allocate(8)
    with pytest.raises(DeviceError, match="freed"):
        card.read(buffer, np.empty(8, dtype=np.int8))


def test_extents_know_every_kernel_and_only_its_pointers() -> None:
    for kernel in KERNELS:
        scalars = {argument.name: 1 for argument in kernel.arguments if argument.kind == "scalar"}
        pointers = {argument.name for argument in kernel.arguments if argument.kind == "pointer"}
        assert extents(kernel.name, scalars).keys() <= pointers


def test_kernels_run_without_the_gil(card: CheckedCard) -> None:
    """Another thread ticks while a product runs for some tenths of a second."""
    rows, beats = 2048, 64
    q, qs = card.allocate(rows * beats * 64, WORK.bank), card.allocate(rows * 4, WORK.bank)
    w = [card.allocate(rows * beats * 64 // len(STREAMS), region.bank) for region in STREAMS]
    ws, y = card.allocate(rows * 4, WORK.bank), card.allocate(rows * rows * 4, WORK.bank)
    for buffer in (q, qs, *w, ws):
        card.write(buffer, np.zeros(buffer.nbytes, dtype=np.int8))
    done, ticks = threading.Event(), []

    def tick() -> None:
        while not done.wait(0.001):
            ticks.append(time.monotonic())

    thread = threading.Thread(target=tick)
    thread.start()
    begun_s = time.monotonic()
    card.launch("gt_gemm", (q, qs, *w, ws, ws, y, rows, beats, rows, 0, 1))
    took_s = time.monotonic() - begun_s
    done.set()
    thread.join()
    assert took_s > 0.05
    assert sum(begun_s < t < begun_s + took_s for t in ticks) >= 5
