"""A fake NVIDIA driver: the real ``pynvml`` and whatever builds on it run on GPUs whose true energy is known.

::

    with FakeDriver([FakeGpu(power=(Wave(low_w=100, high_w=400, period_s=0.5),))]) as driver:
        subprocess.run([sys.executable, "train.py"], env=driver.env())     # another process
        with driver.installed():                                          # or this one
            pynvml.nvmlInit()
        driver.update(0, power=(Wave(low_w=250),))                         # while they run
        driver.true_energy_j(0, t0_s, t1_s)                                # in closed form, time.monotonic()

The driver itself is ``fake_nvml.c``, compiled by gcc; this module writes the state that all
processes share, a mirror of its ``config``.
"""

import ctypes
import math
import mmap
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, Self

MAGIC: Final = 0x47544E564D4C0001
GPUS, MIGS, WAVES, SEGMENTS, JUMPS, FUNCTIONS = 16, 8, 4, 64, 8, 96
PIDS, LIMITS = 8, 256
"""Bounds of the arrays, as in fake_nvml.c."""


class WaveState(ctypes.Structure):
    """Mirror of ``wave``."""

    _fields_ = [(n, ctypes.c_double) for n in ("low_w", "high_w", "period_s", "duty", "phase_s")]


class SegmentState(ctypes.Structure):
    """Mirror of ``segment``."""

    _fields_ = [
        ("start_s", ctypes.c_double),
        ("base_j", ctypes.c_double),
        ("waves", ctypes.c_int64),
        ("wave", WaveState * WAVES),
    ]


class JumpState(ctypes.Structure):
    """Mirror of ``jump``."""

    _fields_ = [("at_s", ctypes.c_double), ("delta_j", ctypes.c_double)]


class LimitState(ctypes.Structure):
    """Mirror of ``limit_change``."""

    _fields_ = [(n, ctypes.c_double) for n in ("at_s", "base_j", "limit_w")]


class BehaviourState(ctypes.Structure):
    """Mirror of ``behaviour``."""

    _fields_ = [
        ("code", ctypes.c_int64),
        *((n, ctypes.c_double) for n in ("from_s", "until_s", "sleep_s", "busy_s")),
    ]


class TextState(ctypes.Structure):
    """A string in an array of strings."""

    _fields_ = [("text", ctypes.c_char * 96)]


_WORDS_BEFORE = ("migs", "mig_supported", "architecture", "compute_major", "compute_minor", "c2c")
_DOUBLES = ("tick_s", "tick_phase_s", "refresh_s", "averaging_s", "window_s", "counter_start_j", "lost_at_s")
_WORDS_AFTER = (
    *("limit_min_mw", "limit_max_mw", "limit_default_mw", "limit_mw", "limit_sets", "may_set", "persistence"),
    *("limit_enforced_mw", "limit_step_mw", "obeys_limit", "clock_sets", "clock_reasons"),
    *("app_clock_mhz", "app_clock_default_mhz"),
    *("gpu_clock_min_mhz", "gpu_clock_max_mhz", "memory_clock_min_mhz", "memory_clock_max_mhz"),
    *("utilisation", "memory_utilisation", "temperature_c", "memory_total", "memory_used", "pids"),
)


_AS_SAID = (
    *("mig_supported", "architecture", "tick_s", "tick_phase_s", "refresh_s", "averaging_s", "window_s"),
    *("counter_start_j", "may_set", "obeys_limit", "clock_reasons", "utilisation", "memory_utilisation"),
    "temperature_c",
)
"""Words and doubles that are called, and mean, the same in a FakeGpu."""


