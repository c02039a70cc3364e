"""Attention of the contract, one sequence at a time.

A sequence's scores stay in the cache, and nothing is spent on padding. Products of 8-bit integers are taken in
binary32: a head's width is at most 1024, so each sum is exact in any order; sums over more than 1024 keys go in parts.
"""

from dataclasses import dataclass

import torch

from greentrain.fpga_backend import contract
from greentrain.fpga_backend.emulator.arithmetic import quantise


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Quantised heads of some rows: integers as binary32 [heads, rows, width] and scales [heads, rows, 1]."""

    n: torch.Tensor
    scale: torch.Tensor

    @classmethod
    def of(cls, x: torch.Tensor, heads: int) -> "Heads":
        """Quantise rows [rows, heads * width] head by head."""
        n, scale = quantise(x.reshape(len(x), heads, -1), contract.Q8)
        return cls(n=n.transpose(0, 1).contiguous(), scale=scale.transpose(0, 1).contiguous())

    def then(self, later: "Heads") -> "Heads":
        """Return these rows and ``later`` behind them."""
        return Heads(n=torch.cat((self.n, later.n), dim=1), scale=torch.cat((self.scale, later.scale), dim=1))

    def repeated(self, times: int) -> "Heads":
        """Return each head ``times`` times, for the query heads that share it."""
        if times == 1:
            return self
        return Heads(n=self.n.repeat_interleave(times, dim=0), scale=self.scale.repeat_interleave(times, dim=0))

    def whole(self) -> "Heads":
        """Return the same with 0 for integers that are none; the scales still say that something was not finite."""
        return Heads(n=self.n.nan_to_num(0.0), scale=self.scale)


def weights_table(exp2: torch.Tensor) -> torch.Tensor:
    """Return attention weights by distance from the largest: integers as binary32 [4097], the last one 0."""
    steps = torch.arange(contract.ATTENTION_OCTAVES * contract.ATTENTION_STEP)
    every = 2**contract.EXP_BITS // contract.ATTENTION_STEP
    entry = exp2[(steps % contract.ATTENTION_STEP) * every].to(torch.int64)
    shifted = entry >> (contract.ATTENTION_SHIFT + steps // contract.ATTENTION_STEP)
    return torch.cat((shifted.to(torch.float32), torch.zeros(1, dtype=torch.float32)))


def attend(q: Heads, k: Heads, v: Heads, *, scale: float, causal: bool, table: torch.Tensor) -> torch.Tensor:
    """Attend from the last rows of a sequence to all of them.

    Args:
        q: Queries [heads, rows, width]; they are the last ``rows`` of the sequence.
        k: Keys [heads, keys, width].
        v: Values [heads, keys, value width].
        scale: Factor of the products, usually 1 / sqrt(width).
        causal: True if a query sees only keys up to its own.
        table: From :func:`weights_table`.

    Returns:
        Binary32 [rows, heads * value width].
    """
    rows, keys = q.n.shape[1], k.n.shape[1]
    factor = scale * contract.LOG2E * contract.ATTENTION_STEP
    finite = _finite(q, k, v, factor)
    if not finite:
        q, k, v = q.whole(), k.whole(), v.whole()
    t = torch.bmm(q.n, k.n.transpose(1, 2)).mul_(q.scale * factor).mul_(k.scale.transpose(1, 2)).round_()
    hidden = lost = None
    if causal and rows > 1:
        hidden = torch.ones(rows, keys, dtype=torch.bool, device=t.device).triu_(keys - rows + 1)
    if not finite:
        broken = ~t.isfinite()
        lost = (broken if hidden is None else broken.logical_and_(~hidden)).any(-1, keepdim=True)
        t.masked_fill_(lost, 0.0)
    if hidden is not None:
        t.masked_fill_(hidden, float("-inf"))
    last = len(table) - 1
    index = t.sub_(t.amax(-1, keepdim=True)).neg_().clamp_(max=last).to(torch.int32)
    e = torch.index_select(table, 0, index.reshape(-1)).reshape(index.shape)
    total = e.sum(-1, keepdim=True, dtype=torch.float64).to(torch.float32)
    weighed = e.mul_(v.scale.transpose(1, 2))
    if not finite and hidden is not None:
        weighed.masked_fill_(hidden, 0.0)
    p, p_scale = quantise(weighed, contract.Q8)
    y = _weighted(p, v.n).mul_(p_scale.div_(total))
    if lost is not None:
        y.masked_fill_(lost, float("nan"))
    return y.transpose(0, 1).reshape(rows, -1)


def _finite(q: Heads, k: Heads, v: Heads, factor: float) -> bool:
    """Return whether no logit or weight can leave binary32, by the scales alone; False also where one is NaN."""
    most = contract.Q8**2 * q.n.shape[-1] * float(q.scale.amax()) * abs(factor)
    bound = torch.finfo(torch.float32).max / 2**15
    return most < bound and most * float(k.scale.amax()) < bound and float(v.scale.amax()) < bound


def _weighted(p: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    step, keys = contract.EXACT_F32_INNER, p.shape[-1]
    if keys <= step:
        return torch.bmm(p, v)
    total = torch.zeros(*p.shape[:2], v.shape[-1], dtype=torch.float64, device=p.device)
    for start in range(0, keys, step):
        total += torch.bmm(p[..., start : start + step], v[:, start : start + step])
    return total.to(torch.float32)
