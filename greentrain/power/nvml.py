"""Energy of NVIDIA GPUs through NVML, with NVIDIA's own bindings; no ``nvidia-smi`` binary is needed.

Each GPU that is visible to the process is read by the best method that answers: the energy counter, else the
instant power field, else average power. API: https://docs.nvidia.com/deploy/nvml-api (read 2026-11-21).

What NVML has to offer on a machine, for ``greentrain doctor``.
"""

import contextlib
import ctypes
import dataclasses
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from greentrain.errors import MeterError
from greentrain.power.nvml_devices import NvmlGpu, list_gpus, open_nvml
from greentrain.power.nvml_probe import Polled, poll
from greentrain.power.visible import VARIABLE, index_order_is_sure, visible_devices
from greentrain.types import Counter, Device, DeviceKind, PowerSample, Provenance, Sensor
from greentrain.utils.clock import Clock, SystemClock

COUNTER: Final = "NVML energy counter"
INSTANT: Final = "NVML instant power"
AVERAGE: Final = "NVML average power"
USAGE: Final = "NVML power usage"

MJ_PER_J: Final = 1000.0
MW_PER_W: Final = 1000.0
TICK_S: Final = 0.1
"""Refresh interval of the energy counter: about 100 ms (ML.ENERGY blog, thermally stable profiling, read
2026-11-21). Held until the probe has measured it."""
REFRESH_S: Final = 0.02
"""Refresh interval of the instant power field: about 50 Hz (public measurements of one card, read 2026-11-21)."""
AVERAGING_S: Final = 1.0
"""NVML API reference, nvmlDeviceGetPowerUsage: "On Ampere (except GA100) or newer GPUs, the API returns power
averaged over 1 sec interval. On GA100 and older architectures, instantaneous power is returned."""
GA100: Final = (8, 0)
"""Compute capability of GA100 (A100, A30): https://developer.nvidia.com/cuda-gpus (read 2026-11-21)."""
PART_TIME: Final = ((8, 0), (9, 0))
"""Compute capabilities of A100 and H100, whose sensor sees 25 % of the time: arXiv 2312.02741, SC24."""
UNCERTAINTY: Final = 0.05
"""NVML API reference, nvmlDeviceGetPowerUsage: within 5 % of the current power draw."""
SHORT_READ_S: Final = 0.0005
"""A read that takes less than this is dated by one look at the clock, as the probe has measured the rest."""
STUCK_S: Final = 5.0
"""A counter that has not moved for so long is not believed: a GPU that answers draws some watts."""

_MIG_NOTE: Final = (
    "MIG is on and NVML gives no energy per slice: these are the joules of the whole GPU, other slices included"
)
_MIG_REMEDY: Final = (
    "MIG is on and the whole GPU cannot be read from this slice. Let a monitor on the host read it, with the meter"
    " 'prometheus', or run where the whole GPU is visible"
)
_SUPERCHIP_NOTE: Final = (
    "on a Grace Hopper module the reading can cover the whole module with its CPU (zeus documentation)"
)


