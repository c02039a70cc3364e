"""Layers that may run in 8 or 4 bits: which of a model they are, why the others do not, and how one shifts.

FP8 (here also MXFP8 and NVFP4) pays where a product is large and its rounding is averaged out again: in the wide layers
between embedding and head. The head stays out, as the loss reads it directly, and so does whatever is not plainly
``x W^T + b`` any more.

A layer that shifts is the same instance with another class than ``nn.Linear``. Its Parameters stay the very objects
that the optimizer, DDP and an EMA hold, its state_dict keeps its keys, and a gear is one attribute read in forward:
torch.compile guards on it and makes one graph a gear. Copies and pickles are plain ``nn.Linear`` again: a copy that
shifted would follow the box of its original, and a checkpoint would need GreenTrain. The ``Conv1D`` of transformers, of
which GPT-2 is made, is a linear layer whose weight is stored transposed, and shifts likewise.

Experts of transformers (Mixtral, Qwen3-MoE) hold the weights of all in one Parameter each way. In FP8 tokens are sorted
by expert, and each expert's share goes through the backend as a product; in other gears they run as they are. A layer
that tensor parallelism has split multiplies its own part: each rank casts with the factors of that part, and what is
summed over ranks is the result, in 16 bits.
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
    model: nn.Module,
    include: Sequence[str] = ("*",),
    exclude: Sequence[str] = (),
    min_features: int = 128,
    multiple: int = 16,
) -> list[LayerPlan]:
    """Say for every module of a model that holds parameters whether it may run in FP8.

    Args:
        model: The model; it is not changed.
        include: Names, with wildcards, of layers that may.
        exclude: Names of layers that must not.
        min_features: Smallest width, of either side.
        multiple: What both sides must be multiples of, in the gears of the run.

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
                or _not_shaped(_part(model, name, module), min_features, multiple)
            )
        elif _is_experts(module):
            why_not = (
                ("its forward is replaced on the module itself" if "forward" in vars(module) else None)
                or next((why for key, p in held.items() if (why := _not_castable(model, name, p, key))), None)
                or _not_asked(name, include, exclude)
                or _not_shaped(_sides(module), min_features, multiple)
                or _not_shaped((module.down_proj.shape[2], module.down_proj.shape[1]), min_features, multiple)
            )
        elif held:
            why_not = (
                f"{type(module).__name__} holds {', '.join(held)} itself; FP8 takes nn.Linear, and of transformers"
                " Conv1D and experts"
            )
        else:
            continue
        experts = _is_experts(module)
        sides = _sides(module) if experts or isinstance(module, kinds) else (None, None)
        fit = f"{module.num_experts} experts of " if experts else ""
        plans.append(
            LayerPlan(
                name=name,
                in_features=sides[0],
                out_features=sides[1],
                parameters=sum(getattr(p, "ds_numel", p.numel()) for p in fresh),  # ZeRO-3's, sharded
                chosen=why_not is None,
                reason=why_not or f"{fit}{sides[0]} inputs and {sides[1]} outputs fit FP8",
            )
        )
    return plans


def _kinds() -> tuple[type[nn.Module], ...]:
    """Return the classes that multiply by a matrix; transformers' only where something has imported it."""
    conv1d = getattr(sys.modules.get("transformers.pytorch_utils"), "Conv1D", None)
    return (nn.Linear,) if conv1d is None else (nn.Linear, conv1d)


def _sides(layer: Any) -> tuple[int, int]:
    """Return the numbers of inputs and outputs; of experts, those of each one's first product."""
    if _is_experts(layer):
        shape = (layer.gate_up_proj if layer.has_gate else layer.up_proj).shape
        return (shape[1], shape[2]) if layer.is_transposed else (shape[2], shape[1])
    return (layer.in_features, layer.out_features) if isinstance(layer, nn.Linear) else (layer.nx, layer.nf)


