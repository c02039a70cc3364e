"""A torch device as an offload device: the CPU, or a CUDA GPU beside the training on a stream of its own.

It runs a program in floating point, and is the baseline that an accelerator has to beat. Rows stay packed, so linear
layers, norms and gates compute no padding; only attention pads, in buckets of sequences of like lengths. Weights are
the artifact's, so a ``w8a8`` artifact runs with its rounded weights and unrounded activations. The score head and
log-softmax are binary32 whatever the rest is.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch.nn import functional

from greentrain.fpga_backend import program as ir
from greentrain.fpga_backend.artifact import Artifact, floats
from greentrain.fpga_backend.batch import Batch, Bucket, Packed, Result, buckets, by_length, pack
from greentrain.fpga_backend.device import DeviceInfo
from greentrain.fpga_backend.devices.base import InProcess
from greentrain.fpga_backend.errors import DeviceError
from greentrain.fpga_backend.program import read_by
from greentrain.utils.never_raise import warn_experimental

Dtype = Literal["fp32", "bf16", "fp16"]
DTYPES: Mapping[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
LOGITS = 2**25
"""Logits at a time in the log-probability head: 128 MB of binary32."""

Registers = dict[int, torch.Tensor]


@dataclass(frozen=True, slots=True)
class _FloatHeads:
    """A bucket on the device."""

    queries: torch.Tensor
    keys: torch.Tensor
    masks: Mapping[tuple[bool, int], torch.Tensor | None]
    """By whether an attention is causal, and its window."""
    run: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class _BatchPlan:
    """A packed batch on the device."""

    index: Mapping[str, torch.Tensor]
    """By table of an Embed, the entry of each row."""
    heads: tuple[_FloatHeads, ...]
    order: torch.Tensor | None
    """Where each row is among the buckets' queries, or None: in this order."""
    pool_rows: torch.Tensor | None
    """Rows of the sequences one after the other, or None: in this order."""
    firsts: torch.Tensor
    lasts: torch.Tensor
    lengths: torch.Tensor
    target_rows: torch.Tensor
    target_ids: torch.Tensor


