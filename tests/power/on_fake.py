"""Words that the tests of the NVML meter share."""

from collections.abc import Callable

from greentrain.power.nvml import NvmlMeter
from greentrain.testing.fake_nvml import FakeDriver
from greentrain.types import Sensor

ENERGY = "nvmlDeviceGetTotalEnergyConsumption"

Install = Callable[..., FakeDriver]


def only(meter: NvmlMeter) -> Sensor:
    (sensor,) = meter.sensors
    return sensor
