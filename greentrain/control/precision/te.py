"""NVIDIA Transformer Engine 2.9 and newer as a backend; CUDA only.

A layer keeps its class and its Parameters. For each a ``te.Linear`` is built on the device ``meta`` (so it allocates
and draws nothing), given the layer's own Parameters and kept here under a weak key: it is in no state_dict, module
tree, copy or pickle. The Parameters are given anew whenever the layer's are other objects, as FSDP 2 makes them.

The recipes are those of RECIPES, one object for the whole run: they are stateless, where ``DelayedScaling`` keeps
histories that go stale in another gear and reduces them over ranks. ``quantized_model_init`` is never used: weights
that exist in FP8 alone have no other gear. Read from the source of transformer-engine 2.20.2, 2026-11-21.
"""

import importlib
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from greentrain.control.precision.backends import FORMATS
from greentrain.errors import ConfigError, MissingExtraError
from greentrain.utils.never_raise import warn_experimental

RECIPES: Final = {
    "tensorwise": ("Float8CurrentScaling", "is_fp8_available"),
    "blockwise": ("Float8BlockScaling", "is_fp8_block_scaling_available"),
    "mxfp8": ("MXFP8BlockScaling", "is_mxfp8_available"),
    "nvfp4": ("NVFP4BlockScaling", "is_nvfp4_available"),
}
"""Recipe of a scaling or gear, and who says that the GPU has it (common/recipe and pytorch/quantization.py, 2.20.2)."""


class TeBackend:
    """Runs layers through ``te.Linear``.

    Experimental: its interface was read and imitated, it never ran on a GPU (docs/status.md).

    Args:
        te: The module ``transformer_engine.pytorch``.
        recipe: The recipe of every call.
        reason: Why this backend.
        how: One of RECIPES.
    """

    name = "transformer_engine"

    def __init__(self, te: Any, recipe: Any, reason: str, how: str = "tensorwise") -> None:
        self.reason = reason
        self.how = how
        self._multiple = FORMATS[how].sides
        self._te = te
        self._recipe = recipe
        self._helpers: WeakKeyDictionary[nn.Linear, nn.Module] = WeakKeyDictionary()

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def linear(self, layer: nn.Linear, x: Tensor) -> Tensor:
        """Return ``x W^T + b``, rows padded to whole blocks and cut again. A graph break under torch.compile."""
        autocast = torch.is_autocast_enabled(x.device.type)
        given = x.dtype
        if not autocast:  # Transformer Engine takes no other dtype than the weight's there.
            x = x.to(layer.weight.dtype)
        if x.numel() == 0:
            y = F.linear(x, layer.weight, layer.bias)
        else:
            rows = x.reshape(-1, x.shape[-1])
            padded = F.pad(rows, (0, 0, 0, -len(rows) % self._multiple))
            here = x.device if x.is_cuda else -1  # kernels run, and memory is had, on the current device
            with torch.cuda.device(here), self._te.autocast(enabled=True, recipe=self._recipe):
                y = self._helper(layer)(padded)
            y = y[: len(rows)].reshape(*x.shape[:-1], layer.out_features)
        return y if autocast else y.to(given)

    def _helper(self, layer: nn.Linear) -> nn.Module:
        helper = self._helpers.get(layer)
        if helper is None:
            helper = self._te.Linear(
                layer.in_features,
                layer.out_features,
                bias=layer.bias is not None,
                params_dtype=layer.weight.dtype,
                device="meta",
            )
            self._helpers[layer] = helper
        # Not setattr: inside FSDP 1 and DataParallel a weight is no Parameter.
        held: dict[str, Any] = helper._parameters
        if held["weight"] is not layer.weight:
            held["weight"] = layer.weight
        if layer.bias is not None and held["bias"] is not layer.bias:
            held["bias"] = layer.bias
        return helper


def open_te(device: torch.device, scaling: str, passed: str = "") -> TeBackend:
    """Return the backend if Transformer Engine is here and its FP8 runs on the GPU.

    Args:
        device: The device on which the model runs.
        scaling: One of RECIPES; there is none for ``rowwise``.
        passed: Added to the reason.

    Raises:
        MissingExtraError: It cannot be imported.
        ConfigError: Device, scaling or version do not fit.
    """
    if device.type != "cuda":
        raise ConfigError(f"Transformer Engine runs on CUDA only, and the device is {device}")
    if scaling not in RECIPES:
        raise ConfigError(f"its Float8CurrentScaling is tensorwise, and precision.scaling is {scaling!r}")
    kind, available = RECIPES[scaling]
    try:
        te = importlib.import_module("transformer_engine.pytorch")
        recipes = importlib.import_module("transformer_engine.common.recipe")
        version = importlib.import_module("transformer_engine").__version__
    except Exception as error:  # Without its CUDA part the package raises RuntimeError, not ImportError.
        raise MissingExtraError(
            f"Transformer Engine cannot be imported ({error}): pip install --no-build-isolation"
            " 'transformer-engine[pytorch]'"
        ) from error
    if not hasattr(te, "autocast"):
        raise ConfigError(f"transformer-engine is {version}; 2.9 or newer has te.autocast: update it")
    label = "FP8" if scaling == "tensorwise" else kind
    if not hasattr(recipes, kind) or not hasattr(te, available):
        raise ConfigError(f"transformer-engine is {version} and has no {kind}: update it")
    works, why = getattr(te, available)(return_reason=True)
    if not works:
        raise ConfigError(f"Transformer Engine {version} has no {label} here: {why}")
    if getattr(te, "__file__", None):  # else a stand-in
        warn_experimental(
            f"{label} by Transformer Engine", "its interface was read and imitated, it never ran on a GPU"
        )
    reason = f"Transformer Engine {version} has {label} on {device}{passed}"
    return TeBackend(te, getattr(recipes, kind)(), reason, scaling)
