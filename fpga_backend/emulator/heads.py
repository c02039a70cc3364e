"""The contract's last operators: pooling, the score head and the log-probability head."""

import torch

from greentrain.fpga_backend import contract
from greentrain.fpga_backend.emulator.arithmetic import dequantise, quantise, scaled
from greentrain.fpga_backend.packing import Packed
from greentrain.fpga_backend.program import Pool


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


class LogProbTables:
    """Tables of the log-probability head, in the form that torch reads fast.

    Args:
        exp2: ``tables.exp2()``.
        log: ``tables.log()``.
    """

    def __init__(self, exp2: torch.Tensor, log: torch.Tensor) -> None:
        self.exp2 = exp2.to(torch.int32)
        self.log = log


def logprobs(logits: torch.Tensor, targets: torch.Tensor, tables: LogProbTables) -> torch.Tensor:
    """Return ln p of one target a row.

    Args:
        logits: Binary32 [rows, vocabulary].
        targets: Token ids, int64 [rows].
        tables: From the contract's tables.

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
