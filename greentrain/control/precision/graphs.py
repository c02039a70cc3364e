"""CUDA graphs and gears: one capture a gear, as a graph replays the kernels it was captured with, whatever the gear."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from greentrain.control.precision.gearbox import GearBox
from greentrain.errors import ConfigError
from greentrain.types import Gear


class GearGraphs(nn.Module):
    """A module that replays the graph of the gear it is called in.

    Forward and backward are captured (``torch.cuda.make_graphed_callables``), so what is called must hold to its
    rules: fixed shapes, no data-dependent control flow, inputs that need gradients in the samples need them always.
    In eval mode it runs uncaptured.

    Args:
        box: The gears, attached to the model that ``module`` is or is a part of.
        module: Module to capture: the model, or its blocks one by one.
        sample_args: Inputs of the module, of the shapes and dtypes of training.

    Raises:
        ConfigError: There is no CUDA device, or the module is on none.
    """

    def __init__(self, box: GearBox, module: nn.Module, sample_args: tuple[Tensor, ...]) -> None:
        super().__init__()
        device = next((p.device for p in module.parameters()), torch.device("cpu"))
        if device.type != "cuda":
            raise ConfigError(f"CUDA graphs need a CUDA device, and {type(module).__name__} is on {device}: do without")
        if "forward" in vars(module):
            raise ConfigError(f"the forward of {type(module).__name__} was replaced already: capture it before that")
        self.module = module
        self._box = box
        self._by_gear: dict[Gear, Callable[..., Any]] = {}
        for gear in box.gears:
            with box.at(gear):
                torch.cuda.make_graphed_callables(module, sample_args)  # puts the graph in place of module.forward
            self._by_gear[gear] = vars(module).pop("forward")

    def forward(self, *args: Tensor) -> Any:
        """Return what the module returns, from the graph of the current gear."""
        return self._by_gear[self._box.gear](*args) if self.training else self.module(*args)
