"""Operators of a program, made from values of the graph. Every function returns the operator's register."""

import math
from dataclasses import replace
from typing import Any, Literal, NoReturn

import torch

from greentrain.fpga_backend import contract
from greentrain.fpga_backend.compiler import values as masks
from greentrain.fpga_backend.compiler.draft import Draft
from greentrain.fpga_backend.compiler.recipe import Part
from greentrain.fpga_backend.compiler.values import (
    GraphNode,
    HeadsView,
    Ids,
    Repeated,
    RowsValue,
    Term,
    Weight,
    heads,
    matrix,
    scalar,
    shape_of,
)
from greentrain.fpga_backend.program import Add, Attention, Columns, Embed, Gate, Linear, Norm, Rotary, width_of

Table = Literal["gelu", "gelu_tanh", "silu", "tanh", "relu"]


def columns(draft: Draft, value: Any, place: GraphNode) -> tuple[Columns, bool]:
    """Return what an operator reads, and whether that is a row a sequence.

    Raises:
        UnsupportedModelError: It is no register, or not laid out in rows.
    """
    if isinstance(value, Term):
        refuse_term(value)
    if not isinstance(value, RowsValue):
        place.refuse("needs what the tokens became; here are parameters, constants or ids")
    found = matrix(value)
    if found is None:
        place.refuse(f"reads a view {list(value.shape)} that mixes tokens and features, or only some of the tokens")
    if found.row == "all":
        return found.columns, value.tokens == 1
    return draft.pool(found.columns, found.row), True


def refuse_term(term: Term) -> NoReturn:
    """Raise for arithmetic that no pattern fits."""
    term.place.lacks(f"this '{term.op}' is no part of an operator that is compiled: keep the model on the GPU")


def linear(draft: Draft, x: Any, weight: Any, bias: Any, shape: tuple[int, ...], place: GraphNode) -> RowsValue:
    """Return x times a parameter [outputs, inputs], plus a bias."""
    if not isinstance(weight, Weight) or not (bias is None or isinstance(bias, Weight)):
        place.refuse("a product with something else than a parameter")
    read, pooled = columns(draft, x, place)
    outputs, inputs = weight.shape
    if inputs != read.width:
        place.refuse(f"{inputs} inputs of {read.width} columns")
    if inputs > contract.MAX_INNER:
        place.refuse(f"{inputs} inputs, the integer contract allows {contract.MAX_INNER}")
    stem = draft.entry("linear", Part(weight=weight.source, bias=bias.source if bias is not None else None))
    op = Linear(out=draft.number(), x=read, weight=stem, outputs=outputs, bias=bias is not None)
    return draft.add(op, shape, per_sequence=pooled)


