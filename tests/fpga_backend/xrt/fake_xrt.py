"""A stand-in for XRT's C library, as ``xrt/api.py`` calls it.

Its buffers have two sides, as a card's have: what is not synchronised is not seen.
"""

import ctypes
import errno
import uuid as uuids
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from greentrain.fpga_backend.xrt import api
from greentrain.fpga_backend.xrt import xclbin as reader

Compute = Callable[[str, Sequence[int]], None]


class Buffer:
    def __init__(self, size: int, group: int) -> None:
        self.host, self.card = np.full(size, 0xFF, np.uint8), np.full(size, 0xFF, np.uint8)
        self.group, self.size = group, size


class Run:
    def __init__(self, kernel: reader.LinkedKernel, states: Sequence[int]) -> None:
        self.kernel, self.states = kernel, list(states)
        self.arguments: dict[int, Any] = {}


class FakeXrt:
    """The library.

    Args:
        compute: Does a kernel's work on the card's side of its buffers; an OSError of it is the start's code.
        states: What a run's state is, one call after the other; the last one stays.
        addresses: Cards that can be opened.
        uuid: What the card reports instead of the UUID of the file.
    """

    def __init__(
        self,
        *,
        compute: Compute | None = None,
        states: Sequence[int] = (3, 3, 4),
        addresses: Sequence[str] = ("0000:c1:00.1",),
        uuid: str | None = None,
    ) -> None:
        self._compute, self._states, self._addresses, self._uuid = compute, states, addresses, uuid
        self._content: reader.Xclbin | None = None
        self._open: dict[int, Any] = {}
        self._next = 1

    @property
    def bytes_now(self) -> int:
        """Bytes that are reserved on the card."""
        return sum(held.size for held in self._open.values() if isinstance(held, Buffer))

    @property
    def handles(self) -> int:
        """How many things are open: devices, kernels, buffers, runs."""
        return len(self._open)

    def reset(self) -> None:
        """Wipe the card's memory, as a reset does."""
        for held in self._open.values():
            if isinstance(held, Buffer):
                held.card[:] = 0

    def _new(self, held: Any) -> int:
        self._open[self._next] = held
        self._next += 1
        return self._next - 1

    def _free(self, handle: int) -> int:
        del self._open[handle]
        return 0

    def xrtDeviceOpen(self, index: int) -> int | None:
        return self._new("device") if index < len(self._addresses) else _failed(errno.ENODEV)

    def xrtDeviceOpenByBDF(self, address: bytes) -> int | None:
        return self._new("device") if address.decode() in self._addresses else _failed(errno.ENODEV)

    xrtDeviceClose = xrtKernelClose = xrtBOFree = xrtRunClose = _free

    def xrtDeviceLoadXclbinFile(self, device: int, path: bytes) -> int:
        assert self._open[device] == "device"
        if not Path(path.decode()).is_file():
            return -errno.ENOENT
        self._content = reader.read(Path(path.decode()))
        return 0

    def xrtDeviceGetXclbinUUID(self, device: int, out: Any) -> int:
        assert self._open[device] == "device" and self._content is not None
        out[:] = list(uuids.UUID(self._uuid or self._content.uuid).bytes)
        return 0

    def xrtPLKernelOpen(self, device: int, number: Any, name: bytes) -> int | None:
        assert self._open[device] == "device" and self._content is not None
        assert bytes(number) == uuids.UUID(self._uuid or self._content.uuid).bytes
        found = [kernel for kernel in self._content.kernels if kernel.name == name.decode()]
        return self._new(found[0]) if found else _failed(errno.ENOENT)

    def xrtKernelArgGroupId(self, kernel: int, index: int) -> int:
        memory: int | None = self._open[kernel].arguments[index].memory
        return -errno.EINVAL if memory is None else memory

    def xrtBOAlloc(self, device: int, size: int, flags: int, group: int) -> int:
        assert self._open[device] == "device" and self._content is not None
        assert flags == 0 and 0 <= group < len(self._content.memories)
        return self._new(Buffer(size, group))

    def xrtBOMap(self, buffer: int) -> int:
        return int(self._open[buffer].host.ctypes.data)

    def xrtBOWrite(self, buffer: int, data: int, size: int, seek: int) -> int:
        ctypes.memmove(self._open[buffer].host[seek : seek + size].ctypes.data, data, size)
        return 0

    def xrtBORead(self, buffer: int, out: int, size: int, skip: int) -> int:
        ctypes.memmove(out, self._open[buffer].host[skip : skip + size].ctypes.data, size)
        return 0

    def xrtBOSync(self, buffer: int, direction: int, size: int, offset: int) -> int:
        held, part = self._open[buffer], slice(offset, offset + size)
        if direction == api.TO_DEVICE:
            held.card[part] = held.host[part]
        else:
            held.host[part] = held.card[part]
        return 0

    def xrtRunOpen(self, kernel: int) -> int:
        return self._new(Run(self._open[kernel], self._states))

    def xrtRunSetArg(self, run: Any, index: Any, value: Any) -> int:
        held = self._open[run.value]
        argument = held.kernel.arguments[index.value]
        if argument.pointer:
            assert isinstance(value, ctypes.c_void_p) and value.value is not None
            buffer = self._open[value.value]
            assert buffer.group == argument.memory
            held.arguments[index.value] = int(buffer.card.ctypes.data)
        else:
            assert isinstance(value, ctypes.c_int)
            held.arguments[index.value] = value.value
        return 0

    def xrtRunStart(self, run: int) -> int:
        held = self._open[run]
        assert sorted(held.arguments) == list(range(len(held.kernel.arguments)))
        try:
            if self._compute is not None:
                self._compute(held.kernel.name, [held.arguments[i] for i in sorted(held.arguments)])
        except OSError as error:
            return -(error.errno or errno.EIO)
        return 0

    def xrtRunState(self, run: int) -> int:
        states: list[int] = self._open[run].states
        return states.pop(0) if len(states) > 1 else states[0]


def _failed(number: int) -> int | None:
    ctypes.set_errno(number)
    return None


def put_in_place(fake: FakeXrt, patch: pytest.MonkeyPatch) -> None:
    """Let ``XrtApi`` load the stand-in instead of the library of an installation."""
    patch.setattr(api, "load_library", lambda: fake)
    patch.setattr(api, "check_environment", lambda *_: None)
