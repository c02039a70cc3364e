"""AMD's own XRT without a card: its no-op emulation, with the C++ kernels in the place of the silicon.

    with noop_device(folder) as device:        # Debian 12: apt-get install libxrt1
        handle = device.load(artifact)

Everything but the computing is the real library's: opening, the xclbin, kernels, buffers, copies, runs.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from greentrain.fpga_backend.csim.build import build
from greentrain.fpga_backend.errors import DeviceError
from greentrain.fpga_backend.xrt.device import XrtDevice

LIBRARIES: Final = Path("/usr/lib/x86_64-linux-gnu")
"""Where Debian's libxrt1 puts them."""
SHIM: Final = "libxrt_noop.so.2"
DESIGN: Final = Path(__file__).with_name("kernels.xclbin")
"""The kernels as an xclbin of metadata only, which no card takes: written by ``tools/noop_xclbin.py``."""


def noop_environment(folder: Path) -> Mapping[str, str]:
    """Return the environment of a process in which XRT runs without a card.

    Args:
        folder: Folder in which XRT's libraries are linked as XRT wants them to lie; made where it is missing.

    Raises:
        DeviceError: XRT's no-op emulation is not installed.
    """
    if not (LIBRARIES / SHIM).exists():  # not loaded to find out: XRT stays out of the process that trains
        raise DeviceError(
            f"XRT's no-op emulation is not here ({LIBRARIES / SHIM}): apt-get install libxrt1 (Debian 12)"
        )
    (folder / "lib").mkdir(parents=True, exist_ok=True)
    for library in [*LIBRARIES.glob("libxrt*.so*"), LIBRARIES / "xrt"]:
        with contextlib.suppress(FileExistsError):  # of an earlier run
            (folder / "lib" / library.name).symlink_to(library)
    return {**os.environ, "XILINX_XRT": str(folder), "XCL_EMULATION_MODE": "noop"}


@contextlib.contextmanager
def noop_device(folder: Path, **arguments: Any) -> Iterator[XrtDevice]:
    """Open an XrtDevice without a card, and close it.

    Args:
        folder: Folder for what XRT needs; made where it is missing.
        arguments: Further arguments of the device.

    Raises:
        DeviceError: XRT's no-op emulation or g++ is not installed.
    """
    environ = noop_environment(folder)
    device = XrtDevice(DESIGN, environ=environ, silicon=build(), **arguments)
    try:
        yield device
    finally:
        device.close()
