"""The contract on the CPU: a program and a batch in, the result's exact bits out.

A program is cut where rows meet: only attention and pooling look at more than one row. The operators between two of
them form a stage, which runs block by block of rows that stay in the cache. It is the same in every layer up to the
names of its registers and weights, so a stage is kept in a canonical form, and compiled once where ``torch.compile`` is
wanted.

What the contract allows leaves the compiler nothing to reorder: its C++ is built without contraction into fused
multiply-adds and without reassociation (torch._inductor.config.cpp, torch 2.13), and integer sums have no order. The
conformance suite holds the compiled path to the eager one, bit for bit.

The contract's sums are exact up to some sizes (CONTRACT.md, Limits); a program beyond them is refused, for its results
would be wrong unseen.
"""

import dataclasses
import time
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from greentrain.fpga_backend import contract, tables
from greentrain.fpga_backend import program as ir
from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.batch import Batch, Packed, Result, pack
from greentrain.fpga_backend.emulator import arithmetic
from greentrain.fpga_backend.emulator.arithmetic import (
    LogProbTables,
    Product,
    QuantisedHeads,
    Visible,
    attend,
    exact_product,
    logprobs,
    pool,
    pooled_row,
    score,
    weights_table,
)
from greentrain.fpga_backend.errors import ArtifactError
from greentrain.fpga_backend.program import digits, read_by, widths

Joint = ir.Attention | ir.Pool | ir.LogProb
"""Operators that look at more than one row, or at chosen ones."""


@dataclass(frozen=True, slots=True)
class EmulatorStage:
    """Operators on single rows, in canonical form: registers numbered from 0, the inputs first; weights are slots."""

    ops: tuple[ir.Op, ...]
    inputs: tuple[int, ...]
    """The program's registers that are read."""
    outputs: tuple[int, ...]
    """The program's registers that later operators read."""
    kept: tuple[int, ...]
    """The same in the stage's numbers."""
    weights: tuple[str, ...]
    """Stems of the tensors in the slots."""


def cut(program: ir.Program) -> tuple[EmulatorStage | Joint, ...]:
    """Return the program's stages and the operators between them, in order."""
    parts: list[EmulatorStage | Joint] = []
    run: list[ir.Op] = []
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
class PoolingStart:
    """Where a program begins to need one row a sequence: behind its last attention, where a pool picks one."""

    attention: int
    """Index of that attention among the parts."""
    how: str

    @classmethod
    def of(cls, parts: Sequence[EmulatorStage | Joint]) -> "PoolingStart | None":
        """Return it, or None where every row is needed to the end."""
        attention = max((i for i, part in enumerate(parts) if isinstance(part, ir.Attention)), default=None)
        if attention is None:
            return None
        later = parts[attention + 1 :]
        pools = [part for part in later if isinstance(part, ir.Pool)]
        looks = any(
            isinstance(op, ir.Embed | ir.Rotary) for part in later if isinstance(part, EmulatorStage) for op in part.ops
        )
        if len(pools) != 1 or looks or any(isinstance(part, ir.LogProb) for part in later):
            return None
        (pool,), last = pools, parts[attention]
        if pool.how == "mean" or (isinstance(last, ir.Attention) and last.causal and pool.how != "last"):
            return None
        return cls(attention, pool.how)


