"""The contract's operators in torch. Each is a function of tensors, eager or compiled.

Only elementwise binary32 operators and integer sums occur, so the order in which torch works through a tensor, the
number of threads and the number of rows do not matter. Sums of integers are taken in binary64: they stay below 2^53.

Products of 8-bit integers are as fast as the processor allows. ``torch._int_mm`` is exact where oneDNN finds VNNI; with
other instruction sets its 16-bit sums saturate and it is wrong without a word (pytorch/pytorch#136746), or it is exact
and a plain loop: 2 GMAC/s beside 53 in binary32 on two cores with AVX2 (torch 2.13). So it is tried on the patterns
that saturate, and against the clock, before it is taken; otherwise a binary32 product takes its place, in pieces of the
inner dimension whose sums binary32 holds exactly.

Attention takes one sequence at a time: its scores stay in the cache, and nothing is spent on padding. Its products are
taken in binary32: a head's width is at most 1024, so each sum is exact in any order; sums over more than 1024 keys go
in parts.
"""

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from greentrain.fpga_backend import contract
from greentrain.fpga_backend.batch import Packed
from greentrain.fpga_backend.program import Pool


def quantise(x: torch.Tensor, largest: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise rows.

    Args:
        x: Binary32 [..., width].
        largest: Q: magnitude that a row's largest element gets.

    Returns:
        Integers as binary32 [..., width], and scales [..., 1].
    """
    return scaled(x, x.abs().amax(dim=-1, keepdim=True), largest)


def scaled(x: torch.Tensor, peak: torch.Tensor, largest: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise with given absolute maxima [..., 1]; returns as :func:`quantise`."""
    floor = peak.clamp_min(contract.ROW_FLOOR)
    return torch.mul(x, ratio(largest, floor)).round_(), floor * (1.0 / largest)


def two_digits(n: torch.Tensor) -> torch.Tensor:
    """Split integers of at most ``Q16D`` [rows, width] into digits, int8 [2 * rows, width]: all high, then all low.

    The nearest integer to n / 255 is the contract's floor((n + 127) / 255): the low digit is at most 127, which is no
    more than 0.4981 of the base, so no rounding of the quotient reaches the next integer.
    """
    high = torch.mul(n, 1.0 / contract.DIGIT_BASE).round_()
    return torch.cat((high, n - contract.DIGIT_BASE * high)).to(torch.int8)


def joined(acc: torch.Tensor) -> torch.Tensor:
    """Add up the sums of :func:`two_digits`, int32 [2 * rows, n]: integers in binary64 [rows, n], exact."""
    high, low = acc.to(torch.float64).chunk(2)
    return high.mul(contract.DIGIT_BASE).add_(low)


def ratio(number: float, divisor: torch.Tensor) -> torch.Tensor:
    """Divide a number by a tensor with one rounding: ``number / tensor`` multiplies by a reciprocal, which is two."""
    return torch.full_like(divisor, number).div_(divisor)


def dequantise(
    acc: torch.Tensor, scale: torch.Tensor, weight_scale: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """Turn integer sums [rows, n] into binary32.

    Args:
        acc: Sums, int32, or integers in binary64.
        scale: Scale of each row [rows, 1].
        weight_scale: Scale of each output [n].
        bias: Bias of each output [n], or None.
    """
    y = acc.to(torch.float32).mul_(scale).mul_(weight_scale)
    return y if bias is None else y.add_(bias)


def root(x: torch.Tensor) -> torch.Tensor:
    """Take the square root of binary32, correctly rounded.

    ``torch.sqrt`` on binary32 goes through MKL's vector library, which is off by one bit now and then (seen in 20 % of
    random numbers with torch 2.13). By way of binary64 a root is right: it has more than twice the bits, plus two.
    """
    return torch.sqrt(x.to(torch.float64)).to(torch.float32)


def norm(x: torch.Tensor, gain: torch.Tensor, bias: torch.Tensor | None, eps: float, *, centre: bool) -> torch.Tensor:
    """Normalise rows [rows, width]; ``centre`` takes the mean off first."""
    width = x.shape[-1]
    n, scale = quantise(x, contract.Q20)
    if centre:
        total = n.sum(-1, keepdim=True, dtype=torch.float64).to(torch.int64)
        mean = torch.div(2 * total + width, 2 * width, rounding_mode="floor")
        n = n.sub_(mean.to(torch.float32))
    wide = n.to(torch.float64)
    squares = wide.mul_(wide).sum(-1, keepdim=True).to(torch.float32)
    variance = squares / torch.full_like(squares, width)
    y = n.mul_(ratio(1.0, root(variance + ratio(eps, scale * scale)))).mul_(gain)
    return y if bias is None else y.add_(bias)


def gate(x: torch.Tensor, table: torch.Tensor, up: torch.Tensor | None, *, times_x: bool) -> torch.Tensor:
    """Apply an activation by table.

    Args:
        x: Arguments of the activation, binary32.
        table: The contract's integers / 2^15, binary32 [8192].
        up: Factor of the same shape, or None.
        times_x: True for a gate, False where the table holds the value.
    """
    half = contract.GATE_HALF
    step = torch.mul(x, float(contract.GATE_STEP)).round_().nan_to_num_(-float(half)).clamp_(-half, half - 1)
    y = torch.index_select(table, 0, step.add_(half).to(torch.int32).reshape(-1)).reshape(x.shape)
    y = y.mul_(x) if times_x else torch.where(x.isnan(), x, y)
    return y if up is None else y.mul_(up)


def relu(x: torch.Tensor, up: torch.Tensor | None) -> torch.Tensor:
    """Keep what is above 0, and NaN; anything else is +0."""
    y = torch.where(x <= 0, 0.0, x)
    return y if up is None else y.mul_(up)


def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, heads: int) -> torch.Tensor:
    """Rotate the heads of rows [rows, heads * h] by cosines and sines [rows, h / 2]."""
    rows, width = x.shape
    half = width // heads // 2
    pairs = x.reshape(rows, heads, 2, half)
    first, second = pairs[:, :, 0], pairs[:, :, 1]
    c, s = cos[:, None], sin[:, None]
    turned = torch.stack((first * c - second * s, second * c + first * s), dim=2)
    return turned.reshape(rows, width)


Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(activations int8 [m, k], weights int8 [n, k]) to int32 [m, n]: every row with every row."""


TRIED: Final = (128, 512, 512)
"""Rows, inner dimension and outputs of the product that is timed: a fiftieth of a second where it is a plain loop."""


@functools.cache
def exact_product() -> Product:
    """Return the faster of those that are exact on this machine, tried once."""
    return faster((int_mm, float_product) if int_mm_is_exact() else (float_product,))


def faster(products: Sequence[Product], now_s: Callable[[], float] = time.perf_counter) -> Product:
    """Return the product that takes the shortest time; the first of them where there is but one.

    Args:
        products: Products that are exact here.
        now_s: Clock.
    """
    if len(products) == 1:
        return products[0]
    rows, inner, outputs = TRIED
    q, weights = (torch.ones(n, inner, dtype=torch.int8) for n in (rows, outputs))

    def took_s(product: Product) -> float:
        begun_s = now_s()
        product(q, weights)
        return now_s() - begun_s

    for product in products:
        product(q, weights)  # the first call of each also looks for its kernel
    return min(products, key=lambda product: min(took_s(product) for _ in range(3)))


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


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantisedHeads:
    """Quantised heads of some rows: integers as binary32 [heads, rows, width] and scales [heads, rows, 1]."""

    n: torch.Tensor
    scale: torch.Tensor

    @classmethod
    def of(cls, x: torch.Tensor, heads: int) -> "QuantisedHeads":
        """Quantise rows [rows, heads * width] head by head."""
        n, scale = quantise(x.reshape(len(x), heads, -1), contract.Q8)
        return cls(n=n.transpose(0, 1).contiguous(), scale=scale.transpose(0, 1).contiguous())

    def some(self, first: int, count: int) -> "QuantisedHeads":
        """Return ``count`` heads from ``first`` on."""
        return QuantisedHeads(n=self.n[first : first + count], scale=self.scale[first : first + count])

    def then(self, later: "QuantisedHeads") -> "QuantisedHeads":
        """Return these rows and ``later`` behind them."""
        return QuantisedHeads(n=torch.cat((self.n, later.n), dim=1), scale=torch.cat((self.scale, later.scale), dim=1))

    def repeated(self, times: int) -> "QuantisedHeads":
        """Return each head ``times`` times, for the query heads that share it."""
        if times == 1:
            return self
        return QuantisedHeads(
            n=self.n.repeat_interleave(times, dim=0), scale=self.scale.repeat_interleave(times, dim=0)
        )

    def whole(self) -> "QuantisedHeads":
        """Return the same with 0 for integers that are none; the scales still say that something was not finite."""
        return QuantisedHeads(n=self.n.nan_to_num(0.0), scale=self.scale)


def weights_table(exp2: torch.Tensor) -> torch.Tensor:
    """Return attention weights by distance from the largest: integers as binary32 [4097], the last one 0."""
    steps = torch.arange(contract.ATTENTION_OCTAVES * contract.ATTENTION_STEP)
    every = 2**contract.EXP_BITS // contract.ATTENTION_STEP
    entry = exp2[(steps % contract.ATTENTION_STEP) * every].to(torch.int64)
    shifted = entry >> (contract.ATTENTION_SHIFT + steps // contract.ATTENTION_STEP)
    return torch.cat((shifted.to(torch.float32), torch.zeros(1, dtype=torch.float32)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Visible:
    """Which keys a query sees."""

    causal: bool = False
    """True if only those up to its own."""
    window: int = 0
    """Only those less than so many tokens away; 0: all."""

    def hidden(self, rows: int, keys: int) -> torch.Tensor | None:
        """Return which of the keys the last so many rows do not see [rows, keys]; None: they see all."""
        away = None
        if self.window and self.window < keys:
            away = torch.arange(keys - rows, keys)[:, None] - torch.arange(keys)
            away = away.abs_() >= self.window
        if not self.causal or rows == 1:
            return away
        later = torch.ones(rows, keys, dtype=torch.bool).triu_(keys - rows + 1)
        return later if away is None else later.logical_or_(away)


def softly_capped(t: torch.Tensor, cap: float) -> torch.Tensor:
    """Return cap * tanh(t / cap), tanh as the contract's fraction of polynomials; ``t`` is written to."""
    z = t.div_(torch.full_like(t[..., :1], cap)).clamp_(-4.0, 4.0)
    s = z * z
    over = (((s + 105.0).mul_(s)).add_(945.0)).mul_(z)
    under = (((s * 15.0).add_(420.0)).mul_(s)).add_(945.0)
    return over.div_(under).clamp_(-1.0, 1.0).mul_(cap)


def attend(
    q: QuantisedHeads,
    k: QuantisedHeads,
    v: QuantisedHeads,
    out: torch.Tensor,
    *,
    scale: float,
    seen: Visible,
    table: torch.Tensor,
    cap: float = 0.0,
) -> None:
    """Attend from the last rows of a sequence to all of them.

    Args:
        q: Queries [heads, rows, width]; they are the last ``rows`` of the sequence.
        k: Keys [heads, keys, width].
        v: Values [heads, keys, value width].
        out: Tensor that the result is written to, binary32 [rows, heads * value width], contiguous.
        scale: Factor of the products, usually 1 / sqrt(width).
        seen: Which keys a query sees.
        table: Table that :func:`weights_table` returned.
        cap: Soft cap of the scores, or 0.
    """
    rows, keys = q.n.shape[1], k.n.shape[1]
    factor = scale * contract.LOG2E * contract.ATTENTION_STEP
    cap *= contract.LOG2E * contract.ATTENTION_STEP
    hidden = seen.hidden(rows, keys)
    into = out.view(rows, len(q.n), -1).transpose(0, 1)
    if _finite(q, k, v, factor):
        _attend_finite(q, k, v, (factor, cap), hidden, table, into)
    else:
        into.copy_(_attend_broken(q.whole(), k.whole(), v.whole(), (factor, cap), hidden, table))


def _logits(q: QuantisedHeads, k: QuantisedHeads, factors: tuple[float, float]) -> torch.Tensor:
    """Return scores in steps of an octave, by (factor of the products, soft cap or 0)."""
    factor, cap = factors
    t = torch.bmm(q.n, k.n.transpose(1, 2)).mul_(q.scale * factor).mul_(k.scale.transpose(1, 2))
    return (softly_capped(t, cap) if cap else t).round_()


def _attend_finite(
    q: QuantisedHeads,
    k: QuantisedHeads,
    v: QuantisedHeads,
    factors: tuple[float, float],
    hidden: torch.Tensor | None,
    table: torch.Tensor,
    out: torch.Tensor,
) -> None:
    t = _logits(q, k, factors)
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
    q: QuantisedHeads,
    k: QuantisedHeads,
    v: QuantisedHeads,
    factors: tuple[float, float],
    hidden: torch.Tensor | None,
    table: torch.Tensor,
) -> torch.Tensor:
    """Attend where a logit or a weight may not be finite: a query that sees such a one gets NaN, others their bits."""
    t = _logits(q, k, factors)
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


