"""What the meters of accelerators beside NVIDIA's share: a device, the ways to read it, and when a reading was made.

Each device is read by the first method that answers. A counter's value that comes with a time stamp of the device is
dated by that: the stamp plus the least distance between both clocks that recent readings showed, as one can come late
and never early. A counter that falls (a wrap, a reset driver) or jumps is a gap of the curve
(:class:`greentrain.power.sampler.EnergyCurve`); one that stands still is not believed.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

from greentrain.types import Device, DeviceState, PowerMeter, PowerSample, Provenance, Sensor
from greentrain.utils.clock import Clock

PERIOD_S: Final = 0.1
"""Time between two readings (s), as of NVIDIA's counter."""
WINDOW: Final = 64
"""Readings over which the distance between two clocks is sought: where crystals are off by 1e-4, it changes by less
than a millisecond in the seven seconds that these take."""
STUCK_S: Final = 5.0
"""A counter that has not moved for so long is not believed: a GPU that answers draws some watts."""
OLDEST_S: Final = 2.0
"""A stamp that would be older than this (s) is no time of the reading: its unit or its clock is not as documented."""


R = TypeVar("R", bound=PowerMeter)


class Method(NamedTuple):
    """A way to read a device: joules of a counter, or watts, and the device's own time (s) where it tells one."""

    name: str
    read: Callable[[], tuple[float, float | None]]
    is_counter: bool = False


class DeviceReader:
    """Reads one device, as a meter of its own: a driver may hang on one of several.

    Args:
        device: What is booked.
        methods: Ways to read it, the best one first.
        clock: Time.
        problem: Why it cannot be read, or not by the best way; empty if it can.
        remedy: What gives this process the right to read it, where that is what it lacks.
        states: Returns share of time busy, share of memory busy, temperature (degrees Celsius) and what slows it.
        pids: Returns the processes that compute on it.
        **settings: Other fields of the sensor, such as ``note``, ``limit_w`` or ``reference``.
    """

    def __init__(
        self,
        device: Device,
        methods: Sequence[Method],
        *,
        clock: Clock,
        problem: str = "",
        remedy: str = "",
        states: Callable[[], tuple[float | None, float | None, float | None, tuple[str, ...] | None]] | None = None,
        pids: Callable[[], Collection[int]] = tuple,
        **settings: Any,
    ) -> None:
        self._clock, self._states, self._pids = clock, states, pids
        self._distances_s: deque[float] = deque(maxlen=WINDOW)
        self._last_s = self._last_value = -1.0
        self._changed_s, self._unchanged = clock.monotonic_s(), 0
        self._method: Method | None = None
        failures = [problem] if problem else []
        for method in methods:
            try:
                method.read()
            except Exception as error:
                failures.append(f"{method.name}: {words(error)}")
                continue
            self._method = method
            break
        settings = {"provenance": Provenance.MEASURED, "note": "", "period_s": PERIOD_S, **settings}
        self._why = said = "; ".join(dict.fromkeys(failures))
        if self._method is None:
            self._why = f"cannot be read ({said}){f': {remedy}' if 'PERM' in said.upper() and remedy else ''}"
            settings |= {"provenance": Provenance.MISSING, "note": self._why}
        elif said:
            notes = [settings["note"], f"better methods do not answer ({said})"]
            settings["note"] = "; ".join(filter(None, notes))
        self.sensor = Sensor(device=device, method=self._method.name if self._method else "none", **settings)

    @property
    def sensors(self) -> Sequence[Sensor]:
        """Its sensor."""
        return (self.sensor,)

    def read(self) -> Sequence[PowerSample]:
        """Read it once. Never raises."""
        uid, before_s = self.sensor.device.uid, self._clock.monotonic_s()
        if self._method is None:
            return (PowerSample(uid, before_s, note=self._why),)
        try:
            value, stamp_s = self._method.read()
        except Exception as error:
            return (PowerSample(uid, max(before_s, self._last_s), note=f"{self._method.name}: {words(error)}"),)
        t_s = self._date(before_s, self._clock.monotonic_s(), stamp_s)
        if not self._method.is_counter:
            return (PowerSample(uid, t_s, power_w=value),)
        if value != self._last_value:
            self._last_value, self._changed_s, self._unchanged = value, before_s, 0
        self._unchanged += 1
        stood_s = before_s - self._changed_s
        if self._unchanged > 3 and stood_s > STUCK_S:
            return (PowerSample(uid, t_s, note=f"the energy counter has stood at {value:.3f} J for {stood_s:.1f} s"),)
        return (PowerSample(uid, t_s, energy_j=value),)

    def _date(self, before_s: float, after_s: float, stamp_s: float | None) -> float:
        t_s = (before_s + after_s) / 2
        if stamp_s is not None:
            self._distances_s.append(after_s - stamp_s)
            told_s = stamp_s + min(self._distances_s)
            if after_s - told_s < OLDEST_S:
                t_s = told_s
            else:
                self._distances_s.clear()
        self._last_s = max(t_s, self._last_s)
        return self._last_s

    def users(self) -> Mapping[str, Collection[int]]:
        """Return the processes that compute on it, as far as the driver tells."""
        return {} if self._method is None else {self.sensor.device.uid: self._pids()}

    def states(self) -> Sequence[DeviceState]:
        """Return what the driver tells beside power."""
        if self._states is not None and self._method is not None:
            with contextlib.suppress(Exception):
                return (DeviceState(self.sensor.device.uid, self._clock.monotonic_s(), *self._states()),)
        return ()

    def close(self) -> None:
        """Never call the driver again. Idempotent."""
        self._method, self._why = None, "the meter is closed"


class AcceleratorMeter(Generic[R]):
    """Reads several devices of one driver.

    Args:
        readers: One a device.
        end: Releases the driver.
    """

    def __init__(self, readers: Sequence[R], end: Callable[[], object] = lambda: None) -> None:
        self.readers = readers
        """One a device."""
        self._end: Callable[[], object] | None = end

    @property
    def sensors(self) -> Sequence[Sensor]:
        """One sensor a device, as it is known by now."""
        return [sensor for reader in self.readers for sensor in reader.sensors]

    def read(self) -> Sequence[PowerSample]:
        """Read every device once."""
        return [sample for reader in self.readers for sample in reader.read()]

    def split(self) -> Sequence[PowerMeter]:
        """Return a meter for each device: a driver can hang on one of them. All are closed with this one."""
        return self.readers

    def close(self) -> None:
        """Release the driver. Idempotent."""
        end, self._end = self._end, None
        for reader in self.readers:
            reader.close()
        if end is not None:
            with contextlib.suppress(Exception):
                end()


def words(error: Exception) -> str:
    """Return what an error says, in one line."""
    return " ".join(str(getattr(error, "err_info", None) or error or repr(error)).split())
