"""XRT as the card needs it: AMD's C library through ctypes, which drops Python's lock in every call.

Signatures: XRT 2.13.466, ``xrt/xrt_device.h``, ``xrt/xrt_bo.h``, ``xrt/xrt_kernel.h``. AMD's Python module is not used:
its ``wait`` holds Python's lock for as long as a kernel runs (``src/python/pybind11/src/pyxrt.cpp`` of Xilinx/XRT, tags
2.13 to 2.23), it has two generations, and it is built for one version of Python.
"""

import ctypes
import os
import re
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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


class XrtApi:
    """One opened card. Methods raise DeviceError where XRT fails.

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
        self._kernels: list[XrtKernel] = []

    def load(self, xclbin: Path) -> str:
        """Program the card; return the UUID that it reports."""
        _done(self._library.xrtDeviceLoadXclbinFile(self._device, str(xclbin).encode()), f"loading {xclbin}")
        _done(self._library.xrtDeviceGetXclbinUUID(self._device, self._uuid), "asking for the loaded UUID")
        return str(uuid.UUID(bytes=bytes(self._uuid)))

    def kernel(self, name: str) -> "XrtKernel":
        """Open a kernel of the loaded design."""
        handle = self._library.xrtPLKernelOpen(self._device, self._uuid, name.encode())
        self._kernels.append(XrtKernel(self._library, _valid(handle, f"opening kernel {name}"), name))
        return self._kernels[-1]

    def allocate(self, nbytes: int, group: int) -> "BufferObject":
        """Reserve memory, in the memory that :meth:`XrtKernel.group` has named."""
        handle = self._library.xrtBOAlloc(self._device, nbytes, 0, group)
        return BufferObject(self._library, _valid(handle, f"allocating {nbytes} bytes in memory {group}"))

    def close(self) -> None:
        """Give the card back. Idempotent."""
        while self._kernels:
            self._kernels.pop().close()
        if self._device is not None:
            self._library.xrtDeviceClose(self._device)
            self._device = None


class BufferObject:
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
        """Return where the buffer's host side is mapped in this process."""
        return _valid(self._library.xrtBOMap(self.handle), "mapping a buffer")

    def free(self) -> None:
        """Give it back."""
        if self.handle is not None:
            self._library.xrtBOFree(self.handle)
            self.handle = None


class XrtKernel:
    """A kernel of the loaded design."""

    def __init__(self, library: ctypes.CDLL, handle: int, name: str) -> None:
        self._library = library
        self._handle = handle
        self._name = name

    def group(self, argument: int) -> int:
        """Return the memory that a pointer argument is connected to."""
        found = int(self._library.xrtKernelArgGroupId(self._handle, argument))
        if found < 0:
            raise DeviceError(f"XRT knows no memory of argument {argument} of {self._name} (error {found})")
        return found

    def start(self, arguments: Sequence[BufferObject | int]) -> "XrtRun":
        """Start the kernel and return at once."""
        run = XrtRun(self._library, _valid(self._library.xrtRunOpen(self._handle), f"preparing {self._name}"))
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


class XrtRun:
    """One execution of a kernel."""

    def __init__(self, library: ctypes.CDLL, handle: int) -> None:
        self._library = library
        self.handle = handle

    def state(self) -> int:
        """Return a key of ``STATES``, at once."""
        return int(self._library.xrtRunState(self.handle))

    def close(self) -> None:
        """Give it back."""
        self._library.xrtRunClose(self.handle)


def _handle(memory: BufferObject) -> int:
    if not isinstance(memory, BufferObject) or memory.handle is None:
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
