"""The built kernels as functions, bound as the table of kernels says."""

import ctypes
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from greentrain.fpga_backend.csim.kernels import KERNELS
from greentrain.fpga_backend.errors import DeviceError


def functions(path: Path) -> Mapping[str, Callable[..., Any]]:
    """Return the kernels of a library by name. They take addresses and ints, and run without the GIL.

    Raises:
        DeviceError: It cannot be loaded, or lacks a kernel.
    """
    try:
        library = ctypes.CDLL(str(path))
        found = {kernel.name: getattr(library, kernel.name) for kernel in KERNELS}
    except (OSError, AttributeError) as error:
        raise DeviceError(f"{path} cannot be used ({error}): remove it, and it is built again") from error
    for kernel in KERNELS:
        found[kernel.name].restype = None
        found[kernel.name].argtypes = [
            ctypes.c_void_p if argument.kind == "pointer" else ctypes.c_int32 for argument in kernel.arguments
        ]
    return found
