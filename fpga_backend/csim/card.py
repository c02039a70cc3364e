"""A card whose memory is the process's own and whose kernels are the library that g++ made of them.

:func:`functions` binds the built kernels as the table of kernels says. Kernels are led by the schedule, which checks a
program and its tables once, and each batch before it is packed; that no launch of it reaches beyond its buffers is held
by the tests' card, ``tests/fpga_backend/csim/checked_card.py``.
"""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from greentrain.fpga_backend.card import Buffer
from greentrain.fpga_backend.csim.kernels import KERNELS, REGIONS, KernelSpec
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


ALIGNMENT: Final = 4096
"""Of buffers (bytes), as on a card."""
_INT32: Final = range(-(2**31), 2**31)

Memory = npt.NDArray[np.uint8]


class CsimCard:
    """Runs kernels on the CPU, for a schedule.

    Args:
        library: Path that :func:`greentrain.fpga_backend.csim.build.build` returned.

    Raises:
        DeviceError: The library cannot be loaded.
    """

    def __init__(self, library: Path) -> None:
        self._functions = functions(library)
        self._kernels = {kernel.name: kernel for kernel in KERNELS}
        self._numbers = count()
        self._memory: dict[int, tuple[Memory, int]] = {}
        """Memory and bank of each buffer."""
        self._closed = False

    def allocate(self, nbytes: int, bank: int = 0) -> Buffer:
        """Reserve memory, aligned to 4096 bytes.

        Raises:
            DeviceError: There is not so much memory, or no such bank.
        """
        if self._closed:
            raise DeviceError("the card is closed")
        if not 0 <= bank < len(REGIONS):
            raise DeviceError(f"bank {bank}: the card has banks 0 to {len(REGIONS) - 1}")
        if nbytes < 1:
            raise DeviceError(f"a buffer of {nbytes} bytes: at least 1 is needed")
        try:
            whole = np.empty(nbytes + ALIGNMENT, dtype=np.uint8)
        except MemoryError as error:
            raise DeviceError(f"no memory for a buffer of {nbytes} bytes: use a smaller batch or model") from error
        skip = -whole.ctypes.data % ALIGNMENT
        buffer = Buffer(next(self._numbers), nbytes)
        self._memory[buffer.number] = whole[skip : skip + nbytes], bank
        return buffer

    def free(self, buffer: Buffer) -> None:
        """Give memory back."""
        self._memory.pop(buffer.number, None)

    def write(self, buffer: Buffer, data: npt.NDArray[Any], offset: int = 0) -> None:
        """Copy a C-contiguous array into a buffer.

        Raises:
            DeviceError: It does not fit.
        """
        part = self._part(buffer, offset, data.nbytes, "write")
        part[:] = np.ascontiguousarray(data).reshape(-1).view(np.uint8)

    def read(self, buffer: Buffer, out: npt.NDArray[Any], offset: int = 0) -> None:
        """Copy from a buffer into a C-contiguous array.

        Raises:
            DeviceError: The buffer holds less, or the array is not contiguous.
        """
        if not out.flags.c_contiguous:
            raise DeviceError("read needs a C-contiguous array to write into")
        out.reshape(-1).view(np.uint8)[:] = self._part(buffer, offset, out.nbytes, "read")

    def launch(self, kernel: str, arguments: Sequence[Buffer | int]) -> None:
        """Run a kernel to its end, without the GIL.

        Raises:
            DeviceError: An argument does not fit the kernel.
        """
        spec = self._kernels.get(kernel)
        if spec is None:
            raise DeviceError(f"the card has no kernel {kernel}")
        self._functions[kernel](*self._checked(spec, arguments))

    def close(self) -> None:
        """Give all memory back. Idempotent."""
        self._closed = True
        self._memory.clear()

    def _part(self, buffer: Buffer, offset: int, nbytes: int, verb: str) -> Memory:
        memory, _ = self._held(buffer)
        if offset < 0 or offset + nbytes > memory.nbytes:
            raise DeviceError(f"{verb} of {nbytes} bytes at {offset}: buffer {buffer.number} has {memory.nbytes}")
        return memory[offset : offset + nbytes]

    def _held(self, buffer: Buffer) -> tuple[Memory, int]:
        if buffer.number not in self._memory:
            raise DeviceError(f"buffer {buffer.number} is not of this card, or was freed")
        return self._memory[buffer.number]

    def _checked(self, spec: KernelSpec, arguments: Sequence[Buffer | int]) -> list[int]:
        if len(arguments) != len(spec.arguments):
            raise DeviceError(f"{spec.name} takes {len(spec.arguments)} arguments, not {len(arguments)}")
        raw: list[int] = []
        for argument, given in zip(spec.arguments, arguments, strict=True):
            if isinstance(given, Buffer) != (argument.kind == "pointer"):
                raise DeviceError(f"{spec.name}: argument {argument.name} is a {argument.kind}, not {given!r}")
            if isinstance(given, Buffer):
                memory, bank = self._held(given)
                raw.append(memory.ctypes.data)
                if bank != argument.bank:
                    raise DeviceError(
                        f"{spec.name}: {argument.name} reaches bank {argument.bank}, its buffer lies in {bank}"
                    )
            elif given in _INT32:
                raw.append(given)
            else:
                raise DeviceError(f"{spec.name}: {argument.name}={given} does not fit 32 bits")
        return raw
