"""A linear layer whose three matrix products run in 8-bit floating point, forward and backward.

**Formats.** e4m3 has 4 exponent and 3 mantissa bits: largest value 448, relative rounding error 2^-4, no infinity. e5m2
has 5 and 2: largest value 57344, error 2^-3. Activations and weights are e4m3, as their values are of one size and the
mantissa matters; gradients are e5m2, as they spread over many sizes and the exponent matters. (Formats: Micikevicius et
al., "FP8 Formats for Deep Learning", arXiv 2209.05433.) e5m2 times e5m2 never occurs here: no GPU multiplies that.

**Scaling.** Both formats are narrow (e4m3 reaches from 448 down to 2^-9), so a matrix is multiplied, before the cast,
by the factor that takes its largest magnitude (``amax``) to the largest value of the format, and the product is divided
by the factors again. ``amax`` is taken anew from every matrix ("dynamic"): there is no history that goes stale in
another gear, nothing to save in a checkpoint and nothing to agree on between ranks. ``tensorwise`` is one factor for a
matrix, the fastest. ``rowwise`` is one for each row of the left operand and each column of the right one, so that one
outlier costs precision in its own row only; it costs a second cast, since the factor must not vary along the dimension
that is summed over, and each matrix is in two products with another dimension summed.

**The three products.** M rows of input (all leading dimensions together), K inputs and N outputs of the layer::

                       left operand            right operand           summed   result
    forward            x    (M, K)  e4m3       w^T  (K, N)  e4m3       K        y       (M, N)
    gradient of x      g    (M, N)  e5m2       w    (N, K)  e4m3       N        grad_x  (M, K)
    gradient of w      g^T  (N, M)  e5m2       x    (M, K)  e4m3       M        grad_w  (N, K)

**Layouts.** FP8 units of a GPU (before Blackwell) read both operands along the summed dimension: the left one is
row-major, the right one column-major. So an :class:`Operand` is always held as (rows, summed) and row-major; on the
right that is the transpose, and the product takes ``left`` and ``right.t()``, a view. Forward has both as they are;
backward transposes all but the first g by a copy of one byte an element. Factors are float32 of shape (1, 1) or
(rows, 1): a matrix and not a number, so that a BF16 matrix times its factor is computed in float32 without a copy.

**Padding.** On a GPU the summed dimension and the columns of the result are multiples of 16. Layers have such K and N
(``layers.py`` skips the others), but M is whatever the batch is, and it is summed over in the gradient of w: operands
are padded with zeros, which add exactly nothing.

**Error.** Let u be the relative rounding error of an operand's format, and d half its smallest step at this scale
(amax/448 * 2^-10 for e4m3, amax/57344 * 2^-17 for e5m2). A cast is off by at most da = u*abs(a) + d, so an element of
the product is off by at most sum(da*abs(b) + abs(a)*db + da*db), and by the rounding of sum and result.
``tests/control/precision/test_fp8.py`` holds all three products against float64 within this.

**Overflow.** Casts to e4m3 saturate: infinity would come out as 448, and a run that diverged would look healthy. Here
the factor takes care of it: an infinite amax makes it 0, infinity times 0 is NaN, and NaN stays NaN through amax, cast
and product. A finite amax cannot overflow, so nothing is clamped. (Nor is the factor: min and max beside a transposed
FP8 store are miscompiled to NaN by some versions of Triton, github.com/triton-lang/triton/issues/11111.)

**Kept for backward.** Tensorwise keeps x in FP8, one byte an element instead of two or four. Rowwise keeps x as it
came, as the gradient of w needs other factors. The weight is kept by reference and cast again, so that nothing of it
outlives the forward pass where it is gathered layer by layer (FSDP, ZeRO-3). What needs no gradient is not computed.

Limits of the GPU as in PyTorch's aten/src/ATen/native/cuda/ScaledBlas.cpp and RowwiseScaledMM.cu, 2026-11-21. The same
code runs on CPU (torch 2.13) with real FP8 operands and a float32 sum. nanochat's ``fp8.py`` chose likewise to make its
own product in a few dozen lines instead of converting the model.
"""