class NvmlMeter:
    """Reads every GPU that is visible to this process.

    A GPU that exists but cannot be read is a MISSING sensor that says why. A lost GPU is not asked again.

    Args:
        environ: Environment variables; None: those of the process.
        clock: Time.

    Raises:
        MeterError: There is no driver, no GPU or none visible; says which, and the remedy.
    """

    def __init__(self, environ: Mapping[str, str] | None = None, *, clock: Clock | None = None) -> None:
        environ = os.environ if environ is None else environ
        self._clock = clock or SystemClock()
        self._nvml = open_nvml()
        self._closed = False
        try:
            found = [gpu for gpu in list_gpus(self._nvml) if not gpu.hidden]
            self._gpus = self._wanted = self._open(found, environ)
        except BaseException as error:
            self.close()
            if isinstance(error, self._nvml.NVMLError):
                raise MeterError(f"NVML cannot list the GPUs: {error}") from error
            raise

    @property
    def sensors(self) -> Sequence[Sensor]:
        """One sensor a physical GPU; tick, cost and period are exact after :meth:`probe`."""
        return [gpu.sensor for gpu in self._gpus]

    def read(self) -> Sequence[PowerSample]:
        """Read every wanted GPU once. The time of a sample is the middle of its call."""
        return [gpu.read() for gpu in self._wanted]

    def select(self, uids: Collection[str]) -> None:
        """Read only these GPUs from now on; a rank of a shared node books one of many."""
        self._wanted = [gpu for gpu in self._gpus if gpu.sensor.device.uid in uids]

    def counters(self) -> Sequence[Counter]:
        """Return the energy counters of the wanted GPUs that move and are quick to read, as the probe has shown."""
        return [counter for gpu in self._wanted if (counter := gpu.counter()) is not None]

    def probe(self) -> None:
        """Measure how fast the counters tick and what a read costs. Blocks the calling thread up to 0.4 s."""
        live = [gpu for gpu in self._gpus if gpu.value is not None]
        if self._closed or not live:
            return
        polled = poll([gpu.value for gpu in live if gpu.value is not None], self._clock)
        for gpu, result in zip(live, polled, strict=True):
            gpu.learn(result)

    def close(self) -> None:
        """Release NVML. Idempotent."""
        if not self._closed:
            self._closed = True
            for gpu in getattr(self, "_gpus", ()):
                gpu.stop("the meter is closed")
            with contextlib.suppress(Exception):
                self._nvml.nvmlShutdown()

    def _open(self, found: Sequence[NvmlGpu], environ: Mapping[str, str]) -> "list[_Reader]":
        if not found:
            raise MeterError(
                "the NVIDIA driver is there but shows no GPU to this process: give the container or job one"
            )
        visible = visible_devices(environ, [(gpu.uuid, gpu.slices) for gpu in found])
        positions = list(dict.fromkeys(gpu.position for gpu in visible))
        if not positions:
            uuids = ", ".join(gpu.uid for gpu in found)
            raise MeterError(
                f"{VARIABLE}={environ.get(VARIABLE)!r} leaves no GPU to this process; the node has {uuids}: name one"
                " of them, its index or its MIG slice, or unset the variable"
            )
        note = ""
        if not index_order_is_sure(environ, [gpu.name for gpu in found]):
            note = (
                f"GPUs differ and {VARIABLE} holds indices: set CUDA_DEVICE_ORDER=PCI_BUS_ID so that both mean one GPU"
            )
        return [_Reader(found[position], self._nvml, self._clock, note) for position in positions]


