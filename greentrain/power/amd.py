"""Energy of AMD's GPUs through AMD's own bindings (``amdsmi``, of the extra ``amd``) of ROCm's ``libamd_smi.so``.

Experimental: it ran on a fake library, never on a card (docs/status.md).

A GPU is read by its energy accumulator (amdsmi_get_energy_count: units of ``counter_resolution`` uJ and a time stamp in
ns), else by the power of its socket. On some cards the accumulator advances at a wrong rate (ROCm/amdsmi issue 38), so
it is compared with the power when it is opened. A GPU in partitions (CPX, DPX, QPX) is several devices of HIP, one of
energy: what is booked is the whole GPU, by one rank.

Which GPUs ``ROCR_VISIBLE_DEVICES`` and then ``HIP_VISIBLE_DEVICES``, or else ``CUDA_VISIBLE_DEVICES``, leave to this
process follows ROCm's page "GPU isolation techniques" (rocm.docs.amd.com, read 2026-11-28).
"""

import contextlib
import functools
import io
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from greentrain.errors import ConfigError, MeterError
from greentrain.power.accelerators import AcceleratorMeter, DeviceReader, Method, words
from greentrain.power.nvml import OPEN_S, VARIABLE, visible_devices
from greentrain.types import Device, DeviceKind
from greentrain.utils.background import BackgroundCall
from greentrain.utils.clock import Clock, SystemClock
from greentrain.utils.imports import try_import
from greentrain.utils.never_raise import warn_experimental

FIRST: Final = "ROCR_VISIBLE_DEVICES"
SECOND: Final = ("HIP_VISIBLE_DEVICES", VARIABLE)
CHECK_S: Final = 0.3
"""How long counter and power are compared (s)."""
MOST_OFF: Final = 2.0
"""A counter that differs from the power by more than this factor is not read: power may change meanwhile, and the wrong
rates that are known are off by more (ml-energy/zeus issue 113)."""
UJ_PER_J: Final = 1e6
NS_PER_S: Final = 1e9
RIGHT: Final = "add the user to the groups video and render, to whom /dev/kfd and /dev/dri/renderD* belong"
NO_RIGHT: Final = 10
"""AMDSMI_STATUS_NO_PERM (amdsmi.h of ROCm 7.0)."""


class AmdGpu(NamedTuple):
    """One GPU: one device of HIP, or the partitions of one, of which the first alone tells energy and power."""

    uid: str
    name: str
    handle: Any
    partitions: int
    problem: str = ""


def open_amdsmi() -> Any:
    """Initialise AMD SMI and return the bindings.

    Raises:
        MissingExtraError: The bindings are not installed.
        MeterError: The library, the driver or a right is missing; says which, and the remedy.
    """

    def load() -> Any:
        import amdsmi

        return amdsmi

    with try_import("amd") as imports, contextlib.redirect_stdout(io.StringIO()):  # it prints where it fails
        try:  # in a thread: where it fails, it keeps the frames, and they would keep what all callers hold
            amdsmi = BackgroundCall("greentrain-amdsmi", load).result(OPEN_S)
        except (KeyError, OSError, AttributeError) as error:  # it looks names up in a library that it lacks
            raise MeterError(
                f"libamd_smi.so is not found, or older than its bindings ({error}): install ROCm's package"
                " amd-smi-lib, or set ROCM_PATH to where ROCm is"
            ) from error
    imports.check()
    try:
        BackgroundCall("greentrain-amdsmi", amdsmi.amdsmi_init).result(OPEN_S)
    except TimeoutError as error:
        raise MeterError(f"the AMD driver has not answered within {OPEN_S:g} s: see rocm-smi and dmesg") from error
    except amdsmi.AmdSmiException as error:
        denied = getattr(error, "err_code", None) == NO_RIGHT
        remedy = RIGHT if denied else "see whether amd-smi works, and lsmod for amdgpu"
        raise MeterError(f"AMD SMI cannot be initialised ({words(error)}): {remedy}") from error
    return amdsmi