class GpuMirror(ctypes.Structure):
    """Mirror of ``gpu``."""

    _fields_ = [
        ("name", ctypes.c_char * 96),
        ("uuid", ctypes.c_char * 96),
        ("bus_id", ctypes.c_char * 32),
        ("mig_uuid", TextState * MIGS),
        *((n, ctypes.c_int64) for n in _WORDS_BEFORE),
        *((n, ctypes.c_double) for n in _DOUBLES),
        *((n, ctypes.c_int64) for n in _WORDS_AFTER),
        ("pid", ctypes.c_int64 * PIDS),
        ("sm_util", ctypes.c_int64 * PIDS),
        ("mig_sms", ctypes.c_int64 * MIGS),
        *((n, ctypes.c_int64) for n in ("profiles", "profiles_requested", "profile_sets")),
        ("segments", ctypes.c_int64),
        ("segment", SegmentState * SEGMENTS),
        ("jumps", ctypes.c_int64),
        ("jump", JumpState * JUMPS),
        ("limits", ctypes.c_int64),
        ("limit", LimitState * LIMITS),
        ("behaviour", BehaviourState * FUNCTIONS),
        ("calls", ctypes.c_int64 * FUNCTIONS),
    ]


class ConfigState(ctypes.Structure):
    """Mirror of ``config`` in fake_nvml.c."""

    _fields_ = [
        ("magic", ctypes.c_int64),
        ("gpus", ctypes.c_int64),
        ("init_code", ctypes.c_int64),
        ("driver_version", ctypes.c_char * 80),
        ("gpu", GpuMirror * GPUS),
    ]


SOURCE: Final = Path(__file__).with_name("fake_nvml.c")
SONAME: Final = "libnvidia-ml.so.1"
"""The name that nvidia-ml-py loads (pynvml.py, _LoadNvmlLibrary)."""
LEAD_S: Final = 0.002
"""A change takes effect this long after the call, so that no reader has already passed its moment."""


class NvmlCode(IntEnum):
    """The return codes a test is likely to want (nvml.h, nvmlReturn_t)."""

    SUCCESS = 0
    UNINITIALIZED = 1
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    DRIVER_NOT_LOADED = 9
    GPU_IS_LOST = 15
    LIB_RM_VERSION_MISMATCH = 18
    UNKNOWN = 999


@dataclass(frozen=True, slots=True, kw_only=True)
class Wave:
    """A power: ``low_w``, or a square wave that starts each period at ``high_w``. Waves of one GPU add up."""

    low_w: float
    high_w: float = 0.0
    period_s: float = 0.0
    """0: constant at low_w."""
    duty: float = 0.5
    """Share of the period at high_w."""
    phase_s: float = 0.0
    """How far into its period the wave is when it begins (s)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeGpu:
    """One GPU as the driver shows it. The defaults are those of an H100."""

    name: str = "NVIDIA H100 80GB HBM3"
    uuid: str | None = None
    """None: made from the position, GPU-00000000-0000-0000-0000-00000000000<position>."""
    architecture: int = 9
    """NVML_DEVICE_ARCH_*: 5 Volta, 6 Turing, 7 Ampere, 8 Ada, 9 Hopper, 10 Blackwell."""
    compute_capability: tuple[int, int] = (9, 0)
    power: Sequence[Wave] = (Wave(low_w=300.0),)
    tick_s: float = 0.1
    """Refresh interval of the energy counter (s)."""
    tick_phase_s: float = 0.0
    """Ticks fall on multiples of tick_s of the monotonic clock plus this (s)."""
    refresh_s: float = 0.02
    """Refresh interval of the power readings (s)."""
    averaging_s: float = 1.0
    """What power usage averages over (s); 0: instantaneous, and no average field (GA100 and older)."""
    window_s: float = 0.0
    """The sensor sees only this much before each tick (s) and takes it for the whole tick; 0: sees everything."""
    counter_start_j: float = 1e6
    mig_uuids: Sequence[str] = ()
    """UUIDs of MIG devices; any: MIG mode is on."""
    mig_sms: Sequence[int] = ()
    """Multiprocessors of each; empty: the driver does not tell."""
    mig_supported: bool = True
    grace_hopper: bool = False
    may_set: bool = True
    """False: setters answer NO_PERMISSION, as for an ordinary user."""
    limits_w: tuple[float, float, float] = (200.0, 700.0, 700.0)
    """Power limit: minimum, maximum, default (W)."""
    limit_w: float | None = None
    """The administrator's setting (W); None: the default."""
    enforced_w: float | None = None
    """A lower limit that something outside the driver enforces (W)."""
    limit_step_w: float = 0.0
    """Limits are rounded down to multiples of this (W); 0: taken as they are."""
    obeys_limit: bool = False
    """Its power, of one wave, never exceeds its limit; False: limits are only remembered."""
    clock_reasons: int = 0
    """nvmlClocksEventReasons: why the clocks are as they are; 2: an applications clock, 1: idle."""
    app_clocks_mhz: tuple[int, int] | None = None
    """Applications clock and its default (MHz); None: not supported, as from CUDA 14 on."""
    utilisation: int = 90
    """Share of the last sample period in which a kernel ran (%)."""
    memory_utilisation: int = 45
    """The same of its memory being read or written (%)."""
    temperature_c: int = 60
    pid: int = 0
    """Process shown on the GPU; 0: none."""
    pids: Sequence[int] = ()
    """More of them."""
    sm_utils: Sequence[int] = ()
    """SM utilisation of each process (%); empty: nobody's is told."""
    profiles: tuple[int, int] = (0, 0)
    """Workload power profiles that the card has, and those that an administrator has requested, as masks."""
    errors: Mapping[str, int] = field(default_factory=dict)
    """Function name to return code, from the start on."""
    delays: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Function name to (sleep, busy CPU) seconds per call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """What programs have set on a GPU."""

    power_limit_w: float
    power_limit_sets: int
    persistence: bool
    gpu_clocks_mhz: tuple[int, int]
    gpu_clock_sets: int
    memory_clocks_mhz: tuple[int, int]
    profiles: int
    """Workload power profiles that are requested, as a mask."""