class _Reader:
    """Reads one GPU by the best method that answered when it was opened."""

    def __init__(self, gpu: NvmlGpu, nvml: Any, clock: Clock, note: str) -> None:
        self._clock = clock
        self._nvml_error: type[Exception] = nvml.NVMLError
        self._lost_code = nvml.NVML_ERROR_GPU_IS_LOST
        self._uid = gpu.uid
        self._last_j = -1.0
        self._changed_s = clock.monotonic_s()
        self._reads_since_change = 0
        self._half_s: float | None = None
        self.value: Callable[[], float] | None = None
        self.sensor, self.value = _choose(gpu, nvml, note)
        self._note = self.sensor.note
        self._is_counter = self.sensor.method == COUNTER
        self._why = self.sensor.note if self.value is None else ""

    def read(self) -> PowerSample:
        before_s = self._clock.monotonic_s()
        if self.value is None:
            return PowerSample(device_uid=self._uid, t_s=before_s, note=self._why)
        try:
            value = self.value()
        except Exception as error:
            return self._failed(error, before_s)
        # A second look at the clock costs as much as the first: a read whose cost is known and small needs none.
        half_s = self._half_s
        t_s = before_s + half_s if half_s is not None else (before_s + self._clock.monotonic_s()) / 2
        if not self._is_counter:
            return PowerSample(device_uid=self._uid, t_s=t_s, power_w=value)
        if value != self._last_j:
            self._last_j, self._changed_s, self._reads_since_change = value, t_s, 0
            return PowerSample(self._uid, t_s, value)
        if self._is_stuck(t_s):
            note = f"the energy counter has stood at {value:.3f} J for {t_s - self._changed_s:.1f} s"
            return PowerSample(device_uid=self._uid, t_s=t_s, note=note)
        return PowerSample(device_uid=self._uid, t_s=t_s, energy_j=value)

    def counter(self) -> Counter | None:
        if self.value is None or self._half_s is None or not self._is_counter or self._reads_since_change:
            return None
        return Counter(self._uid, self.value, self._half_s)

    def _failed(self, error: Exception, t_s: float) -> PowerSample:
        why = str(error) if isinstance(error, self._nvml_error) else repr(error)
        if getattr(error, "value", None) == self._lost_code:
            self.stop(f"the GPU is lost ({why}), see dmesg for Xid errors; it is not read any more")
            return PowerSample(device_uid=self._uid, t_s=t_s, note=self._why)
        return PowerSample(device_uid=self._uid, t_s=t_s, note=f"{self.sensor.method}: {why}")

    def learn(self, polled: Polled) -> None:
        """Put what the probe found into the sensor."""
        sensor = self.sensor
        cost_s, wall_s = polled.cpu_s, polled.wall_s
        if cost_s is None or wall_s is None:
            return
        self._half_s = wall_s / 2 if wall_s < SHORT_READ_S else None
        notes = [self._note] if self._note else []
        notes.append(f"one read takes {wall_s * 1e6:.0f} us, {cost_s * 1e6:.0f} us of them CPU")
        tick_s = sensor.tick_s
        if self._is_counter:
            tick_s = polled.tick_s
            if tick_s is None:
                notes.append(f"the counter's tick could not be measured in {polled.span_s:.2f} s")
        self.sensor = dataclasses.replace(
            sensor,
            tick_s=tick_s,
            tick_edge_s=polled.edge_s if tick_s is not None else None,
            read_cost_s=cost_s,
            period_s=max(tick_s or sensor.period_s, 1000 * cost_s, 20 * wall_s),
            note="; ".join(notes),
        )

    def stop(self, why: str) -> None:
        """Never call the driver again; every later reading is missing for this reason."""
        self.value = None
        self._why = why

    def _is_stuck(self, t_s: float) -> bool:
        self._reads_since_change += 1
        return self._reads_since_change >= 3 and t_s - self._changed_s > STUCK_S


def _choose(gpu: NvmlGpu, nvml: Any, note: str) -> tuple[Sensor, Callable[[], float] | None]:
    device = Device(uid=gpu.uid, kind=DeviceKind.GPU, name=gpu.name)
    notes = [note] if note else []
    failures = [gpu.problem] if gpu.problem else []
    if gpu.handle is not None:
        notes += _caveats(gpu, nvml)
        for method, value in _methods(nvml, gpu.handle):
            try:
                value()
            except nvml.NVMLError as error:
                failures.append(f"{method}: {error}")
                continue
            if failures:
                notes.append(f"better methods do not answer ({'; '.join(failures)})")
            return _sensor(device, method, _averaging_s(nvml, gpu.handle, method), "; ".join(notes)), value
    reason = f"cannot be read ({'; '.join(failures)})"
    if gpu.slices:
        reason += f". {_MIG_REMEDY}"
    sensor = Sensor(device=device, provenance=Provenance.MISSING, method="none", period_s=10.0, note=reason)
    return sensor, None


def _sensor(device: Device, method: str, averaging_s: float, note: str) -> Sensor:
    period_s = {COUNTER: TICK_S, INSTANT: REFRESH_S}.get(method, TICK_S)
    return Sensor(
        device=device,
        provenance=Provenance.MEASURED,
        method=method,
        period_s=period_s,
        tick_s=TICK_S if method == COUNTER else None,
        averaging_s=averaging_s,
        uncertainty=UNCERTAINTY,
        note=note,
    )


