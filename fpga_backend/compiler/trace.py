"""A model as a graph of ATen operators, for one full sequence of ``max_tokens`` tokens.

The longest sequence is traced so that positions and angles of every token are there; a packed batch has neither
padding nor other sequences, so a mask says nothing but "causal" or "full".
"""

import inspect
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from greentrain.fpga_backend.artifact import checksum
from greentrain.fpga_backend.compiler.recipe import ParameterSource
from greentrain.fpga_backend.compiler.values import Ids, Weight
from greentrain.fpga_backend.errors import UnsupportedModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorCall:
    """How a model is called: what its forward takes."""

    ids: str
    """Name of the argument with the token ids."""
    mask: bool
    """True if it is given a mask (all ones)."""
    types: bool
    cache: bool
    """True if it takes ``use_cache``, which is turned off."""

    @classmethod
    def of(cls, model: nn.Module) -> "OperatorCall":
        """Read a model's signature.

        Raises:
            UnsupportedModelError: It takes no token ids, or demands something else.
        """
        taken = inspect.signature(model.forward).parameters
        names = [n for n, p in taken.items() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        ids = "input_ids" if "input_ids" in taken else next(iter(names), "")
        known = {ids, "attention_mask", "token_type_ids", "use_cache"}
        demanded = [n for n in names if taken[n].default is inspect.Parameter.empty and n not in known]
        if not ids or demanded:
            raise UnsupportedModelError(
                f"{type(model).__name__}.forward takes {list(taken)}; it must work with token ids alone, or with "
                "attention_mask and token_type_ids beside them"
            )
        hugging_face = hasattr(model, "set_attn_implementation")
        return cls(
            ids=ids,
            mask="attention_mask" in taken and not hugging_face,
            types="token_type_ids" in taken and _type_count(model) > 0,
            cache="use_cache" in taken,
        )

    def arguments(self, ids: torch.Tensor, types: torch.Tensor | None = None) -> dict[str, Any]:
        """Return the arguments for token ids [1, tokens]."""
        made: dict[str, Any] = {self.ids: ids}
        if self.mask:
            made["attention_mask"] = torch.ones_like(ids)
        if self.types:
            made["token_type_ids"] = torch.zeros_like(ids) if types is None else types
        if self.cache:
            made["use_cache"] = False
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A graph and what goes into it."""

    exported: ExportedProgram
    inputs: tuple[Any, ...]
    """What each placeholder stands for."""
    shapes: dict[str, tuple[int, ...]]
    """Of every parameter."""
    buffers: dict[str, str]
    """Checksums of the buffers that are used."""


def trace(model: nn.Module, call: OperatorCall, max_tokens: int) -> Trace:
    """Trace a model.

    Raises:
        UnsupportedModelError: torch.export gives up; the message names the module in which it did.
    """
    ids = torch.zeros(1, max_tokens, dtype=torch.int64)
    arguments = call.arguments(ids)
    with _position(model) as inside, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch and of the model's code, about themselves
        try:
            exported = torch.export.export(model, (), arguments, strict=False)
        except Exception as error:  # whatever a model's code or torch's tracer raises
            path, kind = inside[-1] if inside else ("", type(model).__name__)
            where = f"{path} ({kind})" if path else kind
            first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise UnsupportedModelError(
                f"{where}: torch.export cannot trace it with max_tokens={max_tokens}: {first.strip()}"
            ) from error
    return _read(exported, call, arguments)


def _read(exported: ExportedProgram, call: OperatorCall, arguments: dict[str, Any]) -> Trace:
    inputs: list[Any] = []
    shapes: dict[str, tuple[int, ...]] = {}
    buffers: dict[str, str] = {}
    placeholders = {n.name: n for n in exported.graph.nodes if n.op == "placeholder"}
    for spec in exported.graph_signature.input_specs:
        name, target = spec.arg.name, spec.target or ""
        if spec.kind is InputKind.PARAMETER:
            shapes[target] = tuple(exported.state_dict[target].shape)
            inputs.append(Weight(source=ParameterSource(parameter=target), shape=shapes[target]))
        elif spec.kind is InputKind.USER_INPUT:
            shape = tuple(arguments[call.ids].shape)
            ids = {"token_type_ids": Ids(kind="type", shape=shape), call.ids: Ids(kind="token", shape=shape)}
            inputs.append(ids.get(name, arguments.get(name)))
        else:
            held = exported.state_dict.get(target)
            value = exported.constants[target] if held is None else held
            if spec.kind is InputKind.BUFFER and placeholders[name].users:
                buffers[target] = checksum(value.detach().cpu())
            inputs.append(value)
    return Trace(exported=exported, inputs=tuple(inputs), shapes=shapes, buffers=buffers)


def _type_count(model: nn.Module) -> int:
    """Return how many token types an encoder inside knows, 0 where none does."""
    counts = (getattr(getattr(m, "config", None), "type_vocab_size", 0) for m in model.modules())
    return max((n for n in counts if isinstance(n, int)), default=0)


@contextmanager
def _position(model: nn.Module) -> Iterator[list[tuple[str, str]]]:
    """Know, while a model runs, in which module: those entered and not left, outermost first."""
    inside: list[tuple[str, str]] = []
    handles = []
    for path, module in model.named_modules():
        entry = (path, type(module).__name__)
        handles.append(module.register_forward_pre_hook(lambda _m, _a, e=entry: inside.append(e)))
        handles.append(module.register_forward_hook(lambda _m, _a, _o: (inside.pop(), None)[1]))
    try:
        yield inside
    finally:
        for handle in handles:
            handle.remove()