class FakeDriver:
    """A compiled fake driver and its state. A context manager; leaves nothing behind.

    Args:
        gpus: The GPUs, or how many default ones.
        library: A library from :func:`build_library` to use again; None compiles one (0.3 s).
        init_error: Return code of nvmlInit, NvmlCode.SUCCESS for success.
        driver_version: Version that nvmlSystemGetDriverVersion returns.

    Raises:
        RuntimeError: There is no C compiler, or it failed.
        ValueError: More GPUs, waves or slices than the driver holds, or an unknown function name.
    """

    def __init__(
        self,
        gpus: Sequence[FakeGpu] | int = 1,
        *,
        library: Path | None = None,
        init_error: int = NvmlCode.SUCCESS,
        driver_version: str = "580.65.06",
    ) -> None:
        fleet = [FakeGpu() for _ in range(gpus)] if isinstance(gpus, int) else list(gpus)
        _at_most("GPUs", len(fleet), GPUS)
        self._folder = tempfile.TemporaryDirectory(prefix="fake-nvml-")
        folder = Path(self._folder.name)
        try:
            self.library = library if library is not None else build_library(folder)
            self._lib = ctypes.CDLL(str(self.library))
            self._function = _function_numbers(self._lib)
            self.state_file = folder / "state"
            self._map = _shared_map(self.state_file)
            self._state = ConfigState.from_buffer(self._map)
            self.epoch_s = time.monotonic()
            """Monotonic time at which the GPUs began (s)."""
            for position, gpu in enumerate(fleet):
                self._write_gpu(position, gpu)
        except BaseException:
            self._folder.cleanup()
            raise
        self._state.gpus = len(fleet)
        self._state.init_code = init_error
        self._state.driver_version = driver_version.encode()
        self._state.magic = MAGIC
        _write_nvidia_smi(folder / "bin" / "nvidia-smi", fleet)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the files. Processes that still run keep what they have mapped. Idempotent."""
        if not self._map.closed:
            del self._state
            self._map.close()
            self._folder.cleanup()

    def env(self, base: Mapping[str, str] | None = None, *, nvidia_smi: bool = True) -> dict[str, str]:
        """Return an environment in which child processes find this driver.

        Args:
            base: Variables to start from; None: those of this process, without CUDA_VISIBLE_DEVICES.
            nvidia_smi: Whether to put an ``nvidia-smi`` on PATH, which codecarbon wants to see.
        """
        env = dict(os.environ if base is None else base)
        if base is None:
            env.pop("CUDA_VISIBLE_DEVICES", None)
        env["FAKE_NVML_CONFIG"] = str(self.state_file)
        env["LD_LIBRARY_PATH"] = _prepend(self.library.parent, env.get("LD_LIBRARY_PATH"))
        if nvidia_smi:
            env["PATH"] = _prepend(self.state_file.parent / "bin", env.get("PATH", os.defpath))
        return env

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Make ``pynvml`` of this process use this driver in the block, whatever it used before."""
        import pynvml

        before = pynvml.nvmlLib, dict(pynvml._nvmlGetFunctionPointer_cache)
        self._configure(str(self.state_file).encode())
        pynvml.nvmlLib = self._lib
        pynvml._nvmlGetFunctionPointer_cache.clear()
        try:
            yield
        finally:
            pynvml.nvmlLib = before[0]
            pynvml._nvmlGetFunctionPointer_cache.clear()
            pynvml._nvmlGetFunctionPointer_cache.update(before[1])
            self._configure(None)

    @property
    def init_depth(self) -> int:
        """Calls of nvmlInit minus nvmlShutdown in this process."""
        return int(self._lib.fake_nvml_init_depth())

    def uuid(self, device: int) -> str:
        """Return the UUID of a GPU."""
        return bytes(self._gpu(device).uuid).decode()

    def update(
        self,
        device: int,
        *,
        power: Sequence[Wave] | None = None,
        errors: Mapping[str, int] | None = None,
        delays: Mapping[str, tuple[float, float]] | None = None,
        counter_jump_j: float | None = None,
        lost: bool | None = None,
        limit_w: float | None = None,
        pids: Sequence[int] | None = None,
        sm_utils: Sequence[int] | None = None,
        clock_reasons: int | None = None,
        utilisation: tuple[int, int] | None = None,
        temperature_c: int | None = None,
        may_set: bool | None = None,
        at_s: float | None = None,
    ) -> float:
        """Reprogram a GPU while programs use it.

        Args:
            device: Position of the GPU.
            power: New waves; the energy so far stays.
            errors: Function or field name to NVML return code from then on; NvmlCode.SUCCESS heals.
            delays: Function or field name to (sleep, busy CPU) seconds per call, at once.
            counter_jump_j: Added to the energy counter, not to the truth (J). A reloaded driver is a large
                negative value: the counter stops at 0.
            lost: Every call answers GPU_IS_LOST; False brings the GPU back.
            limit_w: An administrator sets this power limit (W), at once.
            pids: Processes shown on the GPU, at once.
            sm_utils: SM utilisation of each of them (%), at once.
            clock_reasons: Why the clocks are as they are, at once.
            utilisation: Of kernels and of memory (%), at once.
            temperature_c: Of the chip (degrees Celsius), at once.
            may_set: Whether setters are permitted, at once.
            at_s: Monotonic time of the change (s), LEAD_S from now at the earliest.

        Returns:
            The monotonic time at which the change takes effect (s).

        Raises:
            ValueError: Too many changes, or an unknown function name.
        """
        gpu = self._gpu(device)
        when_s = max(time.monotonic() + LEAD_S, at_s or 0.0)
        if power is not None:
            self._append(gpu, when_s, power)
        for name, code in (errors or {}).items():
            self._behaviour(gpu, name, code=code, from_s=when_s)
        for name, (sleep_s, busy_s) in (delays or {}).items():
            self._behaviour(gpu, name, sleep_s=sleep_s, busy_s=busy_s)
        if counter_jump_j is not None:
            _at_most("counter jumps", gpu.jumps + 1, JUMPS)
            gpu.jump[gpu.jumps].at_s, gpu.jump[gpu.jumps].delta_j = when_s, counter_jump_j
            gpu.jumps += 1
        if lost is not None:
            gpu.lost_at_s = when_s if lost else math.inf
        if limit_w is not None:
            self._limit(gpu, limit_w)
        if pids is not None:
            self._show(gpu, pids)
        if sm_utils is not None:
            gpu.sm_util[: len(sm_utils)] = list(sm_utils)
        if utilisation is not None:
            gpu.utilisation, gpu.memory_utilisation = utilisation
        plain = {"clock_reasons": clock_reasons, "temperature_c": temperature_c, "may_set": may_set}
        for name, value in plain.items():
            if value is not None:
                setattr(gpu, name, value)
        return when_s

    def true_energy_j(self, device: int, t0_s: float, t1_s: float) -> float:
        """Return what a GPU really used between two monotonic times (J), exactly."""
        gpu = self._gpu(device)
        return self._energy_j(gpu, t1_s) - self._energy_j(gpu, t0_s)

    def calls(self, device: int, function: str) -> int:
        """Return how often all processes have called a function (or read a field) of a GPU."""
        return int(self._gpu(device).calls[self._number(function)])

    def state(self, device: int) -> GpuState:
        """Return what programs have set on a GPU."""
        gpu = self._gpu(device)
        return GpuState(
            power_limit_w=gpu.limit_mw / 1000,
            power_limit_sets=gpu.limit_sets,
            persistence=bool(gpu.persistence),
            gpu_clocks_mhz=(gpu.gpu_clock_min_mhz, gpu.gpu_clock_max_mhz),
            gpu_clock_sets=gpu.clock_sets,
            memory_clocks_mhz=(gpu.memory_clock_min_mhz, gpu.memory_clock_max_mhz),
            profiles=gpu.profiles_requested,
        )

    def _configure(self, path: bytes | None) -> None:
        code = self._lib.fake_nvml_configure(path)
        if code:
            raise RuntimeError(f"the fake driver cannot map its state {path!r}: code {code}")

    def _gpu(self, device: int) -> Any:
        if not 0 <= device < GPUS:
            raise ValueError(f"device is {device}; the fake driver holds 0 to {GPUS - 1}")
        return self._state.gpu[device]

    def _number(self, function: str) -> int:
        if function not in self._function:
            raise ValueError(f"{function!r} cannot be programmed; known: {', '.join(sorted(self._function))}")
        return self._function[function]

    def _behaviour(self, gpu: Any, name: str, **values: float) -> None:
        behaviour = gpu.behaviour[self._number(name)]
        behaviour.until_s = math.inf
        for key, value in values.items():
            setattr(behaviour, key, value)

    def _energy_j(self, gpu: Any, t_s: float) -> float:
        """Return the true energy of a GPU from its epoch to a monotonic time (J), by the driver's own closed form."""
        return float(self._lib.fake_nvml_energy_j(ctypes.byref(gpu), ctypes.c_double(t_s)))

    def _limit(self, gpu: Any, limit_w: float) -> None:
        _at_most("limits", gpu.limits + 1, LIMITS)
        change, now_s = gpu.limit[gpu.limits], time.monotonic() if gpu.limits else self.epoch_s
        change.base_j = self._energy_j(gpu, now_s) if gpu.limits else 0.0
        change.at_s, change.limit_w = now_s, limit_w
        gpu.limits += 1
        gpu.limit_mw = round(1000 * limit_w)

    def _show(self, gpu: Any, pids: Sequence[int]) -> None:
        _at_most("processes", len(pids), PIDS)
        gpu.pid[: len(pids)] = list(pids)
        gpu.pids = len(pids)

    def _append(self, gpu: Any, start_s: float, power: Sequence[Wave]) -> None:
        _at_most("power changes", gpu.segments + 1, SEGMENTS)
        _at_most("waves", len(power), 1 if gpu.obeys_limit else WAVES)
        segment = gpu.segment[gpu.segments]
        segment.base_j = self._energy_j(gpu, start_s) if gpu.segments else 0.0
        segment.start_s = start_s
        segment.waves = len(power)
        for slot, wave in enumerate(power):
            segment.wave[slot] = WaveState(**asdict(wave))
        gpu.segments += 1

    def _write_gpu(self, position: int, source: FakeGpu) -> None:
        gpu = self._gpu(position)
        _at_most("MIG devices", len(source.mig_uuids), MIGS)
        gpu.name = source.name.encode()
        gpu.uuid = (source.uuid or f"GPU-00000000-0000-0000-0000-{position:012d}").encode()
        gpu.bus_id = f"00000000:{position + 1:02X}:00.0".encode()
        for slot, uuid in enumerate(source.mig_uuids):
            gpu.mig_uuid[slot].text = uuid.encode()
        for name in _AS_SAID:
            setattr(gpu, name, getattr(source, name))
        gpu.migs, gpu.c2c, gpu.lost_at_s = len(source.mig_uuids), source.grace_hopper, math.inf
        gpu.compute_major, gpu.compute_minor = source.compute_capability
        gpu.limit_min_mw, gpu.limit_max_mw, gpu.limit_default_mw = (round(1000 * w) for w in source.limits_w)
        gpu.limit_enforced_mw, gpu.limit_step_mw = (
            round(1000 * w) for w in (source.enforced_w or 0.0, source.limit_step_w)
        )
        gpu.app_clock_mhz, gpu.app_clock_default_mhz = source.app_clocks_mhz or (0, 0)
        gpu.gpu_clock_min_mhz, gpu.gpu_clock_max_mhz = 210, 1410
        gpu.memory_clock_min_mhz, gpu.memory_clock_max_mhz = 1593, 1593
        self._show(gpu, [pid for pid in (source.pid, *source.pids) if pid])
        gpu.sm_util[: len(source.sm_utils)] = list(source.sm_utils)
        gpu.mig_sms[: len(source.mig_sms)] = list(source.mig_sms)
        gpu.profiles, gpu.profiles_requested = source.profiles
        gpu.memory_total, gpu.memory_used = 80 << 30, 40 << 30
        self._append(gpu, self.epoch_s, source.power)
        self._limit(gpu, gpu.limit_default_mw / 1000 if source.limit_w is None else source.limit_w)
        for name, code in source.errors.items():
            self._behaviour(gpu, name, code=code)
        for name, (sleep_s, busy_s) in source.delays.items():
            self._behaviour(gpu, name, sleep_s=sleep_s, busy_s=busy_s)


