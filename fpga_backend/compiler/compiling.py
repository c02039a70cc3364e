"""From a model to an artifact."""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import get_args

import torch
from torch import nn

from greentrain.fpga_backend import contract
from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.compiler import meta_copy
from greentrain.fpga_backend.compiler.draft import Draft
from greentrain.fpga_backend.compiler.finish import Head, finish
from greentrain.fpga_backend.compiler.lower import Lowering
from greentrain.fpga_backend.compiler.quantize import tensors_of
from greentrain.fpga_backend.compiler.recipe import Entry, Part, Recipe, Source
from greentrain.fpga_backend.compiler.selfcheck import verify
from greentrain.fpga_backend.compiler.smooth import SmoothQuant
from greentrain.fpga_backend.compiler.trace import Call, Trace, trace
from greentrain.fpga_backend.compiler.values import Place
from greentrain.fpga_backend.errors import UnsupportedModelError
from greentrain.fpga_backend.program import (
    ActivationBits,
    Activations,
    Attention,
    Embed,
    LogProb,
    Op,
    Precision,
    Program,
    with_activation_bits,
)


def compile(
    model: nn.Module,
    *,
    max_tokens: int,
    head: Head = "auto",
    precision: Precision = "w8a8",
    activations: Activations = "token",
    activation_bits: ActivationBits = 8,
    smooth: SmoothQuant | None = None,
    temperature: float = 1.0,
) -> Artifact:
    """Compile a frozen model: its scores, or the log-probabilities of its tokens.

    The model is not changed: it may be in training, on any device, in float32, bfloat16 or float16, inside
    DistributedDataParallel or torch.compile. Its structure is traced by torch.export, then checked: the program,
    in floating point, must return what the model's own code returns, on random tokens and random weights.

    A batch has no padding, so whatever a model does with padding is left away. A model that scores at the last token
    that is not padding scores at the last token here: cut trailing padding tokens off, also where they are the token
    that ends a text.

    Args:
        model: Token ids in; scores [1, labels] or logits [1, tokens, vocabulary] out, alone or first of several.
        max_tokens: Longest sequence (tokens), at least 2.
        head: What the model must return; ``auto`` takes what it does.
        precision: ``w8a8`` for exact devices; the others round weights only, for comparison.
        activations: ``tensor`` is the published rule of one scale a batch, for comparison.
        activation_bits: Of what linear layers and the vocabulary head multiply. 16 is as exact on every exact device,
            nearer to the model, and twice the products; of precision ``w8a8`` with one scale a token.
        smooth: Calibration for SmoothQuant, or None.
        temperature: Of the log-probabilities: logits are divided by it, as where tokens were sampled with it. Trainers
            of RLHF want their reference at the policy's sampling temperature.

    Returns:
        The artifact. It keeps a recipe for :func:`~greentrain.fpga_backend.compiler.syncing.sync`.

    Raises:
        UnsupportedModelError: Something in the model cannot be compiled; names the module, the path to it, the
            operator and what to do.
        ArtifactError: A parameter holds NaN or infinity, or does not fit the precision; names it.
        ValueError: An argument is out of bounds.
    """
    _check(max_tokens, head, precision, activations, activation_bits)
    if not (math.isfinite(temperature) and temperature > 0):
        raise ValueError(f"temperature={temperature!r}: a number above 0; 1 leaves the logits as they are")
    if not isinstance(model, nn.Module):
        raise ValueError(f"model={model!r} is a {type(model).__name__}, not a torch.nn.Module: load the model first")
    model = meta_copy.unwrapped(model)
    meta_copy.check(model, max_tokens)
    with torch.device("cpu"):  # whatever the caller's default device is
        program, recipe, tables = _verified(model, head, max_tokens)
        if temperature != 1.0:
            recipe = _tempered(program, recipe, temperature)
        parameters = named_parameters(model)
        if smooth is not None:
            program, recipe = smooth.applied(program, recipe, {**tensors_of(recipe, parameters, "fp32"), **tables})
        program = replace(program, precision=precision, activations=activations)
        program = with_activation_bits(program, activation_bits)
        tensors = {**tensors_of(recipe, parameters, precision), **tables}
    return Artifact.of(program, tensors, source=_source(model), recipe=recipe.to_json())