def _finite(q: QuantisedHeads, k: QuantisedHeads, v: QuantisedHeads, factor: float) -> bool:
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


def pool(x: torch.Tensor, how: str, packed: Packed) -> torch.Tensor:
    """Return one row a sequence of rows [rows, width]."""
    if how == "mean":
        spans = [packed.spans(segment) for segment in packed.sequences]
        return torch.stack([mean(torch.cat([x[s : s + n] for s, n in parts])) for parts in spans])
    return x.index_select(0, torch.tensor([pooled_row(packed, end, how) for end in packed.sequences]))


def pooled_row(packed: Packed, segment: int, how: str) -> int:
    """Return the first or the last row of the sequence that ends in a segment."""
    spans = packed.spans(segment)
    start, rows = spans[-1]
    match how:
        case "first":
            return spans[0][0]
        case "last":
            return start + rows - 1
    raise ValueError(f"{Pool.__name__} how={how!r}")


def mean(x: torch.Tensor) -> torch.Tensor:
    """Return the mean of rows [rows, width] as [width]."""
    n, scale = scaled(x, x.abs().amax().reshape(1, 1), contract.Q20)
    total = n.sum(0, dtype=torch.float64).to(torch.float32)
    return total.mul_(scale.reshape(())).div_(torch.full_like(total, len(x)))


