"""Exact products of 8-bit integers, as fast as the processor allows.

``torch._int_mm`` is exact where oneDNN finds VNNI; with other instruction sets its 16-bit sums saturate and it is wrong
without a word (pytorch/pytorch#136746). So it is tried on the patterns that saturate before it is trusted; otherwise a
binary32 product takes its place, in pieces of the inner dimension whose sums binary32 holds exactly.
"""

import functools
from collections.abc import Callable

import torch

from greentrain.fpga_backend import contract

Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(activations int8 [m, k], weights int8 [n, k]) to int32 [m, n]: every row with every row."""


def exact_product() -> Product:
    """Return the faster of the two that is exact on this machine."""
    return int_mm if int_mm_is_exact() else float_product


def int_mm(q: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Multiply by ``torch._int_mm``; with an inner dimension of 1 it is wrong (torch 2.13, CPU), so not then."""
    if q.shape[1] == 1:
        return q.to(torch.int32) * weights.t().to(torch.int32)
    return torch._int_mm(q, weights.t())


def float_product(q: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Multiply in binary32, at most 1024 products to a sum."""
    step = contract.EXACT_F32_INNER
    total = torch.zeros(len(q), len(weights), dtype=torch.int32)
    for start in range(0, q.shape[1], step):
        part = q[:, start : start + step].float() @ weights[:, start : start + step].float().t()
        total += part.to(torch.int32)
    return total


@functools.cache
def int_mm_is_exact() -> bool:
    """Return True if ``torch._int_mm`` gives exact sums on this processor, tried once with the values that saturate.

    Shapes on both sides of a vector's length and of the blocks that libraries switch kernels at are tried, with all
    products as large as they get, and with random ones.
    """
    generator = torch.Generator().manual_seed(0)
    for rows, inner, outputs in ((1, 64, 32), (17, 384, 48), (64, 768, 64), (33, 1000, 31)):
        extreme = torch.full((rows, inner), 127, dtype=torch.int8)
        weights = torch.where(torch.rand(outputs, inner, generator=generator) < 0.5, -127, 127).to(torch.int8)
        weights[0], weights[-1] = 127, -127
        mixed = torch.randint(-127, 128, (rows, inner), dtype=torch.int8, generator=generator)
        for q in (extreme, -extreme, mixed):
            try:
                found = int_mm(q, weights)
            except RuntimeError:
                return False
            if not torch.equal(found.double(), q.double() @ weights.double().t()):
                return False
    return True
