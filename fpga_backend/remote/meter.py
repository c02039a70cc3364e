"""The joules of a device on another machine, as its server tells them now and then."""

import threading
import time
from collections.abc import Callable, Sequence

from greentrain.fpga_backend.device import EnergyReading
from greentrain.types import Device, PowerSample, Provenance, Sensor


class RemoteMeter:
    """What was last heard. It is fed from outside, so a read waits for no network.

    Args:
        device: Under which the joules are booked.
        first: The first reading; what the device used before is not this run's.
        place: The server, for people.
        poll_s: Between two readings (s).
        now_s: Monotonic time (s).
    """

    def __init__(
        self,
        device: Device,
        first: EnergyReading,
        *,
        place: str,
        poll_s: float,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stale_s = 5 * poll_s
        self._now_s = now_s
        self._lock = threading.Lock()
        self._start_j = first.energy_j or 0.0
        self._provenance = first.provenance
        self._place = place
        self._problem = ""
        self._latest = PowerSample(device_uid=device.uid, t_s=now_s())
        self._uid = device.uid
        self._sensor = Sensor(
            device=device,
            provenance=first.provenance,
            method=f"{place}: what its device says",
            period_s=poll_s,
            note=_note(first, place),
        )
        self.take(first, now_s())

    @property
    def sensors(self) -> Sequence[Sensor]:
        """The device on the other machine."""
        return (self._sensor,)

    def take(self, reading: EnergyReading, t_s: float) -> None:
        """Note a reading of that time (s). One that falls, or comes from elsewhere than the first, counts as none."""
        with self._lock:
            if reading.provenance is not self._provenance:
                self._problem = f"its joules were {self._provenance}, now they are {reading.provenance}"
            elif reading.energy_j is None:
                self._problem = reading.note
            elif (since_j := reading.energy_j - self._start_j) < (self._latest.energy_j or 0.0):
                self._problem = "its joules have fallen: was it restarted?"
            else:
                self._problem = ""
                self._latest = PowerSample(device_uid=self._uid, t_s=t_s, energy_j=since_j)

    def fail(self, problem: str) -> None:
        """Note that there was no reading."""
        with self._lock:
            self._problem = problem

    def read(self) -> Sequence[PowerSample]:
        """Return the newest reading; one too old to be true is a failed one."""
        with self._lock:
            latest, problem = self._latest, self._problem
        age_s = self._now_s() - latest.t_s
        if not latest.missing and age_s <= self._stale_s:
            return (latest,)
        note = self._sensor.note if latest.missing else f"{self._place} was last heard {age_s:.0f} s ago"
        return (PowerSample(device_uid=self._uid, t_s=self._now_s(), note=f"{note}; {problem}" if problem else note),)

    def reading(self) -> EnergyReading:
        """Return the energy since the device was opened here."""
        (sample,) = self.read()
        if sample.energy_j is None:
            return EnergyReading(energy_j=None, provenance=Provenance.MISSING, note=sample.note)
        return EnergyReading(energy_j=sample.energy_j, provenance=self._provenance, note=self._sensor.note)

    def close(self) -> None:
        """Do nothing: the device asks the server, and ends with it."""


def _note(first: EnergyReading, place: str) -> str:
    note = f"of another machine, as {place} tells it; other clients' batches on it are included"
    return f"{note}; {first.note}" if first.note else note
