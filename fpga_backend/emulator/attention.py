"""Attention of the contract, one sequence at a time.

A sequence's scores stay in the cache, and nothing is spent on padding. Products of 8-bit integers are taken in
binary32: a head's width is at most 1024, so each sum is exact in any order; sums over more than 1024 keys go in parts.
"""

from dataclasses import dataclass

import torch

from greentrain.fpga_backend import contract
from greentrain.fpga_backend.emulator.arithmetic import quantise, ratio


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

    def some(self, first: int, count: int) -> "Heads":
        """Return ``count`` heads from ``first`` on."""
        return Heads(n=self.n[first : first + count], scale=self.scale[first : first + count])

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


def attend(q: Heads, k: Heads, v: Heads, out: torch.Tensor, *, scale: float, causal: bool, table: torch.Tensor) -> None:
    """Attend from the last rows of a sequence to all of them.

    Args:
        q: Queries [heads, rows, width]; they are the last ``rows`` of the sequence.
        k: Keys [heads, keys, width].
        v: Values [heads, keys, value width].
        out: Where the result goes, binary32 [rows, heads * value width], contiguous.
        scale: Factor of the products, usually 1 / sqrt(width).
        causal: True if a query sees only keys up to its own.
        table: From :func:`weights_table`.
    """
    rows, keys = q.n.shape[1], k.n.shape[1]
    factor = scale * contract.LOG2E * contract.ATTENTION_STEP
    hidden = None
    if causal and rows > 1:
        hidden = torch.ones(rows, keys, dtype=torch.bool, device=q.n.device).triu_(keys - rows + 1)
    into = out.view(rows, len(q.n), -1).transpose(0, 1)
    if _finite(q, k, v, factor):
        _attend_finite(q, k, v, factor, hidden, table, into)
    else:
        into.copy_(_attend_broken(q.whole(), k.whole(), v.whole(), factor, hidden, table))


def _attend_finite(
    q: Heads, k: Heads, v: Heads, factor: float, hidden: torch.Tensor | None, table: torch.Tensor, out: torch.Tensor
) -> None:
    t = torch.bmm(q.n, k.n.transpose(1, 2)).mul_(q.scale * factor).mul_(k.scale.transpose(1, 2)).round_()
    if hidden is not None:
        t.masked_fill_(hidden, float("-inf"))
    index = torch.sub(t.amax(-1, keepdim=True), t, out=t).clamp_(max=len(table) - 1).to(torch.int32)
    e = torch.index_select(table, 0, index.view(-1)).view(index.shape)
    exact = t.shape[-1] <= contract.EXACT_F32_INNER // 2  # keys of 2^15 each stay below 2^24
    total = e.sum(-1, keepdim=True) if exact else e.sum(-1, keepdim=True, dtype=torch.float64).to(torch.float32)
    weighed = e.mul_(v.scale.transpose(1, 2))
    peak = weighed.amax(-1, keepdim=True).clamp_min_(contract.ROW_FLOOR)  # none is negative
    y = _weighted(weighed.mul_(ratio(contract.Q8, peak)).round_(), v.n)
    torch.mul(y, peak.mul_(1.0 / contract.Q8).div_(total), out=out)


def _attend_broken(
    q: Heads, k: Heads, v: Heads, factor: float, hidden: torch.Tensor | None, table: torch.Tensor
) -> torch.Tensor:
    """Attend where a logit or a weight may not be finite: a query that sees such a one gets NaN, others their bits."""
    t = torch.bmm(q.n, k.n.transpose(1, 2)).mul_(q.scale * factor).mul_(k.scale.transpose(1, 2)).round_()
    broken = ~t.isfinite()
    lost = (broken if hidden is None else broken.logical_and_(~hidden)).any(-1, keepdim=True)
    t.masked_fill_(lost, 0.0)
    if hidden is not None:
        t.masked_fill_(hidden, float("-inf"))
    index = t.sub_(t.amax(-1, keepdim=True)).neg_().clamp_(max=len(table) - 1).to(torch.int32)
    e = torch.index_select(table, 0, index.reshape(-1)).reshape(index.shape)
    total = e.sum(-1, keepdim=True, dtype=torch.float64).to(torch.float32)
    weighed = e.mul_(v.scale.transpose(1, 2))
    if hidden is not None:
        weighed.masked_fill_(hidden, 0.0)
    p, p_scale = quantise(weighed, contract.Q8)
    return _weighted(p, v.n).mul_(p_scale.div_(total)).masked_fill_(lost, float("nan"))


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
