"""Energy of Intel's GPUs through Intel's own bindings (``pyzes``, of the extra ``intel``) of Level Zero's sysman.

Experimental: it ran on a fake library, never on a card (docs/status.md).

A card has power domains with counters in uJ, each with a time stamp in us (Level Zero specification 1.13, sysman,
zesPowerGetEnergyCounter): of the card, and of its tiles, which are parts of it. The card's is read; only where it has
none, the sum of its tiles. Level Zero tells no power, so there is nothing to fall back to. The joules of an integrated
GPU are those of the CPU's package, which RAPL reads: it has no sensor here.

Which devices ``ZE_AFFINITY_MASK`` leaves to this process follows the same specification's programming guide: numbers of
cards, or ``card.tile``; where ``ZE_FLAT_DEVICE_HIERARCHY`` is FLAT, as by default, or COMBINED, numbers count tiles.
"""

import contextlib
import ctypes
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from greentrain.errors import ConfigError, MeterError
from greentrain.power.accelerators import AcceleratorMeter, DeviceReader, Method
from greentrain.power.nvml import MW_PER_W, OPEN_S
from greentrain.types import Device, DeviceKind
from greentrain.utils.background import BackgroundCall
from greentrain.utils.clock import Clock, SystemClock
from greentrain.utils.imports import try_import
from greentrain.utils.never_raise import warn_experimental

MASK: Final = "ZE_AFFINITY_MASK"
HIERARCHY: Final = "ZE_FLAT_DEVICE_HIERARCHY"
UJ_PER_J: Final = 1e6
INTEGRATED: Final = 1
"""ZE_DEVICE_PROPERTY_FLAG_INTEGRATED."""
SLOWED_BITS: Final = {"thermal": 0x108, "power": 0x207, "brake": 0x10}
"""zes_freq_throttle_reason_flags_t: THERMAL_LIMIT and THERMAL; AVE_PWR_CAP, BURST_PWR_CAP, CURRENT_LIMIT and POWER;
PSU_ALERT."""
ENGINES: Final = ("COMPUTE_ALL", "3D_RENDER_COMPUTE_ALL", "ALL")
"""Groups of engines whose activity is that of kernels, the best first."""


class ZesError(Exception):
    """Level Zero has answered with an error.

    Args:
        code: Of ze_result_t.
        zes: The bindings, which know its name.
    """

    def __init__(self, code: int, zes: Any) -> None:
        self.code = code
        names = (n for n, value in vars(zes).items() if n.startswith("ZE_RESULT_") and value == code)
        super().__init__(next(names, f"ze_result_t {code:#x}"))


class IntelGpu(NamedTuple):
    """One card, of one tile or more."""

    uid: str
    name: str
    handle: Any
    tiles: int
    is_integrated: bool


def call(zes: Any, name: str, *args: Any) -> None:
    """Call a function of the bindings.

    Args:
        zes: The bindings.
        name: The function.
        *args: What it takes.

    Raises:
        ZesError: It refuses.
    """
    if code := getattr(zes, name)(*args):
        raise ZesError(code, zes)


def all_of(zes: Any, name: str, kind: Any, *of: Any) -> list[Any]:
    """Return the handles, or other values, that a function counts first and tells then.

    Args:
        zes: The bindings.
        name: The function.
        kind: Type of the values.
        *of: What is asked.
    """
    count = ctypes.c_uint32()
    call(zes, name, *of, ctypes.byref(count), None)
    found = (kind * count.value)()
    if count.value:
        call(zes, name, *of, ctypes.byref(count), found)
    return list(found[: count.value])


def told_by(zes: Any, name: str, handle: Any, struct: str, stype: str = "") -> Any:
    """Return the structure that a function fills.

    Args:
        zes: The bindings.
        name: The function.
        handle: What is asked.
        struct: Type of the structure.
        stype: Its structure type, where it has one.
    """
    value = getattr(zes, struct)()
    if stype:
        value.stype = getattr(zes, f"ZES_STRUCTURE_TYPE_{stype}")
    call(zes, name, handle, ctypes.byref(value))
    return value


def domains(zes: Any, handle: Any, enumerate_name: str, noun: str, kind: str) -> list[tuple[Any, Any]]:
    """Return the handles of a kind that a card has, each with its properties; those of the whole card first.

    Args:
        zes: The bindings.
        handle: The card.
        enumerate_name: What is listed, as ``PowerDomains``.
        noun: What one is called in names of functions, as ``Power``.
        kind: The same in names of types, as ``pwr``.
    """
    found = []
    for domain in all_of(zes, f"zesDeviceEnum{enumerate_name}", getattr(zes, f"zes_{kind}_handle_t"), handle):
        with contextlib.suppress(ZesError):
            properties = f"zes_{'power' if kind == 'pwr' else kind}_properties_t"
            stype = f"{'POWER' if kind == 'pwr' else kind.upper()}_PROPERTIES"
            found.append((domain, told_by(zes, f"zes{noun}GetProperties", domain, properties, stype)))
    return sorted(found, key=lambda domain: bool(domain[1].onSubdevice))


