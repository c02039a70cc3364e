"""Power limits and clocks of AMD's and Intel's GPUs, with the interface of NVIDIA's (:class:`GpuKnobs`).

Experimental: it ran on fake libraries, never on a card (docs/status.md).

* **AMD**: the cap of the socket (amdsmi_set_power_cap, uW); clocks by performance determinism, an upper bound that the
  level AUTO takes away (amdsmi.h of ROCm 7.0). Another level is somebody's setting, and the clocks stay as they are.
* **Intel**: the sustained power limit (zesPowerSetLimitsExt, mW) and the range of the GPU's frequency domain
  (zesFrequencySetRange; -1 is the factory's value: Level Zero specification 1.13, zes_freq_range_t).

Limits are read and set, and clocks let free, by what the guardian does it with (:mod:`.guardian_main`).
"""

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from greentrain.control.actuators import guardian_main
from greentrain.control.actuators.driver import GpuKnobs, LimitRange
from greentrain.power import amd, intel
from greentrain.power.accelerators import words
from greentrain.power.nvml import NvmlGpu

STEP_MHZ: Final = 50
"""Clocks of AMD's that are chosen from: determinism takes any within the card's range."""
NO_RIGHT: Final = (10, 0x70010000)
UNSUPPORTED: Final = (2, 3, 0x78000003)
"""AMDSMI_STATUS_NO_PERM; NOT_SUPPORTED, NOT_YET_IMPLEMENTED (amdsmi.h). ZE_RESULT_ERROR_INSUFFICIENT_PERMISSIONS and
UNSUPPORTED_FEATURE (ze_api.h)."""


class VendorError(Exception):
    """The driver refuses."""


class NVMLError_NoPermission(VendorError):  # by this name driver.refusal knows it
    """This process may not."""

    remedy = (
        "it takes root, or an administrator who sets one limit (amd-smi set --power-cap, xpu-smi config --powerlimit)"
    )


class NVMLError_NotSupported(VendorError):
    """The card cannot."""


class Told(NamedTuple):
    """What a vendor's bindings tell of a card, and set on it."""

    limits_mw: Callable[[], tuple[int, int, int]]
    """Least, most, default."""
    clocks_mhz: Callable[[], Sequence[int]]
    bound: Callable[[int, int], object]
    setting: Callable[[], str]
    """Says that somebody has set clocks; empty where nobody has."""
    pids: Callable[[], Sequence[int]]


class VendorKnobs(GpuKnobs):
    """One GPU.

    Args:
        vendor: The driver.
        gpu: Its UUID, name and partitions.
        told: What its bindings tell and set.
    """

    def __init__(self, vendor: "Vendor", gpu: NvmlGpu, told: Told) -> None:
        super().__init__(vendor, gpu)
        self._library, self._told = vendor.library, told

    def limits(self) -> LimitRange:
        """Read the range and what is set now."""
        with _named():
            low_mw, high_mw, default_mw = self._told.limits_mw()
        found_mw = self.limit_mw()
        return LimitRange(min_mw=low_mw, max_mw=high_mw, default_mw=default_mw, found_mw=found_mw, enforced_mw=found_mw)

    def limit_mw(self) -> int:
        """Return the power limit that is set (mW)."""
        with _named():
            return self._library.limit_mw(self.uuid)

    def set_limit_mw(self, limit_mw: int) -> None:
        """Set the power limit (mW)."""
        with _named():
            self._library.set_limit_mw(self.uuid, limit_mw)

    def clocks_mhz(self) -> tuple[int, ...]:
        """Return the graphics clocks to choose from, descending (MHz)."""
        with _named():
            return tuple(sorted(set(self._told.clocks_mhz()), reverse=True))

    def lock_clocks(self, low_mhz: int, high_mhz: int) -> None:
        """Keep the graphics clock between two bounds (MHz)."""
        with _named():
            self._told.bound(low_mhz, high_mhz)

    def reset_clocks(self) -> None:
        """Let the graphics clock go where it wants."""
        with _named():
            self._library.restore(self.uuid, "clocks", "")

    def clock_setting(self) -> str:
        """Return what shows that somebody has set clocks on this GPU; empty where nothing does."""
        with contextlib.suppress(Exception):
            return self._told.setting()
        return ""

    def pids(self) -> Sequence[int]:
        """Return the processes that compute on it."""
        return self._told.pids()


@contextlib.contextmanager
def _named() -> Iterator[None]:
    """Give the errors of bindings and libraries the names that NVML's have."""
    try:
        yield
    except Exception as error:
        code = next((c for name in ("err_code", "code", "errno") if (c := getattr(error, name, None))), 0)
        kind = NVMLError_NoPermission if code in NO_RIGHT else NVMLError_NotSupported if code in UNSUPPORTED else None
        raise (kind or VendorError)(words(error)) from error


