"""Passes through a model that leave no trace: what training computes afterwards is bit-identical."""

import contextlib
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

_MISSING: Final = object()
_NOT_STATE: Final = frozenset(vars(nn.Module())) - {"training"}
"""What torch itself keeps in every module: hooks, other modules, and buffers, which are looked at by themselves."""


@contextlib.contextmanager
def rehearsal(model: nn.Module) -> Iterator[Callable[[int], None]]:
    """Run a block that calls a model between two training steps, uncompiled and with gradients enabled.

    Restored are the random numbers of torch, Python and numpy, buffers, and what modules hold in plain attributes:
    batch statistics, counters, queues, the states of torchmetrics. Not restored is what a forward writes anywhere else.

    Args:
        model: The inner module, in the mode it trains in.

    Yields:
        A function to call before each pass: it rewinds the state of the model and seeds all random numbers.
    """
    state = _State(model)
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.is_cuda})
    numpy: Any = sys.modules.get("numpy")
    python_random, numpy_random = random.getstate(), numpy.random.get_state() if numpy else None

    def rewind(seed: int) -> None:
        state.restore()
        random.seed(seed)
        if numpy:
            numpy.random.seed(seed)
        torch.default_generator.manual_seed(seed)
        for device in devices:  # torch.manual_seed would seed the other devices too
            torch.cuda.default_generators[device].manual_seed(seed)

    try:
        with torch.random.fork_rng(devices, device_type="cuda"), torch.enable_grad(), _eager(), _same_dropout(model):
            yield rewind
    finally:
        state.restore()
        random.setstate(python_random)
        if numpy:
            numpy.random.set_state(numpy_random)


class _State:
    """What the modules of a model hold besides parameters, hooks and other modules."""

    def __init__(self, model: nn.Module) -> None:
        self._names: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._lists: list[tuple[list[Any], list[Any]]] = []
        self._tensors: dict[int, tuple[Tensor, Tensor]] = {}
        for module in model.modules():
            self._keep_names(vars(module))
            self._keep_names(module._buffers)
            for name, value in vars(module).items():
                if name in _NOT_STATE:
                    continue
                if type(value) is dict:
                    self._keep_names(value)
                elif type(value) is list:
                    self._lists.append((value, list(value)))
                    self._keep_tensors(value)

    def restore(self) -> None:
        for now, before in self._names:
            for name in now.keys() - before.keys() - _NOT_STATE:
                del now[name]
            for name, value in before.items():
                if now.get(name, _MISSING) is not value:
                    now[name] = value
        for items, before_items in self._lists:
            if len(items) != len(before_items) or any(a is not b for a, b in zip(items, before_items, strict=True)):
                items[:] = before_items
        for tensor, value in self._tensors.values():
            tensor.data.copy_(value)  # .data: to autograd, nothing has happened

    def _keep_names(self, names: dict[str, Any]) -> None:
        before = {name: value for name, value in names.items() if name not in _NOT_STATE}
        self._names.append((names, before))
        self._keep_tensors(before.values())

    def _keep_tensors(self, values: Iterable[Any]) -> None:
        for value in values:
            if isinstance(value, Tensor) and not value.requires_grad and not isinstance(value, nn.Parameter):
                self._tensors[id(value)] = value, value.clone()


def _eager() -> contextlib.AbstractContextManager[None]:
    """Ignore torch.compile. Where nothing has loaded dynamo nothing is compiled, and loading it takes seconds."""
    if "torch._dynamo" not in sys.modules:
        return contextlib.nullcontext()
    stance: contextlib.AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
    return stance


def _same_dropout(model: nn.Module) -> contextlib.AbstractContextManager[None]:
    """Keep attention to a kernel that takes every dtype: another one draws another dropout mask from the same seed."""
    on_gpu = any(parameter.is_cuda for parameter in model.parameters())
    if not on_gpu or not any(_drops(module) for module in model.modules()):
        return contextlib.nullcontext()
    # No flash attention in FP32: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, torch 2.13, 2026-11-21
    kernel: contextlib.AbstractContextManager[None] = sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])
    return kernel


def _drops(module: nn.Module) -> bool:
    rates = [value for name, value in vars(module).items() if "drop" in name or name == "p"]
    return any(isinstance(rate, float) and rate > 0 for rate in rates)