def norm(
    draft: Draft,
    x: Any,
    gain: Any,
    bias: Any,
    eps: float,
    kind: Literal["layer", "rms"],
    shape: tuple[int, ...],
    place: GraphNode,
) -> RowsValue:
    """Layer or RMS norm over the columns."""
    found = heads(x) if isinstance(x, RowsValue) and shape_of(gain) == x.shape[-1:] != (x.width,) else None
    read, pooled = columns(draft, x, place) if found is None else (found.columns, False)
    groups = 1 if found is None else found.heads
    if not isinstance(gain, Weight) or not (bias is None or isinstance(bias, Weight)):
        place.refuse("a norm without a weight: give it elementwise_affine=True")
    if gain.shape != (read.width // groups,):
        place.refuse(
            f"normalises over {list(gain.shape)} of {read.width} columns: compiled are whole rows, and heads "
            "[..., heads, tokens, width] or [..., tokens, heads, width] each by itself"
        )
    if read.width > contract.MAX_WIDTH:
        place.refuse(f"a norm over {read.width} columns, the integer contract allows {contract.MAX_WIDTH}")
    stem = draft.entry("norm", Part(weight=gain.source, bias=bias.source if bias is not None else None))
    made = Norm(out=draft.number(), x=read, weight=stem, kind=kind, eps=eps, bias=bias is not None)
    op = replace(made, groups=groups)
    return draft.add(op, shape, per_sequence=pooled) if found is None else _in_heads(draft, op, found, shape)


def _in_heads(draft: Draft, op: Norm | Rotary, found: HeadsView, shape: tuple[int, ...]) -> RowsValue:
    """Append an operator on heads; its register is seen in their order of dimensions."""
    rows = draft.add(op, (1, draft.tokens, found.columns.width))
    view = rows.view.view(draft.tokens, found.heads, -1)
    if 0 <= found.axis < found.token_axis:
        view = view.transpose(0, 1)
    return rows.seen_as(view.view(shape))


def embed(draft: Draft, weight: Any, index: Any, shape: tuple[int, ...], place: GraphNode) -> RowsValue:
    """Rows of a table by token, position or type."""
    if not isinstance(weight, Weight):
        place.refuse("looks up something else than a parameter")
    entries, width = weight.shape
    which: Literal["token", "position", "type"]
    offset = 0
    if isinstance(index, Ids):
        which = index.kind
    else:
        which, offset = _constant_index(index, draft, entries, place)
    stem = draft.entry("embed", Part(weight=weight.source))
    return draft.add(Embed(out=draft.number(), weight=stem, index=which, width=width, offset=offset), shape)


def _constant_index(
    index: Any, draft: Draft, entries: int, place: GraphNode
) -> tuple[Literal["position", "type"], int]:
    tokens = draft.tokens
    if not isinstance(index, torch.Tensor) or index.numel() != tokens:
        place.refuse("looks up neither tokens nor positions nor token types")
    flat = index.flatten()
    offset = int(flat[0])
    if bool((flat == offset).all()):
        if draft.types:
            place.refuse("looks up one row for all tokens, beside token types that are given")
        return "type", offset
    if not torch.equal(flat, torch.arange(tokens) + offset):
        place.refuse("looks up positions that do not count up by one")
    if offset + tokens > entries:
        place.refuse(
            f"max_tokens={tokens}, but the model has positions for {entries - offset}: take a smaller max_tokens"
        )
    return "position", offset


def scaled(draft: Draft, rows: RowsValue, factor: float) -> RowsValue | None:
    """A whole embedding or linear layer times a number; None where the register is neither."""
    op = draft.producer(rows.register)
    if not isinstance(op, Embed | Linear) or rows.view.numel() != rows.tokens * rows.width:
        return None
    entry = draft.entries[op.weight]
    stem = draft.entry(entry.kind, *(part.then("multiply", factor) for part in entry.parts))
    made = replace(op, out=draft.number(), weight=stem)
    return draft.add(made, rows.shape, per_sequence=draft.per_sequence(op.out))


def settled(draft: Draft, value: Any) -> Any:
    """Return a register that a number multiplies as one: whoever asks has no other use for the product."""
    if isinstance(value, Term) and value.op == "mul":
        for one, other in (value.args, value.args[::-1]):
            factor = scalar(other)
            if isinstance(one, RowsValue) and factor is not None and one.shape == value.shape:
                return scaled(draft, one, factor) or value
    return value


def add(draft: Draft, x: Any, y: Any, shape: tuple[int, ...], place: GraphNode) -> RowsValue:
    """Sum of two registers."""
    (a, pooled), (b, also) = columns(draft, x, place), columns(draft, y, place)
    if pooled != also or a.width != b.width:
        place.refuse("a sum of registers of different shapes")
    return draft.add(Add(out=draft.number(), x=a, y=b), shape, per_sequence=pooled)


def gate(draft: Draft, x: Any, table: Table, shape: tuple[int, ...], place: GraphNode) -> RowsValue:
    """An activation."""
    read, pooled = columns(draft, x, place)
    return draft.add(Gate(out=draft.number(), x=read, table=table), shape, per_sequence=pooled)


def gated(draft: Draft, x: RowsValue, y: RowsValue, shape: tuple[int, ...], place: GraphNode) -> RowsValue | None:
    """An activation times something; None where neither factor is a whole activation."""
    for one, other in ((x, y), (y, x)):
        op = draft.producer(one.register)
        if not isinstance(op, Gate) or op.up is not None:
            continue
        (whole, pooled), (up, also) = columns(draft, one, place), columns(draft, other, place)
        if whole.width == op.x.width == up.width and pooled == also == draft.per_sequence(one.register):
            return draft.add(replace(op, out=draft.number(), up=up), shape, per_sequence=pooled)
    return None


def rotary(draft: Draft, x: RowsValue, high: Any, low: Any, cos: Any, sin: Any, place: GraphNode) -> RowsValue | None:
    """Heads rotated by their position's angle; None where the terms are something else."""
    found = heads(x)
    width = x.shape[-1]
    half = width // 2
    if found is None or width % 2 or not all(isinstance(v, torch.Tensor) for v in (cos, sin)):
        return None
    if not (isinstance(high, RowsValue) and high.same(x.seen_as(x.view[..., half:]))):
        return None
    if not (isinstance(low, RowsValue) and low.same(x.seen_as(x.view[..., :half]))):
        return None
    tables = []
    for table in (cos, sin):
        if table.numel() != draft.tokens * width or table.shape[found.token_axis - len(x.shape)] != draft.tokens:
            place.refuse("rotary angles that differ between heads or sequences")
        flat = table.reshape(draft.tokens, width).to(torch.float32)
        if not torch.equal(flat[:, :half], flat[:, half:]):
            place.refuse("rotary angles whose halves differ: pairs must be j and j + half a head (Llama's layout)")
        tables.append(flat[:, :half])
    op = Rotary(out=draft.number(), x=found.columns, weight=draft.table(*tables), heads=found.heads)
    return _in_heads(draft, op, found, x.shape)


def attention(
    draft: Draft,
    q: Any,
    k: Any,
    v: Any,
    mask: Any,
    *,
    causal: bool,
    scale: float | None,
    shape: tuple[int, ...],
    place: GraphNode,
    softcap: float = 0.0,
) -> RowsValue:
    """Scaled dot-product attention of values [..., heads, tokens, head width]."""
    query = _heads(q, place, "query")
    keys, values = _shared(k), _shared(v)
    key, value = _heads(keys.rows, place, "key"), _heads(values.rows, place, "value")
    if key.heads != value.heads or keys.times != values.times:
        place.refuse(f"{key.heads} key heads and {value.heads} value heads")
    if query.heads % key.heads or keys.times not in (1, query.heads // key.heads):
        place.refuse(f"{query.heads} query heads over {key.heads} key heads")
    if draft.tokens > contract.MAX_WIDTH:
        place.refuse(f"max_tokens={draft.tokens}: attention over more than {contract.MAX_WIDTH} tokens")
    seen = masks.Seen(causal=causal)
    if mask is not None:
        if not isinstance(mask, torch.Tensor):
            place.refuse("an attention mask that depends on the tokens or on parameters")
        seen = masks.describe(mask, draft.tokens)
        if seen.wrong:
            place.lacks(f"the attention mask {seen.wrong}")
    width = query.columns.width // query.heads
    op = Attention(
        out=draft.number(),
        q=query.columns,
        k=key.columns,
        v=value.columns,
        heads=query.heads,
        kv_heads=key.heads,
        scale=1.0 / math.sqrt(width) if scale is None else scale,
        causal=seen.causal,
        window=seen.window,
        softcap=softcap,
    )
    rows = draft.add(op, (1, draft.tokens, width_of(op)))
    view = rows.view.view(draft.tokens, query.heads, -1).transpose(0, 1)
    return rows.seen_as(view[(None,) * (len(shape) - 3)])


def written_out(draft: Draft, weights: Any, v: Any, shape: tuple[int, ...], place: GraphNode) -> RowsValue | None:
    """Attention that a model writes out: softmax of scaled products, perhaps softly capped and masked, times values."""
    if not (isinstance(weights, Term) and weights.op == "softmax"):
        return None
    scores, mask, cap, scale = weights.args[0], None, 0.0, 1.0
    if isinstance(scores, Term) and scores.op == "add":
        scores, mask = scores.args if isinstance(scores.args[1], torch.Tensor) else scores.args[::-1]
    scores, factor = _times(scores)
    if isinstance(scores, Term) and scores.op == "tanh":
        cap = factor
        scores, factor = _times(scores.args[0])
        factor *= cap
    scale *= factor
    if not (isinstance(scores, Term) and scores.op == "matmul"):
        return None
    q, k = scores.args
    if isinstance(k, RowsValue):
        k = k.seen_as(k.view.transpose(-1, -2))
    elif isinstance(k, Term) and k.op == "transpose":
        k = k.args[0]
    bits: Any = {"causal": False, "scale": scale, "softcap": cap, "shape": shape, "place": place}
    return attention(draft, q, k, v, mask, **bits)


def _times(value: Any) -> tuple[Any, float]:
    """Return what numbers multiply, and their product."""
    factor = 1.0
    while isinstance(value, Term) and value.op == "mul":
        one, other = value.args if scalar(value.args[1]) is not None else value.args[::-1]
        if (number := scalar(other)) is None:
            break
        value, factor = one, factor * number
    return value, factor


def _heads(value: Any, place: GraphNode, what: str) -> Any:
    if isinstance(value, Term):
        refuse_term(value)
    found = heads(value) if isinstance(value, RowsValue) else None
    if found is None:
        place.refuse(f"its {what} is not laid out in heads of one register")
    if found.axis >= 0 and (found.axis, found.token_axis) != (len(value.shape) - 3, len(value.shape) - 2):
        place.refuse(f"its {what} has shape {list(value.shape)}; expected is [..., heads, tokens, width]")
    return found


def _shared(value: Any) -> Any:
    """Return what one key head stands for several query heads, as Repeated."""
    if isinstance(value, Repeated):
        return value
    if isinstance(value, RowsValue) and len(value.shape) >= 3 and value.view.stride()[-3] == 0 and value.shape[-3] > 1:
        return Repeated(rows=value.seen_as(value.view.narrow(-3, 0, 1)), times=value.shape[-3])
    return Repeated(rows=value, times=1)
