"""A program from a model's configuration (``config.json`` of Hugging Face), without its weights.

The operators are those that compiling such a model gives, so that an 8B model can be explored without being loaded.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

from greentrain.fpga_backend import program as ir
from greentrain.fpga_backend.errors import UnsupportedModelError
from greentrain.fpga_backend.program import width_of

Head = Literal["score", "logprob"]


def program_of(
    config: Mapping[str, Any],
    *,
    head: Head = "score",
    max_tokens: int | None = None,
) -> ir.Program:
    """Return the program of a model, in w8a8 and with one score where its head is one.

    Args:
        config: Keys of ``config.json``; ``model_type`` is bert, llama, qwen2 or gpt2.
        head: A score a sequence, or log-probabilities of its tokens.
        max_tokens: Longest sequence; the model's own limit if None.

    Raises:
        UnsupportedModelError: Another kind of model, a key that is missing, or a head that it has not.
    """
    kind = str(config.get("model_type"))
    if kind not in _KINDS:
        raise UnsupportedModelError(f"model_type is {kind!r}; known: {', '.join(_KINDS)}")
    build = _Builder(kind, config, head)
    _KINDS[kind](build)
    return ir.Program(
        ops=tuple(build.ops),
        vocabulary=build.number("vocab_size"),
        types=build.number("type_vocab_size") if kind == "bert" else 0,
        max_tokens=max_tokens or build.number("n_positions" if kind == "gpt2" else "max_position_embeddings"),
        hidden=build.hidden,
        layers=build.layers,
        causal=kind != "bert",
        precision="w8a8",
    )


class _Builder:
    """Operators so far."""

    def __init__(self, kind: str, config: Mapping[str, Any], head: Head) -> None:
        self.kind = kind
        self.config = config
        self.head = head
        self.ops: list[ir.Op] = []
        gpt2 = kind == "gpt2"
        self.hidden = self.number("n_embd" if gpt2 else "hidden_size")
        self.layers = self.number("n_layer" if gpt2 else "num_hidden_layers")
        self.heads = self.number("n_head" if gpt2 else "num_attention_heads")
        self.kv_heads = int(config.get("num_key_value_heads") or self.heads)
        self.head_width = int(config.get("head_dim") or self.hidden // self.heads)
        inner = config.get("n_inner") or 4 * self.hidden
        self.inner = int(inner) if gpt2 else self.number("intermediate_size")

    def number(self, key: str) -> int:
        """Return a key that must be there."""
        value = self.config.get(key)
        if not isinstance(value, int) or value < 1:
            raise UnsupportedModelError(f"config.json of a {self.kind} has {key}={value!r}; it is a positive integer")
        return value

    def embed(self, index: Literal["token", "position", "type"]) -> ir.Columns:
        """Look rows up."""
        return self._add(ir.Embed(out=self._next, weight=f"embed.{index}", index=index, width=self.hidden))

    def add(self, x: ir.Columns, y: ir.Columns) -> ir.Columns:
        """Add two."""
        return self._add(ir.Add(out=self._next, x=x, y=y))

    def norm(self, x: ir.Columns, kind: Literal["layer", "rms"]) -> ir.Columns:
        """Normalise rows."""
        bias = kind == "layer"
        return self._add(ir.Norm(out=self._next, x=x, weight=f"norm.{self._next}", kind=kind, eps=1e-5, bias=bias))

    def linear(self, x: ir.Columns, outputs: int, *, bias: bool) -> ir.Columns:
        """Multiply by a matrix."""
        return self._add(ir.Linear(out=self._next, x=x, weight=f"linear.{self._next}", outputs=outputs, bias=bias))

    def gate(self, x: ir.Columns, table: Any, up: ir.Columns | None = None) -> ir.Columns:
        """Activate."""
        return self._add(ir.Gate(out=self._next, x=x, table=table, up=up))

    def attend(self, x: ir.Columns, *, bias: bool, rotary: bool, causal: bool) -> ir.Columns:
        """Project to queries, keys and values in one product, and attend."""
        own, shared = self.heads * self.head_width, self.kv_heads * self.head_width
        all_ = self.linear(x, own + 2 * shared, bias=bias)
        q, k, v = (
            ir.Columns(register=all_.register, start=start, width=width)
            for start, width in ((0, own), (own, shared), (own + shared, shared))
        )
        if rotary:
            q, k = self._rotate(q, self.heads), self._rotate(k, self.kv_heads)
        heads, kv_heads, scale = self.heads, self.kv_heads, self.head_width**-0.5
        return self._add(
            ir.Attention(out=self._next, q=q, k=k, v=v, heads=heads, kv_heads=kv_heads, scale=scale, causal=causal)
        )

    def end(self, x: ir.Columns, how: Literal["first", "last"], *, pooler: bool = False) -> None:
        """Add the head."""
        if self.head == "logprob":
            if self.kind == "bert":
                raise UnsupportedModelError("a bert predicts no next token: its head is score")
            vocabulary = self.number("vocab_size")
            self.ops.append(ir.LogProb(x=x, weight="head", vocabulary=vocabulary, bias=False))
            return
        row = self._add(ir.Pool(out=self._next, x=x, how=how))
        if pooler:
            row = self.gate(self.linear(row, self.hidden, bias=True), "tanh")
        self._add(ir.Score(out=self._next, x=row, weight="head", labels=1, bias=pooler))

    def _rotate(self, x: ir.Columns, heads: int) -> ir.Columns:
        return self._add(ir.Rotary(out=self._next, x=x, weight="rotary", heads=heads))

    @property
    def _next(self) -> int:
        return len(self.ops)

    def _add(self, op: ir.RegisterOp) -> ir.Columns:
        self.ops.append(op)
        return ir.Columns(register=op.out, start=0, width=width_of(op))


def _bert(build: _Builder) -> None:
    x = build.add(build.embed("token"), build.embed("type"))
    x = build.norm(build.add(x, build.embed("position")), "layer")
    for _ in range(build.layers):
        mixed = build.linear(build.attend(x, bias=True, rotary=False, causal=False), build.hidden, bias=True)
        x = build.norm(build.add(mixed, x), "layer")
        wide = build.gate(build.linear(x, build.inner, bias=True), "gelu")
        x = build.norm(build.add(build.linear(wide, build.hidden, bias=True), x), "layer")
    build.end(x, "first", pooler=True)


def _gpt2(build: _Builder) -> None:
    x = build.add(build.embed("token"), build.embed("position"))
    for _ in range(build.layers):
        seen = build.attend(build.norm(x, "layer"), bias=True, rotary=False, causal=True)
        x = build.add(x, build.linear(seen, build.hidden, bias=True))
        wide = build.gate(build.linear(build.norm(x, "layer"), build.inner, bias=True), "gelu_tanh")
        x = build.add(x, build.linear(wide, build.hidden, bias=True))
    build.end(build.norm(x, "layer"), "last")


def _llama(build: _Builder) -> None:
    x = build.embed("token")
    biased = build.kind == "qwen2"
    for _ in range(build.layers):
        seen = build.attend(build.norm(x, "rms"), bias=biased, rotary=True, causal=True)
        x = build.add(x, build.linear(seen, build.hidden, bias=False))
        both = build.linear(build.norm(x, "rms"), 2 * build.inner, bias=False)
        gate, up = (ir.Columns(register=both.register, start=at, width=build.inner) for at in (0, build.inner))
        x = build.add(x, build.linear(build.gate(gate, "silu", up), build.hidden, bias=False))
    build.end(build.norm(x, "rms"), "last")


_KINDS: Mapping[str, Callable[[_Builder], None]] = {"bert": _bert, "llama": _llama, "qwen2": _llama, "gpt2": _gpt2}
