"""A program cut where rows meet: between, operators run block by block of rows that stay in the cache.

Only attention and pooling look at more than one row. The operators between two of them form a stage, which is the same
in every layer up to the names of its registers and weights; so a stage is kept in a canonical form, and compiled once.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from greentrain.fpga_backend import contract
from greentrain.fpga_backend.emulator import arithmetic
from greentrain.fpga_backend.emulator.heads import score
from greentrain.fpga_backend.emulator.products import Product
from greentrain.fpga_backend.program import (
    Add,
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
    digits,
    read_by,
)

Joint = Attention | Pool | LogProb
"""Operators that look at more than one row, or at chosen ones."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Operators on single rows, in canonical form: registers numbered from 0, the inputs first; weights are slots."""

    ops: tuple[Op, ...]
    inputs: tuple[int, ...]
    """The program's registers that are read."""
    outputs: tuple[int, ...]
    """The program's registers that later operators read."""
    kept: tuple[int, ...]
    """The same in the stage's numbers."""
    weights: tuple[str, ...]
    """Stems of the tensors in the slots."""


def cut(program: Program) -> tuple[Stage | Joint, ...]:
    """Return the program's stages and the operators between them, in order."""
    parts: list[Stage | Joint] = []
    run: list[Op] = []
    for i, op in enumerate(program.ops):
        if isinstance(op, Joint):
            if run:
                parts.append(_stage(run, program.ops[i:]))
            parts.append(op)
            run = []
        else:
            run.append(op)
    if run:
        parts.append(_stage(run, ()))
    return tuple(parts)


@dataclass(frozen=True, slots=True)
class Ends:
    """Where a program begins to need one row a sequence: behind its last attention, where a pool picks one."""

    attention: int
    """Index of that attention among the parts."""
    how: str

    @classmethod
    def of(cls, parts: Sequence[Stage | Joint]) -> "Ends | None":
        """Return it, or None where every row is needed to the end."""
        attention = max((i for i, part in enumerate(parts) if isinstance(part, Attention)), default=None)
        if attention is None:
            return None
        later = parts[attention + 1 :]
        pools = [part for part in later if isinstance(part, Pool)]
        looks = any(isinstance(op, Embed | Rotary) for part in later if isinstance(part, Stage) for op in part.ops)
        if len(pools) != 1 or looks or any(isinstance(part, LogProb) for part in later):
            return None
        (pool,), last = pools, parts[attention]
        if pool.how == "mean" or (isinstance(last, Attention) and last.causal and pool.how != "last"):
            return None
        return cls(attention, pool.how)


