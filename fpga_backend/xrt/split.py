"""A program divided over several cards: each holds a part of the weights of every large product.

Linear layers are divided by output channels, attention by key heads, the vocabulary head by tokens of the vocabulary:
each number is computed by one card, in the order in which a single card computes it, so the bits are the same.
Whatever is divided is put together on the host and given to all; sums, norms, gates and rotations are done by each.
Embedding, pooling and score are the first card's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from greentrain.fpga_backend.csim.fitting import by_sequence
from greentrain.fpga_backend.program import Attention, Columns, Embed, Linear, LogProb, Op, Program, widths

Tensors = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A register that the host puts together and writes to the cards that lack it."""

    register: int
    sources: tuple[int | None, ...]
    """By card: the register with its columns, in order; None: it has none of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What happens between two meetings of the cards."""

    ops: tuple[tuple[int, ...], ...]
    """By card: positions in its program of what it launches."""
    exchange: Exchange | None
    """What is put together afterwards; None behind the last step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one card has."""

    program: Program
    """Its operators. Where a register comes from the host, an operator that is not launched stands for it."""
    tensors: Tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A divided program."""

    shares: tuple[Share, ...]
    steps: tuple[Step, ...]


def split(program: Program, tensors: Tensors, cards: int) -> Split:
    """Divide a program.

    Args:
        program: The operators.
        tensors: Arrays by name; not copied.
        cards: At least 2.
    """
    made = _Maker(program, tensors, cards)
    for op in program.ops:
        made.add(op)
    made.step(None)
    return Split(
        shares=tuple(
            Share(program=replace(program, ops=tuple(ops)), tensors=held)
            for ops, held in zip(made.ops, made.held, strict=True)
        ),
        steps=tuple(made.steps),
    )


class _Maker:
    def __init__(self, program: Program, tensors: Tensors, cards: int) -> None:
        self.cards = range(cards)
        self.tensors = tensors
        self.widths = widths(program)
        self.pooled = by_sequence(program)
        self.fresh = max(self.widths, default=0) + 1
        self.ops: list[list[Op]] = [[] for _ in self.cards]
        self.held: list[dict[str, npt.NDArray[Any]]] = [{} for _ in self.cards]
        self.launched: list[list[int]] = [[] for _ in self.cards]
        self.steps: list[Step] = []

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
        self.steps.append(Step(ops=tuple(tuple(ops) for ops in self.launched), exchange=exchange))
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
