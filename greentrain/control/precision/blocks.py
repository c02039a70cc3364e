"""Products whose operands have a scale for each block: FP8 of 1 x 128 and 128 x 128, MXFP8 and NVFP4.

::

    blockwise  e4m3; a float32 for 1 x 128 of x and gradients, 128 x 128 of weights (DeepSeek-V3, arXiv 2412.19437)
    mxfp8      e4m3; a power of two for 1 x 32, rounded up (OCP Microscaling Formats 1.0; arXiv 2506.08027)
    nvfp4      e2m1; an e4m3 for 1 x 16 of x and gradients, 16 x 16 of weights, and a float32 for the whole; gradients
               rounded at random, both sides of the weights' gradient through a Hadamard transform (arXiv 2509.25149)

Blocks lie along what a product sums over, so each of the three products casts its operands anew. torchao has the
kernels, in prototypes read in 0.18.0, 2026-11-28. A CPU emulates: operands are cast as by torchao's references, turned
back to float32 and multiplied, as tensor cores do but for the order of sums. A block with infinity or NaN becomes NaN.
"""

import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from greentrain.control.precision.ao import _quiet
from greentrain.control.precision.backends import FORMATS
from greentrain.utils.imports import try_import
from greentrain.utils.never_raise import warn_experimental

SIGNS: Final = (1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1)
"""Of the Hadamard transform, always the same, so that a gear has no state; Transformer Engine 2.20.2 has the same."""

with _quiet("torchao", "torch.utils._pytree"), try_import("torchao") as _imports:
    from torchao.prototype.moe_training.nvfp4_training import hadamard_utils  # type: ignore[import-untyped]
    from torchao.prototype.mx_formats import config, kernels, mx_tensor, nvfp4_tensor  # type: ignore[import-untyped]

    _TURN = hadamard_utils.get_rht_matrix(SIGNS, "cpu", torch.float32, 16)

E4M3: Final = torch.float8_e4m3fn
LARGEST: Final = 448.0  # of e4m3


