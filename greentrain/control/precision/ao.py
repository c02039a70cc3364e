"""torchao's float8 training as a backend, without converting the model.

torchao swaps ``nn.Linear`` for its ``Float8Linear``, which cannot be switched off and reads autocast's dtype of CUDA
only. The autograd function below it is all that a gear needs: stateless, on the layer's own Parameters. It is no public
API (torchao says so of ``Float8Linear`` too), so the trial of ``choose_backend`` comes first. Read from torchao 0.18.0,
torchao/float8/float8_linear.py, 2026-11-21.
"""

import contextlib
import dataclasses
import importlib.metadata
import logging
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from greentrain.utils.imports import try_import


@contextlib.contextmanager
def _quiet(*loggers: str) -> Iterator[None]:
    """Let only errors through: on import torchao warns of every kernel library that is for another device."""
    before = {name: logging.getLogger(name).level for name in loggers}
    for name in loggers:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


with _quiet("torchao", "torch.utils._pytree"), try_import("torchao") as _imports:
    from torchao.float8.config import Float8LinearConfig  # type: ignore[import-untyped]
    from torchao.float8.float8_linear import (  # type: ignore[import-untyped]
        Float8Linear,
        matmul_with_hp_or_float8_args,
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AoBackend:
    """Runs layers through torchao's autograd function."""

    name: ClassVar[str] = "torchao"
    reason: str
    config: Any
    """Float8LinearConfig: what is cast how."""
    gemms: Any
    """LinearMMConfig: how each of the three products runs."""

    def linear(self, layer: nn.Linear, x: Tensor) -> Tensor:
        """Return ``x W^T + b``; the bias is added in the dtype of the result."""
        device_type = x.device.type
        if torch.is_autocast_enabled(device_type):
            x = x.to(torch.get_autocast_dtype(device_type))
        if x.numel() == 0:
            return F.linear(x, layer.weight.to(x.dtype), None if layer.bias is None else layer.bias.to(x.dtype))
        y: Tensor = matmul_with_hp_or_float8_args.apply(x, layer.weight.t(), self.gemms, self.config)
        return y if layer.bias is None else y + layer.bias.to(y.dtype)


def open_ao(device: torch.device, scaling: str, passed: str = "") -> AoBackend:
    """Return the backend if torchao is installed.

    Args:
        device: The device on which the model runs.
        scaling: ``tensorwise`` or ``rowwise``: torchao's recipe of that name.
        passed: Added to the reason.

    Raises:
        MissingExtraError: torchao is not installed.
    """
    _imports.check()
    # Its inner dimensions are padded by itself: in the gradient of the weight that is the number of rows.
    config = dataclasses.replace(Float8LinearConfig.from_recipe_name(scaling), pad_inner_dim=True)
    with torch.device("meta"):
        gemms = Float8Linear(16, 16, bias=False, config=config).linear_mm_config
    version = importlib.metadata.version("torchao")
    return AoBackend(reason=f"torchao {version} works on {device.type}{passed}", config=config, gemms=gemms)