def _stage(ops: Sequence[Op], later: Sequence[Op]) -> Stage:
    written = [op.out for op in ops if not isinstance(op, LogProb)]
    wanted = {columns.register for op in later for columns in read_by(op)}
    outputs = tuple(r for r in written if r in wanted) or (written[-1],)
    inputs: list[int] = []
    for op in ops:
        for columns in read_by(op):
            if columns.register not in written and columns.register not in inputs:
                inputs.append(columns.register)
    number = {register: i for i, register in enumerate([*inputs, *written])}
    stems: list[str] = []
    renamed = []
    for op in ops:
        changes: dict[str, object] = {}
        for field in dataclasses.fields(op):
            value = getattr(op, field.name)
            if isinstance(value, Columns):
                changes[field.name] = dataclasses.replace(value, register=number[value.register])
            elif field.name == "weight":
                changes["weight"] = f"{len(stems)}"
                stems.append(value)
            elif field.name == "out":
                changes["out"] = number[value]
        renamed.append(dataclasses.replace(op, **changes))  # type: ignore[arg-type]
    return Stage(
        ops=tuple(renamed),
        inputs=tuple(inputs),
        outputs=outputs,
        kept=tuple(number[r] for r in outputs),
        weights=tuple(stems),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """What embeddings and rotations ask of a block of rows."""

    ids: torch.Tensor
    """int64 [rows]."""
    positions: torch.Tensor
    types: torch.Tensor

    def block(self, start: int, stop: int) -> "Rows":
        """Return some of the rows."""
        return Rows(ids=self.ids[start:stop], positions=self.positions[start:stop], types=self.types[start:stop])


Weights = dict[str, torch.Tensor | None]
"""Tensors of a stem by suffix: q, s, b, g, cos, sin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """What a stage is run with."""

    product: Product
    tables: dict[str, torch.Tensor]
    """Activation tables as binary32, by name."""
    whole_batch_scale: bool
    """The published rule: one scale for all rows of the block, which then is the batch."""

    def run(
        self,
        stage: Stage,
        inputs: Sequence[torch.Tensor],
        weights: Sequence[Weights],
        rows: Rows,
        into: Sequence[torch.Tensor] | None = None,
    ) -> list[torch.Tensor]:
        """Run a stage on a block of rows and return the registers it keeps: in ``into``, where that is given."""
        registers: dict[int, torch.Tensor] = dict(enumerate(inputs))
        for op in stage.ops:
            slot: Weights = weights[int(op.weight)] if hasattr(op, "weight") else {}
            registers[op.out] = self._apply(op, registers, slot, rows)  # type: ignore[union-attr]
        return kept_in([registers[r] for r in stage.kept], into)

    def linear(
        self, op: Linear | LogProb, x: torch.Tensor, weight: Weights, *, peak: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Quantise rows, multiply, scale; ``peak`` is the absolute maximum [] to scale all of them by."""
        if self.whole_batch_scale and peak is None:
            peak = x.abs().amax()
        by_row = x.abs().amax(dim=-1, keepdim=True) if peak is None else peak.expand(len(x), 1)
        if digits(op) == 2:
            q, scale = arithmetic.scaled(x, by_row, contract.Q16D)
            acc = arithmetic.joined(self.product(arithmetic.two_digits(q), _of(weight, "q")))
        else:
            q, scale = arithmetic.scaled(x, by_row, contract.Q8)
            acc = self.product(q.to(torch.int8), _of(weight, "q"))
        return arithmetic.dequantise(acc, scale, _of(weight, "s"), weight["b"])

    def _apply(self, op: Op, registers: dict[int, torch.Tensor], weight: Weights, rows: Rows) -> torch.Tensor:
        def columns(where: Columns) -> torch.Tensor:
            held = registers[where.register]
            return held[:, where.start : where.start + where.width]

        match op:
            case Embed():
                index = {"token": rows.ids, "position": rows.positions, "type": rows.types}[op.index] + op.offset
                q, s = _of(weight, "q"), _of(weight, "s")
                return q.index_select(0, index).to(torch.float32).mul_(s.index_select(0, index)[:, None])
            case Add():
                return columns(op.x) + columns(op.y)
            case Norm():
                return arithmetic.norm(columns(op.x), _of(weight, "g"), weight["b"], op.eps, centre=op.kind == "layer")
            case Linear():
                return self.linear(op, columns(op.x), weight)
            case Gate():
                up = None if op.up is None else columns(op.up)
                if op.table == "relu":
                    return arithmetic.relu(columns(op.x), up)
                return arithmetic.gate(columns(op.x), self.tables[op.table], up, times_x=op.table != "tanh")
            case Rotary():
                cos = _of(weight, "cos").index_select(0, rows.positions)
                sin = _of(weight, "sin").index_select(0, rows.positions)
                return arithmetic.rotary(columns(op.x), cos, sin, op.heads)
            case Score():
                return score(columns(op.x), _of(weight, "q"), _of(weight, "s"), weight["b"])
        raise TypeError(f"{type(op).__name__} does not belong in a stage")


def kept_in(values: list[torch.Tensor], into: Sequence[torch.Tensor] | None) -> list[torch.Tensor]:
    """Return the values, copied to ``into`` where that is given."""
    return values if into is None else [place.copy_(value) for place, value in zip(into, values, strict=True)]


def _of(weight: Weights, suffix: str) -> torch.Tensor:
    tensor = weight[suffix]
    assert tensor is not None
    return tensor
