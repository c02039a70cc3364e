"""From a draft to operators: a head, nothing that is not needed, linear layers that read the same rows in one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from greentrain.fpga_backend.compiler.blocks import columns, refuse_term, settled
from greentrain.fpga_backend.compiler.draft import Draft
from greentrain.fpga_backend.compiler.recipe import TensorRecipe
from greentrain.fpga_backend.compiler.values import GraphNode, RowsValue, Term
from greentrain.fpga_backend.program import Attention, Columns, Embed, Linear, LogProb, Norm, Op, Pool, Score, read_by

Head = Literal["auto", "score", "logprob"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Operators and what their weights are made of."""

    ops: tuple[Op, ...]
    entries: Mapping[str, TensorRecipe]


def finish(draft: Draft, output: Any, head: Head, shapes: Mapping[str, tuple[int, ...]], place: GraphNode) -> Finished:
    """Close a draft.

    Args:
        draft: All operators that were found.
        output: First value that the model returns.
        head: Kind of output that it must be.
        shapes: Shape of every parameter.
        place: The output, for messages.

    Raises:
        UnsupportedModelError: The model ends in something else.
    """
    output = settled(draft, output)
    if isinstance(output, Term):
        refuse_term(output)
    if not isinstance(output, RowsValue):
        place.refuse("the model returns no scores or logits that come from its tokens")
    entries = dict(draft.entries)
    end, pooled = columns(draft, output, place)
    ops = list(draft.ops)
    if pooled:
        if head == "logprob":
            place.refuse("head='logprob', but the model returns one row a sequence: take head='score'")
        ops = _score(draft, ops, end, entries, place)
    else:
        if head == "score":
            place.refuse(
                "head='score', but the model returns a row a token: take head='logprob', or pool and score in it"
            )
        ops = _logprob(draft, ops, end, entries, shapes, place)
    ops, entries = _fused(_alive(ops), entries)
    return Finished(ops=tuple(renumbered(ops)), entries=_entries_of(ops, entries))


def _score(draft: Draft, ops: list[Op], end: Columns, entries: dict[str, TensorRecipe], place: GraphNode) -> list[Op]:
    """End in a score head: a pooling behind the last linear layer goes before it, which gives the same."""
    last = draft.producer(end.register)
    if isinstance(last, Pool):
        layer = draft.producer(last.x.register)
        if isinstance(layer, Linear) and last.x.width == layer.outputs:
            before = draft.pool(layer.x, last.how)
            ops = list(draft.ops)
            last = replace(layer, x=before)
    if not isinstance(last, Linear) or end.width != last.outputs:
        place.refuse(
            f"the model ends in {type(last).__name__}, not in a linear layer on pooled tokens: "
            "put a pooling and a torch.nn.Linear behind it, as a reward model has"
        )
    stem = _as_kind(entries, last.weight, "score")
    out = 1 + max(op.out for op in ops if not isinstance(op, LogProb))
    return [*ops, Score(out=out, x=last.x, weight=stem, labels=last.outputs, bias=last.bias)]


def _logprob(
    draft: Draft,
    ops: list[Op],
    end: Columns,
    entries: dict[str, TensorRecipe],
    shapes: Mapping[str, tuple[int, ...]],
    place: GraphNode,
) -> list[Op]:
    last = draft.producer(end.register)
    if not isinstance(last, Linear) or end.width != last.outputs:
        place.refuse(
            f"the model ends in {type(last).__name__} with {end.width} columns a token: "
            "put a pooling and a torch.nn.Linear behind it, as a reward model has"
        )
    tables = [entries[op.weight] for op in ops if isinstance(op, Embed) and op.index == "token"]
    vocabulary = min((shapes[table.parts[0].weight.parameter][0] for table in tables), default=0)
    if last.outputs != vocabulary or not all(op.causal for op in ops if isinstance(op, Attention)):
        place.refuse(
            f"the model returns {last.outputs} columns a token; log-probabilities need a causal model whose logits are "
            f"those of its {vocabulary} tokens"
        )
    if vocabulary > 2**22:
        place.refuse(f"a vocabulary of {vocabulary}; the integer contract allows {2**22}")
    stem = _as_kind(entries, last.weight, "logprob")
    return [*ops, LogProb(x=last.x, weight=stem, vocabulary=vocabulary, bias=last.bias)]