def list_gpus(smi: Any) -> tuple[list[AmdGpu], list[tuple[str, int]]]:
    """Return the GPUs, and in HIP's order each of its devices: its UUID and the position of its GPU.

    Raises:
        AmdSmiException: The devices cannot be counted.
    """
    found = []
    for number, handle in enumerate(smi.amdsmi_get_processor_handles()):
        place, uuid, hip, order = f"{number}.0", "", "", number
        with contextlib.suppress(smi.AmdSmiException):
            place = smi.amdsmi_get_gpu_device_bdf(handle)  # domain:bus:device.function, of which partitions share three
            uuid = smi.amdsmi_get_gpu_device_uuid(handle)
            info = smi.amdsmi_get_gpu_enumeration_info(handle)
            hip, order = info["hip_uuid"], info["hip_id"] if isinstance(info["hip_id"], int) else number
        found.append((place.rpartition(".")[0], place, uuid, handle, hip, order))
    found.sort(key=lambda device: device[1])
    cards = list(dict.fromkeys(device[0] for device in found))
    gpus = []
    for card in cards:
        parts = [device for device in found if device[0] == card]
        uuid, handle = parts[0][2:4]
        name, problem = f"AMD GPU {card}", ""
        try:
            name = smi.amdsmi_get_gpu_asic_info(handle)["market_name"]
        except smi.AmdSmiException as error:
            problem = "" if uuid else words(error)
        gpus.append(AmdGpu(f"amd:{uuid or card}", name, handle, len(parts), problem))
    return gpus, [(device[4], cards.index(device[0])) for device in sorted(found, key=lambda device: device[5])]


def visible_gpus(environ: Mapping[str, str], devices: Sequence[tuple[str, int]]) -> list[int]:
    """Return the positions of the GPUs that a process with this environment can compute on, in HIP's order.

    Args:
        environ: Environment variables.
        devices: In HIP's order, the UUID of each device and the position of its GPU.
    """
    left = list(devices)
    for value in (environ.get(FIRST), next((environ[name] for name in SECOND if name in environ), None)):
        if value is not None:
            entries = visible_devices({VARIABLE: value}, [(uuid, ()) for uuid, _ in left])
            left = [left[entry.position] for entry in entries]
    return list(dict.fromkeys(gpu for _, gpu in left))


class AmdMeter(AcceleratorMeter[DeviceReader]):
    """Reads every AMD GPU that is visible to this process.

    Experimental: it ran on a fake library, never on a card (docs/status.md).

    Args:
        environ: Environment variables; None: those of the process.
        clock: Time.
        gpus: Read these instead of all visible ones: indices of HIP, or UUIDs.

    Raises:
        MissingExtraError: The bindings are not installed.
        MeterError: There is no driver, no GPU or none visible; says which, and the remedy.
        ConfigError: One of ``gpus`` is none of the node.
    """

    def __init__(
        self, environ: Mapping[str, str] | None = None, *, clock: Clock | None = None, gpus: Sequence[str] = ()
    ) -> None:
        environ = {FIRST: ",".join(gpus)} if gpus else os.environ if environ is None else environ
        smi = open_amdsmi()
        super().__init__([], smi.amdsmi_shut_down)
        try:
            found, devices = list_gpus(smi)
            seen = visible_gpus(environ, devices)
            if gpus and not seen:
                known = ", ".join(f"{i} ({uuid})" for i, (uuid, _) in enumerate(devices))
                raise ConfigError(f"power.gpus is {list(gpus)}: name some of what this node has: {known}")
            if not seen:
                raise MeterError(
                    f"the AMD driver shows {len(devices)} GPUs, of which {FIRST}, {' or '.join(SECOND)} leave none to"
                    " this process"
                )
            own = [found[position] for position in seen]
            doubts = _doubts(smi, own)
            self.readers = [_reader(smi, gpu, clock or SystemClock(), doubts.get(gpu.uid, "")) for gpu in own]
        except BaseException as error:
            self.close()
            if isinstance(error, smi.AmdSmiException):
                raise MeterError(f"AMD SMI cannot list the GPUs: {words(error)}") from error
            raise
        if not hasattr(smi.amdsmi_wrapper._libraries["libamd_smi.so"], "fake_configure"):
            warn_experimental("the meter of AMD's GPUs", "it ran on a fake library, never on a card")


