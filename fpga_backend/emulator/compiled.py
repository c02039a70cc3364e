"""Stages through ``torch.compile``: the same bits, fewer passes over memory.

What the contract allows leaves the compiler nothing to reorder: its C++ is built without contraction into fused
multiply-adds and without reassociation (torch._inductor.config.cpp, torch 2.13), and integer sums have no order. The
conformance suite holds the compiled path to the eager one, bit for bit.
"""

import types
from collections.abc import Sequence
from typing import Protocol

import torch

from greentrain.fpga_backend.emulator.stages import Kernel, Rows, Stage, Weights, kept_in
from greentrain.fpga_backend.program import Linear, Op


class _Run(Protocol):
    """Runs a stage on a whole block; with ``into`` it writes there, in the pass that computes it."""

    def __call__(
        self,
        inputs: Sequence[torch.Tensor],
        weights: Sequence[Weights],
        rows: Rows,
        into: Sequence[torch.Tensor] | None,
    ) -> list[torch.Tensor] | None: ...


class CompiledStages:
    """Runs stages compiled for one number of rows; a shorter block is filled up with rows of zeros: nothing changes.

    Args:
        kernel: What runs a stage.
        rows: Rows of a block.
    """

    def __init__(self, kernel: Kernel, rows: int) -> None:
        self._kernel = kernel
        self._rows = rows
        self._runs: dict[tuple[Op, ...], _Run] = {}

    def run(
        self,
        stage: Stage,
        inputs: Sequence[torch.Tensor],
        weights: Sequence[Weights],
        rows: Rows,
        into: Sequence[torch.Tensor] | None = None,
    ) -> list[torch.Tensor]:
        """Run a stage on at most ``rows`` rows; see ``Kernel.run``."""
        if not any(isinstance(op, Linear) for op in stage.ops):
            return self._kernel.run(stage, inputs, weights, rows, into)
        count = len(inputs[0]) if inputs else len(rows.ids)
        if into is not None and count == self._rows:
            self._of(stage)(inputs, weights, rows, into)
            return list(into)
        about = self._filled_rows(rows.block(0, count))  # behind a pool there are more of them, and nobody asks
        made = self._of(stage)([self._filled(x) for x in inputs], weights, about, None)
        return kept_in([value[:count] for value in made or ()], into)

    def _of(self, stage: Stage) -> _Run:
        if stage.ops not in self._runs:
            self._runs[stage.ops] = torch.compile(_own(self._kernel, stage), dynamic=False)
        return self._runs[stage.ops]

    def _filled(self, x: torch.Tensor) -> torch.Tensor:
        missing = self._rows - len(x)
        return torch.cat((x, x.new_zeros(missing, *x.shape[1:]))) if missing else x

    def _filled_rows(self, rows: Rows) -> Rows:
        return Rows(ids=self._filled(rows.ids), positions=self._filled(rows.positions), types=self._filled(rows.types))


def _own(kernel: Kernel, stage: Stage) -> _Run:
    """Return a function of a stage with a code object of its own, as torch.compile counts recompilations by these."""

    def run(
        inputs: Sequence[torch.Tensor], weights: Sequence[Weights], rows: Rows, into: Sequence[torch.Tensor] | None
    ) -> list[torch.Tensor] | None:
        made = kernel.run(stage, inputs, weights, rows, into)
        return made if into is None else None  # a graph that returns what it was given would copy it

    own: _Run = types.FunctionType(run.__code__.replace(), globals(), "run", None, run.__closure__)
    return own
