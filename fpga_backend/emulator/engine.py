"""The contract on the CPU: a program and a batch in, the result's exact bits out."""

import time
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch

from greentrain.fpga_backend import contract, tables
from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.batch import Batch, Result
from greentrain.fpga_backend.emulator.attention import Heads, attend, weights_table
from greentrain.fpga_backend.emulator.compiled import CompiledStages
from greentrain.fpga_backend.emulator.heads import LogProbTables, logprobs, pool, pooled_row
from greentrain.fpga_backend.emulator.limits import check
from greentrain.fpga_backend.emulator.products import Product, exact_product
from greentrain.fpga_backend.emulator.stages import Ends, Kernel, Rows, Stage, Weights, cut
from greentrain.fpga_backend.errors import ArtifactError, DeviceError
from greentrain.fpga_backend.packing import Packed, pack
from greentrain.fpga_backend.program import Attention, Columns, Linear, LogProb, Pool, digits, widths

BLOCK_ROWS = 256
"""Rows at a time: 256 x 3072 binary32 are 3 MB, about what a core's share of the caches holds."""
COMPILED_BLOCK_ROWS = 512
"""Compiled stages pass over a block less often, and each call of one costs more."""
LOGITS = 2**22
"""Logits at a time in the log-probability head: 16 MB."""


class StageRunner(Protocol):
    """Runs a stage: ``Kernel.run`` or ``CompiledStages.run``."""

    def __call__(
        self,
        stage: Stage,
        inputs: Sequence[torch.Tensor],
        weights: Sequence[Weights],
        rows: Rows,
        into: Sequence[torch.Tensor] | None = None,
    ) -> list[torch.Tensor]:
        """As ``Kernel.run``."""
        ...


