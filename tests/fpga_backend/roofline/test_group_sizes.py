"""Groups of 4-bit weights are those of the compiler."""

import pytest

from greentrain.fpga_backend import program
from greentrain.fpga_backend.program import group_of
from greentrain.fpga_backend.roofline.counts import widths_of


@pytest.mark.parametrize("inner", [384, 896, 1024, 1536, 1000, 4096])
def test_groups(inner: int) -> None:
    large = inner >= program.SMALL_WIDTH and inner % program.GROUP == 0
    assert group_of(inner) == (program.GROUP if large else program.SMALL_GROUP)


def test_bytes_of_a_product() -> None:
    assert widths_of("w8a8").weights(10, 64) == 10 * 64 + 4 * 10
    assert widths_of("fp16").weights(10, 64) == 10 * 64 * 2
    assert widths_of("w4a16").weights(10, 64) == 10 * 32 + 4 * 10 * 2
