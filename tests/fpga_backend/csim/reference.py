"""CONTRACT.md read once more, a sequence at a time and as plainly as it can be said, in binary32 scalars and ints.

Nothing here is packed, padded or fused, and nothing is taken from the emulator or the kernels.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from greentrain.fpga_backend import tables
from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.batch import Batch
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
    Program,
    Rotary,
    Score,
)

F = np.float32
Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Array = npt.NDArray[Any]
FLOOR = F(2.0**-40)
LOG2E = 1.4426950408889634
LN2 = 0.6931471805599453


def f32(n: int) -> np.float32:
    """The binary32 nearest to an integer below 2^53."""
    assert abs(n) < 2**53
    return F(float(n))


def rne(x: np.float32) -> int:
    return round(float(x))  # Python rounds ties to even


def quantise(x: Floats, q: int) -> tuple[list[int], np.float32]:
    a = max([abs(v) for v in x], default=F(0))
    a = max(F(a), FLOOR)
    factor = F(q) / a
    return [rne(F(v * factor)) for v in x], a * F(1 / q)


def norm(x: Floats, g: Floats, b: Floats | None, eps: float, *, layer: bool) -> Floats:
    n, e = quantise(x, 2**19 - 1)
    w = len(x)
    m = (2 * sum(n) + w) // (2 * w) if layer else 0
    c = [v - m for v in n]
    v = f32(sum(value * value for value in c)) / f32(w)
    r = F(1) / np.sqrt(F(v + F(F(eps) / F(e * e))))
    y = [F(F(f32(c[j]) * r) * g[j]) for j in range(w)]
    return np.array(y if b is None else [F(y[j] + b[j]) for j in range(w)], dtype=F)


def split(n: int) -> tuple[int, int]:
    """High and low digit of an activation of 16 bits."""
    high = (n + 127) // 255
    return high, n - 255 * high


def product(x: Floats, weights: Array, scales: Floats, bias: Floats | None, q: int) -> Floats:
    n, s = quantise(x, q)
    high, low = zip(*map(split, n), strict=True)
    rows = {1: n} if q != 32512 else {255: high, 1: low}
    assert q == 32767 or max(abs(digit) for row in rows.values() for digit in row) <= 127
    y = []
    for j, scale in enumerate(scales):
        row_j = weights[j].astype(np.int64)
        acc = sum(place * int((np.array(row, dtype=np.int64) * row_j).sum()) for place, row in rows.items())
        value = F(F(f32(acc) * s) * scale)
        y.append(value if bias is None else F(value + bias[j]))
    return np.array(y, dtype=F)


def gate(x: Floats, kind: str, table: Array, up: Floats | None) -> Floats:
    y = []
    for j, v in enumerate(x):
        if kind == "relu":
            value = v if v > 0 else F(0)
        else:
            i = min(max(rne(F(v * F(256))), -4096), 4095) + 4096
            share = F(f32(int(table[i])) * F(2.0**-15))
            value = share if kind == "tanh" else F(v * share)
        y.append(value if up is None else F(value * up[j]))
    return np.array(y, dtype=F)


def rotary(x: Floats, cos: Floats, sin: Floats, heads: int) -> Floats:
    y = x.copy()
    h = len(x) // heads // 2
    for head in range(heads):
        for j in range(h):
            low, high = head * 2 * h + j, head * 2 * h + j + h
            y[low] = F(x[low] * cos[j]) - F(x[high] * sin[j])
            y[high] = F(x[high] * cos[j]) + F(x[low] * sin[j])
    return y


def softly_capped(x: np.float32, cap: float) -> np.float32:
    c = F(cap * LOG2E * 256)
    z = min(max(F(x / c), F(-4)), F(4))
    s = F(z * z)
    over = F(F(F(F(s + F(105)) * s) + F(945)) * z)
    under = F(F(F(F(s * F(15)) + F(420)) * s) + F(945))
    return F(min(max(F(over / under), F(-1)), F(1)) * c)


def attention(q: Floats, keys: Floats, values: Floats, scale: float, cap: float = 0.0) -> Floats:
    """One head of one query: q [width], keys [n, width], values [n, value width]."""
    n, qs = quantise(q, 127)
    c = F(scale * LOG2E * 256)
    t, vq, vs = [], [], []
    for key, value in zip(keys, values, strict=True):
        k, ks = quantise(key, 127)
        acc = sum(a * b for a, b in zip(n, k, strict=True))
        x = F(F(f32(acc) * F(qs * c)) * ks)
        t.append(rne(softly_capped(x, cap) if cap else x))
        whole, step = quantise(value, 127)
        vq.append(whole)
        vs.append(step)
    top = f32_of(max(t))
    e = []
    for value in t:
        d = int(min(F(top - f32_of(value)), F(4096)))
        e.append(0 if d == 4096 else int(tables.exp2()[(d % 256) * 16]) >> (15 + d // 256))
    z = f32(sum(e))
    p, ps = quantise(np.array([F(f32(e[j]) * vs[j]) for j in range(len(e))], dtype=F), 127)
    last = F(ps / z)
    width = values.shape[1]
    return np.array([F(f32(sum(p[j] * vq[j][d] for j in range(len(p)))) * last) for d in range(width)], dtype=F)


def f32_of(whole: int) -> np.float32:
    """A binary32 that is an integer already, however large."""
    assert int(F(whole)) == whole
    return F(whole)


def pool(rows: Floats, how: str) -> Floats:
    if how != "mean":
        return np.asarray(rows[0 if how == "first" else -1])
    width = rows.shape[1]
    flat, _ = quantise(rows.reshape(-1), 2**19 - 1)
    a = max(F(np.abs(rows).max()), FLOOR)
    s = a * F(1 / (2**19 - 1))
    y = []
    for j in range(width):
        total = sum(flat[t * width + j] for t in range(len(rows)))
        y.append(F(F(f32(total) * s) / f32(len(rows))))
    return np.array(y, dtype=F)


def logprob(logits: Floats, target: int) -> np.float32:
    t = [rne(F(value * F(LOG2E * 4096))) for value in logits]
    top = f32_of(max(t))
    total = 0
    for value in t:
        d = int(min(F(top - f32_of(value)), F(122880)))
        total += 0 if d == 122880 else int(tables.exp2()[d % 4096]) >> (d // 4096)
    bit = total.bit_length() - 1
    j = (total >> (bit - 12)) & 4095
    base = (4096 + j) << (bit - 12)
    ln = float(bit - 30) * LN2 + float(tables.log()[j]) + float(total - base) / float(base)
    lse = float(top) * (LN2 / 4096) + ln
    return F(min(0.0, float(logits[target]) - lse))


def run(artifact: Artifact, batch: Batch) -> list[Floats]:
    """Scores [labels] or log-probabilities [targets] of each sequence by itself."""
    tensors = {name: tensor.numpy() for name, tensor in artifact.tensors.items()}
    found = []
    for i, ids in enumerate(batch.ids):
        types = np.zeros_like(ids) if batch.types is None else batch.types[i]
        prompt = 1 if batch.prompt_tokens is None else max(batch.prompt_tokens[i], 1)
        found.append(_sequence(artifact.program, tensors, ids, types, prompt))
    return found


def _sequence(program: Program, held: dict[str, Array], ids: Array, types: Array, prompt: int) -> Floats:
    registers: dict[int, Floats] = {}
    n = len(ids)

    def rows(columns: Columns) -> Floats:
        return registers[columns.register][:, columns.start : columns.start + columns.width]

    def each(made: Sequence[Floats]) -> Floats:
        return np.stack(made)

    for op in program.ops:
        match op:
            case Embed():
                index = {"token": ids, "position": np.arange(n), "type": types}[op.index] + op.offset
                q, s = held[f"{op.weight}.q"], held[f"{op.weight}.s"]
                registers[op.out] = each([np.array([f32(int(v)) * s[i] for v in q[i]], dtype=F) for i in index])
            case Add():
                registers[op.out] = rows(op.x) + rows(op.y)
            case Norm():
                g, b = held[f"{op.weight}.g"], held[f"{op.weight}.b"] if op.bias else None
                parts = rows(op.x).reshape(-1, len(g))
                normed = each([norm(x, g, b, op.eps, layer=op.kind == "layer") for x in parts])
                registers[op.out] = normed.reshape(-1, len(g) * op.groups)
            case Linear() | Score():
                b = held[f"{op.weight}.b"] if op.bias else None
                q, s = held[f"{op.weight}.q"], held[f"{op.weight}.s"]
                bound = 32767 if isinstance(op, Score) else {8: 127, 16: 32512}[op.activation_bits]
                registers[op.out] = each([product(x, q, s, b, bound) for x in rows(op.x)])
            case Gate():
                ups = [None] * len(rows(op.x)) if op.up is None else list(rows(op.up))
                table = tables.gate("gelu" if op.table == "relu" else op.table)
                registers[op.out] = each([gate(x, op.table, table, up) for x, up in zip(rows(op.x), ups, strict=True)])
            case Rotary():
                cos, sin = held[f"{op.weight}.cos"], held[f"{op.weight}.sin"]
                registers[op.out] = each([rotary(x, cos[i], sin[i], op.heads) for i, x in enumerate(rows(op.x))])
            case Attention():
                registers[op.out] = _heads(op, rows(op.q), rows(op.k), rows(op.v))
            case Pool():
                registers[op.out] = pool(rows(op.x), op.how)[None]
            case LogProb():
                q, s = held[f"{op.weight}.q"], held[f"{op.weight}.s"]
                b = held[f"{op.weight}.b"] if op.bias else None
                x, bound = rows(op.x), {8: 127, 16: 32512}[op.activation_bits]
                made = [logprob(product(x[i - 1], q, s, b, bound), int(ids[i])) for i in range(prompt, n)]
                return np.array(made, dtype=F)
    last = program.ops[-1]
    assert isinstance(last, Score)
    scores: Floats = registers[last.out][0]
    return scores


def _heads(op: Attention, q: Floats, k: Floats, v: Floats) -> Floats:
    width, value_width = q.shape[1] // op.heads, v.shape[1] // op.kv_heads
    out = np.empty((len(q), value_width * op.heads), dtype=F)
    for i in range(len(q)):
        end = i + 1 if op.causal else i + op.window if op.window else len(q)
        seen = slice(max(0, i + 1 - op.window) if op.window else 0, end)
        for head in range(op.heads):
            kv = head // (op.heads // op.kv_heads)
            out[i, head * value_width : (head + 1) * value_width] = attention(
                q[i, head * width : (head + 1) * width],
                k[seen, kv * width : (kv + 1) * width],
                v[seen, kv * value_width : (kv + 1) * value_width],
                op.scale,
                op.softcap,
            )
    return out


assert math.log2(math.e) == LOG2E and math.log(2) == LN2
