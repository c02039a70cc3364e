"""Forecasts from short runs against the long ones: on a stepped clock, on this machine, and of published speeds.

    python benchmarks/estimator_pilot.py            # four minutes, on a machine that does nothing else

No GPU, no network.
"""

import argparse
import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.estimator_pilot_clock import SIGNAL, StepS, given_pilot, noisy_steps, stepped_run
from benchmarks.estimator_runs import Run
from benchmarks.marks import facts
from benchmarks.metering import machine
from greentrain import GreenSession
from greentrain.estimate.pilot import forecast, read_pilot
from greentrain.estimate.values import Range
from greentrain.types import J_PER_KWH, S_PER_HOUR, Gear

PILOT_STEPS: Final = 50
WHOLE_STEPS: Final = 2000
REAL_PILOT_STEPS: Final = 300
REAL_REPEATS: Final = 5
MOST_BUSY: Final = 0.5
"""Cores that others may keep busy: above, nothing is measured."""
BAR: Final = 0.02
_WATCH_S: Final = 3.0


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
    drift: Sequence[tuple[float, float]] = ()
    """How much more time and CPU time a fixed piece of work took in the whole run than in the pilot, relative."""
    busy: Sequence[float] = ()
    """Cores that others kept busy during each pair."""
    refused: str = ""
    """Why nothing was measured."""

    @property
    def worst(self) -> float:
        """Largest error of hours and energy; NaN: not measured."""
        return max(map(abs, (*self.hours, *self.energy)), default=math.nan)

    @property
    def median(self) -> float:
        """Median error of hours; NaN: not measured."""
        return statistics.median(map(abs, self.hours)) if self.hours else math.nan

    @property
    def pairs(self) -> Sequence[tuple[float, float]]:
        """Errors of hours and energy, of each pair."""
        return list(zip(self.hours, self.energy, strict=True))

    @property
    def steady(self) -> Sequence[tuple[float, float]]:
        """The same, less what the fixed piece of work says that the machine itself changed by.

        Hours by its time; energy by its CPU time, which the joules of this machine are modelled from.
        """
        both = zip(self.pairs, self.drift, strict=True)
        return [((1 + h) * (1 + time_by) - 1, (1 + e) * (1 + cpu_by) - 1) for (h, e), (time_by, cpu_by) in both]


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


def real_case(steps: int, repeats: int = REAL_REPEATS) -> PilotCase:
    """Return forecasts of a small training on this machine's CPU, with its own meters, pilot and whole run in turn."""
    import torch

    name = f"a training on this CPU, {REAL_PILOT_STEPS} steps for {steps}"
    watch = _Watch()
    time.sleep(_WATCH_S)
    busy = watch.busy()
    if busy > MOST_BUSY:
        why = f"not measured: others keep {busy:.1f} cores busy, load {os.getloadavg()[0]:.1f}"
        return PilotCase(name=name, hours=(), energy=(), inside=0, held=True, refused=why)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory(prefix="pilot-") as folder:
            _train(Path(folder), 50)  # what a process does once is no part of either
            pairs = [_pair(Path(folder), steps) for _ in range(repeats)]
    finally:
        torch.set_num_threads(threads)
    hours, energy, inside, drift, cores = zip(*pairs, strict=True)
    why = f"not measured: others kept {max(cores):.1f} cores busy" if max(cores) > MOST_BUSY else ""
    return PilotCase(
        name=name, hours=hours, energy=energy, inside=sum(inside), held=True, drift=drift, busy=cores, refused=why
    )


class _Watch:
    """Cores that other processes keep busy from here on; time that the hypervisor took counts as theirs."""

    def __init__(self) -> None:
        self._begun = self._now()

    def busy(self) -> float:
        """Return their mean number."""
        t_s, all_s, own_s = (now - then for now, then in zip(self._now(), self._begun, strict=True))
        return max(0.0, (all_s - own_s) / t_s)

    def _now(self) -> tuple[float, float, float]:
        cpu = psutil.cpu_times()
        idle_s = cpu.idle + getattr(cpu, "iowait", 0.0)
        guest_s = getattr(cpu, "guest", 0.0) + getattr(cpu, "guest_nice", 0.0)
        return time.monotonic(), sum(cpu) - guest_s - idle_s, time.process_time()


def _pair(folder: Path, steps: int) -> tuple[float, float, int, tuple[float, float], float]:
    watch = _Watch()
    (short, time_s, cpu_s), (whole, whole_time_s, whole_cpu_s) = (
        _train(folder, count) for count in (REAL_PILOT_STEPS, steps)
    )
    return (*_errors(short, whole), (whole_time_s / time_s - 1, whole_cpu_s / cpu_s - 1), watch.busy())


def _train(folder: Path, steps: int) -> tuple[GreenSession, float, float]:
    """Train, and return the session, and mean time and CPU time (s) of a fixed piece of work that each step holds."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    layers = [nn.Embedding(256, 256), nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)]
    model, fixed = nn.Sequential(*layers), nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    given_x = torch.randn(512, 256)
    time_s = cpu_s = 0.0
    with GreenSession({"run": {"dir": str(folder), "report": False}}, signal=SIGNAL) as green:
        for _ in range(steps):
            begun_s, begun_cpu_s = time.perf_counter(), time.thread_time()
            with torch.no_grad():
                fixed(given_x)
            time_s += time.perf_counter() - begun_s
            cpu_s += time.thread_time() - begun_cpu_s
            ids = torch.randint(0, 256, (512,))
            loss = nn.functional.cross_entropy(model(ids), ids)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            green.step(tokens=ids.numel())
    return green, time_s / steps, cpu_s / steps


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
            speed = given_pilot(told.tokens_per_s(run) * run.count, devices=run.count)
            hours = forecast(speed, run.workload.tokens, good=Range.exactly(1.0)).gpu_hours.mid
            found.append((run, told.speed, hours / run.hours - 1))
    return found


def real_markdown(case: PilotCase) -> str:
    """Return each pair, and what the case is held to."""
    if not case.hours:
        return f"{case.name}: {case.refused}"
    lines = [
        "| pair | hours | energy | machine's change, CPU's | hours without it | energy without it | others' cores |",
        "|---|---|---|---|---|---|---|",
    ]
    rows = zip(case.pairs, case.drift, case.steady, case.busy, strict=True)
    for i, ((h, e), drift, (alone_h, alone_e), busy) in enumerate(rows, 1):
        change = ", ".join(f"{by:+.2%}" for by in drift)
        lines.append(f"| {i} | {h:+.2%} | {e:+.2%} | {change} | {alone_h:+.2%} | {alone_e:+.2%} | {busy:.2f} |")
    parts = {"as it ran": case.pairs, "the machine's own change taken out": case.steady}
    told = ["| hours and energy | median | worst | held to | verdict |", "|---|---|---|---|---|"]
    for what, pairs in parts.items():
        errors = [abs(error) for pair in pairs for error in pair]
        verdict = case.refused or ("PASS" if max(errors) <= BAR else "MISS")
        told.append(f"| {what} | {statistics.median(errors):.2%} | {max(errors):.2%} | <= {BAR:.0%} | {verdict} |")
    return "\n".join([case.name, "", *lines, "", *told])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3000, help="of the whole run")
    parser.add_argument("--repeats", type=int, default=REAL_REPEATS, help="pairs of a pilot and a whole run")
    args = parser.parse_args(argv)
    about = machine("benchmarks/estimator_pilot.py") | {"load": f"{os.getloadavg()[0]:.1f}"}
    print(facts(about))
    print("\n" + real_markdown(real_case(args.steps, args.repeats)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
