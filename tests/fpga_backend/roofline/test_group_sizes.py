"""Groups of 4-bit weights are those of the compiler."""

import pytest

from greentrain.fpga_backend.compiler import quantize
from greentrain.fpga_backend.roofline.counts import group_of, widths_of


@pytest.mark.parametrize("inner", [384, 896, 1024, 1536, 1000, 4096])
def test_groups(inner: int) -> None:
    large = inner >= quantize.SMALL_WIDTH and inner % quantize.GROUP == 0
    assert group_of(inner) == (quantize.GROUP if large else quantize.SMALL_GROUP)


def test_bytes_of_a_product() -> None:
    assert widths_of("w8a8").weights(10, 64) == 10 * 64 + 4 * 10
    assert widths_of("fp16").weights(10, 64) == 10 * 64 * 2
    assert widths_of("w4a16").weights(10, 64) == 10 * 32 + 4 * 10 * 2
