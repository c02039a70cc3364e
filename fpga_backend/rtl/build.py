"""Builds a Verilator model with its C++ bench into a shared library, in a cache keyed by all that goes into it."""

import hashlib
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from greentrain.fpga_backend.errors import DeviceError
from greentrain.fpga_backend.rtl.toolchain import Toolchain, toolchain
from greentrain.utils.files import cache_folder

HERE = Path(__file__).resolve().parent
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
    return Design(top="gt_tile", bench=HERE / "tile_bench.cpp", parameters=(("R2", row_pairs), ("C", columns)))


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
