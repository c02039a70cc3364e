"""Energy of systems on a chip: Apple silicon by IOReport, NVIDIA's Jetson by the INA3221 monitors of its rails.

Experimental: neither met its hardware; a stand-in for the library, and copies of the kernel's files, were read
(docs/status.md).

**Apple.** ``zeus-apple-silicon`` (extra ``apple``) reads the counters of IOReport's "Energy Model" in mJ, without root.
They are believed to be estimates from utilisation, frequency and voltage (its README, 1.1.0), so they are *modelled*
here. The neural engine, which torch does not use, is left out.

**Jetson.** Each INA3221 tells voltage and current of three rails (hwmon ABI of Linux, ``in*_label``, ``in*_input`` in
mV, ``curr*_input`` in mA; before JetPack 5, ``rail_name_*`` and ``in_power*_input`` in mW). ``VDD_IN``, or another rail
of the input, contains the others: it is a reference, and a summary tells what no rail shows. Rails are named in "Jetson
Orin Series" and "Xavier Series" of NVIDIA's developer guide (docs.nvidia.com/jetson, R36.4), and by ml-energy/zeus.
"""

import functools
import re
import socket
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final

from greentrain.errors import MeterError
from greentrain.power.accelerators import AcceleratorMeter, DeviceReader, Method
from greentrain.types import Device, DeviceKind, Provenance
from greentrain.utils.clock import Clock, SystemClock
from greentrain.utils.imports import try_import
from greentrain.utils.never_raise import warn_experimental

MJ_PER_J: Final = 1000.0
MW_PER_W: Final = 1000.0
APPLE: Final = {
    DeviceKind.CPU: ("cpu_total_mj",),
    DeviceKind.GPU: ("gpu_mj", "gpu_sram_mj"),
    DeviceKind.DRAM: ("dram_mj",),
}
DRIVERS: Final = Path("/sys/bus/i2c/drivers")
RAILS: Final = (
    (re.compile(r"VDD_IN|_IN$|SYS_?IN|TOTAL", re.IGNORECASE), DeviceKind.NODE),
    (re.compile(r"GPU", re.IGNORECASE), DeviceKind.GPU),  # VDD_CPU_GPU_CV too: a GPU's rail that others share
    (re.compile(r"CPU", re.IGNORECASE), DeviceKind.CPU),
    (re.compile(r"DDR|VDDQ", re.IGNORECASE), DeviceKind.DRAM),
)
"""Kind of a rail by its name, the first that fits; other rails (SOC, CV) are of no kind and booked as the CPU's."""


class AppleMeter(AcceleratorMeter[DeviceReader]):
    """Reads CPU, GPU and memory of a chip of Apple.

    Experimental: it ran on a stand-in for the library, never on a Mac (docs/status.md).

    Args:
        clock: Time.

    Raises:
        MissingExtraError: The library is not installed.
        MeterError: This is no chip of Apple, or it tells nothing.
    """

    def __init__(self, *, clock: Clock | None = None) -> None:
        with try_import("apple") as imports:
            import zeus_apple_silicon
        imports.check()
        try:
            monitor = zeus_apple_silicon.AppleEnergyMonitor()
            told = monitor.get_cumulative_energy()
        except RuntimeError as error:
            raise MeterError(f"IOReport tells no energy ({error}): it takes a Mac with Apple silicon") from error
        present = {k: [f for f in fields if getattr(told, f, None) is not None] for k, fields in APPLE.items()}

        def joules(fields: list[str]) -> tuple[float, None]:
            now = monitor.get_cumulative_energy()
            return sum(getattr(now, field) for field in fields) / MJ_PER_J, None

        super().__init__(
            [
                DeviceReader(
                    Device(uid=f"apple:{kind}", kind=kind, name=f"Apple silicon, {kind.upper()}"),
                    [Method("IOReport energy model", functools.partial(joules, fields), is_counter=True)],
                    clock=clock or SystemClock(),
                    provenance=Provenance.MODELLED,
                    note="the chip's own estimate from utilisation, frequency and voltage, of all processes",
                )
                for kind, fields in present.items()
                if fields
            ]
        )
        if not self.readers:
            raise MeterError("IOReport shows no energy of CPU, GPU or memory on this Mac")
        warn_experimental("the meter of Apple silicon", "it ran on a stand-in for the library, never on a Mac")


class JetsonMeter(AcceleratorMeter[DeviceReader]):
    """Reads the rails of a Jetson.

    Experimental: it ran on copies of the kernel's files, never on a board (docs/status.md).

    Args:
        drivers: The kernel's folder of I2C drivers; None: /sys/bus/i2c/drivers.
        clock: Time.

    Raises:
        MeterError: There is no INA3221, or none that tells a rail.
    """

    covers: Collection[DeviceKind] = (DeviceKind.CPU, DeviceKind.DRAM)
    """Rails are shared by parts of the chip: none of these is modelled beside them."""

    def __init__(self, drivers: str | Path | None = None, *, clock: Clock | None = None) -> None:
        drivers = DRIVERS if drivers is None else drivers
        rails = _rails(Path(drivers))
        if not rails:
            raise MeterError(f"no rail of an INA3221 in {drivers}: this is no Jetson, or its container hides /sys")
        super().__init__([_rail(name, read_w, clock or SystemClock()) for name, read_w in sorted(rails.items())])
        warn_experimental("the meter of Jetson's rails", "it ran on copies of the kernel's files, never on a board")


def _rails(drivers: Path) -> dict[str, Callable[[], float]]:
    found: dict[str, Callable[[], float]] = {}
    for label in (path for name in ("ina3221", "ina3221x") for path in (drivers / name).glob("*/**/*")):
        match = re.fullmatch(r"in(\d)_label|rail_name_(\d)", label.name)
        if match is None:
            continue
        try:
            name = label.read_text(encoding="ascii").strip()
        except OSError:
            continue
        number = match.group(1) or match.group(2)
        watts, volts, amperes = (label.with_name(form.format(number)) for form in _FILES[bool(match.group(1))])
        if name and name != "NC":  # a channel that is not connected
            found[name] = functools.partial(_read_w, watts, volts, amperes)
    return found


_FILES: Final = {
    True: ("power{}_input", "in{}_input", "curr{}_input"),
    False: ("in_power{}_input", "in_voltage{}_input", "in_current{}_input"),
}


def _read_w(watts: Path, volts: Path, amperes: Path) -> float:
    if watts.exists():
        return int(watts.read_text(encoding="ascii")) / (MW_PER_W if watts.name.startswith("in_") else 1e6)
    return int(volts.read_text(encoding="ascii")) * int(amperes.read_text(encoding="ascii")) / 1e6


def _rail(name: str, read_w: Callable[[], float], clock: Clock) -> DeviceReader:
    kind = next((kind for pattern, kind in RAILS if pattern.search(name)), DeviceKind.CPU)
    whole = kind is DeviceKind.NODE
    settings: dict[str, Any] = {"reference": True, "note": "the input of the module: it contains the other rails"}
    return DeviceReader(
        Device(uid=f"jetson:{name}", kind=kind, name=f"{socket.gethostname()} {name}" if whole else f"Jetson {name}"),
        [Method("INA3221 rail", lambda: (read_w(), None))],
        clock=clock,
        remedy="chmod a+r the files of the INA3221 in /sys, or run as root",
        **(settings if whole else {}),
    )
