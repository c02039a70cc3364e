"""Build the kernels with g++ into a library, once for each state of the sources, flags, compiler and processor.

hls4ml's copies of AMD's ``ap_int`` headers (Apache-2.0) are used where that package is installed; without them the
kernels use plain integers, with the same results.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from greentrain.fpga_backend.errors import DeviceError
from greentrain.utils.files import cache_folder

SOURCES = Path(__file__).resolve().parents[1] / "hls"
FLAGS = (
    "-std=c++17",
    "-O3",
    "-march=native",
    "-fPIC",
    "-shared",
    "-ffp-contract=off",  # a fused multiply-add rounds once where the contract rounds twice
    "-fno-fast-math",
    "-fno-math-errno",  # the root as one instruction; no bit of a result changes
    "-fno-trapping-math",
    "-Wall",
    "-Wextra",
    "-Wno-unknown-pragmas",  # those of HLS
)
AP_TYPES = Path("templates", "vivado", "ap_types")
"""Where hls4ml keeps the headers (hls4ml 1.3.0, 2026-11-21)."""
TIMEOUT_S = 600.0


def build(folder: Path | str | None = None, *, ap_int: bool | None = None, flags: Sequence[str] = FLAGS) -> Path:
    """Return the library of the kernels; build it where this is the first time.

    Args:
        folder: Folder in which libraries are kept, by default ``csim`` in GreenTrain's cache folder.
        ap_int: Whether to use ``ap_int`` headers; None: where they are installed.
        flags: Flags of the compiler.

    Raises:
        DeviceError: There is no g++ or no hls4ml, the compiler fails, or the folder cannot be written.
    """
    compiler = shutil.which("g++")
    if compiler is None:
        raise DeviceError(
            "g++ is not on PATH and the csim device builds its kernels with it: install it (apt-get install g++)"
        )
    headers = None if ap_int is False else ap_types()
    if ap_int and headers is None:
        raise DeviceError("no ap_int headers: install hls4ml, whose wheel has them, or leave ap_int away")
    command = [compiler, *flags]
    if headers is not None:
        command += ["-DGT_AP_INT", "-isystem", str(headers), "-Wno-maybe-uninitialized"]
    try:
        folder = Path(folder) if folder is not None else cache_folder(part="csim")
        target = folder / f"kernels-{_key(compiler, command)}.so"
        if not target.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            _compile([*command, *map(str, sorted(SOURCES.glob("*.cpp")))], target)
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        raise DeviceError(f"the kernels cannot be built: {error}") from error
    return target


def ap_types() -> Path | None:
    """Return the folder of hls4ml's ``ap_int`` headers, without importing hls4ml; None: not installed."""
    try:
        spec = importlib.util.find_spec("hls4ml")
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:
        return None
    found = Path(spec.origin).parent / AP_TYPES
    return found if (found / "ap_int.h").is_file() else None


def _compile(command: list[str], target: Path) -> None:
    handle, name = tempfile.mkstemp(suffix=".so", prefix=".", dir=target.parent)
    os.close(handle)
    made = Path(name)
    try:
        done = subprocess.run(
            [*command, "-o", name], capture_output=True, text=True, timeout=TIMEOUT_S, env={**os.environ, "LC_ALL": "C"}
        )
        if done.returncode:
            raise DeviceError(f"{command[0]} failed with exit code {done.returncode}:\n{done.stderr[-2000:]}")
        made.chmod(0o755)
        made.replace(target)
    finally:
        made.unlink(missing_ok=True)


def _key(compiler: str, command: Sequence[str]) -> str:
    """Hash all that decides about the library; ``native`` is another processor on another machine of the same home."""
    digest = hashlib.sha256("\0".join(command).encode())
    digest.update(_output([compiler, "--version"]))
    digest.update(_output([compiler, "-march=native", "-Q", "--help=target"]))
    for path in sorted((*SOURCES.glob("*.cpp"), *SOURCES.glob("*.h"))):
        digest.update(f"\0{path.name}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _output(command: list[str]) -> bytes:
    env = {**os.environ, "LC_ALL": "C"}
    return subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, env=env, check=True).stdout
