"""gt_stream gives the sums that the C++ of hls/tile.h gives, in the clocks that the cycle model counts."""

import ctypes
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from greentrain.fpga_backend.csim.kernels import Array
from greentrain.fpga_backend.roofline.cycles import array_clocks
from tools.rtl_simulator import SOURCES, Design, build

HERE = Path(__file__).resolve().parent
STREAM = SOURCES[0].with_name("gt_stream.v")
Run = Callable[..., int]


@pytest.fixture(scope="module", params=[(2, 3), (4, 8)], ids=["4x3", "8x8"])
def run(models: Path, request: pytest.FixtureRequest) -> tuple[Array, Run]:
    row_pairs, columns = request.param
    design = Design(
        top="gt_stream",
        bench=HERE / "stream_bench.cpp",
        parameters=(("R2", row_pairs), ("C", columns)),
        sources=(*SOURCES, STREAM),
    )
    library = ctypes.CDLL(str(build(design, models)))
    library.gt_stream_run.restype = ctypes.c_int64
    size, pointer = ctypes.c_int64, ctypes.c_void_p
    library.gt_stream_run.argtypes = [pointer, pointer, size, size, size, size, pointer]
    return Array(rows=2 * row_pairs, columns=columns), library.gt_stream_run


@pytest.mark.parametrize(
    ("depth", "tiles", "period", "busy"),
    [
        (1, 1, 1, 0),
        (64, 5, 1, 0),
        (7, 4, 1, 0),
        (20, 3, 3, 0),  # ports that give a beat each third clock
        (5, 4, 1, 90),  # a reader that writes longer than a tile takes
        (64, 4, 1, 40),  # and one that is done before
        (30, 3, 2, 70),
    ],
)
def test_the_model_counts_the_clocks_of_the_verilog(
    run: tuple[Array, Run], depth: int, tiles: int, period: int, busy: int
) -> None:
    array, stream = run
    rng = np.random.default_rng(depth)
    a, w = (rng.integers(-128, 128, (tiles, depth, n)).astype(np.int8) for n in (array.rows, array.columns))
    sums = np.empty((tiles, array.columns, array.rows), dtype=np.int32)
    clocks = stream(a.ctypes.data, w.ctypes.data, depth, tiles, period, busy, sums.ctypes.data)
    expected = w.astype(np.int64).transpose(0, 2, 1) @ a.astype(np.int64)
    assert np.array_equal(sums, expected[:, ::-1])
    assert clocks == array_clocks(array, depth, tiles, period=period, busy=busy)