def _is_experts(module: Any) -> bool:
    """Return whether a module is of those that transformers' ``use_experts_implementation`` made (5.23)."""
    marks = ("num_experts", "has_gate", "has_bias", "has_post_expert_norm", "is_transposed", "_apply_gate")
    return isinstance(getattr(module, "down_proj", None), nn.Parameter) and all(hasattr(module, m) for m in marks)


def _not_castable(model: nn.Module, name: str, weight: Any, key: str = "weight") -> str | None:
    if weight.dtype not in DTYPES:
        return f"its {key} is {str(weight.dtype).removeprefix('torch.')}; FP8 casts from float32, bfloat16 or float16"
    whole = type(weight) is nn.Parameter or _gathered(model, name, weight)
    if not whole and not (key == "weight" and _splits(model, name, weight)):
        return f"its {key} is a {type(weight).__name__} (quantised or split over devices)"
    return None


def _part(model: nn.Module, name: str, layer: Any) -> tuple[int, int]:
    """Return the sides that one rank multiplies where tensor parallelism splits the weight; else those of the layer."""
    sides, weight = list(_sides(layer)), layer.weight
    if _splits(model, name, weight):
        sides[1 - weight.placements[-1].dim] //= weight.device_mesh.size(-1)
    return sides[0], sides[1]


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
    return _not_castable(model, name, weight)


def _gathered(model: nn.Module, name: str, weight: nn.Parameter) -> bool:
    """Return whether FSDP 2 hands the layer a plain weight: a module above shards it, tensor parallelism does not."""
    from torch.distributed.tensor import DTensor

    if not isinstance(weight, DTensor) or not _under_fsdp(model, name):
        return False
    split = [not placement.is_replicate() for placement in weight.placements]
    return split[-1] and sum(split) == 1  # FSDP alone, or replicated FSDP; a second split is the tensor's own


def _under_fsdp(model: nn.Module, name: str) -> bool:
    from torch.distributed.fsdp import FSDPModule

    parts = name.split(".")
    return any(isinstance(model.get_submodule(".".join(parts[:depth])), FSDPModule) for depth in range(len(parts) + 1))


def _splits(model: nn.Module, name: str, weight: Any) -> bool:
    """Return whether tensor parallelism has split the weight once and evenly, FSDP 2 at most once more on top of it."""
    placements = getattr(weight, "placements", ())
    if not placements or [p.is_replicate() for p in placements] != [False] * (1 + _under_fsdp(model, name)):
        return False
    last = placements[-1]
    return bool(last.is_shard() and last.dim < 2 and weight.shape[last.dim] % weight.device_mesh.size(-1) == 0)


def _not_body(name: str, linear: Any, owners: dict[int, list[str]], last_of: nn.Module | None) -> str | None:
    parts = [part for part in name.split(".") if part not in WRAPPERS]
    if parts and parts[-1] in HEADS:
        return f"its name ends in {parts[-1]!r}: an output layer stays in high precision"
    shared = [owner for owner in owners[id(linear.weight)] if owner != (f"{name}.weight" if name else "weight")]
    if shared:
        return f"its weight is tied to {shared[0]}"
    if last_of is not None and parts[-1:] == ["fc"]:  # ResNet and others of torchvision and timm; elsewhere a body's
        return "it is the last layer and its name ends in 'fc': an output layer stays in high precision"
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


def _not_shaped(sides: tuple[int, int], min_features: int, multiple: int) -> str | None:
    shape = f"{sides[0]} inputs and {sides[1]} outputs"
    if any(side % multiple for side in sides):
        return f"{shape} are not both multiples of {multiple}"
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
            split = hasattr(self.weight, "placements")
            return _split_linear(green.backend, self, input) if split else green.backend.linear(self, input)
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
    bias: Tensor | None
    training: bool


