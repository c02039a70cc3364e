"""The kernels of ``hls/``, compiled by g++, in a fabric's place: for XRT's no-op emulation, which runs none."""

from collections.abc import Sequence
from pathlib import Path

from greentrain.fpga_backend.csim.library import functions
from greentrain.fpga_backend.xrt.card import Silicon


def compiled(library: Path) -> Silicon:
    """Return what runs a kernel of a library that :mod:`greentrain.fpga_backend.csim.build` has made.

    Raises:
        DeviceError: The library cannot be loaded, or lacks a kernel.
    """
    found = functions(library)

    def run(kernel: str, arguments: Sequence[int]) -> None:
        found[kernel](*arguments)

    return run
