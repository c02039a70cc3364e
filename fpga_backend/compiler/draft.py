"""A program in the making: operators, what their weights are made of, registers."""

from typing import Literal

import torch

from greentrain.fpga_backend.compiler.recipe import Kind, Part, TensorRecipe
from greentrain.fpga_backend.compiler.values import RowsValue
from greentrain.fpga_backend.program import Columns, Op, Pool, RegisterOp, width_of


class Draft:
    """Operators in the order in which they were found.

    Args:
        tokens: Length of the traced sequence.
        types: True if the model is given token types.
    """

    def __init__(self, tokens: int, *, types: bool) -> None:
        self.tokens = tokens
        self.types = types
        self.ops: list[Op] = []
        self.entries: dict[str, TensorRecipe] = {}
        self.tables: dict[str, torch.Tensor] = {}
        """Tensors that no parameter enters: cosines and sines."""
        self._producers: dict[int, Op] = {}
        self._per_sequence: set[int] = set()
        self._pools: dict[tuple[Columns, str], int] = {}
        self._next = 0

    def number(self) -> int:
        """Return the number of a new register."""
        self._next += 1
        return self._next - 1

    def add(self, op: RegisterOp, shape: tuple[int, ...], *, per_sequence: bool = False) -> RowsValue:
        """Append an operator and return its register in the shape that the graph gives it."""
        self.ops.append(op)
        self._producers[op.out] = op
        if per_sequence:
            self._per_sequence.add(op.out)
        rows = RowsValue.of(op.out, 1 if per_sequence else self.tokens, width_of(op))
        return rows.seen_as(rows.view.view(shape))

    def producer(self, register: int) -> Op:
        """Return the operator that writes a register."""
        return self._producers[register]

    def per_sequence(self, register: int) -> bool:
        """Return True if a register has a row a sequence instead of a row a token."""
        return register in self._per_sequence

    def pool(self, x: Columns, how: Literal["first", "last", "mean"]) -> Columns:
        """Return a register with one row a sequence; the same question has the same answer."""
        key = (x, how)
        if key not in self._pools:
            self._pools[key] = self.number()
            self.add(Pool(out=self._pools[key], x=x, how=how), (1, x.width), per_sequence=True)
        return Columns(register=self._pools[key], start=0, width=x.width)

    def entry(self, kind: Kind, *parts: Part) -> str:
        """Note what a weight is made of and return its stem, named after the parameter's module."""
        made = TensorRecipe(kind=kind, parts=parts, bias=any(part.bias is not None for part in parts))
        return self._stem(kind, parts[0].weight.parameter.rpartition(".")[0] or parts[0].weight.parameter, made)

    def table(self, cos: torch.Tensor, sin: torch.Tensor) -> str:
        """Note a table of rotary positions and return its stem; equal tables are kept once."""
        for name, held in self.tables.items():
            stem = name.removesuffix(".cos")
            if name.endswith(".cos") and torch.equal(held, cos) and torch.equal(self.tables[f"{stem}.sin"], sin):
                return stem
        count = len(self.tables) // 2
        stem = "rotary" if not count else f"rotary{count + 1}"
        self.tables.update({f"{stem}.cos": cos.contiguous(), f"{stem}.sin": sin.contiguous()})
        return stem

    def _stem(self, kind: Kind, wanted: str, entry: TensorRecipe) -> str:
        stem, count = wanted, 1
        while self.entries.get(stem, entry) != entry:
            count += 1
            stem = f"{wanted}.{kind}" if count == 2 else f"{wanted}.{kind}{count}"
        self.entries[stem] = entry
        return stem
