"""Fake libraries of AMD and Intel on which the vendors' own Python bindings run; the true energy is known.

::

    with FakeGpus("amd", FakeGpu(low_w=300.0)) as fake:      # of this process, and by fake.env() of others
        import amdsmi
        ...
        fake.gpu(0).limit_mw
"""

import atexit
import ctypes
import importlib.util
import mmap
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Self

import pytest

FOLDER: Final = Path(__file__).parent
ZE: Final = "/usr/lib/x86_64-linux-gnu/libze_loader.so.1"
"""What pyzes 0.1.3 loads."""
LIBRARIES: Final = {"amd": ("amd_smi.c", "libamd_smi.so", "amdsmi"), "intel": ("ze_loader.c", ZE, "pyzes")}
_D = (
    "low_w",
    "high_w",
    "period_s",
    "start_s",
    "base_j",
    "tick_s",
    "counter_start_j",
    "clock_offset_s",
    "clock_rate",
    "counter_rate",
)
_I = (
    *("limit_min_mw", "limit_max_mw", "limit_default_mw", "limit_mw", "may_set", "sets"),
    *("clock_min_mhz", "clock_max_mhz", "low_mhz", "high_mhz", "perf_level", "utilisation", "memory", "temperature_c"),
    *("pid", "hip_id", "partition", "tiles", "card_counter", "integrated", "throttle"),
)


class _Gpu(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_char * size) for name, size in (("name", 96), ("uuid", 64), ("bdf", 32))),
        *((name, ctypes.c_double) for name in _D),
        *((name, ctypes.c_int64) for name in _I),
    ]


class _Fault(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char * 56), ("gpu", ctypes.c_int64), ("code", ctypes.c_int64)]


class _Config(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("magic", "gpus", "init_code", "reads")),
        ("gpu", _Gpu * 16),
        ("fault", _Fault * 32),
    ]


@dataclass(frozen=True, kw_only=True)
class FakeGpu:
    """One device. The defaults are near an MI300X's."""

    name: str = "AMD Instinct MI300X"
    low_w: float = 300.0
    high_w: float = 0.0
    period_s: float = 0.0
    tick_s: float = 0.001
    counter_start_j: float = 1e6
    counter_rate: float = 1.0
    """What the counter tells of the truth."""
    clock_offset_s: float = 12345.0
    clock_rate: float = 1.0
    limits_w: tuple[float, float, float] = (200.0, 750.0, 750.0)
    """Least, most, default."""
    limit_w: float = 750.0
    may_set: bool = True
    clocks_mhz: tuple[int, int] = (500, 2100)
    extra: Mapping[str, int] = field(default_factory=dict)
    """Further words of the state, such as ``tiles``."""


_built: dict[str, tuple[ctypes.CDLL, ModuleType, Path]] = {}


def _stubs(wrapper: Path) -> str:
    """Return C of every function that the bindings look up when they are imported, each answering NOT_SUPPORTED."""
    text = wrapper.read_text(encoding="utf-8")
    names = sorted(set(re.findall(r"_libraries\['libamd_smi\.so'\]\.(\w+)", text)))
    return "".join(f'__attribute__((weak, visibility("default"))) int {name}(void) {{ return 2; }}\n' for name in names)


def _library(vendor: str) -> tuple[ctypes.CDLL, ModuleType, Path]:
    """Compile the library once a test process, and import the bindings on it."""
    if vendor in _built:
        return _built[vendor]
    source, soname, module = LIBRARIES[vendor]
    found = importlib.util.find_spec(module)
    if found is None or found.origin is None:
        pytest.skip(f"{module} is not installed: it comes with the extra dev")
    folder = Path(tempfile.mkdtemp(prefix="fake-gpus-"))
    (folder / "lib").mkdir()
    target = folder / "lib" / Path(soname).name
    stubs = _stubs(Path(found.origin).with_name("amdsmi_wrapper.py")) if vendor == "amd" else ""
    (folder / "stubs.c").write_text(stubs, encoding="utf-8")
    words = [
        "gcc",
        "-O1",
        "-std=gnu11",
        "-fPIC",
        "-shared",
        "-fvisibility=hidden",
        f"-Wl,-soname,{soname if vendor == 'intel' else 'libfake.so'}",
        "-o",
        str(target),
    ]
    subprocess.run([*words, str(FOLDER / source), str(folder / "stubs.c"), "-lm"], check=True)
    lib = ctypes.CDLL(str(target))
    assert lib.fake_config_size() == ctypes.sizeof(_Config)
    before, os.environ["ROCM_PATH"] = os.environ.get("ROCM_PATH"), str(folder)
    try:
        bindings = importlib.import_module(module)
    finally:
        if before is None:
            del os.environ["ROCM_PATH"]
        else:
            os.environ["ROCM_PATH"] = before
    _forget(module)
    _built[vendor] = lib, bindings, target
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return _built[vendor]


