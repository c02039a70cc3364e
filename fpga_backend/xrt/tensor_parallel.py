"""One model over several cards, for models that exceed the memory of one; the bits are those of a single card.

Each card holds a part of the weights of every large product. Linear layers are divided by output channels, attention by
key heads, the vocabulary head by tokens of the vocabulary: each number is computed by one card, in the order in which a
single card computes it, so the bits are the same. Whatever is divided is put together on the host and given to all;
sums, norms, gates and rotations are done by each. Embedding, pooling and score are the first card's.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from greentrain.fpga_backend.batch import Batch, Packed, Result
from greentrain.fpga_backend.card import Card
from greentrain.fpga_backend.csim.launches import Count, FittedModel, Launch, by_operator, by_sequence, fit
from greentrain.fpga_backend.csim.layout import BatchSize, CardLayout, write_weights
from greentrain.fpga_backend.csim.schedule import ACTIVATION_BYTES, BatchSchedule
from greentrain.fpga_backend.errors import DeviceError
from greentrain.fpga_backend.program import Attention, Columns, Embed, Linear, LogProb, Op, Program, widths

Tensors = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A register that the host puts together and writes to the cards that lack it."""

    register: int
    sources: tuple[int | None, ...]
    """By card: the register with its columns, in order; None: it has none of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardStep:
    """What happens between two meetings of the cards."""

    ops: tuple[tuple[int, ...], ...]
    """By card: positions in its program of what it launches."""
    exchange: Exchange | None
    """What is put together afterwards; None behind the last step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardShare:
    """What one card has."""

    program: Program
    """Its operators. Where a register comes from the host, an operator that is not launched stands for it."""
    tensors: Tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class DividedProgram:
    """A divided program."""

    shares: tuple[CardShare, ...]
    steps: tuple[CardStep, ...]


def split(program: Program, tensors: Tensors, cards: int) -> DividedProgram:
    """Divide a program.

    Args:
        program: The operators.
        tensors: Arrays by name; not copied.
        cards: Number of cards, at least 2.
    """
    made = _ProgramDivider(program, tensors, cards)
    for op in program.ops:
        made.add(op)
    made.step(None)
    return DividedProgram(
        shares=tuple(
            CardShare(program=replace(program, ops=tuple(ops)), tensors=held)
            for ops, held in zip(made.ops, made.held, strict=True)
        ),
        steps=tuple(made.steps),
    )


class _ProgramDivider:
    def __init__(self, program: Program, tensors: Tensors, cards: int) -> None:
        self.cards = range(cards)
        self.tensors = tensors
        self.widths = widths(program)
        self.pooled = by_sequence(program)
        self.fresh = max(self.widths, default=0) + 1
        self.ops: list[list[Op]] = [[] for _ in self.cards]
        self.held: list[dict[str, npt.NDArray[Any]]] = [{} for _ in self.cards]
        self.launched: list[list[int]] = [[] for _ in self.cards]
        self.steps: list[CardStep] = []

    def add(self, op: Op) -> None:
        match op:
            case LogProb():
                for card, (start, end) in enumerate(self.cuts(op.vocabulary)):
                    self.launch(card, replace(op, vocabulary=end - start), start, end)
            case Linear() if op.out not in self.pooled and op.outputs >= len(self.cards):
                self.divide(op, [(end - start, start, end) for start, end in self.cuts(op.outputs)])
            case Attention() if op.kv_heads >= len(self.cards):
                value = op.v.width // op.kv_heads * (op.heads // op.kv_heads)
                self.divide(op, [((end - start) * value, start, end) for start, end in self.cuts(op.kv_heads)])
            case _ if op.out in self.pooled:
                self.launch(0, op)
            case Embed() | Linear() | Attention():
                self.launch(0, op)
                for card in self.cards[1:]:
                    self.stand_in(card, op.out)
                self.step(Exchange(register=op.out, sources=(op.out, *(None for _ in self.cards[1:]))))
            case _:
                for card in self.cards:
                    self.launch(card, op)

    def divide(self, op: Linear | Attention, parts: list[tuple[int, int, int]]) -> None:
        """Give each card the part [start, end) of an operator, which writes ``width`` columns."""
        part = self.fresh
        self.fresh += 1
        for card, (width, start, end) in enumerate(parts):
            if isinstance(op, Linear):
                self.launch(card, replace(op, out=part, outputs=width), start, end)
            else:
                self.launch(card, _heads(op, part, start, end))
            # reads the part, so that it lives until it has been fetched, and writes what comes back
            whole = Columns(register=part, start=0, width=width)
            self.ops[card].append(Linear(out=op.out, x=whole, weight="", outputs=self.widths[op.out], bias=False))
        self.step(Exchange(register=op.out, sources=tuple(part for _ in self.cards)))

    def launch(self, card: int, op: Op, start: int = 0, end: int | None = None) -> None:
        """Add an operator with its tensors, of which a card may get some rows only."""
        self.launched[card].append(len(self.ops[card]))
        self.ops[card].append(op)
        stem = getattr(op, "weight", None)
        for name, tensor in self.tensors.items():
            if stem is not None and name.rpartition(".")[0] == stem:
                self.held[card][name] = tensor if end is None else tensor[start:end]

    def stand_in(self, card: int, register: int) -> None:
        width = self.widths[register]
        self.ops[card].append(Embed(out=register, weight="", index="token", width=width))

    def step(self, exchange: Exchange | None) -> None:
        self.steps.append(CardStep(ops=tuple(tuple(ops) for ops in self.launched), exchange=exchange))
        self.launched = [[] for _ in self.cards]

    def cuts(self, count: int) -> list[tuple[int, int]]:
        """Return the part of each card, which may be empty only where there are fewer things than cards."""
        n = len(self.cards)
        edges = [round(count * i / n) for i in range(n + 1)]
        return list(pairwise(edges))


