"""Forecasts from short runs against the long ones: on a stepped clock, on this machine, and of published speeds."""

import random
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.estimator_runs import Run
from greentrain import GreenSession
from greentrain.carbon.constant import ConstantSignal
from greentrain.estimate.pilot import forecast, given, read_pilot
from greentrain.estimate.values import Range
from greentrain.types import Device, DeviceKind, Gear, PowerSample, Provenance, Sensor, Topology
from greentrain.units import J_PER_KWH, S_PER_HOUR

TOKENS: Final = 4096
REAL_PILOT_STEPS: Final = 300
PILOT_STEPS: Final = 50
WHOLE_STEPS: Final = 2000
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


def _wandering(seed: int) -> StepS:
    """Return steps whose speed wanders: each remembers 90 % of the last one's 2 %."""
    dice = random.Random(seed)
    state = [0.0]

    def step_s(_: int) -> float:
        state[0] = 0.9 * state[0] + dice.gauss(0.0, 0.02 * (1 - 0.9**2) ** 0.5)
        return 0.5 * (1 + state[0])

    return step_s


def _straggling(seed: int) -> StepS:
    """Return steps of which one in fifty takes twice as long."""
    dice = random.Random(seed)
    return lambda _: 0.5 * (2.0 if dice.random() < 0.02 else 1.0)


def _saving(seed: int) -> StepS:
    """Return steps with a checkpoint of 5 s after every 200: a pilot of 50 sees none."""
    return lambda step: 0.5 + (5.0 if step and step % 200 == 0 else 0.0) + 0.0 * seed


CASES: Final[Mapping[str, tuple[Callable[[int], StepS], bool]]] = {
    "even steps": (lambda seed: noisy_steps(seed), True),
    "compiles for 20 s, noise of 5 %": (lambda seed: noisy_steps(seed, compile_s=20.0, noise=0.05), True),
    "noise of 10 %": (lambda seed: noisy_steps(seed, noise=0.1), True),
    "speed wanders by 2 %": (_wandering, False),
    "one step in fifty takes twice as long": (_straggling, False),
    "a checkpoint of 5 s each 200 steps": (_saving, False),
}
"""Steps by a seed, and True where the worst forecast is held to its bar: what a pilot does not see, it cannot say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotCase:
    """Forecasts of one kind of run."""

    name: str
    hours: Sequence[float]
    """Errors, relative."""
    energy: Sequence[float]
    inside: int
    """Runs whose duration lies in the 80 % interval."""
    held: bool

    @property
    def worst(self) -> float:
        """Largest error of hours and energy."""
        return max(map(abs, (*self.hours, *self.energy)))

    @property
    def median(self) -> float:
        """Median error of hours."""
        return statistics.median(map(abs, self.hours))


def stepped_cases(repeats: int) -> list[PilotCase]:
    """Return forecasts of 2,000 steps from 50, both booked by real sessions on a stepped clock."""
    found = []
    for name, (steps, held) in CASES.items():
        hours, energy, inside = [], [], 0
        for seed in range(repeats):
            with tempfile.TemporaryDirectory(prefix="pilot-") as folder:
                short = stepped_run(Path(folder), PILOT_STEPS, steps(seed))
                whole = stepped_run(Path(folder), WHOLE_STEPS, steps(seed + 1000))
                h, e, i = _errors(short, whole)
            hours.append(h)
            energy.append(e)
            inside += i
        found.append(PilotCase(name=name, hours=hours, energy=energy, inside=inside, held=held))
    return found


def real_case(steps: int) -> PilotCase:
    """Return the forecast of a small training on this machine's CPU, with its own meters."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory(prefix="pilot-") as folder:
        _train(Path(folder), 50)  # what a process does once is no part of either
        runs = [_train(Path(folder), count) for count in (REAL_PILOT_STEPS, steps)]
        hours, energy, inside = _errors(*runs)
    name = f"a training on this CPU, {REAL_PILOT_STEPS} steps for {steps}"
    return PilotCase(name=name, hours=[hours], energy=[energy], inside=inside, held=True)


def _train(folder: Path, steps: int) -> GreenSession:
    import torch
    from torch import nn

    model = nn.Sequential(nn.Embedding(256, 64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with GreenSession({"run": {"dir": str(folder), "report": False}}, signal=SIGNAL) as green:
        for _ in range(steps):
            ids = torch.randint(0, 256, (512,))
            loss = nn.functional.cross_entropy(model(ids), ids)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            green.step(tokens=ids.numel())
    return green


def _errors(short: GreenSession, whole: GreenSession) -> tuple[float, float, int]:
    done = whole.totals()
    said = forecast(read_pilot(short.folder or ""), done.tokens)
    hours = done.duration_s / S_PER_HOUR
    energy = float("nan") if said.energy_kwh is None else said.energy_kwh.mid * J_PER_KWH / done.energy_j - 1
    return said.duration_h.mid / hours - 1, energy, int(said.duration_h.low <= hours <= said.duration_h.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A speed that a run's makers published."""

    speed: str
    tokens_per_s: Callable[[Run], float]
    """Of one device."""


def _by_flop(flop_s: float, per_parameter: float) -> Callable[[Run], float]:
    return lambda run: flop_s / (per_parameter * run.shape.active_parameters)


def _by_mfu(mfu: float) -> Callable[[Run], float]:
    return lambda run: mfu * run.accelerator.peak_flop_s[Gear.BF16].value / (6 * run.shape.active_parameters)


PUBLISHED: Final[Mapping[str, Published]] = {
    "LLaMA-65B": Published(speed="380 tokens/s/GPU (arXiv 2302.13971, section 2.4)", tokens_per_s=lambda _: 380.0),
    "TinyLlama-1.1B": Published(speed="24,000 tokens/s/GPU (its README)", tokens_per_s=lambda _: 24_000.0),
    "Skywork-13B": Published(speed="1,873 tokens/s/GPU (arXiv 2310.19341)", tokens_per_s=lambda _: 1873.0),
    "OPT-175B": Published(speed="147 TFLOP/s/GPU, recompute counted", tokens_per_s=_by_flop(147e12, 8)),
    "BloombergGPT-50B": Published(speed="102 TFLOP/s/GPU, recompute counted", tokens_per_s=_by_flop(102e12, 8)),
    "Llama-3.1-405B": Published(speed="MFU 41 % (38 to 43)", tokens_per_s=_by_mfu(0.41)),
    "GLM-130B": Published(speed="MFU 32.5 %", tokens_per_s=_by_mfu(0.325)),
    "PaLM-540B": Published(speed="MFU 46.2 %", tokens_per_s=_by_mfu(0.462)),
}


def published(runs: Sequence[Run]) -> list[tuple[Run, str, float]]:
    """Return by run its published speed, and the error of the hours that follow from it without any lost time."""
    found = []
    for run in runs:
        told = PUBLISHED.get(run.name)
        if told is not None:
            speed = given(told.tokens_per_s(run) * run.count, devices=run.count)
            hours = forecast(speed, run.workload.tokens, good=Range.exactly(1.0)).gpu_hours.mid
            found.append((run, told.speed, hours / run.hours - 1))
    return found