class Vendor:
    """AMD's or Intel's driver, where :mod:`.driver` has NVML's bindings.

    Args:
        name: ``amd`` or ``intel``.

    Raises:
        MissingExtraError, MeterError: Its library or driver is not there.
    """

    NVMLError = VendorError
    NVMLError_NoPermission = NVMLError_NoPermission
    NVMLError_NotSupported = NVMLError_NotSupported

    def __init__(self, name: str) -> None:
        if name == "amd":
            self._bindings = amd.open_amdsmi()
            self.nvmlLib = self._bindings.amdsmi_wrapper._libraries["libamd_smi.so"]
            self.nvmlShutdown: Callable[[], object] = self._bindings.amdsmi_shut_down
        else:
            self._bindings = intel.open_zes()
            self.nvmlLib, self.nvmlShutdown = self._bindings.gpuLib, lambda: None
        self.library = guardian_main.library_of(self.nvmlLib._name)

    def knobs(self) -> Sequence[GpuKnobs]:
        """Return the GPUs that are visible to this process, in torch's order.

        Raises:
            VendorError: They cannot be listed.
        """
        found: list[tuple[str, str, int, Told]]
        with _named():
            if self.library.prefix == "amd:":
                gpus, devices = amd.list_gpus(self._bindings)
                own = [gpus[position] for position in amd.visible_gpus(os.environ, devices)]
                found = [(gpu.uid, gpu.name, gpu.partitions, _amd(self._bindings, gpu.handle)) for gpu in own]
            else:
                cards = intel.list_gpus(self._bindings)
                seen = [cards[position] for position in intel.visible_gpus(os.environ, [card.tiles for card in cards])]
                found = [(card.uid, card.name, 1, _intel(self._bindings, card.handle)) for card in seen]
        return [
            VendorKnobs(
                self,
                NvmlGpu(
                    index=index,
                    uuid=uid,
                    name=name,
                    slices=[f"{uid}/{part}" for part in range(parts) if parts > 1],
                    handle=uid,
                ),
                told,
            )
            for index, (uid, name, parts, told) in enumerate(found)
        ]


def _amd(smi: Any, handle: Any) -> Told:
    def limits_mw() -> tuple[int, int, int]:
        told = smi.amdsmi_get_power_cap_info(handle)
        low, high, default = (told[key] // 1000 for key in ("min_power_cap", "max_power_cap", "default_power_cap"))
        return low, high, default

    def clocks_mhz() -> Sequence[int]:
        told = smi.amdsmi_get_clock_info(handle, smi.AmdSmiClkType.GFX)
        return range(told["max_clk"], told["min_clk"], -STEP_MHZ)

    def setting() -> str:
        level = smi.amdsmi_get_gpu_perf_level(handle).removeprefix("AMDSMI_DEV_PERF_LEVEL_")
        return "" if level == "AUTO" else f"its performance level is {level}"

    return Told(
        limits_mw,
        clocks_mhz,
        lambda _, high_mhz: smi.amdsmi_set_gpu_perf_determinism_mode(handle, high_mhz),
        setting,
        lambda: [int(process["pid"]) for process in smi.amdsmi_get_gpu_process_list(handle)],
    )


def _intel(zes: Any, handle: Any) -> Told:
    def power() -> Any:
        return next(told for _, told in intel.domains(zes, handle, "PowerDomains", "Power", "pwr"))

    def clock() -> tuple[Any, Any]:
        clocks = intel.domains(zes, handle, "FrequencyDomains", "Frequency", "freq")
        return next(domain for domain in clocks if domain[1].type == zes.ZES_FREQ_DOMAIN_GPU)

    def limits_mw() -> tuple[int, int, int]:
        told = power()
        return max(0, told.minLimit), told.maxLimit, told.defaultLimit

    def clocks_mhz() -> Sequence[int]:
        found = intel.all_of(zes, "zesFrequencyGetAvailableClocks", ctypes.c_double, clock()[0])
        return [int(mhz) for mhz in found]

    def bound(low_mhz: int, high_mhz: int) -> None:
        wanted = zes.zes_freq_range_t(low_mhz, high_mhz)
        intel.call(zes, "zesFrequencySetRange", clock()[0], ctypes.byref(wanted))

    def setting() -> str:
        domain, usual = clock()
        high_mhz = intel.told_by(zes, "zesFrequencyGetRange", domain, "zes_freq_range_t").max
        return "" if high_mhz >= usual.max else f"its clock may reach {high_mhz:g} MHz, usually {usual.max:g} MHz"

    def pids() -> Sequence[int]:
        found = intel.all_of(zes, "zesDeviceProcessesGetState", zes.zes_process_state_t, handle)
        return [int(process.processId) for process in found]

    return Told(limits_mw, clocks_mhz, bound, setting, pids)
