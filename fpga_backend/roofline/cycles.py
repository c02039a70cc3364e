"""Clocks and beats of the kernels in ``hls/``, counted from the launches that ``csim`` executes.

A kernel's processes run side by side, so that a block of rows, or a head, takes what its slowest process does. Those of
the systolic array are exact: a test compares :func:`array_clocks` with the Verilog. The others follow the loops of the
C++ with what ``TIMING`` says of memory and pipelines, which no tool for the card has confirmed. Every figure is
*calculated*; none was measured.
"""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from greentrain.fpga_backend.batch import Packed
from greentrain.fpga_backend.csim.kernels import ATTENTION, GEMM, KERNELS, Array
from greentrain.fpga_backend.csim.launches import BYTES, Count, Launch, beats, launches
from greentrain.fpga_backend.csim.layout import logit_rows
from greentrain.fpga_backend.program import LogProb, Program
from greentrain.fpga_backend.roofline.cards import CardSpec
from greentrain.fpga_backend.roofline.counts import BatchLayout
from greentrain.utils.quantities import SourcedNumber, SourceKind

KERNEL_CARD: Final = "U55C"
"""Card that the kernels are laid out for."""
CHANNELS: Final = 32
"""Pseudo channels of a U55C's memory: UG1393, "HBM Configuration and Use"."""


def _assumed(clocks: int, source: str) -> SourcedNumber:
    return SourcedNumber(value=clocks, unit="clock", source=source, kind=SourceKind.ASSUMED)


TIMING: Final = {
    "latency": _assumed(100, "from a request to its first beat, adapters included: 400 ns at 250 MHz"),
    "pipeline": _assumed(40, "until a loop of binary32 gives its first result"),
}
DEPTH: Final = 16384
"""Inputs of a block of rows that the chip holds: ``DEPTH`` of ``hls/gemm.cpp``."""
BLOCK: Final = 64
"""Rows that pass through a kernel's stages at a time: ``BLOCK`` of ``hls/groups.h`` and ``hls/gate.cpp``."""
LOGPROB_ROWS: Final = 32
"""The same of logits: ``ROWS`` of ``hls/logprob.cpp``."""
_LATENCY, _PIPELINE = (int(TIMING[name].value) for name in ("latency", "pipeline"))
_SCALARS = {k.name: {a.name: i for i, a in enumerate(k.arguments) if a.kind == "scalar"} for k in KERNELS}
Scalars = Mapping[str, int]


