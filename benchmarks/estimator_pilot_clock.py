"""Runs on a stepped clock: real sessions whose time and joules the benchmark makes up."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from greentrain import GreenSession
from greentrain.carbon.constant import ConstantSignal
from greentrain.estimate.pilot import Pilot
from greentrain.estimate.values import Range
from greentrain.types import Device, DeviceKind, PowerSample, Provenance, Sensor, Topology
from greentrain.utils.validation import bound

TOKENS: Final = 4096
SIGNAL: Final = ConstantSignal(360.0, zone="test", source="test")
StepS = Callable[[int], float]
"""Seconds of a step."""


class SteppedClock:
    """Time passes when the training says so."""

    def __init__(self, t_s: float = 1000.0) -> None:
        self.t_s = t_s

    def monotonic_s(self) -> float:
        """Return seconds."""
        return self.t_s

    def unix_s(self) -> float:
        """Return seconds since the epoch."""
        return self.t_s + 1.7e9


class SteppedMeter:
    """A GPU and a CPU with counters of joules on that clock; the CPU's count as modelled.

    Args:
        clock: Time.
        gpu: MISSING: the GPU is known and nobody can read it.
        rank: Whose GPU it is.
    """

    def __init__(self, clock: SteppedClock, gpu: Provenance = Provenance.MEASURED, rank: int = 0) -> None:
        self._clock = clock
        self._uid = f"GPU-{rank}"
        self.gpu_j = 0.0
        self.sensors: Sequence[Sensor] = (
            Sensor(
                device=Device(uid=self._uid, kind=DeviceKind.GPU, name="Fake GPU"),
                provenance=gpu,
                method="counter",
                period_s=0.02,
            ),
            Sensor(
                device=Device(uid="model:cpu", kind=DeviceKind.CPU, name="Fake CPU"),
                provenance=Provenance.MODELLED,
                method="model",
                period_s=0.02,
                shared=False,
            ),
        )

    def read(self) -> list[PowerSample]:
        """Return what the counters say now."""
        t_s = self._clock.t_s
        cpu = PowerSample(device_uid="model:cpu", t_s=t_s, energy_j=50.0 * t_s)
        if self.sensors[0].provenance is Provenance.MISSING:
            return [cpu]
        return [PowerSample(device_uid=self._uid, t_s=t_s, energy_j=self.gpu_j), cpu]

    def close(self) -> None:
        """Do nothing."""


def stepped_run(
    folder: Path,
    steps: int,
    step_s: StepS,
    *,
    gpu_w: float = 600.0,
    gpu: Provenance = Provenance.MEASURED,
    tokens: int = TOKENS,
    place: Topology | None = None,
    start_s: float = 1000.0,
) -> GreenSession:
    """Return a session that has measured a run on a stepped clock; with a place, one rank of the run ``job``."""
    clock = SteppedClock(start_s)
    meter = SteppedMeter(clock, gpu, place.rank if place else 0)
    run = {"dir": str(folder), "report": False, **({"id": "job"} if place else {})}
    config = {"run": run, "power": {"sample_s": 10.0}}
    with GreenSession(config, topology=place, meter=meter, signal=SIGNAL, clock=clock) as green:
        for step in range(steps):
            seconds = step_s(step)
            meter.gpu_j += gpu_w * seconds
            clock.t_s += seconds
            green.step(tokens=tokens)
    return green


def noisy_steps(seed: int, *, compile_s: float = 0.0, noise: float = 0.0) -> StepS:
    """Return steps of half a second with uniform noise, after a first one that compiles and four slow ones."""
    dice = random.Random(seed)

    def step_s(step: int) -> float:
        warm = compile_s if step == 0 else 0.02 * compile_s if step < 5 else 0.0
        return warm + 0.5 * (1 + noise * (2 * dice.random() - 1))

    return step_s


def given_pilot(tokens_per_s: float, *, devices: int, watts: float | None = None) -> Pilot:
    """Return a pilot that somebody measured elsewhere.

    Args:
        tokens_per_s: Speed of the whole job (tokens/s).
        devices: Number of accelerators in the job.
        watts: Power of the whole job (W), without PUE; None: not known.
    """
    bound("tokens_per_s", tokens_per_s, 1e-6, 1e15)
    bound("devices", devices, 1, 1e7)
    if watts is not None:
        bound("watts", watts, 1e-3, 1e12)
    return Pilot(
        tokens_per_s=Range.exactly(tokens_per_s),
        joules_per_token=None if watts is None else Range.exactly(watts / tokens_per_s),
        devices=devices,
        steps=0,
        warmup_steps=0,
        source="given",
        warnings=("tokens/s were given as one number: their own scatter is in no interval",),
    )