def cast(x: Tensor, how: str, part: str) -> Tensor:
    """Return a matrix rounded to a format, in float32.

    Args:
        x: (rows, summed), multiples of the format's block.
        how: ``blockwise``, ``mxfp8`` or ``nvfp4``.
        part: ``input``, ``weight`` or ``grad``; with ``_t`` where the product sums over the batch.
    """
    x, shape = x.float().contiguous(), x.shape
    if how == "mxfp8":
        unit, data = mx_tensor.to_mx(x, E4M3, 32, config.ScaleCalculationMode.RCEIL)
        back: Tensor = mx_tensor.to_dtype(data, unit, E4M3, 32, torch.float32)
        return back
    wide = FORMATS[how].block
    if how == "nvfp4" and part.endswith("_t"):
        x = x.view(-1, 16) @ _TURN
    tall = wide if part == "weight" else 1
    tiles = x.view(-1, tall, shape[-1] // wide, wide)
    amax = tiles.abs().amax(dim=(1, 3), keepdim=True)
    if how == "blockwise":
        scale = (LARGEST / amax.double().clamp(min=1e-12)).float()  # EPS of torchao's kernels.py
        rounded, unit = (tiles * scale).clamp(-LARGEST, LARGEST).to(E4M3).float(), 1.0 / scale
    else:
        whole = nvfp4_tensor.per_tensor_amax_to_scale(amax.max() + 2.0**-100)  # as in fp8.py
        inner = (amax / 6.0 / whole).clamp(torch.finfo(E4M3).tiny, LARGEST).to(E4M3).float()
        scaled, unit = (tiles * ((1.0 / whole) / inner)).clamp(-6.0, 6.0), inner * whole
        if part.startswith("grad"):
            step = 0.5 * (1.0 + (scaled.abs() >= 2.0) + 2.0 * (scaled.abs() >= 4.0))  # e2m1: 0 .5 1 1.5 2 3 4 6
            rounded = (scaled / step + torch.rand_like(scaled)).floor() * step
        else:
            rounded = kernels.f4_unpacked_to_f32(kernels.f32_to_f4_unpacked(scaled))
    back = (rounded * unit).view(shape)
    return back


class _Emulated(torch.autograd.Function):
    """x (M, K), weight (N, K) -> y (M, N) in the dtype of x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, how: str) -> Tensor:
        needs_x, needs_weight = ctx.needs_input_grad[:2]
        ctx.save_for_backward(x if needs_weight else None, weight if needs_x else None)
        ctx.how, ctx.dtypes = how, (x.dtype, weight.dtype)
        return (cast(x, how, "input") @ cast(weight, how, "weight").t()).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (x, weight), how, grad_x, grad_weight = ctx.saved_tensors, ctx.how, None, None
        if weight is not None:
            grad_x = (cast(grad, how, "grad") @ cast(weight.t(), how, "weight").t()).to(ctx.dtypes[0])
        if x is not None:
            grad_weight = (cast(grad.t(), how, "grad_t") @ cast(x.t(), how, "input_t").t()).to(ctx.dtypes[1])
        return grad_x, grad_weight, None


def _kernels(how: str) -> Callable[[Tensor, Tensor], Tensor]:  # differentiable, BF16 in and out
    if how == "mxfp8":
        from torchao.prototype.moe_training.mxfp8_linear import _to_mxfp8_then_scaled_mm  # type: ignore[import-untyped]
        from torchao.quantization.quantize_.common import KernelPreference  # type: ignore[import-untyped]

        return lambda x, w: _to_mxfp8_then_scaled_mm(x, w, KernelPreference.AUTO, config.ScaleCalculationMode.RCEIL)
    if how == "nvfp4":
        from torchao.prototype.moe_training.nvfp4_training import nvfp4_linear

        return lambda x, w: nvfp4_linear.nvfp4_linear(x, w, sign_vector=SIGNS)
    from torchao.prototype.blockwise_fp8_training.linear import fp8_blockwise_mm  # type: ignore[import-untyped]

    return lambda x, w: fp8_blockwise_mm.apply(x, w, 128)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockBackend:
    """Runs layers in a block format by torchao.

    Experimental on a GPU: its kernels were read, they never ran here (docs/status.md).
    """

    name: ClassVar[str] = "torchao"
    reason: str
    how: str
    kernel: Callable[[Tensor, Tensor], Tensor] | None
    """torchao's; None: emulated."""

    def linear(self, layer: nn.Linear, x: Tensor) -> Tensor:
        """Return ``x W^T + b``; rows are padded with zeros, which add nothing, and cut again."""
        device_type, weight = x.device.type, layer.weight
        if torch.is_autocast_enabled(device_type):
            x = x.to(torch.get_autocast_dtype(device_type))
        rows, form = x.reshape(-1, x.shape[-1]), FORMATS[self.how]
        padded = F.pad(rows, (0, 0, 0, -len(rows) % (form.sides if self.kernel else form.block)))
        with torch.autocast(device_type, enabled=False):  # it would round operands again
            if x.numel() == 0:
                y = F.linear(rows, weight.to(x.dtype))
            elif self.kernel is None:
                y = _Emulated.apply(padded, weight, self.how)  # type: ignore[no-untyped-call]
            else:
                y = self.kernel(padded.bfloat16(), weight.bfloat16()).to(x.dtype)
        y = y[: len(rows)].view(*x.shape[:-1], weight.shape[0])
        return y if layer.bias is None else y + layer.bias.to(y.dtype)


def open_blocks(device: torch.device, how: str, passed: str = "") -> BlockBackend:
    """Return the backend of a block format if torchao is installed.

    Args:
        device: The device on which the model runs.
        how: ``blockwise``, ``mxfp8`` or ``nvfp4``.
        passed: Added to the reason.

    Raises:
        MissingExtraError: torchao is not installed.
    """
    _imports.check()
    said, label = f"torchao {importlib.metadata.version('torchao')}", FORMATS[how].label
    if device.type == "cpu":
        said += f" rounds to {label} on {device} and multiplies in float32: its numbers, not its speed"
        return BlockBackend(reason=said + passed, how=how, kernel=None)
    kernel = _kernels(how)
    warn_experimental(f"{label} by torchao", "its kernels were read, they never ran here")
    return BlockBackend(reason=f"{said} has {label} on {device}{passed}", how=how, kernel=kernel)
