"""How far an FP8 product may be from the exact one, computed in float64.

A cast to a format with m mantissa bits is off by at most half a step: relatively 2^-(m+1), so 2^-4 for e4m3 and 2^-3
for e5m2; below the smallest normal number the step no longer shrinks, and half of it is 2^-10 for e4m3 and 2^-17 for
e5m2, in units of amax/448 and amax/57344. With these bounds da and db a product's element is off by at most
sum(da |b| + |a| db + da db). Added is the rounding of a sum of n terms and of the result.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from greentrain.control.precision.fp8 import COLUMN, ROW, WHOLE


@dataclass(frozen=True, slots=True)
class Format:
    relative: float
    half_step: float
    largest: float

    def error(self, x: Tensor, shared: tuple[int, ...]) -> Tensor:
        """Bound of the error of each element of a matrix, its factor shared along some dimensions."""
        amax = x.abs().amax(dim=shared, keepdim=True)
        # 2^-20: the factor and the product with it are rounded to float32 before the cast.
        return (1 + 2**-20) * (self.relative * x.abs() + self.half_step * amax / self.largest)


E4M3 = Format(2**-4, 2**-10, 448.0)
E5M2 = Format(2**-3, 2**-17, 57344.0)
RESULT = {torch.float32: 2**-24, torch.bfloat16: 2**-9, torch.float16: 2**-11}


def bound(a: Tensor, a_error: Tensor, b: Tensor, b_error: Tensor, result: torch.dtype, sum_step: float) -> Tensor:
    """Bound of ``a @ b``, elementwise.

    Args:
        a: (rows, n) float64, exact.
        a_error: Bound of its error.
        b: (n, columns).
        b_error: Bound of its error.
        result: dtype of the result.
        sum_step: Relative rounding of one addition.
    """
    casts = a_error @ b.abs() + a.abs() @ b_error + a_error @ b_error
    magnitude = a.abs() @ b.abs() + casts
    summed = a.shape[1] * sum_step * magnitude
    return casts + summed + RESULT[result] * (magnitude + summed) + 1e-30


def check(
    scaling: str, outputs: dict[str, Tensor], *, x: Tensor, w: Tensor, g: Tensor, **more: Any
) -> dict[str, float]:
    """Hold y, grad_x and grad_w against float64.

    Args:
        scaling: ``tensorwise`` or ``rowwise``.
        outputs: ``y``, ``grad_x`` and ``grad_w``.
        x: (M, K).
        w: (N, K).
        g: (M, N), the gradient of y.
        more: ``sum_step``, and ``result``, the dtype in which a product comes out before it is cast to its output's.

    Returns:
        For each output its largest error as a share of the bound.
    """
    sum_step, result = more.get("sum_step", 2**-24), more.get("result")
    x64, w64, g64 = (tensor.detach().double().cpu() for tensor in (x, w, g))
    rows, columns = (ROW, COLUMN) if scaling == "rowwise" else (WHOLE, WHOLE)
    products = {
        "y": (x64, E4M3.error(x64, rows), w64.t(), E4M3.error(w64, rows).t()),
        "grad_x": (g64, E5M2.error(g64, rows), w64, E4M3.error(w64, columns)),
        "grad_w": (g64.t(), E5M2.error(g64, columns).t(), x64, E4M3.error(x64, columns)),
    }
    shares = {}
    for name, (a, a_error, b, b_error) in products.items():
        output = outputs[name]
        limit = bound(a, a_error, b, b_error, result or output.dtype, sum_step)
        if result is not None:
            limit = limit + RESULT[output.dtype] * (a.abs() @ b.abs() + limit)
        error = (output.detach().double().cpu() - a @ b).abs()
        assert bool((error <= limit).all()), (name, scaling, float((error / limit).max()))
        shares[name] = float((error / limit).max())
    return shares