def _as_kind(entries: dict[str, TensorRecipe], stem: str, kind: Literal["score", "logprob"]) -> str:
    """Return the stem of the same weight as a head: a name of its own if the weight is used elsewhere, too."""
    name = f"{stem}.{kind}" if kind not in stem.split(".") else stem
    entries[name] = replace(entries[stem], kind=kind)
    return name


def _alive(ops: Sequence[Op]) -> list[Op]:
    """Leave out what the last operator does not need."""
    wanted: set[int] = set()
    kept: list[Op] = []
    for number, op in enumerate(reversed(ops)):
        if number == 0 or isinstance(op, LogProb) or op.out in wanted:
            wanted |= {c.register for c in read_by(op)}
            kept.append(op)
    return kept[::-1]


def _fused(ops: Sequence[Op], entries: dict[str, TensorRecipe]) -> tuple[list[Op], dict[str, TensorRecipe]]:
    """Join linear layers that read the same columns: one product, one pass over the rows."""
    groups: dict[Columns, list[Linear]] = {}
    for op in ops:
        if isinstance(op, Linear):
            groups.setdefault(op.x, []).append(op)
    moved: dict[int, tuple[int, int]] = {}
    joined: dict[int, Linear] = {}
    for group in groups.values():
        if len(group) == 1:
            continue
        first, parts = group[0], [entries[op.weight] for op in group]
        stem = _common([op.weight for op in group])
        bias = any(op.bias for op in group)
        while stem in entries:
            stem += "+"
        entries[stem] = TensorRecipe(kind="linear", parts=tuple(p for e in parts for p in e.parts), bias=bias)
        start = 0
        for op in group:
            moved[op.out] = (first.out, start)
            start += op.outputs
        joined[first.out] = replace(first, weight=stem, outputs=start, bias=bias)
    made: list[Op] = []
    for op in ops:
        out = -1 if isinstance(op, LogProb) else op.out
        if out in moved and out not in joined:
            continue
        made.append(_reading(joined.get(out, op), lambda c: _shifted(c, moved)))
    return made, entries


def _shifted(where: Columns, moved: Mapping[int, tuple[int, int]]) -> Columns:
    register, start = moved.get(where.register, (where.register, 0))
    return Columns(register=register, start=where.start + start, width=where.width)


def _common(stems: Sequence[str]) -> str:
    """``a.b.q``, ``a.b.k`` become ``a.b.q+k``."""
    parents = {stem.rpartition(".")[0] for stem in stems}
    if len(parents) > 1:
        return "+".join(stems)
    (parent,) = parents
    return ".".join(filter(None, (parent, "+".join(stem.rpartition(".")[2] for stem in stems))))


def renumbered(ops: Sequence[Op]) -> list[Op]:
    """Return operators whose registers are numbered from 0 in their order."""
    numbers: dict[int, int] = {}
    made: list[Op] = []
    for op in ops:
        kept = _reading(op, lambda c: replace(c, register=numbers[c.register]))
        if not isinstance(kept, LogProb):
            numbers[kept.out] = len(numbers)
            kept = replace(kept, out=numbers[kept.out])
        made.append(kept)
    return made


def _reading(op: Op, change: Callable[[Columns], Columns]) -> Op:
    """Return an operator with every Columns changed."""
    read = {f.name: getattr(op, f.name) for f in fields(op)}
    changed: dict[str, Any] = {name: change(value) for name, value in read.items() if isinstance(value, Columns)}
    return replace(op, **changed)


def _entries_of(ops: Sequence[Op], entries: Mapping[str, TensorRecipe]) -> dict[str, TensorRecipe]:
    """Return the entries of the operators that parameters enter, in the order of these."""
    return {op.weight: entries[op.weight] for op in ops if isinstance(op, Embed | Norm | Linear | Score | LogProb)}
