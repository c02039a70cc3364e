"""Bytes of a number, by what a program is compiled to."""

import math
from dataclasses import dataclass
from typing import Literal

from greentrain.fpga_backend.errors import ArtifactError
from greentrain.fpga_backend.program import Precision

SCALE_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberWidths:
    """Sizes of the numbers of one precision on a card."""

    weight_bits: int
    activation_bytes: int
    """Of a register's element. The integer contract keeps registers in binary32."""
    embedding_bytes: int
    product_bits: int
    """8: two or three products a DSP slice; 16: one."""
    quantised: bool
    """True if rows are quantised before a product: a pass of its own over them."""
    scales: Literal["none", "output", "group"]
    """Whether weights carry a scale an output, or one a group of an output's inputs."""

    def weights(self, outputs: int, inner: int) -> int:
        """Return the bytes of a product's weights and their scales."""
        scales = {"none": 0, "output": 1, "group": math.ceil(inner / group_of(inner))}[self.scales]
        return math.ceil(outputs * inner * self.weight_bits / 8) + SCALE_BYTES * scales * outputs


_FLOAT = NumberWidths(weight_bits=16, activation_bytes=2, embedding_bytes=2, product_bits=16, quantised=False, scales="none")
_WIDTHS: dict[str, NumberWidths] = {
    "w8a8": NumberWidths(
        weight_bits=8, activation_bytes=4, embedding_bytes=2, product_bits=8, quantised=True, scales="output"
    ),
    "fp16": _FLOAT,
    "bf16": _FLOAT,
    "w8a16": NumberWidths(
        weight_bits=8, activation_bytes=2, embedding_bytes=2, product_bits=16, quantised=False, scales="output"
    ),
    "w4a16": NumberWidths(
        weight_bits=4, activation_bytes=2, embedding_bytes=2, product_bits=16, quantised=False, scales="group"
    ),
}


def widths_of(precision: Precision) -> NumberWidths:
    """Return the sizes of a precision.

    Raises:
        ArtifactError: No figures are known of it: fp32.
    """
    if precision not in _WIDTHS:
        raise ArtifactError(f"precision {precision} has no model of a card; it has one of {', '.join(_WIDTHS)}")
    return _WIDTHS[precision]


def group_of(inner: int) -> int:
    """Return how many inputs share a scale of 4-bit weights, as ``compiler/quantize.py`` groups them."""
    return 128 if inner >= 1024 and inner % 128 == 0 else 32
