"""Checks of gt_tile in a simulator, clock by clock: run by test_tile_cocotb.py through cocotb, not by pytest."""

import os
import random
from collections.abc import Sequence
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge

PERIOD_NS = 4
PATIENCE = 1000
Matrix = list[list[int]]
SEED = int(os.environ.get("GREENTRAIN_RTL_SEED", "6"))


class Tile:
    """The module with its streams. Signals change at falling edges, halfway between the clocks that matter."""

    def __init__(self, dut: Any, seed: int) -> None:
        self.dut = dut
        self.rows, self.columns = 2 * int(dut.R2.value), int(dut.C.value)
        self.flight = self.rows // 2 + self.columns + 2
        self.random = random.Random(f"{SEED}/{seed}")

    async def start(self) -> None:
        """Start the clock and reset."""
        dut = self.dut
        for signal in (dut.flush, dut.in_valid, dut.in_last, dut.in_a, dut.in_w, dut.out_ready):
            signal.value = 0
        dut.reset.value = 1
        Clock(dut.clk, PERIOD_NS, "ns").start()
        await self.clocks(2)
        dut.reset.value = 0

    async def clocks(self, count: int) -> None:
        for _ in range(count):
            await FallingEdge(self.dut.clk)

    def operands(self, k: int, values: Sequence[int] | None = None) -> tuple[Matrix, Matrix]:
        """Return random a [rows, k] and w [columns, k], over all of INT8 or of ``values``."""
        of = values or range(-128, 128)
        return tuple([[self.random.choice(of) for _ in range(k)] for _ in range(n)] for n in (self.rows, self.columns))  # type: ignore[return-value]

    async def load(self, a: Matrix, w: Matrix, *, beats: int | None = None, gaps: float = 0.0) -> None:
        """Offer beats until all are taken, or the first ``beats``."""
        dut, k = self.dut, len(a[0])
        for i in range(k if beats is None else beats):
            while self.random.random() < gaps:
                dut.in_valid.value = 0
                dut.in_a.value = self.random.getrandbits(8 * self.rows)  # what is not valid may be anything
                dut.in_w.value = self.random.getrandbits(8 * self.columns)
                dut.in_last.value = self.random.getrandbits(1)
                await self.clocks(1)
            dut.in_valid.value = 1
            dut.in_last.value = int(i == k - 1)
            dut.in_a.value = packed([row[i] for row in a], 8)
            dut.in_w.value = packed([row[i] for row in w], 8)
            for _ in range(PATIENCE):
                taken = int(dut.in_ready.value)
                await self.clocks(1)
                if taken:
                    break
            else:
                raise AssertionError(f"beat {i} was not taken in {PATIENCE} clocks")
        dut.in_valid.value = 0
        dut.in_last.value = 0

    async def drain(self, *, columns: int | None = None, stalls: float = 0.0) -> Matrix:
        """Take columns and return the sums [rows, columns]; what was not taken is 0."""
        dut = self.dut
        sums = [[0] * self.columns for _ in range(self.rows)]
        for column in reversed(range(self.columns)[-(columns or self.columns) :]):
            dut.out_ready.value = 0
            for _ in range(PATIENCE):
                if int(dut.out_valid.value):
                    break
                assert not int(dut.out_last.value)
                await self.clocks(1)
            else:
                raise AssertionError(f"column {column} did not come in {PATIENCE} clocks")
            word = int(dut.out_sums.value)
            while self.random.random() < stalls:
                await self.clocks(1)
                assert int(dut.out_valid.value)
                assert int(dut.out_sums.value) == word, "sums changed while nobody took them"
            assert int(dut.out_last.value) == int(column == 0)
            for row in range(self.rows):
                sums[row][column] = signed(word >> (32 * row))
            dut.out_ready.value = 1
            await self.clocks(1)
        dut.out_ready.value = 0
        return sums

    async def check(
        self, k: int, *, values: Sequence[int] | None = None, gaps: float = 0.0, stalls: float = 0.0
    ) -> None:
        """Compute a random tile of inner dimension k and compare it."""
        a, w = self.operands(k, values)
        await self.load(a, w, gaps=gaps)
        assert await self.drain(stalls=stalls) == product(a, w)


