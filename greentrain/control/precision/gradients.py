"""The gradient of a few recorded samples in each gear, and how far apart they are.

All passes use the same weights, samples and dropout masks, and leave ``.grad`` alone.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from greentrain.control.precision.gearbox import GearBox
from greentrain.control.precision.layers import LayerPlan
from greentrain.control.precision.recorder import CallRecorder
from greentrain.control.precision.rehearsal import rehearsal
from greentrain.types import Gear

ELEMENTS: Final = 2**25
"""Weights that are probed: 128 MiB a gradient, of which two are kept at once (own choice) ..."""
SHARE: Final = 0.02
"""... or this share of the chosen layers', where one layer alone is larger: 16 bytes a weight are training's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Squared norms of differences of gradients, over the probed weights."""

    by_gear: Mapping[Gear, float]
    """From a gear to FP32."""
    samples: float
    """From one choice of samples to the expected gradient; NaN where a batch of one does not tell."""
    norm: float
    """Squared norm of the FP32 gradient itself."""


class Gradients:
    """Compares the gradients of a model's gears.

    Args:
        box: The gears, attached to the model.
        recorder: Has recorded a call.
        low: Gears to compare with FP32.
    """

    def __init__(self, box: GearBox, recorder: CallRecorder, low: Sequence[Gear]) -> None:
        self._box = box
        self._recorder = recorder
        self._low = tuple(low)

    def compare(self, samples: int) -> Spread:
        """Run the passes.

        Args:
            samples: How many of the recorded samples to use; an odd one is left out.

        Raises:
            RuntimeError: The recorded call cannot be made again, or nothing is trained.
        """
        model = self._model
        weights = probed_weights(model, self._box.plan)
        half = samples // 2
        both = range(2 * half or 1)
        apart = together = math.nan
        with rehearsal(model) as rewind:
            if half:
                a = self._gradient(Gear.BF16, range(half), weights, rewind, seed=1)
                b = self._gradient(Gear.BF16, range(half, 2 * half), weights, rewind, seed=2)
                apart = _square(a, b)
                together = 2 * (_square(a) + _square(b)) - apart
                del a, b
            reference = self._gradient(Gear.FP32, both, weights, rewind)
            norm = _square(reference)
            by_gear = {gear: _square(self._gradient(gear, both, weights, rewind), reference) for gear in self._low}
        # A loss that is a mean over samples is half the sum of the two halves' losses, one that is a sum is their sum.
        factor = 1.0 if norm > 0.75**2 * together else 0.5
        return Spread(by_gear=by_gear, samples=factor**2 * apart, norm=norm)

    def _gradient(
        self, gear: Gear, rows: range, weights: Sequence[Tensor], rewind: Callable[[int], None], seed: int = 0
    ) -> list[Tensor | None]:
        """Return the gradient of some recorded samples in a gear; None for a weight that they do not use."""
        replay = self._recorder.call(rows)
        assert replay is not None
        rewind(seed)
        device = weights[0].device.type
        with self._box.at(gear), _tf32(device):
            with self._box.context(device):  # not around backward, where autocast would cast what it must not
                outputs, sent_back, factor = replay.run(self._model)
            found = torch.autograd.grad(outputs, weights, sent_back, allow_unused=True)
        if all(gradient is None for gradient in found):
            raise RuntimeError(
                "no gradient reaches the probed weights alone; activation checkpointing must be torch's with"
                " use_reentrant=False"
            )
        if factor == 1.0:
            return list(found)
        return [None if gradient is None else gradient / (factor or math.nan) for gradient in found]

    @property
    def _model(self) -> nn.Module:
        assert self._box.model is not None
        return self._box.model


def probed_weights(model: nn.Module, plan: Sequence[LayerPlan]) -> list[Tensor]:
    """Return the weights whose gradients are compared.

    Of the layers that run in FP8, spread evenly over the model, as many as ELEMENTS or SHARE allow, at least one. Where
    they are frozen, as under LoRA, their noise is seen in what is trained.

    Raises:
        RuntimeError: Nothing is trained.
    """
    chosen: list[Tensor] = [model.get_submodule(layer.name).weight for layer in plan if layer.chosen]  # type: ignore[misc]
    trained = [p for p in chosen if p.requires_grad] or [p for p in model.parameters() if p.requires_grad]
    # Gradients pass through a tensor's hooks, and those of the user are for training.
    trained = [p for p in trained if not p._backward_hooks]
    if not trained:
        raise RuntimeError("no weight of the model is trained")
    budget = max(ELEMENTS, SHARE * sum(p.numel() for p in trained))
    picked: list[int] = []
    # Multiples of the golden ratio are spread evenly however many are taken, and never hit one kind of layer only.
    for index in sorted(range(len(trained)), key=lambda i: i * (math.sqrt(5) - 1) / 2 % 1):
        budget -= trained[index].numel()
        if budget < 0 and picked:
            break
        picked.append(index)
    return [trained[index] for index in sorted(picked)]


def _square(gradients: Sequence[Tensor | None], others: Sequence[Tensor | None] | None = None) -> float:
    """Return the squared norm of gradients, or of their differences from others. Waits for the device."""
    pairs = zip(gradients, others or [None] * len(gradients), strict=True)
    parts = [
        (g if other is None else g - other).square().sum(dtype=torch.float64) for g, other in pairs if g is not None
    ]
    return float(torch.stack([part.to(parts[0].device) for part in parts]).sum()) if parts else math.nan


@contextlib.contextmanager
def _tf32(device: str) -> Iterator[None]:
    """Let FP32 products of a GPU run in TF32."""
    matmul: Any = torch.backends.cuda.matmul
    before = getattr(matmul, "fp32_precision", None)  # torch 2.9 and newer; the older flag may then refuse to be read
    if device != "cuda" or (matmul.allow_tf32 if before is None else before == "tf32"):
        yield
        return
    matmul.allow_tf32 = True
    try:
        yield
    finally:
        matmul.allow_tf32 = False
        if before is not None:
            matmul.fp32_precision = before
