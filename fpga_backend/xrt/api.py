"""XRT as the card needs it: one small seam, behind which is AMD's Python module or its C library.

``PyxrtApi`` uses pyxrt, AMD's own Python module, which comes with XRT and not from PyPI. It has two generations: up to
XRT 2.16 a design is loaded onto the device; later a hardware context is made of it, and ``load_xclbin`` is deprecated
(``src/python/pybind11/pyxrt.pyi`` of Xilinx/XRT at 4901406, 2026). ``CtypesApi`` calls the C library through ctypes,
which drops Python's lock in every call (signatures: XRT 2.13.466, ``xrt/xrt_device.h``, ``xrt/xrt_bo.h``,
``xrt/xrt_kernel.h``).

Nothing here waits inside the library: pyxrt's ``wait`` holds Python's lock for as long as a kernel runs
(``src/python/pybind11/src/pyxrt.cpp`` of Xilinx/XRT, tags 2.13 to 2.23 and 963c58e, 2026-11-21).
"""

import ctypes
import importlib
import os
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from greentrain.fpga_backend.errors import DeviceError

COMPLETED = 4
PENDING = frozenset({1, 2, 3, 7})
"""New, queued, running, submitted."""
STATES = {
    1: "new",
    2: "queued",
    3: "running",
    4: "completed",
    5: "error",
    6: "abort",
    7: "submitted",
    8: "timeout",
    9: "no response",
    10: "error of a soft kernel",
    11: "crash of a soft kernel",
}
"""``enum ert_cmd_state``: ert.h of XRT 2.13.466."""


class BufferObject(Protocol):
    """A buffer object."""

    def write(self, data: npt.NDArray[Any], offset: int) -> None:
        """Copy an array to the card."""

    def read(self, out: npt.NDArray[Any], offset: int) -> None:
        """Copy from the card into an array."""

    def address(self) -> int:
        """Return where the buffer's host side is mapped in this process."""

    def free(self) -> None:
        """Give it back."""


class XrtRun(Protocol):
    """One execution of a kernel."""

    def state(self) -> int:
        """Return a key of ``STATES``, at once."""

    def close(self) -> None:
        """Give it back."""


class XrtKernel(Protocol):
    """A kernel of the loaded design."""

    def group(self, argument: int) -> int:
        """Return the memory that a pointer argument is connected to."""

    def start(self, arguments: "Sequence[BufferObject | int]") -> XrtRun:
        """Start the kernel and return at once."""


class XrtApi(Protocol):
    """One opened card. Methods raise DeviceError where XRT fails."""

    def load(self, xclbin: Path) -> str:
        """Program the card; return the UUID that it reports."""

    def kernel(self, name: str) -> XrtKernel:
        """Open a kernel of the loaded design."""

    def allocate(self, nbytes: int, group: int) -> BufferObject:
        """Reserve memory, in the memory that :meth:`XrtKernel.group` has named."""

    def close(self) -> None:
        """Give the card back. Idempotent."""


LIBRARY = "libxrt_coreutil.so.2"
TO_DEVICE, FROM_DEVICE = 0, 1
"""``enum xclBOSyncDirection``: xrt.h of XRT 2.13.466."""
NEEDS_ROOT = 15
"""Up to this minor release the library ends the process where XILINX_XRT is not set (module_loader.cpp at tags 2.13.466
to 2.16.204)."""
TRUSTS_ROOT = 24
"""Up to this one it takes its driver from the folder that XILINX_XRT names, and ends the process where there is none
(module_loader.cpp, Xilinx/XRT#9915, in 2.25)."""

_HANDLE, _INT, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
_UUID = ctypes.c_ubyte * 16
_SIGNATURES: Mapping[str, tuple[Any, list[Any] | None]] = {
    "xrtDeviceOpen": (_HANDLE, [ctypes.c_uint]),
    "xrtDeviceOpenByBDF": (_HANDLE, [ctypes.c_char_p]),
    "xrtDeviceClose": (_INT, [_HANDLE]),
    "xrtDeviceLoadXclbinFile": (_INT, [_HANDLE, ctypes.c_char_p]),
    "xrtDeviceGetXclbinUUID": (_INT, [_HANDLE, _UUID]),
    "xrtPLKernelOpen": (_HANDLE, [_HANDLE, _UUID, ctypes.c_char_p]),
    "xrtKernelArgGroupId": (_INT, [_HANDLE, _INT]),
    "xrtKernelClose": (_INT, [_HANDLE]),
    "xrtBOAlloc": (_HANDLE, [_HANDLE, _SIZE, ctypes.c_uint64, ctypes.c_uint32]),
    "xrtBOMap": (_HANDLE, [_HANDLE]),
    "xrtBOSync": (_INT, [_HANDLE, _INT, _SIZE, _SIZE]),
    "xrtBOWrite": (_INT, [_HANDLE, _HANDLE, _SIZE, _SIZE]),
    "xrtBORead": (_INT, [_HANDLE, _HANDLE, _SIZE, _SIZE]),
    "xrtBOFree": (_INT, [_HANDLE]),
    "xrtRunOpen": (_HANDLE, [_HANDLE]),
    "xrtRunSetArg": (_INT, None),  # variadic
    "xrtRunStart": (_INT, [_HANDLE]),
    "xrtRunState": (_INT, [_HANDLE]),
    "xrtRunClose": (_INT, [_HANDLE]),
}


