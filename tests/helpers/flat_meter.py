"""A meter of constant power, without hardware."""

import functools
import time
from collections.abc import Callable, Sequence

from greentrain.types import Device, DeviceKind, PowerSample, Provenance, Sensor

T0_S = time.monotonic()


def _linear_j(power_w: float, t_s: float) -> float:
    return power_w * (t_s - T0_S)


def _nothing() -> None:
    pass


class FlatMeter:
    """A GPU of constant power with a counter, and a CPU of constant power without."""

    def __init__(self, gpu_w: float = 200.0, cpu_w: float = 50.0, shared: bool = True) -> None:
        gpu = Device(uid="GPU-a", kind=DeviceKind.GPU, name="Fake GPU")
        cpu = Device(uid="model:cpu", kind=DeviceKind.CPU, name="Fake CPU")
        self.sensors: Sequence[Sensor] = (
            Sensor(device=gpu, provenance=Provenance.MEASURED, method="counter", period_s=0.02, shared=shared),
            Sensor(device=cpu, provenance=Provenance.MODELLED, method="model", period_s=0.02, shared=False),
        )
        self.gpu_j: Callable[[float], float] = functools.partial(_linear_j, gpu_w)
        self.cpu_w = cpu_w
        self.fail: Callable[[], None] = _nothing
        self.closed = 0

    def read(self) -> list[PowerSample]:
        self.fail()
        t_s = time.monotonic()
        return [
            PowerSample(device_uid="GPU-a", t_s=t_s, energy_j=self.gpu_j(t_s)),
            PowerSample(device_uid="model:cpu", t_s=t_s, power_w=self.cpu_w),
        ]

    def close(self) -> None:
        self.closed += 1
