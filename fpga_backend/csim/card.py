"""A card whose memory is the process's own and whose kernels are the library that g++ made of them.

:func:`functions` binds the built kernels as the table of kernels says. :func:`extents` says how many bytes each pointer
of a launch must reach, which keeps a wrong launch from memory that is not its own. Where rows are picked by an index
(``index``, ``positions``, ``ids``, ``segments``), what the index can reach is the caller's to check: the schedule
checks the program's tables once, and each batch before it is packed.
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

Bytes = Mapping[str, int]
BEAT = 64


def padded(elements: int, size: int) -> int:
    """Return the bytes of ``elements`` of ``size`` bytes each, in whole beats."""
    return -(-elements * size // BEAT) * BEAT


def extents(kernel: str, s: Mapping[str, int]) -> Bytes:
    """Return the least size of each pointer's buffer.

    Args:
        kernel: Name of a kernel.
        s: Scalar arguments of the launch by name.

    Returns:
        Bytes by pointer; a pointer that is not used, or whose reach depends on data alone, is left away.

    Raises:
        KeyError: No such kernel.
    """
    return {name: size for name, size in _reached(kernel, s).items() if size}


def _reached(kernel: str, s: Mapping[str, int]) -> Bytes:
    """Return the bytes that a launch can touch of each pointer whose reach its scalars say."""
    rows, width = s.get("rows", 0), s.get("width", 0)
    match kernel:
        case "gt_embed":
            return {"index": 4 * rows, "y": rows * padded(width, 4)}
        case "gt_add":
            return {"x": _slice(s, "x", rows, width), "z": _slice(s, "z", rows, width), "y": rows * padded(width, 4)}
        case "gt_norm":
            vector = padded(width, 4)
            return {"x": _slice(s, "x", rows, width), "g": vector, "b": vector * s["biased"], "y": rows * vector}
        case "gt_quantise":
            return {
                "x": 0 if s["indexed"] else _slice(s, "x", rows, width),
                "index": 4 * (s["first"] + rows) * s["indexed"],
                "q": rows * s["groups"] * s["digits"] * padded(width // s["groups"], 1),
                "s": 4 * rows * s["groups"],
            }
        case "gt_gemm":
            outputs = padded(s["outputs"], 4)
            return {
                "q": rows * s["digits"] * s["inner_beats"] * BEAT,
                "qs": 4 * rows,
                "w": s["outputs"] * s["inner_beats"] * BEAT,
                "ws": outputs,
                "b": outputs * s["biased"],
                "y": rows * outputs,
            }
        case "gt_gate":
            return {
                "x": _slice(s, "x", rows, width),
                "up": _slice(s, "up", rows, width) * s["gated"],
                "table": 0 if s["kind"] == 2 else 8192 * 4,
                "y": rows * padded(width, 4),
            }
        case "gt_rotary":
            width = 2 * s["half"] * s["heads"]
            return {"x": _slice(s, "x", rows, width), "positions": 4 * rows, "y": rows * padded(width, 4)}
        case "gt_attention":
            return {"exp2": 4 * 4096, "segments": 16 * s["segment_count"]}
        case "gt_pool":
            return {"segments": 16 * s["sequences"], "y": s["sequences"] * padded(width, 4)}
        case "gt_score":
            labels = s["labels"]
            return {
                "x": _slice(s, "x", rows, width),
                "w": labels * padded(width, 2),
                "ws": 4 * labels,
                "b": 4 * labels * s["biased"],
                "y": rows * padded(labels, 4),
            }
        case "gt_logprob":
            ends = 4 * (s["first"] + rows)
            logits = rows * padded(s["vocabulary"], 4)
            return {"logits": logits, "ids": ends, "exp2": 4 * 4096, "ln": 8 * 4096, "y": ends}
    raise KeyError(kernel)


def _slice(s: Mapping[str, int], name: str, rows: int, width: int) -> int:
    stride, start = s[f"{name}_stride"], s[f"{name}_start"]
    return max(0, rows - 1) * stride * BEAT + padded(start + width, 4) if rows > 0 else 0


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
    """Runs kernels on the CPU, and lets none of them outside its buffers.

    Args:
        library: Path that :func:`greentrain.fpga_backend.csim.build.build` returned.
        poison: Fill new buffers with bytes that are NaN as a float, so that what is read before it was written shows.

    Raises:
        DeviceError: The library cannot be loaded.
    """

    def __init__(self, library: Path, *, poison: bool = False) -> None:
        self._functions = functions(library)
        self._kernels = {kernel.name: kernel for kernel in KERNELS}
        self._poison = poison
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
        memory = whole[skip : skip + nbytes]
        if self._poison:
            memory.fill(0xFF)
        self._memory[buffer.number] = memory, bank
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
            DeviceError: An argument does not fit the kernel, or a buffer is too small for it.
        """
        spec = self._kernels.get(kernel)
        if spec is None:
            raise DeviceError(f"the card has no kernel {kernel}")
        self._functions[kernel](*self._checked(spec, arguments))

    def close(self) -> None:
        """Give all memory back. Idempotent."""
        self._closed = True
        self._memory.clear()

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return sum(memory.nbytes for memory, _ in self._memory.values())

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
        scalars: dict[str, int] = {}
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
                scalars[argument.name] = given
            else:
                raise DeviceError(f"{spec.name}: {argument.name}={given} does not fit 32 bits")
        for name, least in extents(spec.name, scalars).items():
            held = arguments[spec.index(name)]
            if isinstance(held, Buffer) and held.nbytes < least:
                raise DeviceError(f"{spec.name}: {name} needs {least} bytes, its buffer has {held.nbytes}")
        return raw
