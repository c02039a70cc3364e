"""Bytes of a number, by what a program is compiled to."""

import math
from dataclasses import dataclass

from greentrain.fpga_backend.errors import ArtifactError
from greentrain.fpga_backend.program import Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class Widths:
    """Sizes of the numbers of one precision on a card."""

    weight_bits: int
    activation_bytes: int
    """Of a register's element. The integer contract keeps registers in binary32."""
    embedding_bytes: int
    product_bits: int
    """8: two or three products a DSP slice; 16: one."""
    quantised: bool
    """True if rows are quantised before a product: a pass of its own over them."""
    scaled: bool
    """True if weights carry a scale of 4 bytes an output."""

    def weights(self, count: int) -> int:
        """Return the bytes of so many weights."""
        return math.ceil(count * self.weight_bits / 8)


_FLOAT = Widths(weight_bits=16, activation_bytes=2, embedding_bytes=2, product_bits=16, quantised=False, scaled=False)
_WIDTHS: dict[str, Widths] = {
    "w8a8": Widths(weight_bits=8, activation_bytes=4, embedding_bytes=2, product_bits=8, quantised=True, scaled=True),
    "fp16": _FLOAT,
    "bf16": _FLOAT,
    "w8a16": Widths(
        weight_bits=8, activation_bytes=2, embedding_bytes=2, product_bits=16, quantised=False, scaled=True
    ),
    "w4a16": Widths(
        weight_bits=4, activation_bytes=2, embedding_bytes=2, product_bits=16, quantised=False, scaled=True
    ),
}


def widths_of(precision: Precision) -> Widths:
    """Return the sizes of a precision.

    Raises:
        ArtifactError: No figures are known of it: fp32.
    """
    if precision not in _WIDTHS:
        raise ArtifactError(f"precision {precision} has no model of a card; it has one of {', '.join(_WIDTHS)}")
    return _WIDTHS[precision]
