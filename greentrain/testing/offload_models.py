"""Small random compiled models, made without a framework: an encoder as BERT is built, a decoder as Llama is.

They have every operator between them and run on each exact device in milliseconds::

    device.load(encoder(seed=1, hidden=24, head="first"))
"""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from greentrain.fpga_backend import contract
from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.batch import Batch
from greentrain.fpga_backend.program import (
    ActivationBits,
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
    with_activation_bits,
)

Floats = npt.NDArray[np.float32]
ROTARY_BASE = 10000.0
"""Base of the rotary angles: arXiv 2104.09864, section 3.2.2."""


def encoder(
    *,
    seed: int = 0,
    layers: int = 2,
    hidden: int = 32,
    heads: int = 4,
    inner: int = 64,
    vocabulary: int = 101,
    max_tokens: int = 64,
    types: int = 2,
    head: Literal["mean", "first", "last"] = "mean",
    labels: int = 1,
    gate: Literal["gelu", "gelu_tanh"] = "gelu",
    pooler: bool = False,
    bias: bool = True,
    activation_bits: ActivationBits = 8,
) -> Artifact:
    """Return a random encoder with a score head: post layer norm, both directions, learnt positions.

    Args:
        seed: Seed of the weights.
        layers: Blocks.
        hidden: Width, a multiple of ``heads``.
        heads: Attention heads.
        inner: Width between the two layers of a block's perceptron.
        vocabulary: Token ids.
        max_tokens: Longest sequence.
        types: Token types; 0: none.
        head: Pooling of a sequence's rows: their mean, the first or the last.
        labels: Scores a sequence.
        gate: Activation of the perceptron.
        pooler: A layer with tanh between pooling and score, as BERT has.
        bias: Whether layers have biases.
        activation_bits: Bits of the activations that linear layers multiply.
    """
    made = _ModelMaker(seed, activation_bits)
    tokens = made.embed("token", hidden, vocabulary)
    x = made.add(tokens, made.embed("position", hidden, max_tokens))
    if types:
        x = made.add(x, made.embed("type", hidden, types))
    x = made.norm(x, "layer", 1e-12)
    for _ in range(layers):
        qkv = made.linear(x, 3 * hidden, bias)
        q, k, v = (Columns(register=qkv.register, start=i * hidden, width=hidden) for i in range(3))
        mixed = made.attention(q, k, v, heads, heads, causal=False)
        x = made.norm(made.add(x, made.linear(mixed, hidden, bias)), "layer", 1e-12)
        wide = made.gate(made.linear(x, inner, bias), gate)
        x = made.norm(made.add(x, made.linear(wide, hidden, bias)), "layer", 1e-12)
    x = made.pool(x, head)
    if pooler:
        x = made.gate(made.linear(x, hidden, bias), "tanh")
    made.score(x, labels, bias)
    return made.artifact(vocabulary, types, max_tokens, hidden, layers, causal=False, source="random encoder")