def packed(values: Sequence[int], bits: int) -> int:
    """Return the values as one word, the first one lowest."""
    return sum((value & ((1 << bits) - 1)) << (bits * i) for i, value in enumerate(values))


def signed(word: int) -> int:
    """Return the lowest 32 bits as an integer of two's complement."""
    word &= 0xFFFFFFFF
    return word - (1 << 32) if word >> 31 else word


def product(a: Matrix, w: Matrix) -> Matrix:
    """Return a times w transposed."""
    return [[sum(x * y for x, y in zip(row, column, strict=True)) for column in w] for row in a]


@cocotb.test()
async def random_tiles_one_after_the_other(dut: Any) -> None:
    """Without a pause between them and without clearing: draining leaves zeros."""
    tile = Tile(dut, 1)
    await tile.start()
    for k in (1, 2, 3, 17, 64, 1, 40):
        await tile.check(k)


@cocotb.test()
async def extremes(dut: Any) -> None:
    """The largest products of either sign, next to each other in one multiplier."""
    tile = Tile(dut, 2)
    await tile.start()
    for values in ((-128,), (127,), (-127, 127), (-128, 127), (-128, -1, 0, 1, 127)):
        await tile.check(50, values=values)


@cocotb.test()
async def gaps_and_stalls(dut: Any) -> None:
    """Neither side keeps pace; invalid beats hold rubbish."""
    tile = Tile(dut, 3)
    await tile.start()
    for k in (1, 5, 33):
        await tile.check(k, gaps=0.5, stalls=0.7)


@cocotb.test()
async def flush_while_loading(dut: Any) -> None:
    """Half a tile is thrown away, with what is in flight, after any number of its beats."""
    tile = Tile(dut, 4)
    await tile.start()
    for beats in (1, 2, 9, 20):
        await tile.load(*tile.operands(40), beats=beats)
        await flush(tile)
        await tile.check(6)


@cocotb.test()
async def flush_while_products_travel(dut: Any) -> None:
    """A tile whose last beat was taken is thrown away before its first column is out."""
    tile = Tile(dut, 5)
    await tile.start()
    for waited in range(tile.flight):
        await tile.load(*tile.operands(10))
        await tile.clocks(waited)
        assert not int(dut.out_valid.value)
        await flush(tile)
        await tile.check(6)


@cocotb.test()
async def flush_while_draining(dut: Any) -> None:
    """Columns that were not taken are thrown away."""
    tile = Tile(dut, 6)
    await tile.start()
    for columns in range(1, tile.columns):
        a, w = tile.operands(10)
        await tile.load(a, w)
        sums = await tile.drain(columns=columns)
        assert [row[-columns:] for row in sums] == [row[-columns:] for row in product(a, w)]
        await flush(tile)
        await tile.check(6)


@cocotb.test()
async def reset_in_the_middle(dut: Any) -> None:
    """As flush."""
    tile = Tile(dut, 7)
    await tile.start()
    await tile.load(*tile.operands(40), beats=20)
    dut.reset.value = 1
    await tile.clocks(1)
    dut.reset.value = 0
    await tile.check(6)


@cocotb.test()
async def beats_wait_while_a_tile_leaves(dut: Any) -> None:
    """A beat offered too early is not taken, and is there when its time comes."""
    tile = Tile(dut, 8)
    await tile.start()
    first, second = tile.operands(12), tile.operands(7)
    await tile.load(*first)
    loading = cocotb.start_soon(tile.load(*second))
    await tile.clocks(tile.flight + 20)
    assert not int(dut.in_ready.value)
    assert await tile.drain(stalls=0.5) == product(*first)
    await loading
    assert await tile.drain() == product(*second)


async def flush(tile: Tile) -> None:
    """One clock of flush, with a beat offered beside it that must not count."""
    dut = tile.dut
    dut.flush.value = 1
    dut.in_valid.value = 1
    dut.in_a.value = packed([127] * tile.rows, 8)
    dut.in_w.value = packed([127] * tile.columns, 8)
    await tile.clocks(1)
    dut.flush.value = 0
    dut.in_valid.value = 0
    assert not int(dut.out_valid.value)
    waited = 0
    while not int(dut.in_ready.value):
        await tile.clocks(1)
        waited += 1
    assert waited == tile.flight, "clocks until beats are taken again are not those that are documented"