def build_library(folder: Path) -> Path:
    """Compile the fake driver into a folder and return its path.

    Raises:
        RuntimeError: There is no C compiler, or it failed; the message carries what it said.
    """
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise RuntimeError("the fake NVIDIA driver needs a C compiler: install gcc")
    target = folder / SONAME
    options = ["-O1", "-std=gnu11", "-fPIC", "-shared", "-fvisibility=hidden", f"-Wl,-soname,{SONAME}"]
    command = [compiler, *options, "-o", str(target), str(SOURCE), "-lm", "-lpthread"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"compiling {SOURCE} failed:\n{done.stderr}")
    return target


def _function_numbers(lib: ctypes.CDLL) -> dict[str, int]:
    lib.fake_nvml_config_size.restype = ctypes.c_int64
    lib.fake_nvml_function_name.restype = ctypes.c_char_p
    lib.fake_nvml_configure.argtypes = [ctypes.c_char_p]
    lib.fake_nvml_energy_j.restype = ctypes.c_double
    size = lib.fake_nvml_config_size()
    if size != ctypes.sizeof(ConfigState):
        raise RuntimeError(f"fake_nvml.c has a state of {size} bytes, fake_nvml.py of {ctypes.sizeof(ConfigState)}")
    numbers: dict[str, int] = {}
    while (name := lib.fake_nvml_function_name(len(numbers))) is not None:
        numbers[name.decode()] = len(numbers)
    return numbers


def _shared_map(path: Path) -> mmap.mmap:
    with path.open("w+b") as file:
        file.truncate(ctypes.sizeof(ConfigState))
        return mmap.mmap(file.fileno(), ctypes.sizeof(ConfigState))


def _at_most(what: str, count: int, bound: int) -> None:
    if count > bound:
        raise ValueError(
            f"{count} {what}, but the fake driver holds at most {bound}: raise the bound in fake_nvml.c too"
        )


def _prepend(folder: Path, path: str | None) -> str:
    return f"{folder}{os.pathsep}{path}" if path else str(folder)


def _write_nvidia_smi(path: Path, gpus: Sequence[FakeGpu]) -> None:
    lines = "\n".join(f"GPU {i}: {gpu.name}" for i, gpu in enumerate(gpus))
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{lines}\nEND\n", encoding="utf-8")
    path.chmod(0o755)