def _stage(ops: Sequence[ir.Op], later: Sequence[ir.Op]) -> EmulatorStage:
    written = [op.out for op in ops if not isinstance(op, ir.LogProb)]
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
            if isinstance(value, ir.Columns):
                changes[field.name] = dataclasses.replace(value, register=number[value.register])
            elif field.name == "weight":
                changes["weight"] = f"{len(stems)}"
                stems.append(value)
            elif field.name == "out":
                changes["out"] = number[value]
        renamed.append(dataclasses.replace(op, **changes))  # type: ignore[arg-type]
    return EmulatorStage(
        ops=tuple(renamed),
        inputs=tuple(inputs),
        outputs=outputs,
        kept=tuple(number[r] for r in outputs),
        weights=tuple(stems),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RowIds:
    """What embeddings and rotations ask of a block of rows."""

    ids: torch.Tensor
    """int64 [rows]."""
    positions: torch.Tensor
    types: torch.Tensor

    def block(self, start: int, stop: int) -> "RowIds":
        """Return some of the rows."""
        return RowIds(ids=self.ids[start:stop], positions=self.positions[start:stop], types=self.types[start:stop])


Weights = dict[str, torch.Tensor | None]
"""Tensors of a stem by suffix: q, s, b, g, cos, sin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageKernel:
    """What a stage is run with."""

    product: Product
    tables: dict[str, torch.Tensor]
    """Activation tables as binary32, by name."""
    whole_batch_scale: bool
    """The published rule: one scale for all rows of the block, which then is the batch."""

    def run(
        self,
        stage: EmulatorStage,
        inputs: Sequence[torch.Tensor],
        weights: Sequence[Weights],
        rows: RowIds,
        into: Sequence[torch.Tensor] | None = None,
    ) -> list[torch.Tensor]:
        """Run a stage on a block of rows and return the registers it keeps: in ``into``, where that is given."""
        registers: dict[int, torch.Tensor] = dict(enumerate(inputs))
        for op in stage.ops:
            slot: Weights = weights[int(op.weight)] if hasattr(op, "weight") else {}
            registers[op.out] = self._apply(op, registers, slot, rows)  # type: ignore[union-attr]
        return kept_in([registers[r] for r in stage.kept], into)

    def linear(
        self, op: ir.Linear | ir.LogProb, x: torch.Tensor, weight: Weights, *, peak: torch.Tensor | None = None
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

    def _apply(self, op: ir.Op, registers: dict[int, torch.Tensor], weight: Weights, rows: RowIds) -> torch.Tensor:
        def columns(where: ir.Columns) -> torch.Tensor:
            return _columns(registers, where)

        match op:
            case ir.Embed():
                index = {"token": rows.ids, "position": rows.positions, "type": rows.types}[op.index] + op.offset
                q, s = _of(weight, "q"), _of(weight, "s")
                return q.index_select(0, index).to(torch.float32).mul_(s.index_select(0, index)[:, None])
            case ir.Add():
                return columns(op.x) + columns(op.y)
            case ir.Norm():
                x = columns(op.x)
                x = x if op.groups == 1 else x.reshape(len(x), op.groups, -1)
                y = arithmetic.norm(x, _of(weight, "g"), weight["b"], op.eps, centre=op.kind == "layer")
                return y if op.groups == 1 else y.reshape(len(x), -1)
            case ir.Linear():
                return self.linear(op, columns(op.x), weight)
            case ir.Gate():
                up = None if op.up is None else columns(op.up)
                if op.table == "relu":
                    return arithmetic.relu(columns(op.x), up)
                return arithmetic.gate(columns(op.x), self.tables[op.table], up, times_x=op.table != "tanh")
            case ir.Rotary():
                cos = _of(weight, "cos").index_select(0, rows.positions)
                sin = _of(weight, "sin").index_select(0, rows.positions)
                return arithmetic.rotary(columns(op.x), cos, sin, op.heads)
            case ir.Score():
                return score(columns(op.x), _of(weight, "q"), _of(weight, "s"), weight["b"])
        raise TypeError(f"{type(op).__name__} does not belong in a stage")


def kept_in(values: list[torch.Tensor], into: Sequence[torch.Tensor] | None) -> list[torch.Tensor]:
    """Return the values, copied to ``into`` where that is given."""
    return values if into is None else [place.copy_(value) for place, value in zip(into, values, strict=True)]


def _of(weight: Weights, suffix: str) -> torch.Tensor:
    tensor = weight[suffix]
    assert tensor is not None
    return tensor


class _CompiledStage(Protocol):
    """Runs a stage on a whole block; with ``into`` it writes there, in the pass that computes it."""

    def __call__(
        self,
        inputs: Sequence[torch.Tensor],
        weights: Sequence[Weights],
        rows: RowIds,
        into: Sequence[torch.Tensor] | None,
    ) -> list[torch.Tensor] | None: ...


class CompiledStages:
    """Runs stages compiled for one number of rows; a shorter block is filled up with rows of zeros: nothing changes.

    Args:
        kernel: Kernel that runs a stage.
        rows: Number of rows of a block.
    """

    def __init__(self, kernel: StageKernel, rows: int) -> None:
        self._kernel = kernel
        self._rows = rows
        self._runs: dict[tuple[ir.Op, ...], _CompiledStage] = {}

    def run(
        self,
        stage: EmulatorStage,
        inputs: Sequence[torch.Tensor],
        weights: Sequence[Weights],
        rows: RowIds,
        into: Sequence[torch.Tensor] | None = None,
    ) -> list[torch.Tensor]:
        """Run a stage on at most ``rows`` rows; see ``StageKernel.run``."""
        if not any(isinstance(op, ir.Linear) for op in stage.ops):
            return self._kernel.run(stage, inputs, weights, rows, into)
        count = len(inputs[0]) if inputs else len(rows.ids)
        if into is not None and count == self._rows:
            self._of(stage)(inputs, weights, rows, into)
            return list(into)
        own = rows.block(0, count)  # behind a pool there are more of them, and nobody asks
        ids, positions, types = (self._filled(x) for x in (own.ids, own.positions, own.types))
        about = RowIds(ids=ids, positions=positions, types=types)
        made = self._of(stage)([self._filled(x) for x in inputs], weights, about, None)
        return kept_in([value[:count] for value in made or ()], into)

    def _of(self, stage: EmulatorStage) -> _CompiledStage:
        if stage.ops not in self._runs:
            self._runs[stage.ops] = torch.compile(_own(self._kernel, stage), dynamic=False)
        return self._runs[stage.ops]

    def _filled(self, x: torch.Tensor) -> torch.Tensor:
        missing = self._rows - len(x)
        return torch.cat((x, x.new_zeros(missing, *x.shape[1:]))) if missing else x


def _own(kernel: StageKernel, stage: EmulatorStage) -> _CompiledStage:
    """Return a function of a stage with a code object of its own, as torch.compile counts recompilations by these."""

    def run(
        inputs: Sequence[torch.Tensor], weights: Sequence[Weights], rows: RowIds, into: Sequence[torch.Tensor] | None
    ) -> list[torch.Tensor] | None:
        made = kernel.run(stage, inputs, weights, rows, into)
        return made if into is None else None  # a graph that returns what it was given would copy it

    own: _CompiledStage = types.FunctionType(run.__code__.replace(), globals(), "run", None, run.__closure__)
    return own


def check(program: ir.Program) -> None:
    """Raise if a program goes beyond what the contract allows.

    Raises:
        ArtifactError: Names the operator, the size and the bound.
    """
    if program.max_tokens > contract.MAX_WIDTH:
        raise ArtifactError(
            f"max_tokens={program.max_tokens}: the integer contract allows {contract.MAX_WIDTH} tokens a sequence"
        )
    for i, op in enumerate(program.ops):
        for value, bound, what in _sizes(op):
            if value > bound:
                raise ArtifactError(
                    f"operator {i} ({type(op).__name__.lower()}) has {value} {what}, the integer contract allows "
                    f"{bound}: use the torch device"
                )


def _sizes(op: ir.Op) -> Iterator[tuple[int, int, str]]:
    match op:
        case ir.Norm():
            yield op.x.width, contract.MAX_WIDTH, "columns"
        case ir.Linear() | ir.Score():
            yield op.x.width, contract.MAX_INNER, "inputs"
        case ir.LogProb():
            yield op.x.width, contract.MAX_INNER, "inputs"
            yield op.vocabulary, contract.MAX_VOCABULARY, "tokens"
        case ir.Attention():
            yield op.q.width // op.heads, contract.EXACT_F32_INNER, "columns a head"


BLOCK_ROWS = 256
"""Rows at a time: 256 x 3072 binary32 are 3 MB, about what a core's share of the caches holds."""
COMPILED_BLOCK_ROWS = 512
"""Compiled stages pass over a block less often, and each call of one costs more."""
LOGITS = 2**22
"""Logits at a time in the log-probability head: 16 MB."""


class Engine:
    """Runs one artifact. Not thread-safe.

    Args:
        artifact: Compiled model of precision ``w8a8``.
        product: Exact product of 8-bit integers; None: the fastest that is exact here.
        compiled: True: stages go through ``torch.compile`` (a C++ compiler, half a minute once); the bits are the same.
            Not with one scale a batch, whose stages run over the whole batch.
        block_rows: Number of rows at a time; None: what was fastest on two cores.

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
        two = any(digits(op) == 2 for op in program.ops if isinstance(op, ir.Linear | ir.LogProb))
        if two and program.activations != "token":
            raise ArtifactError("one scale a tensor goes with activations of 8 bits only: compile the model again")
        self.program = program
        self._whole = program.activations == "tensor"
        self._block_rows = block_rows or (COMPILED_BLOCK_ROWS if compiled else BLOCK_ROWS)
        self._parts = cut(program)
        self._widths = widths(program)
        self._ends = None if self._whole else PoolingStart.of(self._parts)
        self._weights = _by_stem(artifact)
        with torch.device("cpu"):  # whatever the caller's default device is
            self._kernel = StageKernel(
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
        self._run_stage = self._kernel.run
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
        rows = RowIds(ids=_long(packed.ids), positions=_long(packed.positions), types=_long(packed.types))
        registers: dict[int, torch.Tensor] = {}
        last, ends = _last_reads(self._parts), self._ends
        found: torch.Tensor | None = None
        for i, part in enumerate(self._parts):
            match part:
                case ir.Attention() if ends is not None and i == ends.attention:
                    registers[part.out] = self._attention_of(part, registers, packed, ends.how)
                case ir.Attention():
                    registers[part.out] = self._attention(part, registers, packed)
                case ir.Pool() if ends is not None:
                    registers[part.out] = _columns(registers, part.x)
                case ir.Pool():
                    registers[part.out] = pool(_columns(registers, part.x), part.how, packed)
                case ir.LogProb():
                    found = self._logprobs(part, registers, packed)
                case EmulatorStage():
                    registers.update(self._stage(part, registers, rows))
            for register in last[i]:
                registers.pop(register, None)
            if ends is not None and i == ends.attention:
                for register in registers.keys() - {self._parts[i].out}:  # type: ignore[union-attr]
                    registers[register] = pool(registers[register], ends.how, packed)
        if found is None:
            found = registers[max(registers)]
        run_s = time.perf_counter() - begun_s
        return Result.of(found.numpy(), packed.targets, labels=self.program.labels, rows=packed.rows, run_s=run_s)

    def _stage(self, stage: EmulatorStage, registers: dict[int, torch.Tensor], rows: RowIds) -> dict[int, torch.Tensor]:
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

    def _attention(self, op: ir.Attention, registers: dict[int, torch.Tensor], packed: Packed) -> torch.Tensor:
        rows = len(registers[op.q.register])
        out = torch.empty(rows, self._widths[op.out], dtype=torch.float32)
        table = self._attention_table
        shared = {segment.parent for segment in packed.segments}
        prompts: dict[int, tuple[QuantisedHeads, QuantisedHeads]] = {}
        for number, segment in enumerate(packed.segments):
            own = slice(segment.start, segment.start + segment.rows)
            query, keys, values = _heads(op, registers, own)
            if number in shared:
                prompts[number] = (keys, values)
            if segment.parent >= 0:
                before = prompts[segment.parent]
                keys, values = before[0].then(keys), before[1].then(values)
            seen = Visible(causal=op.causal, window=op.window)
            attend(query, keys, values, out[own], scale=op.scale, seen=seen, cap=op.softcap, table=table)
        return out

    def _attention_of(
        self, op: ir.Attention, registers: dict[int, torch.Tensor], packed: Packed, how: str
    ) -> torch.Tensor:
        """Attend from one row of each sequence only."""
        out = torch.empty(len(packed.sequences), self._widths[op.out], dtype=torch.float32)
        times = op.heads // op.kv_heads
        for i, end in enumerate(packed.sequences):
            row, spans = pooled_row(packed, end, how), packed.spans(end)
            query = QuantisedHeads.of(_columns(registers, op.q)[row : row + 1], op.heads)
            near = slice(0, op.window or None) if how == "first" else slice(-op.window, None)
            seen = [torch.cat([_columns(registers, x)[s : s + n] for s, n in spans])[near] for x in (op.k, op.v)]
            keys, values = (QuantisedHeads.of(x, op.kv_heads).repeated(times) for x in seen)
            row_out, table = out[i : i + 1], self._attention_table
            attend(query, keys, values, row_out, scale=op.scale, seen=Visible(), cap=op.softcap, table=table)
        return out

    def _logprobs(self, op: ir.LogProb, registers: dict[int, torch.Tensor], packed: Packed) -> torch.Tensor:
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
        read = set(part.inputs) if isinstance(part, EmulatorStage) else {c.register for c in read_by(part)}
        frees.append(sorted(read - seen))
        seen |= read
    return frees[::-1]


def _heads(
    op: ir.Attention, registers: dict[int, torch.Tensor], own: slice
) -> tuple[QuantisedHeads, QuantisedHeads, QuantisedHeads]:
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
        whole = ir.Columns(register=q.register, start=q.start, width=q.width + k.width + v.width)
        found = QuantisedHeads.of(_columns(registers, whole)[own], op.heads + 2 * op.kv_heads)
        keys, values = (found.some(op.heads + i * op.kv_heads, op.kv_heads) for i in (0, 1))
        return found.some(0, op.heads), keys.repeated(times), values.repeated(times)
    keys, values = (QuantisedHeads.of(_columns(registers, x)[own], op.kv_heads).repeated(times) for x in (k, v))
    return QuantisedHeads.of(_columns(registers, q)[own], op.heads), keys, values


def _columns(registers: dict[int, torch.Tensor], where: ir.Columns) -> torch.Tensor:
    return registers[where.register][:, where.start : where.start + where.width]


def _long(ids: Any) -> torch.Tensor:
    return torch.from_numpy(ids).to(torch.int64)