def score(x: torch.Tensor, q: torch.Tensor, weight_scale: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Return scores [rows, labels] by 16-bit integers; ``q`` int16 [labels, width]."""
    n, scale = quantise(x, contract.Q16)
    acc = n.to(torch.float64) @ q.to(torch.float64).t()
    return dequantise(acc, scale, weight_scale, bias)


@dataclass(frozen=True, slots=True)
class LogProbTables:
    """Tables of the log-probability head."""

    exp2: torch.Tensor
    """``tables.exp2()``, int32."""
    log: torch.Tensor
    """``tables.log()``."""


def logprobs(logits: torch.Tensor, targets: torch.Tensor, tables: LogProbTables) -> torch.Tensor:
    """Return ln p of one target a row.

    Args:
        logits: Binary32 [rows, vocabulary].
        targets: Token ids, int64 [rows].
        tables: Tables of the contract.

    Returns:
        Binary32 [rows].
    """
    wanted = logits.gather(1, targets[:, None])
    t = torch.mul(logits, contract.LOG2E * contract.LOGPROB_STEP).round_()
    top = t.amax(-1, keepdim=True)
    whole = top.isfinite() & t.amin(-1, keepdim=True).isfinite()
    last = contract.LOGPROB_OCTAVES * contract.LOGPROB_STEP
    d = t.sub_(top).neg_().clamp_(max=last).to(torch.int32)
    entry = torch.index_select(tables.exp2, 0, (d & (contract.LOGPROB_STEP - 1)).reshape(-1)).reshape(d.shape)
    e = (entry >> d.bitwise_right_shift(contract.EXP_BITS)).masked_fill_(d >= last, 0)
    total = e.sum(-1, keepdim=True, dtype=torch.int64)
    lse = top.to(torch.float64) * (contract.LN2 / contract.LOGPROB_STEP) + _log(total, tables.log)
    y = (wanted.to(torch.float64) - lse).clamp_(max=0.0).to(torch.float32)
    return torch.where(whole, y, float("nan")).squeeze(1)


def _log(total: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    _, exponent = torch.frexp(total.to(torch.float64))
    shift = exponent.to(torch.int64) - 1 - contract.EXP_BITS
    j = (total >> shift) & (2**contract.EXP_BITS - 1)
    base = (2**contract.EXP_BITS + j) << shift
    octaves = (shift + contract.EXP_BITS - 30).to(torch.float64)
    rest = (total - base).to(torch.float64) / base.to(torch.float64)
    result: torch.Tensor = octaves * contract.LN2 + table[j] + rest
    return result