def _methods(nvml: Any, handle: Any) -> list[tuple[str, Callable[[], float]]]:
    def field_w(field: int) -> float:
        reading = nvml.nvmlDeviceGetFieldValues(handle, [(field, 0)])[0]
        if reading.nvmlReturn != nvml.NVML_SUCCESS:
            raise nvml.NVMLError(reading.nvmlReturn)
        return float(reading.value.uiVal) / MW_PER_W

    def usage_w() -> float:
        return float(nvml.nvmlDeviceGetPowerUsage(handle)) / MW_PER_W

    return [
        (COUNTER, _counter_j(nvml, handle)),
        (INSTANT, lambda: field_w(nvml.NVML_FI_DEV_POWER_INSTANT)),
        (AVERAGE, lambda: field_w(nvml.NVML_FI_DEV_POWER_AVERAGE)),
        (USAGE, usage_w),
    ]


def _counter_j(nvml: Any, handle: Any) -> Callable[[], float]:
    """Return a call that reads the counter: the driver's own function, without the binding's frames, where it is."""
    function = getattr(getattr(nvml, "nvmlLib", None), "nvmlDeviceGetTotalEnergyConsumption", None)
    if function is None:
        return lambda: float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / MJ_PER_J
    energy_mj = ctypes.c_ulonglong()
    pointer = ctypes.byref(energy_mj)

    def read_j() -> float:
        code = function(handle, pointer)
        if code:
            raise nvml.NVMLError(code)
        return energy_mj.value / MJ_PER_J

    return read_j


def _averaging_s(nvml: Any, handle: Any, method: str) -> float:
    if method == AVERAGE:
        return AVERAGING_S
    if method != USAGE:
        return 0.0
    capability = _capability(nvml, handle)
    return AVERAGING_S if capability is None or capability > GA100 else 0.0


def _capability(nvml: Any, handle: Any) -> tuple[int, int] | None:
    try:
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    except nvml.NVMLError:
        return None
    return int(major), int(minor)


def _caveats(gpu: NvmlGpu, nvml: Any) -> list[str]:
    notes = []
    if gpu.slices:
        notes.append(_MIG_NOTE)
    with contextlib.suppress(nvml.NVMLError):
        if nvml.nvmlDeviceGetC2cModeInfoV(gpu.handle).isC2cEnabled:
            notes.append(_SUPERCHIP_NOTE)
    if _capability(nvml, gpu.handle) in PART_TIME:
        notes.append("the sensor of this generation sees 25 % of the time (arXiv 2312.02741)")
    return notes


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlSurvey:
    """Driver, GPUs and how each would be read."""

    problem: str = ""
    """Why there is nothing to read, with the remedy; empty if NVML works."""
    driver_version: str = ""
    gpus: Sequence[NvmlGpu] = ()
    """All GPUs of the node, also those that this process may not use."""
    sensors: Sequence[Sensor] = ()
    """The GPUs visible to this process and how each would be read."""


def survey_nvml(environ: Mapping[str, str] | None = None, *, probe: bool = True) -> NvmlSurvey:
    """Describe driver, GPUs and sensors. Never raises for what the machine lacks.

    Args:
        environ: Environment variables; None: those of the process.
        probe: Measure tick and read cost too (0.4 s).
    """
    try:
        nvml = open_nvml()
    except MeterError as error:
        return NvmlSurvey(problem=str(error))
    version, gpus = "", []
    try:
        with contextlib.suppress(nvml.NVMLError):
            version = nvml.nvmlSystemGetDriverVersion()
        with contextlib.suppress(nvml.NVMLError):
            gpus = [dataclasses.replace(gpu, handle=None) for gpu in list_gpus(nvml)]
        meter = NvmlMeter(environ)
        try:
            if probe:
                meter.probe()
            return NvmlSurvey(driver_version=version, gpus=gpus, sensors=meter.sensors)
        finally:
            meter.close()
    except MeterError as error:
        return NvmlSurvey(problem=str(error), driver_version=version, gpus=gpus)
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()
