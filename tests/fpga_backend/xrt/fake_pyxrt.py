"""A stand-in for AMD's pyxrt, of the old generation (2.13) or the new (2.17 and later).

Its buffers have two sides, as a card's have: what is not synchronised is not seen. Signatures: pyxrt.pyi of Xilinx/XRT.
"""

import types
import warnings
import weakref
from collections.abc import Callable, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np

from greentrain.fpga_backend.xrt import xclbin as reader

Compute = Callable[[str, Sequence[int]], None]


class Direction(IntEnum):
    XCL_BO_SYNC_BO_TO_DEVICE = 0
    XCL_BO_SYNC_BO_FROM_DEVICE = 1


class State(IntEnum):
    ERT_CMD_STATE_NEW = 1
    ERT_CMD_STATE_RUNNING = 3
    ERT_CMD_STATE_COMPLETED = 4
    ERT_CMD_STATE_ERROR = 5
    ERT_CMD_STATE_ABORT = 6
    ERT_CMD_STATE_TIMEOUT = 8


class FakePyxrt(types.ModuleType):
    """The module.

    Args:
        new: With hardware contexts; the old calls then raise, as they will one day.
        compute: Does a kernel's work on the card's side of its buffers.
        states: What a run's ``state()`` says, one call after the other; the last one stays.
        addresses: Cards that can be opened.
        uuid: What the card reports instead of the UUID of the file.
    """

    def __init__(
        self,
        *,
        new: bool,
        compute: Compute | None = None,
        states: Sequence[int] = (3, 3, 4),
        addresses: Sequence[str] = ("0000:c1:00.1",),
        uuid: str | None = None,
    ) -> None:
        super().__init__("pyxrt")
        fake = self
        self.bytes_now = 0
        self._cards: weakref.WeakSet[Any] = weakref.WeakSet()
        self.calls: list[str] = []

        class Uuid:
            def __init__(self, text: str) -> None:
                self._text = text

            def to_string(self) -> str:
                return self._text

        class Xclbin:
            def __init__(self, path: str) -> None:
                if not Path(path).is_file():
                    raise RuntimeError(f"failed to open {path}")
                self.content = reader.read(Path(path))

        class Device:
            def __init__(self, which: int | str) -> None:
                known = which < len(addresses) if isinstance(which, int) else which in addresses
                if not known:
                    raise RuntimeError(f"Could not open device with index '{which}'")
                self.content: reader.Xclbin | None = None

            def get_info(self, key: str) -> str:
                return '{"power_consumption_watts": "23.5"}' if key == "electrical" else "{}"

        if new:

            class NewDevice(Device):
                def register_xclbin(self, found: Xclbin) -> Uuid:
                    assert isinstance(found, Xclbin)
                    self.content = found.content
                    return Uuid(uuid or found.content.uuid)

                def load_xclbin(self, path: str) -> Uuid:
                    warnings.warn("pyxrt.device.load_xclbin() is deprecated", DeprecationWarning, stacklevel=2)
                    raise AssertionError("the old call, where there is a new one")

            self.device: Any = NewDevice
        else:

            class OldDevice(Device):
                def load_xclbin(self, path: str) -> Uuid:
                    assert isinstance(path, str)
                    self.content = Xclbin(path).content
                    return Uuid(uuid or self.content.uuid)

            self.device = OldDevice

        class Context:
            def __init__(self, device: Device, number: Uuid) -> None:
                assert isinstance(device, Device) and isinstance(number, Uuid)
                self.content = device.content

        class Bo:
            normal = 0

            def __init__(self, owner: Any, size: int, flags: int, group: int) -> None:
                wanted: type[Any] = Context if new else Device
                assert isinstance(owner, wanted)
                assert flags == Bo.normal and 0 <= group < len(owner.content.memories)
                self.host, self.card = np.full(size, 0xFF, np.uint8), np.full(size, 0xFF, np.uint8)
                self.group, self.size = group, size
                fake.bytes_now += size
                fake._cards.add(self)

            def __del__(self) -> None:
                fake.bytes_now -= getattr(self, "size", 0)

            def write(self, data: Any, seek: int) -> None:
                found = np.frombuffer(data, np.uint8)
                self.host[seek : seek + found.size] = found

            def read(self, size: int, skip: int) -> Any:
                return self.host[skip : skip + size].copy().view(np.int8)

            def sync(self, direction: Direction, size: int, offset: int) -> None:
                part = slice(offset, offset + size)
                if direction == Direction.XCL_BO_SYNC_BO_TO_DEVICE:
                    self.card[part] = self.host[part]
                else:
                    self.host[part] = self.card[part]

            def map(self) -> memoryview:
                return self.host.data

        class Run:
            def __init__(self) -> None:
                self._states = list(states)

            def state(self) -> State:
                return State(self._states.pop(0) if len(self._states) > 1 else self._states[0])

            def wait(self, *_: Any) -> None:
                raise AssertionError("wait() holds Python's lock")

        class Kernel:
            shared = 1

            def __init__(self, *args: Any) -> None:
                if new:
                    owner, name = args
                    assert isinstance(owner, Context)
                else:
                    owner, number, name, mode = args
                    assert isinstance(owner, Device) and isinstance(number, Uuid) and mode == Kernel.shared
                assert owner.content is not None
                found = [kernel for kernel in owner.content.kernels if kernel.name == name]
                if not found:
                    raise RuntimeError(f"No such kernel '{name}'")
                self._linked = found[0]

            def group_id(self, index: int) -> int:
                memory: int | None = self._linked.arguments[index].memory
                if memory is None:
                    raise IndexError("vector::at")
                return memory

            def __call__(self, *args: Any) -> Run:
                assert len(args) == len(self._linked.arguments)
                raw = []
                for value, argument in zip(args, self._linked.arguments, strict=True):
                    if argument.pointer:
                        assert isinstance(value, Bo) and value.group == argument.memory
                        raw.append(int(value.card.ctypes.data))
                    else:
                        assert type(value) is int and -(2**31) <= value < 2**31, "set_arg takes a C int"
                        raw.append(value)
                fake.calls.append(self._linked.name)
                if compute is not None:
                    compute(self._linked.name, raw)
                return Run()

        if new:
            self.hw_context: Any = Context
        self.kernel: Any = Kernel
        self.bo: Any = Bo
        self.xclbin: Any = Xclbin
        self.xclBOSyncDirection = Direction
        self.ert_cmd_state = State
        self.xrt_info_device = types.SimpleNamespace(electrical="electrical", thermal="thermal")

    def reset(self) -> None:
        """Wipe the card's memory, as a reset does."""
        for bo in self._cards:
            bo.card[:] = 0