def load_library() -> ctypes.CDLL:
    """Load the library and declare what is used of it.

    Raises:
        DeviceError: It is not installed, or lacks a function.
    """
    try:
        library = ctypes.CDLL(LIBRARY, use_errno=True)
    except OSError as error:
        raise DeviceError(f"XRT is not installed ({error}): install AMD's xrt package, or Debian's libxrt1") from error
    for function, (result, arguments) in _SIGNATURES.items():
        try:
            found = getattr(library, function)
        except AttributeError as error:
            raise DeviceError(f"{LIBRARY} has no {function}: it is no XRT of 2.13 or later") from error
        found.restype, found.argtypes = result, arguments
    return library


def check_environment(environ: Mapping[str, str], minor: int | None) -> None:
    """Raise where the library would end the process at the first call.

    Args:
        environ: Environment variables.
        minor: Minor release of the library; None: not known.

    Raises:
        DeviceError: XILINX_XRT is missing or names no installation; says what to do.
    """
    minor = NEEDS_ROOT if minor is None else minor
    root = environ.get("XILINX_XRT", "")
    if not root and minor <= NEEDS_ROOT:
        raise DeviceError(
            f"XILINX_XRT is not set, and XRT 2.{minor} ends the process then: source the setup.sh of XRT "
            "(/opt/xilinx/xrt/setup.sh)"
        )
    mode = environ.get("XCL_EMULATION_MODE", "")
    driver = {"": "core", "hw_emu": "hwemu", "sw_emu": "swemu"}.get(mode, mode)
    path = Path(root, "lib", f"libxrt_{driver}.so.2")
    if root and minor <= TRUSTS_ROOT and not path.exists():
        raise DeviceError(f"XILINX_XRT={root} holds no XRT: {path} is missing; source the setup.sh of XRT")


def minor_release() -> int | None:
    """Return the minor release of the library that is loaded in this process, from the name of its file."""
    try:
        found = re.search(r"libxrt_coreutil\.so\.2\.(\d+)", Path("/proc/self/maps").read_text(encoding="utf-8"))
    except OSError:
        return None
    return int(found[1]) if found else None


class CtypesApi:
    """One card through the C API.

    Args:
        address: PCI address of the card (``0000:c1:00.1``), or XRT's number of it.

    Raises:
        DeviceError: XRT is not set up, or there is no such card.
    """

    def __init__(self, address: str | int = 0) -> None:
        self._library = load_library()
        check_environment(os.environ, minor_release())
        if isinstance(address, int):
            handle = self._library.xrtDeviceOpen(address)
        else:
            handle = self._library.xrtDeviceOpenByBDF(address.encode())
        self._device: int | None = _valid(handle, f"opening card {address}")
        self._uuid = _UUID()
        self._kernels: list[CtypesKernel] = []

    def load(self, xclbin: Path) -> str:
        """Program the card."""
        _done(self._library.xrtDeviceLoadXclbinFile(self._device, str(xclbin).encode()), f"loading {xclbin}")
        _done(self._library.xrtDeviceGetXclbinUUID(self._device, self._uuid), "asking for the loaded UUID")
        return str(uuid.UUID(bytes=bytes(self._uuid)))

    def kernel(self, name: str) -> "CtypesKernel":
        """Open a kernel."""
        handle = self._library.xrtPLKernelOpen(self._device, self._uuid, name.encode())
        self._kernels.append(CtypesKernel(self._library, _valid(handle, f"opening kernel {name}"), name))
        return self._kernels[-1]

    def allocate(self, nbytes: int, group: int) -> "CtypesMemory":
        """Reserve memory."""
        handle = self._library.xrtBOAlloc(self._device, nbytes, 0, group)
        return CtypesMemory(self._library, _valid(handle, f"allocating {nbytes} bytes in memory {group}"))

    def close(self) -> None:
        """Give the card back."""
        while self._kernels:
            self._kernels.pop().close()
        if self._device is not None:
            self._library.xrtDeviceClose(self._device)
            self._device = None


