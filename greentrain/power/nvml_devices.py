"""The NVIDIA driver and its GPUs as NVML shows them: opened, listed, identified."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from greentrain.errors import MeterError


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlGpu:
    """One GPU as NVML shows it."""

    index: int
    uuid: str
    name: str
    slices: Sequence[str] = ()
    """UUIDs of its MIG devices."""
    handle: Any = None
    problem: str = ""
    """Why it cannot even be opened; empty if it can."""
    hidden: bool = False
    """The operating system keeps this process from it, and CUDA too."""

    @property
    def uid(self) -> str:
        """The UUID, or a stand-in where the GPU does not even tell that."""
        return self.uuid or f"nvml:{self.index}"


def open_nvml() -> Any:
    """Initialise NVML and return the bindings.

    Raises:
        MeterError: Says what is missing, and the remedy.
    """
    try:
        import pynvml
    except ImportError as error:
        raise MeterError(f"NVIDIA's bindings are not installed ({error}): pip install nvidia-ml-py") from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        remedies = {
            pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "libnvidia-ml.so.1 is not found: install the NVIDIA driver, or start"
            " the container with the NVIDIA runtime and the driver capability 'utility'",
            pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA kernel module is not loaded: sudo modprobe nvidia, then"
            " see dmesg",
            pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "driver library and kernel module have different versions, as"
            " after an update: reboot, or give the container the host's library",
            pynvml.NVML_ERROR_NO_PERMISSION: "/dev/nvidiactl or /dev/nvidia* may not be opened: add the user to the"
            " devices' group, or give the job its GPUs",
        }
        remedy = remedies.get(getattr(error, "value", 0), "see whether nvidia-smi works and what dmesg says")
        raise MeterError(f"NVML cannot be initialised ({error}): {remedy}") from error
    return pynvml


def list_gpus(nvml: Any) -> list[NvmlGpu]:
    """Return every GPU that NVML counts, also those that cannot be opened.

    Raises:
        NVMLError: The GPUs cannot be counted.
    """
    return [_identify(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]


def _identify(nvml: Any, index: int) -> NvmlGpu:
    uuid, name = "", f"NVIDIA GPU {index}"
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid = nvml.nvmlDeviceGetUUID(handle)
        name = nvml.nvmlDeviceGetName(handle)
    except nvml.NVMLError as error:
        hidden = getattr(error, "value", None) == nvml.NVML_ERROR_NO_PERMISSION and not uuid
        return NvmlGpu(index=index, uuid=uuid, name=name, problem=str(error), hidden=hidden)
    return NvmlGpu(index=index, uuid=uuid, name=name, slices=_slices(nvml, handle), handle=handle)


def _slices(nvml: Any, handle: Any) -> tuple[str, ...]:
    try:
        if nvml.nvmlDeviceGetMigMode(handle)[0] != nvml.NVML_DEVICE_MIG_ENABLE:
            return ()
        count = nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    except nvml.NVMLError:
        return ()
    found = []
    for index in range(count):
        with contextlib.suppress(nvml.NVMLError):
            found.append(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)))
    return tuple(found)
