"""Cases total and window: joules against the truth."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.metering_common import (
    CODECARBON,
    CONSTANT,
    SQUARE,
    TOOLS,
    TWO_SQUARES,
    ZEUS,
    Bench,
    Row,
    Value,
    Worker,
    error_percent,
    installed,
    quantile,
    run_together,
    values_of,
)
from greentrain.testing.fake_nvml import FakeDriver, FakeGpu, NvmlCode

WAVES = {"120/420 W square, 0.73 s": SQUARE, "squares of 0.73 and 0.31 s": TWO_SQUARES, "constant 300 W": CONSTANT}
LENGTHS_S = (0.05, 0.5, 5.0)
PART_TIME_S = 0.025
"""What the sensor of an A100 or H100 sees of each 100 ms (arXiv 2312.02741)."""
_NO_COUNTER = {
    "nvmlDeviceGetTotalEnergyConsumption": NvmlCode.NOT_SUPPORTED,
    "NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION": NvmlCode.NOT_SUPPORTED,
}


def total(bench: Bench) -> list[Row]:
    """Error of the energy of a whole run: the mean over runs that begin and end at different moments of a tick."""
    duration_s = bench.pick(30.0, 8.0)
    offsets_s = [(0.0, 0.037)] if bench.quick else [(0.0, 0.037), (0.131, 0.071), (0.262, 0.053)]
    gpus = [FakeGpu(power=waves) for waves in WAVES.values()]
    errors: dict[tuple[str, int], list[float] | str] = {}
    jobs: list[tuple[Worker, tuple[int, ...]]] = []
    with bench.driver(gpus) as driver:
        for tool in filter(installed, TOOLS):
            for late_s, longer_s in offsets_s:
                groups: list[tuple[int, ...]] = [(0,), (1,), (2,)] if tool == CODECARBON else [(0, 1, 2)]
                for devices in groups:
                    environ = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, devices))}
                    job: dict[str, Any] = {"duration_s": duration_s + longer_s, "late_s": late_s, "options": {}}
                    jobs.append((Worker("total", tool, driver, scratch=bench.scratch, environ=environ, **job), devices))
        answers = run_together([worker for worker, _ in jobs])
        for (worker, devices), answer in zip(jobs, answers, strict=True):
            for place, device in enumerate(devices):
                if "error" in answer:
                    errors[worker.tool, device] = answer["error"]
                    continue
                truth_j = driver.true_energy_j(device, answer["t0_s"], answer["t1_s"])
                listed = errors.setdefault((worker.tool, device), [])
                if isinstance(listed, list):
                    listed.append(abs(error_percent(answer["energies_j"][place], truth_j)))
    return [
        Row(
            case="total",
            what=f"error of the total, {duration_s:.0f} s, {name}, mean of {len(offsets_s)}",
            unit="%",
            values=values_of(lambda tool, i=i: _mean(errors[tool, i])),  # type: ignore[misc]
            bar=1.0,
        )
        for i, name in enumerate(WAVES)
    ]


def window(bench: Bench) -> list[Row]:
    """Error of the energy of short windows, in every way a GPU can be read."""
    counts = {0.05: 50, 0.5: 12, 5.0: 1} if bench.quick else {0.05: 200, 0.5: 200, 5.0: 20}
    lengths_s = LENGTHS_S[:2] if bench.quick else LENGTHS_S
    plans = {length_s: _plan(length_s, counts[length_s]) for length_s in lengths_s}
    half = {0.5: plans[0.5]}
    power = FakeGpu(power=SQUARE, errors=_NO_COUNTER)
    average = FakeGpu(power=SQUARE, errors=_NO_COUNTER | {"NVML_FI_DEV_POWER_INSTANT": NvmlCode.NOT_SUPPORTED})
    gpus = [FakeGpu(power=SQUARE), FakeGpu(power=TWO_SQUARES)]
    gpus += [FakeGpu(power=gpu.power, window_s=PART_TIME_S) for gpu in gpus] + [power, average]
    places = {(0, 1): plans, (2, 3): half, (4,): half, (5,): half}
    with bench.driver(gpus) as driver:
        workers, devices = [], []
        for visible, some in places.items():
            for tool in filter(installed, TOOLS):
                if tool == ZEUS and visible[0] >= 4:
                    continue  # see _zeus_power
                for seen, plan in _split(tool, visible, some):
                    environ = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, seen))}
                    job: dict[str, Any] = {"plan": plan, "options": {}}
                    workers.append(Worker("windows", tool, driver, scratch=bench.scratch, environ=environ, **job))
                    devices.append(seen)
        errors: dict[tuple[str, int, float], list[float] | str] = {}
        for worker, seen, answer in zip(workers, devices, run_together(workers), strict=True):
            _collect(errors, driver, worker.tool, seen, answer)
        if installed(ZEUS) and not bench.quick:
            plan = dict(list(_flat(half).items())[:20])
            for device in (4, 5):
                environ = {"CUDA_VISIBLE_DEVICES": str(device)}
                worker = Worker("windows", ZEUS, driver, scratch=bench.scratch, environ=environ, plan=plan, options={})
                _collect(errors, driver, ZEUS, (device,), run_together([worker])[0])
    rows = []
    for length_s in lengths_s:
        for device, name in enumerate(list(WAVES)[:2]):
            what = f"{_text(length_s)} windows (n={counts[length_s]}), {name}"
            rows += _pair(errors, device, length_s, what, 2.0 if length_s == 0.5 else None)
    for device, name in enumerate(list(WAVES)[:2], start=2):
        rows += _pair(errors, device, 0.5, f"0.5 s windows, sensor sees 25 % of the time, {name}", None)
    rows += _pair(errors, 4, 0.5, "0.5 s windows, no energy counter: instant power (peers as they do), square", None)
    rows += _pair(errors, 5, 0.5, "0.5 s windows, no counter, no instant power: 1 s average, square", None)
    return rows


def _plan(length_s: float, count: int) -> dict[str, tuple[float, float]]:
    """Return windows one after another, the pauses between them random, so that they start anywhere in a tick."""
    rng = random.Random(f"{length_s}")
    plan, at_s = {}, 0.0
    for i in range(count):
        at_s += 0.01 + rng.random() * 0.1
        plan[f"{length_s}/{i}"] = (at_s, at_s + length_s)
        at_s += length_s
    return plan


def _flat(plans: Mapping[float, Mapping[str, tuple[float, float]]]) -> dict[str, tuple[float, float]]:
    return {name: span for plan in plans.values() for name, span in plan.items()}


def _split(
    tool: str, visible: Sequence[int], plans: Mapping[float, Mapping[str, tuple[float, float]]]
) -> list[tuple[tuple[int, ...], dict[str, tuple[float, float]]]]:
    """Return the processes a tool needs: codecarbon has one task at a time and one sum over GPUs."""
    if tool != CODECARBON:
        return [(tuple(visible), _flat(plans))]
    return [((device,), dict(plan)) for device in visible for plan in plans.values()]


def _collect(
    errors: dict[tuple[str, int, float], list[float] | str],
    driver: FakeDriver,
    tool: str,
    devices: Sequence[int],
    answer: Mapping[str, Any],
) -> None:
    if "error" in answer:
        for device in devices:
            for length_s in LENGTHS_S:
                errors.setdefault((tool, device, length_s), answer["error"])
        return
    for name, (t0_s, t1_s) in answer["spans"].items():
        energies_j = answer["energies_j"].get(name) or [0.0] * len(devices)
        for device, energy_j in zip(devices, energies_j, strict=True):
            listed = errors.setdefault((tool, device, float(name.split("/")[0])), [])
            if isinstance(listed, list):
                listed.append(abs(error_percent(energy_j, driver.true_energy_j(device, t0_s, t1_s))))


def _pair(
    errors: Mapping[tuple[str, int, float], list[float] | str],
    device: int,
    length_s: float,
    what: str,
    bar: float | None,
) -> list[Row]:
    def value(tool: str, share: float | None) -> Value:
        found = errors.get((tool, device, length_s))
        if not isinstance(found, list):
            return found
        return _mean(found) if share is None else quantile(found, share)

    return [
        Row(
            case="window",
            what=f"{what}: mean error",
            unit="%",
            values=values_of(lambda tool: value(tool, None)),
            bar=bar,
        ),
        Row(case="window", what=f"{what}: p90 error", unit="%", values=values_of(lambda tool: value(tool, 0.9))),
    ]


def _mean(found: list[float] | str) -> Value:
    return found if isinstance(found, str) else sum(found) / len(found)


def _text(length_s: float) -> str:
    return f"{length_s * 1000:.0f} ms" if length_s < 0.1 else f"{length_s:g} s"