class CtypesMemory:
    """A buffer object."""

    def __init__(self, library: ctypes.CDLL, handle: int) -> None:
        self._library = library
        self.handle: int | None = handle

    def write(self, data: npt.NDArray[Any], offset: int) -> None:
        """Copy to the mapped side, then to the card."""
        _done(self._library.xrtBOWrite(self.handle, data.ctypes.data, data.nbytes, offset), "writing a buffer")
        _done(self._library.xrtBOSync(self.handle, TO_DEVICE, data.nbytes, offset), "sending a buffer to the card")

    def read(self, out: npt.NDArray[Any], offset: int) -> None:
        """Fetch from the card, then copy from the mapped side."""
        _done(self._library.xrtBOSync(self.handle, FROM_DEVICE, out.nbytes, offset), "fetching a buffer from the card")
        _done(self._library.xrtBORead(self.handle, out.ctypes.data, out.nbytes, offset), "reading a buffer")

    def address(self) -> int:
        """Return the mapped address."""
        return _valid(self._library.xrtBOMap(self.handle), "mapping a buffer")

    def free(self) -> None:
        """Give it back."""
        if self.handle is not None:
            self._library.xrtBOFree(self.handle)
            self.handle = None


class CtypesKernel:
    """A kernel."""

    def __init__(self, library: ctypes.CDLL, handle: int, name: str) -> None:
        self._library = library
        self._handle = handle
        self._name = name

    def group(self, argument: int) -> int:
        """Return the memory of a pointer."""
        found = int(self._library.xrtKernelArgGroupId(self._handle, argument))
        if found < 0:
            raise DeviceError(f"XRT knows no memory of argument {argument} of {self._name} (error {found})")
        return found

    def start(self, arguments: Sequence[BufferObject | int]) -> "CtypesRun":
        """Start it."""
        run = CtypesRun(self._library, _valid(self._library.xrtRunOpen(self._handle), f"preparing {self._name}"))
        try:
            for i, value in enumerate(arguments):
                place = f"setting argument {i} of {self._name}"
                passed = ctypes.c_int(value) if isinstance(value, int) else _HANDLE(_handle(value))
                _done(self._library.xrtRunSetArg(_HANDLE(run.handle), _INT(i), passed), place)
            _done(self._library.xrtRunStart(run.handle), f"starting {self._name}")
        except BaseException:
            run.close()
            raise
        return run

    def close(self) -> None:
        """Give it back."""
        self._library.xrtKernelClose(self._handle)


class CtypesRun:
    """One execution."""

    def __init__(self, library: ctypes.CDLL, handle: int) -> None:
        self._library = library
        self.handle = handle

    def state(self) -> int:
        """Return its state."""
        return int(self._library.xrtRunState(self.handle))

    def close(self) -> None:
        """Give it back."""
        self._library.xrtRunClose(self.handle)


def _handle(memory: BufferObject) -> int:
    if not isinstance(memory, CtypesMemory) or memory.handle is None:
        raise DeviceError("a buffer was freed, or is of another card")
    return memory.handle


def _valid(handle: int | None, what: str) -> int:
    if not handle:
        number = ctypes.get_errno()
        raise DeviceError(f"XRT failed in {what}: {os.strerror(number) if number else 'no reason given'}")
    return handle


def _done(code: int, what: str) -> None:
    if code:
        raise DeviceError(f"XRT failed in {what}: code {code}")


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
        module: Module that :func:`load_pyxrt` returned.

    Raises:
        DeviceError: There is no such card.
    """

    def __init__(self, address: str | int = 0, *, module: Any = None) -> None:
        self._xrt = load_pyxrt() if module is None else module
        with _told(f"opening card {address}"):
            self._device = self._xrt.device(address)
        self._uuid: Any = None
        self._context: Any = None

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
        with _told(f"opening kernel {name}"):
            if self._context is not None:
                return PyxrtKernel(self._xrt.kernel(self._context, name), name)
            return PyxrtKernel(self._xrt.kernel(self._device, self._uuid, name, self._xrt.kernel.shared), name)

    def allocate(self, nbytes: int, group: int) -> "PyxrtMemory":
        """Reserve memory."""
        owner = self._device if self._context is None else self._context
        with _told(f"allocating {nbytes} bytes in memory {group}"):
            return PyxrtMemory(self._xrt, self._xrt.bo(owner, nbytes, self._xrt.bo.normal, group))

    def close(self) -> None:
        """Drop everything: pyxrt gives back what nobody refers to."""
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

    def start(self, arguments: Sequence[BufferObject | int]) -> "PyxrtRun":
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


def _bo(memory: BufferObject) -> Any:
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