def named_parameters(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return all parameters under all their names."""
    return dict(model.named_parameters(remove_duplicate=False))


def _check(max_tokens: int, head: str, precision: str, activations: str, activation_bits: int) -> None:
    if not 2 <= max_tokens <= contract.MAX_WIDTH:
        raise ValueError(
            f"max_tokens={max_tokens}: the integer contract allows 2 to {contract.MAX_WIDTH} tokens a sequence"
        )
    for name, value, allowed in (
        ("head", head, get_args(Head)),
        ("precision", precision, get_args(Precision)),
        ("activations", activations, get_args(Activations)),
    ):
        if value not in allowed:
            raise ValueError(f"{name}={value!r} is none of {', '.join(allowed)}")
    if activation_bits not in get_args(ActivationBits):
        raise ValueError(f"activation_bits={activation_bits!r}: the integer contract has 8 and 16")
    if activation_bits == 16 and (precision, activations) != ("w8a8", "token"):
        raise ValueError(
            f"activation_bits=16 with precision={precision!r}, activations={activations!r}: it goes with 'w8a8' and "
            "'token' only; leave it out"
        )


def _verified(model: nn.Module, head: Head, max_tokens: int) -> tuple[Program, Recipe, dict[str, torch.Tensor]]:
    """Lower a model and compare; the copy's weights are gone when this returns."""
    call = Call.of(model)
    shadow = meta_copy.meta_copy(model)
    traced = trace(shadow, call, max_tokens)
    program, recipe, tables = _lowered(traced, head, max_tokens, type(model).__name__, call)
    program = replace(program, precision="fp32")
    numbers = {**tensors_of(recipe, named_parameters(shadow), "fp32"), **tables}
    verify(shadow, call, program, numbers, _padding(model))
    return program, recipe, tables


def _tempered(program: Program, recipe: Recipe, temperature: float) -> Recipe:
    """Divide the logits: the vocabulary head's weights and biases have the factor in them."""
    heads = {op.weight for op in program.ops if isinstance(op, LogProb)}
    if not heads:
        raise ValueError(
            f"temperature={temperature:g}, but {recipe.model} is compiled to scores: it is of log-probabilities"
        )

    def divided(source: Source) -> Source:
        return source.then("multiply", 1.0 / temperature)

    entries = dict(recipe.entries)
    for stem in heads:
        parts = tuple(
            Part(weight=divided(part.weight), bias=None if part.bias is None else divided(part.bias))
            for part in entries[stem].parts
        )
        entries[stem] = replace(entries[stem], parts=parts)
    return replace(recipe, entries=entries)


def _lowered(
    traced: Trace, head: Head, max_tokens: int, model: str, call: Call
) -> tuple[Program, Recipe, dict[str, torch.Tensor]]:
    draft = Draft(max_tokens, types=call.types)
    outputs = Lowering(draft).run(traced.exported.graph_module, traced.inputs)
    place = Place(path="", module=model, op="output")
    kept = [value for value in outputs if value is not None]
    finished = finish(draft, kept[0] if kept else None, head, traced.shapes, place)
    recipe = Recipe(
        model=model,
        entries=finished.entries,
        shapes={name: traced.shapes[name] for name in _read_by(finished.entries.values())},
        buffers=traced.buffers,
    )
    return _program(finished.ops, recipe, max_tokens, types=call.types), recipe, _used(draft.tables, finished.ops)


def _program(ops: tuple[Op, ...], recipe: Recipe, max_tokens: int, *, types: bool) -> Program:
    embeds = [op for op in ops if isinstance(op, Embed)]
    tables = {kind: [_entries(op, recipe) for op in embeds if op.index == kind] for kind in ("token", "type")}
    if not tables["token"]:
        raise UnsupportedModelError(f"{recipe.model} looks up no token: what it returns does not depend on its input")
    attentions = [op for op in ops if isinstance(op, Attention)]
    return Program(
        ops=ops,
        vocabulary=min(tables["token"]),
        types=min(tables["type"], default=0) if types else 0,
        max_tokens=max_tokens,
        hidden=embeds[0].width,
        layers=len(attentions),
        causal=all(op.causal for op in attentions),
    )


def _used(tables: dict[str, torch.Tensor], ops: tuple[Op, ...]) -> dict[str, torch.Tensor]:
    used = {getattr(op, "weight", "") for op in ops}
    return {name: table for name, table in tables.items() if name.rpartition(".")[0] in used}


def _entries(op: Embed, recipe: Recipe) -> int:
    return recipe.shapes[recipe.entries[op.weight].parts[0].weight.parameter][0]


def _read_by(entries: Iterable[Entry]) -> list[str]:
    sources = [s for entry in entries for part in entry.parts for s in (part.weight, part.bias) if s is not None]
    return sorted({source.parameter for source in sources})


def _padding(model: nn.Module) -> set[int]:
    """Return the token ids that models inside take for padding."""
    found = (getattr(getattr(module, "config", None), "pad_token_id", None) for module in model.modules())
    return {number for number in found if isinstance(number, int)}


def _source(model: nn.Module) -> str:
    name = str(getattr(getattr(model, "config", None), "name_or_path", "") or "")
    return f"{type(model).__name__} {name}".strip()
