"""SmoothQuant: large activations of few channels move into the weights behind them (arxiv.org/abs/2211.10438).

A channel's input is divided, and its column of weights multiplied, by

    max |activation|^alpha / max |weight|^(1 - alpha)

The division goes into whatever makes the input: gain and bias of a norm, or the rows of a gated layer's linear half.
Nothing changes but for rounding. Where a norm is read by others, too (a residual sum), it is computed twice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from greentrain.fpga_backend.artifact import weight_of
from greentrain.fpga_backend.batch import Batch, pack
from greentrain.fpga_backend.compiler.finish import renumbered
from greentrain.fpga_backend.compiler.recipe import Part, Recipe, TensorRecipe
from greentrain.fpga_backend.devices.torch_device import in_floats
from greentrain.fpga_backend.program import Columns, Gate, Linear, LogProb, Norm, Op, Program, read_by

Product = Linear | LogProb


@dataclass(frozen=True, slots=True, kw_only=True)
class SmoothQuant:
    """Calibration.

    Args:
        batches: Batches like those that the model will see, some thousands of tokens: their maxima decide.
        alpha: Share of the activations' difficulty that moves into the weights, 0 to 1. The paper takes 0.5.

    Raises:
        ValueError: No batches, or alpha not within 0 and 1.
    """

    batches: Sequence[Batch]
    alpha: float = 0.5

    def __post_init__(self) -> None:
        if not self.batches:
            raise ValueError("SmoothQuant needs batches: token sequences like those that will be scored")
        if not 0.0 <= self.alpha <= 1.0:
            raise ValueError(f"alpha={self.alpha}: SmoothQuant takes 0 to 1")

    def applied(self, program: Program, recipe: Recipe, tensors: Mapping[str, torch.Tensor]) -> tuple[Program, Recipe]:
        """Return program and recipe with the scales folded in.

        Args:
            program: Program of precision fp32.
            recipe: Recipe of its tensors.
            tensors: Tensors of the program in binary32.

        Raises:
            BatchError: A batch does not fit the program.
        """
        peaks = self._peaks(program, tensors)
        work = _SmoothingWork(program, recipe, tensors)
        for op in program.ops:
            if isinstance(op, Norm):
                work.behind_norm(op, peaks, self.alpha)
            elif isinstance(op, Gate) and op.up is not None:
                work.behind_gate(op, peaks, self.alpha)
        return replace(program, ops=tuple(renumbered(work.ops))), replace(
            recipe, entries=work.used_entries(), vectors=work.vectors
        )

    def _peaks(self, program: Program, tensors: Mapping[str, torch.Tensor]) -> dict[Columns, torch.Tensor]:
        found: dict[Columns, torch.Tensor] = {}

        def observe(op: Op, x: torch.Tensor) -> None:
            if isinstance(op, Product):
                peak = x.abs().amax(0)
                found[op.x] = torch.maximum(found[op.x], peak) if op.x in found else peak

        engine = in_floats(program, tensors)
        for batch in self.batches:
            engine.run(pack(batch, program), observe)
        return found


class _SmoothingWork:
    """Operators and recipe while scales move."""

    def __init__(self, program: Program, recipe: Recipe, tensors: Mapping[str, torch.Tensor]) -> None:
        self.ops: list[Op] = list(program.ops)
        self.vectors: dict[str, torch.Tensor] = {}
        self._entries = dict(recipe.entries)
        self._shapes = recipe.shapes
        self._tensors = tensors
        self._next = len(program.ops)

    def used_entries(self) -> dict[str, TensorRecipe]:
        """Return the entries that operators still name."""
        used = {op.weight for op in self.ops if hasattr(op, "weight")}
        return {stem: entry for stem, entry in self._entries.items() if stem in used}

    def behind_norm(self, op: Norm, peaks: Mapping[Columns, torch.Tensor], alpha: float) -> None:
        """Fold into a norm what the products that read all of it want."""
        whole = Columns(register=op.out, start=0, width=op.x.width)
        products, others = self._readers(whole)
        if not products or op.groups > 1:
            return
        key = self._scales(products, peaks[whole], alpha)
        entry = self._entries[op.weight]
        divided = entry.parts[0].then("divide rows", key)
        stem = self._fresh(op.weight, replace(entry, parts=(divided,)), copy=others)
        at = self.ops.index(op)
        if others:
            made = replace(op, out=self._next, weight=stem)
            self._next += 1
            self.ops.insert(at + 1, made)
        else:
            made = replace(op, weight=stem)
            self.ops[at] = made
        self._multiply(products, key, replace(whole, register=made.out))

    def behind_gate(self, op: Gate, peaks: Mapping[Columns, torch.Tensor], alpha: float) -> None:
        """Fold into the linear half of a gated layer what the product behind it wants."""
        whole = Columns(register=op.out, start=0, width=op.x.width)
        products, others = self._readers(whole)
        maker = next((m for m in self.ops if isinstance(m, Linear) and op.up and m.out == op.up.register), None)
        if not products or others or maker is None or op.up is None or self._reads_of(op.up) != 1:
            return
        entry = self._entries[maker.weight]
        start = 0
        for number, part in enumerate(entry.parts):
            rows = self._rows(part)
            if (start, rows) == (op.up.start, op.up.width):
                key = self._scales(products, peaks[whole], alpha)
                parts = (*entry.parts[:number], part.then("divide rows", key), *entry.parts[number + 1 :])
                stem = self._fresh(maker.weight, replace(entry, parts=parts), copy=False)
                self.ops[self.ops.index(maker)] = replace(maker, weight=stem)
                self._multiply(products, key, whole)
                return
            start += rows

    def _readers(self, whole: Columns) -> tuple[list[Product], bool]:
        """Return the products that read all of a register, and whether something else reads it."""
        products = [op for op in self.ops if isinstance(op, Product) and op.x == whole]
        count = sum(where.register == whole.register for op in self.ops for where in read_by(op))
        return products, count > len(products)

    def _reads_of(self, columns: Columns) -> int:
        stop = columns.start + columns.width
        return sum(
            where.register == columns.register and where.start < stop and where.start + where.width > columns.start
            for op in self.ops
            for where in read_by(op)
        )

    def _scales(self, products: Sequence[Product], peak: torch.Tensor, alpha: float) -> str:
        weights = torch.stack([weight_of(self._tensors, op.weight).abs().amax(0) for op in products]).amax(0)
        scales = peak.to(torch.float32).pow(alpha) / weights.pow(1.0 - alpha)
        usable = (peak > 0) & (weights > 0) & torch.isfinite(scales) & (scales > 0)
        key = str(len(self.vectors))
        self.vectors[key] = torch.where(usable, scales, torch.ones_like(scales))
        return key

    def _multiply(self, products: Sequence[Product], key: str, where: Columns) -> None:
        for op in products:
            entry = self._entries[op.weight]
            parts = tuple(replace(p, weight=p.weight.then("multiply columns", key)) for p in entry.parts)
            stem = self._fresh(op.weight, replace(entry, parts=parts), copy=False)
            self.ops[self.ops.index(op)] = replace(op, weight=stem, x=where)

    def _fresh(self, stem: str, entry: TensorRecipe, *, copy: bool) -> str:
        """Put an entry in a stem's place, or beside it where others still need the old one."""
        users = sum(getattr(op, "weight", None) == stem for op in self.ops)
        if copy or users > 1:
            name = f"{stem}.smooth"
            while name in self._entries:
                name += "+"
            stem = name
        self._entries[stem] = entry
        return stem

    def _rows(self, part: Part) -> int:
        shape = self._shapes[part.weight.parameter]
        turned = sum(name == "transpose" for name, _ in part.weight.steps) % 2
        return shape[1] if turned else shape[0]