class TorchEngine:
    """Runs one artifact on one torch device. Not thread-safe.

    Args:
        artifact: Compiled model of any precision.
        device: A torch device.
        dtype: Type of weights and registers.

    Raises:
        ArtifactError: The artifact's tensors do not fit its program.
        RuntimeError: No memory on the device.
    """

    def __init__(self, artifact: Artifact, device: torch.device, dtype: torch.dtype) -> None:
        self.program = artifact.program
        self._device = device
        self._dtype = dtype
        exact = {op.weight for op in artifact.program.ops if isinstance(op, ir.Score)}
        self._weights = {
            name: tensor.to(device=device, dtype=torch.float32 if name.rpartition(".")[0] in exact else dtype)
            for name, tensor in floats(artifact).items()
        }
        ops = artifact.program.ops
        last = {columns.register: i for i, op in enumerate(ops) for columns in read_by(op)}
        self._last = [[register for register, at in last.items() if at == i] for i in range(len(ops))]
        """For each operator, the registers that nothing reads after it."""
        self._kinds = {(op.causal, op.window) for op in artifact.program.ops if isinstance(op, ir.Attention)}
        self._pinned = device.type == "cuda"

    @torch.inference_mode()
    def run(self, packed: Packed, observe: Callable[[ir.Op, torch.Tensor], None] | None = None) -> torch.Tensor:
        """Return scores [sequences, labels] or log-probabilities [targets], binary32, on the device.

        Args:
            packed: Rows of a batch.
            observe: Called before every product of weights, with the rows that enter it.
        """
        plan = self._plan(packed)
        registers: Registers = {}
        rotations: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        for i, op in enumerate(self.program.ops):
            if observe is not None and isinstance(op, ir.Linear | ir.LogProb | ir.Score):
                observe(op, _read(registers, op.x))
            if isinstance(op, ir.LogProb):
                return self._logprobs(op, registers, plan)
            registers[op.out] = self._value(op, registers, plan, rotations)
            for register in self._last[i]:
                del registers[register]
        return registers[max(registers)]

    def _value(
        self, op: ir.Op, registers: Registers, plan: _BatchPlan, rotations: dict[str, tuple[torch.Tensor, torch.Tensor]]
    ) -> torch.Tensor:
        match op:
            case ir.Embed():
                index = plan.index[op.index]
                return functional.embedding(index + op.offset if op.offset else index, self._weights[f"{op.weight}.w"])
            case ir.Add():
                return _read(registers, op.x) + _read(registers, op.y)
            case ir.Norm():
                return self._norm(op, _read(registers, op.x))
            case ir.Linear() | ir.Score():
                x = _read(registers, op.x)
                return self._product(op, x.float() if isinstance(op, ir.Score) else x)
            case ir.Gate():
                return _gate(op, registers)
            case ir.Rotary():
                if op.weight not in rotations:
                    where = plan.index["position"]
                    cos, sin = (self._weights[f"{op.weight}.{half}"][where][:, None] for half in ("cos", "sin"))
                    rotations[op.weight] = (cos, sin)
                return _rotated(_read(registers, op.x), op.heads, *rotations[op.weight])
            case ir.Attention():
                return _attention(op, registers, plan)
            case ir.Pool():
                return _pool(op, _read(registers, op.x), plan)
        raise TypeError(f"{type(op).__name__} is no operator of a program")

    def _product(self, op: ir.Linear | ir.Score | ir.LogProb, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self._weights[f"{op.weight}.w"], self._weights.get(f"{op.weight}.b"))

    def _norm(self, op: ir.Norm, x: torch.Tensor) -> torch.Tensor:
        weight, bias = self._weights[f"{op.weight}.g"], self._weights.get(f"{op.weight}.b")
        x = _by_head(x, op.groups)
        if op.kind == "layer":
            return functional.layer_norm(x, (x.shape[-1],), weight, bias, op.eps).flatten(1)
        y = functional.rms_norm(x, (x.shape[-1],), weight, op.eps)
        return (y if bias is None else y + bias).flatten(1)

    def _logprobs(self, op: ir.LogProb, registers: Registers, plan: _BatchPlan) -> torch.Tensor:
        rows = _read(registers, op.x)[plan.target_rows]
        parts = []
        step = max(1, LOGITS // op.vocabulary)
        for start in range(0, max(len(rows), 1), step):
            logits = self._product(op, rows[start : start + step]).float()
            wanted = plan.target_ids[start : start + step, None]
            parts.append(logits.gather(1, wanted)[:, 0] - logits.logsumexp(1))
        return torch.cat(parts).clamp(max=0.0)

    def _plan(self, packed: Packed) -> _BatchPlan:
        parts = buckets(packed)
        queries = np.concatenate([bucket.queries.ravel() for bucket in parts])
        places = np.flatnonzero(np.concatenate([bucket.real.ravel() for bucket in parts]))
        order = np.empty(packed.rows, dtype=np.int64)
        order[queries[places]] = places
        padding = len(queries) - packed.rows
        by_sequence = [
            np.concatenate([np.arange(start, start + rows) for start, rows in packed.spans(segment)])
            for segment in packed.sequences
        ]
        every = np.concatenate(by_sequence)
        return _BatchPlan(
            index={
                "token": self._sent(packed.ids),
                "position": self._sent(packed.positions),
                "type": self._sent(packed.types),
            },
            heads=tuple(self._heads(bucket) for bucket in parts),
            order=None if not padding and _counts_up(order, packed.rows) else self._sent(order),
            pool_rows=None if _counts_up(every, packed.rows) else self._sent(every),
            firsts=self._sent(np.array([rows[0] for rows in by_sequence])),
            lasts=self._sent(np.array([rows[-1] for rows in by_sequence])),
            lengths=self._sent(np.array([len(rows) for rows in by_sequence])),
            target_rows=self._sent(packed.target_rows),
            target_ids=self._sent(packed.target_ids),
        )

    def _heads(self, bucket: Bucket) -> _FloatHeads:
        masks = {kind: bucket.mask(*kind) for kind in self._kinds}
        return _FloatHeads(
            queries=self._sent(bucket.queries),
            keys=self._sent(bucket.keys),
            masks={kind: None if mask is None else self._sent(mask) for kind, mask in masks.items()},
            run=bucket.run,
        )

    def _sent(self, array: np.ndarray[Any, Any]) -> torch.Tensor:
        whole = torch.from_numpy(array if array.dtype == np.bool_ else array.astype(np.int64))
        return whole.pin_memory().to(self._device, non_blocking=True) if self._pinned else whole


def in_floats(program: ir.Program, tensors: Mapping[str, torch.Tensor]) -> TorchEngine:
    """Return what runs a program on the CPU in binary32; its tensors are not kept, so they get no checksums."""
    return TorchEngine(Artifact(program=program, tensors=tensors, checksums={}), torch.device("cpu"), torch.float32)


def _read(registers: Registers, columns: ir.Columns) -> torch.Tensor:
    return registers[columns.register][:, columns.start : columns.start + columns.width]


_GATES: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
    "tanh": torch.tanh,
    "relu": torch.relu,
}


