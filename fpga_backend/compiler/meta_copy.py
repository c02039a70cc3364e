"""A copy of a model's modules to trace and to check on: the same structure, numbers of its own.

The model itself is left as it is: its mode, its gradients, its hooks, its place.
"""

import copy
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from greentrain.fpga_backend.errors import UnsupportedModelError

SEED = 20261121
_WRAPPERS = ("DataParallel", "DistributedDataParallel", "OptimizedModule")


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside DataParallel, DistributedDataParallel and torch.compile."""
    while type(model).__name__ in _WRAPPERS:
        inner = getattr(model, "_orig_mod", None) or getattr(model, "module", None)
        if not isinstance(inner, nn.Module):
            break
        model = inner
    return model


def check(model: nn.Module, max_tokens: int) -> None:
    """Raise for what can be told before tracing.

    Raises:
        UnsupportedModelError: Adapters that are not merged, weights that are sharded, quantised or not there, or fewer
            positions than ``max_tokens``; names the module or parameter and what to do.
    """
    for path, module in model.named_modules():
        where = f"{path or 'the model'} ({type(module).__name__})"
        if type(module).__module__.startswith("peft."):
            raise UnsupportedModelError(f"{where} holds adapters that are not merged: compile model.merge_and_unload()")
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_meta:
                raise UnsupportedModelError(f"{where}: buffer {name} has no data (device 'meta'): load the model first")
    for name, parameter in model.named_parameters():
        if hasattr(parameter, "full_tensor"):
            raise UnsupportedModelError(f"parameter {name} is sharded (DTensor): gather the model's state dict first")
        if parameter.is_meta:
            raise UnsupportedModelError(f"parameter {name} has no data (device 'meta'): load the model first")
        if parameter.dtype not in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
            raise UnsupportedModelError(
                f"parameter {name} is of {parameter.dtype}: the model is quantised already; load it in bfloat16"
            )
    for path, limit in _positions(model):
        if max_tokens > limit:
            raise UnsupportedModelError(
                f"max_tokens={max_tokens}, but {path or 'the model'} has positions for {limit} tokens: "
                f"compile with max_tokens={limit} or less"
            )


def meta_copy(model: nn.Module) -> nn.Module:
    """Return a copy in evaluation mode on the CPU, its parameters random binary32 numbers.

    Random numbers show a mistake of the lowering where the model's own hide it: biases that are still 0, gains that are
    still 1, a fresh head. They are scaled so that rows keep their size from layer to layer.

    Raises:
        UnsupportedModelError: The model cannot be copied.
    """
    generator = torch.Generator().manual_seed(SEED)
    memo: dict[int, Any] = {}
    for name, parameter in model.named_parameters():
        memo[id(parameter)] = nn.Parameter(_random(name, parameter.shape, generator), requires_grad=False)
    for buffer in model.buffers():
        memo[id(buffer)] = buffer.detach().cpu().clone()
    try:
        twin = copy.deepcopy(model, memo)
    except (RuntimeError, TypeError) as error:
        raise UnsupportedModelError(f"{type(model).__name__} cannot be copied for tracing: {error}") from error
    twin.eval()
    for module in twin.modules():
        if callable(choose := getattr(module, "set_attn_implementation", None)):
            try:
                choose("sdpa")
            except (ValueError, ImportError):
                continue  # it has one of its own; the walk says whether that can be compiled
    return twin


def _random(name: str, shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
    numbers = torch.randn(shape, generator=generator, dtype=torch.float32)
    if len(shape) < 2:
        return 1 + 0.3 * numbers if name.endswith("weight") else 0.3 * numbers
    return numbers.div_(math.sqrt(min(shape[0], shape[1])))


def _positions(model: nn.Module) -> Iterator[tuple[str, int]]:
    for path, module in model.named_modules():
        limit = getattr(getattr(module, "config", None), "max_position_embeddings", None)
        if isinstance(limit, int) and limit > 0:
            yield path, limit
