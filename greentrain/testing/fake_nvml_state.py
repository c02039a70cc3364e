"""The shared state of the fake NVIDIA driver: a mirror of ``config`` in fake_nvml.c, and the energy it implies."""

import ctypes
import math
from typing import Any, Final

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
    *("utilisation", "temperature_c", "memory_total", "memory_used", "pids"),
)


class GpuState(ctypes.Structure):
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
        ("gpu", GpuState * GPUS),
    ]


def _on_s(wave: Any, t_s: float) -> float:
    whole = math.floor(t_s / wave.period_s)
    on_s = float(wave.duty * wave.period_s)
    return float(whole * on_s + min(t_s - whole * wave.period_s, on_s))


def _wave_j(wave: Any, low_w: float, high_w: float, u_s: float) -> float:
    total_j = low_w * u_s
    if wave.period_s > 0:
        total_j += (high_w - low_w) * (_on_s(wave, u_s + wave.phase_s) - _on_s(wave, wave.phase_s))
    return float(total_j)


def _cut_j(gpu: Any, limit_w: float, t_s: float) -> float:
    total_j = 0.0
    for i in range(gpu.segments):
        start_s, wave = gpu.segment[i].start_s, gpu.segment[i].wave[0]
        end_s = min(t_s, gpu.segment[i + 1].start_s) if i + 1 < gpu.segments else t_s
        if start_s < t_s:
            total_j += _wave_j(wave, min(wave.low_w, limit_w), min(wave.high_w, limit_w), end_s - start_s)
    return total_j


def energy_j(gpu: Any, t_s: float) -> float:
    """Return the true energy of a GPU from its epoch to a monotonic time (J)."""
    if gpu.obeys_limit:
        change = gpu.limit[max((i for i in range(gpu.limits) if gpu.limit[i].at_s <= t_s), default=0)]
        since_j = _cut_j(gpu, change.limit_w, t_s) - _cut_j(gpu, change.limit_w, change.at_s)
        return float(change.base_j + since_j)
    segment = gpu.segment[max((i for i in range(gpu.segments) if gpu.segment[i].start_s <= t_s), default=0)]
    u_s = t_s - segment.start_s
    total_j = float(segment.base_j)
    for wave in segment.wave[: segment.waves]:
        total_j += _wave_j(wave, wave.low_w, wave.high_w, u_s)
    return total_j