def _heads(op: Attention, out: int, start: int, end: int) -> Attention:
    """Return attention of key heads [start, end) and of the query heads that read them."""
    group = op.heads // op.kv_heads

    def cut(columns: Columns, heads: int, first: int, last: int) -> Columns:
        width = columns.width // heads
        return replace(columns, start=columns.start + first * width, width=(last - first) * width)

    return replace(
        op,
        out=out,
        q=cut(op.q, op.heads, start * group, end * group),
        k=cut(op.k, op.kv_heads, start, end),
        v=cut(op.v, op.kv_heads, start, end),
        heads=(end - start) * group,
        kv_heads=end - start,
    )


def logits_columns(program: Program) -> int:
    """Return the vocabulary of a program that ends in log-probabilities, else 0."""
    last = program.ops[-1]
    return last.vocabulary if isinstance(last, LogProb) else 0


def floats(rows: int, width: int) -> npt.NDArray[np.float32]:
    """Return room for rows that are padded to whole beats of 16 numbers, zeros."""
    return np.zeros((rows, -(-width // 16) * 16), np.float32)


Floats = npt.NDArray[np.float32]
Answer = TypeVar("Answer")
Each = Callable[[Callable[["_Shard"], Answer]], list[Answer]]


class TensorParallelSchedule:
    """A model on several cards, used like a :class:`~greentrain.fpga_backend.csim.schedule.BatchSchedule`.

    Between two divided operators the cards meet on the host, which is what this costs: two transfers of a layer's
    activations an operator, over PCI Express.

    Args:
        model: Program and tensors.
        cards: Cards, at least two. The schedule frees its buffers but does not close the cards.
        activation_bytes: Bound of the memory of a batch's rows on each card; a larger batch runs in waves.

    Raises:
        ArtifactError: The kernels cannot run the program.
        DeviceError: A card has no room for its share, or fails.
    """

    def __init__(self, model: FittedModel, cards: Sequence[Card], *, activation_bytes: int = ACTIVATION_BYTES) -> None:
        if len(cards) < 2:
            raise DeviceError(f"{len(cards)} cards: a model is divided over at least 2; one card takes a Schedule")
        self.program = model.program
        tensors = {name: np.asarray(tensor) for name, tensor in model.tensors.items()}
        fit(self.program, tensors)
        made = split(self.program, tensors, len(cards))
        self._steps = made.steps
        self._vocabulary = logits_columns(self.program)
        self._shards: list[_Shard] = []
        try:
            for i, (share, card) in enumerate(zip(made.shares, cards, strict=True)):
                self._shards.append(_Shard(i, share, card, activation_bytes, self._vocabulary if i == 0 else 0))
        except BaseException:
            self.close()
            raise

    def run(self, batch: Batch) -> Result:
        """Compute a batch.

        Raises:
            BatchError: It does not fit the program.
            DeviceError: A card failed, has no room, or the result is not finite.
        """
        begun_s = time.perf_counter()
        narrowest = min(self._shards, key=lambda shard: shard.most_rows)
        found: list[Floats] = []
        targets: list[int] = []
        rows = 0
        with ThreadPoolExecutor(len(self._shards), thread_name_prefix="greentrain cards") as pool:
            for packed in narrowest.waves(batch):
                found.append(self._wave(packed, lambda do: list(pool.map(do, self._shards))))
                rows += packed.rows
                targets += packed.targets
        run_s = time.perf_counter() - begun_s
        return Result.of(np.concatenate(found), targets, labels=self.program.labels, rows=rows, run_s=run_s)

    def close(self) -> None:
        """Free the cards' memory. Idempotent."""
        for shard in self._shards:
            shard.close()

    def _wave(self, packed: Packed, each: "Each[Floats | None]") -> Floats:
        size = BatchSize(rows=packed.rows, sequences=len(packed.sequences), targets=len(packed.target_ids))
        each(lambda shard: shard.begin(packed, size))
        gathered: tuple[Exchange, Floats] | None = None
        for i, step in enumerate(self._steps):

            def advance(shard: "_Shard", i: int = i, given: tuple[Exchange, Floats] | None = gathered) -> Floats | None:
                if given is not None and given[0].sources[shard.number] != given[0].register:
                    shard.put(given[0].register, given[1])
                shard.launch(self._steps[i].ops[shard.number])
                exchange = self._steps[i].exchange
                source = None if exchange is None else exchange.sources[shard.number]
                return None if source is None else shard.fetch(source)

            parts = [part for part in each(advance) if part is not None]
            gathered = None
            if step.exchange is not None:
                columns = np.concatenate(parts, axis=1)
                whole = floats(packed.rows, columns.shape[1])
                whole[:, : columns.shape[1]] = columns
                gathered = (step.exchange, whole)
        if self._vocabulary:
            self._logprobs(size, each)
        found = self._shards[0].result(size)
        if not np.isfinite(found).all():
            raise DeviceError("the result is not finite: the model's values leave binary32")
        return found

    def _logprobs(self, size: BatchSize, each: "Each[Floats | None]") -> None:
        chunk = self._shards[0].chunk
        for start in range(0, size.targets, chunk):
            rows = min(chunk, size.targets - start)

            def logits(shard: "_Shard", start: int = start, rows: int = rows) -> Floats | None:
                return shard.logits(start, rows)

            parts = [part for part in each(logits) if part is not None]
            whole = floats(rows, self._vocabulary)
            whole[:, : self._vocabulary] = np.concatenate(parts, axis=1)
            self._shards[0].logprobs(start, whole)


class _Shard(BatchSchedule):
    """One card's share: its buffers and launches, a few at a time.

    Args:
        number: Number of the card.
        share: Operators and tensors of the card.
        card: The card.
        activation_bytes: Bound of the memory of rows, as in :class:`TensorParallelSchedule`.
        vocabulary: Vocabulary of the whole head, for the card that ends it; 0 for the others.
    """

    def __init__(self, number: int, share: CardShare, card: Card, activation_bytes: int, vocabulary: int) -> None:
        self.number = number
        self.program = share.program
        self._card = card
        self._by_operator = by_operator(share.program)
        self._widths = widths(share.program)
        self._part = logits_columns(share.program)
        whole = _with_vocabulary(share.program, vocabulary) if vocabulary else share.program
        self._last = by_operator(whole)[-1]
        self._layout = CardLayout(whole)
        self.most_rows = self._most_rows = max(activation_bytes // self._layout.row_bytes, share.program.max_tokens)
        self._size = self._capacity = BatchSize(rows=0, sequences=0, targets=0)
        self._counts: dict[Count, int] = {}
        self._work = {}
        self._fixed = write_weights(card, share.program, share.tensors)

    @property
    def chunk(self) -> int:
        """Targets whose logits are computed at a time."""
        return self._layout.chunk

    waves = BatchSchedule._waves

    def begin(self, packed: Packed, size: BatchSize) -> None:
        """Make room for a batch and write its tables."""
        self._reserve(size)
        self._write(packed)
        self._size = size
        self._counts = {
            Count.ROWS: size.rows,
            Count.SEQUENCES: size.sequences,
            Count.SEGMENTS: len(packed.segments),
        }

    def launch(self, positions: Sequence[int]) -> None:
        """Run some operators, but the vocabulary head."""
        for position in positions:
            for launch in self._by_operator[position]:
                if not launch.by_chunk:
                    self._launch(launch, self._counts)

    def fetch(self, register: int) -> Floats:
        """Return a register [rows, width]."""
        width = self._widths[register]
        found = floats(self._size.rows, width)
        self._card.read(self._work[f"register:{register}"], found)
        return found[:, :width]

    def put(self, register: int, values: Floats) -> None:
        """Write a register, padded."""
        self._card.write(self._work[f"register:{register}"], values)

    def logits(self, start: int, rows: int) -> Floats | None:
        """Return the card's part of the logits of some targets [rows, part]; None: it has none."""
        if not self._part:
            return None
        self._chunk(self._by_operator[-1][:-1], start, rows)
        found = floats(rows, self._part)
        self._card.read(self._work["logits"], found)
        return found[:, : self._part]

    def logprobs(self, start: int, logits: Floats) -> None:
        """Turn all logits of some targets into log-probabilities."""
        self._card.write(self._work["logits"], logits)
        self._chunk(self._last[-1:], start, len(logits))

    def result(self, size: BatchSize) -> Floats:
        """Return what the program ends in."""
        return self._read(size)

    def _chunk(self, launches: Sequence[Launch], start: int, rows: int) -> None:
        for launch in launches:
            self._launch(launch, {**self._counts, Count.FIRST: start, Count.CHUNK: rows})


def _with_vocabulary(program: Program, vocabulary: int) -> Program:
    last = program.ops[-1]
    assert isinstance(last, LogProb)
    return replace(program, ops=(*program.ops[:-1], replace(last, vocabulary=vocabulary)))
