"""The contract's operators on rows, in torch. Each is a function of tensors, eager or compiled.

Only elementwise binary32 operators and integer sums occur, so the order in which torch works through a tensor, the
number of threads and the number of rows do not matter. Sums of integers are taken in binary64: they stay below 2^53.
"""

import torch

from greentrain.fpga_backend import contract


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
        scale: Of each row [rows, 1].
        weight_scale: Of each output [n].
        bias: [n] or None.
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
        x: Arguments.
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