def decoder(
    *,
    seed: int = 0,
    layers: int = 2,
    hidden: int = 32,
    heads: int = 4,
    kv_heads: int = 2,
    head_width: int | None = None,
    inner: int = 48,
    vocabulary: int = 101,
    max_tokens: int = 64,
    head: Literal["logprob", "score"] = "logprob",
    labels: int = 1,
    bias: bool = False,
    activation_bits: ActivationBits = 8,
) -> Artifact:
    """Return a random decoder: RMS norm before, rotary positions, grouped keys, gated perceptron, causal.

    Args:
        seed: Seed of the weights.
        layers: Blocks.
        hidden: Width.
        heads: Query heads, a multiple of ``kv_heads``.
        kv_heads: Key and value heads.
        head_width: Width of a head, even; by default ``hidden // heads``.
        inner: Width of the gated perceptron.
        vocabulary: Token ids.
        max_tokens: Longest sequence.
        head: Log-probabilities of the tokens, or a score of the last row.
        labels: Scores a sequence.
        bias: Whether the projections to queries, keys and values have biases, as in Qwen2.
        activation_bits: Bits of the activations that linear layers and the vocabulary head multiply.
    """
    made = _ModelMaker(seed, activation_bits)
    width = head_width or hidden // heads
    angles = made.rotary_tables(max_tokens, width // 2)
    x = made.embed("token", hidden, vocabulary)
    for _ in range(layers):
        qkv = made.linear(made.norm(x, "rms", 1e-6), (heads + 2 * kv_heads) * width, bias)
        q = Columns(register=qkv.register, start=0, width=heads * width)
        k = Columns(register=qkv.register, start=heads * width, width=kv_heads * width)
        v = Columns(register=qkv.register, start=(heads + kv_heads) * width, width=kv_heads * width)
        mixed = made.attention(
            made.rotary(q, angles, heads), made.rotary(k, angles, kv_heads), v, heads, kv_heads, causal=True
        )
        x = made.add(x, made.linear(mixed, hidden, False))
        both = made.linear(made.norm(x, "rms", 1e-6), 2 * inner, False)
        gate, up = (Columns(register=both.register, start=i * inner, width=inner) for i in range(2))
        x = made.add(x, made.linear(made.gate(gate, "silu", up), hidden, False))
    x = made.norm(x, "rms", 1e-6)
    if head == "logprob":
        made.logprob(x, vocabulary)
    else:
        made.score(made.pool(x, "last"), labels, False)
    return made.artifact(vocabulary, 0, max_tokens, hidden, layers, causal=True, source="random decoder")


def sequences(artifact: Artifact, *, seed: int = 0, lengths: tuple[int, ...] = (5, 1, 17), prompt: int = 0) -> Batch:
    """Return a batch of random tokens that the artifact takes.

    Args:
        artifact: A compiled model.
        seed: Seed of the tokens.
        lengths: Tokens of each sequence.
        prompt: Tokens that all sequences of at least this length begin with.
    """
    rng = np.random.default_rng(seed)
    program = artifact.program
    ids = [rng.integers(0, program.vocabulary, n) for n in lengths]
    shared = rng.integers(0, program.vocabulary, prompt)
    for row in ids:
        if len(row) >= prompt:
            row[:prompt] = shared
    types = [rng.integers(0, program.types, n) for n in lengths] if program.types else None
    prompts = [prompt if len(row) >= prompt else 0 for row in ids] if prompt else None
    return Batch.of(ids, types=types, prompt_tokens=prompts)


def quantised(weights: Floats, largest: int) -> tuple[npt.NDArray[np.int32], Floats]:
    """Return rows as integers and their scales, as the contract quantises.

    Args:
        weights: Rows [n, k].
        largest: Magnitude of the largest integer.
    """
    most = np.maximum(np.abs(weights).max(axis=1), np.float32(contract.ROW_FLOOR)).astype(np.float32)
    factor = (np.float32(largest) / most).astype(np.float32)
    integers = np.rint(weights * factor[:, None]).astype(np.int32)
    return integers, most * np.float32(1 / largest)


class _ModelMaker:
    """Writes operators and their random tensors one after the other."""

    def __init__(self, seed: int, activation_bits: ActivationBits) -> None:
        self.rng = np.random.default_rng(seed)
        self.bits = activation_bits
        self.ops: list[Op] = []
        self.tensors: dict[str, torch.Tensor] = {}
        self.registers = 0

    def artifact(
        self, vocabulary: int, types: int, max_tokens: int, hidden: int, layers: int, *, causal: bool, source: str
    ) -> Artifact:
        program = Program(
            ops=tuple(self.ops),
            vocabulary=vocabulary,
            types=types,
            max_tokens=max_tokens,
            hidden=hidden,
            layers=layers,
            causal=causal,
        )
        return Artifact.of(with_activation_bits(program, self.bits), self.tensors, source=source)

    def embed(self, index: Literal["token", "position", "type"], width: int, entries: int) -> Columns:
        stem = self._stem("embed")
        self._rows(stem, entries, width, contract.Q16, torch.int16)
        return self._op(Embed, width, weight=stem, index=index, width=width)

    def add(self, x: Columns, y: Columns) -> Columns:
        return self._op(Add, x.width, x=x, y=y)

    def norm(self, x: Columns, kind: Literal["layer", "rms"], eps: float) -> Columns:
        stem = self._stem("norm")
        self._vector(f"{stem}.g", x.width, around=1.0)
        if kind == "layer":
            self._vector(f"{stem}.b", x.width)
        return self._op(Norm, x.width, x=x, weight=stem, kind=kind, eps=eps, bias=kind == "layer")

    def linear(self, x: Columns, outputs: int, bias: bool) -> Columns:
        stem = self._stem("linear")
        self._rows(stem, outputs, x.width, contract.Q8, torch.int8)
        if bias:
            self._vector(f"{stem}.b", outputs)
        return self._op(Linear, outputs, x=x, weight=stem, outputs=outputs, bias=bias)

    def gate(
        self, x: Columns, table: Literal["gelu", "gelu_tanh", "silu", "tanh", "relu"], up: Columns | None = None
    ) -> Columns:
        return self._op(Gate, x.width, x=x, table=table, up=up)

    def rotary_tables(self, max_tokens: int, half: int) -> str:
        stem = self._stem("rotary")
        angles = np.arange(max_tokens)[:, None] * ROTARY_BASE ** (-np.arange(half) / half)[None, :]
        self.tensors[f"{stem}.cos"] = torch.from_numpy(np.cos(angles).astype(np.float32))
        self.tensors[f"{stem}.sin"] = torch.from_numpy(np.sin(angles).astype(np.float32))
        return stem

    def rotary(self, x: Columns, stem: str, heads: int) -> Columns:
        return self._op(Rotary, x.width, x=x, weight=stem, heads=heads)

    def attention(self, q: Columns, k: Columns, v: Columns, heads: int, kv_heads: int, *, causal: bool) -> Columns:
        width, scale = v.width // kv_heads * heads, (q.width // heads) ** -0.5
        return self._op(Attention, width, q=q, k=k, v=v, heads=heads, kv_heads=kv_heads, scale=scale, causal=causal)

    def pool(self, x: Columns, how: Literal["first", "last", "mean"]) -> Columns:
        return self._op(Pool, x.width, x=x, how=how)

    def score(self, x: Columns, labels: int, bias: bool) -> None:
        stem = self._stem("score")
        self._rows(stem, labels, x.width, contract.Q16, torch.int16)
        if bias:
            self._vector(f"{stem}.b", labels)
        self._op(Score, labels, x=x, weight=stem, labels=labels, bias=bias)

    def logprob(self, x: Columns, vocabulary: int) -> None:
        stem = self._stem("logprob")
        self._rows(stem, vocabulary, x.width, contract.Q8, torch.int8)
        self.ops.append(LogProb(x=x, weight=stem, vocabulary=vocabulary, bias=False))

    def _stem(self, kind: str) -> str:
        return f"{kind}{len(self.ops)}"

    def _op(self, make: Callable[..., Op], columns: int, /, **fields: Any) -> Columns:
        """Write an operator into a register of its own, and return that."""
        out = Columns(register=self.registers, start=0, width=columns)
        self.registers += 1
        self.ops.append(make(out=out.register, **fields))
        return out

    def _rows(self, stem: str, n: int, k: int, largest: int, dtype: torch.dtype) -> None:
        integers, scales = quantised((self.rng.standard_normal((n, k)) / np.sqrt(k)).astype(np.float32), largest)
        self.tensors[f"{stem}.q"] = torch.from_numpy(integers).to(dtype)
        self.tensors[f"{stem}.s"] = torch.from_numpy(scales)

    def _vector(self, name: str, width: int, around: float = 0.0) -> None:
        values = around + 0.1 * self.rng.standard_normal(width)
        self.tensors[name] = torch.from_numpy(values.astype(np.float32))
