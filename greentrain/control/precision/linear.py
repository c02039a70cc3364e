"""A linear layer that shifts: ``nn.Linear`` by another class, on the same instance.

Its Parameters stay the very objects that the optimizer, DDP and an EMA hold, its state_dict keeps its keys, and a gear
is one attribute read in forward: torch.compile guards on it and makes one graph a gear. Copies and pickles are plain
``nn.Linear`` again: a copy that shifted would follow the box of its original, and a checkpoint would need GreenTrain.
"""

import copyreg
from dataclasses import dataclass
from typing import Any, Protocol

import torch.nn.functional as F
from torch import Tensor, nn

from greentrain.control.precision.backends import Fp8Backend


class Fp8Switch(Protocol):
    """What a layer asks on every call."""

    def runs_fp8(self, training: bool) -> bool:
        """Return whether the layer runs in FP8 now."""
        ...


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
        plain = nn.Linear if type(self) is GearLinear else type(self)
        state = {key: value for key, value in vars(self).items() if key != "_green"}
        # Not copyreg.__newobj__: pickle refuses that for another class than the object's own.
        return copyreg._reconstructor, (plain, object, None), state  # type: ignore[attr-defined]


def attach_layer(linear: nn.Linear, box: Fp8Switch, backend: Fp8Backend) -> None:
    """Make a plain linear layer shift, in place.

    Args:
        linear: The layer; nothing of its state changes.
        box: Says when it runs in FP8.
        backend: Multiplies in FP8.

    Raises:
        TypeError: It is not a plain ``nn.Linear``, or shifts already.
    """
    if type(linear) is not nn.Linear:
        raise TypeError(f"only a plain nn.Linear can shift, and this is a {type(linear).__name__}: leave it out")
    object.__setattr__(linear, "_green", LayerGear(box=box, backend=backend))
    linear.__class__ = GearLinear


def detach_layer(linear: nn.Linear) -> None:
    """Make a layer plain again. Idempotent."""
    vars(linear).pop("_green", None)
    if type(linear) is GearLinear:
        linear.__class__ = nn.Linear  # type: ignore[assignment]
