"""How fast the C++ of the product runs under g++: a figure for benchmarks."""

import time
from pathlib import Path

import numpy as np

from greentrain.fpga_backend.csim.build import build
from greentrain.fpga_backend.csim.card import CsimCard
from greentrain.fpga_backend.csim.kernels import ACTIVATIONS, ROWS, WEIGHTS
from greentrain.fpga_backend.csim.launches import BYTES, beats


def gmac_per_s(
    *, rows: int = 512, outputs: int = 768, inner: int = 768, repeats: int = 7, library: Path | None = None
) -> float:
    """Return the best of several runs of ``gt_gemm`` on one core, in 10^9 multiply-accumulates a second.

    Args:
        rows: Of activations.
        outputs: Of the layer.
        inner: Inputs of the layer; those that are there to fill beats are not counted.
        repeats: Runs.
        library: From :func:`~greentrain.fpga_backend.csim.build.build`; None: build it.

    Raises:
        DeviceError: There is no g++.
    """
    card = CsimCard(library if library is not None else build())
    rng = np.random.default_rng(0)
    wide = BYTES * beats(inner, BYTES)
    q = card.allocate(rows * wide, ROWS.bank)
    qs = card.allocate(4 * rows, ROWS.bank)
    w = card.allocate(outputs * wide, WEIGHTS.bank)
    ws = card.allocate(BYTES * beats(outputs), WEIGHTS.bank)
    y = card.allocate(rows * BYTES * beats(outputs), ACTIVATIONS.bank)
    for buffer, count in ((q, rows * wide), (w, outputs * wide)):
        card.write(buffer, rng.integers(-127, 128, count).astype(np.int8))
    for buffer in (qs, ws):
        card.write(buffer, np.ones(buffer.nbytes // 4, dtype=np.float32))
    took_s = []
    for _ in range(repeats):
        begun_s = time.perf_counter()
        card.launch("gt_gemm", (q, qs, w, ws, ws, y, rows, wide // BYTES, outputs, 0, 1))
        took_s.append(time.perf_counter() - begun_s)
    card.close()
    return rows * outputs * inner / min(took_s) / 1e9
