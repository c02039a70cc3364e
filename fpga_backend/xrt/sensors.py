"""A card's joules: power, read once a second in a thread of its own, because a driver may hang.

XRT's driver keeps what it has read for a second (``HWMON_SDM_DEFAULT_EXPIRE_SECS``, ``XMC_DEFAULT_EXPIRE_SECS``,
unchanged from tag 2.17 to 963c58e, 2026-11-21): reading more often gives the same number again.

``Hwmon`` reads sysfs, where the driver puts the power for everybody to read: files of ``hwmon_sdm.c`` and ``xmc.c``
(Xilinx/XRT at 963c58e, 2026-11-21), ``power1_input`` and ``power1_label``, and from ``hwmon_sdm`` also
``power1_unitm``, the power of ten by which the number is multiplied to give watts; without it the number counts
microwatts, as hwmon does (kernel.org, hwmon sysfs interface).
"""

import contextlib
import threading
from collections.abc import Sequence
from pathlib import Path

from greentrain.errors import MeterError
from greentrain.fpga_backend.device import EnergyReading
from greentrain.fpga_backend.roofline.cards import CARDS
from greentrain.fpga_backend.xrt.pci import PciFunction
from greentrain.types import Device, DeviceKind, DeviceState, PowerSample, Provenance, Sensor
from greentrain.utils.clock import Clock, SystemClock

MICROWATTS_PER_W = 1_000_000.0
UNKNOWN = 2**32 - 1
"""``src/runtime_src/core/common/sensor.cpp`` takes the largest 32-bit number for no value."""
ABSENT = ("Sensor Not Present", "Data Not Available")
"""Texts of ``power1_status`` with which the number means nothing: ``hwmon_sdm.c``."""


class Hwmon:
    """Reads the power of a card.

    Args:
        function: The card's folder on the PCI bus.

    Raises:
        MeterError: There is no power file there.
    """

    method = "XRT driver, hwmon power"

    def __init__(self, function: Path) -> None:
        found = sorted(function.glob("hwmon/hwmon*/power*_input"))
        if not found:
            raise MeterError(f"{function}/hwmon has no power*_input: the driver shows no power of this card")
        named = [path for path in found if _text(path, "label").lower() == "total power"]
        self._path = (named or found)[0]
        self._warm = sorted(self._path.parent.glob("temp*_input"))

    def read_w(self) -> float:
        """Return the watts.

        Raises:
            MeterError: The sensor gives no value.
        """
        return _number(self._path, 1 / MICROWATTS_PER_W)

    def temperature_c(self) -> float | None:
        """Return the hottest of what the driver tells of board and chip (degrees Celsius); None where it tells none."""
        found = []
        for path in self._warm:  # hwmon counts thousandths of a degree (kernel.org, hwmon sysfs interface)
            with contextlib.suppress(MeterError):
                found.append(_number(path, 1e-3))
        return max(found, default=None)


def _number(path: Path, scale: float) -> float:
    status = _text(path, "status")
    if status in ABSENT:
        raise MeterError(f"{path}: {status}")
    try:
        value = int(path.read_text(encoding="ascii"))
        exponent = _text(path, "unitm")
        scale = 10.0 ** int(exponent) if exponent else scale
    except (OSError, ValueError) as error:
        raise MeterError(f"{path} cannot be read: {error}") from error
    if value == UNKNOWN or value < 0:
        raise MeterError(f"{path} says {value}, which stands for no value")
    return value * scale


def _text(path: Path, what: str) -> str:
    try:
        return path.with_name(path.name.replace("_input", f"_{what}")).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


PERIOD_S = 1.0
STALE_S = 3.0
"""A reading older than this does not stand for now any more, and no energy is booked across a longer gap (s)."""
FIRST_S = 2.0
"""Longest wait for the first reading (s)."""