def open_zes() -> Any:
    """Initialise Level Zero's sysman and return the bindings.

    Raises:
        MissingExtraError: The bindings are not installed.
        MeterError: The loader, the driver or a right is missing; says which, and the remedy.
    """
    with try_import("intel") as imports:
        try:
            import pyzes
        except ImportError:
            raise
        except Exception as error:  # a bare one where it looks for a DLL
            why = str(error).partition(". ")[0]
            raise MeterError(
                f"Level Zero's loader is not found ({why}): install libze1 and Intel's GPU driver libze-intel-gpu1"
            ) from error
    imports.check()
    try:
        BackgroundCall("greentrain-zes", functools.partial(call, pyzes, "zesInit", 0)).result(OPEN_S)
    except TimeoutError as error:
        raise MeterError(f"the Intel driver has not answered within {OPEN_S:g} s: see dmesg") from error
    except ZesError as error:
        right = error.code == pyzes.ZE_RESULT_ERROR_INSUFFICIENT_PERMISSIONS
        remedy = (
            "/dev/dri/renderD* may not be opened: add the user to the group render"
            if right
            else "see lsmod for xe or i915, and whether libze-intel-gpu1 is installed"
        )
        raise MeterError(f"Level Zero cannot be initialised ({error}): {remedy}") from error
    return pyzes


def list_gpus(zes: Any) -> list[IntelGpu]:
    """Return every GPU of every driver.

    Raises:
        ZesError: They cannot be counted.
    """
    found = []
    for driver in all_of(zes, "zesDriverGet", zes.zes_driver_handle_t):
        for number, handle in enumerate(all_of(zes, "zesDeviceGet", zes.zes_device_handle_t, driver)):
            told = told_by(zes, "zesDeviceGetProperties", handle, "zes_device_properties_t", "DEVICE_PROPERTIES")
            if told.core.type == zes.ZES_DEVICE_TYPE_GPU:
                uuid, name = bytes(told.core.uuid.id), told.core.name.decode(errors="replace")
                uid = f"intel:{uuid.hex() if any(uuid) else number}"
                integrated = bool(told.core.flags & INTEGRATED)
                found.append(
                    IntelGpu(uid, name or f"Intel GPU {number}", handle, max(1, told.numSubdevices), integrated)
                )
    return found


def visible_gpus(environ: Mapping[str, str], tiles: Sequence[int]) -> list[int]:
    """Return the positions of the cards that a process with this environment can compute on.

    Args:
        environ: Environment variables.
        tiles: How many tiles each card of the node has.
    """
    mask = environ.get(MASK, "").strip()
    if not mask:
        return list(range(len(tiles)))
    flat = environ.get(HIERARCHY, "FLAT").upper() != "COMPOSITE"
    owners = [card for card, count in enumerate(tiles) for _ in range(count if flat else 1)]
    numbers = [entry.strip().partition(".")[0] for entry in mask.split(",")]
    wanted = {owners[int(number)] for number in numbers if number.isdecimal() and int(number) < len(owners)}
    return sorted(wanted)


class IntelMeter(AcceleratorMeter[DeviceReader]):
    """Reads every discrete Intel GPU that is visible to this process.

    Experimental: it ran on a fake library, never on a card (docs/status.md).

    Args:
        environ: Environment variables; None: those of the process.
        clock: Time.
        gpus: Read these instead of all visible ones: entries as in ``ZE_AFFINITY_MASK``.

    Raises:
        MissingExtraError: The bindings are not installed.
        MeterError: There is no driver, no GPU or none visible; says which, and the remedy.
        ConfigError: One of ``gpus`` is none of the node.
    """

    def __init__(
        self, environ: Mapping[str, str] | None = None, *, clock: Clock | None = None, gpus: Sequence[str] = ()
    ) -> None:
        environ = os.environ if environ is None else environ
        if gpus:
            environ = {**environ, MASK: ",".join(gpus)}
        zes = open_zes()
        try:
            found = list_gpus(zes)
            seen = [found[position] for position in visible_gpus(environ, [gpu.tiles for gpu in found])]
            if gpus and not seen:
                raise ConfigError(
                    f"power.gpus is {list(gpus)}, and this node has {len(found)} GPUs of Intel: name some"
                )
            discrete = [gpu for gpu in seen if not gpu.is_integrated]
            if not discrete:
                what = "integrated ones alone, whose joules are the CPU package's" if seen else f"none ({MASK})"
                raise MeterError(f"Level Zero shows {len(found)} GPUs, and of them to this process {what}")
            super().__init__([_reader(zes, gpu, clock or SystemClock()) for gpu in discrete])
        except ZesError as error:
            raise MeterError(f"Level Zero cannot list the GPUs: {error}") from error
        if not hasattr(zes.gpuLib, "fake_configure"):
            warn_experimental("the meter of Intel's GPUs", "it ran on a fake library, never on a card")


