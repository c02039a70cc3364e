"""A program in binary64, one sequence at a time, as plainly as it can be said."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.batch import Batch, Result
from greentrain.fpga_backend.program import (
    Add,
    Attention,
    Columns,
    Embed,
    Gate,
    Linear,
    LogProb,
    Norm,
    Pool,
    Rotary,
    Score,
)

Matrix = Any  # npt.NDArray[np.float64], which ufuncs give back as Any


def expected(artifact: Artifact, batch: Batch) -> Result:
    """Return what the artifact's weights give without any further rounding."""
    found = []
    for i, ids in enumerate(batch.ids):
        types = np.zeros_like(ids) if batch.types is None else batch.types[i]
        first = 1 if batch.prompt_tokens is None else max(batch.prompt_tokens[i], 1)
        value = _sequence(artifact, ids, types)
        found.append((value if artifact.program.labels else value[first - 1 :]).astype(np.float32))
    if artifact.program.labels:
        return Result(scores=np.stack(found), run_s=0.0, rows=batch.tokens)
    return Result(logprobs=tuple(found), run_s=0.0, rows=batch.tokens)


def _sequence(artifact: Artifact, ids: npt.NDArray[np.int32], types: npt.NDArray[np.int32]) -> Matrix:
    registers: dict[int, Matrix] = {}
    value: Matrix = np.zeros(0)

    def read(columns: Columns) -> Matrix:
        return registers[columns.register][:, columns.start : columns.start + columns.width]

    def tensor(name: str) -> Matrix:
        return artifact.tensors[name].double().numpy()

    def rows(stem: str) -> Matrix:
        if f"{stem}.w" in artifact.tensors:
            return tensor(f"{stem}.w")
        return tensor(f"{stem}.q") * tensor(f"{stem}.s")[:, None]

    for op in artifact.program.ops:
        match op:
            case Embed():
                tables: dict[str, Matrix] = {"token": ids, "position": np.arange(len(ids)), "type": types}
                index = tables[op.index]
                value = rows(op.weight)[index + op.offset]
            case Add():
                value = read(op.x) + read(op.y)
            case Norm():
                x = read(op.x)
                x = x - x.mean(1, keepdims=True) if op.kind == "layer" else x
                value = x / np.sqrt((x**2).mean(1, keepdims=True) + op.eps) * tensor(f"{op.weight}.g")
                value = value + (tensor(f"{op.weight}.b") if op.bias else 0.0)
            case Linear() | Score():
                value = read(op.x) @ rows(op.weight).T + (tensor(f"{op.weight}.b") if op.bias else 0.0)
            case Gate():
                value = _activated(read(op.x), op.table) * (1.0 if op.up is None else read(op.up))
            case Rotary():
                x = read(op.x).reshape(len(ids), op.heads, 2, -1)
                cos, sin = (tensor(f"{op.weight}.{half}")[: len(ids), None] for half in ("cos", "sin"))
                a, b = x[:, :, 0], x[:, :, 1]
                value = np.stack([a * cos - b * sin, b * cos + a * sin], axis=2).reshape(len(ids), -1)
            case Attention():
                value = _attended(op, read(op.q), read(op.k), read(op.v))
            case Pool():
                x = read(op.x)
                value = {"first": x[:1], "last": x[-1:], "mean": x.mean(0, keepdims=True)}[op.how]
            case LogProb():
                logits = read(op.x) @ rows(op.weight).T + (tensor(f"{op.weight}.b") if op.bias else 0.0)
                most = logits.max(1, keepdims=True)
                ln_p = logits - most - np.log(np.exp(logits - most).sum(1, keepdims=True))
                return ln_p[np.arange(len(ids) - 1), ids[1:]]
        registers[op.out] = value
    return value[0]


def _activated(x: Matrix, table: str) -> Matrix:
    match table:
        case "gelu":
            return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2
        case "gelu_tanh":
            return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
        case "silu":
            return x / (1 + np.exp(-x))
        case "tanh":
            return np.tanh(x)
    return np.maximum(x, 0.0)


def _attended(op: Attention, q: Matrix, k: Matrix, v: Matrix) -> Matrix:
    n = len(q)
    of_q = q.reshape(n, op.heads, -1)
    of_k, of_v = (np.repeat(x.reshape(n, op.kv_heads, -1), op.heads // op.kv_heads, axis=1) for x in (k, v))
    scores = np.einsum("ihd,jhd->hij", of_q, of_k) * op.scale
    if op.causal:
        scores = np.where(np.tri(n, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("hij,jhd->ihd", weights, of_v).reshape(n, -1)
