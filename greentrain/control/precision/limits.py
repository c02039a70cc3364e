"""Which gears cannot work where: refused before training, with the reason."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from greentrain.errors import ConfigError
from greentrain.types import Gear

_GEAR_OF = {torch.float32: Gear.FP32, torch.bfloat16: Gear.BF16, torch.float16: Gear.FP16}


def unwrap(model: nn.Module) -> nn.Module:
    """Return the model inside torch.compile, DataParallel, DDP, FSDP 1 and DeepSpeed."""
    while True:
        inner = vars(model).get("_modules", {}).get("_orig_mod")
        if inner is None and (_is_engine(model) or type(model).__name__ in _WRAPPERS):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def check_gears(model: nn.Module, gears: Sequence[Gear], device: torch.device) -> None:
    """Check that the gears can work with this model on this device.

    Args:
        model: The model in all its wrappers.
        gears: Gears of the run.
        device: Where it will run.

    Raises:
        ConfigError: Names gear, place and remedy.
    """
    if isinstance(model, torch.jit.ScriptModule):
        raise ConfigError(
            "a TorchScript model cannot shift gears: its precision is compiled in; pass the module itself"
        )
    if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        needs = [gear for gear in gears if gear in (Gear.BF16, Gear.FP8)]
        _refuse(needs, f"{torch.cuda.get_device_name(device)} has no BF16", "use fp32 and fp16")
    for dtype, where, remedy in _fixed(model):
        allowed = {_GEAR_OF.get(dtype)} | ({Gear.FP8} if dtype is torch.bfloat16 else set())
        _refuse([gear for gear in gears if gear not in allowed], f"{where} {str(dtype).removeprefix('torch.')}", remedy)


def _refuse(gears: Sequence[Gear], why: str, remedy: str) -> None:
    if gears:
        names = ", ".join(gears)
        raise ConfigError(f"precision.gears holds {names}, which cannot work here: {why}; {remedy}")


def _fixed(model: nn.Module) -> Iterable[tuple[torch.dtype, str, str]]:
    """Yield what fixes the precision whatever autocast says: dtype, place and remedy."""
    if _is_engine(model):
        for method, dtype in (("bfloat16_enabled", torch.bfloat16), ("fp16_enabled", torch.float16)):
            if getattr(model, method, bool)():
                yield (
                    dtype,
                    "DeepSpeed keeps the weights in",
                    "turn its bf16/fp16 section off and use torch_autocast, or keep to that gear (and fp8 with bf16)",
                )
                return
    for module in model.modules():
        gathered = _policy_dtype(module)
        if gathered is not None and gathered is not torch.float32:
            yield (
                gathered,
                f"{type(module).__name__} gathers its weights in",
                "drop param_dtype from its mixed-precision policy (the gears cast), or keep to that gear (and fp8 with"
                " bfloat16)",
            )
            return
    for name, parameter in model.named_parameters():
        if parameter.dtype in (torch.bfloat16, torch.float16) and parameter.requires_grad:
            yield (
                parameter.dtype,
                f"the trained weight {name} is stored in",
                "load the model in float32, as mixed-precision training does, or keep to that gear (and fp8 with"
                " bfloat16)",
            )
            return


def _policy_dtype(module: nn.Module) -> torch.dtype | None:
    """Return the dtype in which FSDP 1 or 2 gathers this module's weights, where it says."""
    state: Any = getattr(type(module), "_get_fsdp_state", None)
    if state is not None:  # FSDP 2, fully_shard
        policy = getattr(state(module), "_mp_policy", None)
    else:  # FSDP 1
        policy = getattr(module, "mixed_precision", None) if type(module).__name__ in _WRAPPERS else None
    dtype: Any = getattr(policy, "param_dtype", None)
    return dtype if isinstance(dtype, torch.dtype) else None


def _is_engine(model: Any) -> bool:
    return any(kind.__name__ == "DeepSpeedEngine" for kind in type(model).__mro__)


_WRAPPERS = ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel")