def _forget(module: str) -> None:
    for name in [name for name in sys.modules if name == module or name.startswith(f"{module}.")]:
        del sys.modules[name]


class FakeGpus:
    """The devices of one vendor, in this process as long as the block lasts.

    Args:
        vendor: ``amd`` or ``intel``.
        *gpus: The devices.
        init_code: What the library's start answers.
    """

    def __init__(self, vendor: str, *gpus: FakeGpu, init_code: int = 0) -> None:
        self.vendor = vendor
        """Whose."""
        self.lib, self._bindings, self.library = _library(vendor)
        self._folder = tempfile.TemporaryDirectory(prefix="fake-gpus-")
        self.state_file = Path(self._folder.name) / "state"
        with self.state_file.open("w+b") as file:
            file.truncate(ctypes.sizeof(_Config))
            self._map = mmap.mmap(file.fileno(), ctypes.sizeof(_Config))
        self.state = _Config.from_buffer(self._map)
        self.state.gpus, self.state.init_code = len(gpus), init_code
        for fault in self.state.fault:
            fault.gpu = -1
        for number, gpu in enumerate(gpus):
            self._write(number, gpu)

    def _write(self, number: int, source: FakeGpu) -> None:
        gpu = self.state.gpu[number]
        gpu.name, gpu.uuid = source.name.encode(), f"{number:016x}".encode()
        for name in (
            "low_w",
            "high_w",
            "period_s",
            "tick_s",
            "counter_start_j",
            "counter_rate",
            "clock_offset_s",
            "clock_rate",
        ):
            setattr(gpu, name, getattr(source, name))
        gpu.start_s = time.monotonic()
        gpu.limit_min_mw, gpu.limit_max_mw, gpu.limit_default_mw = (int(1000 * watts) for watts in source.limits_w)
        gpu.limit_mw, gpu.may_set = int(1000 * source.limit_w), source.may_set
        gpu.clock_min_mhz, gpu.clock_max_mhz = gpu.low_mhz, gpu.high_mhz = source.clocks_mhz
        gpu.utilisation, gpu.memory, gpu.temperature_c, gpu.hip_id = 90, 45, 60, number
        gpu.tiles, gpu.card_counter = (0, 1) if self.vendor == "amd" else (1, 1)
        for name, value in source.extra.items():
            setattr(gpu, name, value)

    def __enter__(self) -> Self:
        module = LIBRARIES[self.vendor][2]
        self._before = {name: m for name, m in sys.modules.items() if name == module or name.startswith(f"{module}.")}
        sys.modules[module] = self._bindings
        assert self.lib.fake_configure(str(self.state_file).encode()) == 0
        return self

    def __exit__(self, *_: object) -> None:
        self.lib.fake_configure(None)
        _forget(LIBRARIES[self.vendor][2])
        sys.modules.update(self._before)
        del self.state
        self._map.close()
        self._folder.cleanup()

    def gpu(self, number: int) -> Any:
        """Return the state of a device, to read and to write."""
        return self.state.gpu[number]

    def fail(self, function: str, code: int, gpu: int = -1) -> None:
        """Let a function answer a code from now on; 0 heals it."""
        same = [f for f in self.state.fault if f.name == function.encode() and f.gpu == gpu]
        fault = same[0] if same else next(f for f in self.state.fault if not f.name)
        fault.name, fault.gpu, fault.code = function.encode(), gpu, code

    def power(self, number: int, watts: float) -> float:
        """Set a constant power from now on, and return when that is."""
        gpu = self.gpu(number)
        now_s = time.monotonic()
        gpu.base_j = self.energy_j(number, now_s)
        gpu.start_s, gpu.low_w, gpu.period_s = now_s, watts, 0.0
        return now_s

    def energy_j(self, number: int, t_s: float) -> float:
        """Return the true energy up to a time (J)."""
        gpu = self.gpu(number)
        u_s = t_s - gpu.start_s
        total_j: float = gpu.base_j + gpu.low_w * u_s
        if gpu.period_s > 0:
            whole, half_s = u_s // gpu.period_s, gpu.period_s / 2
            total_j += (gpu.high_w - gpu.low_w) * (whole * half_s + min(u_s - whole * gpu.period_s, half_s))
        return total_j

    def env(self) -> dict[str, str]:
        """Return an environment in which other processes find these devices."""
        return {
            **os.environ,
            "FAKE_GPUS_CONFIG": str(self.state_file),
            "ROCM_PATH": str(self.library.parent.parent),
            "LD_PRELOAD": str(self.library),
        }