def _gate(op: ir.Gate, registers: Registers) -> torch.Tensor:
    y = _GATES[op.table](_read(registers, op.x))
    return y if op.up is None else y.mul_(_read(registers, op.up))


def _rotated(x: torch.Tensor, heads: int, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate x [rows, width] by cosines and sines [rows, 1, half a head]."""
    first, second = _by_head(x, heads).chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).flatten(1)


def _attention(op: ir.Attention, registers: Registers, plan: _BatchPlan) -> torch.Tensor:
    q = _by_head(_read(registers, op.q), op.heads)
    k = _by_head(_read(registers, op.k), op.kv_heads)
    v = _by_head(_read(registers, op.v), op.kv_heads)
    parts = []
    for heads in plan.heads:
        mask = heads.masks[op.causal, op.window]
        if heads.run is None:
            of_q, of_k, of_v = q[heads.queries], k[heads.keys], v[heads.keys]
        else:
            start, stop = heads.run
            shape = heads.queries.shape
            of_q, of_k, of_v = (x[start:stop].view(*shape, *x.shape[1:]) for x in (q, k, v))
        mix = partial(_softly_capped, op.softcap) if op.softcap else functional.scaled_dot_product_attention
        mixed = mix(
            of_q.transpose(1, 2),
            of_k.transpose(1, 2),
            of_v.transpose(1, 2),
            attn_mask=mask,
            is_causal=op.causal and mask is None,
            scale=op.scale,
            enable_gqa=op.heads != op.kv_heads,
        )
        parts.append(mixed.transpose(1, 2).flatten(2).flatten(0, 1))
    whole = parts[0] if len(parts) == 1 else torch.cat(parts)
    return whole if plan.order is None else whole[plan.order]


def _softly_capped(
    cap: float,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    attn_mask: torch.Tensor | None,
    is_causal: bool,
    scale: float,
    enable_gqa: bool,
) -> torch.Tensor:
    """Attend as scaled_dot_product_attention does, which knows no soft cap."""
    if enable_gqa:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = (q @ k.mT * (scale / cap)).tanh_().mul_(cap)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril_()
    return (scores if attn_mask is None else scores.masked_fill_(~attn_mask, -torch.inf)).softmax(-1) @ v


def _by_head(x: torch.Tensor, heads: int) -> torch.Tensor:
    """Return rows [rows, width] as [rows, heads, width of a head]."""
    return x.view(len(x), heads, x.shape[1] // heads)


def _pool(op: ir.Pool, x: torch.Tensor, plan: _BatchPlan) -> torch.Tensor:
    match op.how:
        case "first":
            return x[plan.firsts]
        case "last":
            return x[plan.lasts]
        case "mean":
            rows = (x if plan.pool_rows is None else x[plan.pool_rows]).float()
            return torch.segment_reduce(rows, "mean", lengths=plan.lengths, axis=0).to(x.dtype)


def _counts_up(rows: np.ndarray[Any, np.dtype[np.int64]], count: int) -> bool:
    return len(rows) == count and bool((rows == np.arange(count)).all())


class TorchDevice(InProcess):
    """Runs artifacts of any precision in floating point.

    Experimental: on CUDA, where it never ran; on CPUs it is tested (docs/status.md).

    Its joules are those of hardware that the ledger has already, the GPU's or the CPU's: the device knows no share of
    them and its meter has no sensors, so that nothing is booked twice.

    Replaced weights leave the memory when the last batch that uses them has run.

    Args:
        device: ``cpu``, ``cuda`` or ``cuda:1``.
        dtype: Type of weights and activations.
        depth: Number of batches that may wait.

    Raises:
        DeviceError: There is no such device.
        ValueError: Unknown ``dtype``, or ``depth`` below 1.
    """

    def __init__(self, device: str = "cpu", dtype: Dtype = "fp32", *, depth: int = 16) -> None:
        if dtype not in DTYPES:
            raise ValueError(f"dtype={dtype!r}: choose one of {', '.join(DTYPES)}")
        self._device = _opened(device)
        self._dtype = dtype
        cuda = self._device.type == "cuda"
        model = torch.cuda.get_device_name(self._device) if cuda else "the CPU"
        uid = f"torch:{_name(self._device)}:{dtype}"
        info = DeviceInfo(
            uid=uid,
            name=f"torch {torch.__version__} on {model}, {dtype}",
            available=True,
            exact=False,
            simulated=False,
            memory_bytes=torch.cuda.get_device_properties(self._device).total_memory if cuda else None,
            details={"device": str(self._device), "dtype": dtype},
        )
        where = "GPU" if cuda else "CPU"
        note = f"the {where}'s joules are in the ledger under the {where}; the share of this device is not known"
        self._stream = _stream(self._device) if cuda else None
        super().__init__(uid, depth, self._on_device, info=info, note=note)
        if cuda:
            warn_experimental("TorchDevice on CUDA", "it ran on CPUs, its tests on a GPU never did")

    def _on_device(self, artifact: Artifact) -> "_StreamedEngine":
        """Return a model whose weights have arrived: on a GPU they are copied on a stream that waits for no batch."""
        dtype = DTYPES[self._dtype]
        try:
            if self._stream is None:
                return _StreamedEngine(TorchEngine(artifact, self._device, dtype), None)
            with torch.cuda.device(self._device), torch.cuda.stream(_stream(self._device)):
                engine = TorchEngine(artifact, self._device, dtype)
                torch.cuda.current_stream().synchronize()
            return _StreamedEngine(engine, self._stream)
        except RuntimeError as error:  # torch's OutOfMemoryError is one
            raise DeviceError(f"{artifact.nbytes} bytes of weights do not go on {self._device}: {error}") from error


class _StreamedEngine:
    """An engine, and the stream on which it runs."""

    def __init__(self, engine: TorchEngine, stream: torch.cuda.Stream | None) -> None:
        self._engine = engine
        self._stream = stream

    @property
    def program(self) -> ir.Program:
        """Of the artifact."""
        return self._engine.program

    def run(self, batch: Batch) -> Result:
        """Compute a batch, in the lane's thread."""
        inner, order = (batch, None) if batch.prompt_tokens is not None else by_length(batch)
        packed = pack(inner, self.program)
        found, run_s = self._on_cpu(packed) if self._stream is None else self._on_gpu(packed, self._stream)
        labels = self.program.labels
        return Result.of(found.numpy(), packed.targets, labels=labels, rows=packed.rows, run_s=run_s, order=order)

    def _on_cpu(self, packed: Packed) -> tuple[torch.Tensor, float]:
        begun_s = time.perf_counter()
        found = self._engine.run(packed)
        return found, time.perf_counter() - begun_s

    def _on_gpu(self, packed: Packed, stream: torch.cuda.Stream) -> tuple[torch.Tensor, float]:
        """Run on the device's stream; the thread sleeps until the event, so that it costs the training no core."""
        with torch.cuda.device(stream.device), torch.cuda.stream(stream):
            begun, ended = _event(), _event()
            begun.record()
            found = self._engine.run(packed)
            held = torch.empty(found.shape, dtype=found.dtype, pin_memory=True)
            held.copy_(found, non_blocking=True)
            ended.record()
            ended.synchronize()
            return held.clone(), begun.elapsed_time(ended) / 1000.0  # pinned memory is scarce, results are kept


def _event() -> torch.cuda.Event:
    event: torch.cuda.Event = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
    return event


def _stream(device: torch.device) -> torch.cuda.Stream:
    stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return stream


def _opened(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise DeviceError(f"device={name!r} is no torch device ({error}): write cpu, cuda or cuda:1") from error
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        raise DeviceError(f"device={name!r}: the torch device knows cpu and cuda")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = device.index or 0
    if index >= count:
        raise DeviceError(f"device={name!r}: torch {torch.__version__} sees {count} CUDA devices here")
    return torch.device("cuda", index)


def _name(device: torch.device) -> str:
    """Return a name that every process on the node uses for the same hardware."""
    if device.type == "cpu":
        return "cpu"
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return f"GPU-{uuid}" if uuid else str(device)
