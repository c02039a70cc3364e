"""Linear layers that may run in FP8: which of a model they are, why the others do not, and how one shifts.

FP8 pays where a product is large and its rounding is averaged out again: in the wide layers between embedding and head.
The head stays out, as the loss reads it directly, and so does whatever is not plainly ``x W^T + b`` any more.

A layer that shifts is the same instance with another class than ``nn.Linear``. Its Parameters stay the very objects
that the optimizer, DDP and an EMA hold, its state_dict keeps its keys, and a gear is one attribute read in forward:
torch.compile guards on it and makes one graph a gear. Copies and pickles are plain ``nn.Linear`` again: a copy that
shifted would follow the box of its original, and a checkpoint would need GreenTrain. The ``Conv1D`` of transformers, of
which GPT-2 is made, is a linear layer whose weight is stored transposed, and shifts likewise.
"""

import copyreg
import functools
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from greentrain.control.precision.backends import Fp8Backend

MULTIPLE: Final = 16
"""What both sides of a weight are multiples of (PyTorch's aten/src/ATen/native/cuda/ScaledBlas.cpp, 2026-11-21)."""
DTYPES: Final = (torch.float32, torch.bfloat16, torch.float16)
HEADS: Final = frozenset(
    ("lm_head", "head", "heads", "classifier", "score", "output_projection", "embed_out", "proj_out", "qa_outputs")
)
"""Last part of a name that says output layer: GPT-2 and Llama, timm, torchvision, BERT, sequence classification,
fairseq, GPT-NeoX, Whisper and question answering (names as in transformers 5.23, timm and torchvision, 2026-11-21)."""
WRAPPERS: Final = frozenset(("base_layer", "original_module", "modules_to_save", "default", "module", "_orig_mod"))
"""Parts that PEFT, DDP and torch.compile add behind or before a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPlan:
    """One module that holds parameters, and whether it gets the FP8 gear."""

    name: str
    in_features: int | None
    """None: this is no linear layer."""
    out_features: int | None
    parameters: int
    """How many it holds itself, biases with them; what several modules share is the first one's."""
    chosen: bool
    reason: str
    """Why, or why not."""


def plan_layers(
    model: nn.Module, include: Sequence[str] = ("*",), exclude: Sequence[str] = (), min_features: int = 128
) -> list[LayerPlan]:
    """Say for every module of a model that holds parameters whether it may run in FP8.

    Args:
        model: The model; it is not changed.
        include: Names, with wildcards, of layers that may.
        exclude: Names of layers that must not.
        min_features: Smallest width, of either side.

    Returns:
        One plan for each ``nn.Linear`` and ``Conv1D``, subclasses included, and each other module with parameters of
        its own, in the order of the model.
    """
    kinds = _kinds()
    modules = dict(model.named_modules())
    last = next((module for module in reversed(modules.values()) if isinstance(module, kinds)), None)
    owners, counted = _owners(model), set[int]()
    plans = []
    for name, module in modules.items():
        held = dict(module.named_parameters(recurse=False))
        fresh = [p for p in held.values() if id(p) not in counted and not nn.parameter.is_lazy(p)]
        counted |= {id(p) for p in fresh}
        if isinstance(module, kinds):
            why_not = (
                _not_plain(model, name, module)
                or _not_body(name, module, owners, model if module is last else None)
                or _not_asked(name, include, exclude)
                or _not_shaped(_sides(module), min_features)
            )
        elif held:
            why_not = (
                f"{type(module).__name__} holds {', '.join(held)} itself; FP8 takes nn.Linear and transformers' Conv1D"
            )
        else:
            continue
        sides = _sides(module) if isinstance(module, kinds) else (None, None)
        plans.append(
            LayerPlan(
                name=name,
                in_features=sides[0],
                out_features=sides[1],
                parameters=sum(getattr(p, "ds_numel", p.numel()) for p in fresh),  # ZeRO-3's, sharded
                chosen=why_not is None,
                reason=why_not or f"{sides[0]} inputs and {sides[1]} outputs fit FP8",
            )
        )
    return plans


def _kinds() -> tuple[type[nn.Module], ...]:
    """Return the classes that multiply by a matrix; transformers' only where something has imported it."""
    conv1d = getattr(sys.modules.get("transformers.pytorch_utils"), "Conv1D", None)
    return (nn.Linear,) if conv1d is None else (nn.Linear, conv1d)


def _sides(layer: Any) -> tuple[int, int]:
    """Return the numbers of inputs and outputs."""
    return (layer.in_features, layer.out_features) if isinstance(layer, nn.Linear) else (layer.nx, layer.nf)


def _not_plain(model: nn.Module, name: str, linear: Any) -> str | None:
    if is_parametrized(linear):
        return "its weight is parametrized (torch.nn.utils.parametrize)"
    if type(linear) not in _kinds():
        return f"it is a {type(linear).__name__}, which may compute something else than nn.Linear"
    if "forward" in vars(linear):
        return "its forward is replaced on the layer itself"
    weight = linear.weight
    if not isinstance(weight, nn.Parameter):
        return "its weight is computed (weight_norm, pruning or a flattened FSDP unit)"
    if weight.dtype not in DTYPES:
        return f"its weight is {str(weight.dtype).removeprefix('torch.')}; FP8 casts from float32, bfloat16 or float16"
    if type(weight) is not nn.Parameter and not _gathered(model, name, weight):
        return f"its weight is a {type(weight).__name__} (quantised or split over devices)"
    return None