from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

E4M3: Final = torch.float8_e4m3fn
E5M2: Final = torch.float8_e5m2
TINY: Final = 2.0**-100
"""Added to amax (so 0 does not divide): far below any amax of interest, and 57344 / 2^-100 is still a float32."""
WHOLE, ROW, COLUMN = (0, 1), (1,), (0,)
"""The dimensions of a matrix that share a factor."""
DTYPES: Final = (torch.float32, torch.bfloat16, torch.float16)
"""What comes in and goes out."""


class Gemm(NamedTuple):
    """How a device wants two FP8 matrices multiplied."""

    multiple_of: int
    """Summed dimension and columns are padded to a multiple of this."""
    rowwise_dtype: torch.dtype | None
    """The only result that it has for rowwise scaling; None: any of DTYPES."""
    public: bool = torch.__version__ >= "2.13"
    """Call ``torch.nn.functional.scaled_mm``, which the compiler of torch 2.10 to 2.12 does not know (pytorch issue
    180604, pull 182527), instead of ``torch._scaled_mm``."""

    @staticmethod
    def on(device_type: str) -> "Gemm":
        """Return what a device needs: nothing on CPU; elsewhere multiples of 16 and, rowwise, BF16."""
        return _CPU if device_type == "cpu" else _GPU


_CPU: Final = Gemm(multiple_of=1, rowwise_dtype=None)
_GPU: Final = Gemm(multiple_of=16, rowwise_dtype=torch.bfloat16)


class Operand(NamedTuple):
    """A matrix in FP8."""

    data: Tensor
    """(rows, summed), row-major."""
    unit: Tensor
    """float32 (rows, 1) or (1, 1): what an element of ``data`` is worth."""

    def transposed(self) -> "Operand":
        """Return the transpose, row-major again."""
        return Operand(self.data.t().contiguous(), self.unit.reshape(-1).view(-1, 1))


def quantize(x: Tensor, dtype: torch.dtype, shared: tuple[int, ...]) -> Operand:
    """Cast a matrix to FP8 so that the largest magnitude becomes the largest value of the format.

    Args:
        x: (rows, columns), not empty, one of DTYPES.
        dtype: E4M3 or E5M2.
        shared: WHOLE, ROW or COLUMN: along what one factor is shared.
    """
    x = x.reshape(-1).view(x.shape)  # row-major, also where a single row came with other strides
    scale = torch.finfo(dtype).max / (x.abs().amax(dim=shared, keepdim=True).float() + TINY)
    return Operand((x * scale).to(dtype), scale.reciprocal())


def multiply(left: Operand, right: Operand, scaling: str, dtype: torch.dtype, gemm: Gemm, fast: bool = False) -> Tensor:
    """Return ``left @ right^T``.

    Args:
        left: (rows, summed).
        right: (columns, summed).
        scaling: ``tensorwise`` or ``rowwise``.
        dtype: The type of the result.
        gemm: Padding and result type that FP8 products need on the device.
        fast: Sum in the tensor core's own, shorter accumulator: the forward pass can afford it (TE and torchao do so).

    Returns:
        (rows, columns).
    """
    rowwise = scaling == "rowwise"
    columns = right.data.shape[0]
    more, wider = -left.data.shape[1] % gemm.multiple_of, -columns % gemm.multiple_of
    a, a_unit, b, b_unit = left.data, left.unit, right.data, right.unit.t()
    if more or wider:
        a, b = F.pad(a, (0, more)), F.pad(b, (0, more, 0, wider))
        b_unit = F.pad(b_unit, (0, wider), value=1.0) if rowwise else b_unit
    out = gemm.rowwise_dtype if rowwise and gemm.rowwise_dtype else dtype
    if gemm.public:
        recipe = F.ScalingType.RowWise if rowwise else F.ScalingType.TensorWise
        y = F.scaled_mm(a, b.t(), a_unit, recipe, b_unit, recipe, output_dtype=out, use_fast_accum=fast)
    else:
        y = torch._scaled_mm(a, b.t(), a_unit, b_unit, out_dtype=out, use_fast_accum=fast)
    return (y[:, :columns] if wider else y).to(dtype)