def _reader(zes: Any, gpu: IntelGpu, clock: Clock) -> DeviceReader:
    problem = note = ""
    found: list[tuple[Any, Any]] = []
    try:
        found = domains(zes, gpu.handle, "PowerDomains", "Power", "pwr")
    except ZesError as error:
        problem = str(error)
    whole = [domain for domain in found if not domain[1].onSubdevice][:1]
    counters = [handle for handle, _ in whole or found]
    if not counters:
        problem = problem or "the driver shows no counter of its energy"
    elif not whole:
        note = f"the card has no counter: this is the sum of its {len(counters)} tiles, without what they share"
    elif gpu.tiles > 1:
        note = f"the whole card with its {gpu.tiles} tiles, those of other processes included"

    def counter() -> tuple[float, float]:
        told = [told_by(zes, "zesPowerGetEnergyCounter", handle, "zes_power_energy_counter_t") for handle in counters]
        return sum(one.energy for one in told) / UJ_PER_J, max(one.timestamp for one in told) / UJ_PER_J

    return DeviceReader(
        Device(uid=gpu.uid, kind=DeviceKind.GPU, name=gpu.name),
        [Method("Level Zero energy counter", counter, is_counter=True)] if counters else [],
        clock=clock,
        problem=problem,
        remedy="run as root, or let an administrator give this user the driver's telemetry (/sys/class/intel_pmt)",
        states=_states(zes, gpu.handle),
        pids=functools.partial(pids_on, zes, gpu.handle),
        note=note,
        limit_w=max(0, whole[0][1].maxLimit) / MW_PER_W or None if whole else None,  # -1: not known
    )


def pids_on(zes: Any, handle: Any) -> list[int]:
    """Return the processes that use a card.

    Args:
        zes: The bindings.
        handle: The card.
    """
    found = all_of(zes, "zesDeviceProcessesGetState", zes.zes_process_state_t, handle)
    return [int(process.processId) for process in found]


_State = tuple[float | None, None, float | None, tuple[str, ...] | None]


def _states(zes: Any, handle: Any) -> Callable[[], _State]:
    engines, sensors, clocks = [], [], []
    with contextlib.suppress(ZesError):
        engines = [(h, told.type) for h, told in domains(zes, handle, "EngineGroups", "Engine", "engine")]
        sensors = [(h, told.type) for h, told in domains(zes, handle, "TemperatureSensors", "Temperature", "temp")]
        clocks = [(h, told.type) for h, told in domains(zes, handle, "FrequencyDomains", "Frequency", "freq")]
    busiest = [h for group in ENGINES for h, kind in engines if kind == getattr(zes, f"ZES_ENGINE_GROUP_{group}")]
    hottest = [h for h, kind in sensors if kind in (zes.ZES_TEMP_SENSORS_GLOBAL, zes.ZES_TEMP_SENSORS_GPU)]
    kernels = [h for h, kind in clocks if kind == zes.ZES_FREQ_DOMAIN_GPU]
    before: list[Any] = []

    def states() -> _State:
        busy = slowed = None
        celsius = ctypes.c_double()
        if busiest:
            now = told_by(zes, "zesEngineGetActivity", busiest[0], "zes_engine_stats_t")
            if before and now.timestamp > before[0].timestamp:
                busy = min(1.0, (now.activeTime - before[0].activeTime) / (now.timestamp - before[0].timestamp))
            before[:] = [now]
        if hottest:
            call(zes, "zesTemperatureGetState", hottest[0], ctypes.byref(celsius))
        if kernels:
            reasons = told_by(zes, "zesFrequencyGetState", kernels[0], "zes_freq_state_t", "FREQ_STATE").throttleReasons
            slowed = tuple(name for name, bits in SLOWED_BITS.items() if reasons & bits)
        return busy, None, celsius.value if hottest else None, slowed

    return states
