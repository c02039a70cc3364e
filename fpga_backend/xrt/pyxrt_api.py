"""XRT through pyxrt, AMD's own Python module: it comes with XRT, not from PyPI.

Two generations: up to XRT 2.16 a design is loaded onto the device; later a hardware context is made of it, and
``load_xclbin`` is deprecated (``src/python/pybind11/pyxrt.pyi`` of Xilinx/XRT at 4901406, 2026).
"""

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from greentrain.fpga_backend.errors import DeviceError
from greentrain.fpga_backend.xrt.api import Memory


def load_pyxrt() -> Any:
    """Import pyxrt. It loads libxrt: for a process of its own, not for the training.

    Raises:
        DeviceError: It is not there, or something else has its name.
    """
    try:
        module = importlib.import_module("pyxrt")
    except ImportError as error:
        raise DeviceError(
            f"pyxrt cannot be imported ({error}): it comes with AMD's XRT (source its setup.sh), not from PyPI; or use "
            "api='ctypes'"
        ) from error
    if not hasattr(module, "device") or not hasattr(module, "kernel"):
        raise DeviceError(
            f"{getattr(module, '__file__', 'pyxrt')} is not AMD's pyxrt: it has no 'device'. An X-ray tracer is called "
            "xrt on PyPI and python3-xrt in Debian 12"
        )
    return module


class PyxrtApi:
    """One card through pyxrt.

    Args:
        address: PCI address of the card (``0000:c1:00.1``), or XRT's number of it.
        module: What :func:`load_pyxrt` returns.

    Raises:
        DeviceError: There is no such card.
    """

    def __init__(self, address: str | int = 0, *, module: Any = None) -> None:
        self._xrt = load_pyxrt() if module is None else module
        with _told(f"opening card {address}"):
            self._device = self._xrt.device(address)
        self._uuid: Any = None
        self._context: Any = None
        self._kernels: dict[str, PyxrtKernel] = {}

    def load(self, xclbin: Path) -> str:
        """Program the card, by a hardware context where pyxrt has them."""
        with _told(f"loading {xclbin}"):
            if hasattr(self._xrt, "hw_context"):
                self._uuid = self._device.register_xclbin(self._xrt.xclbin(str(xclbin)))
                self._context = self._xrt.hw_context(self._device, self._uuid)
            else:
                self._uuid = self._device.load_xclbin(str(xclbin))
            return str(self._uuid.to_string())

    def kernel(self, name: str) -> "PyxrtKernel":
        """Open a kernel."""
        if name not in self._kernels:
            with _told(f"opening kernel {name}"):
                if self._context is not None:
                    found = self._xrt.kernel(self._context, name)
                else:
                    found = self._xrt.kernel(self._device, self._uuid, name, self._xrt.kernel.shared)
            self._kernels[name] = PyxrtKernel(found, name)
        return self._kernels[name]

    def allocate(self, nbytes: int, group: int) -> "PyxrtMemory":
        """Reserve memory."""
        owner = self._device if self._context is None else self._context
        with _told(f"allocating {nbytes} bytes in memory {group}"):
            return PyxrtMemory(self._xrt, self._xrt.bo(owner, nbytes, self._xrt.bo.normal, group))

    def electrical(self) -> str:
        """Return the card's electrical report, JSON."""
        with _told("asking for the electrical report"):
            return str(self._device.get_info(self._xrt.xrt_info_device.electrical))

    def close(self) -> None:
        """Drop everything: pyxrt gives back what nobody refers to."""
        self._kernels.clear()
        self._context = self._uuid = self._device = None


class PyxrtMemory:
    """A buffer object."""

    def __init__(self, module: Any, bo: Any) -> None:
        self._direction = module.xclBOSyncDirection
        self.bo = bo

    def write(self, data: npt.NDArray[Any], offset: int) -> None:
        """Copy to the mapped side, then to the card."""
        with _told("writing a buffer"):
            self.bo.write(data.reshape(-1).view(np.uint8), offset)
            self.bo.sync(self._direction.XCL_BO_SYNC_BO_TO_DEVICE, data.nbytes, offset)

    def read(self, out: npt.NDArray[Any], offset: int) -> None:
        """Fetch from the card, then copy from the mapped side."""
        with _told("reading a buffer"):
            self.bo.sync(self._direction.XCL_BO_SYNC_BO_FROM_DEVICE, out.nbytes, offset)
            found = np.asarray(self.bo.read(out.nbytes, offset)).view(np.uint8)
        out.reshape(-1).view(np.uint8)[:] = found

    def address(self) -> int:
        """Return the mapped address."""
        with _told("mapping a buffer"):
            return int(np.frombuffer(self.bo.map(), np.uint8).ctypes.data)

    def free(self) -> None:
        """Give it back."""
        self.bo = None


class PyxrtKernel:
    """A kernel."""

    def __init__(self, kernel: Any, name: str) -> None:
        self._kernel = kernel
        self._name = name

    def group(self, argument: int) -> int:
        """Return the memory of a pointer."""
        with _told(f"asking for the memory of argument {argument} of {self._name}"):
            return int(self._kernel.group_id(argument))

    def start(self, arguments: Sequence[Memory | int]) -> "PyxrtRun":
        """Start it."""
        with _told(f"starting {self._name}"):
            return PyxrtRun(self._kernel(*(value if isinstance(value, int) else _bo(value) for value in arguments)))


class PyxrtRun:
    """One execution."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def state(self) -> int:
        """Return its state."""
        with _told("asking for the state of a run"):
            return int(self._run.state())

    def close(self) -> None:
        """Give it back."""
        self._run = None


def _bo(memory: Memory) -> Any:
    if not isinstance(memory, PyxrtMemory) or memory.bo is None:
        raise DeviceError("a buffer was freed, or is of another card")
    return memory.bo


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Turn whatever pyxrt raises into a DeviceError that says what was being done."""
    try:
        yield
    except DeviceError:
        raise
    except Exception as error:  # pybind11 turns C++ exceptions into several types
        raise DeviceError(f"XRT failed in {what}: {error}") from error