class Engine:
    """Runs one artifact. Not thread-safe.

    Args:
        artifact: Of precision ``w8a8``.
        product: Exact product of 8-bit integers; None: the fastest that is exact here.
        compiled: True: stages go through ``torch.compile`` (a C++ compiler, half a minute once); the bits are the same.
            Not with one scale a batch, whose stages run over the whole batch.
        block_rows: Rows at a time; None: what was fastest on two cores.

    Raises:
        ArtifactError: Another precision, or sizes or a width of activations beyond the contract's.
    """

    def __init__(
        self,
        artifact: Artifact,
        *,
        product: Product | None = None,
        compiled: bool = False,
        block_rows: int | None = None,
    ) -> None:
        program = artifact.program
        check(program)
        if program.precision != "w8a8":
            raise ArtifactError(
                f"precision {program.precision!r} is not in the integer contract; the emulator runs 'w8a8', "
                "the torch device runs any"
            )
        two = any(digits(op) == 2 for op in program.ops if isinstance(op, Linear | LogProb))
        if two and program.activations != "token":
            raise ArtifactError("one scale a tensor goes with activations of 8 bits only: compile the model again")
        self.program = program
        self._whole = program.activations == "tensor"
        self._block_rows = block_rows or (COMPILED_BLOCK_ROWS if compiled else BLOCK_ROWS)
        self._parts = cut(program)
        self._widths = widths(program)
        self._ends = None if self._whole else Ends.of(self._parts)
        self._weights = _by_stem(artifact)
        with torch.device("cpu"):  # whatever the caller's default device is
            self._kernel = Kernel(
                product=product or exact_product(),
                tables={
                    name: torch.from_numpy(tables.gate(name).copy()).to(torch.float32) / contract.GATE_ONE
                    for name in tables.FUNCTIONS
                },
                whole_batch_scale=self._whole,
            )
            exp2 = torch.from_numpy(tables.exp2().copy())
            self._attention_table = weights_table(exp2)
            self._logprob_tables = LogProbTables(exp2, torch.from_numpy(tables.log().copy()))
        self._run_stage: StageRunner = self._kernel.run
        if compiled and not self._whole:
            self._run_stage = CompiledStages(self._kernel, self._block_rows).run

    @torch.inference_mode()
    def run(self, batch: Batch) -> Result:
        """Compute a batch.

        Raises:
            BatchError: It does not fit the program.
            DeviceError: The result is not finite.
        """
        begun_s = time.perf_counter()
        packed = pack(batch, self.program)
        rows = Rows(ids=_long(packed.ids), positions=_long(packed.positions), types=_long(packed.types))
        registers: dict[int, torch.Tensor] = {}
        last, ends = _last_reads(self._parts), self._ends
        found: torch.Tensor | None = None
        for i, part in enumerate(self._parts):
            match part:
                case Attention() if ends is not None and i == ends.attention:
                    registers[part.out] = self._attention_of(part, registers, packed, ends.how)
                case Attention():
                    registers[part.out] = self._attention(part, registers, packed)
                case Pool() if ends is not None:
                    registers[part.out] = _columns(registers, part.x)
                case Pool():
                    registers[part.out] = pool(_columns(registers, part.x), part.how, packed)
                case LogProb():
                    found = self._logprobs(part, registers, packed)
                case Stage():
                    registers.update(self._stage(part, registers, rows))
            for register in last[i]:
                registers.pop(register, None)
            if ends is not None and i == ends.attention:
                for register in registers.keys() - {self._parts[i].out}:  # type: ignore[union-attr]
                    registers[register] = pool(registers[register], ends.how, packed)
        if found is None:
            found = registers[max(registers)]
        if not bool(torch.isfinite(found).all()):
            raise DeviceError("the result is not finite: the model's values leave binary32")
        return _result(found.numpy(), packed, scores=self.program.labels > 0, run_s=time.perf_counter() - begun_s)

    def _stage(self, stage: Stage, registers: dict[int, torch.Tensor], rows: Rows) -> dict[int, torch.Tensor]:
        held = [registers[r] for r in stage.inputs]
        weights = [self._weights[stem] for stem in stage.weights]
        count = len(held[0]) if held else len(rows.ids)
        step = count if self._whole else self._block_rows
        if count <= step:
            return dict(zip(stage.outputs, self._run_stage(stage, held, weights, rows), strict=True))
        outputs = {r: torch.empty(count, self._widths[r], dtype=torch.float32) for r in stage.outputs}
        for start in range(0, count, step):
            stop = min(start + step, count)
            into = [outputs[register][start:stop] for register in stage.outputs]
            self._run_stage(stage, [h[start:stop] for h in held], weights, rows.block(start, stop), into)
        return outputs

    def _attention(self, op: Attention, registers: dict[int, torch.Tensor], packed: Packed) -> torch.Tensor:
        rows = len(registers[op.q.register])
        out = torch.empty(rows, self._widths[op.out], dtype=torch.float32)
        shared = {segment.parent for segment in packed.segments}
        prompts: dict[int, tuple[Heads, Heads]] = {}
        for number, segment in enumerate(packed.segments):
            own = slice(segment.start, segment.start + segment.rows)
            query, keys, values = _heads(op, registers, own)
            if number in shared:
                prompts[number] = (keys, values)
            if segment.parent >= 0:
                before = prompts[segment.parent]
                keys, values = before[0].then(keys), before[1].then(values)
            attend(query, keys, values, out[own], scale=op.scale, causal=op.causal, table=self._attention_table)
        return out

    def _attention_of(
        self, op: Attention, registers: dict[int, torch.Tensor], packed: Packed, how: str
    ) -> torch.Tensor:
        """Attend from one row of each sequence only."""
        out = torch.empty(len(packed.sequences), self._widths[op.out], dtype=torch.float32)
        times = op.heads // op.kv_heads
        for i, end in enumerate(packed.sequences):
            row, spans = pooled_row(packed, end, how), packed.spans(end)
            query = Heads.of(_columns(registers, op.q)[row : row + 1], op.heads)
            seen = [torch.cat([_columns(registers, x)[s : s + n] for s, n in spans]) for x in (op.k, op.v)]
            keys, values = (Heads.of(x, op.kv_heads).repeated(times) for x in seen)
            attend(query, keys, values, out[i : i + 1], scale=op.scale, causal=False, table=self._attention_table)
        return out

    def _logprobs(self, op: LogProb, registers: dict[int, torch.Tensor], packed: Packed) -> torch.Tensor:
        x = _columns(registers, op.x)
        targets, chosen = _long(packed.target_ids), _long(packed.target_rows)
        out = torch.empty(len(targets), dtype=torch.float32)
        step = max(1, LOGITS // op.vocabulary)
        peak = x.abs().amax() if self._whole else None
        for start in range(0, len(targets), step):
            piece = slice(start, start + step)
            logits = self._kernel.linear(op, x[chosen[piece]], self._weights[op.weight], peak=peak)
            out[piece] = logprobs(logits, targets[piece], self._logprob_tables)
        return out


def _by_stem(artifact: Artifact) -> dict[str, Weights]:
    stems: dict[str, Weights] = {}
    for name, tensor in artifact.tensors.items():
        stem, _, suffix = name.rpartition(".")
        stems.setdefault(stem, {"b": None})[suffix] = tensor
    return stems


def _last_reads(parts: Sequence[Any]) -> list[list[int]]:
    """Return, by part, the registers that no later part reads; the last part's output is kept."""
    seen: set[int] = set()
    frees: list[list[int]] = []
    for part in reversed(parts):
        read = set(part.inputs) if isinstance(part, Stage) else {c.register for c in _reads(part)}
        frees.append(sorted(read - seen))
        seen |= read
    return frees[::-1]


def _heads(op: Attention, registers: dict[int, torch.Tensor], own: slice) -> tuple[Heads, Heads, Heads]:
    """Quantise queries, keys and values of some rows, in one piece where they lie side by side."""
    q, k, v = op.q, op.k, op.v
    times = op.heads // op.kv_heads
    width = q.width // op.heads
    beside = (k.register, k.start, v.register, v.start) == (
        q.register,
        q.start + q.width,
        q.register,
        k.start + k.width,
    )
    if beside and k.width == v.width == width * op.kv_heads:
        whole = Columns(register=q.register, start=q.start, width=q.width + k.width + v.width)
        found = Heads.of(_columns(registers, whole)[own], op.heads + 2 * op.kv_heads)
        keys, values = (found.some(op.heads + i * op.kv_heads, op.kv_heads) for i in (0, 1))
        return found.some(0, op.heads), keys.repeated(times), values.repeated(times)
    keys, values = (Heads.of(_columns(registers, x)[own], op.kv_heads).repeated(times) for x in (k, v))
    return Heads.of(_columns(registers, q)[own], op.heads), keys, values


def _reads(op: Attention | Pool | LogProb) -> tuple[Columns, ...]:
    return (op.q, op.k, op.v) if isinstance(op, Attention) else (op.x,)


def _columns(registers: dict[int, torch.Tensor], where: Columns) -> torch.Tensor:
    return registers[where.register][:, where.start : where.start + where.width]


def _long(ids: Any) -> torch.Tensor:
    return torch.from_numpy(ids).to(torch.int64)


def _result(found: Any, packed: Packed, *, scores: bool, run_s: float) -> Result:
    if scores:
        return Result(scores=found, run_s=run_s, rows=packed.rows)
    ends = np.cumsum(packed.targets)[:-1]
    return Result(logprobs=tuple(np.split(found, ends)), run_s=run_s, rows=packed.rows)
