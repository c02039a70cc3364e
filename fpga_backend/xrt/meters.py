"""The joules of several devices as one."""

from collections.abc import Sequence

from greentrain.fpga_backend.device import EnergyReading
from greentrain.fpga_backend.xrt.sensors import CardMeter
from greentrain.types import PowerMeter, PowerSample, Provenance, Sensor


class Meters:
    """Several meters as one: each device keeps its own sensor.

    Args:
        meters: Of the devices.
    """

    def __init__(self, meters: Sequence[PowerMeter]) -> None:
        self._meters = tuple(meters)

    @property
    def sensors(self) -> Sequence[Sensor]:
        """All sensors."""
        return [sensor for meter in self._meters for sensor in meter.sensors]

    def read(self) -> Sequence[PowerSample]:
        """Read every meter."""
        return [sample for meter in self._meters for sample in meter.read()]

    def close(self) -> None:
        """Close every meter. Idempotent."""
        for meter in self._meters:
            meter.close()


class CardMeters(Meters):
    """The meters of several cards that hold one model.

    Args:
        meters: One a card.
    """

    def __init__(self, meters: Sequence[CardMeter]) -> None:
        super().__init__(meters)
        self._cards = tuple(meters)

    def energy(self) -> EnergyReading:
        """Return the joules of all cards since opening."""
        return total([meter.energy() for meter in self._cards])


def total(readings: Sequence[EnergyReading]) -> EnergyReading:
    """Return the sum of readings: unknown where one is, modelled where one is."""
    notes = "; ".join(dict.fromkeys(reading.note for reading in readings if reading.note))
    known = [reading.energy_j for reading in readings if reading.energy_j is not None]
    if len(known) < len(readings):
        return EnergyReading(energy_j=None, provenance=Provenance.MISSING, note=notes or "one device does not say")
    measured = all(reading.provenance is Provenance.MEASURED for reading in readings)
    provenance = Provenance.MEASURED if measured else Provenance.MODELLED
    return EnergyReading(energy_j=sum(known), provenance=provenance, note=notes)