def _gathered(model: nn.Module, name: str, weight: nn.Parameter) -> bool:
    """Return whether FSDP 2 hands the layer a plain weight: a module above shards it, tensor parallelism does not."""
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

    parts = name.split(".")
    above = [model.get_submodule(".".join(parts[:depth])) for depth in range(len(parts))]
    if not isinstance(weight, DTensor) or not any(isinstance(module, FSDPModule) for module in above):
        return False
    split = [not placement.is_replicate() for placement in weight.placements]
    return split[-1] and sum(split) == 1  # FSDP alone, or replicated FSDP; a second split is the tensor's own


def _not_body(name: str, linear: Any, owners: dict[int, list[str]], last_of: nn.Module | None) -> str | None:
    parts = [part for part in name.split(".") if part not in WRAPPERS]
    if parts and parts[-1] in HEADS:
        return f"its name ends in {parts[-1]!r}: an output layer stays in high precision"
    shared = [owner for owner in owners[id(linear.weight)] if owner != (f"{name}.weight" if name else "weight")]
    if shared:
        return f"its weight is tied to {shared[0]}"
    for module in last_of.modules() if last_of is not None else ():
        if isinstance(module, nn.Embedding) and _sides(linear)[::-1] == tuple(module.weight.shape):
            return "it is the last layer and has the shape of the embedding: an output layer stays in high precision"
    return None


def _not_asked(name: str, include: Sequence[str], exclude: Sequence[str]) -> str | None:
    for pattern in exclude:
        if fnmatchcase(name, pattern):
            return f"precision.exclude names it ({pattern!r})"
    if not any(fnmatchcase(name, pattern) for pattern in include):
        return f"precision.include {list(include)} does not name it"
    return None


def _not_shaped(sides: tuple[int, int], min_features: int) -> str | None:
    shape = f"{sides[0]} inputs and {sides[1]} outputs"
    if any(side % MULTIPLE for side in sides):
        return f"{shape} are not both multiples of {MULTIPLE}"
    if min(sides) < min_features:
        return f"{shape}: less than precision.min_features, {min_features}"
    return None


def _owners(model: nn.Module) -> dict[int, list[str]]:
    """Return under which names of distinct modules each parameter is registered."""
    owners: dict[int, list[str]] = defaultdict(list)
    for name, module in model.named_modules():
        for key, parameter in module.named_parameters(name, recurse=False, remove_duplicate=False):
            owners[id(parameter)].append(key)
    return owners


class Fp8Switch(Protocol):
    """What a layer asks on every call."""

    def runs_fp8(self, training: bool) -> bool:
        """Return whether the layer runs in FP8 now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGear:
    """What a shifting layer holds besides its own state."""

    box: Fp8Switch
    backend: Fp8Backend


class GearLinear(nn.Linear):
    """An ``nn.Linear`` that computes in FP8 while its box says so. Never constructed; see :func:`attach_layer`."""

    _green: LayerGear

    def forward(self, input: Tensor) -> Tensor:
        """Return ``input W^T + b``.

        Args:
            input: (..., in_features).

        Returns:
            (..., out_features); in FP8 in autocast's dtype, or else in that of the input.
        """
        # A framework may hold this method bound and call it on a plain copy, or after detach_layer.
        green: LayerGear | None = getattr(self, "_green", None)
        if green is not None and green.box.runs_fp8(self.training):
            return green.backend.linear(self, input)
        return F.linear(input, self.weight, self.bias)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copy and pickle as the plain layer; a class that a framework derived from this one keeps that class."""
        return _reduced(self, nn.Linear if type(self) is GearLinear else type(self))


def _reduced(layer: nn.Module, plain: type[nn.Module]) -> Any:
    state = {key: value for key, value in vars(layer).items() if key != "_green"}
    # Not copyreg.__newobj__: pickle refuses that for another class than the object's own.
    return copyreg._reconstructor, (plain, object, None), state  # type: ignore[attr-defined]


class _Turned(NamedTuple):
    """A ``Conv1D`` as backends read a linear layer."""

    weight: Tensor
    bias: Tensor


@functools.cache
def _gear_class(plain: Any) -> Any:
    """Return the class of a shifting layer: GearLinear, or its like for transformers' ``Conv1D``."""
    if plain is nn.Linear:
        return GearLinear

    class GearConv1D(plain):  # type: ignore[misc]
        _green_plain = plain

        def forward(self, x: Tensor) -> Tensor:
            green: LayerGear | None = getattr(self, "_green", None)
            if green is not None and green.box.runs_fp8(self.training):
                return green.backend.linear(_Turned(self.weight.t(), self.bias), x)  # type: ignore[arg-type]
            output: Tensor = plain.forward(self, x)
            return output

        def __reduce_ex__(self, protocol: Any) -> Any:
            return _reduced(self, plain if type(self) is GearConv1D else type(self))

    return GearConv1D


def attach_layer(layer: nn.Module, box: Fp8Switch, backend: Fp8Backend) -> None:
    """Make a plain linear layer shift, in place.

    Args:
        layer: An ``nn.Linear``, or a ``Conv1D`` of transformers; nothing of its state changes.
        box: Says when it runs in FP8.
        backend: Multiplies in FP8.

    Raises:
        TypeError: The layer is neither plainly, or shifts already.
    """
    if type(layer) not in _kinds():
        raise TypeError(f"only a plain nn.Linear can shift, and this is a {type(layer).__name__}: leave it out")
    object.__setattr__(layer, "_green", LayerGear(box=box, backend=backend))
    kind: Any = type(layer)
    layer.__class__ = _gear_class(kind)


def detach_layer(layer: nn.Module) -> None:
    """Make a layer plain again. Idempotent."""
    vars(layer).pop("_green", None)
    if type(layer) is GearLinear:
        layer.__class__ = nn.Linear  # type: ignore[assignment]
    elif "_green_plain" in vars(type(layer)):
        layer.__class__ = type(layer)._green_plain  # type: ignore[attr-defined]