class _Fp8Linear(torch.autograd.Function):
    """x (M, K), weight (N, K) -> y (M, N) in the dtype of x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, scaling: str, gemm: Gemm) -> Tensor:
        along = ROW if scaling == "rowwise" else WHOLE
        x8, w8 = quantize(x, E4M3, along), quantize(weight, E4M3, along)
        needs_x, needs_weight = ctx.needs_input_grad[:2]
        kept = (x, None) if scaling == "rowwise" else x8  # rowwise, backward sums over rows and needs other factors
        ctx.save_for_backward(*(kept if needs_weight else (None, None)), weight if needs_x else None)
        ctx.scaling, ctx.gemm, ctx.x_dtype, ctx.weight_dtype = scaling, gemm, x.dtype, weight.dtype
        return multiply(x8, w8, scaling, x.dtype, gemm, fast=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, x_unit, weight = ctx.saved_tensors
        rowwise, gemm = ctx.scaling == "rowwise", ctx.gemm
        # A factor must not vary along what a product sums over: ``along`` is for a matrix whose columns it sums,
        # ``across`` for one whose rows it sums.
        along, across = (ROW, COLUMN) if rowwise else (WHOLE, WHOLE)
        grad_x = grad_weight = g8 = None
        if weight is not None:
            g8, w8 = quantize(grad, E5M2, along), quantize(weight, E4M3, across)
            grad_x = multiply(g8, w8.transposed(), ctx.scaling, ctx.x_dtype, gemm)
        if x is not None:
            g8 = quantize(grad, E5M2, across) if rowwise or g8 is None else g8
            x8 = quantize(x, E4M3, across) if rowwise else Operand(x, x_unit)
            grad_weight = multiply(g8.transposed(), x8.transposed(), ctx.scaling, ctx.weight_dtype, gemm)
        return grad_x, grad_weight, None, None


def fp8_linear(x: Tensor, weight: Tensor, scaling: str = "tensorwise", gemm: Gemm | None = None) -> Tensor:
    """Return ``x @ weight^T`` with all three products in FP8; differentiable once.

    Args:
        x: (..., K) in float32, bfloat16 or float16; any leading dimensions, also none or empty ones.
        weight: (N, K) in one of those; cast to FP8 from its own dtype, not through autocast's.
        scaling: ``tensorwise`` or ``rowwise``.
        gemm: Padding and result type that FP8 products need on the device; None looks it up.

    Returns:
        (..., N) in autocast's dtype where autocast is on, else in that of x. A gradient has the dtype of its tensor.

    Raises:
        TypeError: x has another dtype.
    """
    device_type = x.device.type
    if torch.is_autocast_enabled(device_type) and x.dtype in DTYPES:
        x = x.to(torch.get_autocast_dtype(device_type))
    if x.dtype not in DTYPES:
        raise TypeError(f"an FP8 product takes float32, bfloat16 or float16, not {x.dtype}: cast the layer's input")
    if x.numel() == 0 or weight.numel() == 0:
        return F.linear(x, weight.to(x.dtype))
    rows, gemm = x.reshape(-1, x.shape[-1]), gemm or Gemm.on(device_type)
    if device_type == "cpu" and torch.is_autocast_enabled("cpu"):
        # The CPU's product is made of torch's own, and autocast would round its operands again (torch 2.13).
        with torch.autocast("cpu", enabled=False):
            y: Tensor = _Fp8Linear.apply(rows, weight, scaling, gemm)  # type: ignore[no-untyped-call]
    else:
        y = _Fp8Linear.apply(rows, weight, scaling, gemm)  # type: ignore[no-untyped-call]
    return y.view(*x.shape[:-1], weight.shape[0])
