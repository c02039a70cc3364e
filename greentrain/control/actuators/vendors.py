"""Power limits and clocks of AMD's and Intel's GPUs, as those of NVIDIA's (:mod:`greentrain.control.actuators.driver`).

Experimental: it ran on fake libraries, never on a card (docs/status.md).

* **AMD**: the cap of the socket (amdsmi_set_power_cap, uW); clocks by performance determinism, an upper bound that the
  level AUTO takes away (amdsmi.h of ROCm 7.0). Another level is somebody's setting, and the clocks stay as they are.
* **Intel**: the sustained power limit (zesPowerSetLimitsExt, mW) and the range of the GPU's frequency domain
  (zesFrequencySetRange; -1 is the factory's value: Level Zero specification 1.13, zes_freq_range_t).

Limits are read and set, and clocks let free, by what the guardian does it with.
"""

import ctypes
import os
from collections.abc import Callable, Sequence
from typing import Any, Final

from greentrain.control.actuators import guardian_main
from greentrain.control.actuators.driver import GpuKnobs, LimitRange
from greentrain.power import amd, intel
from greentrain.power.nvml import NvmlGpu

STEP_MHZ: Final = 50
"""Clocks of AMD's that are chosen from: determinism takes any within the card's range."""


class Vendor:
    """AMD's or Intel's driver, where :mod:`greentrain.control.actuators.driver` has NVML's bindings.

    Args:
        name: ``amd`` or ``intel``.

    Raises:
        MissingExtraError, MeterError: Its library or driver is not there.
    """

    def __init__(self, name: str) -> None:
        self._is_amd = name == "amd"
        self.bindings = amd.open_amdsmi() if self._is_amd else intel.open_zes()
        vendors = self.bindings.AmdSmiException if self._is_amd else intel.ZesError
        self.NVMLError = self.NVMLError_NoPermission = (vendors, OSError)
        libraries = self.bindings.amdsmi_wrapper._libraries if self._is_amd else {}
        self.nvmlLib = libraries["libamd_smi.so"] if self._is_amd else self.bindings.gpuLib
        self.nvmlShutdown: Callable[[], object] = self.bindings.amdsmi_shut_down if self._is_amd else tuple
        self.library = guardian_main.library_of(self.nvmlLib._name)

    def knobs(self) -> Sequence[GpuKnobs]:
        """Return the GPUs that are visible to this process, in torch's order."""
        if self._is_amd:
            gpus, devices = amd.list_gpus(self.bindings)
            own = [gpus[position] for position in amd.visible_gpus(os.environ, devices)]
            return [_AmdKnobs(self, gpu.uid, gpu.name, gpu.handle, gpu.partitions) for gpu in own]
        cards = intel.list_gpus(self.bindings)
        seen = intel.visible_gpus(os.environ, [card.tiles for card in cards])
        return [_IntelKnobs(self, cards[i].uid, cards[i].name, cards[i].handle) for i in seen]


class NotOffered(Exception):
    """This vendor's cards have no such setting."""

    code = 2  # as AMDSMI_STATUS_NOT_SUPPORTED, which refusal() knows


class _Knobs(GpuKnobs):
    def __init__(self, vendor: Vendor, uid: str, name: str, handle: Any, partitions: int = 1) -> None:
        parts = [f"{uid}/{part}" for part in range(partitions) if partitions > 1]
        super().__init__(vendor, NvmlGpu(index=0, uuid=uid, name=name, slices=parts, handle=handle))
        self._bindings, self._vendor = vendor.bindings, vendor

    @property
    def _library(self) -> guardian_main.Library:
        return self._vendor.library

    def _range_mw(self) -> tuple[int, int, int]:
        raise NotImplementedError

    def limits(self) -> LimitRange:
        low_mw, high_mw, usual_mw = self._range_mw()
        now_mw = self.limit_mw()
        return LimitRange(min_mw=low_mw, max_mw=high_mw, default_mw=usual_mw, found_mw=now_mw, enforced_mw=now_mw)

    def limit_mw(self) -> int:
        return self._library.limit_mw(self.uuid)

    def set_limit_mw(self, limit_mw: int) -> None:
        self._library.set_limit_mw(self.uuid, limit_mw)

    def reset_clocks(self) -> None:
        self._library.restore(self.uuid, "clocks", "")

    def profiles(self, *, offered: bool = False) -> int:
        raise NotOffered("NVIDIA's cards alone have them")

    def memory_clocks_mhz(self) -> tuple[int, ...]:
        raise NotOffered("NVIDIA's cards alone have them")


class _AmdKnobs(_Knobs):
    def _range_mw(self) -> tuple[int, int, int]:
        told = self._bindings.amdsmi_get_power_cap_info(self._handle)
        return told["min_power_cap"] // 1000, told["max_power_cap"] // 1000, told["default_power_cap"] // 1000  # uW

    def clocks_mhz(self) -> tuple[int, ...]:
        told = self._bindings.amdsmi_get_clock_info(self._handle, self._bindings.AmdSmiClkType.GFX)
        return tuple(range(told["max_clk"], told["min_clk"], -STEP_MHZ))

    def lock_clocks(self, low_mhz: int, high_mhz: int) -> None:
        self._bindings.amdsmi_set_gpu_perf_determinism_mode(self._handle, high_mhz)

    def clock_setting(self) -> str:
        level = self._bindings.amdsmi_get_gpu_perf_level(self._handle).rpartition("_")[2]
        return "" if level == "AUTO" else f"its performance level is {level}"

    def pids(self) -> Sequence[int]:
        return [int(process["pid"]) for process in self._bindings.amdsmi_get_gpu_process_list(self._handle)]


class _IntelKnobs(_Knobs):
    def _range_mw(self) -> tuple[int, int, int]:
        told = intel.domains(self._bindings, self._handle, "PowerDomains", "Power", "pwr")[0][1]
        return max(0, told.minLimit), told.maxLimit, told.defaultLimit

    def _clock(self) -> tuple[Any, Any]:
        found = intel.domains(self._bindings, self._handle, "FrequencyDomains", "Frequency", "freq")
        return next(domain for domain in found if domain[1].type == self._bindings.ZES_FREQ_DOMAIN_GPU)

    def clocks_mhz(self) -> tuple[int, ...]:
        found = intel.all_of(self._bindings, "zesFrequencyGetAvailableClocks", ctypes.c_double, self._clock()[0])
        return tuple(sorted({int(mhz) for mhz in found}, reverse=True))

    def lock_clocks(self, low_mhz: int, high_mhz: int) -> None:
        wanted = self._bindings.zes_freq_range_t(low_mhz, high_mhz)
        intel.call(self._bindings, "zesFrequencySetRange", self._clock()[0], ctypes.byref(wanted))

    def clock_setting(self) -> str:
        domain, usual = self._clock()
        high_mhz = intel.told_by(self._bindings, "zesFrequencyGetRange", domain, "zes_freq_range_t").max
        return "" if high_mhz >= usual.max else f"its clock may reach {high_mhz:g} MHz, usually {usual.max:g} MHz"

    def pids(self) -> Sequence[int]:
        return intel.pids_on(self._bindings, self._handle)
