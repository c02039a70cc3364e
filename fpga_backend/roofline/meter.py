"""The joules of a card that is not there, for the ledger: modelled, and labelled so."""

import threading
from collections.abc import Sequence
from typing import Final

from greentrain.fpga_backend.roofline.card_spec import CardSpec
from greentrain.fpga_backend.roofline.latency import CardService
from greentrain.types import Device, DeviceKind, PowerSample, Provenance, Sensor
from greentrain.utils.clock import Clock, SystemClock

PERIOD_S: Final = 1.0


class ModelledMeter:
    """Adds up the model's joules of batches, and idle power for the rest of the time since opening.

    Args:
        uid: Of the device.
        card: Whose idle power is drawn; its name is said.
        cards: How many.
        clock: Time.

    Raises:
        ConfigError: The card's idle power is not known.
    """

    def __init__(self, uid: str, card: CardSpec, *, cards: int = 1, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._idle_w = cards * card.value("idle_power_w")
        self._start_s = self._clock.monotonic_s()
        self._end_s: float | None = None
        self._lock = threading.Lock()
        self._busy_s = 0.0
        self._busy_j = 0.0
        self._sensor = Sensor(
            device=Device(uid=uid, kind=DeviceKind.FPGA, name=f"{card.name}, emulated"),
            provenance=Provenance.MODELLED,
            method="roofline model",
            period_s=PERIOD_S,
            note=f"a model of {cards} x {card.name}, no card was there: idle power {card.idle_power_w}",
            shared=False,
        )

    @property
    def sensors(self) -> Sequence[Sensor]:
        """The emulated card."""
        return (self._sensor,)

    @property
    def energy_j(self) -> float:
        """Energy since opening."""
        return self._read()[1]

    def add(self, service: CardService) -> None:
        """Book a batch that ran."""
        with self._lock:
            self._busy_s += service.run_s
            self._busy_j += service.energy_j

    def read(self) -> Sequence[PowerSample]:
        """Return the energy since opening."""
        t_s, energy_j = self._read()
        return (PowerSample(device_uid=self._sensor.device.uid, t_s=t_s, energy_j=energy_j),)

    def close(self) -> None:
        """Switch the card off: the energy stays as it is, and readable. Idempotent."""
        with self._lock:
            if self._end_s is None:
                self._end_s = self._clock.monotonic_s()

    def _read(self) -> tuple[float, float]:
        with self._lock:
            now_s = self._clock.monotonic_s()
            on_s = (now_s if self._end_s is None else self._end_s) - self._start_s
            # a batch that the machine computed faster than the card would have leaves no idle time behind
            return now_s, self._busy_j + self._idle_w * max(0.0, on_s - self._busy_s)