def array_clocks(array: Array, depth: int, tiles: int, *, period: float = 1, busy: float = 0, drain: int = 1) -> float:
    """Return the clocks of ``gt_stream.v`` from the one with ap_start to the one with ap_done.

    Args:
        array: Its shape.
        depth: Beats of a tile.
        tiles: How many follow each other.
        period: Clocks from one beat to the next.
        busy: Clocks after a tile in which its reader takes no column.
        drain: Clocks from one column to the next.
    """
    flight = array.rows // 2 + array.columns + 2
    columns = array.columns * drain
    first = (depth - 1) * period + 1 + flight
    # a beat that came while the array gave its columns waits at its door
    again = max(1, 1 + (depth - 1) * period) + flight
    return 2 + first + columns + (tiles - 1) * (max(again, busy) + columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelWork:
    """What launches of a batch take on the card."""

    clocks: Mapping[str, float]
    """By kernel, launches one after the other."""
    beats: int
    """Of 64 bytes, over all ports."""
    launches: int
    array_clocks: float
    """Clocks that the products would take if both arrays of ``gt_gemm`` took a beat in each."""

    @property
    def total(self) -> float:
        """Clocks of all launches."""
        return sum(self.clocks.values())


def kernel_work(program: Program, batch: Packed | BatchLayout, card: CardSpec) -> KernelWork:
    """Return what the launches of a batch take.

    Args:
        program: Of precision w8a8.
        batch: Packed, or equal sequences.
        card: Its clock, bandwidth and efficiency of memory.

    Raises:
        ConfigError: The card lacks a constant.
    """
    layout = batch if isinstance(batch, BatchLayout) else BatchLayout.of(batch)
    channel = card.value("memory_bytes_per_s") * card.value("memory_efficiency") / CHANNELS
    counter = _Counter(layout, min(1.0, channel / BYTES / card.value("clock_hz")))
    counts = {Count.ROWS: layout.rows, Count.SEQUENCES: layout.sequences, Count.SEGMENTS: layout.segments}
    vocabulary = max((op.vocabulary for op in program.ops if isinstance(op, LogProb)), default=0)
    full, rest = divmod(layout.targets, logit_rows(vocabulary))
    for launch in launches(program):
        if not launch.by_chunk:
            counter.launch(launch, counts, 1)
            continue
        for number, size in ((full, logit_rows(vocabulary)), (1 if rest else 0, rest)):
            if number:
                counter.launch(launch, {**counts, Count.FIRST: 0, Count.CHUNK: size}, number)
    return KernelWork(
        clocks=dict(counter.clocks), beats=counter.beats, launches=counter.launches, array_clocks=counter.array
    )


class _Counter:
    def __init__(self, layout: BatchLayout, rate: float) -> None:
        self.layout = layout
        self.rate = rate
        """Beats a clock of one port, at most: what its pseudo channel gives."""
        self.clocks: dict[str, float] = defaultdict(float)
        self.beats = self.launches = 0
        self.array = 0.0

    def launch(self, launch: Launch, counts: Mapping[Count, int], number: int) -> None:
        given = {name: launch.arguments[i] for name, i in _SCALARS[launch.kernel].items()}
        scalars = {name: counts[x] if isinstance(x, Count) else int(x) for name, x in given.items()}
        kind = launch.kernel.removeprefix("gt_")
        clocks, moved = getattr(self, f"_{kind}")(scalars)
        self.clocks[launch.kernel] += number * clocks
        self.beats += number * moved
        self.launches += number
        if kind == "gemm":
            self.array += number * math.prod(_blocks(scalars))

    def _port(self, moved: float, requests: int = 1) -> float:
        """Clocks of a port for so many beats, after waiting for as many first ones."""
        return moved / self.rate + requests * _LATENCY

    def _fills(self, rows: int, until_the_first: float) -> float:
        """Clocks in which regions of rows have memory answer, and make what their last stage begins with."""
        return math.ceil(rows / BLOCK) * (_LATENCY + until_the_first)

    def _gemm(self, s: Scalars) -> tuple[float, int]:
        depth, _, passes = _blocks(s)
        step = GEMM.rows // s["digits"]
        groups = min(beats(GEMM.outputs), beats(s["outputs"]))
        period = max(1.0, 0.5 / self.rate)
        if depth > DEPTH:
            period = max(period, 2.0)  # 64 rows are read for each 64 inputs, and then fed
        clocks, moved = 0.0, 0
        for number, rows in ((s["rows"] // step, step), (1, s["rows"] % step)):
            if not rows or not number:
                continue
            read = rows * s["digits"] * s["inner_beats"] * (1 if depth <= DEPTH else passes)
            written = rows * beats(s["outputs"])
            block = array_clocks(GEMM, depth, passes, period=period, busy=rows * groups / self.rate)
            clocks += number * max(block, (read + written) / self.rate)
            moved += number * (read + written + GEMM.arrays * passes * depth + (1 + s["biased"]) * beats(s["outputs"]))
            last = rows * groups / self.rate
        first = min(s["rows"], step) * s["digits"] * s["inner_beats"]
        return self._port(first if depth <= DEPTH else 0) + clocks + last + _PIPELINE, moved

    def _attention(self, s: Scalars) -> tuple[float, int]:
        depth, width = s["key_beats"] * BYTES, s["value_width"]
        turns = math.ceil(width / ATTENTION.columns)
        flight = ATTENTION.rows // 2 + ATTENTION.columns + 2
        drain = 2 * ATTENTION.columns
        clocks, moved = 0.0, 0
        for number, rows, before in self.layout.spans:
            whole = before + rows
            for first in range(0, rows, ATTENTION.rows):
                count, place = min(ATTENTION.rows, rows - first), before + first
                window = s["window"]
                behind = 1 if s["causal"] else window or whole
                keys = min(place + count - 1 + behind, whole) - (max(0, place + 1 - window) if window else 0)
                tiles = math.ceil(keys / ATTENTION.columns)
                fetched = (count + keys) * s["key_beats"]
                written = count * beats(s["heads"] * width)
                stages = (
                    self._port(fetched + count + 2 * keys, 4),
                    count * s["key_beats"]
                    + tiles * max(ATTENTION.columns * s["key_beats"] + depth, depth + flight + drain),
                    4 * keys + 3 * _PIPELINE + ATTENTION.rows,
                    _LATENCY + turns * (keys / self.rate + flight + drain),
                )
                clocks += number * (s["heads"] * max(stages) + written / self.rate + _PIPELINE)
                moved += number * (s["heads"] * (fetched + count + 2 * keys + turns * keys) + written)
        return clocks + sum(stages) + _LATENCY + 4096, moved

    def _embed(self, s: Scalars) -> tuple[float, int]:
        table, wide = beats(s["width"], 32), beats(s["width"])
        moved = s["rows"] * (table + 1 + wide)
        return max(s["rows"] * max(table + 1, wide), moved / self.rate) + self._fills(s["rows"], _PIPELINE), moved

    def _norm(self, s: Scalars) -> tuple[float, int]:
        wide, heads = beats(s["width"]), s["rows"] * s["groups"]
        moved = heads * wide + s["rows"] * beats(s["groups"] * s["width"])
        clocks = max(heads * (wide + 1), moved / self.rate)
        # the first group of a block waits for its largest magnitude, its sum and its squares
        waits = self._fills(s["rows"], 3 * (wide + _PIPELINE) + _PIPELINE)
        return clocks + waits + self._port((1 + s["biased"]) * wide, 1 + s["biased"]), moved

    def _quantise(self, s: Scalars) -> tuple[float, int]:
        width, heads = s["width"] // s["groups"], s["rows"] * s["groups"]
        wide, out = beats(width), s["digits"] * beats(width, BYTES)
        moved = heads * (wide + out)
        # the first group of a block is known before its first integer leaves
        waits = self._fills(s["rows"], wide + 2 * _PIPELINE)
        return max(heads * (wide + 1), moved / self.rate) + waits, moved

    def _gate(self, s: Scalars) -> tuple[float, int]:
        operands = 2 if s["gated"] or s["kind"] == 3 else 1
        wide = beats(s["width"])
        moved = s["rows"] * (operands + 1) * wide
        clocks = max(s["rows"] * operands * (wide + 1), moved / self.rate)
        table = 8192 if s["kind"] < 2 else 0
        return clocks + table + self._fills(s["rows"], _PIPELINE), moved

    def _rotary(self, s: Scalars) -> tuple[float, int]:
        half, halves = beats(s["half"]), 2 * s["heads"]
        moved = s["rows"] * (2 * half + halves * half + beats(2 * s["half"] * s["heads"]))
        fetched = 2 * half + halves * (half + 1)
        turned = 2 * half + s["heads"] * 3 * half + 2 * _PIPELINE  # loops of angles and of heads, which end with a row
        clocks = max(s["rows"] * max(fetched, turned), moved / self.rate)
        return clocks + self._fills(s["rows"], 3 * half + 2 * _PIPELINE), moved

    def _pool(self, s: Scalars) -> tuple[float, int]:
        wide = beats(s["width"])
        rows = 2 * self.layout.tokens if s["how"] == 2 else s["sequences"]
        clocks = rows * (self._port(wide) + wide + _PIPELINE) + s["sequences"] * (wide / self.rate + s["width"])
        return clocks, (rows + s["sequences"]) * wide

    def _score(self, s: Scalars) -> tuple[float, int]:
        moved = beats(s["width"]) + s["labels"] * (beats(s["width"]) + beats(s["width"], 32))
        row = self._port(moved, 3 * s["labels"] + 1) + moved + s["labels"] * _PIPELINE
        return s["rows"] * row, s["rows"] * moved

    def _logprob(self, s: Scalars) -> tuple[float, int]:
        wide = beats(s["vocabulary"])
        moved = s["rows"] * 2 * wide
        # tables; and what a region of rows waits for, whose second reading follows the first
        waits = 4096 + self._port(beats(4096, 8)) + math.ceil(s["rows"] / LOGPROB_ROWS) * (_LATENCY + 3 * _PIPELINE)
        return moved / self.rate + waits, moved


def _blocks(s: Scalars) -> tuple[int, int, int]:
    """Return depth, blocks of rows and passes of a product."""
    blocks = math.ceil(s["rows"] * s["digits"] / GEMM.rows)
    return s["inner_beats"] * BYTES, blocks, math.ceil(s["outputs"] / GEMM.outputs)