def _counter(smi: Any, handle: Any) -> tuple[float, float]:
    told = smi.amdsmi_get_energy_count(handle)
    return told["energy_accumulator"] * told["counter_resolution"] / UJ_PER_J, told["timestamp"] / NS_PER_S


def _power(smi: Any, handle: Any, key: str) -> tuple[float, None]:
    watts = smi.amdsmi_get_power_info(handle)[key]
    if not isinstance(watts, int):
        raise MeterError(f"the card does not tell its {key.replace('_', ' ')}")
    return float(watts), None


def _states(smi: Any, handle: Any) -> tuple[float | None, float | None, float | None, None]:
    told = smi.amdsmi_get_gpu_activity(handle)
    busy, memory = (told[key] / 100 if isinstance(told[key], int) else None for key in ("gfx_activity", "umc_activity"))
    hottest, now = smi.AmdSmiTemperatureType.HOTSPOT, smi.AmdSmiTemperatureMetric.CURRENT
    return busy, memory, float(smi.amdsmi_get_temp_metric(handle, hottest, now)), None


POWERS: Final = {"AMD socket power": "current_socket_power", "AMD average socket power": "average_socket_power"}


def _reader(smi: Any, gpu: AmdGpu, clock: Clock, doubt: str) -> DeviceReader:
    methods = [] if doubt else [Method("AMD energy accumulator", functools.partial(_counter, smi, gpu.handle), True)]
    methods += [Method(name, functools.partial(_power, smi, gpu.handle, key)) for name, key in POWERS.items()]
    limit_w, note = None, ""
    with contextlib.suppress(smi.AmdSmiException):
        limit_w = smi.amdsmi_get_power_cap_info(gpu.handle)["power_cap"] / UJ_PER_J or None  # uW
    if gpu.partitions > 1:
        note = (
            f"the GPU is split into {gpu.partitions} partitions and tells no energy of each: these are the joules of"
            " the whole GPU, other partitions included"
        )
    return DeviceReader(
        Device(uid=gpu.uid, kind=DeviceKind.GPU, name=gpu.name),
        [] if gpu.problem else methods,
        clock=clock,
        problem=gpu.problem or doubt,
        remedy=RIGHT,
        states=functools.partial(_states, smi, gpu.handle),
        pids=lambda: [int(process["pid"]) for process in smi.amdsmi_get_gpu_process_list(gpu.handle)],
        note=note,
        limit_w=limit_w,
    )


def _doubts(smi: Any, gpus: Sequence[AmdGpu]) -> dict[str, str]:
    """Return why counters are not to be believed, by GPU, where both counter and power answer and differ."""
    looks: list[dict[str, tuple[float, float, float]]] = [{}, {}]
    for look, wait_s in zip(looks, (CHECK_S, 0.0), strict=True):
        for gpu in gpus:
            with contextlib.suppress(smi.AmdSmiException, MeterError):
                watts, _ = _power(smi, gpu.handle, "current_socket_power")
                look[gpu.uid] = _counter(smi, gpu.handle)[0], time.monotonic(), watts
        time.sleep(wait_s if look else 0.0)
    doubts = {}
    for uid in looks[0].keys() & looks[1].keys():
        (start_j, start_s, start_w), (end_j, end_s, end_w) = looks[0][uid], looks[1][uid]
        told_w, power_w = (end_j - start_j) / (end_s - start_s), (start_w + end_w) / 2
        if power_w > 0 and not power_w / MOST_OFF <= told_w <= power_w * MOST_OFF:
            doubts[uid] = f"its energy accumulator says {told_w:.0f} W while the power reads {power_w:.0f} W"
    return doubts
