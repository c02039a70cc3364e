"""A program in floating point: what its operators mean before the integer contract rounds.

It runs every precision (integer weights are written back first), sequence by sequence and without buckets: what the
torch device computes is held against it. Not exact: sums of floats depend on their order.
"""

import time
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch.nn import functional

from greentrain.fpga_backend.artifact import weight_of
from greentrain.fpga_backend.batch import Batch, Packed, Result, pack
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
    read_by,
)

_CHUNK = 2**24
"""Logits at a time in the log-probability head: 64 MB."""


class FloatEngine:
    """Runs one program in floating point.

    Args:
        program: Program to run.
        tensors: Tensors of the program, of any precision.
        device: Torch device to run it on.
        dtype: Type of weights and rows; norms and the softmax of log-probabilities are always binary32.
    """

    def __init__(
        self,
        program: Program,
        tensors: Mapping[str, torch.Tensor],
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.program = program
        self._device = torch.device(device)
        self._dtype = dtype
        self._tensors: dict[str, torch.Tensor] = {}
        for name, tensor in tensors.items():
            stem, _, suffix = name.rpartition(".")
            if suffix in ("w", "q"):
                self._tensors[f"{stem}.w"] = weight_of(tensors, stem).to(device=self._device, dtype=dtype)
            elif suffix != "s":
                self._tensors[name] = tensor.to(device=self._device, dtype=dtype if suffix == "b" else torch.float32)
        self._last = {c.register: i for i, op in enumerate(program.ops) for c in read_by(op)}

    @torch.inference_mode()
    def run(self, batch: Batch) -> Result:
        """Compute a batch.

        Raises:
            BatchError: It does not fit the program.
        """
        begun_s = time.perf_counter()
        packed = pack(batch, self.program)
        registers: dict[int, torch.Tensor] = {}
        made = torch.empty(0)
        for number, op in enumerate(self.program.ops):
            made = self._op(op, registers, packed)
            if not isinstance(op, LogProb):
                registers[op.out] = made
            for where in read_by(op):
                if self._last[where.register] == number:
                    registers.pop(where.register, None)
        found = made.to(device="cpu", dtype=torch.float32).numpy()
        run_s = time.perf_counter() - begun_s
        if self.program.labels:
            return Result(scores=found, run_s=run_s, rows=packed.rows)
        parts = np.split(found, np.cumsum(packed.targets)[:-1])
        return Result(logprobs=tuple(parts), run_s=run_s, rows=packed.rows)

    def _op(self, op: Op, registers: dict[int, torch.Tensor], packed: Packed) -> torch.Tensor:
        match op:
            case Embed():
                ids = {"token": packed.ids, "position": packed.positions, "type": packed.types}[op.index]
                return functional.embedding(self._index(ids) + op.offset, self._tensors[f"{op.weight}.w"])
            case Add():
                return _read(registers, op.x) + _read(registers, op.y)
            case Norm():
                x = _read(registers, op.x)
                return self._norm(op, x.reshape(len(x) * op.groups, -1)).reshape(x.shape)
            case Linear() | Score():
                return self._linear(op, _read(registers, op.x))
            case Gate():
                value = _GATES[op.table](_read(registers, op.x))
                return value if op.up is None else value * _read(registers, op.up)
            case Rotary():
                return self._rotary(op, _read(registers, op.x), packed)
            case Attention():
                return self._attention(op, registers, packed)
            case Pool():
                return self._pool(op, _read(registers, op.x), packed)
            case LogProb():
                return self._logprobs(op, _read(registers, op.x), packed)

    def _norm(self, op: Norm, x: torch.Tensor) -> torch.Tensor:
        gain, wide = self._tensors[f"{op.weight}.g"], x.to(torch.float32)
        shape = (op.x.width // op.groups,)
        if op.kind == "rms":
            y = functional.rms_norm(wide, shape, gain, op.eps)
            y = y + self._tensors[f"{op.weight}.b"].to(torch.float32) if op.bias else y
        else:
            bias = self._tensors[f"{op.weight}.b"].to(torch.float32) if op.bias else None
            y = functional.layer_norm(wide, shape, gain, bias, op.eps)
        return y.to(self._dtype)

    def _linear(self, op: Linear | Score | LogProb, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(
            x, self._tensors[f"{op.weight}.w"], self._tensors[f"{op.weight}.b"] if op.bias else None
        )

    def _rotary(self, op: Rotary, x: torch.Tensor, packed: Packed) -> torch.Tensor:
        positions = self._index(packed.positions)
        cos, sin = (self._tensors[f"{op.weight}.{part}"][positions][:, None].to(self._dtype) for part in ("cos", "sin"))
        low, high = x.reshape(len(x), op.heads, 2, -1).unbind(2)
        return torch.stack((low * cos - high * sin, high * cos + low * sin), dim=2).reshape(len(x), -1)

    def _attention(self, op: Attention, registers: dict[int, torch.Tensor], packed: Packed) -> torch.Tensor:
        q, k, v = (
            _read(registers, x).reshape(packed.rows, heads, -1).transpose(0, 1)
            for x, heads in ((op.q, op.heads), (op.k, op.kv_heads), (op.v, op.kv_heads))
        )
        out = torch.empty(q.shape[1], op.heads * v.shape[2], device=q.device, dtype=q.dtype)
        for number, segment in enumerate(packed.segments):
            spans = [slice(start, start + rows) for start, rows in packed.spans(number)]
            keys, values = (torch.cat([x[:, span] for span in spans], dim=1) for x in (k, v))
            own = spans[-1]
            mask = None
            if op.causal:
                mask = torch.ones(segment.rows, keys.shape[1], dtype=torch.bool, device=q.device)
                mask = mask.tril_(keys.shape[1] - segment.rows)
            if op.window:
                place = torch.arange(keys.shape[1], device=q.device)
                near = (place[-segment.rows :, None] - place).abs() < op.window
                mask = near if mask is None else mask & near
            if op.softcap:
                k_, v_ = (x.repeat_interleave(op.heads // op.kv_heads, 0) for x in (keys, values))
                scores = op.softcap * torch.tanh(q[:, own] @ k_.mT * (op.scale / op.softcap))
                y = (scores if mask is None else scores.masked_fill(~mask, -torch.inf)).softmax(-1) @ v_
                out[own] = y.transpose(0, 1).flatten(1)
                continue
            y = functional.scaled_dot_product_attention(
                q[:, own][None],
                keys[None],
                values[None],
                attn_mask=mask,
                scale=op.scale,
                enable_gqa=op.heads != op.kv_heads,
            )
            out[own] = y[0].transpose(0, 1).flatten(1)
        return out

    def _pool(self, op: Pool, x: torch.Tensor, packed: Packed) -> torch.Tensor:
        pooled = []
        for sequence in packed.sequences:
            rows = torch.cat([x[start : start + rows] for start, rows in packed.spans(sequence)])
            pooled.append({"first": rows[0], "last": rows[-1]}[op.how] if op.how != "mean" else rows.mean(0))
        return torch.stack(pooled)

    def _logprobs(self, op: LogProb, x: torch.Tensor, packed: Packed) -> torch.Tensor:
        rows, wanted = self._index(packed.target_rows), self._index(packed.target_ids)
        found = torch.empty(len(rows), dtype=torch.float32, device=self._device)
        step = max(1, _CHUNK // op.vocabulary)
        for start in range(0, len(rows), step):
            piece = slice(start, start + step)
            logits = self._linear(op, x[rows[piece]]).to(torch.float32)
            found[piece] = -functional.cross_entropy(logits, wanted[piece], reduction="none")
        return found

    def _index(self, values: np.ndarray[tuple[int, ...], np.dtype[np.int32]]) -> torch.Tensor:
        return torch.from_numpy(values).to(device=self._device, dtype=torch.int64)


def run_float(program: Program, tensors: Mapping[str, torch.Tensor], batch: Batch) -> Result:
    """Compute a batch in binary32 on the CPU; see :class:`FloatEngine`."""
    return FloatEngine(program, tensors).run(batch)


_GATES: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "tanh": torch.tanh,
    "relu": functional.relu,
}


def _read(registers: Mapping[int, torch.Tensor], where: Columns) -> torch.Tensor:
    return registers[where.register][:, where.start : where.start + where.width]
