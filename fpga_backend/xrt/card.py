"""A card through XRT: buffers counted against its memory, kernels polled to their end.

In XRT's no-op emulation, which computes nothing, the kernels of ``hls/``, compiled by g++, stand in for the fabric.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from greentrain.fpga_backend.card import Buffer
from greentrain.fpga_backend.csim.card import functions
from greentrain.fpga_backend.csim.kernels import KERNELS, KernelSpec
from greentrain.fpga_backend.errors import DeviceError, DeviceLostError
from greentrain.fpga_backend.xrt import api, xclbin

PAGE_BYTES = 4096
"""XRT reserves whole pages: ``xrtBOAlloc``, xrt/xrt_bo.h of 2.13.466."""
SPINS = 200
"""How often the state is asked for before the first sleep: short kernels take microseconds."""
LONGEST_SLEEP_S = 0.0005
SimulatedKernels = Callable[[str, Sequence[int]], None]
"""Does a kernel's work on mapped buffers, given its name and arguments; for emulations that have no kernels."""


@dataclass(slots=True)
class _Bank:
    tag: str
    nbytes: int
    group: int
    used: int = 0


class XrtCard:
    """A :class:`~greentrain.fpga_backend.card.Card`. Programs the card at once.

    Args:
        opened: The card.
        design: The xclbin.
        silicon: Function that computes in no-op emulation; None: the card does.
        kernels: Kernels that the design must hold.
        memory_bytes: Use no more memory than this in all; None: what the design names.

    Raises:
        DeviceError: The design is not what is needed, or cannot be loaded.
    """

    def __init__(
        self,
        opened: api.XrtApi,
        design: Path,
        *,
        silicon: SimulatedKernels | None = None,
        kernels: Sequence[KernelSpec] = KERNELS,
        memory_bytes: int | None = None,
    ) -> None:
        self._api = opened
        self._silicon = silicon
        self._kernels = {kernel.name: kernel for kernel in kernels}
        found = xclbin.read(design)
        memories = xclbin.check(found, kernels)
        self.uuid = opened.load(design)
        if self.uuid != found.uuid:
            raise DeviceError(
                f"{design} has UUID {found.uuid}, the card reports {self.uuid}: another program has loaded another "
                "design; end it, and try again"
            )
        self._opened = {kernel.name: opened.kernel(kernel.name) for kernel in kernels}
        self._banks = {
            bank: _Bank(memory.tag, memory.nbytes, self._group(bank, kernels)) for bank, memory in memories.items()
        }
        self.memory_bytes = sum(bank.nbytes for bank in self._banks.values())
        if memory_bytes is not None:
            self.memory_bytes = min(self.memory_bytes, memory_bytes)
        self._held: dict[int, tuple[api.BufferObject, int, _Bank]] = {}
        self._number = 0
        self._closed = False

    def allocate(self, nbytes: int, bank: int = 0) -> Buffer:
        """Reserve memory.

        Raises:
            DeviceError: There is no room; the message has the numbers.
        """
        self._alive()
        if bank not in self._banks:
            raise DeviceError(f"the card has no bank {bank}: it has {sorted(self._banks)}")
        place = self._banks[bank]
        size = max(-(-nbytes // PAGE_BYTES), 1) * PAGE_BYTES
        used = self.used_bytes
        if place.used + size > place.nbytes or used + size > self.memory_bytes:
            raise DeviceError(
                f"{size} bytes do not fit on the card: {place.tag} holds {place.used} of {place.nbytes} bytes, the "
                f"card {used} of {self.memory_bytes}: unload another model, or use a smaller batch"
            )
        memory = self._api.allocate(size, place.group)
        self._number += 1
        self._held[self._number] = (memory, size, place)
        place.used += size
        return Buffer(self._number, nbytes)

    def free(self, buffer: Buffer) -> None:
        """Give memory back."""
        memory, size, place = self._memory(buffer)
        del self._held[buffer.number]
        place.used -= size
        memory.free()

    def write(self, buffer: Buffer, data: npt.NDArray[Any], offset: int = 0) -> None:
        """Copy to the card."""
        if data.nbytes:
            self._bounded(buffer, data, offset)[0].write(data, offset)

    def read(self, buffer: Buffer, out: npt.NDArray[Any], offset: int = 0) -> None:
        """Copy from the card."""
        if out.nbytes:
            self._bounded(buffer, out, offset)[0].read(out, offset)

    def launch(self, kernel: str, arguments: Sequence[Buffer | int]) -> None:
        """Run a kernel to its end, asking for its state.

        Raises:
            DeviceError: The kernel failed, was aborted or timed out; the message names its state.
        """
        self._alive()
        if kernel not in self._kernels:
            raise DeviceError(f"the design has no kernel {kernel}: it has {', '.join(self._kernels)}")
        wanted = self._kernels[kernel].arguments
        if len(wanted) != len(arguments):
            raise DeviceError(f"{kernel} takes {len(wanted)} arguments, {len(arguments)} were given")
        passed = [signed(a) if isinstance(a, int) else self._memory(a)[0] for a in arguments]
        run = self._opened[kernel].start(passed)
        try:
            if self._silicon is not None:
                self._silicon(kernel, [a if isinstance(a, int) else a.address() for a in passed])
            _finish(run, kernel)
        finally:
            run.close()

    def close(self) -> None:
        """Free every buffer and give the card back. Idempotent."""
        if self._closed:
            return
        self._closed = True
        for memory, _, _ in self._held.values():
            memory.free()
        self._held.clear()
        self._opened.clear()
        self._api.close()

    @property
    def used_bytes(self) -> int:
        """Bytes that are reserved."""
        return sum(bank.used for bank in self._banks.values())

    def _group(self, bank: int, kernels: Sequence[KernelSpec]) -> int:
        places = ((kernel.name, i) for kernel in kernels for i, a in enumerate(kernel.arguments) if a.bank == bank)
        name, i = next(places)
        return self._opened[name].group(i)

    def _memory(self, buffer: Buffer) -> tuple[api.BufferObject, int, _Bank]:
        self._alive()
        if buffer.number not in self._held:
            raise DeviceError(f"buffer {buffer.number} is not on this card: it was freed, or is another card's")
        return self._held[buffer.number]

    def _bounded(self, buffer: Buffer, data: npt.NDArray[Any], offset: int) -> tuple[api.BufferObject, int, _Bank]:
        if offset < 0 or offset + data.nbytes > buffer.nbytes:
            raise DeviceError(
                f"bytes {offset} to {offset + data.nbytes} lie outside buffer {buffer.number} of {buffer.nbytes} bytes"
            )
        if not data.flags.c_contiguous:
            raise DeviceError("an array that is copied must be C-contiguous")
        return self._memory(buffer)

    def _alive(self) -> None:
        if self._closed:
            raise DeviceLostError("the card is closed")


def signed(value: int) -> int:
    """Return the signed 32-bit integer with the same bits; ``set_arg`` of XRT takes a C int.

    Raises:
        DeviceError: The value has more than 32 bits.
    """
    if not -(2**31) <= value < 2**32:
        raise DeviceError(f"argument {value} has more than 32 bits")
    return value - 2**32 if value >= 2**31 else value


def _finish(run: api.XrtRun, kernel: str) -> None:
    spins, sleep_s = 0, 0.00001
    while (state := run.state()) in api.PENDING:
        spins += 1
        if spins > SPINS:
            time.sleep(sleep_s)
            sleep_s = min(sleep_s * 2, LONGEST_SLEEP_S)
    if state != api.COMPLETED:
        raise DeviceError(
            f"kernel {kernel} ended in state {state} ({api.STATES.get(state, 'unknown')}) instead of completed"
        )


def simulated_kernels(library: Path) -> SimulatedKernels:
    """Return what runs a kernel of a library that :mod:`greentrain.fpga_backend.csim.build` has made.

    Raises:
        DeviceError: The library cannot be loaded, or lacks a kernel.
    """
    found = functions(library)

    def run(kernel: str, arguments: Sequence[int]) -> None:
        found[kernel](*arguments)

    return run