def _split_linear(backend: Fp8Backend, layer: nn.Linear, x: Any) -> Any:
    """Multiply a rank's part of a weight: of its outputs, or of its inputs, over which the result is a sum."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    weight: Any = layer.weight
    mesh, by_outputs = weight.device_mesh, weight.placements[0].is_shard(0)
    whole = x if isinstance(x, DTensor) else DTensor.from_local(x, mesh, [Replicate()], run_check=False)
    needed = whole.redistribute(mesh, [Replicate() if by_outputs else Shard(x.ndim - 1)])
    part = needed.to_local(grad_placements=[Partial()] if by_outputs else None)
    turned: Any = _Turned(weight.to_local(), None, layer.training)
    y = DTensor.from_local(
        backend.linear(turned, part), mesh, [Shard(x.ndim - 1) if by_outputs else Partial()], run_check=False
    )
    return y if layer.bias is None else y + layer.bias.to(y.dtype)


def _turned_product(backend: Fp8Backend, layer: Any, x: Tensor) -> Tensor:
    turned: Any = _Turned(layer.weight.t(), layer.bias, layer.training)
    return backend.linear(turned, x)


def _expert_products(
    backend: Fp8Backend, experts: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """Return what transformers' experts return for (tokens, width), (tokens, chosen) and (tokens, chosen)."""
    ids, order = top_k_index.reshape(-1).sort(stable=True)
    counts = torch.bincount(ids, minlength=experts.num_experts)[: experts.num_experts].tolist()
    ids, order = ids[: sum(counts)], order[: sum(counts)]  # an index from num_experts on is another rank's

    def products(x: Tensor, key: str) -> Tensor:
        stack = getattr(experts, key)
        each = (stack.transpose(1, 2) if experts.is_transposed else stack).unbind()
        parts = zip(each, torch.split(x, counts), strict=True)
        turned: list[Any] = [(_Turned(weight, None, experts.training), part) for weight, part in parts]
        y = torch.cat([backend.linear(*one) for one in turned])
        return y + getattr(experts, f"{key}_bias")[ids].to(y.dtype) if experts.has_bias else y

    token = order // top_k_index.shape[-1]
    y = products(hidden_states[token], "gate_up_proj" if experts.has_gate else "up_proj")
    y = products(experts._apply_gate(y) if experts.has_gate else experts.act_fn(y), "down_proj")
    y = experts.post_expert_norm(y) if experts.has_post_expert_norm else y
    y = y * top_k_weights.reshape(-1)[order, None]
    return torch.zeros_like(hidden_states).index_add(0, token, y.to(hidden_states.dtype))


@functools.cache
def _gear_class(plain: Any) -> Any:
    """Return the class of a shifting layer: GearLinear, or its like for transformers' ``Conv1D`` and experts."""
    if plain is nn.Linear:
        return GearLinear

    run = _turned_product if plain in _kinds() else _expert_products

    class GearLike(plain):  # type: ignore[misc]
        _green_plain = plain

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            green: LayerGear | None = getattr(self, "_green", None)
            if green is not None and green.box.runs_fp8(self.training):
                return run(green.backend, self, *args, **kwargs)
            return plain.forward(self, *args, **kwargs)

        def __reduce_ex__(self, protocol: Any) -> Any:
            return _reduced(self, plain if type(self) is GearLike else type(self))

    return GearLike


def takes_te(model: nn.Module, name: str) -> bool:
    """Return whether Transformer Engine can multiply for a layer: an ``nn.Linear`` that is whole when it is called."""
    layer: Any = model.get_submodule(name)
    return isinstance(layer, nn.Linear) and not _splits(model, name, layer.weight)


def attach_layer(layer: nn.Module, box: Fp8Switch, backend: Fp8Backend) -> None:
    """Make a plain linear layer shift, in place.

    Args:
        layer: An ``nn.Linear``, or a ``Conv1D`` or experts of transformers; nothing of its state changes.
        box: Says when it runs in FP8.
        backend: Multiplies in FP8.

    Raises:
        TypeError: The layer is neither plainly, or shifts already.
    """
    if "_green" in vars(layer) or (type(layer) not in _kinds() and not _is_experts(layer)):
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
