"""What can be read and set on one GPU: its power limit and its graphics clock.

A power limit can be read back, so what an administrator has set is known before it is changed. Locked clocks cannot:
``nvmlDeviceSetGpuLockedClocks`` has no getter in nvml.h, and its reset goes back to no lock at all (NVML API reference,
device commands, read 2026-11-21). What gives an administrator's setting away is collected by
:meth:`GpuKnobs.clock_setting`; a lock that shows nowhere (the GPU idles, or runs below it anyway) would be lost.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from greentrain.power.nvml_devices import NvmlGpu

BUSY_SHARE: Final = 50
"""Utilisation from which on a GPU that nothing slows down is expected near its highest clock (%); an assumption."""
NEAR: Final = 0.9
"""A busy GPU that the driver says nothing limits, and whose clock is below this share of its maximum, has a lock that
no reason shows. nvmlClocksEventReasonNone: "Clocks are as high as possible". The margin is an assumption; a wrong guess
leaves clocks alone."""
CLOCK_BITS: Final = {0x2: "an applications clock", 0x100: "a display clock"}
"""nvmlClocksEventReasons of settings by people: ApplicationsClocksSetting, once UserDefinedClocks, which some boards
show for locked clocks too, and DisplayClockSetting (nvml.h of NVML 13)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitRange:
    """The power limits of a GPU (mW)."""

    min_mw: int
    max_mw: int
    default_mw: int
    found_mw: int
    """The limit that is set now: the administrator's."""
    enforced_mw: int
    """The lowest of all limits in force; below ``found_mw`` where something beside the driver limits too."""

    @property
    def base_mw(self) -> int:
        """What fractions are of: the limit found, or the lower one in force."""
        return min(self.found_mw, self.enforced_mw)


class GpuKnobs:
    """One whole GPU. Every method raises NVMLError where the driver refuses.

    Args:
        nvml: The initialised bindings.
        gpu: As listed.
    """

    def __init__(self, nvml: Any, gpu: NvmlGpu) -> None:
        self._nvml = nvml
        self._handle = gpu.handle
        self.uuid = gpu.uuid
        self.name = gpu.name
        self.slices = gpu.slices

    @property
    def label(self) -> str:
        """For people: name and UUID."""
        return f"{self.name} {self.uuid}"

    def limits(self) -> LimitRange:
        """Read the range and what is set now."""
        nvml, handle = self._nvml, self._handle
        low_mw, high_mw = nvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)
        found_mw = int(nvml.nvmlDeviceGetPowerManagementLimit(handle))
        return LimitRange(
            min_mw=int(low_mw),
            max_mw=int(high_mw),
            default_mw=self._or(found_mw, nvml.nvmlDeviceGetPowerManagementDefaultLimit),
            found_mw=found_mw,
            enforced_mw=self._or(found_mw, nvml.nvmlDeviceGetEnforcedPowerLimit),
        )

    def limit_mw(self) -> int:
        """Return the power limit that is set (mW)."""
        return int(self._nvml.nvmlDeviceGetPowerManagementLimit(self._handle))

    def set_limit_mw(self, limit_mw: int) -> None:
        """Set the power limit (mW)."""
        self._nvml.nvmlDeviceSetPowerManagementLimit(self._handle, limit_mw)

    def try_limit(self) -> None:
        """Set the limit that is set already, which changes nothing and shows whether this process may."""
        self.set_limit_mw(self.limit_mw())

    def may_set(self) -> None:
        """Raise if this process may not set limits; a card without settable limits is no reason."""
        try:
            self.try_limit()
        except self._nvml.NVMLError_NotSupported:
            return

    def clocks_mhz(self) -> tuple[int, ...]:
        """Return the graphics clocks that the GPU supports at its highest memory clock, descending (MHz)."""
        nvml, handle = self._nvml, self._handle
        memory_mhz = max(nvml.nvmlDeviceGetSupportedMemoryClocks(handle))
        found = nvml.nvmlDeviceGetSupportedGraphicsClocks(handle, memory_mhz)
        return tuple(sorted({int(mhz) for mhz in found}, reverse=True))

    def lock_clocks(self, low_mhz: int, high_mhz: int) -> None:
        """Keep the graphics clock between two bounds (MHz)."""
        self._nvml.nvmlDeviceSetGpuLockedClocks(self._handle, low_mhz, high_mhz)

    def reset_clocks(self) -> None:
        """Let the graphics clock go where it wants."""
        self._nvml.nvmlDeviceResetGpuLockedClocks(self._handle)

    def clock_setting(self) -> str:
        """Return what shows that somebody has set clocks on this GPU; empty where nothing does."""
        nvml = self._nvml
        reasons = self._or(None, nvml.nvmlDeviceGetCurrentClocksEventReasons)
        for bit, name in CLOCK_BITS.items():
            if reasons is not None and reasons & bit:
                return f"{name} limits it now"
        target_mhz = self._or(None, nvml.nvmlDeviceGetApplicationsClock, nvml.NVML_CLOCK_GRAPHICS)
        usual_mhz = self._or(None, nvml.nvmlDeviceGetDefaultApplicationsClock, nvml.NVML_CLOCK_GRAPHICS)
        if target_mhz is not None and usual_mhz is not None and target_mhz != usual_mhz:
            return f"its applications clock is {target_mhz} MHz, by default {usual_mhz} MHz"
        if reasons == 0 and self._utilisation() >= BUSY_SHARE:
            now_mhz = self._or(None, nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_GRAPHICS)
            top_mhz = self._or(None, nvml.nvmlDeviceGetMaxClockInfo, nvml.NVML_CLOCK_GRAPHICS)
            if now_mhz is not None and top_mhz is not None and now_mhz < NEAR * top_mhz:
                return f"it is busy at {now_mhz} MHz of {top_mhz} MHz and the driver names no reason"
        return ""

    def pids(self) -> Sequence[int]:
        """Return the processes that compute on it, as far as the PID namespace shows them."""
        return [int(process.pid) for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)]

    def _utilisation(self) -> int:
        found = self._or(None, self._nvml.nvmlDeviceGetUtilizationRates)
        return 0 if found is None else int(found.gpu)

    def _or(self, otherwise: Any, function: Any, *args: Any) -> Any:
        try:
            return function(self._handle, *args)
        except self._nvml.NVMLError:
            return otherwise


class BoundSettings:
    """The settings of all GPUs by UUID through the bindings, as :func:`guardian_main.repair` wants them.

    Args:
        nvml: The initialised bindings.
    """

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml

    def limit_mw(self, uuid: str) -> int:
        """Return the power limit (mW)."""
        return int(self._do("nvmlDeviceGetPowerManagementLimit", uuid))

    def set_limit_mw(self, uuid: str, limit_mw: int) -> None:
        """Set the power limit (mW)."""
        self._do("nvmlDeviceSetPowerManagementLimit", uuid, limit_mw)

    def reset_clocks(self, uuid: str) -> None:
        """Unlock the graphics clock."""
        self._do("nvmlDeviceResetGpuLockedClocks", uuid)

    def _do(self, name: str, uuid: str, *args: int) -> Any:
        try:
            handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
            return getattr(self._nvml, name)(handle, *args)
        except self._nvml.NVMLError as error:
            raise OSError(f"{name}: {error}") from error