class CardMeter:
    """A PowerMeter of one card; None as source: the card exists, but nothing reads it; no device: there is no card.

    Args:
        device: The card.
        source: Source of its power readings.
        note: Reason why there is no source.
        clock: Clock that tells the time.
        period_s: Time between two readings (s).
        stale_s: Age at which a reading counts no longer, see ``STALE_S`` (s).
    """

    def __init__(
        self,
        device: Device | None,
        source: Hwmon | None,
        *,
        note: str = "",
        clock: Clock | None = None,
        period_s: float = PERIOD_S,
        stale_s: float = STALE_S,
    ) -> None:
        self._device, self._source, self._note = device, source, note
        self._clock = clock or SystemClock()
        self._period_s, self._stale_s = period_s, stale_s
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._first = threading.Event()
        self._good: PowerSample | None = None
        self._temperature_c: float | None = None
        self._why = "no reading yet"
        self._said_s = self._opened_s = self._clock.monotonic_s()
        self._energy_j = 0.0
        self._known_s = 0.0
        self._thread: threading.Thread | None = None
        if device is not None and source is not None:
            self._thread = threading.Thread(target=self._poll, name=f"greentrain {device.uid} power", daemon=True)
            self._thread.start()
            self._first.wait(FIRST_S)

    @property
    def sensors(self) -> Sequence[Sensor]:
        """The card's sensor."""
        if self._device is None:
            return ()
        source, measured = self._source, "board power; the driver refreshes it once a second (Xilinx/XRT, hwmon_sdm.c)"
        return (
            Sensor(
                device=self._device,
                provenance=Provenance.MEASURED if source else Provenance.MISSING,
                method=source.method if source else "none",
                period_s=self._period_s,
                limit_w=_limit_w(self._device.name),
                note=measured if source else self._note,
            ),
        )

    def read(self) -> Sequence[PowerSample]:
        """Return the newest reading, at its own time; a missing one where it is too old."""
        if self._device is None:
            return ()
        now_s = self._clock.monotonic_s()
        with self._lock:
            good, why = self._good, self._note or self._why
            if good is not None and now_s - good.t_s <= self._stale_s and not self._end.is_set():
                self._said_s = max(self._said_s, good.t_s)
                return (good._replace(t_s=self._said_s),)
            if good is not None and not self._end.is_set():
                why = f"the last reading is {now_s - good.t_s:.1f} s old: {why or 'the sensor is silent'}"
            self._said_s = max(self._said_s, now_s)
        return (PowerSample(device_uid=self._device.uid, t_s=self._said_s, note=why or "the sensor is silent"),)

    def states(self) -> Sequence[DeviceState]:
        """Return the card's temperature as it was with the newest power; nothing where that is too old."""
        return [
            DeviceState(device_uid=sample.device_uid, t_s=self._clock.monotonic_s(), temperature_c=self._temperature_c)
            for sample in self.read()
            if not sample.missing
        ]

    def energy(self) -> EnergyReading:
        """Return the joules since opening: trapezoids between readings, none across gaps."""
        if self._device is None:
            return EnergyReading(energy_j=None, provenance=Provenance.MISSING, note=self._note)
        with self._lock:
            unknown_s = self._clock.monotonic_s() - self._opened_s - self._known_s
            if self._good is None or self._source is None:
                return EnergyReading(energy_j=None, provenance=Provenance.MISSING, note=self._note or self._why)
            note = f"{unknown_s:.1f} s since opening are not in it" if unknown_s > 2 * self._period_s else ""
            return EnergyReading(energy_j=self._energy_j, provenance=Provenance.MEASURED, note=note)

    def close(self) -> None:
        """End the thread; one that hangs in a driver is left behind as a daemon. Idempotent."""
        self._end.set()
        with self._lock:
            self._why = "the meter is closed"
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(self._period_s)

    def _poll(self) -> None:
        while not self._end.is_set():
            self._read_once()
            self._first.set()
            self._end.wait(self._period_s)

    def _read_once(self) -> None:
        if self._device is None or self._source is None:
            return
        before_s = self._clock.monotonic_s()
        watts, why = None, ""
        try:
            watts = self._source.read_w()
            self._temperature_c = self._source.temperature_c()
        except MeterError as error:
            why = str(error)
        except Exception as error:  # a driver may answer with anything
            why = f"{self._source.method} failed: {error!r}"
        t_s = (before_s + self._clock.monotonic_s()) / 2
        with self._lock:
            if self._end.is_set():
                return
            self._why = why
            if watts is None:
                return
            if self._good is not None and self._good.power_w is not None and t_s - self._good.t_s <= self._stale_s:
                self._energy_j += (watts + self._good.power_w) / 2 * (t_s - self._good.t_s)
                self._known_s += t_s - self._good.t_s
            self._good = PowerSample(device_uid=self._device.uid, t_s=t_s, power_w=watts)


def _limit_w(name: str) -> float | None:
    """Return the board power that a card's cooling is laid out for (W); None where no table has it."""
    card = CARDS.get(name.removeprefix("Alveo "))
    return None if card is None or card.missing(["tdp_w"]) else card.value("tdp_w")


def meter_of(card: PciFunction | None) -> CardMeter:
    """Return the meter of a card, by what the driver shows; None: there is no card, only its emulation."""
    if card is None:
        return CardMeter(None, None, note="an emulation draws no power of a card; what it computes is the CPU's energy")
    device = Device(uid=card.uid, kind=DeviceKind.FPGA, name=card.name)
    try:
        return CardMeter(device, Hwmon(card.folder))
    except MeterError as error:
        return CardMeter(device, None, note=str(error))
